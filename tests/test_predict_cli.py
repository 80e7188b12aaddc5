"""Predictions for all clients of a table: by their models, by their own rows, or by the prior alone."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from commands import assert_one_sentence, called
from patience import patience

from pacpfl.client import ClientModel, Shared, load, no_rows, save
from pacpfl.config import Config, override
from pacpfl.data.prepare import Scaler
from pacpfl.data.tables.columns import Column, Schema
from pacpfl.folder import MODELS, SHARED
from pacpfl.methods.registry import build_prior
from pacpfl.report import page as pages

SCHEMA = Schema((Column("x", "number"),), "price", client="town")
SCALER = Scaler(np.zeros(1), np.ones(1), 20.0, 5.0)
RANDOM = np.random.default_rng(0)


def rows(town: str, count: int, level: float) -> pd.DataFrame:
    x = RANDOM.uniform(-2, 2, count)
    price = level + x + RANDOM.normal(0, 0.2, count)
    return pd.DataFrame({"town": town, "x": x, "price": price})


@pytest.fixture(scope="module")
def shared() -> Shared:
    made = ["data.name=tables", "tables.source=-", "tables.target=price", "precision=float64"]
    config = override(Config(), [*made, "prior.mean=linear", "prior.kernel=ard+linear"])
    size = build_prior(config, SCHEMA.form).size
    return Shared(config, SCHEMA, SCALER, 0.3 * RANDOM.normal(size=(2, size)))


def model_of(shared: Shared, frame: pd.DataFrame) -> ClientModel:
    return ClientModel.condition(shared, frame["town"].iloc[0], frame[["x"]], frame["price"])


@pytest.fixture(scope="module")
def run(shared: Shared, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What fit leaves: Ulm and Bern are known."""
    folder = tmp_path_factory.mktemp("run")
    models = [model_of(shared, rows("Ulm", 12, 10)), model_of(shared, rows("Bern", 12, 30))]
    save(folder / MODELS, shared, models)
    save(folder / SHARED, shared)
    return folder


def table() -> pd.DataFrame:
    """Four clients whose rows are mixed: Genf has eight targets, Rom none, Ulm one that nobody reads."""
    parts = [rows(town, 12, 25) for town in ("Rom", "Ulm", "Genf", "Bern")]
    parts[0]["price"], parts[3]["price"], parts[2].loc[8:, "price"] = None, None, None
    whole = pd.concat(parts).sample(frac=1, random_state=3, ignore_index=True)
    return whole.assign(more="text")


def test_every_client_is_asked_by_its_own_model_in_the_order_of_rows(
    run: Path, shared: Shared, tmp_path: Path
) -> None:
    whole, out = table(), tmp_path / "p.csv"
    whole.to_csv(tmp_path / "t.csv", index=False)
    words = ("predict", "--run", str(run), "--data", str(tmp_path / "t.csv"), "--out", str(out))
    ended = called(*words)
    assert ended.code == 0, ended
    assert "40 predictions of price for 4 clients" in ended.output
    assert "from their rows that have a target: Genf." in ended.errors
    assert "without any target, predicted by the prior alone: Rom." in ended.errors
    found = pd.read_csv(out)
    assert list(found.columns) == [
        "row",
        "client",
        "mean",
        "std",
        "q0.05",
        "q0.5",
        "q0.95",
        "outside",
    ]
    asked = whole[~((whole["town"] == "Genf") & whole["price"].notna())]
    np.testing.assert_array_equal(found["row"], asked.index + 1)
    np.testing.assert_array_equal(found["client"], asked["town"])
    known = {str(model.name): model for model in load(run / MODELS).models}
    given = whole[(whole["town"] == "Genf") & whole["price"].notna()]
    known["Genf"] = model_of(shared, given)
    known["Rom"] = ClientModel("Rom", shared, SCALER, no_rows(SCHEMA))
    for town, own in asked.groupby("town"):
        expected = known[str(town)].predict(own[["x"]].to_numpy(), [0.5])
        mine = found[found["client"] == town]
        np.testing.assert_allclose(mine["mean"], expected.mean, rtol=1e-9)
        np.testing.assert_allclose(mine["std"], expected.std, rtol=1e-9)
        np.testing.assert_allclose(mine["q0.5"], expected.quantiles[0], rtol=1e-9)
    alone = tmp_path / "one.csv"
    assert called(*words[:-1], str(alone), "--client", "Ulm").code == 0
    expected = found[found["client"] == "Ulm"].reset_index(drop=True)
    pd.testing.assert_frame_equal(pd.read_csv(alone), expected)


