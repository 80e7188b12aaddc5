"""scripts.reference_years.py: two test reference years become one weather file."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pacpfl.data.pv import pv
from pacpfl.data.pvgis import read_pvgis_csv
from pacpfl.errors import InputError
from scripts.reference_years import HOURS, main, two_years

pvlib = pytest.importorskip("pvlib", reason="pvlib is not installed (pip install 'pacpfl[pv]')")

CALENDAR = pd.date_range("2018-01-01", periods=HOURS, freq="h")


def write_year(
    path: Path, warmth: float = 0.0, place: str = "Lage: 49°31'N <- B.   8°33'O <- L.    96 Meter"
) -> Path:
    """A year whose light is that of a sun that stands highest in the middle of hours 12 and 13."""
    hour = CALENDAR.hour.to_numpy() + 1
    beam = np.round(800 * np.maximum(np.cos(np.pi * (hour - 0.5 - 12) / 12), 0)).astype(int)
    rows = [
        f"12  1  {time.month}  {time.day}  {hh}  8  190  5.0  {warmth + number / 1000:.3f}  1000.6  6.7  86"
        f"  21  {light}  {light // 4} 1  335  -365  9"
        for number, (time, hh, light) in enumerate(zip(CALENDAR, hour, beam, strict=True))
    ]
    before = "12  1  12  31  24  8  190  9.0  99.0  1000.6  6.7  86  21  0  0 1  335  -365  9"
    lines = ["TRY12", "Station: Nowhere", place, "RG IS MM", "***", before, *rows]
    path.write_text("\n".join(lines) + "\n", encoding="latin-1")
    return path


@pytest.fixture
def years(tmp_path: Path) -> tuple[Path, Path]:
    return write_year(tmp_path / "first.dat"), write_year(tmp_path / "second.dat", warmth=10.0)


@pytest.mark.parametrize("east", [8, 12, 14])
def test_the_light_is_centred_on_the_suns_noon_as_pvlib_finds_it(tmp_path: Path, east: int):
    place = f"Lage: 49°31'N <- B.   {east}°30'O <- L.    96 Meter"
    path = write_year(tmp_path / "year.dat", place=place)
    weather = two_years(path, path)
    day = weather.times.strftime("%m%d") == "0613"  # the equation of time is 0
    day &= weather.times.year == 2018
    times, beam = weather.times[day], weather.beam[day]
    minutes = np.average((times - times[0]).total_seconds() / 60, weights=beam)
    fine = pd.date_range(times[0], periods=24 * 60, freq="min")
    height = pvlib.solarposition.get_solarposition(fine, 49 + 31 / 60, east + 0.5)["elevation"]
    assert abs(minutes - int(np.argmax(height))) < 2.0


def test_every_hour_keeps_its_values_and_its_year(years: tuple[Path, Path]):
    weather = two_years(*years)
    assert (weather.latitude, weather.longitude) == pytest.approx((49.516667, 8.55))
    assert weather.altitude == 96
    assert len(weather.times) == 2 * HOURS
    # 8.55 degrees are 34 minutes: the hour that ends at 2 by the sun has its middle at 0:56 by UTC.
    assert str(weather.times[0]) == "2018-01-01 00:56:00+00:00"
    assert weather.temperature[0] == 0.001
    assert weather.temperature[HOURS - 2] == pytest.approx((HOURS - 1) / 1000, abs=1e-3)
    assert weather.temperature[HOURS - 1] == 10.0
    assert weather.temperature[-1] == 0.0
    np.testing.assert_array_equal(weather.wind, 5.0)
    np.testing.assert_array_equal(weather.diffuse, weather.beam // 4)


def test_the_file_it_writes_makes_houses(tmp_path: Path, years: tuple[Path, Path]):
    out = tmp_path / "nowhere.csv"
    main([*map(str, years), "--out", str(out)])
    weather = read_pvgis_csv(out)
    np.testing.assert_array_equal(weather.beam, two_years(*years).beam)
    houses = pv("S", 2, 1, 150, "first", weather)
    assert houses.existing[0].train.x.shape == (150, 15)
    assert houses.existing[0].test is not None
    assert len(houses.existing[0].test) == 610


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda text: text.replace("***", ""), "no line"),
        (lambda text: text.replace("Lage", "Ort"), "no line"),
        (lambda text: text.replace("12  1  6  1  12  8", "12  1  6  1  13  8"), "in order"),
        (lambda text: text[: len(text) // 2].rpartition("\n")[0], "in order"),
        (lambda text: text + "the end\n", "no row of numbers"),
        (lambda text: re.sub("  86  21 .*", "", text), "with its radiation"),
        (lambda text: text.partition("***")[0] + "***\n", "in order"),
    ],
)
def test_what_is_no_year_is_refused_in_one_sentence(
    years: tuple[Path, Path], spoil, words: str, tmp_path: Path
):
    first, second = years
    first.write_text(spoil(first.read_text(encoding="latin-1")), encoding="latin-1")
    with pytest.raises(InputError, match=words) as caught:
        two_years(first, second)
    assert str(first) in str(caught.value)


def test_two_stations_are_refused(tmp_path: Path, years: tuple[Path, Path]):
    other = write_year(
        tmp_path / "other.dat", place="Lage: 54°11'N <- B.  12°05'O <- L.     4 Meter"
    )
    with pytest.raises(InputError, match="different stations"):
        two_years(years[0], other)


def test_the_command_says_what_is_missing(tmp_path: Path):
    with pytest.raises(SystemExit, match="cannot be read"):
        main(
            [str(tmp_path / "no.dat"), str(tmp_path / "no.dat"), "--out", str(tmp_path / "out.csv")]
        )
