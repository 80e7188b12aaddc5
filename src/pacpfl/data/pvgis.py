"""Hourly weather from PVGIS, the European Commission's service: its CSV export, and the service itself.

Both must be for a horizontal plane (slope 0) and whole years. What the service answers is kept in a
folder as a CSV file of the same format, once it is known that it can be read back: a cache never holds
half an answer.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pacpfl import files
from pacpfl.data.weather import LIMITS, Weather, impossible, jumps, require_pvlib
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
BUSY = 429
SERVER_ERROR = 500


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
    lines = text.splitlines()
    header = next((i for i, line in enumerate(lines) if line.startswith("time,")), None)
    if header is None:
        raise InputError(f"{path} has no line that begins with 'time,'; {AGAIN}.")
    latitude, longitude, altitude = _place(path, lines[:header])
    names = [name.strip() for name in lines[header].split(",")]
    for name, _, _ in COLUMNS:
        if name not in names:
            raise InputError(f"{path}, line {header + 1}: column {name!r} is missing; {AGAIN}.")
    end = next((i for i in range(header + 1, len(lines)) if not lines[i].strip()), len(lines))
    rows = [line.split(",") for line in lines[header + 1 : end]]
    first = header + 2  # number of the first row's line, as editors count

    for number, row in enumerate(rows, first):
        if len(row) != len(names):
            raise InputError(
                f"{path}, line {number}: {len(row)} values instead of {len(names)}, so the file seems "
                f"cut off or edited; {AGAIN}."
            )
    columns = dict(zip(names, zip(*rows, strict=True), strict=True)) if rows else {}
    times = _times(path, columns.get("time", ()), first)
    values = {ours: _values(path, name, ours, columns[name], first) for name, _, ours in COLUMNS}
    return Weather(str(path), latitude, longitude, altitude, times, **values)


def _place(path: Path, lines: list[str]) -> tuple[float, float, float]:
    """Read latitude, longitude and altitude above the table, where the slope must be 0."""
    found: dict[str, float] = {}
    for number, line in enumerate(lines, 1):
        name, _, text = line.partition(":")
        word = name.split(" ")[0]
        if word in (*PLACE, "Slope"):
            try:
                found[word] = float(text.split()[0])
            except (IndexError, ValueError) as error:
                raise InputError(
                    f"{path}, line {number}: {word} is {text.strip()!r} and no number; {AGAIN}."
                ) from error
            if word == "Slope" and found[word] != 0:
                raise InputError(
                    f"{path}, line {number}: the plane has a slope of {found[word]:g} degrees; {AGAIN}."
                )
    for word in PLACE:
        if word not in found:
            raise InputError(f"{path} has no line {word!r} above its table; {AGAIN}.")
    return found["Latitude"], found["Longitude"], found["Elevation"]


def _times(path: Path, texts: tuple[str, ...], first: int) -> pd.DatetimeIndex:
    """Read the hours, which must be those of whole years, each once and in order."""
    if not texts:
        raise InputError(f"{path}, line {first}: there are no rows below the header; {AGAIN}.")
    times = pd.DatetimeIndex(
        pd.to_datetime(pd.Series(texts), format=TIME_FORMAT, utc=True, errors="coerce")
    )
    unknown = np.flatnonzero(times.isna())
    if len(unknown):
        raise InputError(
            f"{path}, line {first + unknown[0]}, column 'time': {texts[unknown[0]]!r} is no time such "
            f"as 20180601:1210; {AGAIN}."
        )
    if len(gaps := jumps(times)):
        before, after = gaps[0], gaps[0] + 1
        raise InputError(
            f"{path}, line {first + after}, column 'time': {texts[after]} follows {texts[before]}, and "
            f"every hour must be there once and in order; {AGAIN}."
        )
    if _covered_years(times) is None:
        raise InputError(
            f"{path}, line {first + len(times) - 1}, column 'time': the rows go from {texts[0]} to "
            f"{texts[-1]} and not through whole years, so some are missing; {AGAIN}."
        )
    return times


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


def _values(path: Path, name: str, ours: str, texts: tuple[str, ...], first: int) -> np.ndarray:
    values: np.ndarray = pd.to_numeric(pd.Series(texts), errors="coerce").to_numpy(dtype=float)
    if len(wrong := impossible(ours, values)):
        low, high = LIMITS[ours]
        raise InputError(
            f"{path}, line {first + wrong[0]}, column {name!r}: {texts[wrong[0]].strip()!r} is not "
            f"between {low:g} and {high:g}; {AGAIN}."
        )
    return values


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
    name = f"pvgis_{latitude:.4f}_{longitude:.4f}_{years[0]}_{years[1]}.csv"
    if folder is None:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pacpfl"
    path = folder / name
    if path.exists():
        what = f"The weather kept in {path} cannot be used"
        with explained(what, "delete the file and it is fetched again", InputError):
            return read_pvgis_csv(path)

    pvlib = require_pvlib()
    where = {} if url is None else {"url": url}

    def ask() -> tuple[Any, Any]:
        return pvlib.iotools.get_pvgis_hourly(
            latitude, longitude, start=years[0], end=years[1], timeout=timeout, **where
        )

    weather = _understood(*_patiently(ask, attempts, wait), years)
    text = as_csv(weather)
    checked = parse_pvgis(text, path)  # what cannot be read back is not kept
    files.write(path, text.encode())
    return checked


def _understood(table: Any, about: Any, years: tuple[int, int]) -> Weather:
    """Turn what pvlib makes of PVGIS's answer into weather, all of these years."""
    broken = (AttributeError, KeyError, TypeError, ValueError, InputError)
    with explained("The answer of PVGIS is incomplete", WAY_OUT, *broken):
        place = about["inputs"]["location"]
        weather = Weather(
            "The answer of PVGIS",
            float(place["latitude"]),
            float(place["longitude"]),
            float(place["elevation"]),
            pd.DatetimeIndex(table.index),
            **{ours: table[theirs].to_numpy(dtype=float) for _, theirs, ours in COLUMNS},
        )
        if _covered_years(weather.times) != years:
            raise ValueError(f"it goes from {weather.times[0]} to {weather.times[-1]}")
    return weather


