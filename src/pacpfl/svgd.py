"""Stein variational gradient descent (Liu & Wang 2016; paper, appendix "Background on SVGD").

    direction_kappa = 1/k sum_l [ k(phi_l, phi_kappa) grad ln Q*(phi_l) + grad_{phi_l} k(phi_l, phi_kappa) ]

The kernel compares particles by their coordinates (`rbf`, the paper's, and `imq`) or by what they
predict at reference inputs (`function`): in thousands of dimensions all coordinates are about
equally far apart, so only the latter keeps functions, which is what a user sees, apart.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

KERNELS = ("rbf", "imq", "function")
Features = Callable[[Float[Array, " size"]], Float[Array, " f"]]


def direction(
    particles: Float[Array, "k size"],
    scores: Float[Array, "k size"],
    kernel: str = "rbf",
    features: Features | None = None,
    valid: Bool[Array, " k"] | None = None,
) -> Float[Array, "k size"]:
    """The SVGD direction of every particle.

    `scores` are the gradients of ln Q*. Particles that are not `valid` take no part: they neither
    move nor push or pull the others.
    """
    k = particles.shape[0]
    valid = jnp.ones(k, bool) if valid is None else valid
    # Those who take no part stand in the place of one who does, so that nothing of theirs is met.
    first = particles[jnp.argmax(valid)]
    particles = jnp.where(valid[:, None], particles, first)
    scores = jnp.where(valid[:, None], scores, 0)
    if k == 1:
        return scores
    if kernel == "function":
        assert features is not None, "the function kernel needs the particles' predictions"
        points, pullback = jax.vjp(jax.vmap(features), particles)
    else:
        # Only differences matter: near one of the particles they lose no digits.
        points, pullback = particles - first, None
    both = valid[:, None] & valid[None, :]
    squared = pairwise_squared_distances(points)
    width = bandwidth(squared, both)
    ratio = squared / width
    # value = kappa(ratio); slope = d kappa / d ratio
    if kernel == "imq":
        value = (1 + ratio) ** -0.5
        slope = -0.5 * (1 + ratio) ** -1.5
    else:
        value = jnp.exp(-ratio)
        slope = -value
    value, slope = jnp.where(both, value, 0), jnp.where(both, slope, 0)
    # grad_{u_l} kappa = slope_{l kappa} 2 (u_l - u_kappa) / width, summed over l
    pull = 2 * slope / width
    if pullback is None:
        repulsion = pull.T @ points - pull.sum(0)[:, None] * points
    else:

        def toward(kappa: Array) -> Array:
            """J_l^T grad_{u_l} k(u_l, u_kappa), summed over l: one pull-back for each kappa."""
            return pullback(pull[:, kappa, None] * (points - points[kappa]))[0].sum(0)

        repulsion = jax.vmap(toward)(jnp.arange(k))
    taking_part = jnp.maximum(valid.sum(), 1)
    step = (value.T @ scores + repulsion) / taking_part
    return jnp.where(valid[:, None], step, 0)


def pairwise_squared_distances(points: Float[Array, "k p"]) -> Float[Array, "k k"]:
    return jnp.sum((points[:, None] - points[None, :]) ** 2, -1)


def bandwidth(squared: Float[Array, "k k"], both: Bool[Array, "k k"]) -> Float[Array, ""]:
    """The median rule: med(d^2) / ln(k + 1) over pairs of different particles.

    With it, the kernel between a typical pair is 1 / (k + 1).
    """
    k = squared.shape[0]
    pairs = both & ~jnp.eye(k, dtype=bool)
    # Sorted here, because jnp.nanmedian takes five times as long to compile.
    ascending = jnp.sort(jnp.where(pairs, squared, jnp.inf).ravel())
    count = pairs.sum()
    median = (ascending[(count - 1) // 2] + ascending[count // 2]) / 2
    # Equal particles: no 0 / 0; alone, or too far apart for a number: no inf / inf.
    finite = jnp.finfo(squared.dtype)
    taking_part = jnp.diagonal(both).sum()
    width = jnp.clip(median, finite.tiny**0.5, finite.max / 2)
    return width / jnp.log(jnp.maximum(taking_part, 1) + 1.0)


def spread(points: Float[Array, "k p"]) -> Float[Array, "k k"]:
    """Distances between what particles predict (fingerprints): the pairwise diversity."""
    return jnp.sqrt(pairwise_squared_distances(points))


def diversity(points: Float[Array, "k p"]) -> Float[Array, ""]:
    """Mean distance over pairs of particles; 0 for one particle."""
    k = points.shape[0]
    return spread(points).sum() / max(k * (k - 1), 1)
