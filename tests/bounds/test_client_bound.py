"""The client-level theorem, with fixed, private and cheating priors; and how private a draw from Q* is."""

from __future__ import annotations

import math

import finite_world as finite
import numpy as np
import pytest
from scipy import stats

from pacpfl import bounds

REPETITIONS = 4000


def bounds_of(log_evidence: np.ndarray, given: bounds.ClientPremises) -> np.ndarray:
    return np.array([bounds.gibbs_client_bound(float(z), given).value for z in log_evidence])


def test_the_formula_worked_by_hand() -> None:
    given = bounds.ClientPremises(4.0, 10, 0.0, 2.0, 0.1, later=6, epsilon=0.3, choices=5)
    bound = bounds.client_bound(0.5, 1.2, given, printed=True)
    cost = 0.5 * 10 * 0.09 + 0.3 * math.sqrt(0.5 * 10 * math.log(40)) + math.log(2)
    by_hand = 0.5 + (1.2 + 16 * 4 / (8 * 16) + cost + math.log(5 / 0.1)) / 4
    assert bound.value == pytest.approx(by_hand, rel=1e-12)
    assert bound.terms["privacy"] == pytest.approx(cost / 4)
    gibbs_bound = bounds.gibbs_client_bound(-3.2, given, printed=True)
    assert gibbs_bound.value == pytest.approx(by_hand - 0.5 - 0.3 + 0.8, rel=1e-12)


def test_an_independent_prior_pays_nothing_for_privacy() -> None:
    given = bounds.ClientPremises(beta=4.0, m=10, a=0.0, b=1.0, delta=0.1)
    assert bounds.client_bound(0.5, 1.2, given).terms["privacy"] == 0.0
    # As printed, even a prior that has seen nothing costs ln 2.
    printed = bounds.client_bound(0.5, 1.2, given, printed=True).terms["privacy"]
    assert printed == pytest.approx(math.log(2) / 4)


@pytest.mark.parametrize("delta", [0.01, 0.05])
def test_it_holds_where_it_is_nearly_tight(delta: float) -> None:
    """One coin, and the beta that is best for it: Hoeffding's inequality itself."""
    m = 40
    beta = math.sqrt(8 * m * math.log(1 / delta))
    world = finite.coin_world(1, m, beta)
    counts = finite.draw(world, np.random.default_rng(1), 20_000)
    values = finite.log_evidences(world, counts)[:, 0, 0]
    uppers = bounds_of(values, bounds.ClientPremises(beta, m, 0.0, 1.0, delta))
    assert finite.failures_at_most(uppers < 0.5, delta)
    # Without its confidence term, or without its deviation term, it does not hold.
    assert finite.failures_above(uppers - math.log(1 / delta) / beta < 0.5, delta)
    assert finite.failures_above(uppers - beta / (8 * m) < 0.5, delta)


@pytest.mark.parametrize("seed", range(4))
def test_it_holds_for_priors_drawn_from_the_hyper_posterior(seed: int) -> None:
    """P ~ Q*, which depends on the client's data; epsilon is that of the privacy lemma."""
    rng = np.random.default_rng(seed)
    delta, tau = 0.2, 0.4
    samples, later = (6, 9, 4), 3
    world = finite.random_world(rng, 3, samples, (5.0, 3.0, 8.0), a=-0.5, b=1.0)
    counts = finite.draw(world, rng, REPETITIONS)
    hyper_posterior, _ = finite.optimum(world, counts, tau)
    chosen = np.array([rng.choice(len(q), p=q) for q in hyper_posterior])
    rows = np.arange(REPETITIONS)
    for i in range(3):
        beta, m = world.betas[i], samples[i]
        both = counts[:, i] + rng.multinomial(later, world.data[i], REPETITIONS)
        epsilon = float(bounds.sampling_epsilon([beta], tau, 1.5, [m])[0])
        given = bounds.ClientPremises(beta, m, -0.5, 1.0, delta, later=later, epsilon=epsilon)
        values = np.log(finite.evidence(world, both, beta))[rows, chosen]
        truth = finite.gibbs(world, both, beta)[rows, chosen] @ world.true_risks[i]
        assert finite.failures_at_most(bounds_of(values, given) < truth, delta)


def test_a_prior_that_memorises_breaks_it_unless_its_epsilon_is_paid() -> None:
    """The prior that looks best on the client's own data, claimed not to have seen them."""
    m, delta, faces = 12, 0.1, 8
    beta = math.sqrt(8 * m * math.log(1 / delta))
    world = finite.coin_world(1, m, beta, faces=faces)
    counts = finite.draw(world, np.random.default_rng(2), REPETITIONS)
    rows = np.arange(REPETITIONS)
    best = np.argmin(counts[:, 0] @ world.losses.T, axis=1)
    values = finite.log_evidences(world, counts)[rows, 0, best]
    cheating = bounds_of(values, bounds.ClientPremises(beta, m, 0.0, 1.0, delta))
    assert finite.failures_above(cheating < 0.5, delta)
    # The same choice through the exponential mechanism, with its true epsilon, is fine.
    tau = 0.5
    hyper_posterior, _ = finite.optimum(world, counts, tau)
    rng = np.random.default_rng(3)
    chosen = np.array([rng.choice(faces, p=q) for q in hyper_posterior])
    epsilon = float(bounds.sampling_epsilon([beta], tau, 1.0, [m])[0])
    given = bounds.ClientPremises(beta, m, 0.0, 1.0, delta, epsilon=epsilon)
    honest = bounds_of(finite.log_evidences(world, counts)[rows, 0, chosen], given)
    assert finite.failures_at_most(honest < 0.5, delta)


