"""Divergences against quadrature, sampling and each other; ln Z^S against exact values."""

from __future__ import annotations

import math

import numpy as np
import pytest
from finite_world import divergence, draw, failures_at_most, log_evidences, optimum, random_world
from scipy.integrate import quad
from scipy.stats import multivariate_normal, norm

from pacpfl import bounds


def quadrature_kl(q: norm, p: norm) -> float:
    def integrand(x: float) -> float:
        return float(q.pdf(x) * (q.logpdf(x) - p.logpdf(x)))

    return quad(integrand, -40, 40, points=[0.0], limit=400)[0]


def random_covariance(rng: np.random.Generator, size: int) -> np.ndarray:
    root = rng.normal(size=(size, size))
    return root @ root.T + 0.3 * np.eye(size)


def kernel_matrix(x: np.ndarray, length: float = 1.0) -> np.ndarray:
    return np.exp(-((x[:, None] - x[None]) ** 2) / (2 * length**2))


def test_one_dimension_against_quadrature() -> None:
    exact = quadrature_kl(norm(0.7, 0.5), norm(-0.2, 1.4))
    diagonal = bounds.diagonal_gaussian_kl([0.7], [0.5], [-0.2], [1.4])
    full = bounds.gaussian_kl([0.7], [[0.25]], [-0.2], [[1.96]])
    assert (float(diagonal), float(full)) == pytest.approx((exact, exact), rel=1e-8)


def test_full_covariances_against_draws_and_the_diagonal_case() -> None:
    rng = np.random.default_rng(0)
    q = multivariate_normal(rng.normal(size=3), random_covariance(rng, 3))
    p = multivariate_normal(rng.normal(size=3), random_covariance(rng, 3))
    x = q.rvs(200_000, random_state=1)
    values = q.logpdf(x) - p.logpdf(x)
    exact = float(bounds.gaussian_kl(q.mean, q.cov, p.mean, p.cov))
    assert abs(exact - values.mean()) < 5 * values.std() / math.sqrt(len(values))
    stds, means = rng.uniform(0.5, 2, (2, 4, 3)), rng.normal(size=(2, 4, 3))
    covariances = stds[..., None] ** 2 * np.eye(3)
    full = bounds.gaussian_kl(means[0], covariances[0], means[1], covariances[1])
    diagonal = bounds.diagonal_gaussian_kl(means[0], stds[0], means[1], stds[1])
    np.testing.assert_allclose(full, diagonal, rtol=1e-12)
    assert full.shape == (4,)


@pytest.mark.parametrize("temperature", [1.0, 0.3, 2.5])
def test_the_process_divergence_is_that_of_the_laws_at_the_inputs(temperature: float) -> None:
    """Against the generic formula at the training inputs, and at MORE inputs: it must not grow."""
    rng = np.random.default_rng(1)
    x = np.sort(rng.uniform(-3, 3, 6))
    more = np.concatenate([x, [-2.5, 0.1, 4.0]])
    y, noise = rng.normal(size=6), 0.3**2
    value = float(bounds.gaussian_process_kl(kernel_matrix(x), y, noise, temperature))
    kernel = kernel_matrix(more) + 1e-9 * np.eye(9)
    c = kernel[:6, :6] + noise / temperature * np.eye(6)
    weights = np.linalg.solve(c, kernel[:6])
    posterior = kernel - kernel[:, :6] @ weights
    for inputs in (slice(0, 6), slice(0, 9)):
        of, prior = posterior[inputs, inputs], kernel[inputs, inputs]
        generic = bounds.gaussian_kl((weights.T @ y)[inputs], of, np.zeros(len(of)), prior)
        assert float(generic) == pytest.approx(value, rel=1e-5)


