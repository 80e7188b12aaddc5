"""Hourly weather from PVGIS, the European Commission's service, as CSV: exported there, or asked for.

It must be for a horizontal plane (slope 0) and whole years. What the service answers is kept in a folder
once it is known that it can be read.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pandas as pd

from pacpfl.data.download import fetch
from pacpfl.data.weather import LIMITS, Weather, impossible
from pacpfl.errors import InputError, explained

URL = "https://re.jrc.ec.europa.eu/api/seriescalc"
# With slope 0 the inclined plane is the horizontal one.
COLUMNS = {"Gb(i)": "beam", "Gd(i)": "diffuse", "T2m": "temperature", "WS10m": "wind"}
PLACE = ("Latitude", "Longitude", "Elevation")
TIME_FORMAT = "%Y%m%d:%H%M"
AGAIN = "export it from PVGIS again (hourly data, CSV, slope 0, radiation components)"


def read_pvgis_csv(path: Path) -> Weather:
    """Read the weather in a file as the PVGIS website exports it; times are UTC."""
    with (
        explained(f"The weather file {path} cannot be read", "give a CSV file of PVGIS", OSError),
        explained(f"The weather file {path} is no text", AGAIN, UnicodeDecodeError),
    ):
        text = path.read_text(encoding="utf-8-sig")
    head, begin, rest = f"\n{text}".partition("\ntime,")
    if not begin:
        raise InputError(f"{path} has no line that begins with 'time,'; {AGAIN}.")
    place = _place(path, head)
    header, *lines = re.split(r"\n\s*\n", rest, maxsplit=1)[0].splitlines()
    names = ["time", *(name.strip() for name in header.split(","))]
    first = head.count("\n") + 2  # number of the first row's line, as editors count

    def refuse(row: int, words: str) -> NoReturn:
        raise InputError(f"{path}, line {first + row}{words}; {AGAIN}.")

    rows = [line.split(",") for line in lines]
    for number, row in enumerate(rows):
        if len(row) != len(names):
            count = f"{len(row)} values instead of {len(names)}"
            refuse(number, f": {count}, so the file seems cut off or edited")
    table = pd.DataFrame(rows, columns=names)
    stamps = pd.to_datetime(table["time"], format=TIME_FORMAT, utc=True, errors="coerce")
    faults = [("time", np.flatnonzero(stamps.isna()), "no time such as 20180601:1210")]
    values: dict[str, Any] = {}
    for name, ours in COLUMNS.items():
        if name not in names:
            refuse(-1, f": column {name!r} is missing")
        values[ours] = pd.to_numeric(table[name], errors="coerce").to_numpy(dtype=float)
        low, high = LIMITS[ours]
        faults.append((name, impossible(ours, values[ours]), f"not between {low:g} and {high:g}"))
    for name, wrong, words in faults:
        if len(wrong):
            refuse(wrong[0], f", column {name!r}: {table[name][wrong[0]].strip()!r} is {words}")
    times = pd.DatetimeIndex(stamps)
    weather = Weather(str(path), *place, times, **values)
    if _covered_years(times) is None:
        raise InputError(
            f"{path} goes from {times[0]:%Y-%m-%d %H:%M} to {times[-1]:%Y-%m-%d %H:%M} and not through "
            f"whole years, so some hours are missing; {AGAIN}."
        )
    return weather


def _place(path: Path, head: str) -> tuple[float, float, float]:
    """Read latitude, longitude and altitude above the table, where the slope must be 0."""
    above = {"Slope": "0", **dict(re.findall(r"^(\w+).*?:\s*(\S*)", head, re.MULTILINE))}
    with explained(f"{path} does not say where it is for", AGAIN, ValueError, KeyError):
        latitude, longitude, altitude, slope = (float(above[name]) for name in (*PLACE, "Slope"))
    if slope != 0:
        raise InputError(f"{path}: the plane has a slope of {slope:g} degrees; {AGAIN}.")
    return latitude, longitude, altitude


def _covered_years(times: pd.DatetimeIndex) -> tuple[int, int] | None:
    """Return the first and the last of the years that the hours go through, or None if some lack.

    A satellite passes when it passes: stamps may lie up to an hour before or after the full hour, in
    Tehran at nine minutes to.
    """
    hour = pd.Timedelta(hours=1)
    year = (times[0] + hour).year
    shift = times[0] - pd.Timestamp(year, 1, 1, tz="UTC")
    end = times[-1] + hour - shift
    whole = abs(shift) < hour and end == pd.Timestamp(end.year, 1, 1, tz="UTC")
    return (year, int(end.year) - 1) if whole else None


def fetch_pvgis(
    latitude: float,
    longitude: float,
    years: tuple[int, int] = (2018, 2019),
    folder: Path | None = None,
    url: str = URL,
    **options: Any,
) -> Weather:
    """Return the weather of the years from the first to the last, from `folder` or else from PVGIS.

    Without a folder it is `pacpfl` in the user's cache (XDG_CACHE_HOME, or ~/.cache). The service is asked
    by `download.fetch`, with its `options`.
    """
    if folder is None:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pacpfl"
    path = folder / f"pvgis_{latitude:.4f}_{longitude:.4f}_{years[0]}_{years[1]}.csv"
    if path.exists():
        what = f"The weather kept in {path} cannot be used"
        with explained(what, "delete the file and it is fetched again", InputError):
            return read_pvgis_csv(path)
    place = f"lat={latitude}&lon={longitude}&startyear={years[0]}&endyear={years[1]}"
    asked = f"{place}&angle=0&components=1&outputformat=csv"
    remedy = "read a CSV file exported from its website, or use synthetic weather"
    with explained("There is no weather from PVGIS", remedy, InputError):
        fetch(f"{url}?{asked}", path, **options)
        try:
            weather = read_pvgis_csv(path)
            if _covered_years(weather.times) != years:
                raise InputError(f"it goes from {weather.times[0]} to {weather.times[-1]}")
        except InputError:
            path.unlink()
            raise
    return weather
