"""Hourly weather from PVGIS, the European Commission's service: its CSV export, and the service itself.

Both must be for a horizontal plane (slope 0) and whole years. What the service answers is kept in a
folder as a CSV file of the same format, once it is known that it can be read back: a cache never holds
half an answer.
"""

from __future__ import annotations

import importlib
import os
import re
import time
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pandas as pd

from pacpfl import files
from pacpfl.data.weather import LIMITS, Weather, impossible, require_pvlib
from pacpfl.errors import InputError, explained, reason

# PVGIS's name of a column (with slope 0 the inclined plane is the horizontal one), pvlib's, and ours.
COLUMNS = (
    ("Gb(i)", "poa_direct", "beam"),
    ("Gd(i)", "poa_sky_diffuse", "diffuse"),
    ("T2m", "temp_air", "temperature"),
    ("WS10m", "wind_speed", "wind"),
)
PLACE = ("Latitude", "Longitude", "Elevation")
TIME_FORMAT = "%Y%m%d:%H%M"
AGAIN = "export it from PVGIS again (hourly data, CSV, slope 0, radiation components)"
WAY_OUT = "read a CSV file exported from its website, or use synthetic weather"


def read_pvgis_csv(path: Path) -> Weather:
    """Read the weather in a file as the PVGIS website exports it; times are UTC."""
    with (
        explained(f"The weather file {path} cannot be read", "give a CSV file of PVGIS", OSError),
        explained(f"The weather file {path} is no text", AGAIN, UnicodeDecodeError),
    ):
        text = path.read_text(encoding="utf-8-sig")
    return parse_pvgis(text, path)


def parse_pvgis(text: str, path: Path) -> Weather:
    """Return the weather in the text of such a file; errors name `path`."""
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
    for name, _, ours in COLUMNS:
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
    for year in (times[0].year, (times[0] + hour).year):
        shift = times[0] - pd.Timestamp(year, 1, 1, tz="UTC")
        end = times[-1] + hour - shift
        if abs(shift) < hour and end == pd.Timestamp(end.year, 1, 1, tz="UTC"):
            return year, int(end.year) - 1
    return None


def fetch_pvgis(
    latitude: float,
    longitude: float,
    years: tuple[int, int] = (2018, 2019),
    folder: Path | None = None,
    *,
    url: str | None = None,
    timeout: float = 30.0,
    attempts: int = 3,
    wait: float = 2.0,
) -> Weather:
    """Return the weather of the years from the first to the last, from `folder` or else from PVGIS.

    Without a folder it is `pacpfl` in the user's cache (XDG_CACHE_HOME, or ~/.cache). An overloaded
    service (429, or 500 and above) is asked `attempts` times in all, `wait` seconds after the first time
    and twice as long after each further one.
    """
    if folder is None:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pacpfl"
    path = folder / f"pvgis_{latitude:.4f}_{longitude:.4f}_{years[0]}_{years[1]}.csv"
    if path.exists():
        what = f"The weather kept in {path} cannot be used"
        with explained(what, "delete the file and it is fetched again", InputError):
            return read_pvgis_csv(path)

    where = {} if url is None else {"url": url}
    table, about = _asked(latitude, longitude, years, attempts, wait, timeout=timeout, **where)
    broken = (AttributeError, KeyError, TypeError, ValueError, InputError)
    with explained("The answer of PVGIS is incomplete", WAY_OUT, *broken):
        location = about["inputs"]["location"]
        latitude, longitude, altitude = (float(location[name.lower()]) for name in PLACE)
        values = {ours: table[theirs].to_numpy(dtype=float) for _, theirs, ours in COLUMNS}
        times = pd.DatetimeIndex(table.index)
        weather = Weather("The answer of PVGIS", latitude, longitude, altitude, times, **values)
        if _covered_years(weather.times) != years:
            raise ValueError(f"it goes from {weather.times[0]} to {weather.times[-1]}")
    text = as_csv(weather)
    checked = parse_pvgis(text, path)  # what cannot be read back is not kept
    files.write(path, text.encode())
    return checked


def _asked(
    latitude: float,
    longitude: float,
    years: tuple[int, int],
    attempts: int,
    wait: float,
    **options: Any,
) -> tuple[Any, Any]:
    """Return PVGIS's answer as pvlib reads it, or raise one sentence about why there is none."""
    ask = require_pvlib().iotools.get_pvgis_hourly
    requests = importlib.import_module("requests")  # comes with pvlib
    broken = (requests.RequestException, AttributeError, KeyError, TypeError, ValueError)
    for attempt in range(1, attempts + 1):
        try:
            return ask(latitude, longitude, start=years[0], end=years[1], **options)
        except broken as error:
            status = getattr(getattr(error, "response", None), "status_code", 0)
            overloaded = status == 429 or status >= 500
            if overloaded and attempt < attempts:
                time.sleep(wait * 2 ** (attempt - 1))
                continue
            said = reason(error)[:200]
            if status == 429:
                words = "PVGIS has had too many requests (429); wait some minutes"
            elif overloaded:
                words = f"PVGIS is out of order ({status}); try later"
            elif isinstance(error, requests.HTTPError):  # pvlib passes on PVGIS's own words
                words = f"PVGIS refuses the request ({said}); change it"
            elif isinstance(error, requests.Timeout):
                words = "PVGIS does not answer in time; try later"
            elif isinstance(error, requests.RequestException):
                kind = type(error).__name__
                words = f"The connection to PVGIS failed ({kind}); check the network"
            else:
                words = f"The answer of PVGIS cannot be read ({said}); try again"
            raise InputError(f"{words}, {WAY_OUT}.") from error
    raise InputError(f"attempts = {attempts} leaves no chance to ask PVGIS; take at least 1.")


def as_csv(weather: Weather) -> str:
    """Write the weather in PVGIS's own CSV format; `read_pvgis_csv` gives the same numbers back."""
    head = (
        f"Latitude (decimal degrees):\t{weather.latitude!r}\n"
        f"Longitude (decimal degrees):\t{weather.longitude!r}\n"
        f"Elevation (m):\t{weather.altitude!r}\nSlope: 0 deg.\n"
    )
    values = {theirs: getattr(weather, ours) for theirs, _, ours in COLUMNS}
    table = pd.DataFrame({"time": weather.times.strftime(TIME_FORMAT), **values})
    return head + table.to_csv(index=False, lineterminator="\n")
