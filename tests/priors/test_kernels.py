"""Distances and squared exponential covariances against scipy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial.distance import cdist

from pacpfl.priors.kernels import squared_distances, squared_exponential

pytestmark = pytest.mark.usefixtures("x64")


@pytest.mark.parametrize("features", [1, 4, 5, 12])
def test_squared_distances(features: int) -> None:
    """Far from the origin too: centring keeps the digits where products are used."""
    rng = np.random.default_rng(31)
    a, b = 1e4 + rng.normal(size=(6, features)), 1e4 + rng.normal(size=(5, features))
    expected = cdist(a, b, "sqeuclidean")
    np.testing.assert_allclose(
        squared_distances(jnp.asarray(a), jnp.asarray(b)), expected, rtol=1e-9
    )
    assert np.all(squared_distances(jnp.asarray(a), jnp.asarray(a)) >= 0)


@pytest.mark.parametrize("features", [2, 6])
@pytest.mark.parametrize("origin", [0.0, 1e3])
def test_gradient_of_the_squared_exponential(features: int, origin: float) -> None:
    """By differences of scipy's distances; in float32 also where all inputs are far from the origin."""
    rng = np.random.default_rng(33)
    drawn = (origin + rng.normal(size=(count, features)) for count in (6, 5))
    a, b = (x.astype(np.float32).astype(np.float64) for x in drawn)
    weight = rng.normal(size=(6, 5))

    def value(a: np.ndarray, b: np.ndarray) -> float:
        return float(np.sum(weight * np.exp(-0.5 * cdist(a, b, "sqeuclidean"))))

    def slopes(of: Callable[[np.ndarray], float], at: np.ndarray) -> np.ndarray:
        steps = 1e-5 * np.eye(at.size).reshape(-1, *at.shape)
        return np.array([(of(at + s) - of(at - s)) / 2e-5 for s in steps]).reshape(at.shape)

    expected = slopes(lambda a: value(a, b), a), slopes(lambda b: value(a, b), b)

    def gradient(kind: type) -> tuple[Any, Any]:
        at = (jnp.asarray(a, kind), jnp.asarray(b, kind))
        return jax.grad(lambda a, b: jnp.sum(weight * squared_exponential(a, b)), (0, 1))(*at)

    for kind, error in ((np.float64, 1e-8), (np.float32, 1e-5)):
        for found, wanted in zip(gradient(kind), expected, strict=True):
            np.testing.assert_allclose(found, wanted, atol=error)
