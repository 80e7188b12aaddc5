"""Factorisation of many small positive definite matrices at once.

XLA hands a batched Cholesky to LAPACK one matrix after the other. Here, on a CPU, the factorisation
is divided into halves until blocks of `LEAF` rows are left, so that nearly all arithmetic happens
in batched matrix products over clients and particles together. What is kept is W = L^-1 (with
A = L L^T), because everything a Gaussian process needs is then a product with W:

    A^-1 = W^T W,    ln|A| = -2 sum ln W_jj,    predictive variance k** - |W k*|^2.

Forming A^-1 by recursion on Schur complements needs fewer products, but loses all digits in
float32 at a noise of 0.05; going through L is as accurate as LAPACK.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

LEAF = 10  # rows eliminated one by one; 5 and 20 are slower
LEAVES = 30  # about as many leaves at most: more would only take longer to compile
DENSE = 160  # rows below which skipping zeros or the mirrored half costs more than it saves

# On GPUs float32 products default to TF32, which keeps three digits: not enough to factorise.
matmul = partial(jnp.matmul, precision=lax.Precision.HIGHEST)


def transpose(a: Float[Array, "*b n m"]) -> Float[Array, "*b m n"]:
    return jnp.swapaxes(a, -1, -2)


def _lower_blocks(a: Array, b: Array, c: Array) -> Array:
    """[[a, 0], [b, c]]"""
    zero = jnp.zeros((*a.shape[:-1], c.shape[-1]), a.dtype)
    top = jnp.concatenate([a, zero], -1)
    return jnp.concatenate([top, jnp.concatenate([b, c], -1)], -2)


def inverse_cholesky(a: Float[Array, "*b m m"]) -> Float[Array, "*b m m"]:
    """W = L^-1 of every matrix; NaN where a matrix is not positive definite."""
    leaf = max(LEAF, a.shape[-1] // LEAVES)
    return lax.platform_dependent(a, cpu=partial(_blocked, leaf=leaf), default=_library)


def _library(a: Float[Array, "*b m m"]) -> Float[Array, "*b m m"]:
    """On a GPU the library's batched routines are the fastest, and compile in no time."""
    factor = jnp.linalg.cholesky(a, symmetrize_input=False)
    eye = jnp.broadcast_to(jnp.eye(a.shape[-1], dtype=a.dtype), a.shape)
    return lax.linalg.triangular_solve(factor, eye, left_side=True, lower=True)


def _blocked(a: Float[Array, "*b m m"], leaf: int = LEAF) -> Float[Array, "*b m m"]:
    """With A = [[A11, .], [A21, A22]]: L21 = A21 W11^T, W22 from the Schur complement
    A22 - L21 L21^T, and W21 = -W22 L21 W11."""
    m = a.shape[-1]
    if m <= leaf:
        return _eliminate(a)
    half = (m + 1) // 2
    w11 = _blocked(a[..., :half, :half], leaf)
    l21 = _times_upper(a[..., half:, :half], transpose(w11))
    w22 = _blocked(a[..., half:, half:] - _times_own_transpose(l21), leaf)
    return _lower_blocks(w11, -_lower_times(w22, _times_lower(l21, w11)), w22)


def _times_lower(x: Float[Array, "*b n m"], w: Float[Array, "*b m m"]) -> Float[Array, "*b n m"]:
    """X W for lower triangular W, without the products with its zeros."""
    if w.shape[-1] <= DENSE:
        return matmul(x, w)
    half = (w.shape[-1] + 1) // 2
    left, right = x[..., :half], x[..., half:]
    first = _times_lower(left, w[..., :half, :half]) + matmul(right, w[..., half:, :half])
    return jnp.concatenate([first, _times_lower(right, w[..., half:, half:])], -1)


def _times_upper(x: Float[Array, "*b n m"], u: Float[Array, "*b m m"]) -> Float[Array, "*b n m"]:
    """X U for upper triangular U."""
    if u.shape[-1] <= DENSE:
        return matmul(x, u)
    half = (u.shape[-1] + 1) // 2
    left, right = x[..., :half], x[..., half:]
    second = matmul(left, u[..., :half, half:]) + _times_upper(right, u[..., half:, half:])
    return jnp.concatenate([_times_upper(left, u[..., :half, :half]), second], -1)


def _lower_times(w: Float[Array, "*b m m"], x: Float[Array, "*b m n"]) -> Float[Array, "*b m n"]:
    """W X for lower triangular W."""
    if w.shape[-1] <= DENSE:
        return matmul(w, x)
    half = (w.shape[-1] + 1) // 2
    top, bottom = x[..., :half, :], x[..., half:, :]
    second = matmul(w[..., half:, :half], top) + _lower_times(w[..., half:, half:], bottom)
    return jnp.concatenate([_lower_times(w[..., :half, :half], top), second], -2)


def _upper_times(u: Float[Array, "*b m m"], x: Float[Array, "*b m n"]) -> Float[Array, "*b m n"]:
    """U X for upper triangular U."""
    if u.shape[-1] <= DENSE:
        return matmul(u, x)
    half = (u.shape[-1] + 1) // 2
    top, bottom = x[..., :half, :], x[..., half:, :]
    first = _upper_times(u[..., :half, :half], top) + matmul(u[..., :half, half:], bottom)
    return jnp.concatenate([first, _upper_times(u[..., half:, half:], bottom)], -2)


