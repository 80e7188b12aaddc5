"""What the Polynomial study promises of mixture priors, with the shipped configuration, five seeds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from pacpfl.engine.evaluate import Evaluation
from reproduction import polynomial

Table = dict[tuple[str, str, str, str], float]  # by dataset, group, method, metric


@pytest.fixture(scope="module")
def table(polynomial_table: Callable[..., Table]) -> Table:
    return polynomial_table("polynomial-opposite", ("mixture-K1", "mixture-K2"))


@pytest.mark.parametrize("group", ["existing", "new"])
def test_a_mixture_prior_beats_a_single_one_by_a_fifth_and_tells_the_kinds_apart(table, group):
    single = table["polynomial-opposite", group, "mixture-K1", "rsmse"]
    mixed = table["polynomial-opposite", group, "mixture-K2", "rsmse"]
    assert mixed <= 0.8 * single
    assert table["polynomial-opposite", group, "mixture-K2", "recovered"] >= 0.95


def test_recovered_kinds_ignores_how_members_are_numbered():
    kinds = np.array([0, 0, 1, 1])
    shares = np.array([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.6, 0.4]])

    def share(values: np.ndarray | None) -> float | None:
        return polynomial.recovered_kinds(
            Evaluation([], np.zeros(0), [], [], [], None, values), kinds
        )

    assert share(shares) == share(shares[:, ::-1]) == 0.75
    assert share(None) is None
    assert share(np.ones((4, 3)) / 3) is None
