"""Questions to a predictive mixture, against scipy's normal distribution and root finder."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.optimize import brentq

from pacpfl import predictive
from pacpfl.types import Mixture, Prediction, WarpedPrediction

pytestmark = pytest.mark.usefixtures("x64")

LEVELS = np.array([1e-6, 0.025, 0.3, 0.5, 0.51, 0.95, 0.999])
# weights, and (mean, std) of each component at each of two inputs; of a warped one c, ln l, e, ln d
MIXTURES = {
    "three": ([0.2, 0.5, 0.3], [[0, 1], [2, -1], [-1, 0.5]], [[1, 0.3], [0.5, 2], [2, 1]]),
    "far apart": ([0.5, 0.5], [[-1e3, 0.0], [1e3, 50.0]], [[0.1, 1e-3], [0.2, 1e-2]]),
    "zero weight": ([0, 0.7, 0.3], [[1e9, -1e9], [0, 1], [3, 2]], [[1, 1], [1, 1], [0.4, 2]]),
    "one": ([1.0], [[3.0, -2.0]], [[0.7, 1e-4]]),
    "warped": (
        *([0.6, 0, 0.4], [[0.5, -1], [1e3, 1e3], [1.5, 2]], [[0.4, 1], [1, 1], [0.7, 0.2]]),
        [[0.3, 0, -0.8, 0.1], [0, 0, 0, 0], [-0.5, 0.4, 0.6, -0.4]],
    ),
}
every_mixture = pytest.mark.parametrize("name", MIXTURES)
mean, std = jax.jit(predictive.mean), jax.jit(predictive.std)
cdf, quantiles, log_density = map(
    jax.jit, (predictive.cdf, predictive.quantiles, predictive.log_density)
)


def make(name: str, dtype: type = np.float64) -> Mixture:
    parts = [jnp.asarray(part, dtype) for part in MIXTURES[name]]
    return WarpedPrediction(*parts) if name == "warped" else Prediction(*parts)


def peer_forward(said: Mixture, y: np.ndarray) -> np.ndarray:
    """What is Gaussian in each component, from the targets y [...]: [components, ...]."""
    if isinstance(said, Prediction):
        return np.broadcast_to(y, (len(said.weights), *np.shape(y)))
    bends = np.asarray(said.warps).reshape(-1, 4, *[1] * np.ndim(y))
    bent = np.arcsinh((y - bends[:, 0]) / np.exp(bends[:, 1]))
    return np.sinh(np.exp(bends[:, 3]) * bent - bends[:, 2])


def peer_backward(said: Mixture, z: np.ndarray) -> np.ndarray:
    """The targets [components, ...] from what is Gaussian."""
    if isinstance(said, Prediction):
        return z
    c, log_l, e, log_d = np.asarray(said.warps).T[:, :, None]
    return c + np.exp(log_l) * np.sinh((np.arcsinh(z) + e) / np.exp(log_d))


def peer_cdf(said: Mixture, point: int, y: float | np.ndarray) -> np.ndarray:
    z = peer_forward(said, np.asarray(y))
    own = zip(z, said.means[:, point], said.stds[:, point], strict=True)
    return np.tensordot(said.weights, np.array([stats.norm.cdf(*each) for each in own]), 1)


@every_mixture
def test_mean_and_std_are_moments_of_the_density(name: str) -> None:
    """Every component integrated by Gauss and Hermite's rule, for lines exact for squares."""
    said = make(name)
    nodes, shares = np.polynomial.hermite_e.hermegauss(5 if name != "warped" else 120)
    masses = np.outer(said.weights, shares / shares.sum())
    for point in range(2):
        drawn = np.asarray(said.means)[:, point, None] + said.stds[:, point, None] * nodes
        values = peer_backward(said, np.asarray(drawn))
        middle = np.sum(masses * values)
        variance = np.sum(masses * (values - middle) ** 2)
        np.testing.assert_allclose(mean(said)[point], middle, rtol=1e-8, atol=1e-12)
        np.testing.assert_allclose(std(said)[point] ** 2, variance, rtol=1e-7)


