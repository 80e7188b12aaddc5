"""The figure of the houses shows the houses: its lines are read back and compared."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from pacpfl.data.pv import HouseRecord, Panels, house_records
from pacpfl.data.weather import Weather, synthetic_weather
from pacpfl.errors import InputError
from pacpfl.report import style
from reproduction.pv_plots import houses_over_days

pytest.importorskip("pvlib")


@pytest.fixture(autouse=True)
def drawn_in_style() -> Iterator[None]:
    with style.drawing():
        yield


@pytest.fixture(scope="module")
def weather() -> Weather:
    return synthetic_weather(years=(2018, 2018))


def compare(
    figure: Figure, records: tuple[HouseRecord, ...], weather: Weather, first: str, days: int
) -> None:
    (axis,) = figure.axes
    start = weather.times.get_loc(pd.Timestamp(first, tz="UTC") + pd.Timedelta(minutes=30))
    assert len(axis.lines) == len(records)
    for line, record in zip(axis.lines, records, strict=True):
        points = np.asarray(line.get_xydata())
        np.testing.assert_allclose(points[:, 0], np.arange(24 * days) + 0.5)
        np.testing.assert_array_equal(points[:, 1], record.output[start : start + 24 * days])


@pytest.mark.parametrize(
    ("facing", "labels"),
    [("EW", ["facing east", "facing west"]), ("S", ["facing south"])],
)
def test_all_houses_over_five_days_of_june(
    facing: Panels, labels: list[str], weather: Weather
) -> None:
    records = house_records(facing, 4, weather)
    figure = houses_over_days(records, weather, facing)
    compare(figure, records, weather, "2018-06-01", 5)
    (axis,) = figure.axes
    assert [tick.get_text() for tick in axis.get_xticklabels(minor=True)] == [
        "1 June", "2 June", "3 June", "4 June", "5 June",
    ]  # fmt: skip
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("2018", "output (kW)")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == labels
    colours = [line.get_color() for line in axis.lines]
    if facing == "EW":  # green and blue as in the paper
        green, blue = style.COLOURS[2], style.COLOURS[0]
        assert colours == [green, blue, green, blue]
        assert [line.get_linestyle() for line in axis.lines] == ["-", "--", "-", "--"]
        handles = figure.legends[0].legend_handles
        assert [handle.get_color() for handle in handles] == [green, blue]  # type: ignore[union-attr]
    else:
        assert len(set(colours)) == 1
    assert "facing" in style.as_svg(figure)


def test_other_days(weather: Weather) -> None:
    records = house_records("EW", 2, weather)
    figure = houses_over_days(records, weather, "EW", pd.Timestamp("2018-06-30 15:00"), days=2)
    compare(figure, records, weather, "2018-06-30", 2)
    labels = [tick.get_text() for tick in figure.axes[0].get_xticklabels(minor=True)]
    assert labels == ["30 June", "1 July"]


def test_days_that_are_not_there(weather: Weather) -> None:
    records = house_records("S", 1, weather)
    with pytest.raises(InputError, match="the 5 days from 2018-12-29 on"):
        houses_over_days(records, weather, "S", pd.Timestamp("2018-12-29"))
    with pytest.raises(InputError, match="with 0 houses"):
        houses_over_days((), weather, "S")


def test_a_record_without_june(weather: Weather) -> None:
    keep = weather.times.month < 6
    short = Weather(
        "the test", 46.0, 7.0, 500.0, weather.times[keep], weather.beam[keep],
        weather.diffuse[keep], weather.temperature[keep], weather.wind[keep],
    )  # fmt: skip
    with pytest.raises(InputError, match=r"^the test holds no June"):
        houses_over_days(house_records("S", 1, short), short, "S")
