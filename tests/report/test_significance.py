"""Tests of single clients against SciPy, against enumeration, and Holm's procedure against its meaning."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from pacpfl.report.judge import (
    holm,
    paired_answers,
    paired_difference,
    surer_than_right,
    too_few_inside,
)


def closed_test(p_values: list[float], level: float) -> list[bool]:
    """A hypothesis falls if every set it belongs to is rejected by Bonferroni: Holm's definition."""
    places = range(len(p_values))
    sets = [s for size in range(1, len(p_values) + 1) for s in itertools.combinations(places, size)]
    rejected = {s: min(p_values[place] for place in s) <= level / len(s) for s in sets}
    return [all(rejected[s] for s in sets if place in s) for place in places]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.floats(0, 0.1), min_size=1, max_size=6))
def test_holm_is_the_closed_test(p_values: list[float]) -> None:
    assert holm(np.array(p_values), 0.05).tolist() == closed_test(p_values, 0.05)


def test_holm_counts_only_what_was_tested() -> None:
    values = np.array([0.02, np.nan, 0.03, np.nan])
    assert holm(values, 0.05).tolist() == [True, False, True, False]
    assert holm(np.array([np.nan])).tolist() == [False]
    assert holm(np.array([])).tolist() == []


def test_coverage_is_tested_as_scipy_does() -> None:
    shares, counts = np.array([0.8, 0.9, 0.55, np.nan]), np.array([10, 100, 20, 50])
    expected = [
        stats.binomtest(k, n, 0.9, alternative="less").pvalue
        for k, n in ((8, 10), (90, 100), (11, 20))
    ]
    found = too_few_inside(shares, counts, 0.9)
    np.testing.assert_allclose(found[:3], expected, rtol=1e-12)
    assert np.isnan(found[3])


def test_confidence_is_tested_by_enumeration() -> None:
    """Every pattern of right and wrong answers of eight, each with the probability of its bin."""
    table = np.array([[3, 1, 1.2], [0, 0, 0.0], [5, 2, 4.5]])
    chances = [0.4] * 3 + [0.9] * 5
    total = 0.0
    for pattern in itertools.product((0, 1), repeat=8):
        if sum(pattern) <= 3:
            total += np.prod([c if hit else 1 - c for c, hit in zip(chances, pattern, strict=True)])
    assert surer_than_right(table) == pytest.approx(total, rel=1e-10)
    assert np.isnan(surer_than_right(np.zeros((4, 3))))
    assert surer_than_right(np.array([[4.0, 4.0, 4.0]])) == 1.0


def test_differences_are_tested_as_scipy_does() -> None:
    random = np.random.default_rng(2)
    first, second = random.normal(0.3, 1, 40), random.normal(0, 1, 40)
    gap = first - second
    expected = stats.ttest_rel(first, second).pvalue
    assert paired_difference(40, gap.sum(), (gap**2).sum()) == pytest.approx(expected, rel=1e-9)
    assert paired_difference(5, 0.0, 0.0) == 1.0
    assert paired_difference(5, -10.0, 20.0) == 0.0  # each sample -2
    assert np.isnan(paired_difference(1, 1.0, 1.0))
    assert np.isnan(paired_difference(5, np.nan, 1.0))


@pytest.mark.parametrize(("wins", "losses"), [(0, 0), (3, 1), (1, 9), (5, 5), (12, 0)])
def test_answers_are_tested_as_scipy_does(wins: int, losses: int) -> None:
    found = paired_answers(50, wins - losses, wins + losses)
    count = wins + losses
    expected = stats.binomtest(wins, count, 0.5).pvalue if count else 1.0
    assert found == pytest.approx(expected, rel=1e-12)
