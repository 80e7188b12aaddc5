"""PVGIS: its CSV export, and the service itself, played on this machine well, badly or not at all.

There is one sentence for everything that can be wrong.
"""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pandas as pd
import pytest
from refusals import refused

from pacpfl.data.pvgis import as_csv, fetch_pvgis, read_pvgis_csv
from pacpfl.data.weather import Weather

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


# ---- the service ----

pytest.importorskip("pvlib")
Answer = Callable[[BaseHTTPRequestHandler], None]


def recorded(table: pd.DataFrame) -> dict[str, Any]:
    """An answer with the parts and names of the service's own (version 5.2, hourly radiation)."""
    about = {
        "location": {"latitude": 46.951, "longitude": 7.45, "elevation": 510.0},
        "meteo_data": {
            "radiation_db": "PVGIS-SARAH2", "meteo_db": "ERA5", "year_min": 2018,
            "year_max": 2018, "use_horizon": True, "horizon_db": None,
            "horizon_data": "DEM-calculated",
        },
        "mounting_system": {
            "fixed": {
                "slope": {"value": 0, "optimal": False},
                "azimuth": {"value": 0, "optimal": False},
                "type": "free-standing",
            }
        },
        "pv_module": {"technology": None, "peak_power": None, "system_loss": None},
    }  # fmt: skip
    meta = {"inputs": {}, "outputs": {"hourly": {"type": "time series", "variables": {}}}}
    return {"inputs": about, "outputs": {"hourly": table.to_dict("records")}, "meta": meta}


@pytest.fixture(scope="module")
def table(year: list[str]) -> pd.DataFrame:
    """The year's numbers as the service has them."""
    return pd.read_csv(io.StringIO("\n".join([COLUMNS, *year])))


@pytest.fixture(scope="module")
def good(table: pd.DataFrame) -> bytes:
    return json.dumps(recorded(table)).encode()


