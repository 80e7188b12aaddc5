"""Fixtures of the package's tests, and the Polynomial study with five seeds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pacpfl.cli.common import shipped
from pacpfl.run import Watcher
from reproduction import polynomial
from reproduction.table import rows
from tests.conftest import programs, programs_compiled_once, programs_folder, x64
from tests.report.reading import read_page

__all__ = ["programs", "programs_compiled_once", "programs_folder", "read_page", "x64"]


@pytest.fixture(scope="session")
def polynomial_table() -> Callable[..., dict[tuple[str, str, str, str], float]]:
    """Means over five seeds, by dataset, group, method and metric, of some methods on one data set."""

    def run(dataset: str, methods: tuple[str, ...]) -> dict[tuple[str, str, str, str], float]:
        suite = {dataset: {name: polynomial.SUITE[dataset][name] for name in methods}}
        configs = {dataset: shipped(dataset)}
        outcomes = polynomial.run_study(configs, range(5), Watcher(), suite=suite)
        return {
            (r["dataset"], r["group"], r["method"], r["metric"]): r["mean"]
            for r in rows(outcomes, polynomial.PUBLISHED)
        }

    return run
