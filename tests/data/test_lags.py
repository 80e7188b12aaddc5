"""Partial autocorrelations against their definition as regressions, and the choice of lags."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import signal

from pacpfl.data.pv import PAPER_LAGS, partial_autocorrelation, select_lags
from pacpfl.errors import InputError


def by_regression(series: np.ndarray, lag: int) -> float:
    """The last coefficient of the regression of x_t on x_{t-1}, ..., x_{t-lag}.

    The series is taken as zero (its mean) before its start and after its end, which is what dividing
    every sum of products by the whole length amounts to.
    """
    centred = np.concatenate([np.zeros(lag), series - series.mean(), np.zeros(lag)])
    rows = np.stack([centred[t - lag : t][::-1] for t in range(lag, len(centred))])
    coefficients, *_ = np.linalg.lstsq(rows, centred[lag:], rcond=None)
    return float(coefficients[-1])


def made(coefficients: dict[int, float], length: int, seed: int) -> np.ndarray:
    """x_t = sum of c x_{t-lag} + noise."""
    denominator = np.zeros(max(coefficients) + 1)
    denominator[0] = 1
    for lag, value in coefficients.items():
        denominator[lag] = -value
    noise = np.random.default_rng(seed).normal(size=length + 500)
    return np.asarray(signal.lfilter([1.0], denominator, noise))[500:]


@pytest.mark.parametrize("seed", [0, 1])
def test_recursion_equals_regression(seed: int) -> None:
    series = made({1: 0.5, 3: -0.3}, 90, seed) + 7
    found = partial_autocorrelation(series, 12)
    np.testing.assert_allclose(found, [by_regression(series, lag) for lag in range(1, 13)])


def test_recursion_equals_regression_on_a_daily_cycle() -> None:
    hours = np.arange(24 * 12)
    series = np.maximum(np.sin(2 * np.pi * hours / 24), 0)
    series = series * np.random.default_rng(1).uniform(0.2, 1, len(hours))
    found = partial_autocorrelation(series, 30)
    expected = [by_regression(series, lag) for lag in range(1, 31)]
    np.testing.assert_allclose(found, expected, atol=1e-10)


def test_an_autoregressive_series_has_as_many_partial_autocorrelations_as_terms() -> None:
    """phi_22 of x_t = a x_{t-1} + b x_{t-2} + e is b, phi_11 is a / (1 - b), the others are 0."""
    found = partial_autocorrelation(made({1: 0.5, 2: 0.3}, 200_000, 3), 8)
    np.testing.assert_allclose(found, [0.5 / 0.7, 0.3, 0, 0, 0, 0, 0, 0], atol=0.01)


def test_they_never_exceed_one() -> None:
    ramp = np.arange(50.0)
    assert np.abs(partial_autocorrelation(ramp, 49)).max() <= 1


def test_the_largest_on_average_are_selected() -> None:
    both = [made({2: 0.6}, 4000, 1), made({2: -0.6, 7: 0.3}, 4000, 2)]
    assert select_lags(both, 2, 20) == (2, 7)  # 2 has opposite signs in the two series
    assert select_lags(both[:1], 1, 20) == (2,)
    assert len(select_lags(both)) == len(PAPER_LAGS)
    assert list(select_lags(both)) == sorted(set(select_lags(both)))
    assert max(select_lags(both, 336, 336)) == 336  # two weeks of hours


@pytest.mark.parametrize(
    ("series", "longest", "words"),
    [
        (np.ones(50), 5, "never changes"),
        (np.arange(5.0), 5, "shape (5,)"),
        (np.array([1.0, np.nan, 2.0]), 1, "finite"),
        (np.ones((4, 4)), 1, "shape (4, 4)"),
    ],
)
def test_series_without_partial_autocorrelations(
    series: np.ndarray, longest: int, words: str
) -> None:
    with pytest.raises(InputError) as caught:
        partial_autocorrelation(series, longest)
    assert words in str(caught.value)


@pytest.mark.parametrize(("count", "series"), [(0, 1), (400, 1), (3, 0)])
def test_choices_that_cannot_be_made(count: int, series: int) -> None:
    with pytest.raises(InputError, match=f"^{count} lags up to 336 .* {series} series"):
        select_lags([made({1: 0.5}, 500, 0)] * series, count)
