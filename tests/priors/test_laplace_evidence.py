"""Laplace's evidence of networks: exact where it should be, near quadrature elsewhere, and its slope."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import multivariate_normal, norm

from pacpfl.errors import InputError
from pacpfl.likelihoods import Categorical, Gaussian
from pacpfl.priors.bnn import BNNPrior, BNNSettings
from pacpfl.priors.inference import Inference
from pacpfl.priors.networks import MLP
from pacpfl.types import Data

pytestmark = pytest.mark.usefixtures("x64")
LOCAL = BNNSettings(objective="laplace", initial_std=0.5)
WHOLE = Inference("laplace", networks=3, adapt="all", steps=8)


def classes(rows: int, features: int, count: int, seed: int = 0) -> Data:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows + 2, features))
    y, mask = rng.integers(count, size=rows + 2), np.arange(rows + 2) < rows  # two are padding
    return Data(jnp.asarray(x), jnp.asarray(y, float), jnp.asarray(mask))


@pytest.mark.parametrize("temperature", [1.0, 0.4])
def test_of_a_linear_network_with_gaussian_noise_it_is_exact(temperature: float) -> None:
    rng = np.random.default_rng(1)
    prior = BNNPrior(MLP((2, 1)), Gaussian(0.3), LOCAL, WHOLE)
    x, y = rng.normal(size=(6, 2)), rng.normal(size=6)
    data = Data(jnp.asarray(x), jnp.asarray(y), jnp.ones(6, bool))
    means, std = rng.normal(size=3), np.exp(rng.normal(size=3))
    phi = jnp.asarray(np.concatenate([means, np.log(std)]))
    design = np.column_stack([x, np.ones(6)])
    variance = 0.3**2 / temperature  # N(y | f, s^2)^t is c_t N(y | f, s^2 / t)
    cov = design @ np.diag(std**2) @ design.T + variance * np.eye(6)
    scale = 3 * (1 - temperature) * np.log(2 * np.pi * 0.3**2) - 3 * np.log(temperature)
    expected = multivariate_normal(design @ means, cov).logpdf(y) + scale
    assert prior.draw(jax.random.key(0), float) == ()
    assert prior.log_evidence(phi, data, temperature) == pytest.approx(expected, rel=1e-10)


def test_of_classes_it_is_near_quadrature() -> None:
    """Two classes, one feature: four weights, by Gauss and Hermite."""
    prior = BNNPrior(MLP((1, 2)), Categorical(2), LOCAL, WHOLE)
    data = classes(9, 1, 2)
    phi = jnp.asarray([0.3, -0.2, 0.1, 0.0, *np.log([0.7, 0.4, 0.9, 0.5])])
    places, weights = np.polynomial.hermite_e.hermegauss(24)
    grid = np.array(list(itertools.product(places, repeat=4)))
    mass = np.log(np.array(list(itertools.product(weights / weights.sum(), repeat=4)))).sum(1)
    w = np.asarray(phi[:4]) + np.exp(np.asarray(phi[4:])) * grid
    x, y = np.asarray(data.x[:9, 0]), np.asarray(data.y[:9], int)
    logits = w[:, None, :2] * x[:, None] + w[:, None, 2:]
    likely = logits - logsumexp(logits, axis=2, keepdims=True)
    fits = np.take_along_axis(likely, np.broadcast_to(y[:, None], (len(w), 9, 1)), 2)[..., 0].sum(1)
    assert prior.log_evidence(phi, data) == pytest.approx(logsumexp(fits + mass), abs=0.05)


@pytest.mark.parametrize(("network", "adapt"), [(MLP((2, 3)), "all"), (MLP((2, 4, 3)), "last")])
def test_its_slope_is_that_of_finite_differences(network: MLP, adapt: str) -> None:
    inference = Inference("laplace", networks=2, adapt=adapt, steps=8)  # type: ignore[arg-type]
    prior, data = BNNPrior(network, Categorical(3), LOCAL, inference), classes(8, 2, 3)
    rng = np.random.default_rng(2)
    phi = jnp.asarray(rng.normal(size=prior.size) * 0.5)
    evidence = jax.jit(lambda phi: prior.log_evidence(phi, data, 0.8))
    slope, step = jax.grad(evidence)(phi), 1e-5
    for direction in rng.normal(size=(4, prior.size)):
        change = evidence(phi + step * direction) - evidence(phi - step * direction)
        assert slope @ direction == pytest.approx(float(change) / (2 * step), rel=1e-4, abs=1e-6)
    fixed = prior.inference.fixed(network)
    assert (
        np.asarray(prior.moments(phi)[1])[:fixed] == 0
    ).all()  # layers before are at their means


def test_it_learns_how_far_clients_are_apart_which_one_draw_does_not() -> None:
    """Clients' weights are 0.5 apart. The elbo, which is what one draw estimates, says: not at all."""
    rng, spreads = np.random.default_rng(3), np.array([0.01, 0.1, 0.25, 0.5, 1.0, 2.0])
    prior = BNNPrior(MLP((10, 2)), Categorical(2), LOCAL, WHOLE)
    x = rng.normal(size=(40, 30, 10))
    own = norm.rvs(scale=0.5, size=(40, 10, 2), random_state=rng)
    chance = 1 / (1 + np.exp(-(x @ (own[..., 1:] - own[..., :1]))[..., 0]))
    y = (rng.random((40, 30)) < chance).astype(float)
    data = Data(jnp.asarray(x), jnp.asarray(y), jnp.ones((40, 30), bool))
    noise = jax.random.normal(jax.random.key(0), (400, prior.network.size))
    drawn = BNNPrior(MLP((10, 2)), Categorical(2), BNNSettings(draws=400, objective="elbo"))

    @jax.jit
    def totals(spread: jax.Array) -> tuple[jax.Array, jax.Array]:
        phi = jnp.concatenate([jnp.zeros(22), jnp.full(22, jnp.log(spread))])
        local = jax.lax.map(lambda one: prior.log_evidence(phi, one), data)
        bound = jax.lax.map(lambda one: drawn.log_evidence(phi, one, noise=noise), data)
        return local.sum(), bound.sum()

    local, bound = np.array([totals(jnp.asarray(spread)) for spread in spreads]).T
    assert spreads[local.argmax()] == 0.5 and spreads[bound.argmax()] == 0.01


def test_many_weights_are_refused() -> None:
    with pytest.raises(InputError, match=r"at most 1000 weights .* 40[0-9]+ do"):
        BNNPrior(MLP((3, 400, 10)), Categorical(10), LOCAL, Inference(adapt="last"))
