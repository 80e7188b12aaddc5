"""Metrics against examples worked by hand, slow loops, scikit-learn and scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from sklearn.calibration import calibration_curve
from sklearn.metrics import accuracy_score, brier_score_loss, r2_score

from pacpfl import metrics


def test_rsmse_against_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    y = 3 + 2 * rng.normal(size=50)
    mean = y + rng.normal(size=50)
    assert metrics.rsmse(y, mean) == pytest.approx(math.sqrt(1 - r2_score(y, mean)), rel=1e-12)


def test_calibration_curve_by_hand() -> None:
    cdf, levels = np.array([0.1, 0.2, 0.6, 0.9]), np.array([0.0, 0.15, 0.2, 0.6, 1.0])
    np.testing.assert_allclose(metrics.calibration_curve(cdf, levels), [0, 0.25, 0.5, 0.75, 1])
    expected = (0 + 0.10 + 0.30 + 0.15 + 0) / 5
    assert metrics.calibration_error(cdf, levels) == pytest.approx(expected)


def test_calibration_error_of_the_extremes() -> None:
    """At twenty levels from 0 to 1. Targets always at the median: half of all levels see 0, half see 1;
    the mean gap is 2 (0 + 1 + ... + 9) / (19 * 20) = 90 / 380."""
    assert metrics.calibration_error(np.full(7, 0.5)) == pytest.approx(90 / 380)
    # Always below everything: the curve is 1 from the first level on.
    assert metrics.calibration_error(np.zeros(5)) == pytest.approx(0.5)
    # Always above everything: 0 up to the last level, where it is 1.
    assert metrics.calibration_error(np.ones(5)) == pytest.approx(9 / 20)
    assert metrics.calibration_error((np.arange(19000) + 0.5) / 19000) < 1e-4


def make_classes(count: int = 200) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(2)
    probabilities = rng.dirichlet(np.full(4, 0.4), size=count)
    likely = rng.random(count) < 0.6
    return probabilities, np.where(likely, probabilities.argmax(1), rng.integers(4, size=count))


@pytest.mark.parametrize("bins", [5, 20])
def test_classification_calibration_error_against_scikit_learn(bins: int) -> None:
    """Confidence as the probability of being correct; bins are closed on the right in both."""
    probabilities, labels = make_classes()
    confidence, correct = probabilities.max(1), probabilities.argmax(1) == labels
    accuracy, mean_confidence = calibration_curve(correct, confidence, n_bins=bins)
    counts = np.bincount(np.ceil(confidence * bins).astype(int) - 1)
    expected = np.abs(accuracy - mean_confidence) @ counts[counts > 0] / len(labels)
    found = metrics.classification_calibration_error(probabilities, labels, bins)
    assert found == pytest.approx(expected, rel=1e-12)


def test_bins_of_confidence_are_closed_on_the_right() -> None:
    """0.5, right, lies in (0, 1/2] and 0.7, wrong, in (1/2, 1]: (0.5 + 0.7) / 2. In one bin the
    two would cancel."""
    probabilities, labels = np.array([[0.5, 0.5], [0.7, 0.3]]), np.array([0, 1])
    found = metrics.classification_calibration_error(probabilities, labels, bins=2)
    assert found == pytest.approx(0.6)


def test_accuracy_and_brier_score_against_scikit_learn() -> None:
    probabilities, labels = make_classes()
    expected = accuracy_score(labels, probabilities.argmax(1))
    assert metrics.accuracy(probabilities, labels) == pytest.approx(expected)
    expected = brier_score_loss(labels, probabilities, labels=range(4), scale_by_half=False)
    assert metrics.brier(probabilities, labels) == pytest.approx(expected)


def test_coverage_counts_both_ends_as_inside() -> None:
    y = np.array([0.0, 1.0, 2.0, 3.0, 4.0])
    assert metrics.coverage(y, np.full(5, 1.0), np.full(5, 3.0)) == pytest.approx(0.6)
    assert metrics.coverage(y, y, y) == 1


def test_interval_against_scipy() -> None:
    values = np.random.default_rng(3).normal(size=5)
    mean, half = metrics.interval(values)
    low, high = stats.t.interval(0.95, 4, loc=values.mean(), scale=stats.sem(values))
    assert (mean - half, mean + half) == pytest.approx((low, high), rel=1e-12)
    assert metrics.interval(np.append(values, np.nan)) == pytest.approx((mean, half))


def test_interval_of_one_value_has_no_width() -> None:
    mean, half = metrics.interval(np.array([2.5]))
    assert mean == 2.5 and math.isnan(half)
    assert all(map(math.isnan, metrics.interval(np.array([]))))


def test_reliability_adds_up_over_clients() -> None:
    probabilities, labels = make_classes()
    whole = metrics.reliability(probabilities, labels)
    parts = [metrics.reliability(probabilities[s], labels[s]) for s in (slice(70), slice(70, 200))]
    np.testing.assert_allclose(whole, sum(parts))
    assert whole[:, 0].sum() == 200
