"""Bayesian networks without a federation: each client alone, and everybody's samples in one place."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiling import compiled

from pacpfl.likelihoods import Categorical
from pacpfl.methods.alone import VanillaBNN
from pacpfl.priors.bnn import BNNPrior, BNNSettings
from pacpfl.priors.inference import Inference
from pacpfl.priors.networks import MLP
from pacpfl.types import Data

pytestmark = pytest.mark.usefixtures("x64")

INFERENCE = Inference("svgd", 3, "all", 150, 0.1, batch=8)
PRIOR = BNNPrior(MLP((2, 8, 2)), Categorical(2), BNNSettings(initial_std=1.0), inference=INFERENCE)
ALONE = VanillaBNN(PRIOR, particles=2)
KEY = jax.random.key(0)
NEVER_SEEN = Data(jnp.full((4, 2), 5.0), jnp.ones(4), jnp.ones(4, bool))


def blobs(flipped: bool, count: int, seed: int) -> Data:
    """Two clouds apart by six of their radii; a flipped client calls them the other way round."""
    rng = np.random.default_rng(seed)
    y = np.arange(count) % 2
    x = rng.normal(size=(count, 2)) + np.where(y == 1, 3.0, -3.0)[:, None]
    return Data(jnp.asarray(x), jnp.asarray(1.0 - y if flipped else 1.0 * y), jnp.ones(count, bool))


def padded(data: Data, rows: int = 20) -> Data:
    return Data(
        *(jnp.pad(part, [(0, rows - len(part))] + [(0, 0)] * (part.ndim - 1)) for part in data)
    )


@compiled
def probabilities(state: jax.Array, train: Data, x: jax.Array) -> jax.Array:
    """Each client with its own model, all in one call."""

    def one(train: Data, key: jax.Array) -> jax.Array:
        model = ALONE.personalize(state, ALONE.init_client(state, train, key), train, key)
        return jnp.exp(model(x).log_probabilities)

    return jax.vmap(one)(train, jax.random.split(KEY, train.y.shape[0]))


def test_every_client_learns_its_own_task_alone_and_pooling_confuses_them() -> None:
    """Two clients who contradict each other, and their samples together: that model is undecided."""
    one, other = blobs(False, 10, 0), blobs(True, 10, 1)
    together = Data(*map(jnp.concatenate, zip(one, other, strict=True)))
    train = jax.tree.map(lambda *a: jnp.stack(a), padded(one), padded(other), together)
    test = blobs(False, 100, 2)
    found = np.asarray(probabilities(ALONE.init(KEY, NEVER_SEEN), train, test.x))
    right = found[:, np.arange(100), np.asarray(test.y).astype(int)]
    assert (right[0] > 0.5).mean() > 0.98
    assert (right[1] < 0.5).mean() > 0.98
    assert np.abs(right[2] - 0.5).mean() < 0.25
    np.testing.assert_allclose(found.sum(-1), 1, rtol=1e-10)


def test_the_prior_is_fixed_and_has_seen_no_data() -> None:
    particles = ALONE.init(KEY, NEVER_SEEN)
    other = ALONE.init(KEY, jax.tree.map(jnp.zeros_like, NEVER_SEEN))
    np.testing.assert_array_equal(particles, other)
    assert particles.shape == (2, PRIOR.size)
    assert np.abs(particles[0] - particles[1]).max() > 0.1
    np.testing.assert_allclose(particles[:, PRIOR.network.size :], 0)
    assert ALONE.server_update(particles, (), jnp.ones(3), KEY) is particles
