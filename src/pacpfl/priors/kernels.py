"""Covariances of inputs that have been embedded: sums of squared exponential and linear parts.

What embeds them (length scales, a network) belongs to the particle; see `pacpfl.priors.gp`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pacpfl.tiles import matmul, transpose


class Embedded(NamedTuple):
    """Where a part of the kernel sees some inputs."""

    part: str
    scale: Float[Array, ""] | None  # factor of the part; None: 1
    x: Float[Array, "m e"]


def similarity(a: Sequence[Embedded], b: Sequence[Embedded]) -> Float[Array, "m t"]:
    """The kernel between two sets of inputs: the sum of its parts."""
    total = jnp.zeros((), a[0].x.dtype)
    for one, other in zip(a, b, strict=True):
        if one.part == "linear":
            value = matmul(one.x, transpose(other.x))
        else:
            value = squared_exponential(one.x, other.x)
        total += value if one.scale is None else one.scale * value
    return total


@jax.custom_vjp
def squared_exponential(a: Float[Array, "m d"], b: Float[Array, "t d"]) -> Float[Array, "m t"]:
    """k_ij = exp(-|a_i - b_j|^2 / 2).

    With M_ij = k_ij times its cotangent, d/da = M b - diag(M 1) a and d/db = M^T a - diag(M^T 1) b:
    products that read M instead of making one matrix for each feature.
    """
    return jnp.exp(-0.5 * squared_distances(a, b))


def _exponential_forward(a: Array, b: Array) -> tuple[Array, tuple[Array, Array, Array]]:
    value = squared_exponential(a, b)
    return value, (a, b, value)


def _exponential_backward(
    saved: tuple[Array, Array, Array], cotangent: Array
) -> tuple[Array, Array]:
    a, b, value = saved
    weight = cotangent * value
    # Only differences count, and they lose the fewest digits near the origin.
    centre = a.mean(0)
    a, b = a - centre, b - centre
    along = matmul(weight, jnp.pad(b, ((0, 0), (0, 1)), constant_values=1))
    # On its side, because XLA takes twice as long for M^T times a few columns.
    down = matmul(jnp.pad(a.T, ((0, 1), (0, 0)), constant_values=1), weight)
    by_b = (down[:-1] - down[-1:] * b.T).T
    return along[:, :-1] - along[:, -1:] * a, by_b


squared_exponential.defvjp(_exponential_forward, _exponential_backward)


def squared_distances(a: Float[Array, "m d"], b: Float[Array, "t d"]) -> Float[Array, "m t"]:
    """|a_i - b_j|^2. Few features: by differences, exact. Many: by products, after centring.

    Products cost one matrix multiplication instead of m t d subtractions, and lose digits only in
    proportion to the distance from the origin, which centring makes small.
    """
    if a.shape[-1] <= 4:
        return sum((a[:, None, j] - b[None, :, j]) ** 2 for j in range(a.shape[-1]))  # type: ignore[return-value]
    centre = a.mean(0)
    a, b = a - centre, b - centre
    products = matmul(a, transpose(b))
    squares = jnp.sum(a**2, -1)[:, None] + jnp.sum(b**2, -1)[None, :]
    return jnp.maximum(squares - 2 * products, 0)
