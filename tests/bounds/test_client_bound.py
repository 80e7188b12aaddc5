"""The client-level theorem, with fixed, private and cheating priors."""

from __future__ import annotations

import math

import numpy as np
import pytest
from finite_world import (
    coin_world,
    divergence,
    draw,
    evidence,
    failures_above,
    failures_at_most,
    gibbs,
    log_evidences,
    minimiser,
    optimum,
    random_world,
)
from scipy import stats

from pacpfl.bounds import (
    ClientPremises,
    client_bound,
    gibbs_client_bound,
    privacy_cost,
    sampling_epsilon,
)

REPETITIONS = 4000


def bounds_of(log_evidence: np.ndarray, given: ClientPremises) -> np.ndarray:
    return np.array([gibbs_client_bound(float(z), given).value for z in log_evidence])


def test_the_formula_worked_by_hand() -> None:
    given = ClientPremises(4.0, 10, 0.0, 2.0, 0.1, later=6, epsilon=0.3, choices=5)
    bound = client_bound(0.5, 1.2, given, printed=True)
    cost = 0.5 * 10 * 0.09 + 0.3 * math.sqrt(0.5 * 10 * math.log(40)) + math.log(2)
    by_hand = 0.5 + (1.2 + 16 * 4 / (8 * 16) + cost + math.log(5 / 0.1)) / 4
    assert bound.value == pytest.approx(by_hand, rel=1e-12)
    assert bound.terms["privacy"] == pytest.approx(cost / 4)
    gibbs_bound = gibbs_client_bound(-3.2, given, printed=True)
    assert gibbs_bound.value == pytest.approx(by_hand - 0.5 - 0.3 + 0.8, rel=1e-12)


def test_an_independent_prior_pays_nothing_for_privacy() -> None:
    given = ClientPremises(beta=4.0, m=10, a=0.0, b=1.0, delta=0.1)
    assert client_bound(0.5, 1.2, given).terms["privacy"] == 0.0
    # As printed, even a prior that has seen nothing costs ln 2.
    printed = client_bound(0.5, 1.2, given, printed=True).terms["privacy"]
    assert printed == pytest.approx(math.log(2) / 4)


@pytest.mark.parametrize("delta", [0.01, 0.05])
def test_it_holds_where_it_is_nearly_tight(delta: float) -> None:
    """One coin, and the beta that is best for it: Hoeffding's inequality itself."""
    m = 40
    beta = math.sqrt(8 * m * math.log(1 / delta))
    world = coin_world(1, m, beta)
    counts = draw(world, np.random.default_rng(1), 20_000)
    values = log_evidences(world, counts)[:, 0, 0]
    bounds = bounds_of(values, ClientPremises(beta, m, 0.0, 1.0, delta))
    assert failures_at_most(bounds < 0.5, delta)
    # Without its confidence term, or without its deviation term, it does not hold.
    assert failures_above(bounds - math.log(1 / delta) / beta < 0.5, delta)
    assert failures_above(bounds - beta / (8 * m) < 0.5, delta)


@pytest.mark.parametrize("seed", range(4))
def test_it_holds_for_priors_drawn_from_the_hyper_posterior(seed: int) -> None:
    """P ~ Q*, which depends on the client's data; epsilon is that of the privacy lemma."""
    rng = np.random.default_rng(seed)
    delta, tau = 0.2, 0.4
    samples, later = (6, 9, 4), 3
    world = random_world(rng, 3, samples, (5.0, 3.0, 8.0), a=-0.5, b=1.0)
    counts = draw(world, rng, REPETITIONS)
    hyper_posterior, _ = optimum(world, counts, tau)
    chosen = np.array([rng.choice(len(q), p=q) for q in hyper_posterior])
    rows = np.arange(REPETITIONS)
    for i in range(3):
        beta, m = world.betas[i], samples[i]
        both = counts[:, i] + rng.multinomial(later, world.data[i], REPETITIONS)
        epsilon = float(sampling_epsilon([beta], tau, 1.5, [m])[0])
        given = ClientPremises(beta, m, -0.5, 1.0, delta, later=later, epsilon=epsilon)
        values = np.log(evidence(world, both, beta))[rows, chosen]
        truth = gibbs(world, both, beta)[rows, chosen] @ world.true_risks[i]
        assert failures_at_most(bounds_of(values, given) < truth, delta)


