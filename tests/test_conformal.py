"""What intervals, sets and alarms promise holds in simulated worlds where the model is wrong."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from commands import assert_one_sentence, called

from pacpfl import PACPFLRegressor, conformal, watch
from pacpfl.client import ClientModel, Shared, load_model
from pacpfl.config import Config, override
from pacpfl.data.prepare import Scaler
from pacpfl.data.tables.columns import Column, Schema
from pacpfl.errors import InputError
from pacpfl.methods.registry import build_prior
from pacpfl.types import Samples

SCHEMA = Schema((Column("x", "number"),), "y")


@pytest.fixture(scope="module")
def shared() -> Shared:
    made = ["data.name=tables", "tables.source=-", "tables.target=y", "precision=float64"]
    config = override(Config(), [*made, "prior.mean=linear", "prior.kernel=ard"])
    size = build_prior(config, SCHEMA.form).size
    units = Scaler(np.zeros(1), np.ones(1), 0.0, 1.0)
    return Shared(config, SCHEMA, units, np.full((1, size), -0.5))


def client(shared: Shared, random: np.random.Generator, count: int, scale: float) -> ClientModel:
    return ClientModel.condition(shared, "a", *world(random, count, scale))


def world(random: np.random.Generator, count: int, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """The model's noise is 0.47; errors here have heavy tails and any scale."""
    x = random.uniform(-2, 2, (count, 1))
    return x, np.sin(2 * x[:, 0]) + scale * random.standard_t(3, count)


@pytest.mark.parametrize(("count", "scale", "repeats"), [(10, 2.0, 60), (40, 0.05, 12)])
def test_intervals_of_a_wrong_model_cover(
    shared: Shared, count: int, scale: float, repeats: int
) -> None:
    """A model too sure of itself by four times, with jackknife+, and one too modest, with CV+."""
    random, inside, own = np.random.default_rng(0), [], []
    for _ in range(repeats):
        model = client(shared, random, count, scale)
        x, y = world(random, 60, scale)
        low, high = conformal.intervals(model, x, 0.9)
        inside.append(np.mean((low <= y) & (y <= high)))
        quantiles = model.predict(x, (0.05, 0.95)).quantiles
        own.append(np.mean((quantiles[0] <= y) & (y <= quantiles[1])))
    assert 0.87 < np.mean(inside) < 0.96
    assert abs(np.mean(own) - 0.9) > 0.08


def test_left_out_rows_are_those_of_refits(shared: Shared) -> None:
    """Jackknife+ by its definition, with a reach of each row's own."""
    random = np.random.default_rng(1)
    model, at = client(shared, random, 12, 0.5), np.array([[0.3], [1.5]])
    (x, y), lower, upper = (model.samples.x, model.samples.y), [], []
    for row in range(12):
        out = np.arange(12) == row
        rest = ClientModel.condition(model.shared, "rest", x[~out], y[~out])
        spread = rest.predict(np.concatenate([x[out], at]), conformal.SPREAD).quantiles
        error = abs(y[row] - spread[1, 0]) / (spread[2, 0] - spread[1, 0])
        lower.append(spread[1, 1:] - error * (spread[1, 1:] - spread[0, 1:]))
        upper.append(spread[1, 1:] + error * (spread[2, 1:] - spread[1, 1:]))
    low, high = conformal.intervals(model, at, 0.75)  # of 12 ends, three may lie beyond
    np.testing.assert_allclose(low, np.sort(lower, axis=0)[2], atol=1e-3)
    np.testing.assert_allclose(high, np.sort(upper, axis=0)[-3], atol=1e-3)


def test_few_rows_are_said_to_be_too_few(shared: Shared) -> None:
    model = client(shared, np.random.default_rng(0), 8, 1.0)
    with pytest.raises(InputError, match="needs 9 of them, and client 'a' has 8 rows"):
        conformal.intervals(model, np.zeros((1, 1)), 0.9)


def test_others_who_did_not_train_say_how_far_a_client_with_few_rows_must_reach(
    shared: Shared,
) -> None:
    """Clients differ in their noise, and each new one has three rows: nine in ten on average."""
    random, inside = np.random.default_rng(2), []

    def draw() -> tuple[ClientModel, float]:
        scale = float(random.choice([0.2, 1.0]))
        return client(shared, random, 4, scale), scale

    for _ in range(10):
        reach = conformal.pooled_reach([draw()[0] for _ in range(19)], 3, 0.9)
        for _ in range(8):
            new, scale = draw()
            few = Samples(new.samples.x[:3], new.samples.y[:3])
            x, y = world(random, 40, scale)
            model = ClientModel.condition(shared, "new", few.x, few.y)
            low, high = conformal.reaching(model, x, reach)
            inside.append(np.mean((low <= y) & (y <= high)))
    assert 0.86 < np.mean(inside) < 0.97
    with pytest.raises(InputError, match="calibration clients"):
        conformal.pooled_reach([draw()[0] for _ in range(5)], 3, 0.9)


