"""PVGIS over the network, against a server on this machine that answers well, badly or not at all."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pandas as pd
import pytest
from refusals import refused

from pacpfl.data.pvgis import fetch_pvgis, read_pvgis_csv
from pacpfl.data.weather import Weather

pytest.importorskip("pvlib")

BERN = Path(__file__).parents[3] / "shared" / "data" / "pvgis_bern_2018_2019.csv"
Answer = Callable[[BaseHTTPRequestHandler], None]


def numbers() -> pd.DataFrame:
    """The year 2018 of Bern, or numbers of the same kind where it is not here."""
    if BERN.exists():
        return pd.read_csv(BERN, skiprows=8, nrows=8760)
    hours = np.arange(8760)
    times = pd.date_range("2018-01-01 00:10", periods=8760, freq="h").strftime("%Y%m%d:%H%M")
    return pd.DataFrame(
        {
            "time": times,
            "Gb(i)": np.maximum(0, 400 * np.sin(2 * np.pi * (hours - 6) / 24)).round(1),
            "Gd(i)": np.maximum(0, 150 * np.sin(2 * np.pi * (hours - 6) / 24)).round(1),
            "Gr(i)": 0.0,
            "H_sun": np.maximum(0, 60 * np.sin(2 * np.pi * (hours - 6) / 24)).round(2),
            "T2m": (10 + 5 * np.sin(hours / 500)).round(2),
            "WS10m": (2 + np.sin(hours / 9)).round(2),
            "Int": 0.0,
        }
    )


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
def table() -> pd.DataFrame:
    return numbers()


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


def refusal(service: Service, folder: Path, **options: Any) -> str:
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
    text = refusal(service, tmp_path, attempts=4, wait=1.5)
    assert words in text and f"({status})" in text
    assert (len(service.asked), waits) == (4, [1.5, 3.0, 6.0])


def test_silence_nobody_there_and_no_attempts(service: Service, tmp_path: Path) -> None:
    service.answers = [service.says_nothing]
    assert "does not answer in time" in refusal(service, tmp_path, timeout=0.2)
    refused(lambda: fetch(service, tmp_path, attempts=0), "attempts = 0")
    assert len(service.asked) == 1
    service.stop()
    text = refusal(service, tmp_path / "cache", timeout=2)
    assert "connection to PVGIS failed (ConnectionError)" in text
    assert not (tmp_path / "cache").exists()


def test_a_refused_request_passes_on_the_reason_and_is_not_repeated(
    service: Service, tmp_path: Path
) -> None:
    body = json.dumps({"message": "Location over the sea. Please, select another", "status": 400})
    service.answers = [sends(body.encode(), 400)]
    assert "refuses the request (Location over the sea" in refusal(service, tmp_path)
    service.answers = [sends(b"not here", 404)]
    assert "refuses the request (404" in refusal(service, tmp_path)
    assert len(service.asked) == 2


def test_a_truncated_answer(service: Service, good: bytes, tmp_path: Path) -> None:
    service.answers = [sends(good[: len(good) // 2])]
    assert "cannot be read" in refusal(service, tmp_path)
    service.answers = [sends(good[: len(good) // 2], announced=len(good))]
    assert "connection to PVGIS failed" in refusal(service, tmp_path, timeout=2)
    service.answers = [sends(b"<html>Maintenance</html>")]
    assert "cannot be read" in refusal(service, tmp_path)


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
        text = refusal(service, tmp_path)
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
