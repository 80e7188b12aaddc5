"""Lower bounds on epsilon: against exact curves, enumeration and simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate, stats

from reproduction import audit_statistics as audit


@pytest.mark.parametrize(("errors", "trials"), [(0, 10), (3, 10), (10, 10), (17, 500)])
def test_upper_limit_is_that_of_the_exact_binomial_test(errors: int, trials: int) -> None:
    test = stats.binomtest(errors, trials, alternative="less")
    exact = test.proportion_ci(0.975, method="exact").high
    assert audit.upper_limit(errors, trials, 0.975) == pytest.approx(exact, abs=1e-9)


def test_upper_limit_covers_every_rate() -> None:
    """By enumeration of all numbers of errors."""
    trials, counts = 30, np.arange(31)
    limits = audit.upper_limit(counts, trials, 0.9)
    for rate in np.linspace(0.01, 0.99, 50):
        missed = stats.binom.pmf(counts, trials, rate)[limits < rate].sum()
        assert missed <= 0.1 + 1e-12


def test_epsilon_of_randomised_response() -> None:
    """Both errors 1 / (1 + e^epsilon): the best an attacker can do against a pure epsilon."""
    for epsilon in (0.1, 1.0, 5.0):
        rate = np.array([1 / (1 + math.exp(epsilon))])
        assert audit.epsilon_from_rates(rate, rate, 0.0)[0] == pytest.approx(epsilon)


def test_epsilon_from_rates_is_the_smallest_that_allows_them() -> None:
    rng = np.random.default_rng(0)
    positives, negatives = rng.random((2, 200))
    found = audit.epsilon_from_rates(positives, negatives, 0.01)

    def allowed(epsilon: np.ndarray) -> np.ndarray:
        power = np.exp(epsilon)
        return (negatives + power * positives + 1e-9 >= 0.99) & (
            positives + power * negatives + 1e-9 >= 0.99
        )

    assert allowed(found).all()
    assert not allowed(found - 1e-3)[found > 1e-3].any()
    assert (found > 1e-3).sum() > 50
    assert audit.epsilon_from_rates(np.array([0.0]), np.array([0.5]), 0.0)[0] == math.inf


@pytest.mark.parametrize("mu", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 3.0])
def test_gaussian_delta_by_quadrature(mu: float, epsilon: float) -> None:
    def excess(x: float) -> float:
        return max(0.0, stats.norm.pdf(x, mu) - math.exp(epsilon) * stats.norm.pdf(x))

    start = mu / 2 + epsilon / mu  # where the integrand becomes positive
    expected = integrate.quad(excess, start, start + 12, epsabs=1e-12)[0]
    assert audit.gaussian_delta(mu, epsilon) == pytest.approx(expected, abs=1e-9)


def test_gaussian_epsilon_is_the_inverse() -> None:
    for mu in (0.01, 0.5, 2.0, 10.0, 60.0):
        epsilon = audit.gaussian_epsilon(mu, 1e-5)
        if epsilon:
            assert audit.gaussian_delta(mu, epsilon) == pytest.approx(1e-5, rel=1e-6)
    assert audit.gaussian_epsilon(1e-6, 1e-5) == 0
    assert audit.gaussian_epsilon(-1.0, 1e-5) == 0


@pytest.mark.parametrize("mu", [0.28, 1.0, 1.7, 4.0])
def test_gaussian_bound_is_below_the_exact_epsilon_and_close(mu: float) -> None:
    rng = np.random.default_rng(1)
    outside, inside = rng.normal(size=(2, 100_000)) + np.array([[0.0], [mu]])
    exact = audit.gaussian_epsilon(mu, 1e-5)
    bound = audit.lower_bound(outside, inside, 1e-5, gaussian=True)
    assert 0.75 * exact <= bound.epsilon <= exact
    # Without that knowledge the bound is looser, and still a bound.
    plain = audit.lower_bound(outside, inside, 1e-5)
    assert 0 < plain.epsilon < bound.epsilon


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 6.0])
def test_laplace_bound_is_below_epsilon_and_close(epsilon: float) -> None:
    rng = np.random.default_rng(2)
    noise = rng.laplace(scale=1 / epsilon, size=(2, 100_000))
    bound = audit.lower_bound(noise[0], noise[1] + 1, 0.0)
    assert 0.75 * epsilon <= bound.epsilon <= epsilon
    assert bound.trials == 50_000
    # The attacker's two names for the worlds are exchangeable.
    swapped = audit.lower_bound(-noise[1] - 1, -noise[0], 0.0)
    assert 0.75 * epsilon <= swapped.epsilon <= epsilon


def test_useless_ways_to_attack_do_no_harm() -> None:
    """The best of several ways is found on one half of the runs."""
    rng = np.random.default_rng(3)
    outside, inside = rng.normal(size=(2, 3, 20_000))
    inside[1] += 2.0
    for gaussian in (False, True):
        alone = audit.lower_bound(outside[1], inside[1], 1e-5, gaussian=gaussian)
        assert audit.lower_bound(outside, inside, 1e-5, gaussian=gaussian) == alone


@pytest.mark.parametrize("gaussian", [False, True])
def test_coverage(gaussian: bool) -> None:
    """Of many audits of the same mechanism at most 1 - confidence claim too much."""
    rng = np.random.default_rng(4)
    repeats, confidence, too_much = 400, 0.8, 0
    true = audit.gaussian_epsilon(1.0, 0.05) if gaussian else 1.0
    for _ in range(repeats):
        if gaussian:
            outside, inside = rng.normal(size=(2, 300))
        else:
            outside, inside = rng.laplace(size=(2, 300))
        bound = audit.lower_bound(
            outside, inside + 1, 0.05 if gaussian else 0.0, confidence, gaussian
        )
        too_much += bound.epsilon > true
    assert too_much <= repeats * (1 - confidence) + 3 * math.sqrt(repeats * 0.2 * 0.8)


def test_nothing_to_see_gives_nothing() -> None:
    rng = np.random.default_rng(5)
    same = rng.normal(size=(2, 1000))
    assert audit.lower_bound(*same, 0.0).epsilon < 0.1
    equal = np.zeros((2, 1000))
    assert audit.lower_bound(*equal, 0.0).epsilon == 0


def test_one_run_p_value_by_enumeration() -> None:
    """Pure epsilon: the tail of a binomial; else the formula term by term."""
    chance = math.exp(1.5) / (1 + math.exp(1.5))
    weights = [math.comb(40, v) * chance**v * (1 - chance) ** (40 - v) for v in range(41)]
    tails = [sum(weights[v:]) for v in range(42)]
    for correct in (0, 20, 35, 40):
        expected = tails[correct]
        assert audit.one_run_p_value(100, 40, correct, 1.5, 0.0) == pytest.approx(expected)
        steps = [(tails[correct - i] - tails[correct]) / i for i in range(1, correct + 1)]
        more = 2 * 100 * 1e-4 * max(steps, default=0.0)
        found = audit.one_run_p_value(100, 40, correct, 1.5, 1e-4)
        assert found == pytest.approx(min(1.0, expected + more))


def test_one_run_bound_covers_randomised_response() -> None:
    """A bit that is true with probability e^epsilon / (1 + e^epsilon) about each canary."""
    rng, epsilon, too_much = np.random.default_rng(6), 1.0, 0
    bounds = []
    for _ in range(300):
        present = rng.random(200) < 0.5
        honest = rng.random(200) < 1 / (1 + math.exp(-epsilon))
        scores = np.where(honest, present, ~present) + 1e-6 * rng.random(200)
        bounds.append(audit.one_run_bound(present, scores, 100, 0.0, 0.9).epsilon)
        too_much += bounds[-1] > epsilon
    assert too_much <= 30 + 3 * math.sqrt(300 * 0.1 * 0.9)
    assert np.median(bounds) > 0.4