def test_sets_of_classes_cover_though_the_probabilities_are_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    random = np.random.default_rng(3)
    monkeypatch.setattr(conformal, "_without", lambda model, out: model)

    def probabilities(x: np.ndarray) -> np.ndarray:
        sharp = np.exp(6 * np.stack([x[:, 0], -x[:, 0], 0 * x[:, 0]], axis=1))  # sure of itself
        return np.asarray(sharp / sharp.sum(1, keepdims=True))

    def draw(count: int) -> tuple[np.ndarray, np.ndarray]:
        x = random.normal(size=(count, 1))
        noisy = np.stack([x[:, 0], -x[:, 0], 0 * x[:, 0]], axis=1) + random.gumbel(size=(count, 3))
        return x, noisy.argmax(1)

    shared = SimpleNamespace(schema=SimpleNamespace(classes=("a", "b", "c")))
    inside, sizes = [], []
    for _ in range(200):
        samples = Samples(*draw(30))
        model = SimpleNamespace(
            name="c", samples=samples, shared=shared, probabilities=probabilities
        )
        found = conformal.coverage(model, *draw(100), 0.8)  # type: ignore[arg-type]
        inside.append(found["set_coverage"])
        sizes.append(found["set_size"])
    assert 0.79 < np.mean(inside) < 0.87 and np.mean(sizes) < 2.7


def test_alarms_are_rare_where_nothing_changes_and_quick_where_something_does() -> None:
    """Also where the PITs are not uniform, because the model was wrong from the start."""
    random = np.random.default_rng(0)
    false, quick, late = [], [], []
    for count in np.tile([8, 40, 150], 60):
        known, later = random.random(count) ** 2, random.random(300) ** 2
        false.append(watch.first_alarm(known, later) is not None)
    for _ in range(60):
        known, low = random.random(100) ** 2, random.random(60) ** 6
        quick.append(watch.first_alarm(known, low) is not None)
        drift = np.concatenate([random.random(200) ** 2, low])
        late.append(watch.first_alarm(known, drift) is not None)
    assert np.mean(false) <= 0.01 + 0.01
    assert np.mean(quick) > 0.9 and np.mean(late) > 0.8


def test_evidence_is_a_fair_bet() -> None:
    random = np.random.default_rng(1)
    owned = [watch.evidence(random.random(20), random.random(4))[-1] for _ in range(4000)]
    assert np.mean(owned) == pytest.approx(1, abs=4 * np.std(owned) / 60)


def test_rows_beyond_the_known_ones_are_outside() -> None:
    random = np.random.default_rng(0)
    known, same = random.normal(size=(150, 6)), random.normal(size=(400, 6))
    assert watch.outside(known, same).mean() < 0.02
    assert watch.outside(known, same + 3).mean() > 0.95
    assert watch.outside(known[:0], np.array([[0.0], [9.0]])).tolist() == [False, True]


def test_the_commands_predict_follow_and_watch(shared: Shared, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    model, path = client(shared, random, 40, 0.4), tmp_path / "m.safetensors"
    model.save(path)

    def table(name: str, shift: float, offset: float = 0.0) -> str:
        x, y = world(random, 60, 0.4)
        pd.DataFrame({"x": x[:, 0] + offset, "y": y + shift}).to_csv(tmp_path / name, index=False)
        return str(tmp_path / name)

    same, moved = table("same.csv", 0), table("moved.csv", 2.0)
    out, given = str(tmp_path / "p.csv"), ("--model", str(path), "--data")
    assert called("predict", *given, same, "--out", out, "--interval", "conformal").code == 0
    found = pd.read_csv(out)
    low, high = conformal.intervals(model, pd.read_csv(same)[["x"]].to_numpy(), 0.9)
    np.testing.assert_allclose(found[["low", "high"]], np.stack([low, high], axis=1))
    far = table("far.csv", 0, offset=30)
    assert called("predict", *given, far, "--out", out).code == 0
    assert pd.read_csv(out)["outside"].all() and not found["outside"].any()
    quiet, alarmed = (called("watch", *given, data) for data in (same, moved))
    assert quiet.code == 0 and "No alarm" in quiet.output
    assert alarmed.code == 3 and "has changed: by row" in alarmed.errors
    assert called("update", *given, moved, "--online").code == 0
    assert len(load_model(path).window) == 60 and len(load_model(path).samples) == 40
    words = called("evaluate", *given, moved, "--interval", "conformal")
    assert "window_coverage_90" in words.output and "interval_coverage" in words.output
    assert_one_sentence(called("predict", *given, same, "--out", out, "--interval", "wide"))


def test_estimators_ask_each_clients_own_rows() -> None:
    random = np.random.default_rng(0)
    x, y = world(random, 60, 0.4)
    groups = np.repeat(["a", "b"], 30)
    model = PACPFLRegressor(rounds=3, mean="linear", kernel="ard", random_state=0).fit(x, y, groups)
    found = model.predict_interval(x[20:40], 0.8, groups[20:40], interval="conformal")
    alone = conformal.intervals(model._model("b"), x[30:40], 0.8).T
    np.testing.assert_allclose(found[10:], alone, rtol=1e-6)
    plain = model.predict_interval(x[:5], 0.8, groups[:5])
    np.testing.assert_allclose(plain, model.predict_quantiles(x[:5], (0.1, 0.9), groups[:5]))
    shifted = model.observe(x[30:], y[30:] + 3, "b").predict_interval(x[30:], 0.8, groups[30:])
    assert (shifted[:, 1] > model._model("b").predict(x[30:]).mean).all()
    with pytest.raises(InputError, match="must be"):
        model.predict_interval(x, 0.8, groups, interval="wide")
