"""What the Polynomial study promises, with the shipped configurations and five seeds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from reproduction.table import Outcome, Published, rows

Table = dict[tuple[str, str, str, str], float]  # by dataset, group, method, metric


@pytest.fixture(scope="module")
def table(polynomial_table: Callable[..., Table]) -> Table:
    return polynomial_table("polynomial", ("pacpfl", "vanilla", "pooled"))


@pytest.mark.parametrize("group", ["existing", "new"])
@pytest.mark.parametrize("other", ["vanilla", "pooled"])
def test_learning_together_beats_going_alone_and_pooling(table, group, other):
    ours = table["polynomial", group, "pacpfl", "rsmse"]
    assert ours < table["polynomial", group, other, "rsmse"]


@pytest.mark.parametrize("group", ["existing", "new"])
def test_predictions_are_calibrated(table, group):
    assert table["polynomial", group, "pacpfl", "ce"] <= 0.12
    assert 0.85 <= table["polynomial", group, "pacpfl", "coverage_90"] <= 0.96


def test_rows_are_means_and_intervals_over_seeds_with_the_papers_value_beside():
    outcomes = [
        Outcome("d", "m", seed, 2.0 * seed, {"new": {"rsmse": value}})
        for seed, value in enumerate((1.0, 2.0, 3.0))
    ]
    (row,) = rows(outcomes, Published({("d", "new", "m", "rsmse"): (0.5, 0.1)}))
    assert (row["mean"], row["seeds"], row["seconds"]) == (2.0, 3, 2.0)
    # Student's t with two degrees of freedom: 4.3027; standard error 1 / sqrt(3).
    assert row["ci95"] == pytest.approx(4.302653 / np.sqrt(3), rel=1e-6)
    assert (row["paper_mean"], row["paper_ci95"]) == (0.5, 0.1)