def test_the_process_divergence_closes_the_evidence() -> None:
    """ln Z = E_Q ln likelihood - KL(Q || P), with scipy's marginal likelihood on the left."""
    rng = np.random.default_rng(2)
    x, noise = rng.uniform(-3, 3, 8), 0.2
    y = np.sin(x)
    k = kernel_matrix(x)
    c = k + noise * np.eye(8)
    log_evidence = multivariate_normal(np.zeros(8), c).logpdf(y)
    mean = k @ np.linalg.solve(c, y)
    variance = np.diag(k - k @ np.linalg.solve(c, k))
    fit = norm(mean, math.sqrt(noise)).logpdf(y).sum() - variance.sum() / (2 * noise)
    assert float(bounds.gaussian_process_kl(k, y, noise)) == pytest.approx(
        fit - log_evidence, rel=1e-9
    )


def test_the_process_divergence_takes_batches_and_repeated_inputs() -> None:
    rng = np.random.default_rng(3)
    x = np.array([0.0, 0.0, 1.0, 1.0])
    kernels = np.stack([kernel_matrix(x, length) for length in (0.5, 1.0, 2.0)])
    residuals = rng.normal(size=(3, 4))
    noises = np.array([0.1, 0.2, 0.3])
    batch = bounds.gaussian_process_kl(kernels, residuals, noises)
    one_by_one = [float(kl) for kl in map(bounds.gaussian_process_kl, kernels, residuals, noises)]
    np.testing.assert_allclose(batch, one_by_one, rtol=1e-13)
    # Two samples at one input are one sample of half the noise, up to the distance between them.
    pairs = residuals.reshape(3, 2, 2).mean(axis=-1)
    np.testing.assert_allclose(
        batch, bounds.gaussian_process_kl(kernels[:, ::2, ::2], pairs, noises / 2), rtol=1e-10
    )


def test_a_mixture_s_divergence_is_bounded_by_that_of_the_pairs() -> None:
    q_means, p_means, q_weights, p_weights = [0.0, 2.0], [0.5, 1.5], [0.8, 0.2], [0.5, 0.5]
    kls = [quadrature_kl(norm(q, 0.6), norm(p, 1.0)) for q, p in zip(q_means, p_means, strict=True)]
    bound = float(bounds.mixture_kl(q_weights, p_weights, kls))
    by_hand = sum(
        w * (k + math.log(w / v)) for w, v, k in zip(q_weights, p_weights, kls, strict=True)
    )
    assert bound == pytest.approx(by_hand, rel=1e-12)

    def density(x: float, weights: list[float], means: list[float], std: float) -> float:
        return float(sum(w * norm(m, std).pdf(x) for w, m in zip(weights, means, strict=True)))

    def integrand(x: float) -> float:
        q, p = density(x, q_weights, q_means, 0.6), density(x, p_weights, p_means, 1.0)
        return q * math.log(q / p)

    exact = quad(integrand, -6, 8, limit=200)[0]
    assert 0 < exact < bound


def test_evidence_weights_are_the_gibbs_posterior_of_the_mixture_prior() -> None:
    """With weights p_c Z_c / Z: empirical risk + KL of the pairs / beta = -ln Z / beta."""
    rng = np.random.default_rng(4)
    beta, average = 3.0, rng.uniform(size=5)
    priors = rng.dirichlet(np.ones(5), 2)
    weights = np.array([0.3, 0.7])
    z = np.exp(-beta * average) @ priors.T
    posteriors = priors * np.exp(-beta * average) / z[:, None]
    q = weights * z / (weights @ z)
    kl = float(bounds.mixture_kl(q, weights, divergence(posteriors, priors)))
    value = float(q @ (posteriors @ average)) + kl / beta
    log_z = float(bounds.mixture_log_evidence(weights, np.log(z)))
    assert log_z == pytest.approx(math.log(weights @ z), rel=1e-12)
    assert value == pytest.approx(-log_z / beta, rel=1e-12)


