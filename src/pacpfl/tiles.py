"""Lower triangles in pieces: what a symmetric or lower triangular matrix is made of.

A matrix is a triangle of blocks: row i has blocks 0 to i. The upper right is either the mirror image or
zero, and never computed. Nothing is cut out of a larger array or put together into one, which on a CPU
would take as long as the arithmetic (`pacpfl.linalg` says what is gained). Blocks may have leading
axes, the same for all.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

Tiles: TypeAlias = tuple[tuple[Array, ...], ...]

TILE = 80  # rows up to which a matrix stays whole
MOST_TILES = 5  # on the diagonal: a sixth would gain 4% and take 1 s longer to compile
ROWS = 16  # all tiles but the last have a multiple of so many: products are up to 1.8 times faster

# On GPUs float32 products default to TF32, which keeps three digits: not enough to factorise.
matmul = partial(jnp.matmul, precision=lax.Precision.HIGHEST)


def transpose(a: Float[Array, "*b n m"]) -> Float[Array, "*b m n"]:
    return jnp.swapaxes(a, -1, -2)


def edges(size: int) -> list[slice]:
    """Return the rows of each tile; one tile on accelerators, whose libraries want whole matrices."""
    parts = min(MOST_TILES, -(-size // TILE)) if jax.default_backend() == "cpu" else 1
    step = size if parts == 1 else -(-size // (parts * ROWS)) * ROWS
    return [slice(start, min(start + step, size)) for start in range(0, size, step)]


def build(size: int, block: Callable[[slice, slice], Array]) -> Tiles:
    """Make a matrix of `size` rows from `block(rows, columns)`."""
    cuts = edges(size)
    return tuple(
        tuple(block(rows, columns) for columns in cuts[: index + 1])
        for index, rows in enumerate(cuts)
    )


def split(a: Float[Array, "*b m m"]) -> Tiles:
    return build(a.shape[-1], lambda rows, columns: a[..., rows, columns])


def join(w: Tiles) -> Float[Array, "*b m m"]:
    """Return the lower triangular matrix as one array, with zeros in its upper right."""
    size = rows(w)

    def whole(row: tuple[Array, ...]) -> Array:
        joined = jnp.concatenate(row, -1)
        missing = [(0, 0)] * (joined.ndim - 1) + [(0, size - joined.shape[-1])]
        return jnp.pad(joined, missing)

    return w[0][0] if len(w) == 1 else jnp.concatenate([whole(row) for row in w], -2)


def rows(a: Tiles) -> int:
    return sum(row[-1].shape[-1] for row in a)


def diagonal(a: Tiles) -> Float[Array, "*b m"]:
    return jnp.concatenate([jnp.diagonal(row[-1], axis1=-2, axis2=-1) for row in a], -1)


def add_to_diagonal(a: Tiles, value: Float[Array, "*b"]) -> Tiles:
    def more(corner: Array) -> Array:
        return corner + value[..., None, None] * jnp.eye(corner.shape[-1], dtype=corner.dtype)

    return tuple((*row[:-1], more(row[-1])) for row in a)


def cut(x: Float[Array, "*b m n"], like: Tiles) -> list[Array]:
    """Return the rows of x that belong to each tile."""
    ends = [0]
    for row in like:
        ends.append(ends[-1] + row[-1].shape[-1])
    return [x[..., start:end, :] for start, end in pairwise(ends)]
