"""Kernels against scipy and scikit-learn, and one's own in the table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial.distance import cdist
from sklearn.gaussian_process.kernels import ExpSineSquared, Matern

from pacpfl.errors import InputError
from pacpfl.hyper import Block
from pacpfl.priors.gp import GPPrior, GPSettings
from pacpfl.priors.kernels import KERNELS, Kernel, gaussian, matern52, radial, register_kernel

pytestmark = pytest.mark.usefixtures("x64")

PEERS: dict[str, tuple[Any, Callable[[np.ndarray, np.ndarray], np.ndarray]]] = {
    "gaussian": (gaussian, lambda a, b: np.exp(-0.5 * cdist(a, b, "sqeuclidean"))),
    "matern": (matern52, lambda a, b: Matern(1.0, nu=2.5)(a, b)),
}


@pytest.mark.parametrize("name", PEERS)
@pytest.mark.parametrize("features", [1, 4, 5])  # up to four by differences, more by products
@pytest.mark.parametrize("origin", [0.0, 1e3])
def test_values_and_gradients_of_radial_kernels(name: str, features: int, origin: float) -> None:
    """By differences of the peers' values; in float32 also where all inputs are far from the origin.
    Two inputs are the same: there the distance has no derivative, and the kernel has."""
    profile, peer = PEERS[name]
    rng = np.random.default_rng(33)
    drawn = (origin + rng.normal(size=(count, features)) for count in (6, 5))
    a, b = (x.astype(np.float32).astype(np.float64) for x in drawn)
    b[0] = a[0]
    weight = rng.normal(size=(6, 5))

    def value(a: np.ndarray, b: np.ndarray) -> float:
        return float(np.sum(weight * peer(a, b)))

    def slopes(of: Callable[[np.ndarray], float], at: np.ndarray) -> np.ndarray:
        steps = 1e-5 * np.eye(at.size).reshape(-1, *at.shape)
        return np.array([(of(at + s) - of(at - s)) / 2e-5 for s in steps]).reshape(at.shape)

    expected = slopes(lambda a: value(a, b), a), slopes(lambda b: value(a, b), b)

    def found(kind: type) -> tuple[Any, Any]:
        at = (jnp.asarray(a, kind), jnp.asarray(b, kind))
        total = lambda a, b: jnp.sum(weight * radial(profile, a, b))  # noqa: E731
        return jax.value_and_grad(total, (0, 1))(*at)

    for kind, error in ((np.float64, 1e-8), (np.float32, 1e-5)):
        total, gradients = found(kind)
        np.testing.assert_allclose(total, value(a, b), atol=error)
        for gradient, wanted in zip(gradients, expected, strict=True):
            np.testing.assert_allclose(gradient, wanted, atol=error)


def test_matern_has_second_derivatives_where_inputs_are_the_same() -> None:
    """k'' = -5/3 at a distance of 0."""
    at = jnp.zeros((1, 1))
    slope = lambda a: jax.grad(lambda a: radial(matern52, a, at)[0, 0])(a)[0, 0]  # noqa: E731
    assert float(slope(at)) == 0
    distances = jnp.array([[1e-4]])
    assert float(slope(distances)) / 1e-4 == pytest.approx(-5 / 3, rel=1e-3)


def test_the_periodic_kernel_against_scikit_learn() -> None:
    prior = GPPrior(2, GPSettings(mean="zero", kernel="periodic"))
    rng = np.random.default_rng(3)
    phi, (a, b) = 0.5 * rng.normal(size=prior.size), rng.normal(size=(2, 5, 2))
    waves = [ExpSineSquared(np.exp(phi[j]), np.exp(phi[2 + j])) for j in (0, 1)]
    expected = waves[0](a[:, :1], b[:, :1]) * waves[1](a[:, 1:], b[:, 1:])
    np.testing.assert_allclose(prior.covariance(jnp.asarray(phi), a, b), expected, rtol=1e-10)
    np.testing.assert_array_equal(prior.variance(jnp.asarray(phi), a), np.ones(5))


def test_ones_own_kernel_is_one_record() -> None:
    """It has a block of the particle, and adds to others, repeated ones too."""
    bumps = Kernel(
        lambda features, settings: (Block("kernel.bumps", 1, -1.0, 0.3),),
        lambda phi, x, settings: jnp.cos(x * jnp.exp(phi)),
        lambda a, b: a @ b.T,
        lambda a: jnp.sum(a**2, -1),
    )
    register_kernel("bumps", bumps)
    try:
        prior = GPPrior(2, GPSettings(mean="zero", kernel="ard+bumps+ard", output_scale="learned"))
        assert [block.size for block in prior.blocks] == [0, 2, 1, 2, 3, 1]
        assert prior.blocks[2].mean == -1.0
        rng = np.random.default_rng(4)
        phi, x = (jnp.asarray(0.3 * rng.normal(size=size)) for size in (prior.size, (4, 2)))
        waves = np.cos(x * np.exp(phi[2]))
        expected = np.exp(2 * phi[6]) * waves @ waves.T
        for place, scale in ((0, 5), (3, 7)):
            scaled = x / np.exp(phi[place : place + 2])
            expected += np.exp(2 * phi[scale]) * np.exp(-0.5 * cdist(scaled, scaled, "sqeuclidean"))
        found = prior.covariance(phi, x)
        np.testing.assert_allclose(found, expected, rtol=1e-12)
        np.testing.assert_allclose(prior.variance(phi, x), np.diag(found), rtol=1e-12)
        with pytest.raises(InputError, match="bumps"):
            register_kernel("bumps", bumps)
    finally:
        del KERNELS["bumps"]
    with pytest.raises(InputError, match="periodic"):
        GPSettings(kernel="ard+bumps")
    with pytest.raises(InputError, match="one word"):
        register_kernel("ard+own", bumps)
