"""With everybody present, sites and simulator give the same particles; how long a round takes."""

from __future__ import annotations

import statistics

import pytest
from deployment import Deployment
from training import difference, settings, simulated

ROUNDS = 20


@pytest.mark.parametrize("method", ["pacpfl", "fedavg"])
def test_sites_and_simulator_agree(
    deployment: Deployment, method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = settings(ROUNDS, method)
    running = deployment.begin(config, method, deadline=60.0)
    assert running.finish().finished
    found = deployment.final(running, config, method)
    assert difference(found, simulated(deployment.federation, config, method)) < 1e-6
    deployment.check_record(running, config, method)
    rounds = running.of_rounds()
    assert len(rounds) == ROUNDS and all(len(line["sites"]) == 3 for line in rounds)
    assert {line["traces"] for line in rounds} == {1}, "JAX traces an update once per job"
    median = statistics.median(line["seconds"] for line in rounds)
    sent, received = rounds[-1]["sent"], rounds[-1]["received"]
    assert median < 3.0 and sent > 0 and received > 0
    with capsys.disabled():
        print(f"\n{method}: median round {median:.3f} s, {sent} bytes out, {received} bytes in")
