"""The discrete Gaussian's sampler, and the guarantee of sums of them, against exact enumeration."""

from __future__ import annotations

import secrets
from dataclasses import replace
from math import exp, inf, log, pi, sqrt

import numpy as np
import pytest
from scipy import stats
from scipy.special import logsumexp

from pacpfl.errors import InputError
from pacpfl.secagg import grid as noise
from pacpfl.secagg.grid import Grid


@pytest.fixture
def seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "token_bytes", np.random.default_rng(20).bytes)


def log_probabilities(scale: float, sharers: int, reach: int) -> np.ndarray:
    """ln P of a sum of discrete Gaussians at -reach..reach, convolved in the log domain."""
    x = np.arange(-reach, reach + 1)
    one = -(x**2) / (2 * scale**2)
    one = one - logsumexp(one)
    total = one
    for _ in range(sharers - 1):
        padded = np.concatenate([np.full(reach, -inf), total, np.full(reach, -inf)])
        windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * reach + 1)
        total = logsumexp(windows + one[::-1], axis=1)
    return total


def fits(drawn: np.ndarray, probabilities: dict[int, float]) -> float:
    """The p-value of a chi-square test; values with few expected draws are put together."""
    expected = {x: p * drawn.size for x, p in probabilities.items() if p * drawn.size >= 10}
    found = [int((drawn == x).sum()) for x in expected]
    rest = drawn.size - sum(expected.values())
    observed = np.array([*found, drawn.size - sum(found)])
    wanted = np.array([*expected.values(), rest])
    keep = wanted > 1e-6
    assert observed[~keep].sum() == 0
    observed, wanted = observed[keep], wanted[keep]
    return float(stats.chisquare(observed, wanted * observed.sum() / wanted.sum()).pvalue)


@pytest.mark.parametrize("bound", [1, 2, 3, 7, 8, 11])
def test_uniform_integers_are_uniform(bound: int, seeded: None) -> None:
    drawn = noise.uniform_below(bound, 20_000)
    assert drawn.size == 20_000 and drawn.min() >= 0 and drawn.max() < bound
    assert bound == 1 or fits(drawn, dict.fromkeys(range(bound), 1 / bound)) > 1e-3


def test_uniform_integers_reach_large_bounds(seeded: None) -> None:
    bound = 3 * 2**60
    drawn = noise.uniform_below(bound, 4000)
    assert drawn.min() >= 0 and drawn.max() < bound
    assert stats.kstest(drawn / bound, "uniform").pvalue > 1e-3


@pytest.mark.parametrize(("numerator", "denominator"), [(0, 5), (1, 3), (5, 5), (7, 3), (40, 8)])
def test_coins_fall_with_the_exact_probability(
    numerator: int, denominator: int, seeded: None
) -> None:
    size = 60_000
    numerators = np.full(size, numerator)
    heads = int(noise.bernoulli_exp(numerators, denominator).sum())
    assert numerators[0] == numerator, "the caller's array is left alone"
    p = exp(-numerator / denominator)
    assert heads == size if p == 1 else stats.binomtest(heads, size, p).pvalue > 1e-3


@pytest.mark.parametrize("scale", [1, 2, 7])
def test_the_discrete_gaussian_is_exact(scale: int, seeded: None) -> None:
    drawn = noise.sample(scale, 80_000)
    assert drawn.dtype == np.int64 and drawn.shape == (80_000,)
    weights = np.exp(log_probabilities(scale, 1, 12 * scale))
    assert fits(drawn, dict(enumerate(weights.tolist(), start=-12 * scale))) > 1e-3
    assert abs(np.corrcoef(drawn[1:], drawn[:-1])[0, 1]) < 4 / sqrt(drawn.size)


def test_the_largest_scale_does_not_overflow(seeded: None) -> None:
    drawn = noise.sample(noise.MOST_NOISE, 20_000) / noise.MOST_NOISE
    assert stats.kstest(drawn, "norm").pvalue > 1e-3


def test_noise_is_fresh_and_of_possible_scales() -> None:
    assert not np.array_equal(noise.sample(1000, 50), noise.sample(1000, 50))
    for scale in (0, -1, 2**24 + 1):
        with pytest.raises(InputError, match="scale"):
            noise.sample(scale, 3)


@pytest.mark.parametrize("scale", [0.5, 0.6, 0.8, 1.0])
@pytest.mark.parametrize("sharers", [1, 2, 5])
def test_the_divergence_of_sums_stays_below_its_bound(scale: float, sharers: int) -> None:
    reach = 60
    p = log_probabilities(scale, sharers, reach)
    for shift in (1, 2, 3):
        for order in (1.5, 2, 4, 8):
            left, right = p[shift:], p[:-shift]
            middle = slice(reach - 35, reach + 35)  # the rest has no weight, and rounded tails
            exact = logsumexp((order * left + (1 - order) * right)[middle]) / (order - 1)
            bound = noise.renyi_divergence(order, shift, 1, scale, sharers)
            assert exact <= bound + 1e-9
            if scale == 1.0:  # where the gap is small the bound is sharp
                assert exact >= 0.99 * order * shift**2 / (2 * sharers * scale**2)


