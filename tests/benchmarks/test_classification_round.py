"""The benchmark of classification measures the rounds that training runs, and says what it measured."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from benchmarks import classification
from benchmarks.classification import CANDIDATES, FEDAVG, Sizes, make_federation, make_rounds
from benchmarks.results import Sheet
from pacpfl.config import Config, override
from pacpfl.data.store import from_clients
from pacpfl.engine.simulate import train
from pacpfl.methods.pacpfl import PACPFL
from pacpfl.methods.registry import build_method

TINY = Sizes(
    clients=4, per_round=2, samples=3, particles=2, side=8, classes=3, filters=(2, 2), hidden=4
)


def test_a_measured_call_is_what_training_does() -> None:
    state, _, _ = make_rounds(FEDAVG, TINY, 2)()  # type: ignore[misc]
    kind, changes = CANDIDATES[FEDAVG]
    federation = make_federation(TINY)
    method = build_method(kind, override(Config(), [*TINY.settings(), *changes]), federation.form)
    store = from_clients(federation.existing)
    trained = train(method, store, rounds=2, clients_per_round=2, matrices_per_client=0)
    for ours, theirs in zip(jax.tree.leaves(state), jax.tree.leaves(trained.state), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def test_the_problem_is_the_one_of_the_cost_goal() -> None:
    sizes, toy = Sizes(), make_federation(TINY)
    assert (sizes.per_round, sizes.samples, sizes.particles, sizes.side) == (10, 20, 3, 28)
    made: dict[str, Any] = {
        name: build_method(kind, override(Config(), [*TINY.settings(), *changes]), toy.form)
        for name, (kind, changes) in CANDIDATES.items()
    }
    assert made[FEDAVG].local.steps == 5
    ours = [method for method in made.values() if isinstance(method, PACPFL)]
    assert [method.settings.particles for method in ours] == [2, 2, 2]
    assert [method.prior.settings.draws for method in ours] == [1, 1, 5]


def test_the_sheets_say_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, int]] = []

    def pretend(name: str, sizes: Sizes, rounds: int) -> Any:
        return lambda: calls.append((name, rounds))

    monkeypatch.setattr(classification, "make_rounds", pretend)
    monkeypatch.setattr(classification, "memory_in_child", lambda name: 3 * 2.0**20)
    times = classification.measure_times(TINY, repeats=2, rounds=4)
    memory = classification.measure_memory()
    assert isinstance(times, Sheet) and [row[0] for row in times.rows] == list(CANDIDATES)
    assert {name for name, _ in calls} == set(CANDIDATES)
    assert times.columns[-1] == f"times faster than {FEDAVG}"
    assert "2 of 4 clients with 3 images of 8 x 8 pixels, k = 2, 4 rounds a call" in times.note
    assert [row[1] for row in memory.rows] == [3.0] * len(CANDIDATES)
