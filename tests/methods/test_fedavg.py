"""FedAvg on linear regression, where every round can be written down in NumPy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiling import compiled
from quadratics import FEATURES, START, curvatures, make_clients

from pacpfl.likelihoods import Gaussian
from pacpfl.methods.network import Change, FedAvg, LocalTraining, NetworkModel, State
from pacpfl.priors.networks import MLP
from pacpfl.types import Data

pytestmark = pytest.mark.usefixtures("x64")

NOISE, RATE, CLIENTS = 0.8, 0.15, 3
LENGTHS = np.array([9, 4, 6])
KEY = jax.random.key(0)
ONE_STEP = FedAvg(NetworkModel(MLP((FEATURES, 1)), Gaussian(NOISE)), LocalTraining(1, RATE))
DATA = make_clients(9, LENGTHS)
H, BEST = curvatures(DATA, NOISE)
X = [np.c_[DATA.x[i, :m], np.ones(m)] for i, m in enumerate(LENGTHS)]  # with the column of the bias
Y = [DATA.y[i, :m] for i, m in enumerate(LENGTHS)]


def trained(w: np.ndarray, client: int, steps: int) -> np.ndarray:
    for _ in range(steps):
        w = w - RATE * H[client] @ (w - BEST[client])
    return w


def play(method: FedAvg, data: Data, weights: Any, rounds: int) -> tuple[State, Change]:
    state = method.init(KEY, jax.tree.map(lambda a: a[0], data))
    state = state._replace(parameters=jnp.asarray(START))

    def update(state: State) -> Change:
        return jax.vmap(lambda d: method.client_update(state, (), d, KEY)[0])(data)

    def one(_: int, state: State) -> State:
        return method.server_update(state, update(state), weights, KEY)

    state = jax.lax.fori_loop(0, rounds - 1, one, state)
    updates = update(state)
    return method.server_update(state, updates, weights, KEY), updates


compiled_play = compiled(play, static_argnums=0)


def test_one_full_step_is_gradient_descent_on_all_samples_together() -> None:
    state, updates = compiled_play(ONE_STEP, DATA, jnp.ones(CLIENTS), 1)
    x, y = np.concatenate(X), np.concatenate(Y)
    expected = START - RATE * x.T @ (x @ START - y) / (len(y) * NOISE**2)
    np.testing.assert_allclose(state.parameters, expected, rtol=1e-12)
    np.testing.assert_array_equal(updates.samples, LENGTHS)
    log_density = -0.5 * np.log(2 * np.pi * NOISE**2)
    losses = [
        np.mean((x @ START - y) ** 2) / (2 * NOISE**2) - log_density
        for x, y in zip(X, Y, strict=True)
    ]
    np.testing.assert_allclose(updates.loss, losses, rtol=1e-12)


def test_many_rounds_end_at_least_squares() -> None:
    state, _ = compiled_play(ONE_STEP, DATA, jnp.ones(CLIENTS), 600)
    expected = np.linalg.lstsq(np.concatenate(X), np.concatenate(Y))[0]
    np.testing.assert_allclose(state.parameters, expected, rtol=1e-10)


def test_rounds_of_several_local_steps_with_weights_and_someone_absent() -> None:
    """Two rounds by loops: the engine's weights times the numbers of samples, client 1 absent."""
    weights = np.array([1.0, 0.0, 2.0])
    method = replace(ONE_STEP, local=LocalTraining(4, RATE))
    state, _ = compiled_play(method, DATA, jnp.asarray(weights), 2)
    w = START
    for _ in range(2):
        each = np.array([trained(w, i, 4) for i in range(CLIENTS)])
        w = np.average(each, axis=0, weights=weights * LENGTHS)
    np.testing.assert_allclose(state.parameters, w, rtol=1e-12)
    models = jax.vmap(lambda d: method.personalize(state, (), d, KEY))(DATA)
    np.testing.assert_array_equal(models.parameters, np.tile(state.parameters, (CLIENTS, 1)))
    assert int(state.skipped) == 0
