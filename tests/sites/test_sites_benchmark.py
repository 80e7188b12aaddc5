"""What the benchmark of sites writes, from numbers that are made up."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.sites import Measured, sheets, write

LONG = Measured(
    sites=3,
    encoding="exact",
    rounds=4,
    seconds=200.0,
    round_seconds=np.array([0.1, 0.2, 0.3, 2.0]),
    sent=3e4,
    received=6e4,
    traces=1,
    segments=1,
    server_bytes=3 * 10**8,
    sites_bytes=2 * 10**9,
)
MACHINE = {
    "processor": "a processor", "cores": 2, "device": "cpu", "load": 0.5, "system": "Linux",
    "versions": {"nvflare": "2.9.0"},
}  # fmt: skip


def test_goals_are_judged_and_everything_is_written(tmp_path: Path) -> None:
    small = replace(LONG, encoding="int8", received=1e4)
    many = replace(LONG, sites=20, traces=2)
    page = write(tmp_path, sheets([LONG, small], many), MACHINE, "the command").read_text()
    assert "| median round, s | 0.250 | 0.3 | yes |" in page
    assert "| 4 rounds end to end, s | 200 | 180 | no |" in page
    assert "| int8 | 4 | 30.0 | 10.0 |" in page
    assert "| memory of all sites together, MB | 2,000 |" in page
    assert "load 0.5" in page and "`the command`" in page
    tables = json.loads((tmp_path / "results.json").read_text())["tables"]
    assert tables[0]["rows"][3] == {
        "what": "traces of JAX at a site", "measured": 1, "goal": "1", "met": "yes"
    }  # fmt: skip
    assert tables[2]["rows"][0] == {"what": "rounds completed", "measured": 4}
