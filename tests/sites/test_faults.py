"""kill -9 in the middle of training: the run ends by itself, with the particles of its own record."""

from __future__ import annotations

import os
import signal
from typing import Any

from deployment import SITES, Deployment, Running, difference, settings, wait_for

ROUNDS = 40
KILLED_AT = 12


def begun(deployment: Deployment) -> Running:
    running = deployment.begin(settings(ROUNDS), deadline=6.0)
    running.wait_round(KILLED_AT)
    return running


def check(deployment: Deployment, running: Running) -> None:
    outcome = running.finish()
    assert outcome.finished and outcome.rounds == ROUNDS
    config = settings(ROUNDS)
    found = deployment.final(running, config)
    assert difference(found, deployment.replayed(running, config)) < 1e-6


def rounds_of(running: Running) -> list[dict[str, Any]]:
    return [line for line in running.lines() if line["kind"] == "round"]


def last_round_of(running: Running, site: str) -> int:
    return max(line["round"] for line in rounds_of(running) if site in line["sites"])


def test_a_trainer(deployment: Deployment) -> None:
    running = begun(deployment)
    os.kill(deployment.trainer("east").pid, signal.SIGKILL)
    check(deployment, running)


def test_the_server(deployment: Deployment) -> None:
    running = begun(deployment)
    deployment.kill_server_program(with_job=True)
    check(deployment, running)
    starts = [line["start"] for line in running.lines() if line["kind"] == "segment"]
    assert len(starts) >= 2 and starts[1] >= KILLED_AT - 5 - 1, (
        "more was lost than since the checkpoint"
    )


def test_the_server_twice(deployment: Deployment) -> None:
    """The second time its job lives on for a while: it must not write over its successor's work."""
    running = begun(deployment)
    deployment.kill_server_program(with_job=True)
    running.wait_round(KILLED_AT + 8)
    deployment.kill_server_program(with_job=False)
    check(deployment, running)
    segments = [line["segment"] for line in running.lines() if line["kind"] == "segment"]
    assert segments == sorted(set(segments)) and len(segments) >= 3


def test_a_site_that_comes_back(deployment: Deployment) -> None:
    """Rounds take a second until it is back, so that the run does not end before."""
    config = settings(400)
    running = deployment.begin(config, deadline=6.0)
    slow = deployment.own("east") / "slow"
    try:
        running.wait_round(KILLED_AT)
        slow.touch()
        deployment.kill("north")
        running.wait_round(len(running.rounds) + 3)
        deployment.start("north")
        killed = max(line["round"] for line in rounds_of(running))
        wait_for(
            lambda: last_round_of(running, "north") > killed, f"the site, {running.stages[-3:]}"
        )
    finally:
        slow.unlink(missing_ok=True)
    assert running.finish().finished
    found = deployment.final(running, config)
    assert difference(found, deployment.replayed(running, config)) < 1e-6
    assert last_round_of(running, "north") == 399


def test_a_site_for_good(deployment: Deployment) -> None:
    """The last test of this file: the site stays away."""
    running = begun(deployment)
    deployment.kill("west")
    check(deployment, running)
    assert last_round_of(running, "west") < ROUNDS - 1
    assert last_round_of(running, SITES[0]) == ROUNDS - 1
