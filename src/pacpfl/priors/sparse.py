"""Gaussian processes with inducing inputs, for more samples than a matrix of them can hold.

The function's values u = h(Z) at M inducing inputs Z stand for the data (Titsias 2009, "Variational
learning of inducing variables in sparse Gaussian processes"). With Q = K_fu K_uu^-1 K_uf and
r = y - m(X), the log evidence of n samples is at least

    ln N(r | 0, Q + s^2 I) - tr(K_ff - Q) / (2 s^2),

with equality where Z contains all of X: the best distribution of u is closed form and put in.
Without that (Hensman et al. 2013) mini-batches are possible, with M + M^2 more parameters; a full
step here is O(n M^2), a fraction of a second for 15,000 samples.

Everything goes through two factors of size M: W with W K_uu W^T = I, and V with V B V^T = I, where
A = W K_uf / s and B = I + A A^T.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pacpfl.linalg import factorise
from pacpfl.priors.gp import GPPrior
from pacpfl.priors.kernels import squared_distances
from pacpfl.tiles import matmul, transpose
from pacpfl.types import Data, Prediction

if TYPE_CHECKING:
    from pacpfl.priors.base import Inputs, Particle

# Added to the diagonal of K_uu, in units of k(x, x): neighbouring inducing inputs make it singular.
# The bound stays a bound: it is that of inducing values observed with a little noise. In float32 less
# loses the gradient of deep kernels, and this costs 1e-4 nats per sample (3,600 samples, M = 128).
JITTER = {"float32": 1e-5, "float64": 1e-11}


Inducing = Float[Array, "M d"]  # inputs


class SparsePosterior(NamedTuple):
    """All that prediction needs; its size does not depend on the number of samples."""

    inducing: Inducing
    prior_factor: Float[Array, "M M"]  # W
    posterior_factor: Float[Array, "M M"]  # V W
    alpha: Float[Array, " M"]  # the mean of h(x) - m(x) is k_u(x)^T alpha


class _Projection(NamedTuple):
    prior_factor: Float[Array, "M M"]  # W
    projected: Float[Array, "M n"]  # A
    inner_factor: Float[Array, "M M"]  # V
    residual: Float[Array, " n"]  # r / s
    explained: Float[Array, " M"]  # V A r / s


def _project(prior: GPPrior, phi: Array, inducing: Array, data: Data) -> _Projection:
    """Padding is a column of zeros in A and a residual of zero: it adds exactly nothing."""
    std = prior.noise_std(phi, data.x)
    eye = jnp.eye(inducing.shape[0], dtype=phi.dtype)
    jitter = JITTER[phi.dtype.name] * prior.variance(phi, inducing).mean()
    prior_factor = inverse_factor(prior.covariance(phi, inducing) + jitter * eye)
    cross = jnp.where(data.mask, prior.covariance(phi, inducing, data.x), 0)
    projected = matmul(prior_factor, cross) / std
    inner_factor = inverse_factor(eye + matmul(projected, transpose(projected)))
    residual = jnp.where(data.mask, data.y - prior.mean_function(phi, data.x), 0) / std
    explained = matmul(inner_factor, matmul(projected, residual))
    return _Projection(prior_factor, projected, inner_factor, residual, explained)


def bound(prior: GPPrior, phi: Particle, inducing: Inducing, data: Data) -> Float[Array, ""]:
    """The lower bound on ln Z of the samples where the mask is true:

    -n/2 ln(2 pi s^2) - 1/2 ln|B| - (|r|^2 / s^2 - |V A r / s|^2) / 2
    - (sum_j k(x_j, x_j) / s^2 - tr A A^T) / 2.
    """
    parts = _project(prior, phi, inducing, data)
    noise = prior.noise_std(phi, data.x) ** 2
    log_determinant = -2 * jnp.log(jnp.diagonal(parts.inner_factor)).sum()
    misfit = jnp.sum(parts.residual**2) - jnp.sum(parts.explained**2)
    variances = jnp.where(data.mask, prior.variance(phi, data.x) / noise, 0)
    unexplained = variances.sum() - jnp.sum(parts.projected**2)
    constant = jnp.where(data.mask, math.log(2 * math.pi) + jnp.log(noise), 0).sum()
    return -0.5 * (constant + log_determinant + misfit + unexplained)


def condition(prior: GPPrior, phi: Particle, inducing: Inducing, data: Data) -> SparsePosterior:
    """The distribution of u at which the bound is reached."""
    parts = _project(prior, phi, inducing, data)
    posterior_factor = matmul(parts.inner_factor, parts.prior_factor)
    alpha = matmul(transpose(posterior_factor), parts.explained)
    return SparsePosterior(inducing, parts.prior_factor, posterior_factor, alpha)


def predict(prior: GPPrior, phi: Particle, posterior: SparsePosterior, x: Inputs) -> Prediction:
    """Mean m(x) + k_u^T alpha and variance k(x, x) - |W k_u|^2 + |V W k_u|^2 + s^2."""
    cross = prior.covariance(phi, posterior.inducing, x)
    mean = prior.mean_function(phi, x) + matmul(posterior.alpha, cross)
    before = jnp.sum(matmul(posterior.prior_factor, cross) ** 2, axis=0)
    after = jnp.sum(matmul(posterior.posterior_factor, cross) ** 2, axis=0)
    variance = jnp.maximum(prior.variance(phi, x) - before, 0) + after
    std = jnp.sqrt(variance + prior.noise_variance(phi, x))
    return Prediction(jnp.ones(1, mean.dtype), mean[None], std[None])


def initial_inducing(data: Data, count: int, rounds: int = 10) -> Inducing:
    """Centres of `count` clusters of the inputs (k-means).

    It starts from the sample nearest to the mean, and then always the one farthest from those chosen
    (Gonzalez 1985), so the order of the samples and padding change nothing. With at most `count`
    samples the centres are the samples.
    """
    valid = data.mask[:, None]
    middle = jnp.where(valid, data.x, 0).sum(0) / data.mask.sum()
    x = jnp.where(valid, data.x, middle)

    def add(index: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        centres, distances = carry
        centre = x[jnp.argmax(jnp.where(data.mask, distances, -1))]
        nearer = jnp.minimum(distances, jnp.sum((x - centre) ** 2, axis=1))
        return centres.at[index].set(centre), nearer

    first = x[jnp.argmin(jnp.where(data.mask, jnp.sum((x - middle) ** 2, axis=1), jnp.inf))]
    start = jnp.tile(first, (count, 1)), jnp.sum((x - first) ** 2, axis=1)
    centres, _ = jax.lax.fori_loop(1, count, add, start)

    def move(_: int, centres: Array) -> Array:
        nearest = jnp.argmin(squared_distances(centres, x), axis=0)
        members = jax.ops.segment_sum(data.mask.astype(x.dtype), nearest, count)[:, None]
        totals = jax.ops.segment_sum(jnp.where(valid, x, 0), nearest, count)
        return jnp.where(members > 0, totals / jnp.maximum(members, 1), centres)

    return jax.lax.fori_loop(0, rounds, move, centres)


@jax.custom_vjp
def inverse_factor(a: Float[Array, "M M"]) -> Float[Array, "M M"]:
    """W = L^-1 of A = L L^T, with a gradient: dW = -P(W dA W^T) W, where P keeps the lower triangle
    and half of the diagonal. (The factorisation itself is a loop that cannot be differentiated.)"""
    return factorise(a)


def _factor_forward(a: Array) -> tuple[Array, Array]:
    inverse = factorise(a)
    return inverse, inverse


def _factor_backward(inverse: Array, cotangent: Array) -> tuple[Array]:
    inner = jnp.tril(matmul(cotangent, transpose(inverse)))
    inner = inner - 0.5 * jnp.diag(jnp.diagonal(inner))
    outer = -matmul(transpose(inverse), matmul(inner, inverse))
    return (0.5 * (outer + transpose(outer)),)


inverse_factor.defvjp(_factor_forward, _factor_backward)


class SparseModel(eqx.Module):
    """A Gaussian process conditioned on its values at the inducing inputs."""

    prior: GPPrior = eqx.field(static=True)
    phi: Particle
    posterior: SparsePosterior

    def __call__(self, x: Float[Array, "t d"]) -> Prediction:
        return predict(self.prior, self.phi, self.posterior, x)
