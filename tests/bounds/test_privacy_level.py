"""The privacy lemma: exact density ratios of Q* for data that differ in one sample."""

from __future__ import annotations

import numpy as np
import pytest
from finite_world import World, data_sets, optimum, random_world

from pacpfl.bounds import sampling_epsilon


def largest_log_ratio(world: World, client: int, others: np.ndarray, tau: float) -> float:
    """max over neighbouring S_i, S^_i and all priors of |ln Q*(P | S) - ln Q*(P | S^)|."""
    choices = data_sets(world.data.shape[1], world.samples[client])
    tables = np.repeat(others[None], len(choices), axis=0)
    tables[:, client] = choices
    logs = np.log(optimum(world, tables, tau)[0])
    worst = 0.0
    for s, counts in enumerate(choices):
        neighbours = np.abs(choices - counts).sum(axis=1) == 2
        if neighbours.any():
            worst = max(worst, float(np.max(np.abs(logs[neighbours] - logs[s]))))
    return worst


@pytest.mark.parametrize("seed", range(6))
def test_the_ratio_never_exceeds_epsilon(seed: int) -> None:
    rng = np.random.default_rng(seed)
    world = random_world(rng, 3, (4, 2, 5), (6.0, 1.5, 20.0), a=-1.0, b=2.0)
    epsilons = sampling_epsilon(world.betas, 0.7, 3.0, world.samples)
    others = np.stack(
        [rng.multinomial(m, p) for m, p in zip(world.samples, world.data, strict=True)]
    )
    for client, epsilon in enumerate(epsilons):
        assert largest_log_ratio(world, client, others, 0.7) <= epsilon * (1 + 1e-12)


def worst_world(m: int, beta: float) -> World:
    """Prior 0, rare in the hyper-prior, loses on outcome 1 where all others lose on outcome 0."""
    hyper_prior, losses = np.array([1e-3, 1 - 1e-3]), np.array([[0.0, 1.0], [1.0, 0.0]])
    return World(hyper_prior, np.eye(2), losses, np.array([[0.5, 0.5]]), (m,), (beta,))


@pytest.mark.parametrize(("m", "beta", "tau"), [(1, 1.0, 1.0), (4, 4.0, 0.5), (6, 1.0, 0.9)])
def test_a_worst_case_comes_within_a_tenth_of_epsilon(m: int, beta: float, tau: float) -> None:
    world = worst_world(m, beta)
    epsilon = float(sampling_epsilon([beta], tau, 1.0, [m])[0])
    ratio = largest_log_ratio(world, 0, np.array([[m, 0]]), tau)
    assert 0.9 * epsilon <= ratio <= epsilon * (1 + 1e-12)


def test_every_released_draw_costs_the_same_again() -> None:
    """Of k independent priors the ratio is the k-th power, and one epsilon is not enough."""
    ratio = largest_log_ratio(worst_world(4, 4.0), 0, np.array([[4, 0]]), 0.5)
    one, three = (float(sampling_epsilon([4.0], 0.5, 1.0, [4], draws=k)[0]) for k in (1, 3))
    assert one < 3 * ratio <= three