def _times_own_transpose(x: Float[Array, "*b n m"]) -> Float[Array, "*b n n"]:
    """X X^T, each pair of rows once."""
    n = x.shape[-2]
    if n <= DENSE:
        return matmul(x, transpose(x))
    half = (n + 1) // 2
    top, bottom = x[..., :half, :], x[..., half:, :]
    lower = matmul(bottom, transpose(top))
    return _symmetric_blocks(_times_own_transpose(top), lower, _times_own_transpose(bottom))


def _symmetric_blocks(a: Array, b: Array, c: Array) -> Array:
    """[[a, b^T], [b, c]]"""
    top = jnp.concatenate([a, transpose(b)], -1)
    return jnp.concatenate([top, jnp.concatenate([b, c], -1)], -2)


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


def gram(w: Float[Array, "*b m m"]) -> Float[Array, "*b m m"]:
    """W^T W for lower triangular W, skipping products with the zero half."""
    m = w.shape[-1]
    if m <= DENSE // 2:  # a cut saves the zeros and the mirrored half at once
        return matmul(transpose(w), w)
    half = (m + 1) // 2
    left, w21, w22 = w[..., :half], w[..., half:, :half], w[..., half:, half:]
    if m <= DENSE:  # one product, zeros and all, instead of two and a sum
        corner = matmul(transpose(left), left)
    else:
        corner = gram(left[..., :half, :]) + _times_own_transpose(transpose(w21))
    lower = _upper_times(transpose(w22), w21)
    return _symmetric_blocks(corner, lower, gram(w22))


class Factor(NamedTuple):
    """W = L^-1 with W (A + jitter I) W^T = I, ln|A|, and the jitter that was needed."""

    inverse: Float[Array, "*b m m"]
    log_det: Float[Array, "*b"]
    jitter: Float[Array, "*b"]


@jax.custom_batching.custom_vmap
def factorise(a: Float[Array, "*b m m"]) -> Factor:
    """Factorise every matrix; only where that fails, add jitter and try again, ten times more each.

    One loop serves the whole batch, and vmap only adds leading axes (the rule below), so that in
    the usual case nothing is computed twice and nothing is selected between. A matrix that
    succeeded keeps its jitter, so a neighbour's failure does not change its factor.
    """
    first = 1e-6 if a.dtype == jnp.float32 else 1e-12
    tries = 6 if a.dtype == jnp.float32 else 12
    scale = jnp.trace(a, axis1=-2, axis2=-1) / a.shape[-1]
    eye = jnp.eye(a.shape[-1], dtype=a.dtype)

    def attempt(carry: tuple[Int[Array, ""], Array, Factor]) -> tuple[Array, Array, Factor]:
        count, jitter, _ = carry
        inverse = inverse_cholesky(a + jitter[..., None, None] * eye)
        log_det = -2 * jnp.log(jnp.diagonal(inverse, axis1=-2, axis2=-1)).sum(-1)
        failed = ~jnp.isfinite(log_det)
        more = jnp.where(failed, jnp.maximum(jitter * 10, first * scale), jitter)
        return count + 1, more, Factor(inverse, log_det, jitter)

    def again(carry: tuple[Int[Array, ""], Array, Factor]) -> Array:
        count, jitter, factor = carry
        return (count == 0) | (jnp.any(jitter != factor.jitter) & (count < tries))

    start = Factor(jnp.zeros_like(a), jnp.zeros_like(scale), jnp.zeros_like(scale))
    return lax.while_loop(again, attempt, (jnp.int32(0), jnp.zeros_like(scale), start))[2]


@factorise.def_vmap
def _factorise_batched(axis_size: int, batched: list[bool], a: Array) -> tuple[Factor, Factor]:
    return factorise(a), Factor(True, True, True)  # type: ignore[arg-type]


@jax.custom_vjp
def gaussian_log_density(
    covariance: Float[Array, "m m"], residual: Float[Array, " m"]
) -> Float[Array, ""]:
    """-1/2 r^T A^-1 r - 1/2 ln|A|: the log density of N(0, A) at r, without its (m/2) ln 2pi.

    The gradient is written down instead of derived through the factorisation (a third of the
    cost): with alpha = A^-1 r,  d/dA = (alpha alpha^T - A^-1) / 2  and  d/dr = -alpha.
    """
    factor = factorise(covariance)
    return _quadratic(factor, residual)


def _quadratic(factor: Factor, residual: Array) -> Array:
    white = matmul(factor.inverse, residual)
    return -0.5 * jnp.sum(white**2) - 0.5 * factor.log_det


def _density_forward(covariance: Array, residual: Array) -> tuple[Array, tuple[Array, Array]]:
    factor = factorise(covariance)
    alpha = matmul(transpose(factor.inverse), matmul(factor.inverse, residual))
    return _quadratic(factor, residual), (gram(factor.inverse), alpha)


def _density_backward(saved: tuple[Array, Array], cotangent: Array) -> tuple[Array, Array]:
    inverse, alpha = saved
    return 0.5 * cotangent * (jnp.outer(alpha, alpha) - inverse), -cotangent * alpha


gaussian_log_density.defvjp(_density_forward, _density_backward)
