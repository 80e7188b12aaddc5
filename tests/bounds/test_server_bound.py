"""The server-level theorem: coverage, minimiser, and where the printed one fails."""

from __future__ import annotations

import math

import numpy as np
import pytest
from finite_world import (
    World,
    coin_world,
    divergence,
    draw,
    failures_above,
    failures_at_most,
    log_evidences,
    minimiser,
    optimum,
    random_world,
    risks,
    sure_world,
)

from pacpfl.bounds import (
    ServerPremises,
    lambda_from_tau,
    optimal_hyper_posterior,
    optimal_server_bound,
    server_bound,
    tau_from_lambda,
)

REPETITIONS = 3000


def premises(world: World, delta: float, **more: object) -> ServerPremises:
    return ServerPremises(world.betas, world.samples, world.a, world.b, delta, **more)  # type: ignore[arg-type]


def bounds_of(
    world: World, counts: np.ndarray, q: np.ndarray, given: ServerPremises, **options: object
) -> np.ndarray:
    """The bound for hyper-posteriors q, [R, J], one per repetition."""
    expected = np.einsum("rnj,rj->rn", log_evidences(world, counts), q)
    kls = np.maximum(divergence(q, world.hyper_prior), 0.0)
    rows = zip(expected, kls, strict=True)
    return np.array([server_bound(e, float(k), given, **options).value for e, k in rows])  # type: ignore[arg-type]


def greedy(world: World, counts: np.ndarray) -> np.ndarray:
    """A hyper-posterior that is sure of the prior with the highest evidence: no privacy."""
    best = np.argmax(log_evidences(world, counts).sum(axis=1), axis=1)
    return np.eye(len(world.hyper_prior))[best]


def test_the_formulas_worked_by_hand() -> None:
    given = ServerPremises(
        (2.0, 2.0), (4, 5), 0.0, 1.0, 0.1, later=(0, 3), lambda_=7.0, upsilon=0.5
    )
    evidences, kl = np.array([-0.8, -1.0]), 0.3
    empirical = (0.8 + 1.0) / 4
    weight = 1 / 4 + 1.5 / 7
    factor = 1 + (3 / 5) / 8
    deviation = 2 / 16 * (1 / 4 + factor / 5)
    ours = server_bound(evidences, kl, given)
    assert ours.value == pytest.approx(
        empirical + weight * (kl + math.log(10)) + deviation, rel=1e-12
    )
    change = 2 * 3 / 8
    delta_2 = min(1.0, math.exp(2 * change) - math.exp(-2 * change)) / 2
    rest = empirical + weight * kl + 2 / 16 * (1 / 4 + 1 / 5) + 7 * delta_2**2 / (8 * 1.5)
    theorem = server_bound(evidences, kl, given, printed="theorem").value
    proof = server_bound(evidences, kl, given, printed="proof").value
    assert theorem == pytest.approx(rest + math.log(10) / math.sqrt(2), rel=1e-12)
    assert proof == pytest.approx(rest + math.log(10), rel=1e-12)


def test_the_two_averages_worked_by_hand_for_betas_that_differ() -> None:
    given = ServerPremises((2.0, 6.0), (4, 5), 0.0, 1.0, 0.1)
    nats = 0.3 + math.log(10)
    equal = server_bound([-0.8, -1.2], 0.3, given, weights=[0.5, 0.5]).value
    assert equal == pytest.approx(0.5 * (0.4 + 0.2) + nats / 12 + 12 / 8 * (1 / 4 + 1 / 5) / 4)
    by_beta = server_bound([-0.8, -1.2], 0.3, given).value
    assert by_beta == pytest.approx(2.0 / 8 + nats / 8 + (4 / 4 + 36 / 5) / 64)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("betas", [(3.0, 3.0, 3.0), (8.0, 1.0, 4.0)], ids=["one beta", "betas"])
@pytest.mark.parametrize("weighting", ["beta", "equal"])
def test_it_holds_for_the_optimum_and_for_a_greedy_choice(
    seed: int, betas: tuple[float, ...], weighting: str
) -> None:
    rng = np.random.default_rng(seed)
    delta, later = 0.2, (2, 0, 3)
    world = random_world(rng, 3, (3, 2, 5), betas, a=-1.0, b=0.5)
    given = premises(world, delta, later=later, lambda_=50.0)
    counts = draw(world, rng, REPETITIONS)
    shares = np.array(betas) / sum(betas) if weighting == "beta" else np.full(3, 1 / 3)
    truth = np.einsum("n,rnj->rj", shares, risks(world, counts, later))
    tau = tau_from_lambda(50.0, betas, 2)
    for q in (optimum(world, counts, tau)[0], greedy(world, counts)):
        options = {} if weighting == "beta" else {"weights": shares}
        failed = bounds_of(world, counts, q, given, **options) < np.sum(q * truth, axis=1)
        assert failures_at_most(failed, delta)


@pytest.mark.parametrize("later", [0, 2])
def test_it_holds_where_it_is_nearly_tight(later: int) -> None:
    """Coins, the best beta for them, and a greedy choice among few priors."""
    n, m, delta = 6, 5, 0.05
    beta = math.sqrt(8 * m / n * math.log(4 / delta))
    world = coin_world(n, m, beta, faces=4)
    counts = draw(world, np.random.default_rng(5), 20_000)
    given = premises(world, delta, later=(later,) * n)
    bounds = bounds_of(world, counts, greedy(world, counts), given)
    assert failures_at_most(bounds < 0.5, delta)
    # Without divergence and confidence, or without the deviation term, it does not hold.
    price = (math.log(4) + math.log(1 / delta)) / (n * beta)
    assert failures_above(bounds - price < 0.5, delta)
    assert failures_above(bounds - beta / (8 * m) < 0.5, delta)


