"""Tuning on people's own tables: read as a run would read them, scaled by what each fold trains on."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import accuracy_score, log_loss

from pacpfl import config as configuration
from pacpfl.config import Config, override
from pacpfl.data.tables.read import load_own
from pacpfl.engine.evaluate import Evaluation
from pacpfl.errors import InputError
from pacpfl.tune import crossval, spaces
from pacpfl.tune import search as tune
from pacpfl.tune.crossval import ClassScore, Score, parts

CLIENTS = 3


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """Levels far apart and a common slope, in one table; the global scale must see all of them."""
    random = np.random.default_rng(0)
    x = random.normal(size=60)
    who = np.arange(60) % CLIENTS
    y = 50 + 10 * who + 3 * x + random.normal(size=60)
    frame = pd.DataFrame({"who": who, "x": x, "y": y}).round(3)
    frame.assign(label=np.where(y > 60, "high", "low")).to_csv(tmp_path / "t.csv", index=False)
    return override(
        Config(),
        ["data.name=tables", f"tables.source={tmp_path / 't.csv'}", "tables.target=y",
         "tables.client=who", 'tables.columns=["x"]', "standardize=global"],
    )  # fmt: skip


def expected(config: Config, folds: int) -> float:
    """Ridge regression by its normal equations, penalty by leave-one-out, scaled fold by fold."""
    clients = load_own(config.tables, config.seed).federation.existing
    cut = [parts(client, folds, None, number) for number, client in enumerate(clients)]
    errors: list[list[np.ndarray]] = [[] for _ in clients]
    for fold in range(folds):
        owned = list(zip(clients, [part[fold] for part in cut], errors, strict=True))
        xs = np.concatenate([np.delete(client.train.x, out, 0) for client, out, _ in owned])
        ys = np.concatenate([np.delete(client.train.y, out) for client, out, _ in owned])
        for client, out, own in owned:
            x = (client.train.x[:, 0] - xs.mean()) / xs.std()
            y = (client.train.y - ys.mean()) / ys.std()
            slope, level = np.polyfit(np.delete(x, out), np.delete(y, out), 1)
            own.append((y[out] - slope * x[out] - level) * ys.std())
    spreads = [np.std(client.train.y) for client in clients]
    each = [np.sqrt(np.mean(np.concatenate(own) ** 2)) for own in errors]
    return float(np.mean(np.array(each) / spreads))


def test_a_trial_reads_the_tables_and_scales_each_fold(config: Config) -> None:
    task = tune.Task(0, "ridge", config, 4, None)
    score = tune.measure(task, lambda: False)
    # A line without a penalty: ridge's own choice of penalty is small where 12 rows show a clear line.
    assert score.rsmse == pytest.approx(expected(config, 4), rel=0.05)
    per_client = replace(config, data=replace(config.data, standardize="client"))
    assert tune.measure(task._replace(config=per_client), lambda: False).rsmse < 0.5


def test_a_search_on_tables_gives_their_configuration_back(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Config] = []

    def measure(task: tune.Task, stop: Callable[[], bool]) -> Score:
        asked.append(task.config)
        return Score(1 / len(asked), 0.1, 1.0)

    monkeypatch.setattr(tune, "measure", measure)
    search = tune.Search("pacpfl", config, spaces.SPACES["pacpfl"], 3, folds=2)
    found = tune.tune(search, tmp_path / "journal")
    assert found is not None
    assert found.config == asked[-1]
    text = tune.tuned_toml(search, found, "pacpfl tune")
    again = configuration.load(text, "tuned.toml")
    assert (again.tables, again.data, again.train) == (
        config.tables, config.data, found.config.train
    )  # fmt: skip
    # Tables that have changed make another search: their scores cannot be compared.
    os.utime(config.tables.source, ns=(0, 0))
    with pytest.raises(InputError, match="with other data"):
        tune.tune(search, tmp_path / "journal")


def test_the_limit_of_tau_knows_the_tables(config: Config) -> None:
    """1 / (1 + n m) with the clients and training rows that there are: 3 with 16 each."""
    assert spaces.tau_limit(config) == pytest.approx(1 / (1 + 3 * 16))
    half = replace(config, train=replace(config.train, temperature=0.5))
    assert spaces.tau_limit(half) == pytest.approx(1 / (1 + 3 * 8))


@pytest.fixture
def classes(config: Config) -> Config:
    small = ["train.rounds=3", "train.particles=1", "network.widths=[2]", "posterior.steps=1"]
    return override(config, ["tables.target=label", "tables.task=classes", *small])


def test_a_trial_on_classes_asks_for_every_held_out_row_once(
    classes: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A method that answers each client's share of the classes where it trained, one added to both."""

    def shares(labels: np.ndarray) -> np.ndarray:
        counts = np.bincount(labels.astype(int), minlength=2) + 1
        return counts / counts.sum()

    def run_method(method: str, config: Config, fold: Any, *rest: Any) -> Any:
        logs = [np.log([shares(c.train.y)] * len(c.test.y)) for c in fold.existing]
        found = Evaluation([], np.zeros(0), log_probabilities=logs)
        return SimpleNamespace(groups={"existing": found})

    monkeypatch.setattr(crossval, "run_method", run_method)
    score = tune.measure(tune.Task(0, "fedavg", classes, 4, None), lambda: False)
    losses, errors, all_said, all_labels = [], [], [], []
    for number, client in enumerate(load_own(classes.tables, classes.seed).federation.existing):
        labels, said = client.train.y.astype(int), np.zeros((len(client.train), 2))
        for part in parts(client, 4, None, number):
            said[part] = shares(np.delete(labels, part))
        losses.append(log_loss(labels, said, labels=[0, 1]))
        errors.append(1 - accuracy_score(labels, said.argmax(1)))
        all_said.append(said)
        all_labels.append(labels)
    assert isinstance(score, ClassScore)
    assert score.nll == pytest.approx(np.mean(losses))
    assert score.error == pytest.approx(np.mean(errors))
    sure, right = np.concatenate(all_said).max(1), np.concatenate(all_said).argmax(1)
    right = right == np.concatenate(all_labels)
    bins = np.minimum((sure * 20).astype(int), 19)
    gaps = [abs(sure[bins == b].sum() - right[bins == b].sum()) for b in range(20)]
    assert score.ce == pytest.approx(sum(gaps) / len(sure))


