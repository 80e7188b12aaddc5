"""Factorisation of many small positive definite matrices at once.

XLA hands a batched Cholesky to LAPACK one matrix after the other. Here, on a CPU, matrices come in
`tiles`, and tiles are divided into halves until few rows are left, so that nearly all arithmetic happens
in batched matrix products over clients and particles together. What is kept is W = L^-1 (with
A = L L^T), because everything a Gaussian process needs is then a product with W:

    A^-1 = W^T W,    ln|A| = -2 sum ln W_jj,    predictive variance k** - |W k*|^2.

Forming A^-1 by recursion on Schur complements needs fewer products, but loses all digits in
float32 at a noise of 0.05; going through L is as accurate as LAPACK.
"""

from __future__ import annotations

from functools import reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from pacpfl import tiles
from pacpfl.tiles import Tiles, matmul, transpose

LEAF = 10  # rows eliminated one by one, at least
LEAVES = 4  # as long as leaves are small: more would only take longer to compile


def inverse_cholesky(a: Tiles) -> Tiles:
    """W = L^-1 of every matrix; NaN where a matrix is not positive definite.

    Column by column, S_ij = A_ij - sum_{p<j} L_ip L_jp^T, L_jj from S_jj, and L_ij = S_ij W_jj^T; then
    W_ij = -W_ii sum_{j<=p<i} L_ip W_pj.
    """
    leaf = min(tiles.TILE, max(LEAF, tiles.rows(a) // LEAVES))
    count = len(a)
    low: dict[tuple[int, int], Array] = {}  # L below its diagonal
    w: dict[tuple[int, int], Array] = {}
    for j in range(count):
        for i in range(j, count):
            s = reduce(
                jnp.subtract, (matmul(low[i, p], transpose(low[j, p])) for p in range(j)), a[i][j]
            )
            if i == j:
                w[j, j] = lax.platform_dependent(s, cpu=lambda s: _halve(s, leaf), default=_library)
            else:
                low[i, j] = matmul(s, transpose(w[j, j]))
    for i in range(count):
        for j in range(i):
            w[i, j] = -matmul(w[i, i], tiles.total(matmul(low[i, p], w[p, j]) for p in range(j, i)))
    return tuple(tuple(w[i, j] for j in range(i + 1)) for i in range(count))


def _library(a: Float[Array, "*b m m"]) -> Float[Array, "*b m m"]:
    """On a GPU the library's batched routines are the fastest, and compile in no time."""
    factor = jnp.linalg.cholesky(a, symmetrize_input=False)
    eye = jnp.broadcast_to(jnp.eye(a.shape[-1], dtype=a.dtype), a.shape)
    return lax.linalg.triangular_solve(factor, eye, left_side=True, lower=True)


def _halve(a: Float[Array, "*b m m"], leaf: int) -> Float[Array, "*b m m"]:
    """One tile, in halves; products with its zeros cost less than to avoid them."""
    if a.shape[-1] <= leaf:
        return _eliminate(a)
    half = (a.shape[-1] + 1) // 2
    w11 = _halve(a[..., :half, :half], leaf)
    l21 = matmul(a[..., half:, :half], transpose(w11))
    w22 = _halve(a[..., half:, half:] - matmul(l21, transpose(l21)), leaf)
    return tiles.join(((w11,), (-matmul(w22, matmul(l21, w11)), w22)))


def _eliminate(a: Float[Array, "*b m m"]) -> Float[Array, "*b m m"]:
    """Gaussian elimination of [A | I], each pivot row divided by its root, leaves [L^T | L^-1].

    LAPACK is not called: its kernels in jaxlib wait for tasks on the pool of threads that they occupy
    themselves, and two of them at once stop a machine with two cores for good.
    """
    m = a.shape[-1]
    rows = jnp.arange(m)
    both = jnp.concatenate([a, jnp.broadcast_to(jnp.eye(m, dtype=a.dtype), a.shape)], -1)

    def pivot(j: int, both: Array) -> Array:
        column = lax.dynamic_index_in_dim(both, j, both.ndim - 1, keepdims=False)
        row = lax.dynamic_index_in_dim(both, j, both.ndim - 2, keepdims=False)
        root = lax.rsqrt(lax.dynamic_index_in_dim(row, j, row.ndim - 1, keepdims=True))
        row = row * root
        below = jnp.where(rows > j, column * root, 0)
        both = both - below[..., :, None] * row[..., None, :]
        return jnp.where((rows == j)[:, None], row[..., None, :], both)

    return lax.fori_loop(0, m, pivot, both)[..., m:]


class Factor(NamedTuple):
    """W = L^-1 with W (A + jitter I) W^T = I, ln|A|, and the jitter that was needed."""

    inverse: Any  # Tiles, or one array [*b, m, m]
    log_det: Float[Array, "*b"]
    jitter: Float[Array, "*b"]


def factorise(a: Float[Array, "*b m m"]) -> Factor:
    """`factorise_tiles` for matrices, and a factor, that are arrays."""
    factor = factorise_tiles(tiles.split(a))
    return factor._replace(inverse=tiles.join(factor.inverse))


@jax.custom_batching.custom_vmap
def factorise_tiles(a: Tiles) -> Factor:
    """Factorise every matrix; only where that fails, add jitter and try again, ten times more each.

    One loop serves the whole batch, and vmap only adds leading axes (the rule below), so that in
    the usual case nothing is computed twice and nothing is selected between. A matrix that
    succeeded keeps its jitter, so a neighbour's failure does not change its factor.
    """
    scale = tiles.diagonal(a).mean(-1)
    single = scale.dtype == jnp.float32
    first, tries = (1e-6, 6) if single else (1e-12, 12)

    def attempt(carry: tuple[Int[Array, ""], Array, Factor]) -> tuple[Array, Array, Factor]:
        count, jitter, _ = carry
        inverse = inverse_cholesky(tiles.add_to_diagonal(a, jitter))
        log_det = -2 * jnp.log(tiles.diagonal(inverse)).sum(-1)
        failed = ~jnp.isfinite(log_det)
        more = jnp.where(failed, jnp.maximum(jitter * 10, first * scale), jitter)
        return count + 1, more, Factor(inverse, log_det, jitter)

    def again(carry: tuple[Int[Array, ""], Array, Factor]) -> Array:
        count, jitter, factor = carry
        return (count == 0) | (jnp.any(jitter != factor.jitter) & (count < tries))

    zero = jnp.zeros_like(scale)
    start = Factor(jax.tree.map(jnp.zeros_like, a), zero, zero)
    return lax.while_loop(again, attempt, (jnp.int32(0), zero, start))[2]


@factorise_tiles.def_vmap
def _factorise_batched(axis_size: int, batched: list[Any], a: Tiles) -> tuple[Factor, Factor]:
    """What is the same along the new axis, where other tiles are not, is repeated."""
    whole = jax.tree.map(
        lambda part, along: part if along else jnp.broadcast_to(part, (axis_size, *part.shape)),
        a,
        batched[0],
    )
    factor = factorise_tiles(whole)
    return factor, jax.tree.map(lambda _: True, factor)


@jax.custom_vjp
def gaussian_log_density(covariance: Tiles, residual: Float[Array, " m"]) -> Float[Array, ""]:
    """-1/2 r^T A^-1 r - 1/2 ln|A|: the log density of N(0, A) at r, without its (m/2) ln 2pi.

    The gradient is written down instead of derived through the factorisation (a third of the
    cost): with alpha = A^-1 r,  d/dA = (alpha alpha^T - A^-1) / 2  and  d/dr = -alpha. A block below
    the diagonal stands for its mirror image as well, so its gradient is twice that.
    """
    return _density_forward(covariance, residual)[0]


def _density_forward(covariance: Tiles, residual: Array) -> tuple[Array, tuple[Tiles, Array]]:
    factor = factorise_tiles(covariance)
    white = tiles.apply(factor.inverse, residual[:, None])
    alpha = tiles.apply_transposed(factor.inverse, white)[:, 0]
    value = -0.5 * jnp.sum(white**2) - 0.5 * factor.log_det
    return value, (tiles.gram(factor.inverse), alpha)


def _density_backward(saved: tuple[Tiles, Array], cotangent: Array) -> tuple[Tiles, Array]:
    inverse, alpha = saved
    parts = tiles.cut(alpha[:, None], inverse)

    def block(i: int, j: int) -> Array:
        difference = matmul(parts[i], transpose(parts[j])) - inverse[i][j]
        return (0.5 * cotangent if i == j else cotangent) * difference

    by_covariance = tuple(tuple(block(i, j) for j in range(i + 1)) for i in range(len(inverse)))
    return by_covariance, -cotangent * alpha


gaussian_log_density.defvjp(_density_forward, _density_backward)
