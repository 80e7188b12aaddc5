"""Fixtures of the package's tests, made-up outcomes, and the Polynomial study with five seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from reproduction.study import Outcome, cells, read_study, run_cell
from reproduction.table import Table
from tests.conftest import programs, programs_compiled_once, programs_folder, x64

__all__ = ["programs", "programs_compiled_once", "programs_folder", "x64"]


@pytest.fixture(scope="session")
def polynomial_table() -> Callable[[str, tuple[str, ...]], Table]:
    """Some rows of the Polynomial study on one data set, run with five seeds."""

    def run(dataset: str, rows: tuple[str, ...]) -> Table:
        study = read_study("polynomial")
        every = [c for c in cells(study, range(5)) if c.dataset == dataset and c.name in rows]
        return Table(study, [run_cell(cell, lambda: False) for cell in every], range(5))

    return run


@pytest.fixture(scope="session")
def made() -> Callable[..., Outcome]:
    """An outcome with these values in both groups or in those named."""

    def make(
        dataset: str,
        row: str,
        seed: int = 0,
        values: Mapping[str, float] | None = None,
        groups: Mapping[str, Mapping[str, float]] | None = None,
        seconds: float = 2.0,
    ) -> Outcome:
        known = groups or {group: dict(values or {}) for group in ("existing", "new")}
        clients = {g: {m: [v - 0.01, v + 0.01] for m, v in d.items()} for g, d in known.items()}
        return Outcome(dataset, row, seed, seconds, known, clients)

    return make
