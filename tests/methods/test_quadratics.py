"""FedAvg, MAML and MTL on linear regression, where every client's loss is a quadratic."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from compiling import compiled

from pacpfl.likelihoods import Categorical, Gaussian
from pacpfl.methods.network import (
    MAML,
    MTL,
    FedAvg,
    LocalTraining,
    MAMLSettings,
    MTLSettings,
    NetworkModel,
    State,
)
from pacpfl.priors.networks import MLP
from pacpfl.types import Data

pytestmark = pytest.mark.usefixtures("x64")

NOISE, RATE, ALPHA, FEATURES, CLIENTS, SLOTS = 1.2, 0.3, 0.25, 2, 4, 8
LENGTHS = np.array([8, 2, 5, 6])  # two samples do not determine three parameters: the others must
KEY = jax.random.key(0)
START = np.array([0.4, -0.7, 0.2])  # slopes and intercept
STIFF = 1e300  # as good as infinite
MODEL = NetworkModel(MLP((FEATURES, 1)), Gaussian(NOISE))
ONE_STEP = FedAvg(MODEL, LocalTraining(1, RATE))
LINEAR = MAML(MODEL, MAMLSettings(inner_learning_rate=ALPHA), optimizer=optax.sgd(0.6))
DEEP = MAML(
    NetworkModel(MLP((FEATURES, 3, 3)), Categorical(3)),
    MAMLSettings(inner_steps=3, inner_learning_rate=0.7),
)
COUPLED = MTL(MODEL, CLIENTS, LocalTraining(1, RATE), MTLSettings(coupling=0.6, personal_steps=0))


def make_clients() -> Data:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(CLIENTS, SLOTS, FEATURES))
    y = (x @ rng.normal(size=(CLIENTS, FEATURES, 1)))[..., 0] + 1.0
    return Data(x, y + 0.3 * rng.normal(size=y.shape), np.arange(SLOTS) < LENGTHS[:, None])


DATA = make_clients()
LABELLED = Data(DATA.x[2], np.array([2.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]), DATA.mask[2])
ROWS = [np.c_[DATA.x[i, :m], np.ones(m)] for i, m in enumerate(LENGTHS)]
Y = [DATA.y[i, :m] for i, m in enumerate(LENGTHS)]
# L_i(w) = (w - w_i)^T H_i (w - w_i) / 2 + constant = w^T H_i w / 2 - b_i^T w + constant
H = np.array([rows.T @ rows / (len(rows) * NOISE**2) for rows in ROWS])
BEST = np.array([np.linalg.lstsq(rows, y)[0] for rows, y in zip(ROWS, Y, strict=True)])
B = np.einsum("iab,ib->ia", H, BEST)


def local_training(client: int, steps: int, w: np.ndarray = START) -> np.ndarray:
    for _ in range(steps):
        w = w - RATE * (H[client] @ w - B[client])
    return w


@partial(compiled, static_argnums=0)
def play(method: Any, weights: Any, data: Data = DATA) -> tuple[State, Any, Any, jax.Array]:
    """A round for each row of weights; absent clients do nothing. The state of the server, those of the
    clients, all updates, and the clients' networks."""
    state = method.init(KEY, jax.tree.map(lambda a: a[0], data))
    state = state._replace(parameters=jnp.asarray(START))
    own = jax.vmap(lambda d: method.init_client(state, d, KEY))(data)

    def one(carry: Any, present: jax.Array) -> Any:
        state, own = carry
        updates, new = jax.vmap(lambda o, d: method.client_update(state, o, d, KEY))(own, data)
        own = jax.tree.map(
            lambda a, b: jnp.where((present > 0).reshape(-1, *[1] * (a.ndim - 1)), a, b), new, own
        )
        return (method.server_update(state, updates, present, KEY), own), updates

    (state, own), updates = jax.lax.scan(one, (state, own), weights)
    models = jax.vmap(lambda o, d: method.personalize(state, o, d, KEY))(own, data)
    return state, own, updates, models.parameters


EVERYBODY = np.ones((1, CLIENTS))


