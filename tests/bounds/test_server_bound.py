"""The server-level theorem and the new-client lemma: coverage, minimiser, and where the printed fail."""

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

from pacpfl import bounds

REPETITIONS = 3000


def premises(world: finite.World, delta: float, **more: object) -> bounds.ServerPremises:
    return bounds.ServerPremises(world.betas, world.samples, world.a, world.b, delta, **more)  # type: ignore[arg-type]


def bounds_of(
    world: finite.World,
    counts: np.ndarray,
    q: np.ndarray,
    given: bounds.ServerPremises,
    **options: object,
) -> np.ndarray:
    """The bound for hyper-posteriors q, [R, J], one per repetition."""
    expected = np.einsum("rnj,rj->rn", finite.log_evidences(world, counts), q)
    kls = np.maximum(finite.divergence(q, world.hyper_prior), 0.0)
    rows = zip(expected, kls, strict=True)
    return np.array([bounds.server_bound(e, float(k), given, **options).value for e, k in rows])  # type: ignore[arg-type]


def greedy(world: finite.World, counts: np.ndarray) -> np.ndarray:
    """A hyper-posterior that is sure of the prior with the highest evidence: no privacy."""
    best = np.argmax(finite.log_evidences(world, counts).sum(axis=1), axis=1)
    return np.eye(len(world.hyper_prior))[best]


def test_the_formulas_worked_by_hand() -> None:
    given = bounds.ServerPremises(
        (2.0, 2.0), (4, 5), 0.0, 1.0, 0.1, later=(0, 3), lambda_=7.0, upsilon=0.5
    )
    evidences, kl = np.array([-0.8, -1.0]), 0.3
    empirical = (0.8 + 1.0) / 4
    weight = 1 / 4 + 1.5 / 7
    factor = 1 + (3 / 5) / 8
    deviation = 2 / 16 * (1 / 4 + factor / 5)
    ours = bounds.server_bound(evidences, kl, given)
    assert ours.value == pytest.approx(
        empirical + weight * (kl + math.log(10)) + deviation, rel=1e-12
    )
    change = 2 * 3 / 8
    delta_2 = min(1.0, math.exp(2 * change) - math.exp(-2 * change)) / 2
    rest = empirical + weight * kl + 2 / 16 * (1 / 4 + 1 / 5) + 7 * delta_2**2 / (8 * 1.5)
    theorem = bounds.server_bound(evidences, kl, given, printed="theorem").value
    proof = bounds.server_bound(evidences, kl, given, printed="proof").value
    assert theorem == pytest.approx(rest + math.log(10) / math.sqrt(2), rel=1e-12)
    assert proof == pytest.approx(rest + math.log(10), rel=1e-12)


def test_the_two_averages_worked_by_hand_for_betas_that_differ() -> None:
    given = bounds.ServerPremises((2.0, 6.0), (4, 5), 0.0, 1.0, 0.1)
    nats = 0.3 + math.log(10)
    equal = bounds.server_bound([-0.8, -1.2], 0.3, given, weights=[0.5, 0.5]).value
    assert equal == pytest.approx(0.5 * (0.4 + 0.2) + nats / 12 + 12 / 8 * (1 / 4 + 1 / 5) / 4)
    by_beta = bounds.server_bound([-0.8, -1.2], 0.3, given).value
    assert by_beta == pytest.approx(2.0 / 8 + nats / 8 + (4 / 4 + 36 / 5) / 64)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("betas", [(3.0, 3.0, 3.0), (8.0, 1.0, 4.0)], ids=["one beta", "betas"])
