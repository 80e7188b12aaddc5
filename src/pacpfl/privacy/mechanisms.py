"""Clip every client's update, add noise to the sum: the three modes (paper, appendix on DP, Algorithm 3).

`laplace`:  clip in L1, noise of scale multiplier * clip on every entry of the sum. Pure epsilon.
`gaussian`: clip in L2, noise of standard deviation multiplier * clip. (epsilon, delta).
`paper`:    as printed: clip in L2 and Laplace noise of scale T gamma / (epsilon c) on the mean of c
            updates, that is T gamma / epsilon on their sum. NO GUARANTEE of the epsilon it names:
            Laplace noise needs the L1 norm bounded, and that may be sqrt(k d) times the L2 norm.

Sensitivity of the sum of clipped updates, with ||u|| <= clip for every client:

    add or remove one client:   ||S - S'|| = ||u_i|| <= clip
    replace one by another:     ||S - S'|| = ||u_i - u_i'|| <= ||u_i|| + ||u_i'|| <= 2 clip

and both are reached. Rows that are not finite count as zero: then the norm is bounded for whatever a
client computes. The mean divides by the EXPECTED cohort: the number of clients who take part depends
on who is there, so dividing by it would release it.

The noise is that of floating-point numbers: docs/privacy.md says what this leaves open.

Clipping at a quantile that is learned privately (Andrew, Thakkar, McMahan & Ramaswamy 2021).

Each client sends, with its clipped update, whether nothing was clipped: b_i = 1 or 0. The server
learns the noisy share of such clients, and moves the clip geometrically towards the quantile wanted:

    share = 1/2 + (sum_i (b_i - 1/2) + N(0, count_std^2)) / expected cohort
    clip <- clip exp(-rate (share - quantile))

One client changes sum_i (b_i - 1/2) by 1/2, and the sum of updates by the clip. Both together are ONE
Gaussian mechanism: with each part divided by its noise's standard deviation the sensitivity is
sqrt(z_sum^-2 + (2 count_std)^-2), and the multiplier that is accounted is its inverse,

    z = (z_sum^-2 + (2 count_std)^-2)^(-1/2).

For replacing one client both parts double, and the formula stays.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from pacpfl.errors import InputError

Kind = Literal["laplace", "gaussian"]
NOISE: dict[str, Kind] = {"paper": "laplace", "laplace": "laplace", "gaussian": "gaussian"}
# A clipped norm computed again, in another order of additions, stays below the limit.
MARGIN = 1e-5
SHARE_OF_COHORT = 1 / 20  # the authors' count_std, as a share of the cohort
# In small cohorts that would eat up the budget: at least what costs the sum 5% more noise.
DEAREST = 0.5 / math.sqrt(1 - 1.05**-2)


def norm(update: Float[Array, "k d"], order: int) -> Float[Array, ""]:
    """Return the L1 or L2 norm of all entries, also where their squares would overflow, or vanish.

    Scaled by powers of two: a division by the largest entry can lose everything, because processors
    take 1 / 3e38, a subnormal number, for zero.
    """
    largest = jnp.abs(update).max(initial=0.0)
    scale = jnp.where(largest > 2.0**40, 2.0**-70, jnp.where(largest < 2.0**-40, 2.0**70, 1.0))
    scaled = jnp.abs(update) * scale.astype(update.dtype)
    size = scaled.sum() if order == 1 else jnp.sqrt((scaled**2).sum())
    return size / scale.astype(update.dtype)


def finite_rows(update: Float[Array, "k d"]) -> Bool[Array, " k"]:
    return jnp.isfinite(update).all(-1)


def clip(
    update: Float[Array, "k d"],
    norm_limit: Float[Array, ""] | float,
    order: int = 2,
    per_particle: bool = False,
) -> Float[Array, "k d"]:
    """Scale an update down to the norm's limit where it is larger; rows that are not finite become 0.

    `per_particle`: each of the k rows gets an equal share of the limit, norm_limit / k for L1 and
    norm_limit / sqrt(k) for L2, so that the whole stays within it and the accounting is the same.
    """
    update = jnp.where(finite_rows(update)[:, None], update, 0)
    if not per_particle:
        return update * _factor(norm(update, order), norm_limit)
    share = norm_limit / update.shape[0] ** (1 / order)
    norms = jax.vmap(lambda row: norm(row[None], order))(update)
    return update * _factor(norms, share)[:, None]


def _factor(size: Array, limit: Array | float) -> Array:
    inside = size <= limit
    return jnp.where(inside, 1, limit * (1 - MARGIN) / jnp.where(inside, 1, size))


def add_noise(
    key: Array, total: Float[Array, "*shape"], scale: Float[Array, ""] | float, kind: Kind
) -> Float[Array, "*shape"]:
    """Add noise to a total: `scale` is the standard deviation (gaussian), or Laplace's b (std sqrt(2) b).

    JAX's own draws in float32 end at 5.4 standard deviations, which is too early for a delta of 1e-5
    in thousands of dimensions. These come from uniforms of 64 bits, and end at 9.4 standard
    deviations (gaussian) and at 44 b (laplace): an entry lies beyond with probability 2^-64.
    """
    radius_key, other_key = jax.random.split(key)
    radius = _exponential(radius_key, total.shape, total.dtype)
    bits = jax.random.bits(other_key, total.shape, jnp.uint32)
    if kind == "laplace":
        return total + scale * jnp.where(bits >> 31 == 0, radius, -radius)
    angle = bits.astype(total.dtype) * (2 * math.pi * 2.0**-32)  # Box and Muller (1958)
    return total + scale * jnp.sqrt(2 * radius) * jnp.cos(angle)


def _exponential(key: Array, shape: tuple[int, ...], dtype: jnp.dtype) -> Array:
    """Draw -ln U; small U have all their digits, because the 32 bits below the first 32 are added."""
    high, low = jax.random.bits(key, (2, *shape), jnp.uint32).astype(dtype)
    return -jnp.log(high * 2.0**-32 + (low + 0.5) * 2.0**-64)


@dataclass(frozen=True)
class AdaptiveClip:
    quantile: float
    count_std: float  # of the noise on the count
    rate: float = 0.2  # the authors' choice


def sum_multiplier(multiplier: float, count_std: float) -> float:
    """Return the z_sum that, together with the count, is accounted as `multiplier`."""
    left = multiplier**-2 - (2 * count_std) ** -2
    if left <= 0:
        raise InputError(
            f"Noise of standard deviation {count_std:.3g} on the count spends more than a budget of "
            f"multiplier {multiplier:.3g} has; give it at least {multiplier / 2:.3g}."
        )
    return left**-0.5


def count_std(multiplier: float, cohort: float) -> float:
    return max(SHARE_OF_COHORT * cohort, DEAREST * multiplier)


def next_clip(
    key: Array,
    clip: Float[Array, ""],
    centred: Float[Array, ""],
    cohort: float,
    adaptive: AdaptiveClip,
) -> Float[Array, ""]:
    """Move the clip towards the quantile; `centred` is sum_i (b_i - 1/2) over those who took part."""
    noisy = add_noise(key, centred, adaptive.count_std, "gaussian")
    share = 0.5 + noisy / cohort
    return clip * jnp.exp(-adaptive.rate * (share - adaptive.quantile))