@pytest.mark.parametrize("betas", [(3.0, 3.0, 3.0), (8.0, 1.0, 4.0)], ids=["one beta", "betas"])
@pytest.mark.parametrize("seed", range(3))
def test_the_optimal_hyper_posterior_attains_the_minimum(
    betas: tuple[float, ...], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    world = random_world(rng, 3, (3, 2, 5), betas, priors=5)
    given = premises(world, 0.1, later=(1, 0, None), lambda_=40.0)
    counts = draw(world, rng, 1)
    logs = log_evidences(world, counts)[0]
    tau = tau_from_lambda(40.0, betas, 2)
    exact, partition = optimum(world, counts, tau)
    log_q, log_partition = optimal_hyper_posterior(np.log(world.hyper_prior), logs, tau)
    np.testing.assert_allclose(np.exp(log_q), exact[0], rtol=1e-12)
    assert log_partition == pytest.approx(math.log(partition[0]), rel=1e-12)

    def bound(q: np.ndarray) -> float:
        return server_bound(
            logs @ q, max(float(divergence(q, world.hyper_prior)), 0.0), given
        ).value

    least = optimal_server_bound(log_partition, given).value
    assert bound(exact[0]) == pytest.approx(least, rel=1e-12)
    assert minimiser(bound, least, rng, 5)[1] <= least + 1e-7


def test_tau_by_hand() -> None:
    """lambda = 10, beta = 5, n = 4, n_2 = 2, upsilon = 1/2: 10 / (10 + 5 * 4 * 2.5) = 1/6."""
    assert tau_from_lambda(10, [5] * 4, 2, 0.5) == pytest.approx(1 / 6, rel=1e-14)
    assert lambda_from_tau(1 / 6, [5] * 4, 2, 0.5) == pytest.approx(10, rel=1e-12)


def test_tau_and_lambda_are_inverse() -> None:
    betas = (2.0, 5.0, 3.5)
    for lambda_ in (0.3, 4.0, 1e5):
        tau = tau_from_lambda(lambda_, betas, 2, 0.01)
        assert lambda_from_tau(tau, betas, 2, 0.01) == pytest.approx(lambda_, rel=1e-9)
    assert tau_from_lambda(math.inf, betas, 2) == 1.0
    assert lambda_from_tau(1.0, betas, 2) == math.inf


# Where the printed theorem fails.


def test_the_printed_confidence_term_fails() -> None:
    """ln(1/delta)/sqrt(n) is too small: n = 100 coins, beta = 1/n as the theorem allows."""
    delta = 0.05
    world = coin_world(100, 1, 0.01, width=7.0)
    counts = draw(world, np.random.default_rng(6), REPETITIONS)
    q = np.ones((REPETITIONS, 1))
    given = premises(world, delta, lambda_=1.0)
    assert failures_above(bounds_of(world, counts, q, given, printed="theorem") < 3.5, 2 * delta)
    assert failures_at_most(bounds_of(world, counts, q, given, printed="proof") < 3.5, delta)
    assert failures_at_most(bounds_of(world, counts, q, given) < 3.5, delta)


def test_the_printed_bound_depends_on_the_unit_of_the_loss() -> None:
    """A loss in cents instead of euros, beta accordingly: the bound must be 100 times as large."""
    euros = ServerPremises((2.0,) * 4, (3,) * 4, 0.0, 1.0, 0.05, lambda_=9.0)
    cents = ServerPremises((0.02,) * 4, (3,) * 4, 0.0, 100.0, 0.05, lambda_=0.09)
    evidences = np.full(4, -0.5)
    ours = [server_bound(evidences, 1.0, case).value for case in (euros, cents)]
    printed = [server_bound(evidences, 1.0, case, printed="theorem") for case in (euros, cents)]
    assert ours[1] == pytest.approx(100 * ours[0], rel=1e-12)
    assert printed[1].value < 50 * printed[0].value
    assert printed[0].terms["confidence"] == printed[1].terms["confidence"]


def test_betas_that_differ_cannot_simply_be_put_into_the_printed_formula() -> None:
    """Client 0 has few samples and a small beta, client 1 very many and a large one, which makes
    the divergence nearly free: a greedy choice over-fits client 0 and the formula does not see it.
    """
    rng = np.random.default_rng(7)
    delta, width, faces = 0.2, 20.0, 64
    losses = np.zeros((faces, 65))
    for row in losses:  # each hypothesis loses on half of client 0's outcomes, never on client 1's
        row[rng.permutation(64)[:32]] = width
    data = np.zeros((2, 65))
    data[0, :64], data[1, 64] = 1 / 64, 1.0
    world = sure_world(losses, data, (4, 100_000), (0.5, 50.0), width)
    counts = draw(world, rng, 2000)
    q = greedy(world, counts)
    given = premises(world, delta, lambda_=1e4)
    average = 0.25 * width  # (width / 2 + 0) / 2, for every prior
    assert failures_above(bounds_of(world, counts, q, given, printed="theorem") < average, delta)
    assert failures_above(bounds_of(world, counts, q, given, printed="proof") < average, delta)
    equal = bounds_of(world, counts, q, given, weights=np.array([0.5, 0.5]))
    assert failures_at_most(equal < average, delta)
    by_beta = bounds_of(world, counts, q, given)
    assert failures_at_most(by_beta < width / 2 * 0.5 / 50.5, delta)
