"""Secure aggregation with real processes: the plain run's particles, and a site that dies in a round."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from deployment import Deployment
from training import difference, settings, simulated

from pacpfl.privacy.accounting import PrivacySettings
from pacpfl.privacy.ledger import FILE, read_ledger
from pacpfl.sites import participation
from pacpfl.sites.kits import provision

FOUR = ("east", "north", "south", "west")
ROUNDS = 5
# A step of 2^-31, six clients, five rounds in which Adam divides by the gradients' size.
CLOSE = 1e-6

# At a site: its trainer is killed as soon as it is asked for a step in a round from the file `die` on.
DYING = """
import json, os, signal, sys
from pathlib import Path

if "pacpfl.sites.trainer" in sys.orig_argv:
    from pacpfl.sites.site import Site

    living = Site._step

    def dying(self, params, about):
        wish = Path(os.environ["PACPFL_SITE"]) / "die"
        if wish.exists() and json.loads(wish.read_text()) == [about["round"], about["step"]]:
            wish.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return living(self, params, about)

    Site._step = dying
"""


@pytest.fixture(scope="module")
def four(
    shared_deployment: Deployment, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deployment]:
    """Four sites: three survivors are enough. South requires secure rounds, north can die in one."""
    nature = tmp_path_factory.mktemp("dying")
    (nature / "sitecustomize.py").write_text(DYING)
    shared_deployment.mend()
    shared_deployment.restart("north", str(nature))
    if not (shared_deployment.kits / "south").exists():
        provision(shared_deployment.project, shared_deployment.kits, ("south",))
    shared_deployment.limit("south", secure=True)
    shared_deployment.start("south")
    shared_deployment.wait_connected("south")
    yield shared_deployment
    shared_deployment.limit("south")


def test_particles_are_those_of_the_plain_run(deployment: Deployment) -> None:
    """Three sites; every round's sum holds all six clients."""
    config = settings(ROUNDS)
    running = deployment.begin(config, secure=True)
    assert running.finish().finished
    found = deployment.final(running, config)
    assert difference(found, simulated(deployment.federation, config)) < CLOSE
    assert [line["clients"] for line in running.of_rounds()] == [[0, 1, 2, 3, 4, 5]] * ROUNDS
    deployment.check_record(running, config)


def test_a_site_killed_between_two_steps_is_taken_out_of_the_sum(four: Deployment) -> None:
    """Its keys were shared, its masked update never came: the others' shares take its masks off."""
    config = settings(ROUNDS)
    (four.own("north") / "die").write_text(json.dumps([2, "mask"]))
    running = four.begin(config, strangers=True, secure=True, deadline=6.0)
    assert running.finish().finished
    assert not (four.own("north") / "die").exists()
    rounds = {line["round"]: line for line in running.of_rounds()}
    record = participation.read(running.folder / participation.FILE)
    assert {seat.site for seat in record.roster} == set(FOUR)
    assert rounds[2]["sites"] == ["east", "south", "west"] and rounds[2]["missing"] == ["north"]
    four.check_record(running, config)


def test_who_requires_it_takes_no_part_in_the_open(four: Deployment) -> None:
    config = settings(2)
    running = four.begin(config, strangers=True, quorum=3)
    assert running.finish().finished
    assert all("south" not in line["sites"] for line in running.of_rounds())
    assert "secure aggregation is required here" in four.refusals("south")[-1]
    four.check_record(running, config)


def test_private_rounds_have_noise_from_the_sites(deployment: Deployment) -> None:
    """No server adds any; ledger and sites count the same rounds."""
    privacy = PrivacySettings(mode="gaussian", epsilon=8.0, clip=1.0)
    config = replace(settings(3), privacy=privacy)
    running = deployment.begin(config, secure=True, quorum=2)
    assert running.finish().finished
    state = deployment.final(running, config)
    assert np.isfinite(np.asarray(state.inner.particles)).all() and int(state.round) == 3
    (spent,) = read_ledger(running.folder / FILE)
    assert spent.private and spent.released == 3 and spent.spent().epsilon <= 8.0
    run = json.loads((running.folder / "terms.json").read_text())["run"]
    for site in ("east", "north", "west"):
        assert json.loads((deployment.own(site) / "revealed.json").read_text())[run] == 3
