"""Conditions, the maximum-entropy view, and their agreement with the bounds themselves."""

from __future__ import annotations

import math

import numpy as np
import pytest
from finite_world import divergence, draw, log_evidences, minimiser, optimum, random_world

from pacpfl import bounds


def test_without_the_loss_condition_every_bound_is_vacuous() -> None:
    fails = bounds.non_vacuous_loss(10.0, 10, 0.0, 8.0)
    assert fails.status == "does not hold" and "8" in fails.reason and fails.kind == "use"
    assert (
        bounds.client_bound(0.0, 0.0, bounds.ClientPremises(10.0, 10, 0.0, 8.0, 0.9)).value >= 8.0
    )
    assert bounds.non_vacuous_loss(10.0, 10, 0.0, 7.9).status == "holds"


def test_the_printed_loss_condition_is_for_beta_equal_to_m_only() -> None:
    """b - a = 20 > 8, and yet a bound below b, because beta is far below m."""
    given = bounds.ClientPremises(2.0, 1000, 0.0, 20.0, 0.05)
    assert bounds.client_bound(0.0, 0.0, given).value < 20.0
    assert bounds.non_vacuous_loss(2.0, 1000, 0.0, 20.0).status == "holds"


def test_the_privacy_condition_belongs_to_the_printed_cost() -> None:
    m, beta, width = 50, 50.0, 1.0
    epsilon = 1.01 * math.sqrt(2 * width)
    fails = bounds.non_vacuous_privacy(epsilon, beta, m, 0.0, width)
    assert fails.status == "does not hold" and "1.414" in fails.reason
    given = bounds.ClientPremises(beta, m, 0.0, width, 0.05, epsilon=epsilon)
    assert bounds.client_bound(0.0, 0.0, given, printed=True).terms["privacy"] > width
    assert bounds.non_vacuous_privacy(0.5, beta, m, 0.0, width).status == "holds"
    # The same epsilon for the client's whole data is far from vacuous.
    whole = bounds.ClientPremises(beta, m, 0.0, width, 0.05, epsilon=epsilon, unit="client")
    assert bounds.client_bound(0.0, 0.0, whole).value < 0.5


def test_the_conditions_on_lambda_and_beta_explain_themselves() -> None:
    assert bounds.lambda_condition(3.0, 2, 0.5).status == "holds"
    fails = bounds.lambda_condition(2.5, 2, 0.5)
    assert fails.status == "does not hold" and "2.5" in fails.reason
    assert bounds.beta_condition(0.25, 4).status == "holds"
    assert bounds.beta_condition(0.2, 4).status == "does not hold"


def statuses(*powers: float | None, printed: bool = False) -> list[bool]:
    return [c.status == "holds" for c in bounds.consistency(*powers, printed=printed)]  # type: ignore[arg-type]


def test_consistency_of_the_usual_rules() -> None:
    assert statuses(0.5, 1.5, 1.0) == [True] * 4
    assert statuses(1.0, 1.5, 1.0) == [True, False, True, True]  # beta = m, as in the experiments
    assert statuses(0.5, 2.0, 1.0) == [True, True, True, False]
    assert statuses(0.5, 0.5, None) == [True] * 4
    assert statuses(0.0, 1.0, 1.0) == [False, True, False, True]
    assert statuses(0.0, 1.0, 1.0, printed=True) == [True] * 4


def gap(m: int, beta: float) -> float:
    """Of the client-level bound, for a posterior that stays at KL = 1 from the prior."""
    return bounds.client_bound(0.0, 1.0, bounds.ClientPremises(beta, m, 0.0, 1.0, 0.05)).value


def new_client_gap(n: int, lambda_: float) -> float:
    given = bounds.ServerPremises((2.0,) * n, (10**9,) * n, 0.0, 1.0, 0.05, (1,) * n, lambda_)
    bound = bounds.new_client_bound(np.full(n, 0.0), 1.0, given)
    return bound.value - bound.terms["empirical"]