def test_the_best_of_a_grid_holds_when_the_grid_is_paid_for() -> None:
    m, delta = 40, 0.2
    grid = [float(beta) for beta in np.geomspace(2, 60, 6)]
    world = finite.coin_world(1, m, 1.0)
    counts = finite.draw(world, np.random.default_rng(4), 20_000)
    uppers = []
    for beta in grid:
        given = bounds.ClientPremises(beta, m, 0.0, 1.0, delta, choices=len(grid))
        uppers.append(bounds_of(np.log(finite.evidence(world, counts[:, 0], beta))[:, 0], given))
    assert finite.failures_at_most(np.min(uppers, axis=0) < 0.5, delta)


@pytest.mark.parametrize("seed", range(3))
def test_the_gibbs_posterior_attains_the_minimum(seed: int) -> None:
    rng = np.random.default_rng(seed)
    world = finite.random_world(rng, 1, (7,), (6.0,), hypotheses=6)
    counts = finite.draw(world, rng, 1)
    prior = world.priors[0]
    average = (counts[0, 0] @ world.losses.T) / 7
    given = bounds.ClientPremises(6.0, 7, 0.0, 1.0, 0.1, epsilon=0.2)

    def bound(q: np.ndarray) -> float:
        return bounds.client_bound(
            float(q @ average), float(finite.divergence(q, prior)), given
        ).value

    least = bounds.gibbs_client_bound(
        float(finite.log_evidences(world, counts)[0, 0, 0]), given
    ).value
    assert bound(finite.gibbs(world, counts[:, 0], 6.0)[0, 0]) == pytest.approx(least, rel=1e-12)
    assert finite.minimiser(bound, least, rng, 6)[1] == pytest.approx(least, abs=1e-8)


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
    cost = bounds.privacy_cost(epsilon, m, delta)
    printed = bounds.privacy_cost(epsilon, m, delta, printed=True)
    assert cost <= printed
    if cost < m * epsilon:  # concentration: half of delta is spent on unlikely data
        assert randomised_response_excess(m, epsilon, cost - math.log(2)) <= delta / 2
    else:  # the density ratio itself is below exp(m epsilon)
        assert randomised_response_excess(m, epsilon, m * epsilon) == pytest.approx(0, abs=1e-12)


def test_the_privacy_cost_is_not_far_too_large() -> None:
    """A quarter of it would not cover the same mechanism."""
    cost = bounds.privacy_cost(0.1, 300, 0.2)
    assert randomised_response_excess(300, 0.1, (cost - math.log(2)) / 4) > 0.1


def test_a_client_wide_epsilon_costs_itself() -> None:
    assert bounds.privacy_cost(0.7, 1000, 0.05, unit="client") == 0.7
    assert bounds.privacy_cost(0.7, 1000, 0.05) > 200


# The privacy lemma: exact density ratios of Q* for data that differ in one sample.


def largest_log_ratio(world: finite.World, client: int, others: np.ndarray, tau: float) -> float:
    """max over neighbouring S_i, S^_i and all priors of |ln Q*(P | S) - ln Q*(P | S^)|."""
    choices = finite.data_sets(world.data.shape[1], world.samples[client])
    tables = np.repeat(others[None], len(choices), axis=0)
    tables[:, client] = choices
    logs = np.log(finite.optimum(world, tables, tau)[0])
    worst = 0.0
    for s, counts in enumerate(choices):
        neighbours = np.abs(choices - counts).sum(axis=1) == 2
        if neighbours.any():
            worst = max(worst, float(np.max(np.abs(logs[neighbours] - logs[s]))))
    return worst


@pytest.mark.parametrize("seed", range(6))
def test_the_ratio_never_exceeds_epsilon(seed: int) -> None:
    rng = np.random.default_rng(seed)
    world = finite.random_world(rng, 3, (4, 2, 5), (6.0, 1.5, 20.0), a=-1.0, b=2.0)
    epsilons = bounds.sampling_epsilon(world.betas, 0.7, 3.0, world.samples)
    others = np.stack(
        [rng.multinomial(m, p) for m, p in zip(world.samples, world.data, strict=True)]
    )
    for client, epsilon in enumerate(epsilons):
        assert largest_log_ratio(world, client, others, 0.7) <= epsilon * (1 + 1e-12)


def worst_world(m: int, beta: float) -> finite.World:
    """Prior 0, rare in the hyper-prior, loses on outcome 1 where all others lose on outcome 0."""
    hyper_prior, losses = np.array([1e-3, 1 - 1e-3]), np.array([[0.0, 1.0], [1.0, 0.0]])
    return finite.World(hyper_prior, np.eye(2), losses, np.array([[0.5, 0.5]]), (m,), (beta,))


@pytest.mark.parametrize(("m", "beta", "tau"), [(1, 1.0, 1.0), (4, 4.0, 0.5), (6, 1.0, 0.9)])
def test_a_worst_case_comes_within_a_tenth_of_epsilon(m: int, beta: float, tau: float) -> None:
    world = worst_world(m, beta)
    epsilon = float(bounds.sampling_epsilon([beta], tau, 1.0, [m])[0])
    ratio = largest_log_ratio(world, 0, np.array([[m, 0]]), tau)
    assert 0.9 * epsilon <= ratio <= epsilon * (1 + 1e-12)


def test_every_released_draw_costs_the_same_again() -> None:
    """Of k independent priors the ratio is the k-th power, and one epsilon is not enough."""
    ratio = largest_log_ratio(worst_world(4, 4.0), 0, np.array([[4, 0]]), 0.5)
    one, three = (float(bounds.sampling_epsilon([4.0], 0.5, 1.0, [4], draws=k)[0]) for k in (1, 3))
    assert one < 3 * ratio <= three