def test_a_search_on_classes(classes: Config, tmp_path: Path) -> None:
    space = {"train.tau": spaces.CLASS_SPACES["pacpfl"]["train.tau"]}
    search = tune.Search("pacpfl", classes, space, 2, folds=2, used_folds=1)
    found = tune.tune(search, tmp_path / "journal")
    assert found is not None
    assert isinstance(found.score, ClassScore)
    assert 0 < found.score.nll < 5
    text = tune.tuned_toml(search, found, "pacpfl tune")
    assert f"NLL {found.score.nll:.4f}, share of errors {found.score.error:.4f}" in text
    assert configuration.load(text, "tuned.toml").train.tau == found.config.train.tau
    other = replace(search, config=override(classes, ["bnn.initial_std=0.2"]))
    with pytest.raises(InputError, match="with other data, settings"):
        tune.tune(other, tmp_path / "journal")


@pytest.mark.parametrize("row", ["ridge", "vanilla", "pfedgp"])
def test_methods_that_are_not_tuned_on_classes(classes: Config, tmp_path: Path, row: str) -> None:
    with pytest.raises(InputError, match=r"not tuned on classes.*: pacpfl, mtl, maml, fedavg"):
        tune.tune(tune.Search(row, classes, {}, 2), tmp_path / "journal")


def test_what_a_target_is_said_or_seen(config: Config, classes: Config) -> None:
    assert spaces.has_classes(classes)
    assert not spaces.has_classes(config)
    assert spaces.has_classes(override(classes, ["tables.task=auto"]))
    assert not spaces.has_classes(override(classes, ["tables.task=regression"]))
    assert spaces.has_classes(override(Config(), ["data.name=digits"]))
    for row, space in spaces.CLASS_SPACES.items():
        assert space, row
