"""The sinh-arcsinh warp against its definition: numerical slopes, scipy's quadrature and roots."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.integrate import quad, simpson
from scipy.optimize import brentq

from pacpfl import predictive, warp
from pacpfl.types import Prediction, WarpedPrediction

pytestmark = pytest.mark.usefixtures("x64")

# c, ln l, e, ln d: a line, a long lower tail, a long upper one with heavy tails, light tails far away
WARPS = {
    "line": (0.0, 0.0, 0.0, 0.0),
    "low": (0.3, 0.0, -0.8, 0.1),
    "high": (-0.5, 0.4, 0.6, -0.4),
    "far": (40.0, 2.0, -0.3, 0.3),
}
every_warp = pytest.mark.parametrize("name", WARPS)
LEVELS = np.array([0.001, 0.05, 0.5, 0.9, 0.999])
forward, backward, log_slope = map(jax.jit, (warp.forward, warp.backward, warp.log_slope))
moments = jax.jit(warp.moments)
cdf, quantiles, log_density, mean, std = map(
    jax.jit,
    (
        predictive.cdf,
        predictive.quantiles,
        predictive.log_density,
        predictive.mean,
        predictive.std,
    ),
)
ROOT = math.sqrt(2 * math.pi)
numbers = st.floats(-1.0, 1.0)


def formula(name: str, y: Any) -> Any:
    """The definition, written again."""
    c, log_l, e, log_d = WARPS[name]
    return np.sinh(np.exp(log_d) * np.arcsinh((y - c) / np.exp(log_l)) - e)


def inverse(name: str, z: float) -> float:
    c, log_l, e, log_d = WARPS[name]
    return c + math.exp(log_l) * math.sinh((math.asinh(z) + e) / math.exp(log_d))


def spread(name: str) -> np.ndarray:
    """Targets on both sides of the warp's centre, near and far."""
    return WARPS[name][0] + np.exp(WARPS[name][1]) * np.array([-30.0, -2, -0.1, 0, 0.4, 3, 50])


@every_warp
def test_forward_is_the_definition_and_backward_its_root(name: str) -> None:
    y = spread(name)
    z = np.asarray(forward(jnp.array(WARPS[name]), y))
    np.testing.assert_allclose(z, formula(name, y), rtol=1e-12)
    for value in (-2.5, -0.2, 0.0, 1.7):
        root = brentq(lambda y, v=value: formula(name, y) - v, -1e4, 1e4, xtol=1e-13)
        found = backward(jnp.array(WARPS[name]), jnp.array(value))
        np.testing.assert_allclose(found, root, rtol=1e-9, atol=1e-11)


@every_warp
def test_log_slope_is_that_of_a_small_difference(name: str) -> None:
    y, step = spread(name), 1e-4 * np.exp(WARPS[name][1])
    slopes = (formula(name, y + step) - formula(name, y - step)) / (2 * step)
    found = log_slope(jnp.array(WARPS[name]), y)
    np.testing.assert_allclose(found, np.log(slopes), rtol=1e-6, atol=1e-7)


