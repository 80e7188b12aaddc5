"""The tables of `make bench`: every figure in its place, every measurement in its own process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import harness, measure, pacpfl_round, study
from benchmarks.floor import Ceiling, operations, traffic
from benchmarks.problem import TABLE, Problem, Sizes, make_problem

CHILDREN = {
    "round": {"first_call": 2.5, "round": 0.5, "idle": 100.0 * 2**20, "peak": 300.0 * 2**20},
    "stream": {"first_call": 2.0, "round": 0.01, "idle": 100.0 * 2**20, "peak": 200.0 * 2**20},
    "personal": {"personalise": 0.002, "personalise_first_call": 1.0}
    | {"predict": 0.03, "predict_first_call": 2.0},
    "ceiling": {"operations": 1e9, "bytes": 1e8},
}
TINY = study.Plan(
    table=(Sizes(2, 2, 5, 1, (3,)),),
    compared_seconds=0.0,
    compiled=(5, 6),
    base=Sizes(2, 2, 5, 1, (3,)),
    samples=(5,),
    particles=(1, 2),
    clients=(1, 2, 3),
    populations=(4, 8),
)


class Steps:
    """A report that adds up what is done."""

    done = 0.0

    def __call__(self, description: str, steps: float) -> None:
        assert description
        self.done += steps


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, dict[str, Any]]]:
    """Children that answer known figures; what they were asked."""
    calls: list[tuple[str, str, dict[str, Any]]] = []

    def answer(name: str, cache: Path, **arguments: Any) -> dict[str, float]:
        calls.append((name, cache.name, arguments))
        return CHILDREN[name]

    monkeypatch.setattr(study, "in_child", answer)
    return calls


def tables_with(medians: dict[Sizes, dict[str, float]]) -> dict[Sizes, harness.Table]:
    times = {sizes: {n: np.array([m]) for n, m in each.items()} for sizes, each in medians.items()}
    return {sizes: harness.summarise(own, next(iter(own)), "t") for sizes, own in times.items()}


def test_every_measurement_has_its_place_and_the_progress_bar_ends_full(asked, tmp_path):
    """A first call finds an empty cache, then a warm one; scaling changes one number at a time."""
    report = Steps()
    study.measure_ceiling(tmp_path, report)
    asked.clear()
    sheet = study.compilation(TINY, tmp_path, report)
    assert [cache for _, cache, _ in asked] == 2 * ["compiled-5"] + 2 * ["compiled-6"]
    assert [row[1:] for row in sheet.rows] == 2 * [("empty", 2.5, 2.0), ("warm", 2.5, 2.0)]
    asked.clear()
    sheets = study.scaling(TINY, tmp_path, report)
    seen = [(a["samples"], a["particles"], a["clients"]) for _, _, a in asked]
    assert seen == [(5, 2, 6), (5, 1, 2), (5, 2, 2), (5, 2, 1), (5, 2, 2), (5, 2, 3)]
    assert [row[1] for sheet in sheets for row in sheet.rows] == [5, 1, 2, 1, 2, 3]
    assert sheets[0].rows[0][2:] == (500.0, 300.0, 100.0)
    study.streaming(TINY, tmp_path, report)
    rows = study.personal(TINY, tmp_path, report).rows
    assert [row[1:] for row in rows] == [(2.0, 1.0), (30.0, 2.0)]
    assert report.done == study.count_steps(TINY) - len(TINY.table)


def test_goals_are_judged_by_medians() -> None:
    medians = {
        TABLE[0]: {study.REFERENCE: 0.3, study.ANALYTIC: 0.04, study.OURS: 0.03},
        TABLE[4]: {study.REFERENCE: 5.0, study.OURS: 1.0},
    }
    rows = study.goals(tables_with(medians)).rows
    assert [row[2:] for row in rows] == [
        (8.0, pytest.approx(10.0), "yes"),
        (1.5, pytest.approx(4 / 3), "no"),
        (5.0, pytest.approx(5.0), "yes"),
    ]
    without_peers = study.goals(tables_with({TABLE[0]: {study.OURS: 0.03}}))
    assert [len(row) for row in without_peers.rows] == [len(without_peers.columns)]


def test_floor_sheet_compares_with_our_median() -> None:
    ceiling = Ceiling(1e9, 1e12)
    row = study.floors(tables_with({TABLE[0]: {study.OURS: 2.0}}), ceiling).rows[0]
    expected = operations(TABLE[0]) / 1e9
    sizes = operations(TABLE[0]) / 1e6, traffic(TABLE[0]) / 2**20, 4 * 24 * 4 * 150**2 / 2**20
    assert row[1:] == pytest.approx((*sizes, 1e3 * expected, 2000.0, 2.0 / expected))


def test_calls_hold_more_rounds_the_smaller_they_are() -> None:
    counts = [study.rounds_per_call(sizes) for sizes in TABLE]
    assert study.rounds_per_call(Sizes(4, 24, 2400)) == 2
    assert max(counts) == counts[2] == study.MAXIMUM_ROUNDS
    assert min(counts) == counts[4] == 2


def test_every_candidate_gets_the_particles_and_its_rounds(monkeypatch):
    made, got = [], []

    def make_round(problem: Problem, dtype: str, rounds: int) -> Any:
        assert dtype == "float32"
        made.append(rounds)
        return got.append

    monkeypatch.setattr(pacpfl_round, "make_round", make_round)
    report = Steps()
    sizes = TINY.table[0]
    table = study.compare(TINY, False, report)[sizes]
    assert [row.name for row in table.rows] == [study.OURS, study.SINGLE]
    assert made == [study.MAXIMUM_ROUNDS, 1]
    assert report.done == pytest.approx(1.0)
    particles = make_problem(sizes).particles
    assert all(np.allclose(each, particles, atol=1e-6) for each in got)
    assert len(got) == 2 * (2 + 2 * table.repeats)


def test_children_measure_for_real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No figure is judged, but all are there and make sense."""
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    cache = tmp_path / "cache"
    figures = measure.in_child("round", cache, particles=2, clients=2, samples=5, features=1)
    assert 0 < figures["round"] < figures["first_call"]
    assert 0 < figures["idle"] <= 1.01 * figures["peak"]
    assert any(cache.iterdir()), "nothing was kept in the cache on disk"


