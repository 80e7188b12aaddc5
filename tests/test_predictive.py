"""Questions to a predictive mixture, against scipy's normal distribution and root finder."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.optimize import brentq

from pacpfl import predictive
from pacpfl.types import Prediction

pytestmark = pytest.mark.usefixtures("x64")

LEVELS = np.array([1e-6, 0.025, 0.3, 0.5, 0.51, 0.95, 0.999])
# weights, and (mean, std) of each component at each of two inputs
MIXTURES = {
    "three": (
        [0.2, 0.5, 0.3],
        [[0.0, 1.0], [2.0, -1.0], [-1.0, 0.5]],
        [[1.0, 0.3], [0.5, 2], [2, 1]],
    ),
    "far apart": ([0.5, 0.5], [[-1e3, 0.0], [1e3, 50.0]], [[0.1, 1e-3], [0.2, 1e-2]]),
    "zero weight": (
        [0.0, 0.7, 0.3],
        [[1e9, -1e9], [0.0, 1.0], [3, 2]],
        [[1.0, 1], [1, 1], [0.4, 2]],
    ),
    "one": ([1.0], [[3.0, -2.0]], [[0.7, 1e-4]]),
}
every_mixture = pytest.mark.parametrize("name", MIXTURES)
cdf, quantiles, log_density = map(
    jax.jit, (predictive.cdf, predictive.quantiles, predictive.log_density)
)


def make(name: str, dtype: type = np.float64) -> Prediction:
    weights, means, stds = (jnp.asarray(part, dtype) for part in MIXTURES[name])
    return Prediction(weights, means, stds)


def peer_cdf(prediction: Prediction, point: int, y: float | np.ndarray) -> np.ndarray:
    weights, means, stds = map(np.asarray, prediction)
    each = [stats.norm.cdf(y, m, s) for m, s in zip(means[:, point], stds[:, point], strict=True)]
    return np.tensordot(weights, np.array(each), 1)


@every_mixture
def test_mean_and_std_are_moments_of_the_density(name: str) -> None:
    """Every component integrated by Gauss and Hermite's rule, exact for squares."""
    prediction = make(name)
    nodes, shares = np.polynomial.hermite_e.hermegauss(5)
    shares = shares / shares.sum()
    weights, means, stds = map(np.asarray, prediction)
    for point in range(2):
        values = means[:, point, None] + stds[:, point, None] * nodes
        masses = weights[:, None] * shares
        mean = np.sum(masses * values)
        variance = np.sum(masses * (values - mean) ** 2)
        np.testing.assert_allclose(predictive.mean(prediction)[point], mean, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(predictive.std(prediction)[point] ** 2, variance, rtol=1e-10)


def test_std_keeps_its_digits_far_from_zero() -> None:
    prediction = Prediction(jnp.ones(1), jnp.full((1, 1), 1e8), jnp.full((1, 1), 1e-3))
    np.testing.assert_allclose(predictive.std(prediction), 1e-3, rtol=1e-12)


@every_mixture
def test_cdf_and_log_density(name: str) -> None:
    prediction = make(name)
    for y in (np.array([-0.4, 0.9]), np.array([5.0, -3.0]), np.array([999.9, 0.002])):
        found, log_found = cdf(prediction, y), log_density(prediction, y)
        for point in range(2):
            components = stats.norm(prediction.means[:, point], prediction.stds[:, point])
            used = np.asarray(prediction.weights) > 0
            logs = components.logpdf(y[point])[used] + np.log(np.asarray(prediction.weights)[used])
            np.testing.assert_allclose(
                found[point], peer_cdf(prediction, point, y[point]), atol=1e-13
            )
            np.testing.assert_allclose(log_found[point], np.logaddexp.reduce(logs), rtol=1e-10)


@every_mixture
def test_quantiles_against_a_root_finder(name: str) -> None:
    prediction = make(name)
    found = np.asarray(quantiles(prediction, LEVELS))
    assert found.shape == (len(LEVELS), 2)
    for row, level in zip(found, LEVELS, strict=True):
        for point, value in enumerate(row):
            assert peer_cdf(prediction, point, value) == pytest.approx(level, rel=1e-6)
            if name == "far apart" and level == 0.5:
                continue  # between the modes the CDF is flat: any value there is a median
            expected = brentq(
                lambda y: peer_cdf(prediction, point, y) - level,  # noqa: B023
                -3e3,
                3e3,
                xtol=1e-13,
            )
            assert value == pytest.approx(expected, rel=1e-7, abs=1e-8)


def test_quantiles_of_one_component_are_normal() -> None:
    prediction = make("one")
    expected = stats.norm([3.0, -2.0], [0.7, 1e-4]).ppf(LEVELS[:, None])
    np.testing.assert_allclose(quantiles(prediction, LEVELS), expected, rtol=1e-9)


def test_quantiles_know_two_bumps() -> None:
    """Nothing lies between the modes; a moment-matched Gaussian would put half of its mass there."""
    prediction = make("far apart")
    low, high = np.asarray(quantiles(prediction, np.array([0.49, 0.51])))[:, 0]
    assert low < -999 and high > 999


def test_quantiles_in_single_precision() -> None:
    """A component of weight zero a billion away must not cost the others their digits."""
    with jax.enable_x64(False):
        for name in ("three", "zero weight"):
            prediction = make(name, np.float32)
            levels = jnp.asarray(LEVELS[1:-1], jnp.float32)
            found = np.asarray(quantiles(prediction, levels))
            assert found.dtype == np.float32
            for row, level in zip(found, LEVELS[1:-1], strict=True):
                for point, value in enumerate(row):
                    assert peer_cdf(prediction, point, value) == pytest.approx(level, abs=2e-6)


@pytest.mark.parametrize("name", ["three", "zero weight", "one"])
def test_samples_follow_the_mixture(name: str) -> None:
    prediction = make(name)
    draws = np.asarray(predictive.samples(jax.random.key(1), prediction, 3000))
    assert draws.shape == (3000, 2)
    for point in range(2):
        ranks = peer_cdf(prediction, point, draws[:, point])
        assert stats.kstest(ranks, "uniform").pvalue > 1e-3
    if name == "three":
        assert abs(np.corrcoef(draws.T)[0, 1]) < 0.06, "each input draws its own component"


def test_many_clients_at_once() -> None:
    """Leading axes are clients."""
    rng = np.random.default_rng(0)
    weights = rng.dirichlet(np.ones(3), size=4)
    many = Prediction(*map(jnp.asarray, (weights, rng.normal(size=(4, 3, 2)), np.ones((4, 3, 2)))))
    y = rng.normal(size=(4, 2))
    found = [predictive.mean(many), predictive.std(many), cdf(many, y), log_density(many, y)]
    for client in range(4):
        own = Prediction(*(part[client] for part in many))
        alone = [
            predictive.mean(own),
            predictive.std(own),
            cdf(own, y[client]),
            log_density(own, y[client]),
        ]
        for together, separate in zip(found, alone, strict=True):
            np.testing.assert_allclose(together[client], separate, rtol=1e-12)
