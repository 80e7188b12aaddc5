"""Bounds from rows that judge, and PAC-Bayes bounds of the same kind: enumerated, and written again."""

from __future__ import annotations

import itertools
import math

import finite_world as finite
import numpy as np
import pytest
from scipy import optimize, stats

from pacpfl import bounds

COINS = np.linspace(0.01, 0.99, 99)


def slow_betting(values: np.ndarray, delta: float) -> float:
    """The bet row by row, and the mean at which its largest capital is 1 / delta."""

    def best(q: float) -> float:
        capital, largest, total = 0.0, 0.0, 0.5
        mean, spread = 0.5, 0.25
        for i, x in enumerate(values, 1):
            bet = (1 - mean) * math.sqrt(2 * math.log(1 / delta) / (len(values) * spread / i))
            share = min(0.75, bet)
            capital += math.log(1 - share + share * (1 - x) / (1 - q))
            largest = max(largest, capital)
            total += x
            mean = total / (i + 1)
            spread += (x - mean) ** 2
        return largest - math.log(1 / delta)

    if best(1 - 1e-13) < 0:
        return 1.0
    return float(optimize.brentq(best, 0.0, 1 - 1e-13, xtol=1e-14)) if best(0.0) < 0 else 0.0


def test_against_bets_row_by_row() -> None:
    rng = np.random.default_rng(0)
    for rows, delta in itertools.product((1, 7, 60), (0.3, 0.05, 1e-6)):
        for x in (rng.random(rows), rng.beta(0.5, 4, rows), (rng.random(rows) < 0.1) * 1.0):
            found = bounds.betting_bound(3 * x - 1, -1.0, 2.0, delta)
            assert found == pytest.approx(3 * slow_betting(x, delta) - 1, abs=1e-8)
    assert bounds.betting_bound([1.0, 1.0], 0.0, 1.0, 0.05) == 1.0
    assert bounds.betting_bound(np.zeros(50), 0.0, 1.0, 0.05) < 0.09


@pytest.mark.parametrize("chances", [(0.5, 0.2, 0.3), (0.9, 0.0, 0.1), (0.02, 0.9, 0.08)])
@pytest.mark.parametrize("delta", [0.05, 0.3])
def test_every_sequence_of_values_enumerated(chances: tuple[float, ...], delta: float) -> None:
    """All 3^6 sequences of the values 0, 0.3 and 1: how probable is it that the bound fails?"""
    values, truth, failing, smallest = np.array([0.0, 0.3, 1.0]), 0.0, 0.0, 1.0
    truth = float(values @ chances)
    for sequence in itertools.product(range(3), repeat=6):
        bound = bounds.betting_bound(values[list(sequence)], 0.0, 1.0, delta)
        failing += math.prod(chances[i] for i in sequence) * (bound < truth)
        smallest = min(smallest, bound)
    assert failing <= delta
    assert smallest < 1


@pytest.mark.parametrize("delta", [0.05, 0.01, 1e-6])
def test_clopper_pearson_enumerated_and_against_scipy(delta: float) -> None:
    rows = 14
    found = np.array([bounds.clopper_pearson(k, rows, delta) for k in range(rows + 1)])
    for k, bound in enumerate(found):
        interval = stats.binomtest(k, rows).proportion_ci(1 - 2 * delta, "exact")
        assert bound == pytest.approx(interval.high, rel=1e-9)
    for p in COINS:
        assert stats.binom.pmf(np.arange(rows + 1), rows, p) @ (found < p) <= delta * (1 + 1e-9)
    if delta == 0.05:  # and hardly less: the next smaller level would fail
        p = float(found[2]) + 1e-9
        assert stats.binom.pmf(np.arange(rows + 1), rows, p) @ (found < p) > 0.0499
        assert found[2] == pytest.approx(0.385, abs=1e-3)
    assert bounds.rows_needed(0.1, 0.2, 0.05) == 50  # 5 errors in 50 rows: 0.1988
    assert bounds.clopper_pearson(5, 49, 0.05) > 0.2


def test_the_inverse_of_kl() -> None:
    for p, nats in itertools.product((0.0, 0.02, 0.5, 0.97), (0.0, 0.01, 0.4, 3.0)):
        q = bounds.kl_inverse(p, nats)
        assert p <= q <= 1
        if nats == 0:
            assert q == pytest.approx(p, abs=1e-7)
        elif q < 1:
            assert stats.entropy([p, 1 - p], [q, 1 - q]) == pytest.approx(nats, rel=1e-6)
    assert bounds.kl_inverse(1.0, 0.3) == 1.0


BETAS = (2.0, 6.0, 20.0)


