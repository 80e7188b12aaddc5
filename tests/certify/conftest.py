"""Runs to certify: each module makes a tiny complete one, `plain`, which is never written to."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pacpfl.certify.document import certify


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
        vacuous = row["bound"] >= document["loss"]["b"]
        assert row["vacuous"] == vacuous == (row["verdict"] == "no statement")
    return rows
