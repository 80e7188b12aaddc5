"""A training with pure epsilon makes the existing clients' certificates theorems: by its ledger."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from refusals import refused

from pacpfl.bounds import approximate_cost, gaussian_cost
from pacpfl.certify.document import certify
from pacpfl.config import Config, RunSettings
from pacpfl.data.settings import DataSettings
from pacpfl.methods.pacpfl import TrainSettings
from pacpfl.priors.gp import GPSettings
from pacpfl.privacy.accounting import PrivacySettings
from pacpfl.privacy.ledger import FILE, read_ledger
from pacpfl.run import run

CONFIG = Config(
    data=DataSettings(clients=3, new_clients=1, samples=8, test_samples=6),
    prior=GPSettings(mean="linear", kernel="ard"),
    train=TrainSettings(rounds=3, particles=2),
    privacy=PrivacySettings(mode="laplace", epsilon=0.9),
    run=RunSettings(methods=("pacpfl",)),
)


FEW = {
    "gaussian_processes.MOST_DRAWS": 64,
    "average.BANDWIDTHS": (0.5,),
    "average.PILOT_DRAWS": 4,
}


def test_pure_epsilon_of_whole_clients_is_proved(folder: Path) -> None:
    # What run.json claims does not matter: the ledger is asked.
    record = json.loads((folder / "run.json").read_text())
    record["methods"]["pacpfl"]["privacy"]["epsilon"] = 1e-9
    (folder / "run.json").write_text(json.dumps(record))
    row = certify(folder)["clients"][0]
    assert row["proved"]
    privacy = row["privacy"]
    assert (privacy["standing"], privacy["unit"]) == ("proved", "client")
    assert privacy["epsilon"] == pytest.approx(2 * 0.9), "replacing is removing and adding"
    assert "ledger" in privacy["reason"] and "doubled" in privacy["reason"]
    terms = row["pac_bayes"]["terms"]
    assert terms["privacy"] / terms["divergence"] == pytest.approx(1.8 / row["kl"])


def test_without_its_ledger_nothing_is_certified(folder: Path) -> None:
    (folder / FILE).unlink()
    refused(lambda: certify(folder), "not the ledger")


@pytest.mark.parametrize(
    ("change", "level"),
    [
        ({"sampling": "fixed"}, 0.9),  # accounted for replacing: as it is
        ({"noise_seed": 3}, None),
        ({"mode": "paper"}, None),
    ],
)
def test_other_runs(change: dict, level: float | None, tmp_path: Path) -> None:
    run(replace(CONFIG, privacy=replace(CONFIG.privacy, **change)), tmp_path / "run")
    row = certify(tmp_path / "run")["clients"][0]
    assert row["proved"] == (level is not None)
    if level is not None:
        assert row["privacy"]["epsilon"] == pytest.approx(level)
        assert "doubled" not in row["privacy"]["reason"]
    else:
        assert row["privacy"]["standing"] == "assumed"


@pytest.mark.parametrize("cohort", [None, 2])
def test_gaussian_noise_proves_certificates(cohort: int | None, tmp_path: Path) -> None:
    """All clients in every round: mu by hand. Some of them: pairs of the accountant."""
    privacy = replace(CONFIG.privacy, mode="gaussian", epsilon=2.0)
    train = replace(CONFIG.train, clients_per_round=cohort)
    run(replace(CONFIG, privacy=privacy, train=train), tmp_path / "run")
    row = certify(tmp_path / "run")["clients"][0]
    assert row["proved"] and row["privacy"]["standing"] == "proved"
    given = row["privacy"]
    plan = read_ledger(tmp_path / "run" / FILE)[-1].plan
    terms = row["pac_bayes"]["terms"]
    nats = terms["privacy"] / terms["divergence"] * row["kl"]
    if cohort is None:
        # Three rounds; replaced is one who leaves and one who comes.
        assert given["mu"] == pytest.approx(2 * math.sqrt(3) / plan.multiplier)
        assert nats == pytest.approx(gaussian_cost(0.05, given["mu"]), rel=1e-6)
    else:
        assert given["mu"] is None and len(given["deltas"]) > 1
        assert nats == pytest.approx(
            min(approximate_cost(0.05, *p) for p in given["deltas"]), rel=1e-6
        )