@pytest.mark.parametrize("weighting", ["beta", "equal"])
def test_it_holds_for_the_optimum_and_for_a_greedy_choice(
    seed: int, betas: tuple[float, ...], weighting: str
) -> None:
    rng = np.random.default_rng(seed)
    delta, later = 0.2, (2, 0, 3)
    world = finite.random_world(rng, 3, (3, 2, 5), betas, a=-1.0, b=0.5)
    given = premises(world, delta, later=later, lambda_=50.0)
    counts = finite.draw(world, rng, REPETITIONS)
    shares = np.array(betas) / sum(betas) if weighting == "beta" else np.full(3, 1 / 3)
    truth = np.einsum("n,rnj->rj", shares, finite.risks(world, counts, later))
    tau = bounds.tau_from_lambda(50.0, betas, 2)
    for q in (finite.optimum(world, counts, tau)[0], greedy(world, counts)):
        options = {} if weighting == "beta" else {"weights": shares}
        failed = bounds_of(world, counts, q, given, **options) < np.sum(q * truth, axis=1)
        assert finite.failures_at_most(failed, delta)


@pytest.mark.parametrize("later", [0, 2])
def test_it_holds_where_it_is_nearly_tight(later: int) -> None:
    """Coins, the best beta for them, and a greedy choice among few priors."""
    n, m, delta = 6, 5, 0.05
    beta = math.sqrt(8 * m / n * math.log(4 / delta))
    world = finite.coin_world(n, m, beta, faces=4)
    counts = finite.draw(world, np.random.default_rng(5), 20_000)
    given = premises(world, delta, later=(later,) * n)
    uppers = bounds_of(world, counts, greedy(world, counts), given)
    assert finite.failures_at_most(uppers < 0.5, delta)
    # Without divergence and confidence, or without the deviation term, it does not hold.
    price = (math.log(4) + math.log(1 / delta)) / (n * beta)
    assert finite.failures_above(uppers - price < 0.5, delta)
    assert finite.failures_above(uppers - beta / (8 * m) < 0.5, delta)


