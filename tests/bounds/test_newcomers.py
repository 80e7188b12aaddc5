"""The new-client lemma: coverage over clients AND data, and its place above the server bound."""

from __future__ import annotations

import math

import numpy as np
import pytest
from finite_world import (
    World,
    data_set_probability,
    data_sets,
    divergence,
    evidence,
    failures_above,
    failures_at_most,
    gibbs,
    sure_world,
)
from hypothesis import given as generate
from hypothesis import settings
from hypothesis import strategies as st

from pacpfl.bounds import (
    ServerPremises,
    new_client_bound,
    optimal_new_client_bound,
    server_bound,
)


def test_the_formula_worked_by_hand() -> None:
    given = ServerPremises(
        (2.0, 2.0), (4, 5), 0.0, 1.0, 0.1, later=(0, 3), lambda_=7.0, upsilon=0.5
    )
    weight = 1 / 4 + 1.5 / 7
    spread = (2 * (1 / 4 + 1 / 5) + 7 / 1.5) / 16
    by_hand = 1.8 / 4 + weight * 0.3 + spread
    ours = new_client_bound([-0.8, -1.0], 0.3, given).value
    printed = new_client_bound([-0.8, -1.0], 0.3, given, printed=True).value
    assert ours == pytest.approx(by_hand + weight * math.log(10), rel=1e-12)
    assert printed == pytest.approx(by_hand + math.log(10) / math.sqrt(2), rel=1e-12)
    optimal = optimal_new_client_bound(-1.1, given).value
    assert optimal == pytest.approx(weight * (1.1 + math.log(10)) + spread, rel=1e-12)
    printed = optimal_new_client_bound(-1.1, given, printed=True).value
    assert printed == pytest.approx(weight * 1.1 + spread + math.log(10) / math.sqrt(2), rel=1e-12)


def kinds(width: float, faces: int) -> World:
    """2^faces kinds of clients: at kind c, hypothesis j always loses where bit j of c is set."""
    bits = np.array([[(c >> j) & 1 for c in range(2**faces)] for j in range(faces)])
    n = 2**faces
    return sure_world(width * bits.astype(float), np.eye(n), (1,) * n, (1.0,) * n, width)


@pytest.mark.parametrize(("beta", "lambda_2"), [(1.0, 12.0), (4.0, 30.0)])
def test_it_holds_over_clients_and_data(beta: float, lambda_2: float) -> None:
    """Clients are drawn from 16 kinds; a greedy choice over-fits those that happened to come."""
    n, delta, faces, width = 12, 0.05, 4, 1.0
    world = kinds(width, faces)
    rng = np.random.default_rng(8)
    # A client's outcome is always the same, so its many samples carry no noise.
    given = ServerPremises((beta,) * n, (1000,) * n, 0.0, width, delta, lambda_=lambda_2 * 1e-4)
    failed, without = [], []
    for _ in range(4000):
        came = rng.integers(0, 2**faces, n)
        logs = -beta * world.losses[:, came].T  # [n, J]: every prior is sure of one hypothesis
        q = np.eye(faces)[np.argmax(logs.sum(axis=0))]
        bound = new_client_bound(logs @ q, math.log(faces), given)
        failed.append(bound.value < width / 2)
        without.append(bound.value - bound.terms["newness"] - bound.terms["confidence"] < width / 2)
    assert failures_at_most(np.array(failed), delta)
    if beta == 4.0:  # where what remains is small enough for its absence to be seen
        assert failures_above(np.array(without), delta)


def test_it_holds_with_noise_in_the_data_too() -> None:
    """Random clients, several samples each, the optimal hyper-posterior; all sums exact."""
    rng = np.random.default_rng(9)
    n, m, beta, delta, lambda_, kinds_of_clients = 6, 3, 4.0, 0.2, 0.002, 5
    losses = rng.choice([0.0, 0.4, 1.0], (4, 3))
    world = World(
        rng.dirichlet(np.ones(3)),
        rng.dirichlet(np.ones(4), 3),
        losses,
        rng.dirichlet(np.full(3, 0.3), kinds_of_clients),
        (m,) * kinds_of_clients,
        (beta,) * kinds_of_clients,
    )
    sets = data_sets(3, m)
    chances = np.stack([data_set_probability(sets, p) for p in world.data])
    values = np.log(evidence(world, sets, beta))  # [sets, J]
    after = np.einsum("sjh,ch->csj", gibbs(world, sets, beta), world.true_risks)
    new_client_risk = np.einsum("cs,csj->j", chances, after) / kinds_of_clients
    given = ServerPremises((beta,) * n, (m,) * n, 0.0, 1.0, delta, lambda_=lambda_)
    tau = 1 / (1 + n * beta * 1e-4 / lambda_)
    failed = []
    for _ in range(2000):
        came = rng.integers(0, kinds_of_clients, n)
        logs = np.stack([values[rng.choice(len(sets), p=chances[c])] for c in came])
        weights = world.hyper_prior * np.exp(tau * logs.sum(axis=0))
        q = weights / weights.sum()
        bound = optimal_new_client_bound(math.log(weights.sum()), given).value
        general = new_client_bound(logs @ q, float(divergence(q, world.hyper_prior)), given).value
        assert bound == pytest.approx(general, rel=1e-9)
        failed.append(bound < q @ new_client_risk)
    assert failures_at_most(np.array(failed), delta)


SIZES = st.lists(st.tuples(st.integers(1, 20), st.integers(0, 25)), min_size=1, max_size=6)


@settings(max_examples=300, deadline=None, derandomize=True)
@generate(
    beta=st.floats(0.05, 30),
    sizes=SIZES,
    kl=st.floats(0, 20),
    lambda_=st.floats(0.01, 1e4),
    a=st.floats(-2, 1),
)
def test_it_is_never_tighter_than_the_server_bound(
    beta: float, sizes: list[tuple[int, int]], kl: float, lambda_: float, a: float
) -> None:
    """As printed always (where its Delta_i makes sense, a >= 0); as corrected without later
    samples always, and with them wherever lambda/(n_2 + upsilon) pays for the later factors.
    """
    n = len(sizes)
    samples, later = tuple(m for m, _ in sizes), tuple(k for _, k in sizes)
    evidences = np.full(n, -(a + 0.4) * beta)
    given = ServerPremises((beta,) * n, samples, a, a + 1.5, 0.05, later, lambda_)
    new = new_client_bound(evidences, kl, given)
    plain = ServerPremises((beta,) * n, samples, a, a + 1.5, 0.05, None, lambda_)
    assert new_client_bound(evidences, kl, plain).value >= server_bound(evidences, kl, plain).value
    needed = beta * sum(min(1, k / m) / (m * (m + k)) for m, k in sizes)
    if lambda_ / (given.new_clients + given.upsilon) >= needed:
        server = server_bound(evidences, kl, given).value
        assert new.value >= server - 1e-9 * abs(server)
    if a >= 0:
        printed = new_client_bound(evidences, kl, given, printed=True).value
        server = server_bound(evidences, kl, given, printed="theorem").value
        assert printed >= server - 1e-9 * abs(server)