def test_consistency_agrees_with_the_bounds_themselves() -> None:
    small, large = 100, 10_000
    assert gap(large**2, large) < 0.02 * gap(small**2, 10.0)  # beta ~ m^(1/2)
    assert gap(large, float(large)) > 0.12  # beta = m leaves (b - a)^2 / 8
    # beta ~ 1 is what the paper prints as sufficient: the gap stays.
    assert gap(large**2, 1.0) > 0.99 * (1 + math.log(20))
    assert new_client_gap(2000, 2000**1.5) < 0.15 * new_client_gap(20, 20**1.5)
    # lambda ~ n_2 is what the paper prints as sufficient: the gap stays.
    assert new_client_gap(2000, 2000.0) > 0.9 * new_client_gap(20, 20.0)


@pytest.mark.parametrize("seed", range(3))
def test_the_margin_is_the_difference_of_two_expected_bounds(seed: int) -> None:
    rng = np.random.default_rng(seed)
    world = random_world(rng, 1, (6,), (5.0,))
    logs = log_evidences(world, draw(world, rng, 1))[0, 0]
    q = rng.dirichlet(np.ones(4))
    taking_part = bounds.ClientPremises(5.0, 6, 0.0, 1.0, 0.1, epsilon=0.4)
    alone = bounds.ClientPremises(5.0, 6, 0.0, 1.0, 0.1)
    with_others = sum(
        w * bounds.gibbs_client_bound(float(z), taking_part).value
        for w, z in zip(q, logs, strict=True)
    )
    without = sum(
        w * bounds.gibbs_client_bound(float(z), alone).value
        for w, z in zip(world.hyper_prior, logs, strict=True)
    )
    after, before = float(q @ logs), float(world.hyper_prior @ logs)
    margin = bounds.participation_margin(after, before, taking_part)
    assert margin == pytest.approx(without - with_others, abs=1e-12)
    words = bounds.participation(after, before, taking_part)
    assert (words.status == "holds") == (margin >= 0)
    assert f"{margin:.4g}" in words.reason


def test_a_larger_tau_does_not_always_help_to_meet_the_constraint() -> None:
    """The paper expects it to; but I grows with tau^2, and the evidence stops growing."""
    rng = np.random.default_rng(3)
    world = random_world(rng, 1, (6,), (30.0,))
    logs = log_evidences(world, draw(world, rng, 1))
    margins = []
    for tau in (0.001, 0.02, 1.0):
        weights = world.hyper_prior * np.exp(tau * logs[0, 0])
        epsilon = float(bounds.sampling_epsilon([30.0], tau, 1.0, [6])[0])
        given = bounds.ClientPremises(30.0, 6, 0.0, 1.0, 0.1, epsilon=epsilon)
        after = float(weights / weights.sum() @ logs[0, 0])
        margins.append(
            bounds.participation_margin(after, float(world.hyper_prior @ logs[0, 0]), given)
        )
    assert margins[2] < margins[0] and margins[2] < margins[1]


@pytest.mark.parametrize("seed", range(3))
def test_the_lagrange_function_has_the_optimal_hyper_posterior_as_maximiser(seed: int) -> None:
    rng = np.random.default_rng(seed)
    betas = (4.0, 2.0, 6.0)
    world = random_world(rng, 3, (3, 2, 5), betas, priors=5)
    counts = draw(world, rng, 1)
    logs = log_evidences(world, counts)[0]
    tau = bounds.tau_from_lambda(20.0, betas, 1)
    costs = [bounds.privacy_cost(0.2, m, 0.1) for m in world.samples]
    best = optimum(world, counts, tau)[0][0]

    def value(q: np.ndarray) -> float:
        return bounds.lagrangian(q, world.hyper_prior, logs, costs, tau)

    by_hand = tau * np.sum(logs @ best - costs - logs @ world.hyper_prior) - divergence(
        best, world.hyper_prior
    )
    assert value(best) == pytest.approx(float(by_hand), rel=1e-12)
    found, _ = minimiser(lambda q: -value(q), -value(best), rng, 5)
    np.testing.assert_allclose(found, best, atol=1e-4)
