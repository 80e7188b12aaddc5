"""What the Polynomial study promises, with the shipped configurations and five seeds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from reproduction.table import Table

Run = Callable[[str, tuple[str, ...]], Table]


@pytest.fixture(scope="module")
def plain(polynomial_table: Run) -> Table:
    return polynomial_table("polynomial", ("pacpfl", "vanilla", "pooled"))


@pytest.fixture(scope="module")
def opposite(polynomial_table: Run) -> Table:
    return polynomial_table("polynomial-opposite", ("mixture-K1", "mixture-K2"))


@pytest.mark.parametrize("group", ["existing", "new"])
@pytest.mark.parametrize("other", ["vanilla", "pooled"])
def test_learning_together_beats_going_alone_and_pooling(plain, group, other):
    ours, theirs = (plain.get("polynomial", group, row, "rsmse").mean for row in ("pacpfl", other))
    assert ours < theirs


@pytest.mark.parametrize("group", ["existing", "new"])
def test_predictions_are_calibrated(plain, group):
    assert plain.get("polynomial", group, "pacpfl", "ce").mean <= 0.12
    assert 0.85 <= plain.get("polynomial", group, "pacpfl", "coverage_90").mean <= 0.96


@pytest.mark.parametrize("group", ["existing", "new"])
def test_a_mixture_prior_beats_a_single_one_by_a_fifth_and_tells_the_kinds_apart(opposite, group):
    single, mixed = (
        opposite.get("polynomial-opposite", group, row, "rsmse").mean
        for row in ("mixture-K1", "mixture-K2")
    )
    assert mixed <= 0.8 * single
    assert opposite.get("polynomial-opposite", group, "mixture-K2", "recovered").mean >= 0.95
