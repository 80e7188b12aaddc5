"""What suits a federation: what `pacpfl init` writes is what "auto" means in Python."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from pacpfl import PACPFLClassifier, PACPFLRegressor
from pacpfl import race as racing
from pacpfl.cli import training
from pacpfl.cli.tables import Request, propose, reasons
from pacpfl.client import ClientModel, shared_of_run
from pacpfl.config import Config
from pacpfl.data.tables.read import load_own
from pacpfl.defaults import COMPILING, defaults, expected_seconds, scaling
from pacpfl.defaults import racing as racing_clients
from pacpfl.run import Watcher, run
from pacpfl.types import Form, Samples

FEW_ROUNDS = {"rounds": 3}


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pacpfl.defaults.usable_cores", lambda: 2)


def form(clients: int, rows: int, features: int, classes: int | None = None) -> Form:
    names = tuple(f"x{number}" for number in range(features))
    return Form(names, "y", classes, None, clients, (rows,) * clients)


@pytest.mark.parametrize(
    ("clients", "rows", "features", "mean", "kernel", "tau"),
    [
        (5, 30, 1, "linear", "ard+linear", 1.0),
        (9, 500, 8, "linear", "ard+linear", 1.0),
        (24, 10, 1, "linear+mlp", "deep", 1.0),
        (24, 10, 5, "linear", "ard+linear", 0.3),
        (24, 150, 5, "linear+mlp", "ard+linear", 0.1),
    ],
)
def test_the_prior_suits_clients_rows_and_features(clients, rows, features, mean, kernel, tau):
    config = defaults(form(clients, rows, features))
    assert (config.prior.mean, config.prior.kernel, config.train.tau) == (mean, kernel, tau)


def test_few_classes_and_features_are_logistic_unless_a_network_is_asked_for() -> None:
    few, many = form(10, 20, 3, classes=2), form(10, 20, 40, classes=2)
    assert defaults(few).network.widths == () and defaults(few).bnn.objective == "laplace"
    for networks in (defaults(many), defaults(few, given=["bnn.draws"])):
        assert len(networks.network.widths) == 2 and networks.bnn.objective == "evidence"
    assert defaults(few, given=["train.tau"]).network.widths == ()


@pytest.mark.parametrize(
    ("clients", "rows", "racers"), [(10, 5, 10), (500, 5, 96), (500, 20, 32), (500, 9000, 20)]
)
def test_as_many_clients_race_as_their_rows_take(clients: int, rows: int, racers: int) -> None:
    assert racing_clients(clients, rows) == racers


def test_rounds_of_large_clients_see_a_part_of_their_rows() -> None:
    assert defaults(form(4, 400, 3)).train.batch is None
    assert defaults(form(4, 401, 3)).train.batch == 256
    assert defaults(form(30, 300, 3, classes=2)).train.batch == 256
    assert defaults(form(30, 300, 3, classes=2)).train.clients_per_round == 20


def test_a_model_for_each_client_alone_is_fitted_where_that_is_quick() -> None:
    """24 clients with 150 rows: 500 steps from 4 starts at 193 microseconds each are 9 s."""
    sizes = form(24, 150, 15)
    config = defaults(sizes)
    assert config.run.methods == ("pacpfl", "ridge", "vanilla")
    assert not any("left out of run.methods" in sentence for sentence in reasons(config, sizes))
    without = replace(config, run=replace(config.run, methods=("pacpfl", "ridge")))
    alone = expected_seconds(config, sizes) - expected_seconds(without, sizes)
    assert alone == pytest.approx(24 * 500 * 4 * 193e-6)


def test_and_left_out_where_it_would_take_most_of_the_time() -> None:
    """One client with 1,567 rows is enough: all are padded to the longest."""
    sizes = form(29, 20, 8)._replace(sizes=(1567, *[20] * 28))
    config = defaults(sizes)
    assert config.run.methods == ("pacpfl", "ridge")
    assert sum("left out of run.methods" in words for words in reasons(config, sizes)) == 1
    assert COMPILING < expected_seconds(config, sizes) < 180
    asked = replace(config, run=replace(config.run, methods=("pacpfl", "vanilla")))
    assert expected_seconds(asked, sizes) > 1800


def targets(*values: float) -> Samples:
    return Samples(np.zeros((len(values), 1)), np.array(values))


def test_targets_that_lie_apart_are_scaled_by_each_clients_rows() -> None:
    """Two clients with variance 1 each, 2 a apart: a share a^2 / (1 + a^2) lies between them, but for
    what the levels of few rows differ by chance."""
    for apart, repeated, how in (
        (0.9, 50, "global"),
        (1.1, 50, "client"),
        (1.1, 5, "global"),
        (9, 5, "client"),
    ):
        parts = [targets(*[level - 1, level + 1] * repeated) for level in (-apart, apart)]
        found, share = scaling(parts)
        within = 2 * repeated / (2 * repeated - 1)
        assert (found, share) == (how, pytest.approx(1 - within / (1 + apart**2)))
    assert scaling([targets(2.0, 2.0, 2.0)]) == ("global", 0.0)


TABLES = {  # clients, rows, features, distance of their levels, classes
    "one feature": (10, 12, 1, 0.0, False),
    "several features, each client of its own level": (11, 12, 3, 9.0, False),
    "few clients, a column that never changes": (3, 12, 2, 0.0, False),
    "classes": (4, 15, 2, 0.0, True),
}


def table(name: str) -> pd.DataFrame:
    clients, rows, features, apart, classes = TABLES[name]
    random = np.random.default_rng(0)
    x = random.normal(3, 2, size=(clients * rows, features))
    own = np.repeat(np.arange(clients), rows)
    if "never changes" in name:
        x[own == 1, 1] = 5.0
    y = np.sin(x[:, 0]) + apart * own + random.normal(0, 0.3, len(x))
    frame = pd.DataFrame(x, columns=[f"x{number}" for number in range(features)])
    frame["y"] = np.where(y > np.median(y), "high", "low") if classes else y
    if "each client" in name:  # names in no order, and a column of true and false
        frame.insert(1, "yes", random.random(len(x)) < 0.4)
        own = (7 * own) % clients
    frame["client"] = [f"c{number:02d}" for number in own]
    return frame


def training_rows(config: Config) -> Any:
    """What an estimator is given: its class, rows, targets and groups; and the clients."""
    found = load_own(config.tables, config.seed)
    clients, schema = found.federation.existing, found.schema
    x = pd.DataFrame(np.concatenate([c.train.x for c in clients]), columns=schema.features)
    x = x.astype(dict.fromkeys(schema.unscaled, bool))
    y = np.concatenate([client.train.y for client in clients])
    groups = np.repeat([c.name for c in clients], [len(c.train) for c in clients])
    kind = PACPFLRegressor if schema.classes is None else PACPFLClassifier
    return kind, x, y, groups, clients


class Reached(Exception):
    """The training is reached."""


@pytest.mark.parametrize("name", TABLES)
def test_command_line_and_estimators_run_the_same_race(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both choose the same settings; what is given stays; and a run that goes on does not race again."""

    def reach(*arguments: Any, **more: Any) -> None:
        raise Reached

    path = tmp_path / "table.csv"
    table(name).to_csv(path, index=False)
    monkeypatch.setattr(racing, "LEGS", {25: 2, 50: 1})
    monkeypatch.setattr(racing, "CLASS_LEGS", {25: 2, 50: 1})
    config = propose(path).config
    assert training.race(Request(config, frozenset({"train.rounds"})), tmp_path, Watcher()) == (
        config,
        {},
    )
    chosen, about = training.race(Request(config, frozenset({"train.tau"})), tmp_path, Watcher())
    assert chosen.train.tau == config.train.tau
    assert about["race"]["candidates"] == len(about["race"]["table"]) > 3
    kind, x, y, groups, _ = training_rows(config)
    monkeypatch.setattr(kind, "_train", reach)
    estimator = kind(random_state=0, tau=config.train.tau)
    with pytest.raises(Reached):
        estimator.fit(x, y, groups)
    for section in ("train", "prior", "network", "bnn", "posterior", "personal"):
        assert getattr(estimator.config_, section) == getattr(chosen, section)
    assert estimator.standardize_ == chosen.data.standardize
    monkeypatch.setattr(racing, "choose", reach)
    again, _ = training.race(Request(config, frozenset({"train.tau"})), tmp_path, Watcher())
    assert again == chosen
    with pytest.raises(Reached):  # other keys are given: another race
        training.race(Request(config, frozenset()), tmp_path, Watcher())