@pytest.mark.parametrize("betas", [(3.0, 3.0, 3.0), (8.0, 1.0, 4.0)], ids=["one beta", "betas"])
@pytest.mark.parametrize("seed", range(3))
def test_the_optimal_hyper_posterior_attains_the_minimum(
    betas: tuple[float, ...], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    world = finite.random_world(rng, 3, (3, 2, 5), betas, priors=5)
    given = premises(world, 0.1, later=(1, 0, None), lambda_=40.0)
    counts = finite.draw(world, rng, 1)
    logs = finite.log_evidences(world, counts)[0]
    tau = bounds.tau_from_lambda(40.0, betas, 2)
    exact, partition = finite.optimum(world, counts, tau)
    log_q, log_partition = bounds.optimal_hyper_posterior(np.log(world.hyper_prior), logs, tau)
    np.testing.assert_allclose(np.exp(log_q), exact[0], rtol=1e-12)
    assert log_partition == pytest.approx(math.log(partition[0]), rel=1e-12)

    def bound(q: np.ndarray) -> float:
        return bounds.server_bound(
            logs @ q, max(float(finite.divergence(q, world.hyper_prior)), 0.0), given
        ).value

    least = bounds.optimal_server_bound(log_partition, given).value
    assert bound(exact[0]) == pytest.approx(least, rel=1e-12)
    assert finite.minimiser(bound, least, rng, 5)[1] <= least + 1e-7


def test_tau_by_hand_and_its_inverse() -> None:
    """lambda = 10, beta = 5, n = 4, n_2 = 2, upsilon = 1/2: 10 / (10 + 5 * 4 * 2.5) = 1/6."""
    assert bounds.tau_from_lambda(10, [5] * 4, 2, 0.5) == pytest.approx(1 / 6, rel=1e-14)
    assert bounds.lambda_from_tau(1 / 6, [5] * 4, 2, 0.5) == pytest.approx(10, rel=1e-12)
    betas = (2.0, 5.0, 3.5)
    for lambda_ in (0.3, 4.0, 1e5):
        tau = bounds.tau_from_lambda(lambda_, betas, 2, 0.01)
        assert bounds.lambda_from_tau(tau, betas, 2, 0.01) == pytest.approx(lambda_, rel=1e-9)
    assert bounds.tau_from_lambda(math.inf, betas, 2) == 1.0
    assert bounds.lambda_from_tau(1.0, betas, 2) == math.inf


# Where the printed theorem fails.


def test_the_printed_confidence_term_fails() -> None:
    """ln(1/delta)/sqrt(n) is too small: n = 100 coins, beta = 1/n as the theorem allows."""
    delta = 0.05
    world = finite.coin_world(100, 1, 0.01, width=7.0)
    counts = finite.draw(world, np.random.default_rng(6), REPETITIONS)
    q = np.ones((REPETITIONS, 1))
    given = premises(world, delta, lambda_=1.0)
    assert finite.failures_above(
        bounds_of(world, counts, q, given, printed="theorem") < 3.5, 2 * delta
    )
    assert finite.failures_at_most(bounds_of(world, counts, q, given, printed="proof") < 3.5, delta)
    assert finite.failures_at_most(bounds_of(world, counts, q, given) < 3.5, delta)


def test_the_printed_bound_depends_on_the_unit_of_the_loss() -> None:
    """A loss in cents instead of euros, beta accordingly: the bound must be 100 times as large."""
    euros = bounds.ServerPremises((2.0,) * 4, (3,) * 4, 0.0, 1.0, 0.05, lambda_=9.0)
    cents = bounds.ServerPremises((0.02,) * 4, (3,) * 4, 0.0, 100.0, 0.05, lambda_=0.09)
    evidences = np.full(4, -0.5)
    ours = [bounds.server_bound(evidences, 1.0, case).value for case in (euros, cents)]
    printed = [
        bounds.server_bound(evidences, 1.0, case, printed="theorem") for case in (euros, cents)
    ]
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
    world = finite.sure_world(losses, data, (4, 100_000), (0.5, 50.0), width)
    counts = finite.draw(world, rng, 2000)
    q = greedy(world, counts)
    given = premises(world, delta, lambda_=1e4)
    average = 0.25 * width  # (width / 2 + 0) / 2, for every prior
    assert finite.failures_above(
        bounds_of(world, counts, q, given, printed="theorem") < average, delta
    )
    assert finite.failures_above(
        bounds_of(world, counts, q, given, printed="proof") < average, delta
    )
    equal = bounds_of(world, counts, q, given, weights=np.array([0.5, 0.5]))
    assert finite.failures_at_most(equal < average, delta)
    by_beta = bounds_of(world, counts, q, given)
    assert finite.failures_at_most(by_beta < width / 2 * 0.5 / 50.5, delta)


# What later samples may do: the theorem's own step, exactly, and the printed one.


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
    assert np.all(left <= bounds.later_factor(m, later) * beta**2 / (8 * m))


@pytest.mark.parametrize(("m", "later"), [(1, 1), (1, 4), (2, 1), (3, 2), (4, 4), (5, 1)])
@pytest.mark.parametrize("beta", [0.5, 3.0, 10.0])
def test_serfling_without_replacement_exactly(m: int, later: int, beta: float) -> None:
    """The mean of m of m + m~ numbers, all subsets listed: what `later_factor` stands on."""
    total = m + later
    # What is left after the m + m~ samples' share.
    factor = bounds.later_factor(m, later) - m / total
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
    base = bounds.ServerPremises((beta,) * len(sizes), samples, 0.0, 1.0, 0.05, known, lambda_)
    vague = dataclasses.replace(base, later=partly)
    for printed in (None, "theorem"):
        cases = base, vague
        values = [bounds.server_bound(evidences, kl, c, printed=printed).value for c in cases]
        assert values[1] >= values[0] * (1 - 1e-12)


def test_as_printed_not_knowing_tightens_it_where_losses_are_negative() -> None:
    """b < 0 makes the printed Delta_i a large negative number, whose square enters the bound."""
    given = bounds.ServerPremises((4.0,) * 2, (3, 3), -3.0, -1.0, 0.05, (2, 2), lambda_=10.0)
    vague = dataclasses.replace(given, later=(None, None))
    for printed, tightens in (("theorem", True), (None, False)):
        cases = given, vague
        known, unknown = (
            bounds.server_bound([8.0, 8.0], 0.5, case, printed=printed).value for case in cases
        )
        assert (unknown < known) == tightens and unknown != known


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
    assert moved <= bounds.later_range(beta, m, later, a, b, 1)
    assert moved >= 0.99 * bounds.later_range(beta, m, later, a, b, 1)
    if b <= 0:  # The printed Delta_i is zero or negative there, and the risk moves all the same.
        assert bounds.later_range(beta, m, later, a, b, 1, printed=True) <= 0 < moved


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
    delta_1 = bounds.later_range(10.0 / width, 1, 1, 0.0, width, 1, printed=True)
    claimed = math.exp(lambda_2 * delta_1**2 / 8)
    assert chances @ np.exp(gap) > 1.005 * claimed


# Clients yet to come.


def test_the_new_client_bound_worked_by_hand() -> None:
    given = bounds.ServerPremises(
        (2.0, 2.0), (4, 5), 0.0, 1.0, 0.1, later=(0, 3), lambda_=7.0, upsilon=0.5
    )
    weight = 1 / 4 + 1.5 / 7
    spread = (2 * (1 / 4 + 1 / 5) + 7 / 1.5) / 16
    by_hand = 1.8 / 4 + weight * 0.3 + spread
    ours = bounds.new_client_bound([-0.8, -1.0], 0.3, given).value
    printed = bounds.new_client_bound([-0.8, -1.0], 0.3, given, printed=True).value
    assert ours == pytest.approx(by_hand + weight * math.log(10), rel=1e-12)
    assert printed == pytest.approx(by_hand + math.log(10) / math.sqrt(2), rel=1e-12)
    optimal = bounds.optimal_new_client_bound(-1.1, given).value
    assert optimal == pytest.approx(weight * (1.1 + math.log(10)) + spread, rel=1e-12)
    printed = bounds.optimal_new_client_bound(-1.1, given, printed=True).value
    assert printed == pytest.approx(weight * 1.1 + spread + math.log(10) / math.sqrt(2), rel=1e-12)


def kinds(width: float, faces: int) -> finite.World:
    """2^faces kinds of clients: at kind c, hypothesis j always loses where bit j of c is set."""
    bits = np.array([[(c >> j) & 1 for c in range(2**faces)] for j in range(faces)])
    n = 2**faces
    return finite.sure_world(width * bits.astype(float), np.eye(n), (1,) * n, (1.0,) * n, width)


@pytest.mark.parametrize(("beta", "lambda_2"), [(1.0, 12.0), (4.0, 30.0)])
def test_the_new_client_bound_holds_over_clients_and_data(beta: float, lambda_2: float) -> None:
    """Clients are drawn from 16 kinds; a greedy choice over-fits those that happened to come."""
    n, delta, faces, width = 12, 0.05, 4, 1.0
    world = kinds(width, faces)
    rng = np.random.default_rng(8)
    # A client's outcome is always the same, so its many samples carry no noise.
    given = bounds.ServerPremises(
        (beta,) * n, (1000,) * n, 0.0, width, delta, lambda_=lambda_2 * 1e-4
    )
    failed, without = [], []
    for _ in range(4000):
        came = rng.integers(0, 2**faces, n)
        logs = -beta * world.losses[:, came].T  # [n, J]: every prior is sure of one hypothesis
        q = np.eye(faces)[np.argmax(logs.sum(axis=0))]
        bound = bounds.new_client_bound(logs @ q, math.log(faces), given)
        failed.append(bound.value < width / 2)
        without.append(bound.value - bound.terms["newness"] - bound.terms["confidence"] < width / 2)
    assert finite.failures_at_most(np.array(failed), delta)
    if beta == 4.0:  # where what remains is small enough for its absence to be seen
        assert finite.failures_above(np.array(without), delta)


def test_the_new_client_bound_holds_with_noise_in_the_data_too() -> None:
    """Random clients, several samples each, the optimal hyper-posterior; all sums exact."""
    rng = np.random.default_rng(9)
    n, m, beta, delta, lambda_, kinds_of_clients = 6, 3, 4.0, 0.2, 0.002, 5
    losses = rng.choice([0.0, 0.4, 1.0], (4, 3))
    world = finite.World(
        rng.dirichlet(np.ones(3)),
        rng.dirichlet(np.ones(4), 3),
        losses,
        rng.dirichlet(np.full(3, 0.3), kinds_of_clients),
        (m,) * kinds_of_clients,
        (beta,) * kinds_of_clients,
    )
    sets = finite.data_sets(3, m)
    chances = np.stack([finite.data_set_probability(sets, p) for p in world.data])
    values = np.log(finite.evidence(world, sets, beta))  # [sets, J]
    after = np.einsum("sjh,ch->csj", finite.gibbs(world, sets, beta), world.true_risks)
    new_client_risk = np.einsum("cs,csj->j", chances, after) / kinds_of_clients
    given = bounds.ServerPremises((beta,) * n, (m,) * n, 0.0, 1.0, delta, lambda_=lambda_)
    tau = 1 / (1 + n * beta * 1e-4 / lambda_)
    failed = []
    for _ in range(2000):
        came = rng.integers(0, kinds_of_clients, n)
        logs = np.stack([values[rng.choice(len(sets), p=chances[c])] for c in came])
        weights = world.hyper_prior * np.exp(tau * logs.sum(axis=0))
        q = weights / weights.sum()
        bound = bounds.optimal_new_client_bound(math.log(weights.sum()), given).value
        general = bounds.new_client_bound(
            logs @ q, float(finite.divergence(q, world.hyper_prior)), given
        ).value
        assert bound == pytest.approx(general, rel=1e-9)
        failed.append(bound < q @ new_client_risk)
    assert finite.failures_at_most(np.array(failed), delta)


SIZES = st.lists(st.tuples(st.integers(1, 20), st.integers(0, 25)), min_size=1, max_size=6)


@settings(max_examples=300, deadline=None, derandomize=True)
@generate(
    beta=st.floats(0.05, 30),
    sizes=SIZES,
    kl=st.floats(0, 20),
    lambda_=st.floats(0.01, 1e4),
    a=st.floats(-2, 1),
)
def test_the_new_client_bound_is_never_tighter_than_the_server_s(
    beta: float, sizes: list[tuple[int, int]], kl: float, lambda_: float, a: float
) -> None:
    """As printed always (where its Delta_i makes sense, a >= 0); as corrected without later
    samples always, and with them wherever lambda/(n_2 + upsilon) pays for the later factors.
    """
    n = len(sizes)
    samples, later = tuple(m for m, _ in sizes), tuple(k for _, k in sizes)
    evidences = np.full(n, -(a + 0.4) * beta)
    given = bounds.ServerPremises((beta,) * n, samples, a, a + 1.5, 0.05, later, lambda_)
    new = bounds.new_client_bound(evidences, kl, given)
    plain = bounds.ServerPremises((beta,) * n, samples, a, a + 1.5, 0.05, None, lambda_)
    assert (
        bounds.new_client_bound(evidences, kl, plain).value
        >= bounds.server_bound(evidences, kl, plain).value
    )
    needed = beta * sum(min(1, k / m) / (m * (m + k)) for m, k in sizes)
    if lambda_ / (given.new_clients + given.upsilon) >= needed:
        server = bounds.server_bound(evidences, kl, given).value
        assert new.value >= server - 1e-9 * abs(server)
    if a >= 0:
        printed = bounds.new_client_bound(evidences, kl, given, printed=True).value
        server = bounds.server_bound(evidences, kl, given, printed="theorem").value
        assert printed >= server - 1e-9 * abs(server)