def test_std_keeps_its_digits_far_from_zero() -> None:
    prediction = Prediction(jnp.ones(1), jnp.full((1, 1), 1e8), jnp.full((1, 1), 1e-3))
    np.testing.assert_allclose(predictive.std(prediction), 1e-3, rtol=1e-12)


@every_mixture
def test_cdf_and_log_density(name: str) -> None:
    said, weights = make(name), np.array(MIXTURES[name][0])
    for y in (np.array([-0.4, 0.9]), np.array([5.0, -3.0]), np.array([999.9, 0.002])):
        found, log_found = cdf(said, y), log_density(said, y)
        slopes = (peer_forward(said, y + 1e-5) - peer_forward(said, y - 1e-5)) / 2e-5
        logs = stats.norm(said.means, said.stds).logpdf(peer_forward(said, y)) + np.log(slopes)
        used = weights > 0
        expected = np.logaddexp.reduce(logs[used] + np.log(weights[used])[:, None])
        below = [peer_cdf(said, point, y[point]) for point in range(2)]
        np.testing.assert_allclose(found, below, atol=1e-13)
        np.testing.assert_allclose(log_found, expected, rtol=1e-7)


@every_mixture
def test_quantiles_against_a_root_finder(name: str) -> None:
    said = make(name)
    found = np.asarray(quantiles(said, LEVELS))
    assert found.shape == (len(LEVELS), 2)
    for row, level in zip(found, LEVELS, strict=True):
        for point, value in enumerate(row):
            assert peer_cdf(said, point, value) == pytest.approx(level, rel=1e-6)
            if name == "far apart" and level == 0.5:
                continue  # between the modes the CDF is flat: any value there is a median
            missing = lambda y: peer_cdf(said, point, y) - level  # noqa: B023, E731
            expected = brentq(missing, -3e3, 3e3, xtol=1e-13)
            assert value == pytest.approx(expected, rel=1e-7, abs=1e-8)


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


@pytest.mark.parametrize("name", ["three", "zero weight", "one", "warped"])
def test_samples_follow_the_mixture(name: str) -> None:
    prediction = make(name)
    draws = np.asarray(predictive.samples(jax.random.key(1), prediction, 3000))
    assert draws.shape == (3000, 2)
    for point in range(2):
        ranks = peer_cdf(prediction, point, draws[:, point])
        assert stats.kstest(ranks, "uniform").pvalue > 1e-3
    if name == "three":
        assert abs(np.corrcoef(draws.T)[0, 1]) < 0.06, "each input draws its own component"


@pytest.mark.parametrize("name", ["three", "warped"])
def test_predictions_in_other_units(name: str) -> None:
    said, shift, scale, y = make(name), 20.0, 4.0, jnp.array([0.3, 0.9])
    moved = predictive.in_units(said, shift, scale)
    np.testing.assert_allclose(mean(moved), shift + scale * np.asarray(mean(said)), rtol=1e-9)
    np.testing.assert_allclose(std(moved), scale * np.asarray(std(said)), rtol=1e-9)
    np.testing.assert_allclose(cdf(moved, shift + scale * y), cdf(said, y), rtol=1e-9)
    expected = np.asarray(log_density(said, y)) - np.log(scale)
    np.testing.assert_allclose(log_density(moved, shift + scale * y), expected)


@pytest.mark.parametrize("name", ["three", "warped"])
def test_many_clients_at_once(name: str) -> None:
    """Leading axes are clients."""
    each = [predictive.in_units(make(name), shift, 1.5) for shift in (0.0, 1.0, -2.0)]
    y = np.random.default_rng(0).normal(size=(3, 2))

    def answers(said: Mixture, y: np.ndarray) -> list[jax.Array]:
        return [predictive.mean(said), predictive.std(said), cdf(said, y), log_density(said, y)]

    found = answers(jax.tree.map(lambda *parts: jnp.stack(parts), *each), y)
    for client, own in enumerate(each):
        for together, alone in zip(found, answers(own, y[client]), strict=True):
            np.testing.assert_allclose(together[client], alone, rtol=1e-12)