def test_the_particle_cloud_s_divergence_lies_in_its_bracket() -> None:
    particles = np.array([[-0.4], [0.5], [1.6]])
    bracket = bounds.particle_cloud_kl(particles, 0.5, 0.0, 1.2)

    def integrand(x: float) -> float:
        q = float(np.mean(norm(particles[:, 0], 0.5).pdf(x)))
        return q * (math.log(q) - norm(0, 1.2).logpdf(x))

    exact = quad(integrand, -8, 9, limit=200)[0]
    assert bracket.lower <= exact <= bracket.upper
    assert bracket.upper - bracket.lower <= math.log(3) + 1e-12
    # Far apart, the lower end is reached; all equal, the upper one.
    apart = bounds.particle_cloud_kl([[-30.0], [30.0]], 0.1, 0.0, 10.0)
    halves = float(bounds.diagonal_gaussian_kl([30.0], [0.1], [0.0], [10.0]))
    assert apart.lower == pytest.approx(halves - math.log(2))
    assert bounds.particle_cloud_kl([[1.0], [1.0]], 0.5, 0.0, 1.2).upper == pytest.approx(
        quadrature_kl(norm(1.0, 0.5), norm(0.0, 1.2)), rel=1e-7
    )


def test_bare_particles_are_infinitely_far_from_the_hyper_prior() -> None:
    values = [
        bounds.particle_cloud_kl([[0.3, -0.1]], s, 0.0, 1.0).lower for s in (1e-2, 1e-20, 1e-100)
    ]
    assert values[0] < values[1] < values[2]
    assert values[2] > 400


def test_the_identity_for_the_optimal_hyper_posterior() -> None:
    rng = np.random.default_rng(5)
    world = random_world(rng, 3, (3, 2, 5), (4.0, 2.0, 6.0))
    counts = draw(world, rng, 1)
    q, partition = optimum(world, counts, 0.6)
    expected = log_evidences(world, counts)[0] @ q[0]
    kl = bounds.optimal_hyper_kl(0.6, expected, math.log(partition[0]))
    assert kl == pytest.approx(float(divergence(q, world.hyper_prior)[0]), rel=1e-10)


def test_the_partition_estimate_and_its_error() -> None:
    """Of t_j ~ N(0, 1), where ln E e^t = 1/2 exactly."""
    result = bounds.log_partition(np.random.default_rng(6).normal(size=200_000), 0.05)
    exact_error = math.sqrt((math.e - 1) / 200_000)
    assert result.standard_error == pytest.approx(exact_error, rel=0.1)
    assert abs(result.estimate - 0.5) < 4 * result.standard_error
    assert result.effective_draws == pytest.approx(200_000 / math.e, rel=0.1)
    assert result.lower < result.estimate


@pytest.mark.parametrize("groups", [1, 5])
@pytest.mark.parametrize("draws", [5, 100])
def test_the_lower_confidence_bound_covers_even_with_few_draws(groups: int, draws: int) -> None:
    rng = np.random.default_rng(7)
    alpha = 0.1
    results = [bounds.log_partition(3 * rng.normal(size=draws), alpha, groups) for _ in range(3000)]
    failed = np.array([r.lower > 4.5 for r in results])
    assert failures_at_most(failed, alpha)
    # The plain estimate is below the truth most of the time, which is the safe side.
    assert np.mean([r.estimate for r in results]) < 4.5


def test_markov_s_inequality_is_nearly_used_up_where_draws_are_rare_and_large() -> None:
    """Z = E X with X = 1/alpha' with probability alpha': the lower bound's worst case."""
    rng = np.random.default_rng(8)
    alpha, chance = 0.1, 0.09
    failed = []
    for _ in range(4000):
        terms = np.full(2, -30.0)
        if rng.random() < chance:
            terms[0] = math.log(2 / chance)  # so that the mean of the two draws is 1 on average
        failed.append(bounds.log_partition(terms, alpha).lower > 0.0)
    assert 0.06 < np.mean(failed) <= 0.1


def test_the_lower_confidence_bound_worked_by_hand() -> None:
    result = bounds.log_partition(np.log([1.0, 3.0, 2.0, 8.0]), 0.1, 2)
    assert result.estimate == pytest.approx(math.log(3.5))
    assert result.lower == pytest.approx((math.log(2) + math.log(5) - math.log(10)) / 2)
