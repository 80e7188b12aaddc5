"""MAML: gradients through the inner steps, and the meta-optimum of quadratics."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from compiling import compiled
from quadratics import FEATURES, START, curvatures, make_clients

from pacpfl.likelihoods import Categorical, Gaussian
from pacpfl.methods.network import MAML, MAMLSettings, NetworkModel, State
from pacpfl.priors.networks import MLP
from pacpfl.types import Data

pytestmark = pytest.mark.usefixtures("x64")

NOISE, ALPHA, CLIENTS, SLOTS = 0.9, 0.25, 3, 7
LENGTHS = np.array([7, 4, 5])
KEY = jax.random.key(0)
LINEAR = MAML(
    NetworkModel(MLP((FEATURES, 1)), Gaussian(NOISE)),
    MAMLSettings(inner_learning_rate=ALPHA),
    server_optimizer=optax.sgd(0.3),
)
DEEP = MAML(
    NetworkModel(MLP((FEATURES, 3, 3)), Categorical(3)),
    MAMLSettings(inner_steps=3, inner_learning_rate=0.7),
)
update_client = compiled(MAML.client_update, static_argnums=0)
adapted_loss = compiled(MAML.adapted_loss, static_argnums=0)


DATA = make_clients(SLOTS, LENGTHS)
LABELLED = Data(DATA.x[1], np.array([2.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0]), DATA.mask[1])
H, BEST = curvatures(DATA, NOISE)


def server(parameters: np.ndarray, method: MAML = LINEAR) -> State:
    w = jnp.asarray(parameters)
    return State(w, method.server_optimizer.init(w), jnp.zeros((), jnp.int32))


def play(method: MAML, rounds: int, weights: jax.Array) -> State:
    def one(_: int, state: State) -> State:
        updates, _ = jax.vmap(lambda d: method.client_update(state, (), d, KEY))(DATA)
        return method.server_update(state, updates, weights, KEY)

    return jax.lax.fori_loop(0, rounds, one, server(START, method))


compiled_play = compiled(play, static_argnums=0)


@pytest.mark.parametrize("inner_steps", [1, 3])
def test_the_gradient_goes_through_the_inner_steps(
    inner_steps: int, oracle: SimpleNamespace
) -> None:
    """Against differences, for a network whose curvature matters; padding included."""
    method = replace(DEEP, settings=replace(DEEP.settings, inner_steps=inner_steps))
    w = np.random.default_rng(1).normal(size=method.model.network.size)
    update, _ = update_client(method, server(w, method), (), LABELLED, KEY)
    expected = oracle.central_differences(
        lambda p: float(adapted_loss(method, jnp.asarray(p), LABELLED, KEY)), w
    )
    np.testing.assert_allclose(update.gradient, expected, rtol=1e-7, atol=1e-9)
    assert float(update.loss) == pytest.approx(float(adapted_loss(method, w, LABELLED, KEY)))


@pytest.mark.parametrize("inner_steps", [1, 3])
def test_the_first_order_gradient_is_that_of_the_loss_where_adaptation_ends(
    inner_steps: int, oracle: SimpleNamespace
) -> None:
    method = replace(
        DEEP, settings=replace(DEEP.settings, inner_steps=inner_steps, first_order=True)
    )
    loss = jax.jit(method.model.loss)
    adapted = np.random.default_rng(1).normal(size=method.model.network.size)
    update, _ = update_client(method, server(adapted, method), (), LABELLED, KEY)

    def gradient(p: np.ndarray) -> np.ndarray:
        return oracle.central_differences(lambda q: float(loss(jnp.asarray(q), LABELLED)), p)

    for _ in range(inner_steps):
        adapted = adapted - 0.7 * gradient(adapted)
    np.testing.assert_allclose(update.gradient, gradient(adapted), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("inner_steps", [1, 2])
def test_the_meta_optimum_of_quadratics(inner_steps: int) -> None:
    """sum_i A_i (w - w_i) = 0 with A_i = (I - alpha H_i)^2K H_i, clients counting alike."""
    method = replace(LINEAR, settings=replace(LINEAR.settings, inner_steps=inner_steps))
    state = compiled_play(method, 1500, jnp.ones(CLIENTS))
    shrinks = [np.linalg.matrix_power(np.eye(3) - ALPHA * h, 2 * inner_steps) for h in H]
    a = np.array([shrink @ h for shrink, h in zip(shrinks, H, strict=True)])
    expected = np.linalg.solve(a.sum(0), np.einsum("iab,ib->a", a, BEST))
    np.testing.assert_allclose(state.parameters, expected, rtol=1e-8)
    plain = np.linalg.solve(H.sum(0), np.einsum("iab,ib->a", H, BEST))
    assert np.abs(expected - plain).max() > 0.02, "no other than that of the loss before adaptation"


def test_inner_and_outer_batch_are_drawn_independently() -> None:
    """With one sample in each, the loss is one of m^2 known values, and every pair turns up."""
    method = replace(LINEAR, batch=1)
    data = jax.tree.map(lambda a: jnp.asarray(a[1]), DATA)
    count = LENGTHS[1]
    rows, y = np.c_[DATA.x[1], np.ones(SLOTS)][:count], DATA.y[1, :count]
    pairs = np.zeros((count, count))
    for i in range(count):
        adapted = START - ALPHA / NOISE**2 * rows[i] * (rows[i] @ START - y[i])
        z = (rows @ adapted - y) / NOISE
        pairs[i] = 0.5 * z**2 + 0.5 * np.log(2 * np.pi * NOISE**2)
    draws = compiled(jax.vmap(lambda key: method.adapted_loss(jnp.asarray(START), data, key)))
    found = np.asarray(draws(jax.random.split(jax.random.key(3), 400)))
    distance = np.abs(found[:, None] - pairs.ravel())
    assert distance.min(1).max() < 1e-10
    frequency = np.bincount(distance.argmin(1), minlength=count**2) / 400
    np.testing.assert_allclose(frequency, 1 / count**2, atol=0.05)


def test_personal_models_take_inner_steps_on_all_samples() -> None:
    method = replace(LINEAR, batch=2, settings=replace(LINEAR.settings, personal_steps=5))
    models = jax.jit(jax.vmap(lambda d: method.personalize(server(START), (), d, KEY)))(DATA)
    for i in range(CLIENTS):
        shrink = np.linalg.matrix_power(np.eye(3) - ALPHA * H[i], 5)
        expected = BEST[i] + shrink @ (START - BEST[i])
        np.testing.assert_allclose(models.parameters[i], expected, rtol=1e-11)
    too_fast = replace(method, settings=replace(method.settings, inner_learning_rate=1e200))
    model = too_fast.personalize(server(START), (), jax.tree.map(lambda a: a[0], DATA), KEY)
    np.testing.assert_array_equal(model.parameters, START)
