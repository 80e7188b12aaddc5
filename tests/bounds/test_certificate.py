"""Certificates: budget, choice and verdict; and that they hold."""

from __future__ import annotations

import math
from collections.abc import Callable

import finite_world as finite
import numpy as np
import pytest
from refusals import refused

from pacpfl import bounds
from pacpfl.bounds.losses import ZERO_ONE, LossRange
from pacpfl.certify.certificate import (
    Candidate,
    Certificate,
    Privacy,
    certify_client,
    certify_federation,
)

FRESH = Privacy("independent", "a new client")
PROVED = Privacy("proved", "noise of the laplace mode", 0.5, "client")
ASSUMED = Privacy("assumed", "particles come from SVGD without noise", 0.01)


ONE = bounds.ServerPremises((1.0,), (5,), 0.0, 1.0, 0.05)
HELD = bounds.Condition("q", "holds", "r")


def client(
    *candidates: Candidate, m: int = 100, loss: LossRange = ZERO_ONE, privacy: Privacy = FRESH,
    delta: float = 0.05,
) -> Certificate:  # fmt: skip
    return certify_client("c", loss, candidates, m=m, privacy=privacy, delta=delta)


def test_one_exact_candidate_is_the_client_level_bound() -> None:
    certificate = client(Candidate(40.0, 0.1, 2.0), privacy=PROVED)
    given = bounds.ClientPremises(40.0, 100, 0.0, 1.0, 0.05, epsilon=0.5, unit="client")
    assert certificate.bound == pytest.approx(bounds.client_bound(0.1, 2.0, given).value, rel=1e-12)
    assert certificate.bound == pytest.approx(sum(certificate.terms.values()))
    assert certificate.delta_split == {"bound": 0.05}
    assert certificate.proved and not certificate.vacuous and certificate.verdict == "proved"


def test_the_tightest_candidate_is_chosen_and_the_choice_is_paid_for() -> None:
    certificate = client(*(Candidate(beta, 0.1, 0.05 * beta) for beta in (1.0, 30.0, 1000.0)))
    assert certificate.beta == 30.0
    given = bounds.ClientPremises(30.0, 100, 0.0, 1.0, 0.05, choices=3)
    assert certificate.bound == pytest.approx(bounds.client_bound(0.1, 1.5, given).value, rel=1e-12)


def test_draws_are_paid_for_out_of_delta() -> None:
    draws = np.random.default_rng(0).uniform(0.1, 0.3, 500)
    certificate = client(Candidate(20.0, draws, 1.0), Candidate(40.0, draws, 1.0))
    assert sum(certificate.delta_split.values()) == pytest.approx(0.05)
    assert certificate.delta_split["draws"] == pytest.approx(0.01)
    upper = bounds.betting_bound(draws, 0.0, 1.0, 0.01 / 2)
    given = bounds.ClientPremises(certificate.beta, 100, 0.0, 1.0, 0.04, choices=2)
    expected = bounds.client_bound(float(draws.mean()), 1.0, given).value + upper - draws.mean()
    assert certificate.bound == pytest.approx(expected, rel=1e-12)
    assert certificate.empirical_risk == pytest.approx(draws.mean())


def test_an_assumed_epsilon_is_said_to_be_assumed() -> None:
    certificate = client(Candidate(40.0, 0.1, 2.0), privacy=ASSUMED)
    statuses = {c.name: c.status for c in certificate.conditions}
    assert statuses["prior from an epsilon-DP algorithm"] == "assumed"
    assert statuses["bounded loss"] == "holds"
    assert not certificate.proved
    assert certificate.verdict == "assumed"


def test_a_vacuous_bound_is_no_statement() -> None:
    certificate = client(Candidate(10.0, 0.4, 50.0), m=10)
    assert certificate.vacuous and certificate.verdict == "no statement"


def test_the_conditions_for_use_are_there_and_do_not_touch_validity() -> None:
    certificate = client(Candidate(100.0, 0.1, 0.1), loss=LossRange("wide", 0.0, 10.0))
    by_name = {c.name: c for c in certificate.conditions}
    assert by_name["deviation term below b - a"].status == "does not hold"
    assert certificate.proved and certificate.vacuous


