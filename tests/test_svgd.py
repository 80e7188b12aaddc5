"""SVGD against slow loops over the formula, and against moments of known targets."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial.distance import pdist

from pacpfl import svgd
from pacpfl.errors import InputError

pytestmark = pytest.mark.usefixtures("x64")

MIXING = np.random.default_rng(100).normal(size=(4, 3))
every_kernel = pytest.mark.parametrize("kernel", svgd.KERNELS)
compiled = jax.jit(svgd.direction, static_argnums=(2, 3))


def features(phi: jax.Array) -> jax.Array:
    """Something nonlinear from R^4 to R^3, in place of what a particle predicts."""
    return jnp.tanh(phi @ MIXING) + phi[:3] ** 2


def slow_features(phi: np.ndarray) -> np.ndarray:
    return np.tanh(phi @ MIXING) + phi[:3] ** 2


def slow_direction(
    particles: np.ndarray,
    scores: np.ndarray,
    kernel: str,
    differences: Callable[[Callable[[np.ndarray], float], np.ndarray], np.ndarray],
) -> np.ndarray:
    """1/k sum_l [k(phi_l, phi_kappa) score_l + grad_{phi_l} k(phi_l, phi_kappa)], term by term."""
    k = len(particles)
    embed = slow_features if kernel == "function" else (lambda phi: phi)
    width = np.median(pdist([embed(p) for p in particles], "sqeuclidean")) / np.log(k + 1)

    def value(a: np.ndarray, b: np.ndarray) -> float:
        ratio = np.sum((embed(a) - embed(b)) ** 2) / width
        return float(1 / np.sqrt(1 + ratio) if kernel == "imq" else np.exp(-ratio))

    result = np.zeros_like(particles)
    for kappa in range(k):
        for other in range(k):
            result[kappa] += value(particles[other], particles[kappa]) * scores[other] / k
            push = differences(lambda p: value(p, particles[kappa]), particles[other])  # noqa: B023
            result[kappa] += push / k
    return result


def cloud(k: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return 0.5 * rng.normal(size=(k, 4)), rng.normal(size=(k, 4))


@every_kernel
@pytest.mark.parametrize("k", [2, 4, 5])
def test_direction_against_loops(kernel: str, k: int, oracle: SimpleNamespace) -> None:
    particles, scores = cloud(k, seed=k)
    expected = slow_direction(particles, scores, kernel, oracle.central_differences)
    found = compiled(jnp.asarray(particles), jnp.asarray(scores), kernel, features)
    np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-8)


@every_kernel
def test_one_particle_climbs_the_gradient(kernel: str) -> None:
    particles, scores = cloud(1, seed=0)
    found = compiled(jnp.asarray(particles), jnp.asarray(scores), kernel, features)
    np.testing.assert_array_equal(found, scores)


@pytest.mark.parametrize("distance", [0.0, 1e300])
def test_bandwidth_of_equal_or_endlessly_far_particles_is_a_positive_number(
    distance: float,
) -> None:
    squared = svgd.pairwise_squared_distances(jnp.array([[0.0], [distance], [-distance]]))
    for both in (np.ones((3, 3), bool), np.diag([True, False, False])):
        width = float(svgd.bandwidth(squared, jnp.asarray(both)))
        assert 0 < width < np.inf


@every_kernel
@pytest.mark.parametrize("position", [0.3, 1e6, np.nan])
def test_particles_that_are_not_valid_take_no_part(kernel: str, position: float) -> None:
    """The others move as if they were alone, wherever the invalid one is."""
    particles, scores = cloud(5, seed=2)
    rest = np.array([0, 1, 3, 4])
    particles[2], scores[2] = position, np.nan
    valid = np.arange(5) != 2
    found = compiled(jnp.asarray(particles), jnp.asarray(scores), kernel, features, valid)
    alone = compiled(jnp.asarray(particles[rest]), jnp.asarray(scores[rest]), kernel, features)
    np.testing.assert_array_equal(found[2], 0)
    np.testing.assert_allclose(found[rest], alone, rtol=1e-10, atol=1e-12)


def test_when_nothing_is_valid_nothing_moves() -> None:
    particles, scores = map(jnp.asarray, cloud(3, seed=3))
    found = compiled(particles, scores, "rbf", None, np.zeros(3, bool))
    np.testing.assert_array_equal(found, 0)


@every_kernel
@pytest.mark.parametrize("k", [2, 3, 7])
def test_equal_particles_do_not_push_each_other(kernel: str, k: int) -> None:
    """At a distance of zero every kernel is 1 and flat: all that is left is the mean score."""
    one = cloud(1, seed=4)[0].astype(np.float32)
    scores = cloud(k, seed=5)[1].astype(np.float32)
    with jax.enable_x64(False):
        found = compiled(jnp.asarray(np.tile(one, (k, 1))), jnp.asarray(scores), kernel, features)
    np.testing.assert_allclose(found, np.tile(scores.mean(0), (k, 1)), rtol=1e-4, atol=1e-5)


def transport(
    score: Callable[[jax.Array], jax.Array], kernel: str, start: np.ndarray, steps: int
) -> np.ndarray:
    """Particles after many steps, each coordinate with its own step size (RMSprop)."""

    def step(_: int, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        particles, memory = carry
        direction = svgd.direction(particles, jax.vmap(score)(particles), kernel)
        memory = 0.9 * memory + 0.1 * direction**2
        return particles + 0.05 * direction / (1e-3 + jnp.sqrt(memory)), memory

    begin = (jnp.asarray(start), jnp.ones(start.shape))
    run = jax.jit(lambda carry: jax.lax.fori_loop(0, steps, step, carry))
    return np.asarray(run(begin)[0])


@pytest.mark.parametrize("kernel", ["rbf", "imq"])
def test_moments_of_two_modes(kernel: str) -> None:
    """Half the mass at each of two separate places: a single Gaussian would be wrong."""
    centres, spread = np.array([[-1.0, 0.0], [1.0, 1.0]]), 0.6

    def log_density(p: jax.Array) -> jax.Array:
        return jax.nn.logsumexp(-jnp.sum((p - centres) ** 2, 1) / (2 * spread**2))

    start = 2 * np.random.default_rng(8).normal(size=(60, 2))
    particles = transport(jax.grad(log_density), kernel, start, 800)
    between = np.outer(centres[1] - centres[0], centres[1] - centres[0]) / 4
    np.testing.assert_allclose(particles.mean(0), [0.0, 0.5], atol=0.15)
    np.testing.assert_allclose(
        np.cov(particles.T, bias=True), between + spread**2 * np.eye(2), rtol=0.15, atol=0.1
    )
    right = particles[:, 0] > 0
    assert 0.4 <= right.mean() <= 0.6
    np.testing.assert_allclose(particles[right].mean(0), centres[1], atol=0.15)


def test_diversity() -> None:
    """The mean distance over pairs: 3, 4 and 5 for the corners of a right triangle."""
    corners = jnp.array([[0.0, 0.0], [3.0, 0.0], [0.0, 4.0]])
    np.testing.assert_allclose(svgd.spread(corners), [[0, 3, 4], [3, 0, 5], [4, 5, 0]])
    assert float(svgd.diversity(corners)) == pytest.approx(4.0)
    assert float(svgd.diversity(jnp.tile(corners[1], (4, 1)))) == 0.0
    assert float(svgd.diversity(corners[:1])) == 0.0


def test_ones_own_kernel_is_one_record_and_a_word_that_is_none_is_refused() -> None:
    particles, scores = cloud(3, seed=1)
    own = svgd.SteinKernel(lambda ratio: (jnp.exp(-ratio), -jnp.exp(-ratio)))
    np.testing.assert_array_equal(
        svgd.direction(particles, scores, own), svgd.direction(particles, scores, "rbf")
    )
    with pytest.raises(InputError, match=r"nonsense.*rbf, imq, function"):
        svgd.direction(particles, scores, "nonsense")