def test_the_other_measurements_measure_for_real(tmp_path: Path) -> None:
    """In one process, to save time, but not in this one: they settle how JAX starts."""
    study._write_clients(tmp_path / "store", 6, Sizes(1, 1, 5, 2))
    stream = {"clients": 4, "clients_per_round": 2, "particles": 2, "rounds": 5}
    arguments = {
        "stream": {"folder": str(tmp_path / "store"), **stream},
        "personal": {"samples": 5, "rows": 7, "particles": 2, "seconds": 0.0},
        "ceiling": {"size": 64, "seconds": 0.0},
    }
    script = (
        "import json, sys; from benchmarks.measure import MEASUREMENTS as m; "
        "print(json.dumps({n: m[n](**a) for n, a in json.loads(sys.argv[1]).items()}))"
    )
    call = [sys.executable, "-c", script, json.dumps(arguments)]
    figures = json.loads(subprocess.check_output(call, cwd=measure.ROOT))
    for name in arguments:
        assert figures[name].keys() == CHILDREN[name].keys() and min(figures[name].values()) > 0


def test_peak_memory_stays_after_the_memory_is_gone() -> None:
    size = 512 * 2**20
    before = measure.peak_memory()
    assert before > 0
    ballast = np.ones(size, np.uint8)
    during = measure.peak_memory()
    del ballast
    assert during >= size
    assert measure.peak_memory() > 0.99 * during  # Linux counts in batches of pages
