"""kill -9 in the middle of training: the run ends by itself, with the particles of its own record."""

from __future__ import annotations

import os
import signal

from deployment import Deployment
from training import Running, settings, wait_for

ROUNDS = 26
KILLED_AT = 8


def begun(deployment: Deployment, rounds: int = ROUNDS) -> Running:
    running = deployment.begin(settings(rounds), deadline=4.0)
    running.wait_round(KILLED_AT)
    return running


def check(deployment: Deployment, running: Running, rounds: int = ROUNDS) -> None:
    outcome = running.finish()
    assert outcome.finished and outcome.rounds == rounds
    deployment.check_record(running, settings(rounds))
    running.check_nothing_lost()


def test_a_site_for_good(deployment: Deployment) -> None:
    running = begun(deployment)
    deployment.kill("west")
    check(deployment, running)
    assert running.last_round_of("west") < ROUNDS - 1
    assert running.last_round_of("east") == running.last_round_of("north") == ROUNDS - 1


def test_the_server(deployment: Deployment) -> None:
    running = begun(deployment)
    deployment.kill_server_program(with_job=True)
    check(deployment, running)
    assert len(running.of_segments()) >= 2


def test_the_server_twice(deployment: Deployment) -> None:
    """The second time its job lives on for a while: it must not write over its successor's work."""
    running = begun(deployment)
    deployment.kill_server_program(with_job=True)
    running.wait_round(KILLED_AT + 6)
    deployment.kill_server_program(with_job=False)
    check(deployment, running)
    segments = [line["segment"] for line in running.of_segments()]
    assert segments == sorted(set(segments)) and len(segments) >= 3


def test_the_processes_of_a_segment(deployment: Deployment) -> None:
    """A trainer; the server's process, in which the controller lives; a site's. FLARE ends the job."""
    running = begun(deployment, 2 * ROUNDS)
    os.kill(deployment.trainer("east").pid, signal.SIGKILL)
    wait_for(lambda: without(running, "east") or len(running.of_segments()) > 1, "it to be missed")
    running.wait_round(running.reached() + 4)
    segments = len(running.of_segments())
    deployment.kill_job_of("server")
    wait_for(lambda: len(running.of_segments()) > segments, "the segment after the server's")
    running.wait_round(running.reached() + 4)
    deployment.kill_job_of("north")
    check(deployment, running, 2 * ROUNDS)
    assert len(running.of_segments()) >= segments + 2


def without(running: Running, site: str) -> list[int]:
    """Rounds that went on without it."""
    return [line["round"] for line in running.of_rounds() if site not in line["sites"]]
