"""Mean-regularised multi-task learning: coupled ridge regression, and its two limits."""

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
from pacpfl.methods.network import MTL, LocalTraining, Memory, MTLSettings, MTLState, NetworkModel
from pacpfl.priors.networks import MLP
from pacpfl.types import Data

pytestmark = pytest.mark.usefixtures("x64")

NOISE, RATE, CLIENTS = 1.2, 0.3, 4
LENGTHS = np.array([8, 2, 5, 6])  # two samples do not determine three parameters: the others must
KEY = jax.random.key(0)
STIFF = 1e300  # as good as infinite
METHOD = MTL(
    NetworkModel(MLP((FEATURES, 1)), Gaussian(NOISE)),
    CLIENTS,
    LocalTraining(1, RATE),
    MTLSettings(coupling=0.6, personal_steps=0),
)


DATA = make_clients(8, LENGTHS)
H, BEST = curvatures(DATA, NOISE)
B = np.einsum("iab,ib->ia", H, BEST)  # L_i(w) = w^T H_i w / 2 - b_i^T w + constant


def tuned(**changes: float) -> MTL:
    return replace(METHOD, settings=replace(METHOD.settings, **changes))


def coupled_ridge(coupling: float) -> np.ndarray:
    """(H_i + coupling) w_i - coupling / n sum_j w_j = b_i for all i at once."""
    size = len(START)
    system = np.kron(np.eye(CLIENTS) - 1 / CLIENTS, coupling * np.eye(size))
    for i in range(CLIENTS):
        block = slice(i * size, (i + 1) * size)
        system[block, block] += H[i]
    return np.linalg.solve(system, B.ravel()).reshape(CLIENTS, size)


def play(method: MTL, data: Data, weights: jax.Array) -> tuple[MTLState, Memory, jax.Array]:
    """One round for each row of weights; then the clients' networks. Absent clients do nothing."""
    zero = jnp.zeros((), jnp.int32)
    state = MTLState(jnp.asarray(START), zero)
    own = jax.vmap(lambda d: method.init_client(state, d, KEY))(data)

    def one(carry: Any, present: jax.Array) -> Any:
        state, own = carry
        updates, new = jax.vmap(lambda o, d: method.client_update(state, o, d, KEY))(own, data)
        own = jax.tree.map(
            lambda a, b: jnp.where((present > 0).reshape(-1, *[1] * (a.ndim - 1)), a, b), new, own
        )
        return (method.server_update(state, updates, present, KEY), own), None

    (state, own), _ = jax.lax.scan(one, (state, own), weights)
    models = jax.vmap(lambda o, d: method.personalize(state, o, d, KEY))(own, data)
    return state, own, models.parameters


compiled_play = compiled(play, static_argnums=0)
compiled_personalize = compiled(MTL.personalize, static_argnums=0)


def local_training(client: int, steps: int, w: np.ndarray = START) -> np.ndarray:
    for _ in range(steps):
        w = w - RATE * (H[client] @ w - B[client])
    return w


def test_the_data_ask_for_coupling() -> None:
    """What the tests below rest on: one client cannot be fitted alone, and solutions differ."""
    assert np.linalg.matrix_rank(H[1]) == 2
    assert np.ptp(coupled_ridge(0.6), axis=0).min() > 0.1


@pytest.mark.parametrize(("local_steps", "coupling"), [(1, 40.0), (4, 0.6)])
def test_the_fixed_point_is_the_coupled_ridge_solution(local_steps: int, coupling: float) -> None:
    method = replace(tuned(coupling=coupling), local=LocalTraining(local_steps, RATE))
    state, own, networks = compiled_play(method, DATA, jnp.ones((900, CLIENTS)))
    expected = coupled_ridge(coupling)
    np.testing.assert_allclose(networks, expected, rtol=1e-9)
    np.testing.assert_allclose(state.mean, expected.mean(0), rtol=1e-9)
    np.testing.assert_array_equal(own.steps, 900 * local_steps)


def test_a_few_clients_per_round_reach_it_too_and_the_mean_is_that_of_all() -> None:
    rng = np.random.default_rng(1)
    weights = np.array([rng.permutation([1.0, 1.0, 0.0, 0.0]) for _ in range(1500)])
    state, own, networks = compiled_play(METHOD, DATA, jnp.asarray(weights))
    np.testing.assert_allclose(state.mean, own.forward.mean(0), rtol=1e-10)
    np.testing.assert_allclose(networks, coupled_ridge(0.6), rtol=1e-8)
    np.testing.assert_array_equal(own.steps, (weights > 0).sum(0))
    # The mean is exact from the first round on, and does not depend on the weights' scale.
    state, own, _ = compiled_play(METHOD, DATA, 5 * jnp.asarray(weights[:3]))
    np.testing.assert_allclose(state.mean, own.forward.mean(0), rtol=1e-12)