def test_one_full_step_is_gradient_descent_on_all_samples_together() -> None:
    state, _, updates, _ = play(ONE_STEP, EVERYBODY)
    x, y = np.concatenate(ROWS), np.concatenate(Y)
    expected = START - RATE * x.T @ (x @ START - y) / (len(y) * NOISE**2)
    np.testing.assert_allclose(state.parameters, expected, rtol=1e-12)
    np.testing.assert_array_equal(updates.samples[0], LENGTHS)
    log_density = -0.5 * np.log(2 * np.pi * NOISE**2)
    losses = [
        np.mean((x @ START - y) ** 2) / (2 * NOISE**2) - log_density
        for x, y in zip(ROWS, Y, strict=True)
    ]
    np.testing.assert_allclose(updates.value[0], losses, rtol=1e-12)


def test_rounds_of_several_local_steps_with_weights_and_someone_absent() -> None:
    """Two rounds by loops: the engine's weights times the numbers of samples, client 1 absent."""
    weights = np.array([1.0, 0.0, 2.0, 1.0])
    method = replace(ONE_STEP, local=LocalTraining(4, RATE))
    state, _, _, networks = play(method, np.tile(weights, (2, 1)))
    w = START
    for _ in range(2):
        each = np.array([local_training(i, 4, w) for i in range(CLIENTS)])
        w = np.average(each, axis=0, weights=weights * LENGTHS)
    np.testing.assert_allclose(state.parameters, w, rtol=1e-12)
    np.testing.assert_array_equal(networks, np.tile(state.parameters, (CLIENTS, 1)))
    assert int(state.skipped) == 0


update_client = compiled(MAML.client_update, static_argnums=0)
adapted_loss = compiled(MAML.adapted_loss, static_argnums=0)


def server(parameters: np.ndarray, method: MAML = LINEAR) -> State:
    return method.begin(jnp.asarray(parameters))


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
    assert float(update.value) == pytest.approx(float(adapted_loss(method, w, LABELLED, KEY)))


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
    state = play(method, np.tile(EVERYBODY, (1500, 1)))[0]
    shrinks = [np.linalg.matrix_power(np.eye(3) - ALPHA * h, 2 * inner_steps) for h in H]
    a = np.array([shrink @ h for shrink, h in zip(shrinks, H, strict=True)])
    expected = np.linalg.solve(a.sum(0), np.einsum("iab,ib->a", a, BEST))
    np.testing.assert_allclose(state.parameters, expected, rtol=1e-8)
    plain = np.linalg.solve(H.sum(0), np.einsum("iab,ib->a", H, BEST))
    assert np.abs(expected - plain).max() > 0.02, "no other than that of the loss before adaptation"


def test_inner_and_outer_batch_are_drawn_independently() -> None:
    """With one sample in each, the loss is one of m^2 known values, and every pair turns up."""
    method = replace(LINEAR, batch=1)
    data = jax.tree.map(lambda a: jnp.asarray(a[2]), DATA)
    count, rows, y = LENGTHS[2], ROWS[2], Y[2]
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


def tuned(**changes: float) -> MTL:
    return replace(COUPLED, settings=replace(COUPLED.settings, **changes))


def coupled_ridge(coupling: float) -> np.ndarray:
    """(H_i + coupling) w_i - coupling / n sum_j w_j = b_i for all i at once."""
    size = len(START)
    system = np.kron(np.eye(CLIENTS) - 1 / CLIENTS, coupling * np.eye(size))
    for i in range(CLIENTS):
        block = slice(i * size, (i + 1) * size)
        system[block, block] += H[i]
    return np.linalg.solve(system, B.ravel()).reshape(CLIENTS, size)


compiled_personalize = compiled(MTL.personalize, static_argnums=0)


def test_the_data_ask_for_coupling() -> None:
    """What the tests below rest on: one client cannot be fitted alone, and solutions differ."""
    assert np.linalg.matrix_rank(H[1]) == 2
    assert np.ptp(coupled_ridge(0.6), axis=0).min() > 0.1


@pytest.mark.parametrize(("local_steps", "coupling"), [(1, 40.0), (4, 0.6)])
def test_the_fixed_point_is_the_coupled_ridge_solution(local_steps: int, coupling: float) -> None:
    method = replace(tuned(coupling=coupling), local=LocalTraining(local_steps, RATE))
    state, own, _, networks = play(method, np.tile(EVERYBODY, (900, 1)))
    expected = coupled_ridge(coupling)
    np.testing.assert_allclose(networks, expected, rtol=1e-9)
    np.testing.assert_allclose(state.parameters, expected.mean(0), rtol=1e-9)
    np.testing.assert_array_equal(own.steps, 900 * local_steps)


