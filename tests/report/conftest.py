"""Run folders, and pages read back."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from folders import make_run

from pacpfl.report.folder import Run, read_run
from pacpfl.report.page import write_report


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A headless browser, where there is one."""
    pytest.importorskip("selenium", reason="The page is tried with the Python package selenium.")
    from browsing import open_browser

    yield from open_browser(tmp_path_factory.mktemp("browser"))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Four existing clients, with three methods."""
    return read_run(make_run(tmp_path / "run", clients=4, groups=("existing",)))


@pytest.fixture(scope="session")
def polynomial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 existing and 24 new clients with one feature, three methods."""
    return make_run(tmp_path_factory.mktemp("runs") / "polynomial")


@pytest.fixture(scope="session")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mixture prior with two components."""
    return make_run(tmp_path_factory.mktemp("runs") / "mixture", components=2)


@pytest.fixture(scope="session")
def solar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """15 features, and a method that gives no uncertainty."""
    return make_run(
        tmp_path_factory.mktemp("runs") / "solar",
        features=15, test=140, kept=120, methods=("pacpfl", "vanilla", "pooled", "fedavg"),
    )  # fmt: skip


@pytest.fixture(scope="session")
def polynomial_page(polynomial: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of the polynomial run, in a copy of its folder."""
    copy = shutil.copytree(polynomial, tmp_path_factory.mktemp("reports") / "polynomial")
    return write_report(Path(copy))
