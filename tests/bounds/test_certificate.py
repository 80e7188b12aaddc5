"""Certificates: budget, choice and verdict; and that they hold."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import finite_world as finite
import numpy as np
import pytest
from refusals import refused

from pacpfl import bounds
from pacpfl.bounds.losses import ZERO_ONE, LossRange
from pacpfl.certify.certificate import (
    Certificate,
    Privacy,
    certify_federation,
    certify_posterior,
    certify_rows,
    judged_by_tests,
)
from pacpfl.certify.held_out import (
    Held,
    RowLosses,
    choose,
    divide,
    memorised,
    order_says_something,
)
from pacpfl.types import Client, Samples

FRESH = Privacy("independent", "a new client")
PROVED = Privacy("proved", "noise of the laplace mode", 0.5, "client")
ASSUMED = Privacy("assumed", "particles come from SVGD without noise", 0.01)


ONE = bounds.ServerPremises((1.0,), (5,), 0.0, 1.0, 0.05)
HELD = bounds.Condition("q", "holds", "r")


def client(
    risk: Any, kl: float, m: int = 100, privacy: Privacy = FRESH, delta: float = 0.05
) -> Certificate:
    return certify_posterior("c", ZERO_ONE, risk, kl, m=m, privacy=privacy, delta=delta)


def judged(
    values: np.ndarray, privacy: Privacy = FRESH, delta: float = 0.05, binary: bool = True
) -> Certificate:
    return certify_rows(
        "c", ZERO_ONE, values, privacy=privacy, delta=delta, posterior="model", binary=binary
    )


def test_an_exact_posterior_has_the_kl_bound() -> None:
    certificate = client(0.1, 2.0, privacy=PROVED)
    assert certificate.bound == pytest.approx(
        bounds.maurer_seeger(0.1, 2.0, 100, 0.0, 1.0, 0.05, 0.5).value, rel=1e-12
    )
    assert certificate.bound == pytest.approx(sum(certificate.terms.values()))
    assert certificate.delta_split == {"bound": 0.05}
    assert certificate.proved and not certificate.vacuous and certificate.verdict == "proved"


def test_draws_are_paid_for_out_of_delta() -> None:
    draws = np.random.default_rng(0).uniform(0.1, 0.3, 500)
    certificate = client(draws, 1.0)
    assert certificate.delta_split == pytest.approx({"bound": 0.04, "draws": 0.01})
    upper = bounds.betting_bound(draws, 0.0, 1.0, 0.01)
    expected = bounds.maurer_seeger(upper, 1.0, 100, 0.0, 1.0, 0.04)
    assert certificate.bound == pytest.approx(expected.value, rel=1e-12)
    assert certificate.empirical_risk == pytest.approx(draws.mean())


def test_rows_that_judge_pay_for_what_the_prior_has_seen() -> None:
    values = np.repeat([1.0, 0.0], [2, 12])
    assert judged(values).bound == pytest.approx(0.385, abs=1e-3)
    assert judged(values, binary=False).bound == bounds.betting_bound(values, 0.0, 1.0, 0.05)
    private = judged(values, PROVED)
    assert private.bound == pytest.approx(bounds.clopper_pearson(2, 14, 0.05 * math.exp(-0.5)))
    gauss = Privacy("proved", "noise", 8.0, "client", mu=1.0)
    assert private.bound < judged(values, gauss).bound < 1
    several = Privacy(
        "proved", "noise", 9.0, "client", deltas=((9.0, 1e-5), (1.0, 0.01), (0.1, 0.1))
    )
    assert several.cost(14, 0.05) == pytest.approx(1 + math.log(0.05 / 0.04))
    memory = Privacy("assumed", "nothing", 1000.0, "client")
    assert judged(values, memory).bound == 1.0 and judged(values, memory).verdict == "no statement"


def test_an_assumed_epsilon_is_said_to_be_assumed() -> None:
    certificate = client(0.1, 2.0, privacy=ASSUMED)
    statuses = {c.name: c.status for c in certificate.conditions}
    assert statuses["prior from a private algorithm"] == "assumed"
    assert not certificate.proved and certificate.verdict == "assumed"


def coverage(failed: np.ndarray, delta: float) -> None:
    assert finite.failures_at_most(failed, delta)


@pytest.mark.parametrize(
    "kind", ["posterior", "exact", "bets", "chosen by others", "all ways paid"]
)
def test_certificates_hold_in_1000_repetitions(kind: str) -> None:
    """Every kind, the choice of rows that judge included, of a model that is fitted to the others."""
    delta, rows, repetitions = 0.05, 30, 1000
    rng = np.random.default_rng(len(kind))
    world = finite.random_world(rng, 1, (rows,), (8.0,), hypotheses=6)
    chances, truth, failed = world.data[0], world.true_risks[0], []
    for _ in range(repetitions):
        outcomes = rng.choice(3, rows, p=chances)

        def fitted(seen: np.ndarray) -> np.ndarray:
            """The prior's Gibbs posterior given these rows."""
            counts = np.bincount(seen, minlength=3)[None]
            return finite.gibbs(world, counts, 8.0)[0, 0] if len(seen) else world.priors[0]

        q = fitted(outcomes)
        if kind == "posterior":
            average = world.losses[:, outcomes].mean(1)
            certificate = client(
                float(q @ average), float(finite.divergence(q, world.priors[0])), rows, delta=delta
            )
            failed.append(certificate.bound < q @ truth)
            continue
        options, risks = [], []
        for cut in (0, rows // 2):
            q = fitted(outcomes[:cut])
            if kind == "exact":
                values = (world.losses[q.argmax(), outcomes[cut:]] > 0.5).astype(float)
                risk = float(chances @ (world.losses[q.argmax()] > 0.5))
            else:
                values, risk = q @ world.losses[:, outcomes[cut:]], float(q @ truth)
            share = delta / 2 if kind == "all ways paid" else delta
            options.append(judged(values, delta=share, binary=kind == "exact"))
            risks.append(risk)
        place = 1
        if kind == "all ways paid":
            (place,) = choose([options])
        elif (
            kind == "chosen by others"
        ):  # the second of six is this client: its own bounds have no say
            wild = [[client(rng.random(), 1.0) for _ in range(2)] for _ in range(5)]
            (_, place, *_) = choose([wild[0], options, *wild[1:]])
            assert place == choose([wild[0], options[::-1], *wild[1:]])[1]
        failed.append(options[place].bound < risks[place])
    # Clopper-Pearson on the count: not above delta, and where there is room, surely below.
    assert not finite.failures_above(np.array(failed), delta)
    if sum(failed) <= 30:
        coverage(np.array(failed), delta)


def test_a_private_prior_s_certificate_holds() -> None:
    """A prior from Q*, with its true epsilon; and one from noisy votes, with that of Gaussian noise."""
    rng, m, delta = np.random.default_rng(3), 20, 0.2
    world = finite.coin_world(1, m, 6.0, faces=4)
    counts = finite.draw(world, rng, 1000)
    failed: dict[str, list[bool]] = {"Q*": [], "noise": [], "unpaid": []}
    hyper_posterior, _ = finite.optimum(world, counts, 0.2)
    epsilon = float(bounds.sampling_epsilon([6.0], 0.2, 1.0, [m])[0])
    for row, q in zip(counts, hyper_posterior, strict=True):
        average = row[0] @ world.losses.T / m
        taken = rng.choice(4, p=q)
        given = client(float(average[taken]), 0.0, m, Privacy("proved", "Q*", epsilon), delta)
        failed["Q*"].append(given.bound < 0.5)
        # Votes for the best hypothesis, with noise: replacing all rows moves them by sqrt(2) at most.
        votes = np.eye(4)[average.argmin()] + 0.7 * rng.normal(size=4)
        values = np.repeat(
            [0.0, 1.0], [m - round(m * average[votes.argmax()]), round(m * average[votes.argmax()])]
        )
        noise = Privacy("proved", "noise", 1.0, "client", mu=math.sqrt(2) / 0.7)
        failed["noise"].append(judged(values, noise, delta).bound < 0.5)
        failed["unpaid"].append(judged(values, FRESH, delta).bound < 0.5)
    assert finite.failures_at_most(np.array(failed["Q*"]), delta)
    assert finite.failures_at_most(np.array(failed["noise"]), delta)
    assert finite.failures_above(np.array(failed["unpaid"]), delta)


# What speaks against certificates.


def test_test_rows_refute_a_bound() -> None:
    certificate = judged(np.zeros(50))  # at most 0.058
    assert judged_by_tests(certificate, 0.2, 100).verdict == "contradicted"
    assert judged_by_tests(certificate, 0.2, 4).verdict == "proved", "too few rows to tell"
    assert judged_by_tests(certificate, None, 0).conditions == certificate.conditions
    rng = np.random.default_rng(5)  # a model whose risk is the bound is refuted with delta at most
    risks = rng.binomial(60, certificate.bound, 2000) / 60
    refuted = [judged_by_tests(certificate, float(risk), 60).contradicted for risk in risks]
    assert finite.failures_at_most(np.array(refuted), 0.05) and any(refuted)


def held(own: np.ndarray, test: np.ndarray) -> Held:
    return Held(0, RowLosses(own, own), RowLosses(test, test))


def test_a_prior_that_has_memorised_is_found_out() -> None:
    """As on digits: 0.014 on own rows and 0.123 on others, where epsilon 0.46 allows 1.58 times."""
    rng = np.random.default_rng(6)
    assumed = Privacy("assumed", "Q*", 0.46)

    def clients(own: float) -> list[Held]:
        draws = rng.random((50, 18))
        return [held(1.0 * (row[:14] < own), 1.0 * (row[14:] < 0.123)) for row in draws]

    found = memorised(clients(0.014), ZERO_ONE, assumed, 0.05)
    assert found is not None and found.status == "contradicted" and "memorised" in found.reason
    assert judged(np.zeros(14), assumed).under(found).verdict == "contradicted"
    assert memorised(clients(0.014), ZERO_ONE, Privacy("assumed", "Q*", 3.0), 0.05) is None
    wrong = [memorised(clients(0.123 / 1.58), ZERO_ONE, assumed, 0.05) for _ in range(200)]
    assert sum(one is not None for one in wrong) <= 10


def test_an_order_that_says_something_is_found_out() -> None:
    rng = np.random.default_rng(7)
    nothing = np.zeros(0)

    def series(memory: float, clients: int) -> list[Held]:
        noise = rng.normal(size=(clients, 60))
        for t in range(1, 60):
            noise[:, t] += memory * noise[:, t - 1]
        return [held(1 / (1 + np.exp(-row)), nothing) for row in noise]

    for clients in (1, 12):
        found = order_says_something(series(0.8, clients))
        assert found is not None and found.status == "contradicted"
        assert judged(np.zeros(60)).under(found).verdict == "contradicted"
    assert sum(order_says_something(series(0.0, 12)) is not None for _ in range(100)) <= 1
    assert order_says_something([held(np.zeros(20), nothing)]) is None


@pytest.mark.parametrize("ordered", [False, True])
def test_no_row_fits_and_judges(ordered: bool) -> None:
    rows = Samples(np.arange(9.0)[:, None], np.arange(9.0))
    later = Samples(np.arange(9.0, 13.0)[:, None], np.arange(9.0, 13.0))
    for group, one, judges in (
        ("new", Client("c", rows), 9), ("existing", Client("c", rows), 9),
        ("existing", Client("c", rows, later), 4), ("new", Client("c", rows, later), 13),
    ):  # fmt: skip
        everything = set(one.personal.y)
        for share in (0.0, 0.5):
            fit, judge = divide(group, one, share, ordered)
            assert set(fit.y) | set(judge.y) == everything and not set(fit.y) & set(judge.y)
            assert len(judge) == judges - int(share * judges)
            if ordered and len(fit):
                assert fit.y.max() < judge.y.min()
        if group == "existing" and one.later:
            assert judge.y.min() >= 9, "training has seen the rows before"


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
        lambda: client(math.nan, 0.1),
        lambda: client(0.1, 0.1, delta=1.0),
        lambda: client(0.1, 0.1, privacy=Privacy("assumed", "no", -1.0)),
        lambda: judged(np.zeros(0)),
        lambda: certify_federation(LossRange("other", 0.0, 2.0), [-1.0], 0.0, 0.5, ONE, HELD),
        lambda: certify_federation(ZERO_ONE, [-0.5], 0.0, math.nan, ONE, HELD),
        lambda: certify_federation(
            ZERO_ONE, [-0.5], 0.0, 0.5, ONE, HELD, other_failures={"draws": 0.96}
        ),
    ],
)
def test_bad_input_is_refused_in_one_sentence(call: Callable[[], object]) -> None:
    refused(call)
