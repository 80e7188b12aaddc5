"""kill -9 in the middle of training: the run ends by itself, with the particles of its own record."""

from __future__ import annotations

import os
import signal

from deployment import Deployment, Running, settings

ROUNDS = 40
KILLED_AT = 8


def begun(deployment: Deployment) -> Running:
    running = deployment.begin(settings(ROUNDS), deadline=4.0)
    running.wait_round(KILLED_AT)
    return running


def check(deployment: Deployment, running: Running) -> None:
    outcome = running.finish()
    assert outcome.finished and outcome.rounds == ROUNDS
    deployment.check_record(running, settings(ROUNDS))
    running.check_nothing_lost()


def test_a_trainer(deployment: Deployment) -> None:
    running = begun(deployment)
    os.kill(deployment.trainer("east").pid, signal.SIGKILL)
    check(deployment, running)
    without = [line for line in running.of_rounds() if "east" not in line["sites"]]
    assert without or len(running.of_segments()) > 1, "the trainer was killed in vain"


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
    """That of the server, in which the controller lives; then that of a site. FLARE ends the job."""
    running = begun(deployment)
    deployment.kill_job_of("server")
    running.wait_round(KILLED_AT + 6)
    deployment.kill_job_of("north")
    check(deployment, running)
    assert len(running.of_segments()) >= 3
