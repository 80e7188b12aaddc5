"""The oracle against scipy and finite differences, our round and the PyTorch peers against the oracle,
and the harness against times that are known."""

from __future__ import annotations

import time
import warnings
from dataclasses import replace
from itertools import pairwise
from typing import Any

import jax
import numpy as np
import pytest
from scipy.spatial.distance import cdist
from scipy.stats import multivariate_normal

from benchmarks import harness, pacpfl_round
from benchmarks.problem import (
    Problem,
    Sizes,
    log_evidence_and_gradient,
    make_problem,
    reference_round,
    svgd_direction,
)
from pacpfl.errors import InputError

SIZES = Sizes(particles=4, clients=5, samples=9, features=3, hidden=(6, 5))
MISSING = "needs PyTorch and GPyTorch, the extra `bench`"


def problem_of(sizes: Sizes) -> Problem:
    """Constants unlike 1, so that none can be forgotten, and a step that can be seen."""
    made = make_problem(sizes, seed=3)
    return replace(made, hyper_prior_std=0.7, tau=2.5, learning_rate=0.1)


@pytest.fixture(scope="module")
def problem() -> Problem:
    return problem_of(SIZES)


# --- the oracle


def log_evidence_by_scipy(particle, x, y, sizes):
    """ln N(y | h, K + sigma^2 I), reading the flat particle by its documented layout."""
    outputs, rest = [], particle
    for last in (1, 2):
        values, widths = x, [sizes.features, *sizes.hidden, last]
        for layer, (inputs, units) in enumerate(pairwise(widths)):
            weights, biases, rest = np.split(rest, [inputs * units, (inputs + 1) * units])
            values = values @ weights.reshape(inputs, units) + biases
            if layer < len(widths) - 2:
                values = np.tanh(values)
        outputs.append(values)
    mean, z = outputs
    (raw_noise,) = rest
    kernel = np.exp(-0.5 * cdist(z, z, "sqeuclidean"))
    covariance = kernel + np.log1p(np.exp(raw_noise)) ** 2 * np.eye(len(y))
    return float(multivariate_normal(mean[:, 0], covariance).logpdf(y))


def test_oracle_log_evidence_is_scipys(problem: Problem) -> None:
    evidence = reference_round(problem).log_evidence
    for j, particle in enumerate(problem.particles):
        for i in range(SIZES.clients):
            expected = log_evidence_by_scipy(particle, problem.x[i], problem.y[i], SIZES)
            assert evidence[j, i] == pytest.approx(expected, abs=1e-8)


def test_oracle_gradient_is_that_of_finite_differences(problem, oracle):
    particle, x, y = problem.particles[0], problem.x[0], problem.y[0]
    _, gradient = log_evidence_and_gradient(particle, x, y, SIZES)
    differences = oracle.central_differences(
        lambda phi: log_evidence_by_scipy(phi, x, y, SIZES), particle
    )
    np.testing.assert_allclose(gradient, differences, rtol=0, atol=1e-7)