def test_some_sum_exceeds_the_divergence_of_a_true_gaussian() -> None:
    """Why the gap is needed: without it the bound would be false."""
    p = log_probabilities(0.5, 2, 60)
    order, shift = 3.0, 1
    exact = logsumexp((order * p[1:] + (1 - order) * p[:-1])[30:90]) / (order - 1)
    assert exact > 1.05 * order * shift**2 / (2 * 2 * 0.5**2)
    assert exact <= noise.renyi_divergence(order, shift, 1, 0.5, 2)


def test_the_bound_is_that_of_the_theorem() -> None:
    gap = 10 * (exp(-2 * pi**2 * 0.36 / 2) + exp(-2 * pi**2 * 0.36 * 2 / 3))
    ratio = 3 / (sqrt(3) * 0.6)
    for dimension in (1, 100, 10_000):
        bounds = ratio**2 + gap * dimension, (ratio + gap * sqrt(dimension)) ** 2
        assert noise.renyi_divergence(2, 3, dimension, 0.6, 3) == pytest.approx(min(bounds))
    with pytest.raises(InputError, match="half a step"):
        noise.renyi_divergence(2, 1, 1, 0.4, 4)


@pytest.mark.parametrize("adjacency", ["add-remove", "replace"])
@pytest.mark.parametrize("rounds", [1, 3])
def test_the_stated_epsilon_holds_for_the_exact_distributions(
    adjacency: noise.Adjacency, rounds: int
) -> None:
    """The hockey-stick divergence of the true noisy sums, by enumeration, is at most delta."""
    grid, threshold, delta = Grid(1.0, 4.0, 1, 6, noise=3), 5, 1e-4
    stated = noise.guarantee(grid, threshold, delta, rounds=rounds, adjacency=adjacency)
    shift = grid.entry_limit * (2 if adjacency == "replace" else 1)
    one = log_probabilities(3, threshold, 90)
    # Of several rounds with the same shift look at the sum, which cannot say more than all of them.
    p = one if rounds == 1 else log_probabilities(3, threshold * rounds, 150)
    moved = shift * rounds
    left, right = np.exp(p[moved:]), np.exp(p[:-moved])

    def missing(epsilon: float) -> float:
        return float(np.maximum(left - exp(epsilon) * right, 0).sum())

    assert missing(stated.epsilon) <= delta
    assert missing(stated.epsilon / 2) > delta, "the statement is not far too weak"
    assert (stated.delta, stated.adjacency, stated.rounds) == (delta, adjacency, rounds)


def test_the_guarantee_is_above_the_gaussian_one_and_below_the_simple_one() -> None:
    """With fine noise: between the exact Gaussian mechanism and epsilon = rho + 2 sqrt(rho ln(1/delta))."""
    grid, delta = Grid(2.0**-16, 1.0, 100, 20, noise=2**17), 1e-5
    stated = noise.guarantee(grid, 14, delta).epsilon
    mu = 1 / (2 * sqrt(14))

    def balle_and_wang(epsilon: float) -> float:
        a, b = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
        return float(stats.norm.cdf(a) - exp(epsilon) * stats.norm.cdf(b))

    assert balle_and_wang(stated) < delta < balle_and_wang(0.8 * stated)
    rho = mu**2 / 2
    assert stated < rho + 2 * sqrt(rho * log(1 / delta))


def test_the_guarantee_weakens_and_strengthens_as_it_must() -> None:
    grid = Grid(0.25, 4.0, 50, 20, noise=40)
    stated = noise.guarantee(grid, 14, 1e-5).epsilon
    weaker = [
        noise.guarantee(grid, 13, 1e-5),
        noise.guarantee(grid, 14, 1e-6),
        noise.guarantee(grid, 14, 1e-5, rounds=2),
        noise.guarantee(grid, 14, 1e-5, colluding=1),
        noise.guarantee(grid, 14, 1e-5, adjacency="replace"),
        noise.guarantee(replace(grid, noise=39), 14, 1e-5),
        noise.guarantee(replace(grid, dimension=5000), 14, 1e-5),
    ]
    assert all(other.epsilon > stated for other in weaker)
    assert weaker[0] == weaker[3]


@pytest.mark.parametrize("epsilon", [0.5, 8.0])
def test_the_least_noise_for_an_epsilon_is_found(epsilon: float) -> None:
    found = noise.noise_for(epsilon, Grid(2.0**-8, 1.0, 30, 12), 9, 1e-5, rounds=4, colluding=2)
    spent, more = (
        noise.guarantee(replace(found, noise=s), 9, 1e-5, rounds=4, colluding=2).epsilon
        for s in (found.noise, found.noise - 1)
    )
    assert spent <= epsilon < more
    with pytest.raises(InputError, match="choose a larger step"):
        noise.noise_for(1e-9, Grid(2.0**-20, 1.0, 30, 12), 9, 1e-5)


@pytest.mark.parametrize(
    ("steps", "threshold", "delta", "rounds"),
    [(0, 3, 1e-5, 1), (1, 0, 1e-5, 1), (1, 3, 0.0, 1), (1, 3, 1e-5, 0)],
)
def test_no_guarantee_is_made_up(steps: int, threshold: int, delta: float, rounds: int) -> None:
    with pytest.raises(InputError, match=r"add noise|says nothing"):
        noise.guarantee(Grid(1.0, 1.0, 1, 3, noise=steps), threshold, delta, rounds=rounds)
