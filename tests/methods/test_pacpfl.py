"""PAC-PFL: whole rounds against Algorithm 1 written again in NumPy, and who may change what."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

from benchmarks.problem import Sizes, make_problem, reference_round, svgd_direction
from pacpfl import hyper, svgd
from pacpfl.config import Config, override
from pacpfl.methods.base import mini_batch
from pacpfl.methods.pacpfl import PACPFL, State, TrainSettings, Update, build_optimizer
from pacpfl.methods.registry import build_pacpfl, temperatures
from pacpfl.priors.gp import GPPrior, GPSettings
from pacpfl.types import Data, Form

pytestmark = pytest.mark.usefixtures("x64")

PRIOR = GPPrior(1, GPSettings(mean="linear", kernel="ard"))
CLIENTS, SLOTS, PARTICLES = 4, 6, 3
LENGTHS = np.array([6, 4, 5, 3])
KEY = jax.random.key(0)
METHOD = PACPFL(
    PRIOR, CLIENTS, optax.sgd(0.01), TrainSettings(particles=PARTICLES, tau=0.2, hyper_std=0.7)
)
ALL = np.ones(CLIENTS)


def tuned(**changes: Any) -> PACPFL:
    return replace(METHOD, settings=replace(METHOD.settings, **changes))


update_server = jax.jit(PACPFL.server_update, static_argnums=0)


@jax.jit
def client_gradients(particles: jax.Array, data: Data) -> Update:
    """Every client's update, whatever the server does with them."""
    state = State(particles, (), jnp.zeros((1, 1)), jnp.zeros(PARTICLES, jnp.int32))
    return jax.vmap(lambda d: METHOD.client_update(state, (), d, KEY)[0])(data)


def make_clients() -> Data:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(CLIENTS, SLOTS, 1)), rng.normal(size=(CLIENTS, SLOTS))
    return Data(x, y, np.arange(SLOTS) < LENGTHS[:, None])


def make_state(method: PACPFL = METHOD) -> State:
    example = Data(jnp.zeros((SLOTS, 1)), jnp.zeros(SLOTS), jnp.ones(SLOTS, bool))
    state = method.init(jax.random.key(1), example)
    particles = np.random.default_rng(1).normal(size=(PARTICLES, PRIOR.size)) * 0.5
    return state._replace(particles=jnp.asarray(particles[: method.settings.particles]))


def make_updates(seed: int = 2) -> Update:
    """Gradients of clients that need no data: the server cannot tell."""
    rng = np.random.default_rng(seed)
    return Update(
        jnp.asarray(rng.normal(size=(CLIENTS, PARTICLES, PRIOR.size))), jnp.zeros(CLIENTS)
    )


def only(updates: Update, chosen: Any) -> Update:
    return jax.tree.map(lambda a: a[jnp.asarray(chosen)], updates)


