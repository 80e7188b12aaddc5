"""kill -9 in the middle of training: the run ends by itself, with the particles of its own record."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from deployment import ADMIN, Deployment, Running, settings, wait_for
from training import LONG, Logged

from pacpfl import config as configuration

ROUNDS = 30
KILLED_AT = 8
CHECKPOINT = 5  # rounds between two
DEADLINE = 4.0


def begun(deployment: Deployment, rounds: int = ROUNDS, **more: Any) -> Running:
    terms = {"deadline": DEADLINE, "checkpoint_rounds": CHECKPOINT} | more
    running = deployment.begin(settings(rounds), **terms)
    running.wait_round(KILLED_AT)
    return running


def check(deployment: Deployment, running: Running, rounds: int = ROUNDS) -> None:
    outcome = running.finish()
    assert outcome.finished and outcome.rounds == rounds
    deployment.check_record(running, settings(rounds))


def assert_nothing_lost(running: Logged) -> None:
    """Nothing but the rounds since the last checkpoint: as many as lie between two, at most."""
    reached = 0
    for line in running.lines():
        if line["kind"] == "round":
            reached = line["round"] + 1
        else:
            assert line["start"] >= reached - CHECKPOINT
            reached = line["start"]


def test_a_trainer(deployment: Deployment) -> None:
    running = begun(deployment)
    os.kill(deployment.trainer("east").pid, signal.SIGKILL)
    check(deployment, running)
    assert_nothing_lost(running)
    without = [line for line in running.of_rounds() if "east" not in line["sites"]]
    assert without, "the trainer was killed in vain"


def test_a_site_for_good(deployment: Deployment) -> None:
    running = begun(deployment)
    deployment.kill("west")
    check(deployment, running)
    assert_nothing_lost(running)
    assert running.last_round_of("west") < ROUNDS - 1
    assert running.last_round_of("east") == running.last_round_of("north") == ROUNDS - 1


def test_the_server(deployment: Deployment) -> None:
    running = begun(deployment)
    deployment.kill_server_program(with_job=True)
    check(deployment, running)
    assert_nothing_lost(running)
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
    assert_nothing_lost(running)
    assert len(running.of_segments()) >= 3


def test_a_site_that_comes_back(deployment: Deployment, record_property: Any) -> None:
    rounds = 100
    running = begun(deployment, rounds, deadline=10.0)
    with deployment.slowed("east", 3.0):
        deployment.kill("north")
        wait_for(lambda: "north" not in running.of_rounds()[-1]["sites"], "a round without it")
        before = running.reached()
        began = time.monotonic()
        deployment.start("north")
        wait_for(lambda: running.last_round_of("north") >= before, running.where)
    seconds = time.monotonic() - began
    record_property("seconds_until_back", round(seconds, 1))
    assert seconds < 60
    check(deployment, running, rounds)
    assert running.last_round_of("north") == rounds - 1


def test_a_site_that_is_added(deployment: Deployment) -> None:
    """`pacpfl sites add` while a training runs: the new site takes part from the next segment."""
    rounds, name = 100, "south"
    running = begun(deployment, rounds, strangers=True, deadline=10.0)
    with deployment.slowed("east", 3.0):
        project = ["--project", str(deployment.file), "--out", str(deployment.kits)]
        added = deployment.command("sites", "add", name, *project, log="add")
        assert added.wait(LONG) == 0, (deployment.folder / "add.txt").read_text()
        deployment.start(name, deployment.data(name))
        wait_for(lambda: running.last_round_of(name) >= 0, running.where)
    check(deployment, running, rounds)
    first, *_, last = running.of_segments()
    assert [site for site, _ in first["roster"]] == list(deployment.sites)
    assert [site for site, _ in last["roster"]] == [*deployment.sites, name]
    joined = min(line["round"] for line in running.of_rounds() if name in line["sites"])
    assert joined == next(
        line["start"] for line in running.of_segments() if name in line["sites"]
    ), "the newcomer takes part from the first round of a segment"


@pytest.fixture
def commanded(deployment: Deployment) -> tuple[Deployment, Path, list[str]]:
    """`pacpfl run` with its arguments, and the run's folder."""
    file, out = deployment.folder / "my.toml", deployment.out()
    file.write_text(configuration.dump(settings(ROUNDS)))
    kit = str(deployment.kits / ADMIN)
    arguments = ["run", "--config", str(file), "--engine", "flare", "--kit", kit, "--out", str(out)]
    return deployment, out, arguments


def test_the_command_that_trains(commanded: tuple[Deployment, Path, list[str]]) -> None:
    """The segment goes on without it; the same command goes on from the last checkpoint."""
    deployment, out, arguments = commanded
    running = Logged(out / "sites" / "pacpfl")
    said = deployment.folder / "command.txt"
    first = deployment.command(*arguments, log="command")
    running.wait_round(KILLED_AT)
    with deployment.slowed("east", 3.0):
        first.kill()
        first.wait(30)
        running.wait_round(running.reached() + 2)
        again = deployment.command(*arguments, log="command")
        wait_for(lambda: len(running.of_segments()) > 1, "the next segment")
    assert again.wait(LONG) == 0, said.read_text()
    assert "Trained:" in said.read_text()
    deployment.check_record(running, settings(ROUNDS))
    assert_nothing_lost(running)
    check_status(deployment, out)
    check_personal(deployment)


def check_status(deployment: Deployment, out: Path) -> None:
    asked = ["sites", "status", "--kit", str(deployment.kits / ADMIN), "--run", str(out)]
    assert deployment.command(*asked, log="status").wait(LONG) == 0
    said = (deployment.folder / "status.txt").read_text()
    for site in deployment.sites:
        row = next(line for line in said.splitlines() if site in line)
        assert "yes" in row and "not told" in row and " s ago" in row
    assert f"{ROUNDS} rounds in " in said


def check_personal(deployment: Deployment) -> None:
    """Each site has its result, and makes its clients' models of it."""
    kit = deployment.kits / "west"
    done = deployment.command("site", "personalize", "--kit", str(kit), log="personal")
    assert done.wait(LONG) == 0, (deployment.folder / "personal.txt").read_text()
    rows = (kit / "pacpfl" / "report" / "clients.csv").read_text()
    assert all(client.name in rows for client in deployment.clients["west"])
    assert (kit / "pacpfl" / "report" / "report.html").is_file()