def test_a_prior_that_memorises_breaks_it_unless_its_epsilon_is_paid() -> None:
    """The prior that looks best on the client's own data, claimed not to have seen them."""
    m, delta, faces = 12, 0.1, 8
    beta = math.sqrt(8 * m * math.log(1 / delta))
    world = coin_world(1, m, beta, faces=faces)
    counts = draw(world, np.random.default_rng(2), REPETITIONS)
    rows = np.arange(REPETITIONS)
    best = np.argmin(counts[:, 0] @ world.losses.T, axis=1)
    values = log_evidences(world, counts)[rows, 0, best]
    cheating = bounds_of(values, ClientPremises(beta, m, 0.0, 1.0, delta))
    assert failures_above(cheating < 0.5, delta)
    # The same choice through the exponential mechanism, with its true epsilon, is fine.
    tau = 0.5
    hyper_posterior, _ = optimum(world, counts, tau)
    rng = np.random.default_rng(3)
    chosen = np.array([rng.choice(faces, p=q) for q in hyper_posterior])
    epsilon = float(sampling_epsilon([beta], tau, 1.0, [m])[0])
    given = ClientPremises(beta, m, 0.0, 1.0, delta, epsilon=epsilon)
    honest = bounds_of(log_evidences(world, counts)[rows, 0, chosen], given)
    assert failures_at_most(honest < 0.5, delta)


def test_the_best_of_a_grid_holds_when_the_grid_is_paid_for() -> None:
    m, delta = 40, 0.2
    grid = [float(beta) for beta in np.geomspace(2, 60, 6)]
    world = coin_world(1, m, 1.0)
    counts = draw(world, np.random.default_rng(4), 20_000)
    bounds = []
    for beta in grid:
        given = ClientPremises(beta, m, 0.0, 1.0, delta, choices=len(grid))
        bounds.append(bounds_of(np.log(evidence(world, counts[:, 0], beta))[:, 0], given))
    assert failures_at_most(np.min(bounds, axis=0) < 0.5, delta)


@pytest.mark.parametrize("seed", range(3))
def test_the_gibbs_posterior_attains_the_minimum(seed: int) -> None:
    rng = np.random.default_rng(seed)
    world = random_world(rng, 1, (7,), (6.0,), hypotheses=6)
    counts = draw(world, rng, 1)
    prior = world.priors[0]
    average = (counts[0, 0] @ world.losses.T) / 7
    given = ClientPremises(6.0, 7, 0.0, 1.0, 0.1, epsilon=0.2)

    def bound(q: np.ndarray) -> float:
        return client_bound(float(q @ average), float(divergence(q, prior)), given).value

    least = gibbs_client_bound(float(log_evidences(world, counts)[0, 0, 0]), given).value
    assert bound(gibbs(world, counts[:, 0], 6.0)[0, 0]) == pytest.approx(least, rel=1e-12)
    assert minimiser(bound, least, rng, 6)[1] == pytest.approx(least, abs=1e-8)


def randomised_response_excess(m: int, epsilon: float, log_ratio: float) -> float:
    """sup over events O of Pr_joint[O] - exp(k) Pr_independent[O], for m bits, each released
    through randomised response of level epsilon: an exact sum over the number of true answers.
    """
    agree = 1 / (1 + math.exp(-epsilon))
    right = np.arange(m + 1)
    joint, independent = stats.binom.pmf(right, m, agree), stats.binom.pmf(right, m, 0.5)
    return float(np.maximum(joint - math.exp(log_ratio) * independent, 0).sum())


@pytest.mark.parametrize("epsilon", [0.02, 0.1, 0.4, 1.0])
@pytest.mark.parametrize("m", [1, 5, 40, 300])
@pytest.mark.parametrize("delta", [0.01, 0.2])
def test_the_privacy_cost_covers_an_exactly_known_mechanism(
    epsilon: float, m: int, delta: float
) -> None:
    cost = privacy_cost(epsilon, m, delta)
    printed = privacy_cost(epsilon, m, delta, printed=True)
    assert cost <= printed
    if cost < m * epsilon:  # concentration: half of delta is spent on unlikely data
        assert randomised_response_excess(m, epsilon, cost - math.log(2)) <= delta / 2
    else:  # the density ratio itself is below exp(m epsilon)
        assert randomised_response_excess(m, epsilon, m * epsilon) == pytest.approx(0, abs=1e-12)


def test_the_privacy_cost_is_not_far_too_large() -> None:
    """A quarter of it would not cover the same mechanism."""
    cost = privacy_cost(0.1, 300, 0.2)
    assert randomised_response_excess(300, 0.1, (cost - math.log(2)) / 4) > 0.1


def test_a_client_wide_epsilon_costs_itself() -> None:
    assert privacy_cost(0.7, 1000, 0.05, unit="client") == 0.7
    assert privacy_cost(0.7, 1000, 0.05) > 200
