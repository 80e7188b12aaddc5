"""PVGIS: its CSV export, and the service itself, played on this machine well, badly or not at all.

There is one sentence for everything that can be wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import numpy as np
import pandas as pd
import pytest
from refusals import refused
from serving import serving

from pacpfl.data.pvgis import fetch_pvgis, read_pvgis_csv
from pacpfl.data.weather import Weather
from scripts.reference_years import as_csv

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


def rows(start: str = "2018-01-01 00:10") -> list[str]:
    """A year in the export's format; the numbers tell the hour they belong to."""
    times = pd.date_range(start, periods=8760, freq="h").strftime("%Y%m%d:%H%M")
    return [
        f"{time},{i % 24}.0,{i % 7}.5,0.0,{i % 50}.25,{i % 30 - 9}.75,{i % 5}.03,0.0"
        for i, time in enumerate(times)
    ]


YEAR = rows()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "weather.csv"


def text(
    lines: list[str] = YEAR, head: str = HEAD, columns: str = COLUMNS, end: str = LEGEND
) -> str:
    return head + columns + "\n" + "\n".join(lines) + "\n" + end


def assert_same(one: Weather, other: Weather) -> None:
    for name in ("times", "beam", "diffuse", "temperature", "wind"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def test_every_number_is_read(path: Path) -> None:
    path.write_text(text())
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


def test_other_columns_and_line_ends_do_not_matter(path: Path) -> None:
    path.write_text(text())
    whole = read_pvgis_csv(path)
    swapped = [
        ",".join([fields[0], "77.0", *fields[1:3], *fields[:4:-1], *fields[3:5]])
        for fields in (row.split(",") for row in YEAR)
    ]
    other = text(swapped, columns="time,P,Gb(i),Gd(i),Int,WS10m,T2m,Gr(i),H_sun")
    for content in (other.encode(), b"\xef\xbb\xbf" + other.replace("\n", "\r\n").encode()):
        path.write_bytes(content)
        assert_same(read_pvgis_csv(path), whole)


def test_writing_and_reading_gives_the_same_numbers(path: Path) -> None:
    path.write_text(text())
    weather = read_pvgis_csv(path)
    weather = replace(weather, beam=weather.beam / 3, temperature=weather.temperature * 1e-17)
    path.write_text(as_csv(weather))
    assert_same(read_pvgis_csv(path), weather)


@pytest.mark.skipif(not BERN.exists(), reason="the weather of Bern is not here")
def test_bern_as_pvgis_exports_it() -> None:
    weather = read_pvgis_csv(BERN)
    table = pd.read_csv(BERN, skiprows=8, nrows=17_520)
    assert len(weather.times) == 17_520
    assert (weather.latitude, weather.longitude, weather.altitude) == (46.951, 7.45, 510.0)
    for theirs, ours in (("Gb(i)", "beam"), ("Gd(i)", "diffuse"), ("T2m", "temperature")):
        np.testing.assert_array_equal(getattr(weather, ours), table[theirs])


def cell(row: int, column: int, value: str) -> list[str]:
    fields = YEAR[row].split(",")
    fields[column] = value
    return [*YEAR[:row], ",".join(fields), *YEAR[row + 1 :]]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        *(
            (text(columns=COLUMNS.replace(name, "other")), f"line 9: column '{name}' is missing")
            for name in ("Gb(i)", "Gd(i)", "T2m", "WS10m")
        ),
        (text(cell(40, 1, "nan")), "line 50, column 'Gb(i)': 'nan' is not between 0 and 2000"),
        (text(cell(40, 2, "")), "line 50, column 'Gd(i)': '' is not between"),
        (text(cell(40, 2, "-1.0")), "line 50, column 'Gd(i)': '-1.0' is not between"),
        (text(cell(40, 5, "warm")), "line 50, column 'T2m': 'warm' is not between"),
        (text(cell(40, 5, "-9999")), "line 50, column 'T2m': '-9999' is not between"),
        (text(cell(40, 6, "inf")), "line 50, column 'WS10m': 'inf' is not between"),
        (text(cell(1, 0, "2018-01-01")), "line 11, column 'time': '2018-01-01' is no time"),
        (text(YEAR[:30] + YEAR[31:]), "from 2018-01-02 05:10 to 2018-01-02 07:10; give every"),
        (text(YEAR[:30] + YEAR[29:]), "from 2018-01-02 05:10 to 2018-01-02 05:10; give every"),
        (text(YEAR[:5000], end=""), "2018-07-28 07:10 and not through whole years"),
        (text([*YEAR[:5000], YEAR[5000][:20]], end=""), "line 5010: 3 values instead of 8"),
        (text(YEAR[100:]), "2018-01-05 04:10 to 2018-12-31 23:10 and not through whole years"),
        (text([], end=""), "holds no hours"),
        (text(columns="hour,G(i)"), "no line that begins with 'time,'"),
        ("", "no line that begins with 'time,'"),
        (text(head=HEAD.replace("Elevation", "Height")), "where it is for ('Elevation')"),
        (text(head=HEAD.replace("46.951", "north")), "could not convert string to float: 'north'"),
        (text(head=HEAD.replace("Slope: 0", "Slope: 35")), "the plane has a slope of 35 degrees"),
        *(
            (text(rows(start)), "not through whole years")
            for start in ("2018-01-01 01:10", "2017-12-31 22:51", "2018-01-02 00:10")
        ),
    ],
    ids=lambda value: value[:40] if value.isprintable() else "",
)
def test_a_file_that_cannot_be_used(path: Path, content: str, words: str) -> None:
    path.write_text(content)
    refused(lambda: read_pvgis_csv(path), str(path), re.escape(words))