def sends(body: bytes, status: int = 200, announced: int | None = None) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(announced or len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


class Service:
    """Answers one request after the other as it was told, and remembers what was asked."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.asked: list[dict[str, list[str]]] = []
        self.over = threading.Event()
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                address = urlsplit(self.path)
                service.asked.append({"path": [address.path], **parse_qs(address.query)})
                service.answers.pop(0)(self)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/api/"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))
        self.thread.start()

    def says_nothing(self, _: BaseHTTPRequestHandler) -> None:
        self.over.wait(10)

    def stop(self) -> None:
        self.over.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    running = Service()
    yield running
    running.stop()


def fetch(service: Service, folder: Path, **options: Any) -> Weather:
    settings = {"url": service.url, "wait": 0.01, **options}
    return fetch_pvgis(46.951, 7.45, (2018, 2018), folder, **settings)


def no_answer(service: Service, folder: Path, **options: Any) -> str:
    ways_out = ("CSV file", "synthetic weather")
    text = refused(lambda: fetch(service, folder, **options), "PVGIS", *ways_out)
    assert not folder.exists() or not list(folder.iterdir())  # nothing half-written stays
    return text


def test_an_answer_is_read_kept_and_not_asked_for_again(
    service: Service, good: bytes, table: pd.DataFrame, tmp_path: Path
) -> None:
    service.answers = [sends(good)]
    weather = fetch(service, tmp_path / "cache")
    (kept,) = (tmp_path / "cache").iterdir()
    assert kept.name == "pvgis_46.9510_7.4500_2018_2018.csv"
    assert weather.source == str(kept)
    assert (weather.latitude, weather.longitude, weather.altitude) == (46.951, 7.45, 510.0)
    assert weather.times[0] == pd.Timestamp("2018-01-01 00:10", tz="UTC")
    again = fetch(service, tmp_path / "cache")
    by_hand = read_pvgis_csv(kept)
    for name, theirs in (
        ("beam", "Gb(i)"), ("diffuse", "Gd(i)"), ("temperature", "T2m"), ("wind", "WS10m"),
    ):  # fmt: skip
        for each in (weather, again, by_hand):
            np.testing.assert_array_equal(getattr(each, name), table[theirs])
    (question,) = service.asked
    assert question["path"] == ["/api/seriescalc"]
    expected = {
        "lat": "46.951", "lon": "7.45", "startyear": "2018", "endyear": "2018",
        "angle": "0", "components": "1", "outputformat": "json",
    }  # fmt: skip
    assert {key: question[key][0] for key in expected} == expected


def test_without_a_folder_it_is_kept_in_the_users_cache(
    service: Service, good: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "here"))
    service.answers = [sends(good)]
    weather = fetch_pvgis(46.951, 7.45, (2018, 2018), url=service.url)
    assert Path(weather.source).parent == tmp_path / "here" / "pacpfl"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "here").rename(tmp_path / ".cache")
    again = fetch_pvgis(46.951, 7.45, (2018, 2018), url=service.url)
    assert Path(again.source).parent == tmp_path / ".cache" / "pacpfl"


def test_another_place_or_year_is_asked_for(service: Service, good: bytes, tmp_path: Path) -> None:
    service.answers = [sends(good), sends(good)]
    fetch(service, tmp_path)
    fetch_pvgis(46.9512, 7.45, (2018, 2018), tmp_path, url=service.url)
    assert len(service.asked) == 2 == len(list(tmp_path.iterdir()))


@pytest.mark.parametrize("status", [429, 529])
def test_an_overloaded_service_is_asked_again(
    status: int, service: Service, good: bytes, tmp_path: Path
) -> None:
    service.answers = [sends(b"busy", status), sends(b"busy", status), sends(good)]
    assert len(fetch(service, tmp_path).times) == 8760
    assert len(service.asked) == 3


@pytest.mark.parametrize(("status", "words"), [(429, "too many requests"), (500, "out of order")])
def test_but_not_for_ever_and_after_longer_and_longer_waits(
    status: int, words: str, service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    service.answers = [sends(b"busy", status)] * 5
    text = no_answer(service, tmp_path, attempts=4, wait=1.5)
    assert words in text and f"({status})" in text
    assert (len(service.asked), waits) == (4, [1.5, 3.0, 6.0])


def test_silence_nobody_there_and_no_attempts(service: Service, tmp_path: Path) -> None:
    service.answers = [service.says_nothing]
    assert "does not answer in time" in no_answer(service, tmp_path, timeout=0.2)
    refused(lambda: fetch(service, tmp_path, attempts=0), "attempts = 0")
    assert len(service.asked) == 1
    service.stop()
    text = no_answer(service, tmp_path / "cache", timeout=2)
    assert "connection to PVGIS failed (ConnectionError)" in text
    assert not (tmp_path / "cache").exists()


def test_a_refused_request_passes_on_the_reason_and_is_not_repeated(
    service: Service, tmp_path: Path
) -> None:
    body = json.dumps({"message": "Location over the sea. Please, select another", "status": 400})
    service.answers = [sends(body.encode(), 400)]
    assert "refuses the request (Location over the sea" in no_answer(service, tmp_path)
    service.answers = [sends(b"not here", 404)]
    assert "refuses the request (404" in no_answer(service, tmp_path)
    assert len(service.asked) == 2


def test_a_truncated_answer(service: Service, good: bytes, tmp_path: Path) -> None:
    service.answers = [sends(good[: len(good) // 2])]
    assert "cannot be read" in no_answer(service, tmp_path)
    service.answers = [sends(good[: len(good) // 2], announced=len(good))]
    assert "connection to PVGIS failed" in no_answer(service, tmp_path, timeout=2)
    service.answers = [sends(b"<html>Maintenance</html>")]
    assert "cannot be read" in no_answer(service, tmp_path)


def without(answer: dict[str, Any], *keys: str) -> dict[str, Any]:
    """The answer without one of its parts."""
    if len(keys) == 1:
        return {key: value for key, value in answer.items() if key != keys[0]}
    return {**answer, keys[0]: without(answer[keys[0]], *keys[1:])}


def test_an_incomplete_answer(service: Service, table: pd.DataFrame, tmp_path: Path) -> None:
    hole = table.copy()
    hole.loc[77, "T2m"] = np.nan
    whole = recorded(table)
    for answer, words in (
        (recorded(table[:72]), "2018-01-03 23:10"),  # a few days instead of the year
        (recorded(table.drop(index=100)), "every hour once"),
        (recorded(table.drop(columns="Gb(i)")), "poa_direct"),
        (recorded(table.assign(T2m="warm")), "warm"),
        (recorded(hole), "temperature nan at 2018-01-04 05:10"),
        (recorded(table[:0]), "time"),
        (without(whole, "inputs", "location"), "location"),
        (without(whole, "outputs"), "outputs"),
        ([1, 2], ""),
    ):
        service.answers = [sends(json.dumps(answer).encode())]
        text = no_answer(service, tmp_path)
        assert "answer of PVGIS" in text and words in text


def test_another_year_than_asked_for(service: Service, good: bytes, tmp_path: Path) -> None:
    service.answers = [sends(good)]
    words = r"incomplete \(it goes from 2018-01-01 00:10.* to 2018"
    refused(lambda: fetch_pvgis(46.951, 7.45, (2018, 2019), tmp_path, url=service.url), words)
    assert not list(tmp_path.iterdir())


def test_a_failure_leaves_what_was_kept_alone(
    service: Service, good: bytes, tmp_path: Path
) -> None:
    service.answers = [sends(good), sends(good[:100])]
    fetch(service, tmp_path)
    (kept,) = tmp_path.iterdir()
    before = kept.read_bytes()
    refused(lambda: fetch_pvgis(40.0, 7.45, (2018, 2018), tmp_path, url=service.url), "PVGIS")
    assert list(tmp_path.iterdir()) == [kept] and kept.read_bytes() == before
    assert len(fetch(service, tmp_path).times) == 8760  # still without a further question
    assert len(service.asked) == 2


def test_a_kept_file_that_somebody_damaged_is_named(
    service: Service, good: bytes, tmp_path: Path
) -> None:
    service.answers = [sends(good), sends(good)]
    fetch(service, tmp_path)
    (kept,) = tmp_path.iterdir()
    kept.write_text(kept.read_text()[:5000])
    refused(lambda: fetch(service, tmp_path), "delete the file and it is fetched again")
    kept.unlink()
    assert len(fetch(service, tmp_path).times) == 8760