@pytest.mark.parametrize("name", TABLES)
def test_command_line_and_estimators_give_a_table_the_same_model(name: str, tmp_path: Path) -> None:
    """The same configuration, and from the same training rows the same model to the bit."""
    path, frame = tmp_path / "table.csv", table(name)
    frame.to_csv(path, index=False)
    config = propose(path).config
    quick = replace(config.train, **FEW_ROUNDS)
    config = replace(config, train=quick, run=replace(config.run, methods=("pacpfl",)))
    run(config, tmp_path / "run")
    shared = shared_of_run(tmp_path / "run")
    kind, x, y, groups, clients = training_rows(config)
    estimator = kind(random_state=0, **FEW_ROUNDS).fit(x, y, groups)

    for section in ("train", "prior", "network", "bnn", "posterior", "personal"):
        assert getattr(estimator.config_, section) == getattr(config, section)
    assert estimator.standardize_ == config.data.standardize
    np.testing.assert_array_equal(estimator.particles_, shared.particles)
    client = clients[1]
    model = ClientModel.condition(shared, client.name, client.train.x, client.train.y)
    at, names = x[:5], [client.name] * 5
    if kind is PACPFLClassifier:
        answers = estimator.predict_proba(at, names), model.probabilities(at.to_numpy(float))
    else:
        answers = estimator.predict(at, names), model.predict(at.to_numpy(float)).mean
    np.testing.assert_array_equal(*answers)
