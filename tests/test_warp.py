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
from scipy.integrate import quad
from scipy.optimize import brentq

from pacpfl import warp

pytestmark = pytest.mark.usefixtures("x64")

# c, ln l, e, ln d: a line, a long lower tail, a long upper one with heavy tails, light tails far away
WARPS = {
    "line": (0.0, 0.0, 0.0, 0.0),
    "low": (0.3, 0.0, -0.8, 0.1),
    "high": (-0.5, 0.4, 0.6, -0.4),
    "far": (40.0, 2.0, -0.3, 0.3),
}
every_warp = pytest.mark.parametrize("name", WARPS)
forward, backward, log_slope = map(jax.jit, (warp.forward, warp.backward, warp.log_slope))
moments = jax.jit(warp.moments)
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
