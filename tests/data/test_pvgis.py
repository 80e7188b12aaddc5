"""PVGIS's CSV export: what is read from it, and one sentence for everything that can be wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from refusals import refused

from pacpfl.data.pvgis import as_csv, read_pvgis_csv

BERN = Path(__file__).parents[3] / "shared" / "data" / "pvgis_bern_2018_2019.csv"
HEAD = (
    "Latitude (decimal degrees):\t46.951\nLongitude (decimal degrees):\t7.450\n"
    "Elevation (m):\t510\nRadiation database:\tPVGIS-SARAH2\n\n\n"
    "Slope: 0 deg. \nAzimuth: 0 deg. \n"
)
COLUMNS = "time,Gb(i),Gd(i),Gr(i),H_sun,T2m,WS10m,Int"
LEGEND = (
    "\nGb(i): Beam (direct) irradiance on the inclined plane (W/m2)\n\nPVGIS (c) European Union\n"
)
FIRST = 10  # line of the first row


def rows(start: str = "2018-01-01 00:10") -> list[str]:
    """A year in the export's format; the numbers tell the hour they belong to."""
    times = pd.date_range(start, periods=8760, freq="h").strftime("%Y%m%d:%H%M")
    return [
        f"{time},{i % 24}.0,{i % 7}.5,0.0,{i % 50}.25,{i % 30 - 9}.75,{i % 5}.03,0.0"
        for i, time in enumerate(times)
    ]


@pytest.fixture(scope="module")
def year() -> list[str]:
    return rows()


Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def to_file(
        lines: list[str], head: str = HEAD, columns: str = COLUMNS, end: str = LEGEND
    ) -> Path:
        path = tmp_path / "weather.csv"
        path.write_text(head + columns + "\n" + "\n".join(lines) + "\n" + end, encoding="utf-8")
        return path

    return to_file


def refusal(path: Path) -> str:
    return refused(lambda: read_pvgis_csv(path), str(path))


def test_every_number_is_read(write: Write, year: list[str]) -> None:
    path = write(year)
    weather = read_pvgis_csv(path)
    hours = np.arange(8760)
    assert (weather.latitude, weather.longitude, weather.altitude) == (46.951, 7.45, 510.0)
    assert weather.source == str(path)
    assert str(weather.times[5]) == "2018-01-01 05:10:00+00:00"
    np.testing.assert_array_equal(weather.beam, hours % 24)
    np.testing.assert_array_equal(weather.diffuse, hours % 7 + 0.5)
    np.testing.assert_array_equal(weather.wind, np.round(hours % 5 + 0.03, 2))
    degrees = hours % 30 - 9
    # "-3.75" is three quarters below -3.
    np.testing.assert_array_equal(weather.temperature, degrees + np.where(degrees < 0, -0.75, 0.75))


def test_other_columns_and_line_ends_do_not_matter(
    write: Write, year: list[str], tmp_path: Path
) -> None:
    whole = read_pvgis_csv(write(year))
    swapped = [
        ",".join([fields[0], "77.0", *fields[1:3], *fields[:4:-1], *fields[3:5]])
        for fields in (row.split(",") for row in year)
    ]
    other = write(swapped, columns="time,P,Gb(i),Gd(i),Int,WS10m,T2m,Gr(i),H_sun")
    text = other.read_text().replace("\n", "\r\n")
    (tmp_path / "windows.csv").write_bytes(b"\xef\xbb\xbf" + text.encode())
    for path in (other, tmp_path / "windows.csv"):
        weather = read_pvgis_csv(path)
        for name in ("beam", "diffuse", "temperature", "wind"):
            np.testing.assert_array_equal(getattr(weather, name), getattr(whole, name))


def test_writing_and_reading_gives_the_same_numbers(
    write: Write, year: list[str], tmp_path: Path
) -> None:
    weather = read_pvgis_csv(write(year))
    weather = replace(weather, beam=weather.beam / 3, temperature=weather.temperature * 1e-17)
    (tmp_path / "copy.csv").write_text(as_csv(weather))
    again = read_pvgis_csv(tmp_path / "copy.csv")
    assert (again.times == weather.times).all()
    for name in ("beam", "diffuse", "temperature", "wind"):
        np.testing.assert_array_equal(getattr(again, name), getattr(weather, name))


