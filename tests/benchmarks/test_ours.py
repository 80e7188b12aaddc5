"""Our own timed round against the oracle: what is fast must also be right."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest

from benchmarks import pacpfl_round
from benchmarks.problem import Problem, Sizes, make_problem, reference_round

SIZES = Sizes(particles=4, clients=5, samples=9, features=3, hidden=(6, 5))


def problem_of(sizes: Sizes) -> Problem:
    """Constants unlike 1, so that none can be forgotten, and a step that can be seen."""
    made = make_problem(sizes, seed=3)
    return replace(made, hyper_prior_std=0.7, tau=2.5, learning_rate=0.1)


def rounds_by_the_oracle(problem: Problem, rounds: int) -> np.ndarray:
    for _ in range(rounds):
        problem = replace(problem, particles=reference_round(problem).particles)
    return problem.particles


@pytest.mark.parametrize(("particles", "clients", "rounds"), [(4, 5, 3), (1, 1, 1)])
def test_ours_takes_the_oracles_steps(particles: int, clients: int, rounds: int) -> None:
    """Several rounds in one call; and a lone particle, which has no median distance."""
    problem = problem_of(replace(SIZES, particles=particles, clients=clients))
    with jax.enable_x64(True):
        stepped = pacpfl_round.make_round(problem, "float64", rounds)(problem.particles)
        assert stepped.dtype == np.float64
    expected = rounds_by_the_oracle(problem, rounds)
    np.testing.assert_allclose(stepped, expected, rtol=0, atol=1e-7)
    assert np.abs(expected - problem.particles).max() > 1e-2


def test_ours_is_accurate_enough_in_float32() -> None:
    """What is timed is float32; the step is compared, since the round returns nothing else."""
    problem = replace(make_problem(Sizes(2, 3, 40), seed=5), learning_rate=1e-2)
    stepped = pacpfl_round.make_round(problem, "float32")(problem.particles)
    assert stepped.dtype == np.float32
    expected = rounds_by_the_oracle(problem, 1)
    error = np.linalg.norm(np.asarray(stepped, np.float64) - expected)
    assert error < 1e-3 * np.linalg.norm(expected - problem.particles)
