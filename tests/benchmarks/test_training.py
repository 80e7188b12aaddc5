"""The benchmark of whole trainings: they take turns, and the table says what each took and reached."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks import training
from benchmarks.training import METHODS, sheet, take_turns, train_all
from pacpfl.folder import MethodResult
from reproduction.study import cell_config


def test_one_works_at_a_time_and_all_in_turn() -> None:
    log: list[str] = []
    at_work = threading.Lock()

    def task(name: str, steps: int) -> Callable[[Callable[[], None]], str]:
        def run(pause: Callable[[], None]) -> str:
            for step in range(steps):
                if step:
                    at_work.release()
                    pause()
                assert at_work.acquire(blocking=False), "two were at work"
                log.append(name)
            at_work.release()
            return name

        return run

    assert take_turns([task("a", 2), task("b", 4), task("c", 3)]) == ["a", "b", "c"]
    assert "".join(log) == "abcabcbcb"


def test_a_task_that_fails_does_not_leave_the_others_waiting() -> None:
    done = []

    def fails(pause: Callable[[], None]) -> None:
        pause()
        raise ValueError("no")

    def works(pause: Callable[[], None]) -> None:
        pause()
        pause()
        done.append(True)

    with pytest.raises(ValueError, match="no"):
        take_turns([fails, works])
    assert done == [True]


def test_the_trainings_are_those_of_the_study_and_interleave(monkeypatch, tmp_path):
    """Real data and settings; only the training itself is left out."""
    rng = np.random.default_rng(0)
    path = tmp_path / "digits.npz"
    np.savez(
        path,
        images=rng.integers(0, 255, (41 * 30, 28, 28)).astype(np.uint8),
        labels=np.tile(np.arange(10), 41 * 3).astype(np.int64),
        writer=np.repeat(np.arange(41), 30),
    )
    called: list[tuple[str, Any]] = []

    def pretend(name: str, config: Any, federation: Any, store: Any, watcher: Any) -> str:
        for _ in range(2):
            called.append((name, config))
            watcher.progress(None)
        assert len(federation.existing) == store.clients == 40 and not federation.new
        return name

    monkeypatch.setattr(training, "run_method", pretend)
    assert train_all("femnist-20", path, 3, None) == {name: name for name in METHODS}
    assert [name for name, _ in called] == ["fedavg", "pacpfl", "fedavg", "pacpfl"]
    for name, config in called:
        study = cell_config(training.STUDY, "femnist-20", name, 3, images=path)
        assert (config.train, config.local, config.bnn) == (study.train, study.local, study.bnn)
        assert config.seed == 3
    train_all("femnist-20", path, 3, 7)
    assert called[-1][1].train.rounds == 7


def result(seconds: float, accuracy: float) -> MethodResult:
    rows = [{"accuracy": accuracy - 0.1, "nll": 1.0}, {"accuracy": accuracy + 0.1, "nll": 1.0}]
    about = {"title": "T", "rounds": 9, "train_seconds": seconds, "compile_seconds": 1.0}
    return MethodResult(about, {}, {"existing": SimpleNamespace(rows=rows)}, {})


def test_the_table_compares_with_fedavg(monkeypatch: pytest.MonkeyPatch) -> None:
    def means(groups: Any) -> Any:
        value = float(np.mean([row["accuracy"] for row in groups["existing"].rows]))
        return {"existing": {"accuracy": {"mean": value}, "ce": {"mean": 0.02}}}

    monkeypatch.setattr(training, "summarise", means)
    runs = [
        {"fedavg": result(10, 0.9), "pacpfl": result(12, 0.95)},
        {"fedavg": result(30, 0.9), "pacpfl": result(28, 0.97)},
    ]
    found = sheet("Whole trainings", [0, 1], {"femnist-20": runs})
    rows = [dict(zip(found.columns, row, strict=True)) for row in found.rows]
    assert [row["times FedAvg's"] for row in rows] == pytest.approx([1.0, 1.0])
    assert [row["seconds"] for row in rows] == pytest.approx([20, 20])
    assert rows[1]["accuracy %"] == pytest.approx(96) and rows[1]["CE"] == 0.02
    assert "Seeds 0, 1" in found.note
