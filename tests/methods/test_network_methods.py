"""What FedAvg, MTL and MAML share: loss, local training, averaging, predictions; and all three at work."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from compiling import compiled
from scipy import special, stats

from pacpfl.errors import InputError
from pacpfl.likelihoods import Categorical, Gaussian
from pacpfl.methods.base import Method
from pacpfl.methods.network import (
    FLOOR,
    MAML,
    MTL,
    FedAvg,
    LocalTraining,
    MAMLSettings,
    MTLSettings,
    NetworkModel,
    State,
    combine,
    descend,
    server_step,
)
from pacpfl.priors.networks import MLP
from pacpfl.types import Data, Prediction, Probabilities

pytestmark = pytest.mark.usefixtures("x64")

CLIENTS, SLOTS, FEATURES, CLASSES = 3, 12, 2, 3
LENGTHS = np.array([12, 7, 9])
KEY = jax.random.key(0)
REGRESSION = NetworkModel(MLP((FEATURES, 3, 1)), Gaussian(0.7))
CLASSIFICATION = NetworkModel(MLP((FEATURES, CLASSES)), Categorical(CLASSES))
LINEAR = NetworkModel(MLP((FEATURES, 1)), Gaussian(0.5))


def make_methods(model: NetworkModel) -> dict[str, Method]:
    local = LocalTraining(4, 0.3)
    return {
        "fedavg": FedAvg(model, local),
        "mtl": MTL(model, CLIENTS, local, MTLSettings(coupling=0.1, personal_steps=240)),
        "maml": MAML(
            model,
            MAMLSettings(inner_steps=2, inner_learning_rate=0.2, personal_steps=3),
            optimizer=optax.adam(0.1),
        ),
    }


METHODS = make_methods(CLASSIFICATION)


def make_clients(model: NetworkModel) -> Data:
    """Numbers, or three classes in three corners, far apart."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(CLIENTS, SLOTS, FEATURES))
    y = np.tanh(x.sum(2)) + 0.1 * rng.normal(size=(CLIENTS, SLOTS))
    if model is CLASSIFICATION:
        y = np.tile(np.arange(SLOTS) % CLASSES, (CLIENTS, 1)).astype(float)
        x = 0.4 * x + 3 * np.array([[1, 0], [-1, 1], [-1, -1]])[y.astype(int)]
    return Data(x, y, np.arange(SLOTS) < LENGTHS[:, None])


def one_of(data: Data, index: int = 1) -> Data:
    return jax.tree.map(lambda a: jnp.asarray(a[index]), data)


compiled_combine = compiled(combine)
compiled_step = compiled(
    lambda optimizer, state, *sent: server_step(optimizer, state, combine(*sent)), static_argnums=0
)


@pytest.mark.parametrize("model", [REGRESSION, CLASSIFICATION], ids=["numbers", "classes"])
def test_the_loss_is_the_mean_negative_log_density_of_the_samples(model: NetworkModel) -> None:
    data, count = one_of(make_clients(model)), LENGTHS[1]
    w = np.random.default_rng(1).normal(size=model.network.size)
    outputs = np.asarray(model.network(jnp.asarray(w), data.x[:count]))
    y = np.asarray(data.y[:count])
    if model is REGRESSION:
        densities = stats.norm.logpdf(y, outputs[:, 0], 0.7)
    else:
        densities = special.log_softmax(outputs, axis=1)[np.arange(count), y.astype(int)]
    found = compiled(model.loss)(w, data)
    assert float(found) == pytest.approx(-densities.mean(), rel=1e-12)


def test_predictions_of_numbers_have_the_spread_of_the_residuals() -> None:
    data = one_of(make_clients(REGRESSION))
    w = np.random.default_rng(1).normal(size=LINEAR.network.size)
    rows, y = np.c_[data.x, np.ones(SLOTS)], np.asarray(data.y)
    residual = (rows @ w - y)[: LENGTHS[1]]
    prediction = LINEAR.predictor(w, data)(data.x)
    assert isinstance(prediction, Prediction)
    np.testing.assert_array_equal(prediction.weights, [1.0])
    np.testing.assert_allclose(prediction.means, (rows @ w)[None], rtol=1e-12)
    expected = np.sqrt(np.sum(residual**2) / (LENGTHS[1] - 1))
    np.testing.assert_allclose(prediction.stds, np.full((1, SLOTS), expected), rtol=1e-12)


