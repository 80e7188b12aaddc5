"""What later samples may do: the server-level theorem's own step, exactly, and the printed one."""

from __future__ import annotations

import dataclasses
import itertools
import math

import finite_world as finite
import numpy as np
import pytest
from hypothesis import given as generate
from hypothesis import settings
from hypothesis import strategies as st

from pacpfl.bounds import ServerPremises, later_factor, later_range, server_bound


@pytest.mark.parametrize("seed", range(40))
def test_the_inequality_behind_later_samples_exactly(seed: int) -> None:
    """E_S exp(E_S~ beta L(Q*(P, S u S~)) + ln Z(P, S)) <= exp(f beta^2 / (8m)), summed out."""
    rng = np.random.default_rng(seed)
    m, later = int(rng.integers(1, 5)), int(rng.integers(0, 6))
    beta = float(np.exp(rng.uniform(-1, 3)))
    world = finite.random_world(rng, 1, (m,), (beta,), priors=3, hypotheses=4)
    sets = finite.data_sets(3, m)
    chances = finite.data_set_probability(sets, world.data[0])
    exponent = beta * finite.risks(world, sets[:, None], (later,))[:, 0] + np.log(
        finite.evidence(world, sets, beta)
    )
    left = np.log(chances @ np.exp(exponent))
    assert np.all(left <= later_factor(m, later) * beta**2 / (8 * m))


@pytest.mark.parametrize(("m", "later"), [(1, 1), (1, 4), (2, 1), (3, 2), (4, 4), (5, 1)])
@pytest.mark.parametrize("beta", [0.5, 3.0, 10.0])
def test_serfling_without_replacement_exactly(m: int, later: int, beta: float) -> None:
    """The mean of m of m + m~ numbers, all subsets listed: what `later_factor` stands on."""
    total = m + later
    factor = later_factor(m, later) - m / total  # what is left after the m + m~ samples' share
    for ones in range(total + 1):
        population = np.array([1.0] * ones + [0.0] * (total - ones))
        means = [population[list(s)].mean() for s in itertools.combinations(range(total), m)]
        left = np.log(np.mean(np.exp(-beta * (np.array(means) - population.mean()))))
        assert left <= factor * beta**2 / (8 * m) + 1e-12


@settings(max_examples=200, deadline=None, derandomize=True)
@generate(
    beta=st.floats(0.05, 30),
    sizes=st.lists(st.tuples(st.integers(1, 20), st.integers(0, 25)), min_size=1, max_size=5),
    hidden=st.lists(st.booleans(), min_size=5, max_size=5),
    kl=st.floats(0, 20),
    lambda_=st.floats(0.1, 1e4),
)
def test_not_knowing_the_later_samples_never_tightens_it(
    beta: float,
    sizes: list[tuple[int, int]],
    hidden: list[bool],
    kl: float,
    lambda_: float,
) -> None:
    samples = tuple(m for m, _ in sizes)
    known = tuple(later for _, later in sizes)
    partly = tuple(None if h else k for k, h in zip(known, hidden, strict=False))
    evidences = np.full(len(sizes), -0.4 * beta)
    base = ServerPremises((beta,) * len(sizes), samples, 0.0, 1.0, 0.05, known, lambda_)
    vague = dataclasses.replace(base, later=partly)
    assert (
        server_bound(evidences, kl, vague).value >= server_bound(evidences, kl, base).value - 1e-12
    )
    printed = [server_bound(evidences, kl, case, printed="theorem").value for case in (base, vague)]
    assert printed[1] >= printed[0] * (1 - 1e-12)


def test_as_printed_not_knowing_tightens_it_where_losses_are_negative() -> None:
    """b < 0 makes the printed Delta_i a large negative number, whose square enters the bound."""
    given = ServerPremises((4.0,) * 2, (3, 3), -3.0, -1.0, 0.05, (2, 2), lambda_=10.0)
    vague = dataclasses.replace(given, later=(None, None))
    known, unknown = (
        server_bound([8.0, 8.0], 0.5, case, printed="theorem").value for case in (given, vague)
    )
    assert unknown < known
    assert server_bound([8.0, 8.0], 0.5, vague).value > server_bound([8.0, 8.0], 0.5, given).value


@pytest.mark.parametrize(("a", "b"), [(0.0, 1.0), (-1.0, 0.0), (-3.0, -1.0)])
@pytest.mark.parametrize(("m", "later", "beta"), [(2, 1, 0.7), (1, 3, 2.0), (4, 4, 5.0)])
def test_later_range_is_kept_and_nearly_attained(
    a: float, b: float, m: int, later: int, beta: float
) -> None:
    """S all of one outcome and S~ all of the other, for hypotheses that disagree about them."""
    change = beta * (b - a) * later / (m + later)
    # The posterior on S must be odds exp(-change) against the hypothesis that S~ speaks for.
    odds = math.exp(-change) * math.exp(beta * (b - a))
    prior = np.array([[odds / (1 + odds), 1 / (1 + odds)]])
    losses, data = np.array([[b, a], [a, b]]), np.array([[1e-6, 1 - 1e-6]])
    world = finite.World(np.ones(1), prior, losses, data, (m,), (beta,), a, b)
    first = finite.gibbs(world, np.array([m, 0]), beta) @ world.true_risks[0]
    both = finite.gibbs(world, np.array([m, later]), beta) @ world.true_risks[0]
    moved = abs(float((both - first)[0]))
    assert moved <= later_range(beta, m, later, a, b, 1)
    assert moved >= 0.99 * later_range(beta, m, later, a, b, 1)
    if b <= 0:  # The printed Delta_i is zero or negative there, and the risk moves all the same.
        assert later_range(beta, m, later, a, b, 1, printed=True) <= 0 < moved


def test_the_paper_s_second_step_does_not_hold() -> None:
    """Later samples can make the average risk LARGER, so xi - g is not centred, and
    E exp(psi_2 / lambda_2) exceeds exp(lambda_2 Delta^2 / 8): the step's own claim, summed out.
    """
    width, lambda_2 = 0.1, 1.01
    prior, losses = np.array([[0.999, 0.001]]), width * np.array([[1.0, 1.0], [0.0, 1.0]])
    data = np.array([[0.7, 0.3]])
    world = finite.World(np.ones(1), prior, losses, data, (1,), (10.0 / width,), 0.0, width)
    sets = finite.data_sets(2, 1)
    chances = finite.data_set_probability(sets, world.data[0])
    gap = (finite.risks(world, sets[:, None], (1,)) - finite.risks(world, sets[:, None], (0,)))[
        :, 0, 0
    ]
    assert chances @ gap > 0.01  # a tenth of b - a
    delta_1 = later_range(10.0 / width, 1, 1, 0.0, width, 1, printed=True)
    claimed = math.exp(lambda_2 * delta_1**2 / 8)
    assert chances @ np.exp(gap) > 1.005 * claimed
