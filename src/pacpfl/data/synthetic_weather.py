"""Weather that nobody measured: a clear sky, clouds with memory, temperature and wind.

The irradiance on the horizontal plane is k_t times that of a clear sky (Ineichen and Perez, by pvlib),
and Erbs' model splits it into beam and diffuse light, so that a dark hour has little beam and a larger
share of diffuse light. The clear-sky index k_t is a quantile of a Gaussian variable

    k_t = F^-1(Phi(c s_t + sqrt(a) z_day(t) + sqrt(1 - a) e_t))

with z a day's value and e an hour's value, both autoregressive of order 1 with unit variance (fine days
follow fine days, and a cloud stays for some hours), and s_t the season: +1 in the middle of summer at 45
degrees north, -1 in winter, the opposite in the south, 0 at the equator. F has many hours close to a
clear sky and the others spread evenly, which is what temperate places show. Temperature has the season,
the day, the clouds (clear days are warm in summer and cold in winter) and a memory of days; wind is
log-normal with a memory of hours and a daily cycle. The constants are round numbers for temperate
Europe; another climate has others.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy import signal, special

from pacpfl.data.weather import Weather, require_pvlib
from pacpfl.errors import InputError

LAUSANNE = (46.52, 6.63)  # degrees north and east
TURBIDITY = 3.0  # of Linke, for the clear sky: clean to moderately hazy air

# F^-1: 45% of the hours are nearly clear (0.88 to 1.1, the upper end by light from clouds' edges).
QUANTILES = (0.0, 0.55, 1.0)
CLEAR_SKY_INDEX = (0.08, 0.88, 1.1)
SEASON_OF_CLOUDS = 0.35  # c
DAY_SHARE = 0.6  # a
DAY_MEMORY = 0.5  # correlation of z from day to day
HOUR_MEMORY = 0.6  # correlation of e from hour to hour

TEMPERATURE_SEASON = 9.5  # degrees Celsius, from the year's mean to the middle of summer
TEMPERATURE_SPREAD = 2.7
TEMPERATURE_MEMORY = 0.989  # from hour to hour: 0.77 from day to day
WIND_MEDIAN = 1.2  # m/s
WIND_SPREAD = 0.6  # std of its logarithm
WIND_MEMORY = 0.96


def synthetic_weather(
    latitude: float = LAUSANNE[0],
    longitude: float = LAUSANNE[1],
    altitude: float = 500.0,
    years: tuple[int, int] = (2018, 2019),
    seed: int = 0,
) -> Weather:
    """Every hour (its middle) from the first to the last of the years, the same for the same seed."""
    first, last = years
    if not (1900 <= first <= last <= 2200):
        raise InputError(
            f"years = {first} to {last} cannot be; give a first and a last one from 1900 to 2200."
        )
    times = pd.date_range(f"{first}-01-01 00:30", f"{last}-12-31 23:30", freq="h", tz="UTC")
    local = times + pd.Timedelta(hours=round(longitude / 15))
    season = np.cos(2 * np.pi * (local.day_of_year.to_numpy() - 200) / 365.25)
    season *= np.clip(latitude / 45, -1, 1)
    cloud_seed, temperature_seed, wind_seed = np.random.SeedSequence([20190731, seed]).spawn(3)

    clearness, index = clouds(local, season, np.random.default_rng(cloud_seed))
    beam, diffuse = irradiance(times, latitude, longitude, altitude, index)
    return Weather(
        f"synthetic weather (seed {seed})",
        latitude,
        longitude,
        altitude,
        times,
        beam,
        diffuse,
        _temperature(
            latitude, altitude, local, season, clearness, np.random.default_rng(temperature_seed)
        ),
        _wind(local, np.random.default_rng(wind_seed)),
    )


def clouds(
    local: pd.DatetimeIndex, season: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """z of each hour's day, and the clear-sky index of each hour."""
    day = (local.normalize() - local[0].normalize()).days.to_numpy()
    clearness = autoregressive(DAY_MEMORY, day[-1] + 1, rng)[day]
    hourly = autoregressive(HOUR_MEMORY, len(local), rng)
    latent = SEASON_OF_CLOUDS * season
    latent = latent + np.sqrt(DAY_SHARE) * clearness + np.sqrt(1 - DAY_SHARE) * hourly
    return clearness, np.interp(special.ndtr(latent), QUANTILES, CLEAR_SKY_INDEX)


def irradiance(
    times: pd.DatetimeIndex, latitude: float, longitude: float, altitude: float, index: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Beam and diffuse irradiance on the horizontal plane under clouds of this clear-sky index."""
    pvlib = require_pvlib()
    sun = pvlib.solarposition.get_solarposition(times, latitude, longitude, altitude)
    height = sun["apparent_elevation"].to_numpy()
    beam, diffuse = np.zeros(len(times)), np.zeros(len(times))
    day = np.flatnonzero(height > 0)
    if not len(day):
        return beam, diffuse
    zenith, day_of_year = 90.0 - height[day], times.day_of_year.to_numpy()[day]
    airmass = pvlib.atmosphere.get_absolute_airmass(
        pvlib.atmosphere.get_relative_airmass(zenith), pvlib.atmosphere.alt2pres(altitude)
    )
    beyond = pvlib.irradiance.get_extra_radiation(day_of_year)
    clear = pvlib.clearsky.ineichen(zenith, airmass, TURBIDITY, altitude, beyond)
    whole = index[day] * clear["ghi"]
    diffuse[day] = np.clip(pvlib.irradiance.erbs(whole, zenith, day_of_year)["dhi"], 0.0, whole)
    beam[day] = whole - diffuse[day]
    return beam, diffuse


def _temperature(
    latitude: float,
    altitude: float,
    local: pd.DatetimeIndex,
    season: np.ndarray,
    clearness: np.ndarray,
    rng: np.random.Generator,
) -> np.ndarray:
    mean_of_year = 28.0 - 0.007 * latitude**2 - 6.5 * altitude / 1000.0
    hour = local.hour.to_numpy() + local.minute.to_numpy() / 60
    # A day's clearness is reached at noon and passes smoothly into the next day's.
    noon = np.flatnonzero(local.hour == 12)
    clear = np.interp(np.arange(len(local)), noon, clearness[noon])
    day_swing = (3.4 + 1.2 * season) * np.exp(0.25 * clear) * np.cos(2 * np.pi * (hour - 15) / 24)
    memory = TEMPERATURE_SPREAD * autoregressive(TEMPERATURE_MEMORY, len(local), rng)
    return mean_of_year + TEMPERATURE_SEASON * season + day_swing + 1.5 * season * clear + memory


def _wind(local: pd.DatetimeIndex, rng: np.random.Generator) -> np.ndarray:
    hour = local.hour.to_numpy() + local.minute.to_numpy() / 60
    breeze = 1.0 + 0.2 * np.cos(2 * np.pi * (hour - 14) / 24)
    gusts = np.exp(WIND_SPREAD * autoregressive(WIND_MEMORY, len(local), rng))
    return WIND_MEDIAN * breeze * gusts


def autoregressive(memory: float, count: int, rng: np.random.Generator) -> np.ndarray:
    """x_t = memory x_{t-1} + sqrt(1 - memory^2) noise, stationary from the start, unit variance."""
    noise = rng.normal(size=count)
    noise[1:] *= np.sqrt(1 - memory**2)
    return np.asarray(signal.lfilter([1.0], [1.0, -memory], noise))