def test_files_that_are_not_there_or_no_text(path: Path) -> None:
    refused(lambda: read_pvgis_csv(path), r"cannot be read \(No such file or directory\)")
    path.write_bytes(b"\xff\xfe\x00time,")
    refused(lambda: read_pvgis_csv(path), "is no text")


@pytest.mark.parametrize(
    "start",
    ["2018-01-01 00:00", "2018-01-01 00:30", "2018-01-01 00:51", "2017-12-31 23:51"],
)
def test_satellites_pass_at_any_minute(path: Path, start: str) -> None:
    """Over Tehran at nine minutes to the hour: the first stamp may lie in the year before."""
    path.write_text(text(rows(start)))
    weather = read_pvgis_csv(path)
    assert len(weather.times) == 8760 and str(weather.times[0]).startswith(start)
    assert f"{weather.times[-1]:%M}" == start[-2:]


# ---- the service ----


class Service:
    """Answers one request after the other as it was told, and remembers what was asked."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, str]] = []
        self.asked: list[dict[str, str]] = []
        self.url = ""

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        self.asked.append(dict(parse_qsl(urlsplit(handler.path).query)))
        status, body = self.answers.pop(0)
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body.encode())


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    service = Service()
    with serving(service.answer) as address:
        service.url = f"{address}/api/seriescalc"
        yield service


def fetch(service: Service, folder: Path | None, last: int = 2018) -> Weather:
    return fetch_pvgis(46.951, 7.45, (2018, last), folder, service.url, wait=0)


def test_an_answer_is_read_kept_and_not_asked_for_again(service: Service, tmp_path: Path) -> None:
    service.answers = [(429, "busy"), (200, text())]
    weather = fetch(service, tmp_path / "cache")
    (kept,) = (tmp_path / "cache").iterdir()
    assert kept.name == "pvgis_46.9510_7.4500_2018_2018.csv"
    assert weather.source == str(kept)
    assert (weather.latitude, weather.longitude, weather.altitude) == (46.951, 7.45, 510.0)
    (tmp_path / "export.csv").write_text(text())
    for each in (fetch(service, tmp_path / "cache"), read_pvgis_csv(tmp_path / "export.csv")):
        assert_same(each, weather)
    expected = {
        "lat": "46.951", "lon": "7.45", "startyear": "2018", "endyear": "2018",
        "angle": "0", "components": "1", "outputformat": "csv",
    }  # fmt: skip
    assert service.asked == [expected] * 2


def test_without_a_folder_it_is_kept_in_the_users_cache(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "here"))
    service.answers = [(200, text())]
    assert Path(fetch(service, None).source).parent == tmp_path / "here" / "pacpfl"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "here").rename(tmp_path / ".cache")
    assert Path(fetch(service, None).source).parent == tmp_path / ".cache" / "pacpfl"


@pytest.mark.parametrize(
    ("status", "answer", "words"),
    [
        (400, '{"message": "Location over the sea.", "status": 400}', "Location over the sea;"),
        (404, "not here", "answered 404"),
        (200, text([*YEAR[:5000], YEAR[5000][:20]], end=""), "3 values instead of 8"),
        (200, "<html>Maintenance</html>", "no line that begins with"),
        (200, text(YEAR[:72]), "2018-01-03 23:10"),  # a few days instead of the year
    ],
)
def test_an_answer_that_cannot_be_used_is_neither_kept_nor_asked_for_again(
    status: int, answer: str, words: str, service: Service, tmp_path: Path
) -> None:
    service.answers = [(status, answer)]
    ways_out = ("PVGIS", "CSV file", "synthetic weather")
    refused(lambda: fetch(service, tmp_path), words, *ways_out)
    assert len(service.asked) == 1 and not list(tmp_path.iterdir())


def test_a_failure_leaves_what_was_kept_alone(service: Service, tmp_path: Path) -> None:
    service.answers = [(200, text())] * 3
    fetch(service, tmp_path)
    (kept,) = tmp_path.iterdir()
    words = r"it goes from 2018-01-01 00:10.* to 2018"
    refused(lambda: fetch(service, tmp_path, last=2019), words)
    assert list(tmp_path.iterdir()) == [kept] and len(fetch(service, tmp_path).times) == 8760
    kept.write_text(kept.read_text()[:5000])
    refused(lambda: fetch(service, tmp_path), "delete the file and it is fetched again")
    kept.unlink()
    assert len(fetch(service, tmp_path).times) == 8760
