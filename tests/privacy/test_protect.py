"""Private runs from the configuration to the folder they leave, killed ones included."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import assert_one_sentence, called, with_settings
from patience import patience
from refusals import refused
from safetensors import safe_open
from safetensors.numpy import load_file

from pacpfl import config as configuration
from pacpfl.build import build_federation
from pacpfl.cli.common import clear
from pacpfl.config import Config, RunSettings, identity, load
from pacpfl.data.settings import DataSettings
from pacpfl.errors import InputError
from pacpfl.folder import RunFolder
from pacpfl.methods.pacpfl import TrainSettings
from pacpfl.methods.registry import build_pacpfl
from pacpfl.methods.transforms import protect
from pacpfl.priors.gp import GPSettings
from pacpfl.privacy.accounting import PrivacySettings, epsilon_spent
from pacpfl.privacy.ledger import FILE, read_ledger
from pacpfl.report import sentences
from pacpfl.run import run

ROUNDS = 8
CONFIG = Config(
    data=DataSettings(clients=5, new_clients=2, samples=6, test_samples=8),
    prior=GPSettings(mean="linear", kernel="ard"),
    train=TrainSettings(rounds=ROUNDS, particles=2, clients_per_round=2),
    privacy=PrivacySettings(mode="laplace", epsilon=3.0, average=0.5),
    run=RunSettings(methods=("pacpfl",)),
)


def changed(**privacy: Any) -> Config:
    return replace(CONFIG, privacy=replace(CONFIG.privacy, **privacy))


# The configuration.


def test_the_plan_follows_the_configuration() -> None:
    plan = CONFIG.privacy.plan(ROUNDS, 5, 2)
    assert plan is not None
    assert (plan.mode, plan.sampling, plan.clients, plan.cohort) == ("laplace", "poisson", 5, 2)
    assert (plan.rounds, plan.epsilon, plan.delta) == (ROUNDS, 3.0, 0.0)
    assert epsilon_spent(plan, ROUNDS).epsilon == pytest.approx(3.0)
    everyone = CONFIG.privacy.plan(ROUNDS, 5)
    assert everyone is not None and (everyone.sampling, everyone.cohort) == ("all", 5)
    assert PrivacySettings().plan(ROUNDS, 5) is None
    paper = changed(mode="paper").privacy.plan(ROUNDS, 5)
    assert paper is not None and paper.multiplier == pytest.approx(ROUNDS / 3.0)


def test_the_method_follows_the_configuration() -> None:
    config = changed(mode="gaussian", clip=0.3, clip_quantile=0.6, clip_rate=0.1, strict=True)
    plan = config.privacy.plan(ROUNDS, 5, 2)
    assert plan is not None
    method = protect(
        build_pacpfl(config, build_federation(config).form), plan, config.privacy, ROUNDS
    )
    assert (method.clip, method.average_from, method.strict) == (0.3, 4, True)
    assert method.adaptive is not None
    assert (method.adaptive.quantile, method.adaptive.rate) == (0.6, 0.1)
    assert plan.multiplier < method.multiplier <= 1.051 * plan.multiplier


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("epsilon = 4.0", "protects nobody without a mode"),
        ('mode = "gaussian"', "needs a budget"),
        ('mode = "laplace"\nepsilon = 1.0\nclip_quantile = 0.5', "clip_quantile"),
        ('mode = "gaussian"\nepsilon = 1.0\nclip_quantile = 0.5\nunit = "sample"', "clip_quantile"),
        ('mode = "gaussian"\nepsilon = 1.0\n[data]\nstandardize = "global"', "all clients' data"),
        (
            'mode = "laplace"\nepsilon = 1.0\n[data]\nname = "tables"\n[tables]\n'
            'missing = "impute"\nsource = "a.csv"\ntarget = "y"',
            "medians of all clients' rows",
        ),
        ('mode = "gaussian"\nepsilon = 1.0\n[run]\nmethods = ["vanilla"]', "add it"),
        ('mode = "gaussian"\nepsilon = 1.0', "pooled"),
        (
            'mode = "gaussian"\nepsilon = 1.0\n[run]\nmethods = ["pacpfl"]\n'
            "[data]\nnew_clients = 0",
            "new clients only",
        ),
        ('mode = "gauss"', "gaussian"),
    ],
)
def test_what_does_not_fit_is_refused(text: str, word: str) -> None:
    refused(lambda: load(f"[privacy]\n{text}\n", "my.toml"), word)


def test_without_privacy_the_identity_is_what_it_was() -> None:
    plain = replace(CONFIG, privacy=PrivacySettings())
    assert identity(plain) == identity(replace(plain, privacy=PrivacySettings(clip=9.0)))
    assert identity(changed(epsilon=2.0)) != identity(CONFIG) != identity(plain)


# A run and its folder.


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("private") / "run"
    run(CONFIG, out)
    return out


def record_of(out: Path) -> dict[str, Any]:
    return json.loads((out / "run.json").read_text())["methods"]["pacpfl"]["privacy"]


def test_run_json_says_what_was_spent(folder: Path) -> None:
    said = record_of(folder)
    assert said["private"] is True and said["mode"] == "laplace"
    assert said["epsilon"] == pytest.approx(3.0) and said["delta"] == 0
    assert (said["adjacency"], said["unit"]) == ("add-remove", "client")
    assert (said["rounds_released"], said["out_of_budget"]) == (ROUNDS, False)
    assert read_ledger(folder / FILE)[0].released == ROUNDS


def test_the_checkpoint_tells_nothing_that_is_not_accounted_for(folder: Path) -> None:
    with safe_open(folder / "checkpoint.safetensors", framework="numpy") as file:
        names = set(file.keys())
        about = file.metadata()
    assert not [name for name in names if "evidence" in name]
    assert [name for name in names if name.startswith("history/")] == ["history/diversity"]
    assert about["identity"] == identity(CONFIG), "no digest of the samples"
    assert about["ledger"].startswith(f"{1 + len(read_ledger(folder / FILE)[0].releases)} ")


def test_a_private_folder_holds_nobody_s_rows(folder: Path, tmp_path: Path) -> None:
    """Not one number of a row, existing or new, in any array; who asks for them gets them, and is told."""
    federation = build_federation(CONFIG)
    clients = (*federation.existing, *federation.new)
    samples = [part for c in clients for part in (c.train, c.test) if part is not None]
    rows = np.concatenate([values.ravel() for part in samples for values in (part.x, part.y)])
    secret = set(rows.astype(np.float32).tolist()) - {0.0, 1.0}

    def kept(out: Path) -> int:
        arrays = [v for file in out.glob("*.safetensors") for v in load_file(file).values()]
        return len(secret & set(np.concatenate([v.ravel() for v in arrays]).tolist()))

    assert len(secret) > 100 and kept(folder) == 0
    loud = tmp_path / "loud"
    run(changed(strict=False), loud)
    assert kept(loud) > 100
    spoken = [sentences.privacy({"privacy": record_of(out)}) for out in (folder, loud)]
    assert [sentences.SEALED in said for said in spoken] == [True, False]


def test_a_seed_for_the_noise_or_the_printed_mode_is_marked(tmp_path: Path) -> None:
    run(changed(noise_seed=5), tmp_path / "seeded")
    said = record_of(tmp_path / "seeded")
    assert said["private"] is False and said["mode"] == "laplace"
    assert not read_ledger(tmp_path / "seeded" / FILE)[0].private
    run(changed(mode="paper"), tmp_path / "paper")
    said = record_of(tmp_path / "paper")
    assert said["private"] is False and said["mode"] == "paper"
    # Strict: nothing of the clients who trained.
    metrics = json.loads((tmp_path / "paper" / "metrics.json").read_text())
    assert set(metrics["pacpfl"]) == {"new"}
    assert "existing" not in (tmp_path / "paper" / "clients.csv").read_text()
    with safe_open(tmp_path / "paper" / "arrays.safetensors", framework="numpy") as file:
        names = list(file.keys())
    assert names and not [name for name in names if "existing" in name or "refused" in name]


KILL = """
import os, signal, sys
from pathlib import Path
from pacpfl import config as configuration
from pacpfl.engine import training
from pacpfl.run import run
real, saved = training.save_checkpoint, []
def save(*arguments):
    if len(saved) == 2:
        os.kill(os.getpid(), signal.SIGKILL)  # released, and not saved
    saved.append(real(*arguments))