def test_a_round_is_that_of_the_reference() -> None:
    """The oracle of the benchmarks: deep mean and kernel, the printed mean over clients."""
    sizes = Sizes(particles=3, clients=3, samples=5, features=2, hidden=(3,))
    problem = make_problem(sizes, seed=3)
    problem = replace(problem, hyper_prior_std=0.8, tau=0.6, learning_rate=0.05)
    # softplus(0) = ln 2: the reference's hyper-prior is N(0, std^2) on the noise as well
    small = GPSettings(mean_widths=(3,), kernel_widths=(3,), noise=np.log(2), noise_spread=0.8)
    prior = GPPrior(2, small)
    settings = TrainSettings(particles=3, tau=0.6, hyper_std=0.8, aggregation="mean")
    method = PACPFL(prior, 3, optax.sgd(0.05), settings, references=4)
    assert prior.size == problem.sizes.dimension
    data = Data(*map(jnp.asarray, (problem.x, problem.y, np.ones((3, 5), bool))))

    @jax.jit
    def play(particles: jax.Array) -> tuple[Update, State]:
        state = method.init(KEY, jax.tree.map(lambda a: a[0], data))._replace(particles=particles)
        updates, _ = jax.vmap(lambda d: method.client_update(state, (), d, KEY))(data)
        return updates, method.server_update(state, updates, jnp.ones(3), KEY)

    updates, after = play(problem.particles)
    expected = reference_round(problem)
    np.testing.assert_allclose(updates.gradients.mean(0), expected.gradient, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(updates.log_evidence, expected.log_evidence.mean(0) / 5, rtol=1e-9)
    np.testing.assert_allclose(after.particles, expected.particles, rtol=1e-9, atol=1e-10)
    np.testing.assert_array_equal(after.skipped, 0)


def test_a_round_with_the_sum_unequal_clients_and_blocks(oracle: SimpleNamespace) -> None:
    """Algorithm 1 by loops: gradients by differences, n/c times the sum, each block's hyper-prior."""
    data, state = make_clients(), make_state()
    particles, chosen = np.asarray(state.particles), [0, 2, 3]
    scores = np.zeros_like(particles)
    means = np.array([0.0, 0.0, 0.0, np.log(np.expm1(0.4))])
    stds = np.array([0.7, 0.7, 1.0, 0.1])  # weights, weights, length scale, noise
    for row, phi in enumerate(particles):
        scores[row] = (means - phi) / stds**2
        for i in chosen:
            x, y = data.x[i, : LENGTHS[i]], data.y[i, : LENGTHS[i]]
            gradient = oracle.central_differences(
                lambda p: oracle.log_evidence(PRIOR, p, x, y),  # noqa: B023
                phi,
            )
            scores[row] += 0.2 * CLIENTS / len(chosen) * gradient
    expected = particles + 0.01 * svgd_direction(particles, scores)

    updates = only(client_gradients(state.particles, data), chosen)
    after = update_server(METHOD, state, updates, jnp.ones(3), KEY)
    np.testing.assert_allclose(after.particles, expected, rtol=1e-8, atol=1e-8)


def test_absent_clients_are_like_clients_who_were_not_chosen() -> None:
    state, updates = make_state(), make_updates()
    spoiled = updates._replace(gradients=updates.gradients.at[1].set(np.inf))
    found = update_server(METHOD, state, spoiled, jnp.array([1.0, 0.0, 1.0, 1.0]), KEY)
    without = update_server(METHOD, state, only(updates, [0, 2, 3]), jnp.ones(3), KEY)
    np.testing.assert_array_equal(found.skipped, 0)
    np.testing.assert_allclose(found.particles, without.particles, rtol=1e-12, atol=1e-14)
    nobody = update_server(METHOD, state, updates, jnp.zeros(CLIENTS), KEY)
    np.testing.assert_array_equal(nobody.particles, state.particles)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_gradient_that_is_not_finite_costs_its_particle_one_step(bad: float) -> None:
    """The particle and its optimiser stay; the others move as the two of them would."""
    method = replace(METHOD, optimizer=optax.adam(optax.linear_schedule(0.1, 0.0, 10)))
    state, updates = make_state(method), make_updates()
    state = update_server(method, state, updates, ALL, KEY)  # an optimiser with a memory
    spoiled = updates._replace(gradients=updates.gradients.at[2, 1, 0].set(bad))
    after = update_server(method, state, spoiled, ALL, KEY)
    np.testing.assert_array_equal(after.skipped, [0, 1, 0])
    for old, new in zip(
        jax.tree.leaves((state.particles, state.optimizer)),
        jax.tree.leaves((after.particles, after.optimizer)),
        strict=True,
    ):
        np.testing.assert_array_equal(new[1], old[1])
        assert np.isfinite(new).all() and not np.array_equal(new[0], old[0])
    rest = jnp.array([0, 2])
    pair = replace(method, settings=replace(method.settings, particles=2))
    two = State(*jax.tree.map(lambda a: a[rest], state[:2]), state.references, state.skipped[rest])
    sound = updates._replace(gradients=updates.gradients[:, rest])
    alone = update_server(pair, two, sound, ALL, KEY)
    np.testing.assert_allclose(after.particles[rest], alone.particles, rtol=1e-10, atol=1e-12)
    again = update_server(method, after, spoiled, ALL, KEY)
    np.testing.assert_array_equal(again.skipped, [0, 2, 0])


@pytest.mark.parametrize("rule", ["evidence", "printed"])
@pytest.mark.parametrize(("batch", "temperature"), [(2, 1.0), (None, 1.8), (3, 0.5)])
def test_mini_batches_and_temperature(
    batch: int | None, temperature: float, rule: str, oracle: SimpleNamespace
) -> None:
    """(m/b) ln Z_t of the batch; as printed ln Z of the batch at temperature t m/b."""
    method = tuned(batch=batch, temperature=temperature, batch_rule=rule)
    state, key, client = make_state(), jax.random.key(5), 2
    data = jax.tree.map(lambda a: jnp.asarray(a[client]), make_clients())
    seen = data if batch is None else mini_batch(key, data, batch)
    mask = np.asarray(seen.mask)
    x, y = np.asarray(seen.x)[mask], np.asarray(seen.y)[mask]
    assert len(y) == (LENGTHS[client] if batch is None else batch)
    share = LENGTHS[client] / len(y)
    times, power = (share, temperature) if rule == "evidence" else (1, temperature * share)
    found, _ = jax.jit(lambda s: method.client_update(s, (), data, key))(state)
    for row, phi in enumerate(np.asarray(state.particles)):
        expected = oracle.central_differences(
            lambda p: times * oracle.log_evidence(PRIOR, p, x, y, power), phi
        )
        np.testing.assert_allclose(found.gradients[row], expected, rtol=1e-7, atol=1e-8)


def test_clients_personalise_at_the_temperature_of_the_training(oracle: SimpleNamespace) -> None:
    """Q* is optimal for clients whose posterior has the temperature of its evidence."""
    method, state = tuned(temperature=0.3), make_state()
    data = jax.tree.map(lambda a: jnp.asarray(a[2]), make_clients())
    mask = np.asarray(data.mask)
    x, y = np.asarray(data.x)[mask], np.asarray(data.y)[mask]
    at = np.linspace(-1, 1, 3)[:, None] * np.ones(x.shape[1])
    found = jax.jit(lambda s: method.personalize(s, (), data, KEY)(at))(state)
    for row, phi in enumerate(np.asarray(state.particles)):
        mean, std = oracle.predict(PRIOR, phi, x, y, at, 0.3)
        np.testing.assert_allclose(found.means[row], mean, rtol=1e-8, atol=1e-9)
        np.testing.assert_allclose(found.stds[row], std, rtol=1e-8)


@pytest.mark.parametrize(("batch", "temperature"), [(None, 1.0), (2, 1.0), (3, 0.4)])
def test_the_mean_at_once_is_the_mean_of_all_updates(batch: int | None, temperature: float) -> None:
    """Clients of different size and weight, one of them absent, each with its own mini-batch; and one
    client alone."""
    method = tuned(batch=batch, temperature=temperature)
    state, data, weights = make_state(), make_clients(), np.array([1.0, 0.5, 0.0, 2.0])
    keys = jax.random.split(KEY, CLIENTS)

    @jax.jit
    def one_by_one(data: Data) -> Update:
        return jax.vmap(lambda d, key: method.client_update(state, (), d, key)[0])(data, keys)

    each = one_by_one(data)
    found = jax.jit(method.mean_update)(state, data, keys, weights)
    for at_once, updates in zip(found, each, strict=True):
        expected = np.average(updates, axis=0, weights=weights)
        np.testing.assert_allclose(at_once, expected, rtol=1e-9, atol=1e-12)
    longest = int(np.argmax(LENGTHS))
    lone = jax.tree.map(lambda a: a[longest : longest + 1], (data, keys, np.ones(CLIENTS)))
    alone = jax.jit(method.mean_update)(state, *lone)
    for found_alone, updates in zip(alone, each, strict=True):
        np.testing.assert_allclose(found_alone, updates[longest], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("size", [1, 3, 5])
def test_subsamples_are_drawn_without_replacement(size: int) -> None:
    """Only valid rows, each once, x with its own y, and every row equally often."""
    valid = np.array([1, 0, 1, 1, 0, 1, 1, 0], bool)
    rows = np.arange(8.0)
    data = Data(jnp.asarray(rows[:, None]), jnp.asarray(-rows), jnp.asarray(valid))
    keys = jax.random.split(jax.random.key(6), 600)
    drawn = jax.jit(jax.vmap(lambda key: mini_batch(key, data, size)))(keys)
    chosen = np.asarray(drawn.x)[..., 0].astype(int)
    assert np.asarray(drawn.mask).all() and valid[chosen].all()
    assert all(len(set(row)) == size for row in chosen.tolist())
    np.testing.assert_array_equal(drawn.y, -np.asarray(drawn.x)[..., 0])
    counts = np.bincount(chosen.ravel(), minlength=8)[valid]
    assert counts.sum() == 600 * size
    if size < 5:
        assert stats.chisquare(counts).pvalue > 1e-3
    else:
        np.testing.assert_array_equal(counts, 600)


@pytest.mark.parametrize("size", [4, 8, 100])
def test_small_clients_give_all_they_have(size: int) -> None:
    data = Data(jnp.arange(8.0)[:, None], jnp.arange(8.0), jnp.arange(8) % 3 == 0)
    drawn = mini_batch(KEY, data, size)
    assert sorted(np.asarray(drawn.y)[np.asarray(drawn.mask)]) == [0.0, 3.0, 6.0]


def test_particles_start_from_the_hyper_prior_and_references_from_no_data() -> None:
    many = tuned(particles=2000)
    example = Data(jnp.full((SLOTS, 1), 5.0), jnp.full(SLOTS, 5.0), jnp.ones(SLOTS, bool))
    state = many.init(jax.random.key(7), example)
    prior = many.hyper_prior(jnp.float64)
    for column, mean, std in zip(state.particles.T, prior.means, prior.stds, strict=True):
        assert stats.kstest(np.asarray(column), stats.norm(mean, std).cdf).pvalue > 1e-3
    other = many.init(jax.random.key(7), jax.tree.map(jnp.zeros_like, example))
    np.testing.assert_array_equal(state.references, other.references)


def test_diagnostics() -> None:
    state, updates = make_state(), make_updates()
    updates = updates._replace(log_evidence=jnp.array([1.0, np.nan, 3.0, 8.0]))
    found = METHOD.diagnostics(state, updates, jnp.array([1.0, 0.0, 1.0, 1.0]))
    assert float(found["log_evidence"]) == pytest.approx(4.0)
    assert float(found["diversity"]) > 0
    equal = state._replace(particles=jnp.tile(state.particles[:1], (PARTICLES, 1)))
    assert float(METHOD.diagnostics(equal, updates, ALL)["diversity"]) == 0


def test_function_kernel_compares_predictions_at_the_references() -> None:
    """The step is SVGD's with the prior's own fingerprint at the inputs the state carries."""
    method = tuned(svgd_kernel="function")
    state, updates = make_state(method), make_updates()
    found = update_server(method, state, updates, ALL, KEY)
    prior = method.hyper_prior(jnp.float64)
    scores = hyper.score(prior, state.particles) + 0.2 * updates.gradients.sum(0)
    fingerprint = jax.jit(lambda p: PRIOR.fingerprint(p, state.references))
    step = jax.jit(lambda s: svgd.direction(state.particles, s, "function", fingerprint))(scores)
    np.testing.assert_allclose(found.particles, state.particles + 0.01 * step, rtol=1e-10)
    rbf = update_server(METHOD, state, updates, ALL, KEY)
    assert np.abs(found.particles - rbf.particles).max() > 1e-6


def test_a_schedule_cools_down_in_its_last_fifth() -> None:
    """With plain SGD and a gradient of 1 the steps are the rates themselves."""
    settings = TrainSettings(
        rounds=10, learning_rate=0.5, optimizer="sgd", schedule="cooldown", particles=1
    )
    optimizer, place, steps = build_optimizer(settings), jnp.zeros(1), []
    memory = optimizer.init(place)
    for _ in range(11):
        change, memory = optimizer.update(jnp.ones(1), memory)
        steps.append(-float(change[0]))
    np.testing.assert_allclose(steps, [0.5] * 9 + [0.25, 0.0], atol=1e-7)


def test_beta_is_the_temperature_times_the_mean_number_of_samples() -> None:
    """tau = lambda / (lambda + beta n (n_2 + upsilon)) by hand: n = 3, n_2 = 1, mean m = 20."""
    form = Form(("x",), clients=3, sizes=(10, 20, 30), later=1)
    config = override(Config(), ["train.temperature=0.5", "train.lambda=6", "train.upsilon=0.5"])
    found = temperatures(config, form)
    assert (found["beta"], found["n_2"], found["lambda_condition"]) == (10.0, 1, True)
    assert found["tau"] == pytest.approx(6 / (6 + 10 * 3 * 1.5))
    method = build_pacpfl(config, form)
    assert (method.settings.temperature, method.tau) == (0.5, found["tau"])
    again = override(Config(), [f"train.tau={found['tau']}", "train.temperature=0.5"])
    again = override(again, ["train.upsilon=0.5"])
    assert temperatures(again, form)["lambda"] == pytest.approx(6)
