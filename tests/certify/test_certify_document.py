"""`pacpfl certify`: from a run folder to certificates.json, the words in it, and refusals."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from commands import assert_one_sentence, called
from refusals import refused

from pacpfl import config as configuration
from pacpfl import files
from pacpfl.bounds.losses import ZERO_ONE
from pacpfl.build import build_federation
from pacpfl.certify.certificate import Privacy, certify_posterior
from pacpfl.certify.clients import UNSCALED, scaling_condition
from pacpfl.certify.document import certify
from pacpfl.certify.gaussian_processes import base_of, inputs_of
from pacpfl.config import Config, RunSettings, override
from pacpfl.data.settings import DataSettings
from pacpfl.engine.training import KIND, REMEDY
from pacpfl.methods.pacpfl import TrainSettings
from pacpfl.methods.registry import build_prior
from pacpfl.priors.gp import GPPrior, GPSettings
from pacpfl.run import run
from pacpfl.types import Data, Form

CONFIG = Config(
    data=DataSettings(clients=3, new_clients=2, samples=10, test_samples=12),
    prior=GPSettings(mean="linear", kernel="ard"),
    train=TrainSettings(rounds=3, particles=2, tau=0.05),
    run=RunSettings(methods=("pacpfl",)),
)


FEW = {
    "gaussian_processes.MOST_DRAWS": 64,
    "average.BANDWIDTHS": (0.5, 0.1),
    "average.PILOT_DRAWS": 4,
}


def by_name(row: dict[str, Any]) -> dict[str, dict[str, str]]:
    return {condition["name"]: condition for condition in row["conditions"]}


def test_every_client_and_both_averages_have_a_certificate(
    document: dict[str, Any], certified_rows: list[dict[str, Any]], plain: Path
) -> None:
    names = [row["client"] for row in document["clients"]]
    assert names == ["existing-00", "existing-01", "existing-02", "new-00", "new-01"]
    assert all(row["client"].startswith(row["group"]) for row in document["clients"])
    assert document["delta"] == 0.05
    assert (document["loss"]["a"], document["loss"]["b"]) == (-1.0, 2.0)
    assert document["finished"] == json.loads((plain / "run.json").read_text())["finished"]
    facts = document["groups"]["existing"]
    rows = certified_rows[:3]
    assert facts["clients"] == 3 and facts["below"] == sum(not row["vacuous"] for row in rows)
    assert facts["bound"] == sorted(row["bound"] for row in rows)[1]
    assert facts["covered"] == sum(row["bound"] >= row["test_risk"] for row in rows)
    assert facts["helped"] == sum(row["participation"]["status"] == "holds" for row in rows)


def test_the_conditions_of_a_plain_run_in_words(document: dict[str, Any]) -> None:
    existing, new = document["clients"][0], document["clients"][3]
    premise = by_name(existing)["prior from a private algorithm"]
    assert premise["status"] == "assumed" and premise["kind"] == "premise"
    for words in ("epsilon = 0.6 per sample", "2 draws from Q*", "tau = 0.05", "SVGD"):
        assert words in premise["reason"]
    fresh = by_name(new)["prior independent of the client's data"]
    assert fresh["status"] == "holds" and "took no part" in fresh["reason"]
    assert "prior from a private algorithm" not in by_name(new)
    assert new["privacy"]["epsilon"] == 0 and new["pac_bayes"]["terms"]["privacy"] == 0
    assert new["proved"] and not existing["proved"]
    for row in (existing, new):
        found = by_name(row)
        assert found["bounded loss"]["status"] == "holds"
        # Too few clients to choose for each other.
        assert (
            "share delta equally"
            in found["choice made without these samples or paid for"]["reason"]
        )
        assert found["independent samples"]["kind"] == "world"
        assert row["participation"]["name"] == "taking part tightens this client's own bound"
    assert by_name(document["newcomers"])["bounded loss"]["status"] == "holds"
    cloud = by_name(document["federation"])["hyper-posterior with a finite divergence"]
    assert "noise of" in cloud["reason"] and "not the bare particles" in cloud["reason"]
    assert document["estimators"]["kl"]["error_at_most"] == pytest.approx(math.log(2))
    assert document["estimators"]["log_evidence"]["standard_error"] > 0


def test_an_epsilon_by_hand(folder: Path) -> None:
    zero = certify(folder, epsilon=0.0)["clients"][0]
    two = certify(folder, epsilon=2.0)["clients"][0]
    sample = certify(folder, epsilon=0.01, unit="sample")["clients"][0]
    for row, words in ((two, "all of this client's data"), (sample, "one of its samples")):
        premise = by_name(row)["prior from a private algorithm"]
        assert premise["status"] == "assumed" and not row["proved"]
        assert "given by hand" in premise["reason"] and words in premise["reason"]
    assert zero["bound"] < sample["bound"] < two["bound"]
    # An epsilon of 2 towards the client is a delta that is e^2 times smaller.
    less = certify(folder, epsilon=0.0, delta=0.05 * math.exp(-2))["clients"][0]
    assert two["bound"] == pytest.approx(less["bound"], rel=1e-6)
    terms = two["pac_bayes"]["terms"]
    assert terms["privacy"] / terms["divergence"] == pytest.approx(2 / two["kl"])


def test_a_larger_delta_tightens_and_the_loss_can_be_chosen(folder: Path) -> None:
    strict, lax = (certify(folder, delta=delta)["clients"] for delta in (0.01, 0.2))
    assert all(a["bound"] > b["bound"] for a, b in zip(strict, lax, strict=True))
    squared = certify(folder, loss="clipped-squared", limit=0.5)
    assert squared["loss"]["b"] == 0.5
    assert all(0 <= row["empirical_risk"] <= 0.5 for row in squared["clients"])


def test_what_run_json_claims_about_privacy_proves_nothing(folder: Path) -> None:
    """Only the ledger does: test_certify_private.py."""
    record = json.loads((folder / "run.json").read_text())
    record["methods"]["pacpfl"] |= {"privacy": {"mode": "laplace", "epsilon": 1.5, "private": True}}
    (folder / "run.json").write_text(json.dumps(record))
    assert not certify(folder)["clients"][0]["proved"]


def test_samples_scaled_by_their_own_statistics_void_the_certificate(tmp_path: Path) -> None:
    scaled = replace(CONFIG, data=replace(CONFIG.data, standardize="client"))
    run(scaled, tmp_path / "run")
    document = certify(tmp_path / "run", loss="clipped-squared", limit=20.0)
    for row in (*document["clients"], document["federation"], document["newcomers"]):
        assert not row["proved"]
        found = by_name(row)["samples not changed by their own statistics"]
        assert found["status"] == "does not hold" and "data.standardize" in found["reason"]
        assert row["verdict"] == "not valid"


def test_the_command_prints_writes_and_draws(folder: Path) -> None:
    before = {path.name for path in folder.iterdir()}
    ended = called("certify", str(folder), "--loss", "clipped-squared", "--limit", "4")
    out = ended.output
    assert ended.code == 0
    written = {path.name for path in folder.iterdir()} - before
    assert written == {"certificates.json", "figures", "report.html"}
    document = json.loads((folder / "certificates.json").read_text())
    for row in document["clients"]:
        line = next(line for line in out.splitlines() if line.split()[:1] == [row["client"]])
        for value in (row["bound"], row["empirical_risk"], row["test_risk"]):
            assert f"{value:.3f}" in line.split()
        assert f" {row['verdict']} " in line
    for words in ("assumed", "independent samples", "bound below 4", "report.html"):
        assert words in out
    assert 'id="certificates"' in (folder / "report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--delta", "0"), "--delta is 0.0"),
        (("--delta", "1.5"), "--delta is 1.5"),
        (("--delta", "nan"), "--delta is nan"),
        (("--epsilon=-1",), "--epsilon is -1.0"),
        (("--epsilon", "inf"), "--epsilon is inf"),
        (("--unit", "house"), "--unit is 'house'"),
        (("--loss", "nll"), "--loss is 'nll'"),
        (("--limit=-1",), "[-1.0, -1.0]"),
        (("--loss", "clipped-squared", "--limit", "0"), "the limit is 0.0"),
    ],
)
def test_bad_values_end_in_one_sentence(
    folder: Path, arguments: tuple[str, ...], words: str
) -> None:
    assert_one_sentence(called("certify", str(folder), *arguments), words)
    assert not (folder / "certificates.json").exists()


def changed(name: str, before: str, after: str) -> Callable[[Path], object]:
    """Return what replaces words in a file of the folder."""
    return lambda folder: (folder / name).write_text(
        (folder / name).read_text().replace(before, after)
    )


def truncated(folder: Path) -> None:
    path = folder / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:-7])


def more_rounds(folder: Path) -> None:
    """As an interrupted run leaves it: the checkpoint is behind the configuration."""
    path = folder / "checkpoint.safetensors"
    arrays, about = files.load_arrays(path, KIND, REMEDY)
    files.save_arrays(path, KIND, arrays, about | {"round": "1"})


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (shutil.rmtree, "no run folder"),
        (lambda folder: (folder / "config.toml").unlink(), "no run folder"),
        (lambda folder: (folder / "run.json").unlink(), "There is no file"),
        (changed("run.json", '"complete"', '"running"'), "not complete .status 'running'"),
        (lambda folder: (folder / "run.json").write_text("{"), "run.json"),
        (
            lambda folder: (folder / "checkpoint.safetensors").unlink(),
            "there is no checkpoint",
        ),
        (more_rounds, "not complete .round 1"),
        (truncated, "is damaged"),
        (changed("config.toml", "seed = 0", "seed = 1"), "another configuration"),
        (changed("config.toml", '["pacpfl"]', '["vanilla"]'), "trained no particles"),
    ],
)
def test_a_folder_that_is_no_complete_run_is_refused(
    folder: Path, spoil: Callable[[Path], object], words: str
) -> None:
    spoil(folder)
    refused(lambda: certify(folder), words)
    assert not (folder / "certificates.json").exists()


@pytest.mark.parametrize("name", ["polynomial", "digits", "writers"])
def test_the_shipped_examples_are_valid_configurations(name: str) -> None:
    path = resources.files("pacpfl") / "configs" / f"certify-{name}.toml"
    config = configuration.load(path.read_text(encoding="utf-8"), path.name)
    assert config.data.clients + config.data.new_clients == 100 and config.seed >= 100
    assert config.data.standardize == "none" and "pacpfl" in config.run.methods
    if name != "polynomial":
        assert config.posterior.inference == "variational" and config.run.methods == ("pacpfl",)
    if name == "digits":
        federation = build_federation(replace(config, seed=0))
        sizes = [(len(c.train), c.test is not None and len(c.test)) for c in federation.new]
        assert len(sizes) == 50 and np.all(np.array(sizes) >= [14, 3])


@pytest.mark.parametrize("members", [1, 2])
def test_a_warped_target_has_no_certificate_and_the_way_out_is_named(members: int) -> None:
    config = Config(prior=GPSettings(warp="sinh-arcsinh", members=members))
    refused(lambda: base_of(build_prior(config, Form(("x", "y")))), 'prior.warp = "none"')


# Runs whose samples were scaled or filled in by what samples say.


TABLES = ["data.name=tables", "tables.source=-", "tables.target=y"]


# Of a client who took no part: every premise holds before anything is scaled.
FRESH = Privacy("independent", "the client took no part")
BEFORE = certify_posterior("anna", ZERO_ONE, 0.1, 0.5, m=100, privacy=FRESH, delta=0.05)


@pytest.mark.parametrize(
    ("settings", "new", "existing"),
    [
        ([], None, None),
        (["standardize=client"], "does not hold", "does not hold"),
        (["standardize=global"], "holds", "does not hold"),
        ([*TABLES, "tables.missing=impute"], "holds", "does not hold"),
        ([*TABLES, "tables.missing=impute", "standardize=client"], *["does not hold"] * 2),
        ([*TABLES, "tables.missing=drop"], None, None),
    ],
)
def test_whose_statistics_a_sample_was_changed_by(
    settings: list[str], new: str | None, existing: str | None
) -> None:
    config = override(Config(), settings)
    for group, wanted in (("new", new), ("existing", existing)):
        found = scaling_condition(config, group)
        assert (None if found is None else found.status) == wanted
        after = BEFORE.under(found)
        assert after.proved == (wanted in (None, "holds"))
        assert (after.verdict == "not valid") == (wanted == "does not hold")
        assert [c.name for c in after.conditions].count(UNSCALED) == (wanted is not None)
        assert after.bound == BEFORE.bound


def test_reasons_name_the_keys() -> None:
    config = override(Config(), [*TABLES, "tables.missing=impute", "standardize=global"])
    condition = scaling_condition(config, "existing")
    assert condition is not None
    for words in ('data.standardize = "global"', 'tables.missing = "impute"', "without noise"):
        assert words in condition.reason


def test_padding_changes_no_view_of_a_client() -> None:
    """Clients have different numbers of test samples, and all are padded to the largest."""
    random = np.random.default_rng(0)
    prior = GPPrior(2, GPSettings(mean="linear", kernel="ard"))
    with jax.enable_x64(True):
        particles = jax.numpy.asarray(0.3 * random.normal(size=(2, prior.size)))
        own, others = random.normal(size=(3, 2)), random.normal(size=(4, 2))

        def pad(x: np.ndarray, rows: int) -> Data:
            padded = jax.numpy.zeros((rows, 2)).at[: len(x)].set(x)
            return Data(padded, padded[:, 0], jax.numpy.arange(rows) < len(x))

        exact, padded = (
            inputs_of(prior, particles, pad(own, m), pad(others, t))[1] for m, t in ((3, 4), (6, 9))
        )
        for a, b in zip(exact, padded, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12)
            assert a.shape == b.shape