def test_oracle_step_ascends_log_density_and_repels(problem, oracle):
    """Algorithm 1 with the kernel's gradient by finite differences."""
    result = reference_round(problem)
    particles, count = problem.particles, SIZES.particles
    scores = problem.tau * result.gradient - particles / problem.hyper_prior_std**2
    squared = [np.sum((particles[a] - particles[b]) ** 2) for a in range(count) for b in range(a)]
    bandwidth = np.median(squared) / np.log(count + 1)

    def kernel(a: np.ndarray, b: np.ndarray) -> float:
        return float(np.exp(-np.sum((a - b) ** 2) / bandwidth))

    for j in range(count):
        direction = np.zeros(SIZES.dimension)
        for other in range(count):
            direction += kernel(particles[other], particles[j]) * scores[other]
            push = lambda phi: kernel(phi, particles[j])  # noqa: B023, E731
            direction += oracle.central_differences(push, particles[other])
        expected = particles[j] + problem.learning_rate * direction / count
        np.testing.assert_allclose(result.particles[j], expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize("count", [1, 3])
def test_oracle_moves_equal_particles_by_their_mean_score(count: int) -> None:
    scores = np.random.default_rng(0).normal(size=(count, 5))
    direction = svgd_direction(np.ones((count, 5)), scores)
    np.testing.assert_allclose(direction, np.tile(scores.mean(axis=0), (count, 1)))


# --- ours: what is fast must also be right


@pytest.mark.parametrize(("particles", "clients", "rounds"), [(4, 5, 3), (1, 1, 1)])
def test_ours_takes_the_oracles_steps(particles: int, clients: int, rounds: int) -> None:
    """Several rounds in one call; and a lone particle, which has no median distance."""
    problem = problem_of(replace(SIZES, particles=particles, clients=clients))
    with jax.enable_x64(True):
        stepped = pacpfl_round.make_round(problem, "float64", rounds)(problem.particles)
        assert stepped.dtype == np.float64
    expected = problem
    for _ in range(rounds):
        expected = replace(expected, particles=reference_round(expected).particles)
    np.testing.assert_allclose(stepped, expected.particles, rtol=0, atol=1e-7)
    assert np.abs(expected.particles - problem.particles).max() > 1e-2


def test_ours_is_accurate_enough_in_float32() -> None:
    """What is timed is float32; the step is compared, since the round returns nothing else."""
    problem = replace(make_problem(Sizes(2, 3, 40), seed=5), learning_rate=1e-2)
    stepped = pacpfl_round.make_round(problem, "float32")(problem.particles)
    assert stepped.dtype == np.float32
    expected = reference_round(problem).particles
    error = np.linalg.norm(np.asarray(stepped, np.float64) - expected)
    assert error < 1e-3 * np.linalg.norm(expected - problem.particles)


# --- the peers


PEERS = ("as_pacoh", "tuned", "analytic", "threaded", "autodiff")


@pytest.fixture(scope="module")
def peers() -> tuple[Any, Any]:
    """The modules `gpytorch_round` and `torch_round`."""
    with warnings.catch_warnings():
        # GPyTorch's own imports use what PyTorch has deprecated.
        warnings.simplefilter("ignore", DeprecationWarning)
        pytest.importorskip("torch", reason=MISSING)
        pytest.importorskip("gpytorch", reason=MISSING)
        from benchmarks import gpytorch_round, torch_round
    return gpytorch_round, torch_round


def gradient_of(peers: tuple[Any, Any], name: str, problem: Problem, dtype: str) -> Any:
    """particles as a NumPy array -> ln Z and gradient as NumPy arrays"""
    gpytorch_round, torch_round = peers
    if name in gpytorch_round.VARIANTS:
        gradient = gpytorch_round.make_gradient(problem, dtype, name)
    else:
        gradient = torch_round.make_gradient(problem, dtype, 2, name)
    as_tensor = torch_round.torch.as_tensor
    return lambda particles: [result.numpy() for result in gradient(as_tensor(particles))]


def round_of(peers: tuple[Any, Any], name: str, problem: Problem) -> Any:
    gpytorch_round, torch_round = peers
    if name in gpytorch_round.VARIANTS:
        return gpytorch_round.make_round(problem, "float64", 2, name)
    return torch_round.make_round(problem, "float64", 2, name)


def test_all_peers_are_tested(peers: tuple[Any, Any]) -> None:
    assert (*peers[0].VARIANTS, *peers[1].METHODS) == PEERS


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-7), ("float32", 1e-3)])
@pytest.mark.parametrize("peer", PEERS)
def test_peer_computes_the_oracles_evidence_and_gradient(peers, peer, dtype, tolerance):
    """What is timed is float32: a fast wrong answer would not count."""
    problem = make_problem(Sizes(particles=2, clients=3, samples=60), seed=5)
    expected, particles = reference_round(problem), problem.particles.astype(dtype)
    gradient = gradient_of(peers, peer, problem, dtype)
    gradient(particles + np.asarray(0.3, dtype))  # nothing of an earlier call may remain
    log_evidence, by_particle = gradient(particles)
    assert by_particle.dtype == dtype
    np.testing.assert_allclose(log_evidence, expected.log_evidence, rtol=tolerance / 10)
    error = np.linalg.norm(by_particle - expected.gradient)
    assert error < tolerance * np.linalg.norm(expected.gradient)


