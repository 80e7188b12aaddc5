"""With everybody present, sites and simulator give the same particles; and how long a round takes."""

from __future__ import annotations

import statistics
from typing import Any

import pytest
from deployment import Deployment, difference, settings, simulated


@pytest.mark.parametrize("method", ["pacpfl", "fedavg"])
def test_sites_and_simulator_agree(deployment: Deployment, method: str) -> None:
    config = settings(20, method)
    running = deployment.begin(config, method)
    assert running.finish().finished
    found = deployment.final(running, config, method)
    expected = simulated(deployment.federation, config, method)
    assert difference(found, expected) < 1e-6
    assert difference(found, deployment.replayed(running, config, method)) < 1e-6


def test_rounds_are_quick_and_traced_once(
    deployment: Deployment, record_property: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    running = deployment.begin(settings(60))
    assert running.finish().finished
    rounds = [line for line in running.lines() if line["kind"] == "round"]
    median = statistics.median(line["seconds"] for line in rounds)
    record_property("median_round_seconds", median)
    with capsys.disabled():
        sent, received = rounds[-1]["sent"] / 1e3, rounds[-1]["received"] / 1e3
        print(f"\nmedian round {median:.3f} s, {sent:.0f} kB out, {received:.0f} kB in")
    assert median < 3.0, "far above what a loaded machine takes"
    assert {line["traces"] for line in rounds} == {1}