def test_a_few_clients_per_round_reach_it_too_and_the_mean_is_that_of_all() -> None:
    rng = np.random.default_rng(1)
    weights = np.array([rng.permutation([1.0, 1.0, 0.0, 0.0]) for _ in range(1500)])
    state, own, _, networks = play(COUPLED, jnp.asarray(weights))
    np.testing.assert_allclose(state.parameters, own.forward.mean(0), rtol=1e-10)
    np.testing.assert_allclose(networks, coupled_ridge(0.6), rtol=1e-8)
    np.testing.assert_array_equal(own.steps, (weights > 0).sum(0))
    # The mean is exact from the first round on, and does not depend on the weights' scale.
    state, own, _, _ = play(COUPLED, 5 * jnp.asarray(weights[:3]))
    np.testing.assert_allclose(state.parameters, own.forward.mean(0), rtol=1e-12)


def test_no_coupling_is_local_training() -> None:
    method = replace(tuned(coupling=0.0), local=LocalTraining(2, RATE))
    _, _, _, networks = play(method, np.tile(EVERYBODY, (10, 1)))
    expected = [local_training(i, 20) for i in range(CLIENTS)]
    np.testing.assert_allclose(networks, expected, rtol=1e-12)


def test_endless_coupling_is_averaging_in_every_round() -> None:
    """Consensus: w <- mean of the clients' single steps from w, which ends at the mean loss's minimum."""
    weights = np.tile(EVERYBODY, (6, 1))
    state, _, _, networks = play(tuned(coupling=STIFF), weights)
    w = START
    for _ in range(6):
        w = np.mean([local_training(i, 1, w) for i in range(CLIENTS)], axis=0)
    np.testing.assert_allclose(state.parameters, w, rtol=1e-12)
    np.testing.assert_array_equal(networks, np.tile(state.parameters, (CLIENTS, 1)))
    _, _, _, stiff = play(tuned(coupling=1e9), weights)
    np.testing.assert_allclose(stiff, networks, rtol=1e-7)
    _, _, _, settled = play(tuned(coupling=STIFF), np.tile(EVERYBODY, (900, 1)))
    np.testing.assert_allclose(settled[2], np.linalg.solve(H.sum(0), B.sum(0)), rtol=1e-9)


def test_a_new_client_solves_its_own_penalised_problem() -> None:
    """argmin L(w) + coupling / 2 |w - v|^2, from v; with or without the state of a beginner."""
    method = tuned(personal_steps=300)
    state = COUPLED.begin(jnp.asarray(START))
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
    _, own, _, networks = play(method, weights)
    np.testing.assert_array_equal(own.steps, [12, 5, 1, 0])
    expected = [local_training(i, 12) for i in range(CLIENTS)]
    np.testing.assert_allclose(networks, expected, rtol=1e-12)
    none, _, _, unchanged = play(tuned(coupling=0.0, personal_steps=3), weights)
    np.testing.assert_allclose(unchanged[0], expected[0], rtol=1e-12)
    np.testing.assert_allclose(unchanged[1], local_training(1, 5), rtol=1e-12)
    assert int(none.skipped) == 0


def test_a_client_that_diverges_keeps_what_it_had_and_is_counted() -> None:
    broken = DATA._replace(y=np.where(np.arange(CLIENTS)[:, None] == 2, np.nan, DATA.y))
    state, own, _, networks = play(COUPLED, np.tile(EVERYBODY, (5, 1)), broken)
    assert int(state.skipped) == 5
    np.testing.assert_array_equal(own.steps, [5, 5, 0, 5])
    np.testing.assert_array_equal(own.forward[2], START)
    np.testing.assert_allclose(state.parameters, own.forward.mean(0), rtol=1e-12)
    assert np.isfinite(networks).all()
    # At home as well: endless steps are undone, and what the rounds gave is there.
    fast = replace(tuned(coupling=0.0, personal_steps=4), local=LocalTraining(1, 1e200))
    state = COUPLED.begin(jnp.asarray(START))
    data = jax.tree.map(lambda a: jnp.asarray(a[0]), DATA)
    model = compiled_personalize(fast, state, (), data, KEY)
    np.testing.assert_array_equal(model.parameters, START)
