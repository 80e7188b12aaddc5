"""Hourly weather of one place, measured or synthetic, and the sun above it.

A `Weather` comes from PVGIS (`data.pvgis`), or nobody measured it (`synthetic_weather`): a clear sky,
clouds with memory, temperature and wind.

Synthetic irradiance on the horizontal plane is k_t times that of a clear sky (Ineichen and Perez, by
pvlib), and Erbs' model splits it into beam and diffuse light, so that a dark hour has little beam and a
larger share of diffuse light. The clear-sky index k_t is a quantile of a Gaussian variable

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

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import signal, special

from pacpfl.errors import InputError, imported

# What cannot be exceeded on Earth; beyond it units or missing values were mistaken.
LIMITS = {
    "beam": (0.0, 2000.0),
    "diffuse": (0.0, 2000.0),
    "temperature": (-100.0, 70.0),
    "wind": (0.0, 150.0),
}
SURELY_DAY = 5.0  # degrees of sun height above which there is always some light
LOWEST_SUN = 3.0  # degrees of sun height below which a beam on the horizontal plane tells nothing

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


@dataclass(frozen=True)
class Weather:
    """What a weather station records, one value per hour.

    Irradiances are those on the HORIZONTAL plane, because this is what is measured; the beam on a
    plane that faces the sun follows from the sun's height (`sky`).
    """

    source: str  # where it comes from, for messages
    latitude: float  # degrees, north positive
    longitude: float  # degrees, east positive
    altitude: float  # metres
    times: pd.DatetimeIndex  # [hours], UTC, one hour apart
    beam: np.ndarray  # [hours], W/m2
    diffuse: np.ndarray  # [hours], W/m2
    temperature: np.ndarray  # [hours], of the air at 2 m, degrees Celsius
    wind: np.ndarray  # [hours], at 10 m, m/s

    def __post_init__(self) -> None:
        hours, source = len(self.times), self.source
        if not hours or self.times.tz is None:
            raise InputError(f"{source} holds no hours in UTC; give at least one.")
        if not (-90 <= self.latitude <= 90 and -180 <= self.longitude <= 180):
            raise InputError(
                f"{source} is for latitude {self.latitude} and longitude {self.longitude}, which "
                "is nowhere on Earth; give degrees between -90 and 90, and -180 and 180."
            )
        for name, (low, high) in LIMITS.items():
            values = getattr(self, name)
            if values.shape != (hours,):
                raise InputError(
                    f"{source} has {hours} hours and {name} of shape {values.shape}; give one an hour."
                )
            if len(wrong := impossible(name, values)):
                raise InputError(
                    f"{source} has {name} {values[wrong[0]]} at {self.times[wrong[0]]:%Y-%m-%d %H:%M}, "
                    f"not between {low:g} and {high:g}; fill it or take other weather."
                )
        jumps = np.flatnonzero(np.diff(self.times.to_numpy()) != np.timedelta64(1, "h"))
        if len(jumps):
            before, after = self.times[jumps[0] : jumps[0] + 2]
            raise InputError(
                f"{source} goes from {before:%Y-%m-%d %H:%M} to {after:%Y-%m-%d %H:%M}; give every hour "
                "once, in order."
            )

    @property
    def local(self) -> pd.DatetimeIndex:
        """The times by the clock of the place's own meridian, in whole hours from UTC.

        The sun, not the law, decides when panels work: round(longitude / 15) puts noon within half
        an hour of the highest sun anywhere, without summer time. For Switzerland this is UTC.
        """
        return (self.times + pd.Timedelta(hours=round(self.longitude / 15))).tz_localize(None)


def impossible(name: str, values: np.ndarray) -> np.ndarray:
    """Return the hours at which a quantity has a value that it cannot have on Earth, or none."""
    low, high = LIMITS[name]
    return np.flatnonzero(~((values >= low) & (values <= high)))


@dataclass(frozen=True)
class Sky:
    """The sun and its light over a place, for every hour of its weather."""

    height: np.ndarray  # [hours], of the sun, with refraction, degrees; negative at night
    azimuth: np.ndarray  # [hours], of the sun, degrees clockwise from north
    beam: np.ndarray  # [hours], on a plane that faces the sun, W/m2
    horizontal: np.ndarray  # [hours], beam and diffuse on the horizontal plane, W/m2
    diffuse: np.ndarray  # [hours], on the horizontal plane, W/m2
    beyond: np.ndarray  # [hours], beam above the atmosphere, W/m2


def sky(weather: Weather) -> Sky:
    """Return where the sun stands, and the beam on a plane that faces it: beam / sin(height).

    With the sun within 3 degrees of the horizon that quotient only magnifies rounding: there it is
    zero, and it never exceeds what arrives above the atmosphere. An hour of day without any light at
    all is one that the satellite missed (PVGIS has a few a year): it lies between its neighbours.
    """
    pvlib = require_pvlib()
    place = (weather.latitude, weather.longitude, weather.altitude)
    sun = pvlib.solarposition.get_solarposition(weather.times, *place)
    beyond = pvlib.irradiance.get_extra_radiation(weather.times.day_of_year.to_numpy())
    height = sun["apparent_elevation"].to_numpy()
    missed = (height > SURELY_DAY) & (weather.beam + weather.diffuse == 0)
    flat_beam, diffuse = weather.beam.copy(), weather.diffuse.copy()
    if not missed.all():
        hours = np.arange(len(height))
        for light in (flat_beam, diffuse):
            light[missed] = np.interp(hours[missed], hours[~missed], light[~missed])
    steep = np.maximum(height, LOWEST_SUN)
    beam = np.where(height >= LOWEST_SUN, flat_beam / np.sin(np.radians(steep)), 0.0)
    azimuth = sun["azimuth"].to_numpy()
    return Sky(height, azimuth, np.minimum(beam, beyond), flat_beam + diffuse, diffuse, beyond)


def require_pvlib() -> Any:
    """Import pvlib, which only the photovoltaic data need."""
    return imported("pvlib", "The photovoltaic data set", "pacpfl[pv]")


def synthetic_weather(
    latitude: float = LAUSANNE[0],
    longitude: float = LAUSANNE[1],
    altitude: float = 500.0,
    years: tuple[int, int] = (2018, 2019),
    seed: int = 0,
) -> Weather:
    """Make every hour (its middle) from the first to the last of the years, the same for the same seed."""
    first, last = years
    if not (1900 <= first <= last <= 2200):
        raise InputError(
            f"years = {first} to {last} cannot be; give a first and a last one from 1900 to 2200."
        )
    times = pd.date_range(f"{first}-01-01 00:30", f"{last}-12-31 23:30", freq="h", tz="UTC")
    local = times + pd.Timedelta(hours=round(longitude / 15))
    season = np.cos(2 * np.pi * (local.day_of_year.to_numpy() - 200) / 365.25)
    season *= np.clip(latitude / 45, -1, 1)
    seeds = np.random.SeedSequence([20190731, seed]).spawn(3)
    for_clouds, for_temperature, for_wind = map(np.random.default_rng, seeds)
    place = (latitude, longitude, altitude)

    clearness, index = clouds(local, season, for_clouds)
    beam, diffuse = irradiance(times, *place, index)
    hour = hour_of_day(local)
    # A day's clearness is reached at noon and passes smoothly into the next day's.
    noon = np.flatnonzero(local.hour == 12)
    clear = np.interp(np.arange(len(local)), noon, clearness[noon])
    day_swing = (3.4 + 1.2 * season) * np.exp(0.25 * clear) * np.cos(2 * np.pi * (hour - 15) / 24)
    memory = TEMPERATURE_SPREAD * autoregressive(TEMPERATURE_MEMORY, len(local), for_temperature)
    mean_of_year = 28.0 - 0.007 * latitude**2 - 6.5 * altitude / 1000.0
    temperature = mean_of_year + TEMPERATURE_SEASON * season + day_swing + 1.5 * season * clear
    breeze = 1.0 + 0.2 * np.cos(2 * np.pi * (hour - 14) / 24)
    gusts = np.exp(WIND_SPREAD * autoregressive(WIND_MEMORY, len(local), for_wind))
    wind = WIND_MEDIAN * breeze * gusts
    source = f"synthetic weather (seed {seed})"
    return Weather(source, *place, times, beam, diffuse, temperature + memory, wind)


def clouds(
    local: pd.DatetimeIndex, season: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draw z of each hour's day, and the clear-sky index of each hour."""
    day = (local.normalize() - local[0].normalize()).days.to_numpy()
    clearness = autoregressive(DAY_MEMORY, day[-1] + 1, rng)[day]
    hourly = autoregressive(HOUR_MEMORY, len(local), rng)
    latent = SEASON_OF_CLOUDS * season
    latent = latent + np.sqrt(DAY_SHARE) * clearness + np.sqrt(1 - DAY_SHARE) * hourly
    return clearness, np.interp(special.ndtr(latent), QUANTILES, CLEAR_SKY_INDEX)


