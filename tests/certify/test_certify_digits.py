"""`pacpfl certify` for a run that predicts classes: from the folder to the page, and refusals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from refusals import refused
from rich.console import Console

from pacpfl import config as configuration
from pacpfl.build import build_federation
from pacpfl.certify.document import certify
from pacpfl.config import Config, RunSettings
from pacpfl.data.settings import DataSettings, ImageSettings
from pacpfl.methods.pacpfl import TrainSettings
from pacpfl.priors.inference import Inference
from pacpfl.priors.networks import NetworkSettings
from pacpfl.report.sentences import certificates
from pacpfl.report.terminal import print_certificates

CONFIG = Config(
    data=DataSettings(name="digits", clients=2, new_clients=2, samples=20),
    images=ImageSettings(test_fraction=0.05),
    network=NetworkSettings(widths=(4,), activation="relu"),
    train=TrainSettings(rounds=2, particles=2, tau=0.05),
    posterior=Inference(inference="svgd", networks=2, steps=2),
    run=RunSettings(methods=("pacpfl",)),
)


FEW = {
    "networks.DRAWS": 64,
    "networks.DRAWS_ALONE": 2,
    "networks.TEMPERATURES": (0.0, 1.0),
    "networks.STEPS": 3,
    "networks.PILOT_DRAWS": 8,
    "networks.MOST_NETWORK_PAIRS": 64,
    "average.BANDWIDTHS": (0.1,),
    "average.PILOT_DRAWS": 2,
}


def test_every_client_and_both_averages_have_a_certificate(
    document: dict[str, Any], certified_rows: list[dict[str, Any]]
) -> None:
    federation = build_federation(CONFIG)
    names = [(c.name, g) for g, clients in federation.groups().items() for c in clients]
    assert [(row["client"], row["group"]) for row in document["clients"]] == names
    assert document["loss"] == {"name": "0-1", "a": 0.0, "b": 1.0}
    for row in document["clients"]:
        assert row["pac_bayes"]["delta_split"]["draws"] == pytest.approx(0.01)
    for row in document["clients"]:
        assert row["proved"] == (row["group"] == "new")
        found = {condition["name"]: condition for condition in row["conditions"]}
        if row["group"] == "existing":
            premise = found["prior from a private algorithm"]["reason"]
            # Two draws, 2 tau ln 10 each.
            assert "epsilon = 0.4605 per sample" in premise and "within [0, 2.30259]" in premise


def test_the_words_say_what_is_certified(
    document: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert any("averaged model they predict with" in text for text in certificates(document))
    print_certificates(document, Console(width=200, highlight=False))
    assert "0-1, largest value 1" in capsys.readouterr().out


def test_a_variational_run_is_certified_itself(folder: Path) -> None:
    """The same particles, personalised otherwise: training does not depend on it."""
    path = folder / "config.toml"
    other = replace(CONFIG, posterior=replace(CONFIG.posterior, inference="variational"))
    path.write_text(configuration.dump(other))
    document = certify(folder, loss="brier")
    assert document["loss"] == {"name": "Brier", "a": 0.0, "b": 2.0}
    for row in document["clients"]:
        assert 0 <= row["empirical_risk"] <= 2 and row["kl"] >= 0


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"loss": "clipped-squared"}, "one of zero-one, brier, clipped-nll"),
        ({"loss": "zero-one", "limit": 0.5}, "--limit is for --loss clipped-nll"),
        ({"loss": "clipped-nll", "limit": -1.0}, r"\[0.0, -1.0\]"),
    ],
)
def test_bad_values_end_in_one_sentence(folder: Path, given: dict[str, Any], words: str) -> None:
    refused(lambda: certify(folder, **given), words)
    assert not (folder / "certificates.json").exists()