training.save_checkpoint = save
run(configuration.load_file(Path(sys.argv[1])), Path(sys.argv[2]))
"""


def test_killed_between_release_and_checkpoint(tmp_path: Path) -> None:
    """By the system, in a process of its own; the run that goes on ends when the budget does."""
    (tmp_path / "config.toml").write_text(configuration.dump(CONFIG))
    out = tmp_path / "run"
    killed = subprocess.run(
        [sys.executable, "-c", KILL, str(tmp_path / "config.toml"), str(out)],
        capture_output=True, text=True, timeout=patience(240), check=False,
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    before = read_ledger(out / FILE)[0]
    lost = before.released - before.releases[1][1]
    assert lost > 0
    run(CONFIG, out)
    said = record_of(out)
    assert read_ledger(out / FILE)[0].released == ROUNDS == said["rounds_released"]
    assert said["epsilon"] <= 3.0 + 1e-9
    assert said["out_of_budget"] and said["rounds_planned"] == ROUNDS
    record = json.loads((out / "run.json").read_text())
    assert record["status"] == "complete" and record["methods"]["pacpfl"]["rounds"] == ROUNDS - lost


def test_all_rounds_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(CONFIG, train=replace(CONFIG.train, rounds=1))

    def full(*arguments: Any) -> None:
        raise InputError("no space")

    with monkeypatch.context() as patch:
        patch.setattr("pacpfl.engine.training.save_checkpoint", full)
        with pytest.raises(InputError, match="no space"):
            run(config, tmp_path / "run")
    refused(lambda: run(config, tmp_path / "run"), "nothing was learned")


# The command line.


def test_the_ledger_is_printed_and_a_new_start_adds_up(folder: Path, tmp_path: Path) -> None:
    printed = " ".join(called("privacy", str(folder)).output.split())
    assert "Total: epsilon = 3, delta = 0 (add or remove one client; pure composition)" in printed
    assert "and epsilon = 2.999 with delta = 1e-05." in printed

    out = tmp_path / "run"
    run(changed(epsilon=1.0, sampling="fixed"), out)
    RunFolder(out).clear()
    assert (out / FILE).is_file(), "--fresh forgets the run, not what it released"
    run(changed(epsilon=2.0), out)
    assert record_of(out)["earlier_runs"] == 1
    printed = " ".join(called("privacy", str(out)).output.split())
    # 1 for replacing one client, and 2 x 2 because adding or removing was accounted for.
    assert "Total: epsilon = 5, delta = 0 (replace one client by another" in printed
    assert "1 earlier in the same folder included" in printed


def test_a_new_start_says_what_it_means(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(folder / FILE, tmp_path)
    clear(tmp_path)
    assert "adds to the 1 earlier" in capsys.readouterr().err
    clear(folder / "nowhere")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("where", "word"), [("nowhere", "no run folder"), (".", "no privacy")])
def test_folders_without_a_ledger(where: str, word: str, tmp_path: Path) -> None:
    assert_one_sentence(called("privacy", str(tmp_path / where)), word)


def test_epsilon_on_the_command_line_means_gaussian(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `run` makes of its options; nothing is trained here."""
    seen: list[Config] = []

    def stop(config: Config, *_: Any) -> None:
        seen.append(config)
        raise InputError("enough")

    monkeypatch.setattr("pacpfl.run.run", stop)
    monkeypatch.setattr("pacpfl.engine.runtime.configure", lambda *_: None)
    out = ["--out", str(tmp_path / "run")]
    start = ["run", "polynomial", "--epsilon", "4", "--delta", "1e-6", *out]
    assert called(*start).code == 2
    assert called(*start, "--set", "privacy.mode=laplace").code == 2
    assert called("run", "polynomial", *out).code == 2
    modes = [(c.privacy.mode, c.privacy.epsilon, c.privacy.delta) for c in seen]
    assert modes == [("gaussian", 4.0, 1e-6), ("laplace", 4.0, 1e-6), ("none", None, 1e-5)]


def test_a_private_run_on_tables_without_newcomers_measures_nobody(tmp_path: Path) -> None:
    rng, rows = np.random.default_rng(0), ["client,x,y"]
    rows += [f"c{i // 12},{x:.4f},{np.sin(x):.4f}" for i, x in enumerate(rng.normal(size=48))]
    (tmp_path / "t.csv").write_text("\n".join(rows))
    settings = ["privacy.mode=laplace", "privacy.epsilon=5", 'methods=["pacpfl"]', "train.rounds=2"]
    settings += ["data.standardize=client", "tables.client=client", "tables.target=y"]
    out = tmp_path / "run"
    ended = called("fit", str(tmp_path / "t.csv"), *with_settings(*settings), "--out", str(out))
    assert ended.code == 0, ended.errors
    assert (out / "clients.csv").read_text().count("\n") == 1
    assert not (out / "units.csv").exists()