def test_a_folder_has_a_client_in_each_file(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "p.csv"
    (tmp_path / "tables").mkdir()
    for town, own in table().drop(columns=["town", "price"]).groupby(table()["town"]):
        own.to_csv(tmp_path / "tables" / f"{town}.csv", index=False)
    data = str(tmp_path / "tables")
    ended = called("predict", "--run", str(run), "--data", data, "--out", str(out))
    assert "predicted by the prior alone: Genf, Rom." in ended.errors
    found = pd.read_csv(out)
    assert list(found["client"]) == [t for t in ("Bern", "Genf", "Rom", "Ulm") for _ in range(12)]
    assert list(found["row"]) == [*range(1, 13)] * 4
    lost = str(tmp_path / "tables" / "Ulm.csv")
    ended = called("predict", "--run", str(run), "--data", lost, "--out", str(out))
    assert_one_sentence(ended, "Ulm.csv has no column 'town'")


def test_personalize_makes_the_models_of_many_new_clients(
    run: Path, shared: Shared, tmp_path: Path
) -> None:
    whole, made, out = table(), tmp_path / "m.safetensors", tmp_path / "p.csv"
    whole["price"] = whole["price"].fillna(25)
    data = tmp_path / "t.csv"
    whole.to_csv(data, index=False)
    ended = called("personalize", "--run", str(run), "--data", str(data), "--out", str(made))
    assert "Models of 4 clients from 48 rows" in ended.output
    assert made.stat().st_mode & 0o777 == 0o600  # it holds rows
    models = load(made).models
    assert {model.name for model in models} == {*whole["town"]}
    for model in models:
        own = whole[whole["town"] == model.name]
        np.testing.assert_array_equal(model.samples.y, own["price"])
        np.testing.assert_array_equal(model.samples.x[:, 0], own["x"])
    # The file answers for all as the run does, and for one by its name.
    words = ("predict", "--data", str(data), "--out", str(out))
    assert called(*words, "--run", str(made)).code == 0
    every = pd.read_csv(out)
    assert len(every) == 48
    assert called(*words, "--model", str(made), "--client", "Genf").code == 0
    one = every[every["client"] == "Genf"].drop(columns="client").reset_index(drop=True)
    pd.testing.assert_frame_equal(pd.read_csv(out), one)


def test_what_cannot_be_predicted_is_said_in_one_sentence(
    run: Path, shared: Shared, tmp_path: Path
) -> None:
    data, other = tmp_path / "t.csv", tmp_path / "own.safetensors"
    rows("Genf", 8, 25).to_csv(data, index=False)
    words = ("predict", "--data", str(data), "--out", str(tmp_path / "p.csv"))
    assert_one_sentence(called(*words), "either --run RUN", "or --model M")
    assert_one_sentence(called(*words, "--run", str(run), "--model", str(run)), "either --run RUN")
    ended = called(*words, "--run", str(run))
    assert (ended.code, ended.output) == (2, "")
    assert "all their rows have a target; leave the target empty" in ended.errors
    save(other, replace(shared, scaler=None))
    data.write_text("town,x\nGenf,1\n")
    assert_one_sentence(called(*words, "--run", str(other)), "no units", "rows with a target")


def test_a_private_run_leaves_no_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "write_report", lambda folder: folder / "report.html")
    whole, data, out = (
        table().assign(price=lambda t: 20 + t["x"]),
        tmp_path / "t.csv",
        tmp_path / "p.csv",
    )
    whole.to_csv(data, index=False)
    (tmp_path / "own.toml").write_text(
        f"[data]\nname = 'tables'\nstandardize = 'none'\n[tables]\nsource = '{data}'\n"
        "target = 'price'\nclient = 'town'\nignore = ['more']\n[privacy]\nmode = 'laplace'\n"
        "epsilon = 1.0\n[train]\nrounds = 2\nparticles = 2\n[run]\nmethods = ['pacpfl']\n"
        "[prior]\nmean = 'linear'\nkernel = 'ard+linear'\n"
    )
    folder = tmp_path / "private"
    ended = called("fit", str(tmp_path / "own.toml"), "--out", str(folder))
    assert ended.code == 0, ended
    assert (folder / SHARED).is_file()
    assert not (folder / MODELS).exists()
    whole.loc[::2, "price"] = None
    whole.to_csv(data, index=False)
    ended = called("predict", "--run", str(folder), "--data", str(data), "--out", str(out))
    assert "personalised from their rows that have a target" in ended.errors
    assert list(pd.read_csv(out)["row"]) == [*range(1, 49, 2)]


@pytest.fixture(scope="module")
def small(shared: Shared, run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the commands about one client read."""
    folder = tmp_path_factory.mktemp("small")
    model_of(shared, rows("Genf", 12, 20)).save(folder / "genf.safetensors")
    pd.concat([rows("Ulm", 9, 10), rows("Bern", 9, 30)]).to_csv(folder / "two.csv", index=False)
    rows("Genf", 8, 20).to_csv(folder / "genf.csv", index=False)
    return folder


def test_small_things_wait_for_no_compiler(run: Path, small: Path) -> None:
    """What starts no training imports neither JAX nor what builds on it."""
    script = (
        "import sys; from pacpfl import cli\n"
        "for words in sys.argv[1:]:\n"
        "    sys.argv = ['pacpfl', *words.split()]\n"
        "    try: cli.main()\n    except SystemExit as end: assert not end.code, (words, end)\n"
        "    loaded = {'jax', 'equinox', 'optax', 'matplotlib'} & set(sys.modules)\n"
        "    assert not loaded, (words, loaded)\n"
    )
    lines = (
        "--version", "--help",
        f"personalize --run {run} --data genf.csv --out new.safetensors",
        "predict --model new.safetensors --data genf.csv --out p.csv",
        f"predict --run {run} --data two.csv --out q.csv",
        "update --model new.safetensors --data genf.csv",
        "evaluate --model genf.safetensors --data genf.csv",
        "init two.csv --out mine.toml --target price --client town", "check mine.toml",
    )  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", script, *lines],
        cwd=small, capture_output=True, text=True, timeout=patience(100),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