@pytest.mark.parametrize("seed", range(3))
def test_pac_bayes_in_a_world_that_is_enumerated(seed: int) -> None:
    """Every data set, weighed: Gibbs posteriors of three temperatures, and point masses, at once."""
    rng, m, delta = np.random.default_rng(seed), 12, 0.1
    world = finite.random_world(rng, 1, (m,), (1.0,), a=-0.5, b=1.0, priors=1)
    sets = finite.data_sets(3, m)
    chances = finite.data_set_probability(sets, world.data[0])
    average = sets @ world.losses.T / m
    posteriors = [finite.gibbs(world, sets, beta)[:, 0] for beta in BETAS]
    posteriors += [np.tile(one, (len(sets), 1)) for one in np.eye(5)]
    failing = {"kl": np.zeros(len(sets), bool), "catoni": np.zeros(len(sets), bool)}
    below = []
    for q in posteriors:
        kls = finite.divergence(q, world.priors[0])
        truths, risks = q @ world.true_risks[0], (q * average).sum(-1)
        for i, (risk, kl, truth) in enumerate(zip(risks, kls, truths, strict=True)):
            seeger = bounds.maurer_seeger(risk, kl, m, -0.5, 1.0, delta).value
            sharp = bounds.catoni(risk, kl, 9.0, m, -0.5, 1.0, delta)
            linear = bounds.client_bound(risk, kl, bounds.ClientPremises(9.0, m, -0.5, 1.0, delta))
            assert sharp <= min(1.0, linear.value) + 1e-12
            failing["kl"][i] |= seeger < truth
            failing["catoni"][i] |= sharp < truth
            below.append(seeger < 1)
    assert any(below)
    for failed in failing.values():
        assert chances @ failed <= delta


def test_maurer_seeger_by_hand() -> None:
    """xi(m) is E exp(m kl(mean || p)) of m coins, whatever p is, and at most 2 sqrt(m)."""
    m, p = 9, 0.3
    rows = np.arange(m + 1)
    coins = [stats.entropy([k / m, 1 - k / m], [p, 1 - p]) for k in rows]
    xi = float(stats.binom.pmf(rows, m, p) @ np.exp(m * np.array(coins)))
    assert xi <= 2 * math.sqrt(m)
    bound = bounds.maurer_seeger(0.4, 1.5, m, 0.0, 2.0, 0.05, privacy=0.7)
    nats = (1.5 + 0.7 + math.log(xi / 0.05)) / m
    assert bound.value == pytest.approx(2 * bounds.kl_inverse(0.2, nats), rel=1e-9)
    assert bound.terms["privacy"] / bound.terms["divergence"] == pytest.approx(0.7 / 1.5)


# What a prior costs that was drawn with (epsilon, delta)-privacy or Gaussian noise: every data set of one
# client, and the prior it makes likely, enumerated.


def memorising(noise: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Chances of data sets, of priors given each, empirical and true risks, of a noisy memory.

    Three coins a row and eight rows. The server hears a score in [0, 1], which hypothesis did best for
    this client, with noise N(0, noise^2), and takes the hypothesis that this stands for.
    """
    world, m = finite.coin_world(1, 8, 1.0, faces=3), 8
    sets = finite.data_sets(8, m)
    chances = finite.data_set_probability(sets, world.data[0])
    average = sets @ world.losses.T / m
    # The best hypothesis as 0, 1/2 or 1; the server takes the one nearest to what it hears.
    score = average.argmin(1) / 2
    edges = np.array([-np.inf, 0.25, 0.75, np.inf])
    heard = np.diff(stats.norm.cdf((edges[None] - score[:, None]) / noise), axis=1)
    return chances, heard, average, world.true_risks[0]


def failing(nats: float, noise: float, delta: float) -> float:
    """Probability that Clopper-Pearson's bound for the hypothesis taken fails, with nats paid."""
    chances, heard, average, truth = memorising(noise)
    table = [bounds.clopper_pearson(k, 8, delta * math.exp(-nats)) for k in range(9)]
    bound = np.array(table)[np.rint(8 * average).astype(int)]
    return float(chances @ (heard * (bound < truth)).sum(1))


def test_gaussian_noise_is_paid_for() -> None:
    delta, noise = 0.04, 0.5
    cost = bounds.gaussian_cost(delta, 1 / noise)  # scores differ by 1 at most
    assert failing(0.0, noise, delta) > delta * 1.2
    assert failing(cost, noise, delta) <= delta
    # (epsilon, delta)-privacy of the same noise, by its trade-off; the sharper form costs less.
    curve = [
        (e, stats.norm.cdf(1 - e / 2) - math.exp(e) * stats.norm.cdf(-1 - e / 2))
        for e in np.linspace(0.5, 8, 40)
    ]
    costs = [bounds.approximate_cost(delta, e, d) for e, d in curve]
    assert cost < min(costs) < 1.5 * cost
    assert failing(min(costs), noise, delta) <= delta
    assert bounds.approximate_cost(0.05, 1.0, 0.05) == math.inf


@pytest.mark.parametrize("mu", [0.0, 0.5, 3.0, 30.0])
def test_the_trade_off_is_attained(mu: float) -> None:
    """A server that hears X + N(0, 1), X = mu or 0: where is the event of probability delta under mu?"""
    cost = bounds.gaussian_cost(0.05, mu)
    event = stats.norm.isf(0.05) + mu  # heard above it: probability 0.05 where X = mu
    assert cost == pytest.approx(math.log(0.05) - stats.norm.logsf(event), rel=1e-9, abs=1e-12)