def test_the_spread_has_a_floor_and_one_sample_is_enough() -> None:
    data = one_of(make_clients(REGRESSION))
    w = np.random.default_rng(1).normal(size=LINEAR.network.size)
    by_heart = data._replace(y=jnp.asarray(np.c_[data.x, np.ones(SLOTS)] @ w))
    prediction = LINEAR.predictor(w, by_heart)(data.x[:2])
    np.testing.assert_allclose(prediction.stds, FLOOR * 0.5, rtol=1e-12)
    single = data._replace(mask=jnp.arange(SLOTS) == 0)
    prediction = LINEAR.predictor(w, single)(data.x[:1])
    expected = abs(float(prediction.means[0, 0] - data.y[0]))
    np.testing.assert_allclose(prediction.stds, expected, rtol=1e-12)


def test_predictions_of_classes_are_the_softmax() -> None:
    data = one_of(make_clients(CLASSIFICATION))
    w = np.random.default_rng(1).normal(size=CLASSIFICATION.network.size)
    model = CLASSIFICATION.predictor(w, data)
    assert len(jax.tree.leaves(model)) == 1, "no spread"
    prediction = model(data.x)
    assert isinstance(prediction, Probabilities)
    logits = np.asarray(data.x) @ w[:-CLASSES].reshape(FEATURES, CLASSES) + w[-CLASSES:]
    expected = special.log_softmax(logits, axis=1)
    np.testing.assert_allclose(prediction.log_probabilities, expected, rtol=1e-12)


def gradient_of(w: np.ndarray, rows: np.ndarray, y: np.ndarray) -> np.ndarray:
    return rows.T @ (rows @ w - y) / (len(y) * 0.5**2)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_local_training_is_the_named_optimizer(optimizer: str) -> None:
    """Five steps by the formulas, on a linear network."""
    data, count = one_of(make_clients(REGRESSION)), LENGTHS[1]
    rows, y = np.c_[data.x, np.ones(SLOTS)][:count], np.asarray(data.y)[:count]
    start = np.array([0.3, -0.2, 0.1])
    w, velocity, square = start, np.zeros(3), np.zeros(3)
    for step in range(1, 6):
        gradient = gradient_of(w, rows, y)
        if optimizer == "adam":
            velocity = 0.9 * velocity + 0.1 * gradient
            square = 0.999 * square + 0.001 * gradient**2
            scale = np.sqrt(square / (1 - 0.999**step)) + 1e-8
            w = w - 0.05 * velocity / (1 - 0.9**step) / scale
        else:
            velocity = (0.9 if optimizer == "momentum" else 0.0) * velocity + gradient
            w = w - 0.05 * velocity
    local = LocalTraining(5, 0.05, optimizer)
    train_locally = compiled(partial(descend, local, LINEAR.loss))
    found, first = train_locally(start, data, KEY)
    np.testing.assert_allclose(found, w, rtol=1e-10)
    assert float(first) == pytest.approx(float(LINEAR.loss(jnp.asarray(start), data)), rel=1e-12)


def test_mini_batches_are_drawn_anew_for_each_step() -> None:
    """With one sample per step, two steps end at one of m^2 places, and every place is reached."""
    data, count = one_of(make_clients(REGRESSION)), LENGTHS[1]
    rows, y = np.c_[data.x, np.ones(SLOTS)], np.asarray(data.y)
    start = np.array([0.3, -0.2, 0.1])

    def step(w: np.ndarray, i: int) -> np.ndarray:
        return w - 0.05 * gradient_of(w, rows[i : i + 1], y[i : i + 1])

    places = np.array([step(step(start, i), j) for i in range(count) for j in range(count)])
    local = LocalTraining(2, 0.05, batch=1)
    draw = compiled(
        jax.vmap(lambda key: descend(local, LINEAR.loss, jnp.asarray(start), data, key)[0])
    )
    found = np.asarray(draw(jax.random.split(jax.random.key(2), 600)))
    distance = np.abs(found[:, None] - places).max(2)
    assert distance.min(1).max() < 1e-12
    frequency = np.bincount(distance.argmin(1), minlength=count**2) / 600
    np.testing.assert_allclose(frequency, 1 / count**2, atol=0.03)


