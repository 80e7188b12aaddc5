"""Hourly weather: what is accepted, whose clock, the sun above it; and the synthetic one against Bern's."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from refusals import refused
from scipy import integrate, stats

from pacpfl.data.pvgis import read_pvgis_csv
from pacpfl.data.weather import (
    Weather,
    airmass,
    autoregressive,
    clouds,
    irradiance,
    sky,
    synthetic_weather,
)

pvlib = pytest.importorskip("pvlib")

BERN = Path(__file__).parents[3] / "shared" / "data" / "pvgis_bern_2018_2019.csv"
needs_bern = pytest.mark.skipif(not BERN.exists(), reason="the weather of Bern is not here")


def made(hours: int = 48, start: str = "2018-06-20 00:10", **change: Any) -> Weather:
    times = pd.date_range(start, periods=hours, freq="h", tz="UTC")
    parts: dict[str, Any] = {"source": "the test", "latitude": 46.95, "longitude": 7.45}
    parts |= {"altitude": 510.0, "times": times, "beam": np.linspace(0, 500, hours)}
    constant = {"diffuse": 100.0, "temperature": 15.0, "wind": 1.0}
    parts |= {name: np.full(hours, value) for name, value in constant.items()}
    return Weather(**(parts | change))


def with_value(where: int, value: float) -> np.ndarray:
    return np.where(np.arange(48) == where, value, 1.0)


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
    refused(lambda: made(0), "no hours")


@pytest.mark.parametrize("longitude", [-170.0, -105.0, -7.6, 0.0, 7.45, 100.0, 179.0])
def test_noon_is_within_half_an_hour_of_the_highest_sun(longitude: float) -> None:
    weather = made(72, longitude=longitude)
    height = sky(weather).height
    tops = [h for h in range(1, 71) if height[h - 1] < height[h] > height[h + 1]]
    for top in tops:
        # The hour's stamp is ten minutes past; the highest sun lies within half an hour of it.
        assert abs(weather.local[top].hour + 1 / 6 - 12) < 0.5 + 0.5 + 0.05
    assert len(tops) >= 2 and weather.local.tz is None


def test_the_beam_towards_the_sun() -> None:
    """beam / sin(height), nothing within 3 degrees of the horizon, never more than the sun sends."""
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
    weather = made(24, "2018-06-21 00:30")
    light = sky(weather)
    assert light.height.max() == pytest.approx(90 - 46.95 + 23.43, abs=0.1)
    assert light.height.min() == pytest.approx(-(90 - 46.95 - 23.43), abs=0.3)
    assert light.azimuth[11] == pytest.approx(180, abs=2)  # 11:30 UTC is noon at 7.45 degrees east
    assert light.azimuth[5] < 90 < 270 < light.azimuth[18]


@needs_bern
def test_the_sun_stands_where_pvgis_says() -> None:
    table = pd.read_csv(BERN, skiprows=8, nrows=2 * 8760)
    times = pd.DatetimeIndex(pd.to_datetime(table["time"], format="%Y%m%d:%H%M", utc=True))
    weather = replace(made(len(times)), times=times)
    theirs = table["H_sun"].to_numpy()
    ours = sky(weather).height
    assert np.abs(ours - theirs)[theirs > 1].max() < 0.5
    assert (ours[theirs == 0] < 3).mean() > 0.999  # a few hours are missing in the record


def test_hours_the_satellite_missed_lie_between_their_neighbours() -> None:
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


# ---- synthetic weather ----


@pytest.fixture(scope="module")
def lausanne() -> Weather:
    return synthetic_weather(seed=0)


def test_it_covers_whole_years_and_the_same_seed_is_the_same_weather(lausanne: Weather) -> None:
    assert (lausanne.latitude, lausanne.longitude) == (46.52, 6.63)
    assert len(lausanne.times) == 2 * 8760
    assert str(lausanne.times[0]) == "2018-01-01 00:30:00+00:00"
    again, other = synthetic_weather(seed=0), synthetic_weather(seed=1)
    for name in ("beam", "diffuse", "temperature", "wind"):
        assert np.array_equal(getattr(again, name), getattr(lausanne, name))
        assert abs(np.corrcoef(getattr(other, name), getattr(lausanne, name))[0, 1]) < 0.95


@pytest.mark.parametrize("memory", [0.0, 0.5, 0.9])
def test_autoregressive_series_have_unit_variance_and_memory(memory: float) -> None:
    rng = np.random.default_rng(4)
    draws = np.stack([autoregressive(memory, 5, rng) for _ in range(20_000)])
    lags = np.abs(np.arange(5)[:, None] - np.arange(5))
    np.testing.assert_allclose(np.cov(draws.T), np.where(lags == 0, 1, memory**lags), atol=0.04)


def test_the_clear_sky_index_has_its_distribution_and_memory() -> None:
    """Without season: uniform on [0.08, 0.88] with probability 0.55, on [0.88, 1.1] else."""
    local = pd.date_range("1950-01-01", "2000-12-31 23:00", freq="h")
    clearness, index = clouds(local, np.zeros(len(local)), np.random.default_rng(8))
    law = np.interp(np.sort(index), [0.08, 0.88, 1.1], [0, 0.55, 1])
    assert np.abs(law - (np.arange(len(index)) + 0.5) / len(index)).max() < 0.015
    days = clearness.reshape(-1, 24)
    assert (days == days[:, :1]).all()
    assert np.corrcoef(days[:-1, 0], days[1:, 0])[0, 1] == pytest.approx(0.5, abs=0.03)
    # The Gaussian variable behind it: hours of one day share 0.6, and 0.4 x 0.6 with the next hour.
    latent = stats.norm.ppf(np.interp(index, [0.08, 0.88, 1.1], [0, 0.55, 1])).reshape(-1, 24)
    for lag in (1, 2, 6):
        found = np.mean(latent[:, :-lag] * latent[:, lag:])
        assert found == pytest.approx(0.6 + 0.4 * 0.6**lag, abs=0.03)


def test_season_makes_days_clearer() -> None:
    """E[k] = integral of F^-1(Phi(c s + x)) over a standard normal x."""
    local = pd.date_range("1950-01-01", "1999-12-31 23:00", freq="h")
    for season in (-1.0, 1.0):
        _, index = clouds(local, np.full(len(local), season), np.random.default_rng(2))
        expected, _ = integrate.quad(
            lambda x, s=season: (
                stats.norm.pdf(x)
                * np.interp(stats.norm.cdf(0.35 * s + x), [0, 0.55, 1], [0.08, 0.88, 1.1])
            ),
            -8,
            8,
        )
        assert index.mean() == pytest.approx(expected, abs=0.01)


def test_light_is_the_clear_sky_times_the_index_split_after_erbs() -> None:
    times = pd.date_range("2018-05-01 00:30", periods=24 * 20, freq="h", tz="UTC")
    index = np.random.default_rng(0).uniform(0.05, 1.1, len(times))
    beam, diffuse = irradiance(times, 46.5, 6.6, 500.0, index)
    place = pvlib.location.Location(46.5, 6.6, "UTC", 500.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of pvlib, about pandas
        clear = place.get_clearsky(times, linke_turbidity=3.0)["ghi"].to_numpy()
        sun = place.get_solarposition(times)
    np.testing.assert_allclose(beam + diffuse, index * clear, rtol=1e-3, atol=0.05)
    height = sun["apparent_elevation"].to_numpy()
    assert ((beam + diffuse)[height <= 0] == 0).all()
    # Erbs, written out: the share of diffuse light from kt, the part of the light above the air.
    high = np.flatnonzero(height > 10)
    day = times.day_of_year.to_numpy()[high]
    kt = (beam + diffuse)[high] / (
        pvlib.irradiance.get_extra_radiation(day) * np.sin(np.radians(height[high]))
    )
    share = 0.9511 - 0.1604 * kt + 4.388 * kt**2 - 16.638 * kt**3 + 12.336 * kt**4
    share = np.where(kt <= 0.22, 1 - 0.09 * kt, np.where(kt > 0.8, 0.165, share))
    np.testing.assert_allclose(diffuse[high] / (beam + diffuse)[high], share, atol=2e-3)


def test_seasons_turn_around_in_the_south_and_vanish_at_the_equator() -> None:
    north = synthetic_weather(46.5, 6.6, 500.0, (2016, 2017))
    south = synthetic_weather(-46.5, 6.6, 500.0, (2016, 2017))
    equator = synthetic_weather(0.0, 6.6, 500.0, (2016, 2017))

    def warmer_in_july(weather: Weather) -> float:
        means = pd.Series(weather.temperature).groupby(weather.times.month.to_numpy()).mean()
        return float(means[7] - means[1])

    assert warmer_in_july(north) == pytest.approx(19, abs=3)
    assert warmer_in_july(south) == pytest.approx(-19, abs=3)
    assert abs(warmer_in_july(equator)) < 3
    assert equator.temperature.mean() > north.temperature.mean() + 8


def test_poles_and_date_line_work() -> None:
    for latitude, longitude in ((90.0, 0.0), (-90.0, 180.0), (10.0, -180.0)):
        weather = synthetic_weather(latitude, longitude, 0.0, (2020, 2020))
        assert len(weather.times) == 8784
        assert (weather.beam >= 0).all() and weather.beam.max() > 100


def test_years_and_places_that_cannot_be() -> None:
    refused(lambda: synthetic_weather(years=(2019, 2018)), "years = 2019 to 2018")
    refused(lambda: synthetic_weather(years=(0, 5)), "years = 0 to 5")
    refused(lambda: synthetic_weather(146.5, years=(2018, 2018)), r"latitude 146\.5")


def daily_clearness(weather: Weather) -> pd.Series:
    """Light of a day divided by that of a clear one."""
    light = sky(weather)
    clear = np.zeros(len(weather.times))
    day = light.height > 5
    zenith, altitude = 90 - light.height[day], weather.altitude
    air = airmass(zenith, altitude)
    clear[day] = pvlib.clearsky.ineichen(zenith, air, 3.0, altitude, light.beyond[day])["ghi"]
    sums = pd.DataFrame({"real": light.horizontal * day, "clear": clear}).groupby(
        weather.local.normalize().to_numpy()
    )
    return sums["real"].sum() / sums["clear"].sum()


@needs_bern
def test_it_is_like_the_weather_of_bern() -> None:
    """Months' means and spreads of clearness, memory, diffuse share, temperature and wind."""
    real = read_pvgis_csv(BERN)
    synthetic = synthetic_weather(
        real.latitude, real.longitude, real.altitude, years=(2012, 2015), seed=11
    )
    ours, theirs = daily_clearness(synthetic), daily_clearness(real)
    months = [each.groupby(each.index.month) for each in (ours, theirs)]
    assert np.abs(months[0].mean() - months[1].mean()).max() < 0.2
    assert abs(months[0].mean().mean() - months[1].mean().mean()) < 0.07
    assert np.abs(months[0].std() - months[1].std()).max() < 0.12
    memory = [
        (each - each.groupby(each.index.month).transform("mean")).autocorr(1)
        for each in (ours, theirs)
    ]
    assert abs(memory[0] - memory[1]) < 0.15

    shares = [each.diffuse.sum() / (each.beam + each.diffuse).sum() for each in (synthetic, real)]
    assert abs(shares[0] - shares[1]) < 0.06
    for name, tolerance in (("temperature", 1.5), ("wind", 0.4)):
        values = [getattr(each, name) for each in (synthetic, real)]
        assert abs(values[0].mean() - values[1].mean()) < tolerance
        assert 0.7 < values[0].std() / values[1].std() < 1.4
    warm = [
        pd.Series(each.temperature).groupby(each.times.month.to_numpy()).mean()
        for each in (synthetic, real)
    ]
    assert np.abs(warm[0] - warm[1]).max() < 4.5
