"""One client's model: against textbook formulas, in the owner's units, and whole on disk or refused."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest
from refusals import refused
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from scipy.special import softmax
from scipy.stats import norm

from pacpfl.client import KIND, ClientModel, Predicted, Shared, load, load_model, load_shared, save
from pacpfl.config import Config, override
from pacpfl.data.prepare import Scaler
from pacpfl.data.tables.columns import Column, Schema
from pacpfl.files import save_arrays
from pacpfl.hyper import hyper_prior
from pacpfl.methods.registry import build_prior

SETTINGS = [
    "data.name=tables", "tables.source=-", "tables.target=price", "precision=float64",
    "prior.mean=linear", "prior.kernel=ard+linear", "personal.weights=evidence",
    "train.temperature=0.7",
]  # fmt: skip
SCHEMA = Schema((Column("area", "number"), Column("kind", "category", ("flat", "house"))), "price")
SCALER = Scaler(np.array([80.0, 0, 0]), np.array([30.0, 1, 1]), 250.0, 40.0)
LEVELS = (0.05, 0.95)  # as many everywhere: one program
CLASSES = Schema((Column("a", "number"), Column("b", "number")), "kind", ("no", "perhaps", "yes"))


def rows(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    house = random.integers(0, 2, count)
    area = random.uniform(30, 150, count)
    x = np.stack([area, 1.0 - house, house], axis=1)
    return x, 150 + area + 20 * house + random.normal(0, 8, count)


@pytest.fixture(scope="module")
def shared() -> Shared:
    config = override(Config(), SETTINGS)
    size = build_prior(config, SCHEMA.form).size
    particles = 0.3 * np.random.default_rng(5).normal(size=(3, size))
    return Shared(config, SCHEMA, SCALER, particles)


@pytest.fixture(scope="module")
def model(shared: Shared) -> ClientModel:
    return ClientModel.condition(shared, "bern", *rows(11, 0))


@pytest.fixture(scope="module")
def classifier() -> ClientModel:
    config = override(Config(), ["data.name=tables", "tables.source=-", "tables.target=kind",
                                 "network.widths=[4]", "posterior.networks=2"])  # fmt: skip
    prior = build_prior(config, CLASSES.form)
    particles = np.asarray(prior.start(jax.random.key(1), hyper_prior(prior.blocks, 1.0), 2))
    shared = Shared(config, CLASSES, None, particles, np.array([1, 2], np.uint32))
    random = np.random.default_rng(0)
    x = random.normal(size=(9, 2))
    return ClientModel.condition(shared, "c", x, (x[:, 0] > 0) * 2.0)


def same(one: Predicted, other: Predicted, rtol: float = 0.0) -> None:
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol)


def test_predictions_are_the_mixture_of_textbook_posteriors(shared, model, oracle):
    (x, y), (at, _) = rows(11, 0), rows(5, 1)
    prior = build_prior(shared.config, SCHEMA.form)
    z = (y - SCALER.y_mean) / SCALER.y_std
    u, v = ((part - SCALER.x_mean) / SCALER.x_std for part in (x, at))
    each = [oracle.predict(prior, particle, u, z, v, 0.7) for particle in shared.particles]
    weights = softmax([oracle.log_evidence(prior, p, u, z, 0.7) for p in shared.particles])
    means = np.array([m for m, _ in each]) * SCALER.y_std + SCALER.y_mean
    stds = np.array([s for _, s in each]) * SCALER.y_std
    mean = weights @ means
    variance = weights @ (stds**2 + (means - mean) ** 2)
    found = model.predict(at, LEVELS)
    np.testing.assert_allclose(found.mean, mean, rtol=1e-9)
    np.testing.assert_allclose(found.std, np.sqrt(variance), rtol=1e-9)
    for level, quantile in zip(LEVELS, found.quantiles, strict=True):
        below = weights @ norm.cdf((quantile - means) / stds)
        np.testing.assert_allclose(below, level, atol=1e-9)


@pytest.fixture(scope="module")
def warped() -> ClientModel:
    config = override(Config(), [*SETTINGS, "prior.warp=sinh-arcsinh", "prior.members=2"])
    size = build_prior(config, SCHEMA.form).size
    particles = 0.3 * np.random.default_rng(6).normal(size=(3, size))
    return ClientModel.condition(Shared(config, SCHEMA, SCALER, particles), "bern", *rows(11, 0))


def test_a_warped_model_goes_to_disk_and_on_from_there(warped: ClientModel, tmp_path: Path) -> None:
    path = tmp_path / "warped.safetensors"
    warped.save(path)
    back, (at, y), more = load_model(path), rows(9, 2), rows(6, 7)
    same(back.predict(at, LEVELS), warped.predict(at, LEVELS))
    assert back.measure(at, y) == warped.measure(at, y)
    both = (np.concatenate(pair) for pair in zip(rows(11, 0), more, strict=True))
    shared = Shared(warped.shared.config, SCHEMA, SCALER, np.asarray(warped.personal.particles))
    anew = ClientModel.condition(shared, "bern", *both).predict(at, LEVELS)
    same(back.extend(*more).predict(at, LEVELS), anew, rtol=1e-8)


def test_the_evaluation_of_a_warped_model_is_in_the_owners_units(warped: ClientModel) -> None:
    (at, y), (x, z) = rows(9, 2), rows(11, 0)
    found = warped.measure(at, y)
    shared = replace(warped.shared, scaler=replace(SCALER, y_mean=0.25, y_std=0.04))
    in_thousands = ClientModel.condition(shared, "bern", x, z / 1000).measure(at, y / 1000)
    assert in_thousands["nll"] == pytest.approx(found["nll"] - np.log(1000), rel=1e-9)
    for name in ("rsmse", "ce", "coverage_90"):
        assert in_thousands[name] == pytest.approx(found[name], rel=1e-9)


def test_many_rows_in_blocks_are_those_one_by_one(model: ClientModel) -> None:
    x, _ = rows(700, 3)  # more than one block, the last one not full
    whole, alone = model.predict(x, LEVELS), model.predict(x[[0, 130, 699]], LEVELS)
    for a, b in zip(whole, alone, strict=True):
        np.testing.assert_allclose(a[..., [0, 130, 699]], b, rtol=1e-10)


def test_an_update_ends_where_a_new_start_does(shared: Shared, model: ClientModel) -> None:
    x, y = rows(11, 0)
    more_x, more_y = rows(6, 7)
    once = model.extend(more_x[:2], more_y[:2]).extend(more_x[2:], more_y[2:])
    both = np.concatenate([x, more_x]), np.concatenate([y, more_y])
    anew = ClientModel.condition(shared, "bern", *both)
    assert len(once.samples) == len(anew.samples) == 17
    at, _ = rows(9, 2)
    same(once.predict(at, LEVELS), anew.predict(at, LEVELS), rtol=1e-8)
    np.testing.assert_allclose(once.personal.weights, anew.personal.weights, rtol=1e-8)
    assert not np.allclose(once.predict(at, LEVELS).mean, model.predict(at, LEVELS).mean)


@pytest.mark.parametrize("kind", ["model", "warped"])
def test_evaluation_is_in_the_owners_units(kind: str, request: pytest.FixtureRequest) -> None:
    model, (x, y) = request.getfixturevalue(kind), rows(40, 4)
    found, said = model.measure(x, y), model.predict(x, LEVELS)
    assert found["rmse"] == pytest.approx(np.sqrt(np.mean((y - said.mean) ** 2)))
    assert found["rsmse"] == pytest.approx(found["rmse"] / y.std())
    low, high = said.quantiles
    assert found["coverage_90"] == pytest.approx(np.mean((low <= y) & (y <= high)))
    assert found["width_90"] == pytest.approx(np.mean(high - low))
    assert 2 < found["nll"] < 7


def test_a_file_gives_back_the_same_model(model: ClientModel, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "m.safetensors"
    model.save(path)
    again = load_model(path)
    at, _ = rows(5, 1)
    same(again.predict(at, LEVELS), model.predict(at, LEVELS))
    assert (again.name, again.shared.schema, len(again.samples)) == ("bern", SCHEMA, 11)
    more = rows(2, 8)
    same(again.extend(*more).predict(at, LEVELS), model.extend(*more).predict(at, LEVELS))
    assert load_file(path)["x"].shape == (11, 3)  # once for all three particles


def test_networks_predict_probabilities_and_survive(classifier, tmp_path):
    x = np.random.default_rng(3).normal(size=(6, 2))
    found = classifier.probabilities(x)
    assert found.shape == (6, 3)
    np.testing.assert_allclose(found.sum(1), 1)
    assert (found >= 0).all()
    path = tmp_path / "m.safetensors"
    classifier.save(path)
    again = load_model(path)
    np.testing.assert_array_equal(found, again.probabilities(x))
    measured = classifier.measure(x, found.argmax(1).astype(float))
    assert measured["accuracy"] == 1.0
    larger = again.extend(x, np.zeros(6))
    assert len(larger.samples) == 15
    assert larger.probabilities(x)[:, 0].mean() > found[:, 0].mean()
    refused(lambda: classifier.predict(x), "ask for its probabilities")
    refused(lambda: classifier.extend(x, np.full(6, 3.0)), "of 'kind' must be 0 to 2")


def test_what_everybody_gets_holds_nobodys_rows(shared: Shared, tmp_path: Path) -> None:
    path = tmp_path / "prior.safetensors"
    secret = replace(shared.config, tables=replace(shared.config.tables, source="/home/anna/x"))
    save(path, replace(shared, config=secret))
    assert b"anna" not in path.read_bytes()
    again = load_shared(path)
    np.testing.assert_array_equal(again.particles, shared.particles)
    assert again.schema == SCHEMA
    assert again.scaler is not None
    np.testing.assert_array_equal(again.scaler.x_std, SCALER.x_std)
    assert load_file(path)["x"].shape == (0, 3)
    refused(lambda: load_model(path), "no client's model")
    model = ClientModel.condition(again, "bern", *rows(11, 0))
    assert model.predict(rows(2, 1)[0], LEVELS).mean.shape == (2,)


def test_damaged_files_end_in_one_sentence(model: ClientModel, tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    model.save(path)
    whole = path.read_bytes()
    arrays = load_file(path)
    with safe_open(path, framework="numpy") as file:
        about = file.metadata()

    path.write_bytes(whole[: len(whole) // 2])  # of any other damage `test_files` tells
    refused(lambda: load_model(path), "m.safetensors is damaged")
    for said, words in (
        (about | {"clients": '["eve"]'}, "is damaged"),
        (about | {"format": "pacpfl-model-9"}, "not the present one, pacpfl-model-2"),
        ({"format": "pacpfl-prior-1"}, "is no file of the kind pacpfl-model"),
    ):
        save_file(arrays, path, said)
        refused(lambda: load_model(path), words)
    # What fits together but makes no sense has a digest of its own: whoever wrote it knew how.
    for name in ("digest", "format"):
        del about[name]
    for texts, wrong in (
        *((about | {"schema": "{}"}, {}), (about | {"common_units": "[]"}, {})),
        *((about | {"config": "what = is this"}, {}), (about | {"clients": "7"}, {})),
        ({name: text for name, text in about.items() if name != "schema"}, {}),
        (about, {"particles": np.zeros((3, 2))}),
        *((about, {"lengths": np.array([12])}), (about, {"x_mean": np.zeros((2, 4))})),
    ):
        save_arrays(path, KIND, arrays | wrong, texts)
        refused(lambda: load_model(path), "is damaged")
    path.unlink()
    refused(lambda: load_model(path), "There is no file")


def test_a_file_of_several_clients_asks_for_one(model: ClientModel, tmp_path: Path) -> None:
    path = tmp_path / "several.safetensors"
    other = ClientModel.condition(model.shared, 7, *rows(5, 9))
    save(path, model.shared, [model, other], {"more": "words"}, {"numbers": np.arange(3)})
    saved = load(path)
    assert (saved.about, [m.name for m in saved.models]) == ({"more": "words"}, ["bern", 7])
    np.testing.assert_array_equal(saved.arrays["numbers"], np.arange(3))
    at, _ = rows(3, 1)
    np.testing.assert_array_equal(load_model(path, "7").predict(at).mean, other.predict(at).mean)
    for asked in (None, "eve"):
        words = r"of 2 clients \(bern, 7\); choose one with --client"
        refused(partial(load_model, path, asked), words)


def test_numbers_that_are_none_are_refused(shared: Shared, model: ClientModel) -> None:
    x, y = rows(4, 0)
    for bad in (np.nan, np.inf):
        broken, none = x.copy(), y.copy()
        broken[2, 0] = none[1] = bad
        refused(partial(model.predict, broken), f"Row 3 has {bad} for 'area'")
        condition = partial(ClientModel.condition, shared, "a", x)
        refused(partial(condition, none), "as many finite values of 'price'")
    refused(lambda: model.predict(x[:, :2]), "do not fit the model")
    refused(lambda: model.predict(x[:0]), "do not fit the model")