def test_the_mean_is_over_those_who_are_present_and_finite() -> None:
    values = np.random.default_rng(3).normal(size=(6, 4))
    weights, sizes = np.array([1.0, 2.0, 0.0, 1.0, 1.0, 3.0]), np.array([5.0, 2, 3, 4, np.inf, 1])
    spoiled = values.copy()
    spoiled[2], spoiled[3, 1] = np.nan, np.inf
    found = compiled_combine(spoiled, weights, sizes)
    used = [0, 1, 5]
    expected = np.average(values[used], axis=0, weights=(weights * sizes)[used])
    np.testing.assert_allclose(found.mean, expected, rtol=1e-12)
    assert (int(found.used), int(found.skipped)) == (3, 2), "client 2 is absent, not broken"
    nobody = compiled_combine(spoiled, np.zeros(6), sizes)
    np.testing.assert_array_equal(nobody.mean, 0)
    assert (int(nobody.used), int(nobody.skipped)) == (0, 0)
    losses = SimpleNamespace(value=jnp.array([1.0, 3.0, jnp.nan, jnp.inf]))
    curves = METHODS["mtl"].diagnostics((), losses, jnp.array([1.0, 3.0, 0.0, 1.0]))
    assert float(curves["loss"]) == pytest.approx(2.5)


def test_the_server_takes_no_step_without_clients_or_towards_infinity() -> None:
    optimizer, w = optax.adam(0.1), jnp.array([1.0, 2.0])
    state = State(w, optimizer.init(w), jnp.asarray(4, jnp.int32))
    state = compiled_step(optimizer, state, np.array([[1.0, -1.0], [np.nan, 0.0]]), np.ones(2))
    np.testing.assert_allclose(state.parameters, [0.9, 2.1], rtol=1e-6)
    assert int(state.skipped) == 5
    # Adam's momentum must not act.
    after = compiled_step(optimizer, state, np.ones((2, 2)), np.zeros(2))
    jax.tree.map(np.testing.assert_array_equal, after, state)
    sgd, huge = optax.sgd(10.0), np.full((2, 2), 4e307)
    stopped = compiled_step(sgd, state._replace(optimizer=sgd.init(w)), huge, np.ones(2))
    np.testing.assert_array_equal(stopped.parameters, state.parameters)
    assert int(stopped.skipped) == 7


def test_what_does_not_fit_is_named() -> None:
    with pytest.raises(InputError, match=r"'sdg' is not one of sgd, momentum, adam; did you mean"):
        LocalTraining(optimizer="sdg")
    wrong = NetworkModel(MLP((FEATURES, 4)), Categorical(CLASSES))
    for method in make_methods(wrong).values():
        with pytest.raises(InputError, match=r"has 4 outputs, but Categorical.* needs 3"):
            method.init(KEY, one_of(make_clients(CLASSIFICATION)))


@pytest.mark.parametrize("name", METHODS)
def test_classes_far_apart_are_all_recognised(name: str) -> None:
    """After sixty rounds as an engine plays them."""
    method, data, weights = METHODS[name], make_clients(CLASSIFICATION), jnp.ones(CLIENTS)

    def one(carry: Any, _: None) -> Any:
        state, own = carry
        updates, own = jax.vmap(lambda o, d: method.client_update(state, o, d, KEY))(own, data)
        curves = method.diagnostics(state, updates, weights)
        return (method.server_update(state, updates, weights, KEY), own), curves["loss"]

    @compiled
    def learn() -> tuple[jax.Array, jax.Array]:
        state = method.init(KEY, one_of(data))
        own = jax.vmap(lambda d: method.init_client(state, d, KEY))(data)
        (state, own), losses = jax.lax.scan(one, (state, own), length=60)
        said = jax.vmap(lambda o, d: method.personalize(state, o, d, KEY)(d.x))(own, data)
        return losses, said.log_probabilities

    losses, log_probabilities = learn()
    assert (np.asarray(log_probabilities).argmax(-1) == data.y)[data.mask].all()
    assert float(losses[-1]) < 0.1
