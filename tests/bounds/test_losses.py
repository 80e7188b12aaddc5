"""Bounded losses: exact expectations against quadrature."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given as generate
from hypothesis import settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from pacpfl.bounds import losses


def average(
    loss: Callable[[float], float], mean: float, variance: float, kinks: list[float]
) -> float:
    """E loss(h) for h ~ N(mean, variance), piece by piece between the kinks of the loss."""
    law = norm(mean, math.sqrt(variance))
    edges = [law.ppf(1e-14), law.isf(1e-14)]
    inner = sorted(k for k in kinks if edges[0] < k < edges[1])
    pieces = itertools.pairwise([edges[0], *inner, edges[1]])
    return sum(quad(lambda h: loss(h) * law.pdf(h), *piece, limit=200)[0] for piece in pieces)


CASES = [(0.0, 1.0, 0.0), (2.0, 0.3, 0.5), (-1.0, 4.0, 3.0), (0.1, 1e-4, 0.1), (0.0, 90.0, 1.0)]


@pytest.mark.parametrize(("mean", "variance", "target"), CASES)
@pytest.mark.parametrize("limit", [0.2, 1.0, 9.0])
def test_the_clipped_squared_error_against_quadrature(
    mean: float, variance: float, target: float, limit: float
) -> None:
    kinks = [target + sign * math.sqrt(limit) for sign in (-1, 0, 1)]
    exact = average(
        lambda h: float(losses.clipped_squared_error(h, target, limit)), mean, variance, kinks
    )
    value = float(losses.expected_clipped_squared_error(mean, variance, target, limit))
    assert value == pytest.approx(exact, abs=1e-9)


@pytest.mark.parametrize(("mean", "variance", "target"), CASES)
@pytest.mark.parametrize(("a", "b"), [(-1.0, 4.0), (1.2, 3.0), (-5.0, 0.95), (-2.0, -1.0)])
def test_the_clipped_nll_against_quadrature(
    mean: float, variance: float, target: float, a: float, b: float
) -> None:
    """Clips above and below the smallest value of the loss, and below all of its values."""
    std = 0.9
    offset = math.log(std * math.sqrt(2 * math.pi))
    roots = [std * math.sqrt(2 * max(0.0, clip - offset)) for clip in (a, b)]
    kinks = [target + sign * root for root in roots for sign in (-1, 1)]

    def loss(h: float) -> float:
        return float(losses.clipped_nll(norm(h, std).logpdf(target), a, b))

    exact = average(loss, mean, variance, kinks)
    value = float(losses.expected_clipped_gaussian_nll(mean, variance, target, std, a, b))
    assert value == pytest.approx(exact, abs=1e-9)


def test_misses_against_the_normal_law() -> None:
    law = norm(0.4, 1.3)
    outside = law.cdf(1.0 - 0.7) + law.sf(1.0 + 0.7)
    assert float(losses.expected_miss(0.4, 1.69, 1.0, 0.7)) == pytest.approx(outside, rel=1e-12)


def test_a_sure_model_has_the_loss_itself() -> None:
    assert float(losses.expected_clipped_squared_error(1.0, 0.0, 3.0, 9.0)) == pytest.approx(4.0)
    assert float(losses.expected_clipped_squared_error(1.0, 0.0, 30.0, 9.0)) == pytest.approx(9.0)
    assert float(losses.expected_miss(1.0, 0.0, 1.2, 0.5)) == 0.0
    assert float(losses.expected_miss(1.0, 0.0, 3.0, 0.5)) == 1.0
    sure = float(losses.expected_clipped_gaussian_nll(1.0, 0.0, 3.0, 2.0, -1.0, 5.0))
    assert sure == pytest.approx(-norm(1.0, 2.0).logpdf(3.0))


@settings(max_examples=300, deadline=None, derandomize=True)
@generate(
    mean=st.floats(-1e3, 1e3),
    variance=st.floats(0, 1e6),
    low=st.floats(0, 50),
    width=st.floats(1e-3, 1e3),
)
def test_the_expectation_stays_within_the_clips_and_grows_with_them(
    mean: float, variance: float, low: float, width: float
) -> None:
    value = float(losses.expected_clipped_square(mean, variance, low, low + width))
    assert low <= value <= low + width
    assert (
        value <= float(losses.expected_clipped_square(mean, variance, low, low + 2 * width)) + 1e-6
    )
    assert value == float(losses.expected_clipped_square(-mean, variance, low, low + width))


def test_extreme_values_stay_finite() -> None:
    values = losses.expected_clipped_square([1e100, 0.0, 1e-100], [0.0, 1e100, 1e-300], 0.0, 1.0)
    np.testing.assert_allclose(values, [1.0, 1.0, 0.0], atol=1e-12)


@pytest.mark.parametrize("scale", [0.9, 1.1, 30.0, 1e4, 1e8])
def test_a_law_much_wider_than_the_clip_loses_no_digits(scale: float) -> None:
    """1 - E min(u^2, 1) = E (1 - u^2)+, which is (4/3) times the density for a very wide law."""
    shortfall = 1 - losses.expected_clipped_square(0.3 * scale, scale**2, 0.0, 1.0)
    law = norm(0.3 * scale, scale)
    exact = quad(lambda u: (1 - u**2) * law.pdf(u), -1, 1, epsabs=0, epsrel=1e-12)[0]
    assert float(shortfall) == pytest.approx(exact, rel=1e-9, abs=4e-16)


def test_classification_losses_by_hand() -> None:
    np.testing.assert_array_equal(losses.zero_one([1, 2, 0], [1, 0, 0]), [0.0, 1.0, 0.0])
    p = [[0.7, 0.2, 0.1], [0.0, 0.0, 1.0]]
    np.testing.assert_allclose(losses.brier(p, [0, 1]), [0.09 + 0.04 + 0.01, 2.0])
    assert losses.miss_range(0.5) == losses.LossRange("off by more than 0.5", 0.0, 1.0)
    np.testing.assert_array_equal(losses.miss([1.0, 2.0], [1.4, 1.0], 0.5), [0.0, 1.0])
    np.testing.assert_allclose(losses.clipped_nll([-np.inf, 0.0, -1.5], 0.5, 3.0), [3.0, 0.5, 1.5])


def test_the_averaged_prediction_has_no_higher_brier_loss() -> None:
    p = np.random.default_rng(0).dirichlet(np.ones(4), (6, 50))
    labels = np.random.default_rng(1).integers(0, 4, 50)
    assert np.all(
        losses.brier(p.mean(axis=0), labels) <= losses.brier(p, labels).mean(axis=0) + 1e-12
    )
