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
from pacpfl.data.weather import LIMITS, Weather, require_pvlib
from pacpfl.errors import InputError

# PVGIS's name of a column (with slope 0 the inclined plane is the horizontal one), pvlib's, and ours.
COLUMNS = (
    ("Gb(i)", "poa_direct", "beam"),
    ("Gd(i)", "poa_sky_diffuse", "diffuse"),
    ("T2m", "temp_air", "temperature"),
    ("WS10m", "wind_speed", "wind"),
)
PLACE = {"Latitude": "latitude", "Longitude": "longitude", "Elevation": "altitude"}
TIME_FORMAT = "%Y%m%d:%H%M"
AGAIN = "export it from PVGIS again (hourly data, CSV, slope 0, radiation components)"
WAY_OUT = "read a CSV file exported from its website, or use synthetic weather"
BUSY = 429
SERVER_ERROR = 500


def read_pvgis_csv(path: Path) -> Weather:
    """The weather in a file as the PVGIS website exports it; times are UTC."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(
            f"The weather file {path} cannot be read ({error.strerror}); give a CSV file of PVGIS."
        ) from error
    except UnicodeDecodeError as error:
        raise InputError(f"The weather file {path} is no text; {AGAIN}.") from error
    return parse_pvgis(text, path)


def parse_pvgis(text: str, path: Path) -> Weather:
    """Return the weather in the text of such a file; errors name `path`."""
    lines = text.splitlines()
    header = next((i for i, line in enumerate(lines) if line.startswith("time,")), None)
    if header is None:
        raise InputError(f"{path} has no line that begins with 'time,'; {AGAIN}.")
    place = _place(path, lines[:header])
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
    latitude, longitude, altitude = (place[ours] for ours in PLACE.values())
    return Weather(str(path), latitude, longitude, altitude, times, **values)


def _place(path: Path, lines: list[str]) -> dict[str, float]:
    """Latitude, longitude and altitude from the lines above the table; the slope must be 0."""
    place = {}
    for number, line in enumerate(lines, 1):
        name, _, text = line.partition(":")
        word = name.split(" ")[0]
        if word in PLACE or word == "Slope":
            try:
                value = float(text.split()[0])
            except (IndexError, ValueError) as error:
                raise InputError(
                    f"{path}, line {number}: {word} is {text.strip()!r} and no number; {AGAIN}."
                ) from error
            if word in PLACE:
                place[PLACE[word]] = value
            elif value != 0:
                raise InputError(
                    f"{path}, line {number}: the plane has a slope of {value:g} degrees; {AGAIN}."
                )
    for word, ours in PLACE.items():
        if ours not in place:
            raise InputError(f"{path} has no line {word!r} above its table; {AGAIN}.")
    return place


def _times(path: Path, texts: tuple[str, ...], first: int) -> pd.DatetimeIndex:
    """Every hour of whole years, once and in order."""
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
    jumps = np.flatnonzero(np.diff(times.to_numpy()) != np.timedelta64(1, "h"))
    if len(jumps):
        before, after = jumps[0], jumps[0] + 1
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
    low, high = LIMITS[ours]
    wrong = ~((values >= low) & (values <= high))
    if wrong.any():
        where = int(np.argmax(wrong))
        raise InputError(
            f"{path}, line {first + where}, column {name!r}: {texts[where].strip()!r} is not between "
            f"{low:g} and {high:g}; {AGAIN}."
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
    """The weather of the years from the first to the last one, from `folder` or else from PVGIS.

    Without a folder it is `pacpfl` in the user's cache (XDG_CACHE_HOME, or ~/.cache).
    An overloaded service (429, or 500 and above) is asked `attempts` times in all, `wait` seconds
    after the first time and twice as long after each further one.
    """
    name = f"pvgis_{latitude:.4f}_{longitude:.4f}_{years[0]}_{years[1]}.csv"
    path = (_user_cache() if folder is None else folder) / name
    if path.exists():
        try:
            return read_pvgis_csv(path)
        except InputError as error:
            raise InputError(
                f"The weather kept in {path} cannot be used; delete the file and it is fetched again "
                f"(it was refused with: {error})"
            ) from error
    return _keep(_ask(latitude, longitude, years, url, timeout, attempts, wait), path)


def _user_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pacpfl"


def _ask(
    latitude: float,
    longitude: float,
    years: tuple[int, int],
    url: str | None,
    timeout: float,
    attempts: int,
    wait: float,
) -> Weather:
    pvlib = require_pvlib()
    where = {} if url is None else {"url": url}

    def call() -> tuple[Any, Any]:
        return pvlib.iotools.get_pvgis_hourly(
            latitude, longitude, start=years[0], end=years[1], timeout=timeout, **where
        )

    table, about = _patiently(call, attempts, wait)
    try:
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
    except (AttributeError, KeyError, TypeError, ValueError, InputError) as error:
        raise InputError(
            f"The answer of PVGIS is incomplete ({_words(error)}); {WAY_OUT}."
        ) from error
    return weather


def _patiently(call: Callable[[], tuple[Any, Any]], attempts: int, wait: float) -> tuple[Any, Any]:
    """The answer, or one sentence about why there is none."""
    requests = importlib.import_module("requests")  # comes with pvlib
    for attempt in range(1, attempts + 1):
        try:
            return call()
        except requests.HTTPError as error:
            status = None if error.response is None else int(error.response.status_code)
            overloaded = status is not None and (status == BUSY or status >= SERVER_ERROR)
            if overloaded and attempt < attempts:
                time.sleep(wait * 2 ** (attempt - 1))
                continue
            if status == BUSY:
                reason = "has had too many requests (429); wait some minutes"
            elif overloaded:
                reason = f"is out of order ({status}); try later"
            else:  # pvlib passes on PVGIS's own words, without the status
                reason = f"refuses the request ({_words(error)}); change it"
            raise InputError(f"PVGIS {reason}, {WAY_OUT}.") from error
        except requests.Timeout as error:
            raise InputError(f"PVGIS does not answer in time; try later, {WAY_OUT}.") from error
        except requests.RequestException as error:
            raise InputError(
                f"The connection to PVGIS failed ({type(error).__name__}); check the network, {WAY_OUT}."
            ) from error
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"The answer of PVGIS cannot be read ({_words(error)}); try again, {WAY_OUT}."
            ) from error
    raise InputError(f"attempts = {attempts} leaves no chance to ask PVGIS; take at least 1.")


def _words(error: Exception) -> str:
    """What an error says, in one line without a full stop."""
    return " ".join(str(error).split()).rstrip(".")[:200] or type(error).__name__


def _keep(weather: Weather, path: Path) -> Weather:
    """Write the weather as a file that can be read back; return what is read back."""
    text = as_csv(weather)
    checked = parse_pvgis(text, path)
    files.write(path, text.encode())
    return checked


def as_csv(weather: Weather) -> str:
    """The weather in PVGIS's own CSV format; `read_pvgis_csv` gives the same numbers back."""
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
