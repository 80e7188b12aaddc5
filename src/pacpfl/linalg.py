"""Factorisation of many small positive definite matrices at once.

XLA hands a batched Cholesky to LAPACK one matrix after the other. Here the factorisation is
divided into halves until blocks of `LEAF` rows are left, so that nearly all arithmetic happens
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

LEAF = 20  # rows handed to LAPACK; measured: 10 to 24 are alike, 40 and more are slower
GRAM_LEAF = 80  # rows below which W^T W no longer skips the zero half

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
    m = a.shape[-1]
    if m <= LEAF:
        factor = jnp.linalg.cholesky(a, symmetrize_input=False)
        eye = jnp.broadcast_to(jnp.eye(m, dtype=a.dtype), a.shape)
        return lax.linalg.triangular_solve(factor, eye, left_side=True, lower=True)
    half = (m + 1) // 2
    w11 = inverse_cholesky(a[..., :half, :half])
    l21 = matmul(a[..., half:, :half], transpose(w11))
    w22 = inverse_cholesky(a[..., half:, half:] - matmul(l21, transpose(l21)))
    return _lower_blocks(w11, -matmul(w22, matmul(l21, w11)), w22)


def gram(w: Float[Array, "*b m m"]) -> Float[Array, "*b m m"]:
    """W^T W for lower triangular W, skipping products with the zero half."""
    m = w.shape[-1]
    if m <= GRAM_LEAF:
        return matmul(transpose(w), w)
    half = (m + 1) // 2
    w21, w22 = w[..., half:, :half], w[..., half:, half:]
    lower = matmul(transpose(w22), w21)
    top = jnp.concatenate(
        [gram(w[..., :half, :half]) + matmul(transpose(w21), w21), transpose(lower)], -1
    )
    return jnp.concatenate([top, jnp.concatenate([lower, gram(w22)], -1)], -2)


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
