"""Runs to certify: each module has its CONFIG, and says in FEW how few draws are enough for it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pacpfl.certify.document import certify
from pacpfl.run import run


@pytest.fixture(scope="module", autouse=True)
def few_draws(request: pytest.FixtureRequest, programs: Any) -> Iterator[None]:
    """What draws are for is tested in some modules; in the others there are as few as can be."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in getattr(request.module, "FEW", {}).items():
            patch.setattr(f"pacpfl.certify.{name}", value)
        yield


@pytest.fixture(scope="module")
def plain(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, few_draws: None
) -> Path:
    """A tiny complete run, never written to."""
    folder = tmp_path_factory.mktemp("runs") / "plain"
    run(request.module.CONFIG, folder)
    return folder


@pytest.fixture
def folder(plain: Path, tmp_path: Path) -> Path:
    """A copy of the run, to be certified or spoilt."""
    return Path(shutil.copytree(plain, tmp_path / "run"))


@pytest.fixture(scope="module")
def document(plain: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The run's certificates, as they are returned and written."""
    copy = Path(shutil.copytree(plain, tmp_path_factory.mktemp("certified") / "run"))
    returned = certify(copy)
    written = json.loads((copy / "certificates.json").read_text())
    assert written == json.loads(json.dumps(returned))
    return written


@pytest.fixture(scope="module")
def certified_rows(document: dict[str, Any]) -> list[dict[str, Any]]:
    """What is said of every client and of both averages, whose sums are checked here."""
    rows = [*document["clients"], document["federation"], document["newcomers"]]
    for row in rows:
        assert row["bound"] == pytest.approx(sum(row["terms"].values()))
        assert sum(row["delta_split"].values()) == pytest.approx(0.05)
        assert row["verdict"] in ("proved", "assumed", "no statement")
        vacuous = row["bound"] >= document["loss"]["b"]
        assert row["vacuous"] == vacuous == (row["verdict"] == "no statement")
    return rows