CASES = {
    "nothing is odd": problem_of(SIZES),
    "a lone particle has no median distance": make_problem(replace(SIZES, particles=1, clients=1)),
    "one client cannot be shared by two workers": make_problem(replace(SIZES, clients=1), seed=4),
    "equal particles": replace(make_problem(SIZES), particles=np.ones((4, SIZES.dimension))),
}


@pytest.mark.parametrize("peer", PEERS)
@pytest.mark.parametrize("case", CASES)
def test_peer_takes_the_oracles_steps(peers, peer, case):
    """Three rounds in a row, each fed with the particles that the one before returned."""
    expected, particles = CASES[case], CASES[case].particles
    step = round_of(peers, peer, expected)
    for _ in range(3):
        expected = replace(expected, particles=reference_round(expected).particles)
        particles = step(particles)
        np.testing.assert_allclose(particles.numpy(), expected.particles, rtol=0, atol=1e-6)


# --- the harness


def test_summary_is_that_of_known_times() -> None:
    seconds = {"slow": np.array([4.0, 2.0, 8.0, 6.0, 10.0]), "fast": np.array([1.0] * 4 + [9.0])}
    table = harness.summarise(seconds, "slow", "known")
    slow, fast = table.row("slow"), table.row("fast")
    assert (slow.lower_quartile, slow.median, slow.upper_quartile) == (4.0, 6.0, 8.0)
    assert slow.times_faster == 1.0
    assert fast.times_faster == 6.0
    assert table.repeats == 5


def test_candidates_take_turns() -> None:
    calls: list[str] = []
    names = ("a", "b", "c")
    candidates = {name: lambda name=name: calls.append(name) for name in names}
    table = harness.interleave(candidates, repeats=6, warmup=2, reference="b", pause=0.0)
    assert calls[:6] == ["a", "a", "b", "b", "c", "c"]
    timed = calls[7::2]
    assert calls[6::2] == timed  # each timed call follows one of the same candidate
    turns = [tuple(timed[start : start + 3]) for start in range(0, len(timed), 3)]
    assert len(turns) == 6 and len(set(turns)) > 1
    assert all(set(turn) == set(names) for turn in turns)
    assert table.reference == "b"
    assert [row.name for row in table.rows] == list(names)


def test_a_candidate_gets_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that only pauses and candidates move, every figure is known.

    The first call of a turn takes ten times as long, and must not count; the time of several rounds in
    one call is divided by them.
    """
    now, cold, ticks = 0.0, True, []

    def move(by: float, then_cold: bool) -> None:
        nonlocal now, cold
        now, cold = now + (10 * by if cold and not then_cold else by), then_cold

    monkeypatch.setattr(time, "perf_counter", lambda: now)
    monkeypatch.setattr(time, "sleep", lambda by: move(by, True))
    candidates = {"three": lambda: move(3.0, False), "four twos": lambda: move(8.0, False)}
    table = harness.interleave(
        candidates,
        repeats=4, warmup=1, pause=0.5, rounds={"four twos": 4}, tick=lambda: ticks.append(1),
    )  # fmt: skip
    assert [row.median for row in table.rows] == [3.0, 2.0]
    assert table.row("four twos").times_faster == 1.5
    assert len(ticks) == 4


@pytest.mark.parametrize(
    ("names", "repeats", "reference", "words"),
    [("a", 1, "c", "'c'.*'a'"), ("a", 0, "a", "one repeat"), ("", 1, None, "one candidate")],
)
def test_what_cannot_be_compared_is_refused(names, repeats, reference, words):
    nothing = dict.fromkeys(names, lambda: None)
    with pytest.raises(InputError, match=words):
        harness.interleave(nothing, repeats=repeats, warmup=0, reference=reference)