@pytest.mark.skipif(not BERN.exists(), reason="the weather of Bern is not here")
def test_bern_as_pvgis_exports_it() -> None:
    weather = read_pvgis_csv(BERN)
    table = pd.read_csv(BERN, skiprows=8, nrows=17_520)
    assert len(weather.times) == 17_520
    assert (weather.latitude, weather.longitude, weather.altitude) == (46.951, 7.45, 510.0)
    for theirs, ours in (("Gb(i)", "beam"), ("Gd(i)", "diffuse"), ("T2m", "temperature")):
        np.testing.assert_array_equal(getattr(weather, ours), table[theirs])


@pytest.mark.parametrize("name", ["Gb(i)", "Gd(i)", "T2m", "WS10m"])
def test_a_missing_column(write: Write, year: list[str], name: str) -> None:
    text = refusal(write(year, columns=COLUMNS.replace(name, "other")))
    assert f"line {FIRST - 1}: column {name!r} is missing" in text


@pytest.mark.parametrize(
    ("value", "column", "name"),
    [
        ("nan", 1, "Gb(i)"),
        ("", 2, "Gd(i)"),
        ("-1.0", 2, "Gd(i)"),
        ("warm", 5, "T2m"),
        ("-9999", 5, "T2m"),
        ("inf", 6, "WS10m"),
    ],
)
def test_a_value_that_cannot_be(
    write: Write, year: list[str], value: str, column: int, name: str
) -> None:
    fields = year[40].split(",")
    fields[column] = value
    text = refusal(write([*year[:40], ",".join(fields), *year[41:]]))
    assert f"line {FIRST + 40}, column {name!r}: {value!r} is not between" in text


def test_a_gap_a_repetition_and_a_step_back(write: Write, year: list[str]) -> None:
    text = refusal(write(year[:30] + year[31:]))
    assert f"line {FIRST + 30}, column 'time': 20180102:0710 follows 20180102:0510" in text
    text = refusal(write(year[:30] + year[29:]))
    assert f"line {FIRST + 30}, column 'time': 20180102:0510 follows 20180102:0510" in text


def test_times_of_another_kind(write: Write, year: list[str]) -> None:
    text = refusal(write([year[0], "2018-01-01 01:10" + year[1][13:], *year[2:]]))
    assert f"line {FIRST + 1}, column 'time': '2018-01-01 01:10' is no time" in text


def test_a_truncated_file(write: Write, year: list[str]) -> None:
    text = refusal(write(year[:5000], end=""))
    assert f"line {FIRST + 4999}" in text and "20180728:0710 and not through whole years" in text
    text = refusal(write([*year[:5000], year[5000][:20]], end=""))
    assert f"line {FIRST + 5000}: 3 values instead of 8" in text
    text = refusal(write(year[100:]))
    assert "20180105:0410 to 20181231:2310 and not through whole years" in text


def test_no_rows_no_header_no_place(write: Write, year: list[str]) -> None:
    assert f"line {FIRST}: there are no rows" in refusal(write([], end=""))
    assert "no line that begins with 'time,'" in refusal(write(year[:3], columns="hour,G(i)"))
    assert "no line 'Elevation'" in refusal(write(year, head=HEAD.replace("Elevation", "Height")))
    assert "line 1: Latitude is 'north' and no number" in refusal(
        write(year, head=HEAD.replace("46.951", "north"))
    )


def test_a_tilted_plane(write: Write, year: list[str]) -> None:
    text = refusal(write(year, head=HEAD.replace("Slope: 0", "Slope: 35")))
    assert "line 7: the plane has a slope of 35 degrees" in text and "slope 0" in text


def test_files_that_are_not_there_or_no_text(tmp_path: Path) -> None:
    assert "cannot be read (No such file or directory)" in refusal(tmp_path / "nowhere.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00time,")
    assert "is no text" in refusal(tmp_path / "binary.csv")
    (tmp_path / "empty.csv").write_text("")
    assert "no line that begins" in refusal(tmp_path / "empty.csv")


@pytest.mark.parametrize(
    "start",
    ["2018-01-01 00:00", "2018-01-01 00:30", "2018-01-01 00:51", "2017-12-31 23:51"],
)
def test_satellites_pass_at_any_minute(write: Write, start: str) -> None:
    """Over Tehran at nine minutes to the hour: the first stamp may lie in the year before."""
    weather = read_pvgis_csv(write(rows(start)))
    assert len(weather.times) == 8760 and str(weather.times[0]).startswith(start)
    assert f"{weather.times[-1]:%M}" == start[-2:]


@pytest.mark.parametrize("start", ["2018-01-01 01:10", "2017-12-31 22:51", "2018-01-02 00:10"])
def test_a_year_that_is_shifted_is_not_whole(write: Write, start: str) -> None:
    assert "whole years" in refusal(write(rows(start)))
