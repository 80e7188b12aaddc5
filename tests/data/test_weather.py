"""Hourly weather: what is accepted, whose clock, and the sun above it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from refusals import refused

from pacpfl.data.weather import Weather, sky

BERN = Path(__file__).parents[3] / "shared" / "data" / "pvgis_bern_2018_2019.csv"


def made(hours: int = 48, start: str = "2018-06-20 00:10", **change: Any) -> Weather:
    times = pd.date_range(start, periods=hours, freq="h", tz="UTC")
    parts: dict[str, Any] = {
        "source": "the test",
        "latitude": 46.95,
        "longitude": 7.45,
        "altitude": 510.0,
        "times": times,
        "beam": np.linspace(0, 500, hours),
        "diffuse": np.full(hours, 100.0),
        "temperature": np.full(hours, 15.0),
        "wind": np.full(hours, 1.0),
    }
    return Weather(**(parts | change))


def with_value(where: int, value: float, hours: int = 48) -> np.ndarray:
    values = np.full(hours, 1.0)
    values[where] = value
    return values


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"beam": with_value(3, np.nan)}, "beam nan at 2018-06-20 03:10"),
        ({"diffuse": with_value(3, -1.0)}, "diffuse -1.0 at 2018-06-20 03:10"),
        ({"temperature": with_value(0, -9999.0)}, "temperature -9999.0 at 2018-06-20 00:10"),
        ({"wind": with_value(47, np.inf)}, "wind inf at 2018-06-21 23:10"),
        ({"beam": with_value(2, 3e6)}, "not between 0 and 2000"),
        ({"beam": np.zeros(47)}, "48 hours and beam of shape (47,)"),
        ({"latitude": 91.0}, "latitude 91.0"),
        ({"longitude": float("nan")}, "longitude nan"),
        ({"times": pd.date_range("2018-06-20", periods=48, freq="h")}, "no hours in UTC"),
        (
            {"times": pd.date_range("2018-06-20", periods=48, freq="2h", tz="UTC")},
            "from 2018-06-20 00:00 to 2018-06-20 02:00",
        ),
    ],
)
def test_weather_that_cannot_be_used_is_named(change: dict[str, Any], words: str) -> None:
    refused(lambda: made(**change), "^the test ", re.escape(words))


def test_no_hours_at_all() -> None:
    refused(lambda: made(0), "no hours")


@pytest.mark.parametrize(
    ("longitude", "local"),
    [(7.45, 12), (6.63, 12), (-105.0, 5), (139.7, 21), (-0.1, 12), (16.4, 13)],
)
def test_the_clock_follows_the_sun(longitude: float, local: int) -> None:
    weather = made(longitude=longitude)
    assert weather.local[12].hour == local
    assert weather.local.tz is None and weather.local[12].minute == 10


@pytest.mark.parametrize("longitude", [-170.0, -105.0, -7.6, 0.0, 7.45, 100.0, 179.0])
def test_noon_is_within_half_an_hour_of_the_highest_sun(longitude: float) -> None:
    pytest.importorskip("pvlib")
    weather = made(72, longitude=longitude)
    height = sky(weather).height
    tops = [h for h in range(1, 71) if height[h - 1] < height[h] > height[h + 1]]
    for top in tops:
        # The hour's stamp is ten minutes past; the highest sun lies within half an hour of it.
        assert abs(weather.local[top].hour + 1 / 6 - 12) < 0.5 + 0.5 + 0.05
    assert len(tops) >= 2


def test_the_beam_towards_the_sun() -> None:
    """beam / sin(height), nothing within 3 degrees of the horizon, never more than the sun sends."""
    pytest.importorskip("pvlib")
    weather = made(24 * 40)
    light = sky(weather)
    high = light.height >= 3
    assert high.any() and (~high & (light.height > 0)).any()
    assert (light.beam[~high] == 0).all()
    free = high & (light.beam < light.beyond)
    assert free.sum() > 200 and (high & ~free).sum() > 10  # both cases are met
    np.testing.assert_allclose(
        light.beam[free] * np.sin(np.radians(light.height[free])), weather.beam[free]
    )
    np.testing.assert_array_equal(light.beam[high & ~free], light.beyond[high & ~free])
    assert np.all((light.beyond > 1315) & (light.beyond < 1415))  # W/m2, near and far from the sun
    np.testing.assert_array_equal(light.horizontal, weather.beam + weather.diffuse)


def test_the_sun_at_a_solstice_noon_and_at_midnight() -> None:
    pytest.importorskip("pvlib")
    weather = made(24, "2018-06-21 00:30")
    light = sky(weather)
    assert light.height.max() == pytest.approx(90 - 46.95 + 23.43, abs=0.1)
    assert light.height.min() == pytest.approx(-(90 - 46.95 - 23.43), abs=0.3)
    assert light.azimuth[11] == pytest.approx(180, abs=2)  # 11:30 UTC is noon at 7.45 degrees east
    assert light.azimuth[5] < 90 < 270 < light.azimuth[18]


@pytest.mark.skipif(not BERN.exists(), reason="the weather of Bern is not here")
def test_the_sun_stands_where_pvgis_says() -> None:
    pytest.importorskip("pvlib")
    table = pd.read_csv(BERN, skiprows=8, nrows=2 * 8760)
    times = pd.DatetimeIndex(pd.to_datetime(table["time"], format="%Y%m%d:%H%M", utc=True))
    nothing = np.zeros(len(times))
    weather = replace(
        made(), times=times, beam=nothing, diffuse=nothing, temperature=nothing, wind=nothing
    )
    theirs = table["H_sun"].to_numpy()
    ours = sky(weather).height
    assert np.abs(ours - theirs)[theirs > 1].max() < 0.5
    assert (ours[theirs == 0] < 3).mean() > 0.999  # a few hours are missing in the record


def test_hours_the_satellite_missed_lie_between_their_neighbours() -> None:
    pytest.importorskip("pvlib")
    whole = made(diffuse=np.linspace(50, 97, 48), beam=np.linspace(100, 194, 48))
    noon, evening = [11, 12], 21  # 21:10 is dark
    beam, diffuse = whole.beam.copy(), whole.diffuse.copy()
    for values in (beam, diffuse):
        values[[*noon, evening]] = 0.0
    holes, light = sky(replace(whole, beam=beam, diffuse=diffuse)), sky(whole)
    assert light.height[evening] < 0
    for name in ("beam", "diffuse", "horizontal"):
        np.testing.assert_allclose(getattr(holes, name)[noon], getattr(light, name)[noon])
    assert holes.horizontal[evening] == 0
    beam[noon] = whole.beam[noon]  # some light is light
    assert sky(replace(whole, beam=beam, diffuse=diffuse)).diffuse[noon].tolist() == [0.0, 0.0]