def _patiently(ask: Callable[[], tuple[Any, Any]], attempts: int, wait: float) -> tuple[Any, Any]:
    """Return the answer, or raise one sentence about why there is none."""
    requests = importlib.import_module("requests")  # comes with pvlib
    for attempt in range(1, attempts + 1):
        try:
            return ask()
        except requests.HTTPError as error:
            status = None if error.response is None else int(error.response.status_code)
            overloaded = status is not None and (status == BUSY or status >= SERVER_ERROR)
            if overloaded and attempt < attempts:
                time.sleep(wait * 2 ** (attempt - 1))
                continue
            if status == BUSY:
                words = "has had too many requests (429); wait some minutes"
            elif overloaded:
                words = f"is out of order ({status}); try later"
            else:  # pvlib passes on PVGIS's own words, without the status
                words = f"refuses the request ({reason(error)[:200]}); change it"
            raise InputError(f"PVGIS {words}, {WAY_OUT}.") from error
        except requests.Timeout as error:
            raise InputError(f"PVGIS does not answer in time; try later, {WAY_OUT}.") from error
        except requests.RequestException as error:
            raise InputError(
                f"The connection to PVGIS failed ({type(error).__name__}); check the network, {WAY_OUT}."
            ) from error
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"The answer of PVGIS cannot be read ({reason(error)[:200]}); try again, {WAY_OUT}."
            ) from error
    raise InputError(f"attempts = {attempts} leaves no chance to ask PVGIS; take at least 1.")


def as_csv(weather: Weather) -> str:
    """Write the weather in PVGIS's own CSV format; `read_pvgis_csv` gives the same numbers back."""
    lines = [
        f"Latitude (decimal degrees):\t{weather.latitude!r}",
        f"Longitude (decimal degrees):\t{weather.longitude!r}",
        f"Elevation (m):\t{weather.altitude!r}",
        "Slope: 0 deg.",
        ",".join(["time", *(name for name, _, _ in COLUMNS)]),
    ]
    columns = [getattr(weather, ours).tolist() for _, _, ours in COLUMNS]
    texts = weather.times.strftime(TIME_FORMAT)
    for text, *values in zip(texts, *columns, strict=True):
        lines.append(",".join([text, *map(repr, values)]))
    return "\n".join(lines) + "\n"
