"""PAC-PFL with Bayesian neural networks: rounds, noise that clients share or not, personal models."""

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
from scipy.special import log_softmax, logsumexp, softmax

from benchmarks.problem import svgd_direction
from pacpfl.likelihoods import Categorical
from pacpfl.methods.pacpfl import PACPFL, State, TrainSettings, Update
from pacpfl.personal import PersonalModel
from pacpfl.priors.bnn import BNNPrior, BNNSettings
from pacpfl.priors.inference import Inference
from pacpfl.priors.networks import MLP
from pacpfl.types import Data, Probabilities

pytestmark = pytest.mark.usefixtures("x64")

SIZES = (1, 2, 2)
CLIENTS, SLOTS, PARTICLES, WEIGHTS = 3, 5, 2, 10
LENGTHS = np.array([5, 3, 4])
SETTINGS, INFERENCE = BNNSettings(draws=2, initial_std=0.2), Inference(networks=3, steps=2)
PRIOR = BNNPrior(MLP(SIZES), Categorical(2), SETTINGS, INFERENCE)
TRAIN = TrainSettings(particles=PARTICLES, tau=0.3, hyper_std=0.7)
METHOD = PACPFL(PRIOR, CLIENTS, optax.sgd(0.01), TRAIN, "evidence", references=4)
OWN = replace(METHOD, prior=replace(PRIOR, settings=replace(PRIOR.settings, noise="own")))
KEY = jax.random.key(0)


def make_clients() -> Data:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(CLIENTS, SLOTS, 1))
    return Data(x, (x[..., 0] > 0).astype(float), np.arange(SLOTS) < LENGTHS[:, None])


@partial(compiled, static_argnums=0)
def play(method: PACPFL, data: Data, key: jax.Array) -> tuple[State, Update, State]:
    """One round: state, what clients send, next state."""
    state = method.init(key, jax.tree.map(lambda a: a[0], data))
    keys = jax.random.split(jax.random.fold_in(key, 5), CLIENTS)
    updates, _ = jax.vmap(lambda d, k: method.client_update(state, (), d, k))(data, keys)
    return state, updates, method.server_update(state, updates, jnp.ones(CLIENTS), key)


def log_evidence(
    phi: np.ndarray, noise: np.ndarray, x: np.ndarray, y: np.ndarray, oracle: SimpleNamespace
) -> float:
    """ln 1/L sum_l p(S | mu + sigma epsilon_l) in NumPy."""
    weights = phi[:WEIGHTS] + np.exp(phi[WEIGHTS:]) * noise
    each = [
        log_softmax(oracle.network(row, SIZES, x), 1)[np.arange(len(y)), y.astype(int)].sum()
        for row in weights
    ]
    return float(logsumexp(each) - np.log(len(each)))


def noise_of(draw_key: jax.Array) -> np.ndarray:
    """What the particles' evidence is estimated from, [k, L, weights]."""
    return np.array([PRIOR.draw(key, jnp.float64) for key in jax.random.split(draw_key, PARTICLES)])


@pytest.mark.parametrize("method", [METHOD, OWN], ids=["shared", "own"])
def test_a_round_by_loops(method: PACPFL, oracle: SimpleNamespace) -> None:
    """Gradients by differences with the round's noise, the sum over clients, SVGD, plain steps."""
    data = make_clients()
    state, updates, after = play(method, data, KEY)
    particles = np.asarray(state.particles)
    keys = jax.random.split(jax.random.fold_in(KEY, 5), CLIENTS)
    total = np.zeros_like(particles)
    for i in range(CLIENTS):
        shared = method is METHOD
        noise = noise_of(
            jax.random.wrap_key_data(state.seed) if shared else jax.random.fold_in(keys[i], 1)
        )
        x, y = data.x[i, : LENGTHS[i]], data.y[i, : LENGTHS[i]]
        for row, phi in enumerate(particles):
            gradient = oracle.central_differences(
                lambda p: log_evidence(p, noise[row], x, y, oracle),  # noqa: B023
                phi,
            )
            np.testing.assert_allclose(updates.gradients[i, row], gradient, rtol=1e-6, atol=1e-8)
            total[row] += gradient
        values = [log_evidence(phi, noise[row], x, y, oracle) for row, phi in enumerate(particles)]
        assert float(updates.log_evidence[i]) == pytest.approx(np.mean(values) / LENGTHS[i])
    means = np.repeat([0.0, np.log(0.2)], WEIGHTS)
    stds = np.repeat([0.7, 1.0], WEIGHTS)
    scores = (means - particles) / stds**2 + 0.3 * total
    expected = particles + 0.01 * svgd_direction(particles, scores)
    np.testing.assert_allclose(after.particles, expected, rtol=1e-6, atol=1e-8)


def test_every_round_has_its_own_noise() -> None:
    state, _, after = play(METHOD, make_clients(), KEY)
    assert state.seed.shape == after.seed.shape == (2,) and state.seed.dtype == jnp.uint32
    step = compiled(METHOD.server_update)
    updates = Update(jnp.zeros((CLIENTS, PARTICLES, PRIOR.size)), jnp.zeros(CLIENTS))
    seeds = {tuple(np.asarray(after.seed).tolist())}
    for number in range(3):
        after = step(after, updates, jnp.ones(CLIENTS), jax.random.key(number + 1))
        seeds.add(tuple(np.asarray(after.seed).tolist()))
    assert len(seeds) == 4


@partial(compiled, static_argnums=0)
def personalize(method: PACPFL, state: State, data: Data, x: jax.Array) -> tuple[Any, Any]:
    """All clients in one call."""
    keys = jax.random.split(jax.random.key(8), CLIENTS)

    def one(data: Data, key: jax.Array) -> tuple[PersonalModel, Probabilities]:
        model = method.personalize(state, (), data, key)
        return model, model(x)

    return jax.vmap(one)(data, keys)


def test_personal_models_are_mixtures_over_particles_and_networks(oracle: SimpleNamespace) -> None:
    data = make_clients()
    state, _, _ = play(METHOD, data, KEY)
    x = data.x[0]
    models, predictions = personalize(METHOD, state, data, x)
    posteriors = models.posteriors
    weights = np.concatenate([posteriors.body, posteriors.head], -1)
    assert weights.shape == (CLIENTS, PARTICLES, 3, WEIGHTS)
    for i in range(CLIENTS):
        shares = softmax(logsumexp(posteriors.log_likelihoods[i], axis=-1))
        assert abs(shares[0] - 0.5) > 1e-3
        np.testing.assert_allclose(models.weights[i], shares, rtol=1e-10)
        expected = np.zeros((SLOTS, 2))
        for row in range(PARTICLES):
            for one in weights[i, row]:
                expected += shares[row] / 3 * softmax(oracle.network(one, SIZES, x), 1)
        found = np.exp(predictions.log_probabilities[i])
        np.testing.assert_allclose(found, expected, rtol=1e-9)
        np.testing.assert_allclose(found.sum(1), 1, rtol=1e-12)


def test_clients_share_the_bodies_of_their_networks_or_not() -> None:
    data = make_clients()
    state, _, _ = play(METHOD, data, KEY)
    own = replace(OWN, prior=replace(OWN.prior, inference=Inference(networks=3, steps=0)))
    for method, equal in ((METHOD, True), (own, False)):
        bodies = np.asarray(personalize(method, state, data, data.x[0])[0].posteriors.body)
        assert (np.abs(bodies[0] - bodies[1]).max() == 0) == equal
        assert np.abs(bodies[:, 0] - bodies[:, 1]).max() > 0.01
