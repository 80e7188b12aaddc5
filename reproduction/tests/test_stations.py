"""scripts/stations.py: fortnights of other places, and what the page says of them."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from pacpfl.data.pv import SAMPLES
from pacpfl.types import Client, Federation, Samples
from scripts import stations
from scripts.stations import COLUMNS, METHODS, STARTS, Row, fortnight, main, measure, summary


def make_summer(seed: int = 0, features: slice = slice(2)) -> Federation:
    """Three houses whose first feature is the hour; the target is a line of the second."""
    rng = np.random.default_rng(seed)
    clients = []
    for number in range(3):
        x = np.stack([np.arange(SAMPLES), rng.normal(size=SAMPLES)], axis=1).astype(float)
        y = (number + 1) * x[:, 1] + 0.1 * rng.normal(size=SAMPLES)
        samples = Samples(x[:, features], y)
        clients.append(Client(f"house-{number}", samples, times=1000 + np.arange(SAMPLES)))
    return Federation("summer", tuple(clients), (), ("hour", "light")[features])


@pytest.mark.parametrize("start", STARTS)
def test_houses_train_on_fifteen_days_and_are_asked_about_all_others(start: int) -> None:
    for client in fortnight(make_summer(), start).existing:
        assert client.test is not None and client.times is not None
        np.testing.assert_array_equal(client.train.x[:, 0], np.arange(start, start + 150))
        np.testing.assert_array_equal(client.times, 1000 + client.train.x[:, 0])
        everything = np.concatenate([client.train.x[:, 0], client.test.x[:, 0]])
        np.testing.assert_array_equal(np.sort(everything), np.arange(SAMPLES))
        assert (len(client.train.y), len(client.test.y)) == (150, 460)


def test_a_line_is_found_and_measured_on_the_rest() -> None:
    """Ridge regression knows such houses up to their noise, 0.1 of targets as wide as their slope."""
    summer = fortnight(make_summer(features=slice(1, 2)), 0)
    found = measure(summer, "S", "ridge")
    spread = [np.std(client.test.y) for client in summer.existing if client.test is not None]
    assert found["rsmse"] == pytest.approx(np.mean(0.1 / np.array(spread)), rel=0.1)
    assert 0 < found["ce"] < 0.06


ROWS = [
    Row("a", "PV-S", 0, "pacpfl", 0.40, 0.09, 0.1),
    Row("a", "PV-S", 0, "ridge", 0.45, 0.05, 0.4),
    Row("a", "PV-S", 0, "fedavg", 0.39, 0.07, 0.5),
    Row("b", "PV-S", 0, "pacpfl", 0.50, 0.02, 0.3),
    Row("b", "PV-S", 0, "ridge", 0.48, 0.03, 0.6),
    Row("b", "PV-S", 0, "fedavg", 0.49, 0.08, 0.7),
]


def test_the_page_counts_what_the_rows_say() -> None:
    lines = summary(ROWS)
    assert lines[0] == "## PV-S"
    assert "| PAC-PFL | 0.450 | 0.055 | 0.200 | 1 of 2 | 0.090 |  |" in lines
    assert "| Ridge per client | 0.465 | 0.040 | 0.500 | 0 of 2 | 0.050 | 1 of 2 |" in lines
    assert "| FedAvg | 0.440 | 0.075 | 0.600 | 2 of 2 | 0.080 | 0 of 2 |" in lines


def test_a_folder_with_page_table_and_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stations, "read_weather", lambda path: path.stem)
    monkeypatch.setattr(stations, "pv", lambda *given: make_summer(len(given[5])))
    monkeypatch.setattr(
        stations,
        "measure",
        lambda federation, panels, method: {
            "rsmse": 0.3 + 0.1 * METHODS.index(method),
            "ce": federation.existing[0].train.x[0, 0] / 10_000,
            "nll": float(list(COLUMNS).index(panels)),
        },
    )
    out = tmp_path / "out"
    main(["here.csv", "there.dat", "--out", str(out), "--houses", "3", "--mark", "here"])
    with (out / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * len(COLUMNS) * len(STARTS) * len(METHODS)
    assert {(row["place"], row["houses"]) for row in rows} == {
        (place, houses) for place in ("here", "there") for houses in ("PV-S", "PV-EW")
    }
    assert all(float(row["ce"]) == int(row["start"]) / 10_000 for row in rows)
    page = (out / "README.md").read_text()
    assert "2 summers" in page and "PAC-PFL | 0.300 | 0.023 | 0.000 | 0 of 6" in page
    assert "python -m scripts.stations here.csv there.dat --out out --houses 3 --mark here" in page
    assert (out / "stations.png").read_bytes().startswith(b"\x89PNG")


def test_what_is_not_there_ends_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="--mark berne is none of the places"):
        main(["bern.csv", "--out", str(tmp_path), "--mark", "berne"])
    with pytest.raises(SystemExit, match=r"nowhere\.dat cannot be read"):
        main([str(tmp_path / "nowhere.dat"), "--out", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()