@pytest.mark.parametrize("seed", range(2))
def test_client_certificates_hold(seed: int) -> None:
    """The whole way: a prior from Q*, Gibbs posteriors for a grid of betas, risks from draws."""
    rng = np.random.default_rng(seed)
    m, tau, delta, beta = 30, 0.2, 0.2, 4.0
    world = finite.random_world(rng, 1, (m,), (beta,))
    grid = (4.0, 12.0)
    counts = finite.draw(world, rng, 600)
    hyper_posterior, _ = finite.optimum(world, counts, tau)
    epsilon = float(bounds.sampling_epsilon([beta], tau, 1.0, [m])[0])
    privacy = Privacy("proved", "a draw from Q* itself", epsilon)
    failed = []
    for row, q in zip(counts, hyper_posterior, strict=True):
        j = rng.choice(len(q), p=q)
        average = row[0] @ world.losses.T / m
        posteriors = [finite.gibbs(world, row[0], b)[j] for b in grid]
        candidates = [
            Candidate(
                b, average[rng.choice(5, 100, p=p)], float(finite.divergence(p, world.priors[j]))
            )
            for b, p in zip(grid, posteriors, strict=True)
        ]
        certificate = client(*candidates, m=m, privacy=privacy, delta=delta)
        truth = posteriors[grid.index(certificate.beta)] @ world.true_risks[0]
        failed.append(certificate.bound < truth)
    assert finite.failures_at_most(np.array(failed), delta)


def test_the_federation_s_certificate() -> None:
    rng = np.random.default_rng(4)
    world = finite.random_world(rng, 3, (30, 20, 50), (6.0, 4.0, 10.0))
    counts = finite.draw(world, rng, 1)
    given = bounds.ServerPremises(world.betas, world.samples, 0.0, 1.0, 0.04)
    tau = bounds.tau_from_lambda(math.inf, world.betas, 0)
    q, _ = finite.optimum(world, counts, tau)
    logs = np.array(
        [np.log(finite.evidence(world, counts[0, i], b)) @ q[0] for i, b in enumerate(world.betas)]
    )
    kl = float(finite.divergence(q, world.hyper_prior)[0])
    exact = bounds.Condition("hyper-posterior in use", "holds", "Q*, summed out")
    certificate = certify_federation(
        ZERO_ONE, logs, kl, 0.3, given, exact, other_failures={"ln Z": 0.01}
    )
    assert certificate.bound == pytest.approx(bounds.server_bound(logs, kl, given).value, rel=1e-12)
    assert certificate.delta == pytest.approx(0.05)
    assert certificate.proved and "weighted by beta" in certificate.posterior
    truth = np.array(world.betas) / 20 @ finite.risks(world, counts, (0, 0, 0))[0] @ q[0]
    assert certificate.bound > truth
    wrong = bounds.Condition("hyper-posterior in use", "does not hold", "bare particles")
    other = certify_federation(ZERO_ONE, logs, kl, 0.3, given, wrong)
    assert not other.proved and other.verdict == "not valid"


@pytest.mark.parametrize(
    "call",
    [
        lambda: Privacy("hoped", "no"),  # type: ignore[arg-type]
        lambda: Privacy("independent", "new", 0.1),
        lambda: client(),
        lambda: client(Candidate(1.0, math.nan, 0.1)),
        lambda: client(Candidate(1.0, 0.1, 0.1), delta=1.0),
        lambda: client(Candidate(1.0, 0.1, 0.1), privacy=Privacy("assumed", "no", -1.0)),
        lambda: certify_federation(LossRange("other", 0.0, 2.0), [-1.0], 0.0, 0.5, ONE, HELD),
        lambda: certify_federation(ZERO_ONE, [-0.5], 0.0, math.nan, ONE, HELD),
        lambda: certify_federation(
            ZERO_ONE, [-0.5], 0.0, 0.5, ONE, HELD, other_failures={"draws": 0.96}
        ),
    ],
)
def test_bad_input_is_refused_in_one_sentence(call: Callable[[], object]) -> None:
    refused(call)