def irradiance(
    times: pd.DatetimeIndex, latitude: float, longitude: float, altitude: float, index: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Compute beam and diffuse irradiance on the horizontal plane under clouds of this clear-sky index."""
    pvlib = require_pvlib()
    sun = pvlib.solarposition.get_solarposition(times, latitude, longitude, altitude)
    height = sun["apparent_elevation"].to_numpy()
    beam, diffuse = np.zeros(len(times)), np.zeros(len(times))
    day = np.flatnonzero(height > 0)
    if not len(day):
        return beam, diffuse
    zenith, day_of_year = 90.0 - height[day], times.day_of_year.to_numpy()[day]
    beyond = pvlib.irradiance.get_extra_radiation(day_of_year)
    clear = pvlib.clearsky.ineichen(zenith, airmass(zenith, altitude), TURBIDITY, altitude, beyond)
    whole = index[day] * clear["ghi"]
    diffuse[day] = np.clip(pvlib.irradiance.erbs(whole, zenith, day_of_year)["dhi"], 0.0, whole)
    beam[day] = whole - diffuse[day]
    return beam, diffuse


def airmass(zenith: np.ndarray, altitude: float) -> np.ndarray:
    """Return how much air the light of a sun at these zenith angles passes, on the way to an altitude."""
    air = require_pvlib().atmosphere
    relative = air.get_relative_airmass(zenith)
    return np.asarray(air.get_absolute_airmass(relative, air.alt2pres(altitude)))


def hour_of_day(times: pd.DatetimeIndex) -> np.ndarray:
    return np.asarray(times.hour + times.minute / 60)


def autoregressive(memory: float, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw x_t = memory x_{t-1} + sqrt(1 - memory^2) noise, stationary from the start, unit variance."""
    noise = rng.normal(size=count)
    noise[1:] *= np.sqrt(1 - memory**2)
    return np.asarray(signal.lfilter([1.0], [1.0, -memory], noise))