def test_no_coupling_is_local_training() -> None:
    method = replace(tuned(coupling=0.0), local=LocalTraining(2, RATE))
    _, _, networks = compiled_play(method, DATA, jnp.ones((10, CLIENTS)))
    expected = [local_training(i, 20) for i in range(CLIENTS)]
    np.testing.assert_allclose(networks, expected, rtol=1e-12)


def test_endless_coupling_is_averaging_in_every_round() -> None:
    """Consensus: w <- mean of the clients' single steps from w, which ends at the mean loss's minimum."""
    weights = jnp.ones((6, CLIENTS))
    state, _, networks = compiled_play(tuned(coupling=STIFF), DATA, weights)
    w = START
    for _ in range(6):
        w = np.mean([local_training(i, 1, w) for i in range(CLIENTS)], axis=0)
    np.testing.assert_allclose(state.mean, w, rtol=1e-12)
    np.testing.assert_array_equal(networks, np.tile(state.mean, (CLIENTS, 1)))
    _, _, stiff = compiled_play(tuned(coupling=1e9), DATA, weights)
    np.testing.assert_allclose(stiff, networks, rtol=1e-7)
    _, _, settled = compiled_play(tuned(coupling=STIFF), DATA, jnp.ones((900, CLIENTS)))
    np.testing.assert_allclose(settled[2], np.linalg.solve(H.sum(0), B.sum(0)), rtol=1e-9)


def test_a_new_client_solves_its_own_penalised_problem() -> None:
    """argmin L(w) + coupling / 2 |w - v|^2, from v; with or without the state of a beginner."""
    method = tuned(personal_steps=300)
    state = MTLState(jnp.asarray(START), jnp.zeros((), jnp.int32))
    data = jax.tree.map(lambda a: jnp.asarray(a[1]), DATA)
    model = compiled_personalize(method, state, (), data, KEY)
    expected = np.linalg.solve(H[1] + 0.6 * np.eye(3), B[1] + 0.6 * START)
    np.testing.assert_allclose(model.parameters, expected, rtol=1e-9)
    beginner = method.init_client(state, data, KEY)
    again = compiled_personalize(method, state, beginner, data, KEY)
    np.testing.assert_array_equal(again.parameters, model.parameters)


def test_everyone_ends_with_the_same_number_of_steps() -> None:
    """Those of the rounds count; who has taken them all keeps the network it has."""
    method = tuned(coupling=0.0, personal_steps=12)
    weights = jnp.asarray(np.arange(12)[:, None] < np.array([12, 5, 1, 0]), float)
    _, own, networks = compiled_play(method, DATA, weights)
    np.testing.assert_array_equal(own.steps, [12, 5, 1, 0])
    expected = [local_training(i, 12) for i in range(CLIENTS)]
    np.testing.assert_allclose(networks, expected, rtol=1e-12)
    none, _, unchanged = compiled_play(tuned(coupling=0.0, personal_steps=3), DATA, weights)
    np.testing.assert_allclose(unchanged[0], expected[0], rtol=1e-12)
    np.testing.assert_allclose(unchanged[1], local_training(1, 5), rtol=1e-12)
    assert int(none.skipped) == 0


def test_a_client_that_diverges_keeps_what_it_had_and_is_counted() -> None:
    broken = DATA._replace(y=np.where(np.arange(CLIENTS)[:, None] == 2, np.nan, DATA.y))
    state, own, networks = compiled_play(METHOD, broken, jnp.ones((5, CLIENTS)))
    assert int(state.skipped) == 5
    np.testing.assert_array_equal(own.steps, [5, 5, 0, 5])
    np.testing.assert_array_equal(own.forward[2], START)
    np.testing.assert_allclose(state.mean, own.forward.mean(0), rtol=1e-12)
    assert np.isfinite(networks).all()
    # At home as well: endless steps are undone, and what the rounds gave is there.
    fast = replace(tuned(coupling=0.0, personal_steps=4), local=LocalTraining(1, 1e200))
    state = MTLState(jnp.asarray(START), jnp.zeros((), jnp.int32))
    data = jax.tree.map(lambda a: jnp.asarray(a[0]), DATA)
    model = compiled_personalize(fast, state, (), data, KEY)
    np.testing.assert_array_equal(model.parameters, START)
