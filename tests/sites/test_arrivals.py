"""Sites that come back or are new, and the command that trains: each while a training runs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from deployment import ADMIN, Deployment
from training import LONG, Logged, Running, settings, wait_for

from pacpfl import config as configuration

ROUNDS = 45
FIRST = 8  # rounds before anything happens


def begun(deployment: Deployment, strangers: bool = False) -> Running:
    running = deployment.begin(settings(ROUNDS), strangers=strangers, deadline=10.0)
    running.wait_round(FIRST)
    return running


def check(deployment: Deployment, running: Running) -> None:
    assert running.finish().finished
    deployment.check_record(running, settings(ROUNDS))
    running.check_nothing_lost()


def test_a_site_that_comes_back(deployment: Deployment, record_property: Any) -> None:
    """Within 60 s where a segment begins in 20; in proportion on a machine that is busy or slow."""
    began = time.monotonic()
    running = begun(deployment)
    patience = max(1.0, (time.monotonic() - began) / 20)
    deployment.kill("north")
    wait_for(lambda: "north" not in running.of_rounds()[-1]["sites"], "a round without it")
    with deployment.slowed("east", 5.0):
        before = running.reached()
        began = time.monotonic()
        deployment.start("north")
        wait_for(lambda: running.last_round_of("north") >= before, running.where)
    seconds = time.monotonic() - began
    record_property("seconds_until_back", round(seconds, 1))
    assert seconds < 60 * patience
    check(deployment, running)
    assert running.last_round_of("north") == ROUNDS - 1


@pytest.fixture
def commanded(deployment: Deployment) -> tuple[Deployment, Path, list[str]]:
    """`pacpfl run` with its arguments, paths as people write them, and the run's folder."""
    out = deployment.out()
    (deployment.folder / "my.toml").write_text(configuration.dump(settings(ROUNDS)))
    kit = f"kits/{ADMIN}"
    arguments = ["run", "--config", "my.toml", "--engine", "flare", "--kit", kit, "--out", out.name]
    return deployment, out, arguments


def test_the_command_that_trains(commanded: tuple[Deployment, Path, list[str]]) -> None:
    """The segment goes on without it; the same command goes on from the last checkpoint."""
    deployment, out, arguments = commanded
    running = Logged(out / "sites" / "pacpfl")
    said = deployment.folder / "command.txt"
    first = deployment.command(*arguments, log="command")
    running.wait_round(FIRST)
    with deployment.slowed("east", 5.0):
        first.kill()
        first.wait(30)
        running.wait_round(running.reached() + 2)
        again = deployment.command(*arguments, log="command")
        wait_for(lambda: len(running.of_segments()) > 1, "the next segment")
    assert again.wait(LONG) == 0, said.read_text()
    assert "Trained:" in said.read_text()
    deployment.check_record(running, settings(ROUNDS))
    running.check_nothing_lost()
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


def test_a_site_that_is_added(deployment: Deployment) -> None:
    """`pacpfl sites add` while a training runs: the new site takes part from the next segment.

    The last test of this file, and the file the first: the server takes half a minute to miss a site,
    and this one must not be there yet.
    """
    name = "south"
    running = begun(deployment, strangers=True)
    with deployment.slowed("east", 5.0):
        project = ["--project", str(deployment.file), "--out", str(deployment.kits)]
        added = deployment.command("sites", "add", name, *project, log="add")
        assert added.wait(LONG) == 0, (deployment.folder / "add.txt").read_text()
        deployment.start(name, deployment.data(name))
        wait_for(lambda: running.last_round_of(name) >= 0, running.where)
    check(deployment, running)
    first, *_, last = running.of_segments()
    assert [site for site, _ in first["roster"]] == list(deployment.sites)
    assert [site for site, _ in last["roster"]] == [*deployment.sites, name]
    joined = min(line["round"] for line in running.of_rounds() if name in line["sites"])
    assert joined == next(
        line["start"] for line in running.of_segments() if name in line["sites"]
    ), "the newcomer takes part from the first round of a segment"