def test_a_warp_without_skew_and_tails_is_a_line() -> None:
    y = np.linspace(-4, 4, 9)
    scaled = jnp.array([1.5, np.log(2.0), 0.0, 0.0])
    np.testing.assert_allclose(forward(scaled, y), (y - 1.5) / 2, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(log_slope(scaled, y), -np.log(2), rtol=1e-12)


def test_a_negative_skewness_makes_the_lower_tail_longer() -> None:
    low, middle, high = backward(jnp.array([0.0, 0, -0.7, 0]), jnp.array([-2.0, 0, 2]))
    assert middle - low > 2 * (high - middle)


def test_far_targets_stay_finite_in_single_precision() -> None:
    bend = jnp.array([0.0, 0.0, -1.0, 0.5], jnp.float32)
    y = jnp.array([-1e6, 1e6], jnp.float32)
    assert np.isfinite(forward(bend, y)).all()
    assert np.isfinite(jax.jacobian(warp.log_slope)(bend, y)).all()


@given(numbers, numbers, numbers, numbers, st.floats(-20, 20), st.floats(1e-3, 5))
def test_warps_rise_and_come_back(
    c: float, log_l: float, e: float, log_d: float, y: float, step: float
) -> None:
    bend = jnp.array([c, log_l, e, log_d])
    assert forward(bend, y + step) > forward(bend, jnp.array(y))
    there = forward(bend, jnp.array(y))
    np.testing.assert_allclose(backward(bend, there), y, rtol=1e-8, atol=1e-8)


@every_warp
@pytest.mark.parametrize(("centre", "width"), [(0.0, 0.3), (1.5, 1.0), (-2.0, 2.0)])
def test_moments_against_quadrature(name: str, centre: float, width: float) -> None:
    def expected(function: Callable[[float], float]) -> float:
        def weighed(u: float) -> float:
            return function(inverse(name, centre + width * u)) * math.exp(-(u**2) / 2) / ROOT

        return quad(weighed, -10, 10, epsabs=1e-11, epsrel=1e-11, limit=200)[0]

    first = expected(lambda y: y)
    second = expected(lambda y: (y - first) ** 2)
    found = moments(jnp.array(WARPS[name]), jnp.array(centre), jnp.array(width))
    np.testing.assert_allclose(found, (first, second), rtol=1e-6, atol=1e-9)


@every_warp
def test_warp_in_other_units(name: str) -> None:
    """Kilowatts instead of watts, and zero elsewhere: the same z, and densities per kilowatt."""
    bend, y, shift, scale = jnp.array(WARPS[name]), spread(name), -3.0, 0.01
    moved = warp.in_units(bend, shift, scale)
    np.testing.assert_allclose(
        forward(moved, shift + scale * y), forward(bend, y), rtol=1e-9, atol=1e-12
    )
    found = log_slope(moved, shift + scale * y)
    np.testing.assert_allclose(found, np.asarray(log_slope(bend, y)) - np.log(scale), atol=1e-9)


def mixture() -> WarpedPrediction:
    """Three components, one with weight zero, at two inputs."""
    return WarpedPrediction(
        jnp.array([0.6, 0.0, 0.4]),
        jnp.array([[0.5, -1.0], [1e3, 1e3], [1.5, 2.0]]),
        jnp.array([[0.4, 1.0], [1.0, 1.0], [0.7, 0.2]]),
        jnp.array([WARPS["low"], WARPS["line"], WARPS["high"]]),
    )


def density(point: int, y: np.ndarray) -> np.ndarray:
    """The mixture's density at one input, from the definition and its numerical slope."""
    said, total = mixture(), np.zeros_like(y)
    for number, name in ((0, "low"), (2, "high")):
        slope = (formula(name, y + 1e-5) - formula(name, y - 1e-5)) / 2e-5
        m, s = float(said.means[number, point]), float(said.stds[number, point])
        total += float(said.weights[number]) * stats.norm.pdf(formula(name, y), m, s) * slope
    return total


@pytest.mark.parametrize("point", [0, 1])
def test_warped_mixture_against_quadrature_of_its_density(point: int) -> None:
    said, y = mixture(), np.linspace(-60, 60, 240_001)
    values = density(point, y)
    first = simpson(y * values, x=y)
    second = simpson((y - first) ** 2 * values, x=y)
    np.testing.assert_allclose(simpson(values, x=y), 1, rtol=1e-6)
    np.testing.assert_allclose(mean(said)[point], first, rtol=1e-6)
    np.testing.assert_allclose(std(said)[point], np.sqrt(second), rtol=1e-5)
    for number in (118_000, 120_400, 122_200):  # -1, 0.2 and 1.1
        at, part = jnp.full(2, y[number]), slice(number + 1)
        np.testing.assert_allclose(log_density(said, at)[point], np.log(values[number]), rtol=1e-6)
        below = simpson(values[part], x=y[part])
        np.testing.assert_allclose(cdf(said, at)[point], below, rtol=1e-6)


def test_quantiles_of_a_warped_mixture_invert_its_distribution() -> None:
    said = mixture()
    for level, row in zip(LEVELS, np.asarray(quantiles(said, LEVELS)), strict=True):
        np.testing.assert_allclose(cdf(said, row), level, rtol=1e-10)


def test_draws_of_a_warped_mixture_follow_it() -> None:
    said = mixture()
    drawn = np.asarray(predictive.samples(jax.random.key(0), said, 4000))
    for point in range(2):
        column = np.sort(drawn[:, point])
        at_both = jnp.asarray(np.stack([column, column]))
        below = jax.vmap(lambda y: cdf(said, y), in_axes=1)(at_both)[:, point]
        assert stats.kstest(below, "uniform").pvalue > 0.01
        np.testing.assert_allclose(column.mean(), mean(said)[point], atol=4 * column.std() / 60)


@pytest.mark.parametrize("warped", [True, False])
def test_predictions_in_other_units(warped: bool) -> None:
    said = mixture() if warped else Prediction(*mixture()[:3])
    shift, scale, y = 20.0, 4.0, jnp.array([0.3, 0.9])
    moved = predictive.in_units(said, shift, scale)
    np.testing.assert_allclose(mean(moved), shift + scale * np.asarray(mean(said)), rtol=1e-9)
    np.testing.assert_allclose(std(moved), scale * np.asarray(std(said)), rtol=1e-9)
    np.testing.assert_allclose(cdf(moved, shift + scale * y), cdf(said, y), rtol=1e-9)
    np.testing.assert_allclose(
        log_density(moved, shift + scale * y), np.asarray(log_density(said, y)) - np.log(scale)
    )
