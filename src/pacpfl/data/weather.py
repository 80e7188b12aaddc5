"""Hourly weather of one place, and the sun above it.

Three sources make a `Weather`: a CSV file exported from PVGIS and PVGIS itself (`data.pvgis`), and
synthetic weather (`data.synthetic_weather`), which needs no network.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from pacpfl.errors import InputError

# What cannot be exceeded on Earth; beyond it units or missing values were mistaken.
LIMITS = {
    "beam": (0.0, 2000.0),
    "diffuse": (0.0, 2000.0),
    "temperature": (-100.0, 70.0),
    "wind": (0.0, 150.0),
}
SURELY_DAY = 5.0  # degrees of sun height above which there is always some light
LOWEST_SUN = 3.0  # degrees of sun height below which a beam on the horizontal plane tells nothing


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
        _check(self)

    @property
    def local(self) -> pd.DatetimeIndex:
        """The times by the clock of the place's own meridian, in whole hours from UTC.

        The sun, not the law, decides when panels work: round(longitude / 15) puts noon within half
        an hour of the highest sun anywhere, without summer time. For Switzerland this is UTC.
        """
        return (self.times + pd.Timedelta(hours=round(self.longitude / 15))).tz_localize(None)


def _check(weather: Weather) -> None:
    hours, source = len(weather.times), weather.source
    if not hours or weather.times.tz is None:
        raise InputError(f"{source} holds no hours in UTC; give at least one.")
    if not (-90 <= weather.latitude <= 90 and -180 <= weather.longitude <= 180):
        raise InputError(
            f"{source} is for latitude {weather.latitude} and longitude {weather.longitude}, which "
            "is nowhere on Earth; give degrees between -90 and 90, and -180 and 180."
        )
    for name, (low, high) in LIMITS.items():
        values = getattr(weather, name)
        if values.shape != (hours,):
            raise InputError(
                f"{source} has {hours} hours and {name} of shape {values.shape}; give one value an "
                "hour."
            )
        wrong = ~((values >= low) & (values <= high))
        if wrong.any():
            where = int(np.argmax(wrong))
            raise InputError(
                f"{source} has {name} {values[where]} at {weather.times[where]:%Y-%m-%d %H:%M}, not "
                f"between {low:g} and {high:g}; fill it or take other weather."
            )
    steps = np.diff(weather.times.to_numpy()) / np.timedelta64(1, "h")
    if (steps != 1).any():
        where = int(np.argmax(steps != 1))
        raise InputError(
            f"{source} goes from {weather.times[where]:%Y-%m-%d %H:%M} to "
            f"{weather.times[where + 1]:%Y-%m-%d %H:%M}; give every hour once, in order."
        )


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
    """Where the sun stands, and the beam on a plane that faces it: beam / sin(height).

    With the sun within 3 degrees of the horizon that quotient only magnifies rounding: there it is
    zero, and it never exceeds what arrives above the atmosphere. An hour of day without any light at
    all is one that the satellite missed (PVGIS has a few a year): it lies between its neighbours.
    """
    pvlib = require_pvlib()
    sun = pvlib.solarposition.get_solarposition(
        weather.times, weather.latitude, weather.longitude, weather.altitude
    )
    beyond = pvlib.irradiance.get_extra_radiation(weather.times.day_of_year.to_numpy())
    height = sun["apparent_elevation"].to_numpy()
    missed = (height > SURELY_DAY) & (weather.beam + weather.diffuse == 0)
    flat_beam, diffuse = _between(weather.beam, missed), _between(weather.diffuse, missed)
    steep = np.maximum(height, LOWEST_SUN)
    beam = np.where(height >= LOWEST_SUN, flat_beam / np.sin(np.radians(steep)), 0.0)
    return Sky(
        height,
        sun["azimuth"].to_numpy(),
        np.minimum(beam, beyond),
        flat_beam + diffuse,
        diffuse,
        beyond,
    )


def _between(values: np.ndarray, missed: np.ndarray) -> np.ndarray:
    """The values, with those that were missed on straight lines between those that were not."""
    if not missed.any() or missed.all():
        return values
    hours = np.arange(len(values))
    return np.where(missed, np.interp(hours, hours[~missed], values[~missed]), values)


def require_pvlib() -> Any:
    """pvlib, which only the photovoltaic data need."""
    try:
        return importlib.import_module("pvlib")
    except ImportError as error:
        raise InputError(
            "Photovoltaic data need pvlib, which is not installed; run `pip install pacpfl[pv]`."
        ) from error
