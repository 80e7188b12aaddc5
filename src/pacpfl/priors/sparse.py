"""Gaussian processes with inducing inputs, for more samples than a matrix of them can hold.

The function's values u = h(Z) at M inducing inputs Z stand for the data (Titsias 2009, "Variational
learning of inducing variables in sparse Gaussian processes"). With Q = K_fu K_uu^-1 K_uf,
r = y - m(X) and the likelihood to the power t (`priors.gp`), the log evidence of n samples is at least

    ln N(r | 0, Q + s^2/t I) - t tr(K_ff - Q) / (2 s^2) + sum ln c_t,

with equality where Z contains all of X: the best distribution of u is closed form and put in.
Without that (Hensman et al. 2013) mini-batches are possible, with M + M^2 more parameters; a full
step here is O(n M^2), a fraction of a second for 15,000 samples, and memory O(n + M^2).

Everything goes through two factors of size M: W with W K_uu W^T = I, and V with V B V^T = I, where
A = W K_uf sqrt(t) / s and B = I + A A^T.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from pacpfl.linalg import factorise
from pacpfl.priors.base import LeftOut, Prior, joined
from pacpfl.priors.gp import GPPrior
from pacpfl.priors.kernels import squared_distances
from pacpfl.tiles import matmul, transpose
from pacpfl.types import Data, Prediction

if TYPE_CHECKING:
    from pacpfl.priors.base import Inputs, Noise, Particle, Scalar

# Added to the diagonal of K_uu, in units of k(x, x): neighbouring inducing inputs make it singular.
# The bound stays a bound: it is that of inducing values observed with a little noise. In float32 less
# loses the gradient of deep kernels, and this costs 1e-4 nats per sample (3,600 samples, M = 128).
JITTER = {"float32": 1e-5, "float64": 1e-11}
ROWS = 4096  # samples that are projected at once, and from which inducing inputs are chosen
DRAWN = 16  # inducing inputs chosen between two looks at what they leave unexplained
AT_ONCE = 64  # rows of a factor that are found together
COUNTS = (512, 1024, 2048)  # of inducing inputs, at most
LEAST = 128  # of them
GAIN = 0.002  # nats a sample that the bound must rise by for twice as many

Inducing = Float[Array, "M d"]  # inputs
P = TypeVar("P", bound=Prior)


class SparsePosterior(NamedTuple):
    """All that prediction needs has M rows; the samples are there for those who leave one out."""

    data: Data
    inducing: Inducing
    prior_factor: Float[Array, "M M"]  # W
    gram: Float[Array, "M M"]  # A A^T
    pull: Float[Array, " M"]  # A r sqrt(t) / s
    posterior_factor: Float[Array, "M M"]  # V W
    alpha: Float[Array, " M"]  # the mean of h(x) - m(x) is k_u(x)^T alpha
    temperature: Float[Array, ""]


def _prior_factor(prior: GPPrior, phi: Array, inducing: Array) -> Float[Array, "M M"]:
    jitter = JITTER[phi.dtype.name] * prior.variance(phi, inducing).mean()
    eye = jnp.eye(len(inducing), dtype=phi.dtype)
    return inverse_factor(prior.covariance(phi, inducing) + jitter * eye)


def _noise(prior: GPPrior, phi: Array, data: Data, temperature: Scalar) -> Float[Array, " n"]:
    return prior.noise_std(phi, data.x) / jnp.sqrt(temperature)


def _residual(prior: GPPrior, phi: Array, data: Data, std: Array) -> Float[Array, " n"]:
    return jnp.where(data.mask, data.y - prior.mean_function(phi, data.x), 0) / std


def _projected(
    prior: GPPrior, phi: Array, factor: Array, inducing: Array, data: Data, std: Array
) -> Float[Array, "M n"]:
    """A. Padding is a column of zeros in it and a residual of zero: it adds exactly nothing."""
    cross = jnp.where(data.mask, prior.covariance(phi, inducing, data.x), 0)
    return matmul(factor, cross) / std


def _absorb(
    prior: GPPrior, phi: Array, factor: Array, inducing: Array, data: Data, temperature: Scalar
) -> tuple[Float[Array, "M M"], Float[Array, " M"]]:
    """A A^T and A r sqrt(t) / s, from some rows after the other."""

    def some(data: Data) -> tuple[Array, Array]:
        std = _noise(prior, phi, data, temperature)
        projected = _projected(prior, phi, factor, inducing, data, std)
        residual = _residual(prior, phi, data, std)
        return matmul(projected, transpose(projected)), matmul(projected, residual)

    n = len(data.mask)
    if n <= ROWS:
        return some(data)
    parts = -(-n // ROWS)
    rows = -(-n // parts)

    def cut(a: Array) -> Array:
        padded = jnp.pad(a, [(0, parts * rows - n), *[(0, 0)] * (a.ndim - 1)])
        return padded.reshape(parts, rows, *a.shape[1:])

    start = jnp.zeros((len(inducing),) * 2, phi.dtype), jnp.zeros(len(inducing), phi.dtype)
    add = lambda total, part: (jax.tree.map(jnp.add, total, some(part)), None)  # noqa: E731
    return jax.lax.scan(add, start, jax.tree.map(cut, data))[0]


def _inner_factor(gram: Array) -> Float[Array, "M M"]:
    return inverse_factor(jnp.eye(len(gram), dtype=gram.dtype) + gram)  # V


def _bound(
    prior: GPPrior, phi: Array, data: Data, gram: Array, pull: Array, temperature: Scalar
) -> Float[Array, " M"]:
    """The bound with the first inducing input, with the first two, ... and with all:

    -n/2 ln 2 pi + sum ln c_t - sum ln (s / sqrt t) - 1/2 ln|B| - (|r|^2 t / s^2 - |V A r|^2 t / s^2) / 2
    - (t sum_j k(x_j, x_j) / s^2 - tr A A^T) / 2.

    The factors of fewer are corners of the factors of all.
    """
    std, inner = _noise(prior, phi, data, temperature), _inner_factor(gram)
    constant = prior._constant(prior.noise_variance(phi, data.x), data.mask, temperature)
    constant -= jnp.where(data.mask, jnp.log(std), 0).sum()
    residual, explained = _residual(prior, phi, data, std), matmul(inner, pull)
    variances = jnp.where(data.mask, prior.variance(phi, data.x) / std**2, 0)
    fitted = 0.5 * (explained**2 + jnp.diagonal(gram)) + jnp.log(jnp.diagonal(inner))
    return constant - 0.5 * (jnp.sum(residual**2) + variances.sum()) + jnp.cumsum(fitted)


def bound(
    prior: GPPrior, phi: Particle, inducing: Inducing, data: Data, temperature: Scalar = 1.0
) -> Float[Array, ""]:
    """The lower bound on ln Z of the samples where the mask is true."""
    return bounds(prior, phi, inducing, data, temperature)[-1]


def bounds(
    prior: GPPrior, phi: Particle, inducing: Inducing, data: Data, temperature: Scalar = 1.0
) -> Float[Array, " M"]:
    """The same with the first of the inducing inputs, with the first two, ... and with all."""
    factor = _prior_factor(prior, phi, inducing)
    absorbed = _absorb(prior, phi, factor, inducing, data, temperature)
    return _bound(prior, phi, data, *absorbed, temperature)


def condition(
    prior: GPPrior, phi: Particle, inducing: Inducing, data: Data, temperature: Scalar = 1.0
) -> SparsePosterior:
    """The distribution of u at which the bound is reached."""
    factor, temperature = _prior_factor(prior, phi, inducing), jnp.asarray(temperature, phi.dtype)
    gram, pull = _absorb(prior, phi, factor, inducing, data, temperature)
    return _posterior(data, inducing, factor, gram, pull, temperature)


def _posterior(
    data: Data, inducing: Array, factor: Array, gram: Array, pull: Array, temperature: Array
) -> SparsePosterior:
    inner = _inner_factor(gram)
    both = matmul(inner, factor)
    alpha = matmul(transpose(both), matmul(inner, pull))
    return SparsePosterior(data, inducing, factor, gram, pull, both, alpha, temperature)


def predict(prior: GPPrior, phi: Particle, posterior: SparsePosterior, x: Inputs) -> Prediction:
    """Mean m(x) + k_u^T alpha and variance k(x, x) - |W k_u|^2 + |V W k_u|^2 + s^2."""
    cross = prior.covariance(phi, posterior.inducing, x)
    mean = prior.mean_function(phi, x) + matmul(posterior.alpha, cross)
    before = jnp.sum(matmul(posterior.prior_factor, cross) ** 2, axis=0)
    after = jnp.sum(matmul(posterior.posterior_factor, cross) ** 2, axis=0)
    variance = jnp.maximum(prior.variance(phi, x) - before, 0) + after
    std = jnp.sqrt(variance + prior.noise_variance(phi, x))
    return Prediction(jnp.ones(1, mean.dtype), mean[None], std[None])


@dataclass(frozen=True)
class SparseGP(GPPrior):
    """The family with M = `inducing` inputs of the samples' own in the samples' place.

    What `GPPrior` says of ln Z, this one says of its lower bound. Inducing inputs stay those of the first
    samples when more come (`extend`) and when one is left out.
    """

    inducing: int = COUNTS[-1]

    def chosen(self, phi: Array, data: Data) -> Inducing:
        """Of more than ROWS samples, evenly spread ones."""
        count = len(data.mask)
        if count > ROWS:  # all clients' padding comes last
            ranks = jnp.arange(ROWS) * (data.mask.sum() / ROWS)
            data = Data(*(part[ranks.astype(int)] for part in data))
        phi, data = jax.lax.stop_gradient((phi, jax.tree.map(jnp.asarray, data)))
        # Where there are fewer samples, one comes several times, which the jitter suffers.
        data = data._replace(x=jnp.where(data.mask[:, None], data.x, data.x[data.mask.argmax()]))
        return data.x[spread_out(self, phi, data, min(self.inducing, count))]

    def log_evidence(
        self, phi: Particle, data: Data, temperature: Scalar = 1.0, noise: Noise = ()
    ) -> Float[Array, ""]:
        return bound(self, phi, self.chosen(phi, data), data, temperature)

    def log_evidence_of(self, phi: Particle, posterior: SparsePosterior) -> Float[Array, ""]:  # type: ignore[override]
        data, temperature = posterior.data, posterior.temperature
        return _bound(self, phi, data, posterior.gram, posterior.pull, temperature)[-1]

    def posterior(  # type: ignore[override]
        self, phi: Particle, data: Data, temperature: Scalar = 1.0, key: Array | None = None
    ) -> SparsePosterior:
        return condition(self, phi, self.chosen(phi, data), data, temperature)

    def extend(self, phi: Particle, posterior: SparsePosterior, more: Data) -> SparsePosterior:  # type: ignore[override]
        """A A^T and its like are sums over samples."""
        data, inducing, factor, *old, _, _, temperature = posterior
        new = _absorb(self, phi, factor, inducing, more, temperature)
        gram, pull = map(jnp.add, old, new)
        return _posterior(joined(data, more), inducing, factor, gram, pull, temperature)

    def predict(self, phi: Particle, posterior: SparsePosterior, x: Inputs) -> Prediction:  # type: ignore[override]
        return predict(self, phi, posterior, x)

    def leave_one_out(self, phi: Particle, posterior: SparsePosterior) -> LeftOut:  # type: ignore[override]
        r"""As for a Gaussian process with kernel Q, whose $A_{jj}^{-1} s^2 / t = 1 - |V a_j|^2$; what Q
        lacks of k(x_j, x_j) is added to the variance, and taken from the bound as it is there."""
        data, inducing, factor, gram, pull, _, _, temperature = posterior
        std, inner = _noise(self, phi, data, temperature), _inner_factor(gram)
        projected = _projected(self, phi, factor, inducing, data, std)
        white = matmul(inner, projected)
        share = 1 - jnp.sum(white**2, axis=0)  # of s^2/t in the variance of what is left out
        residual = _residual(self, phi, data, std) - matmul(matmul(inner, pull), white)
        error, variance = residual * std / share, std**2 / share
        lacking = self.variance(phi, data.x) - std**2 * jnp.sum(projected**2, axis=0)
        lacking, noise = jnp.maximum(lacking, 0), self.noise_variance(phi, data.x)

        def log_normal(variance: Array) -> Array:
            density = -0.5 * (jnp.log(2 * jnp.pi * variance) + error**2 / variance)
            return jnp.where(data.mask, density, 0)

        missing = jnp.where(data.mask, 0.5 * lacking / std**2, 0)
        observed = variance + lacking + (1 - 1 / temperature) * noise
        return LeftOut(
            log_normal(observed),
            log_normal(variance) - missing + self._constants(noise, data.mask, temperature),
            jnp.where(data.mask, jax.scipy.stats.norm.cdf(error / jnp.sqrt(observed)), 0),
        )


def spread_out(prior: GPPrior, phi: Array, data: Data, count: int) -> Int[Array, " M"]:
    """Which samples' inputs leave least of the others unexplained: some at a time, each as likely to be
    drawn as its variance given those before is large (Chen et al. 2025, "Randomly pivoted Cholesky").

    A sample never comes twice, and padding only where there are fewer samples.
    """
    n, key = len(data.mask), jax.random.key(0)
    size = min(DRAWN, count)
    steps = -(-count // size)

    def step(number: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        chosen, left, factor = carry  # factor: [steps * size, n] with K ~ factor^T factor
        luck = jax.random.exponential(jax.random.fold_in(key, number), (n,), phi.dtype)
        taken = jnp.zeros(n, bool).at[chosen].set(True, mode="drop")
        waiting = jnp.where(data.mask, luck / jnp.maximum(left, 1e-30), 1e30)
        new = jax.lax.top_k(-jnp.where(taken, jnp.inf, waiting), size)[1]
        cross = jnp.where(data.mask, prior.covariance(phi, data.x[new], data.x), 0)
        rest = cross - matmul(transpose(factor[:, new]), factor)
        corner = rest[:, new] + jitter * jnp.eye(size, dtype=phi.dtype)
        more = matmul(factorise(corner), rest)
        start = number * size
        return (
            jax.lax.dynamic_update_slice_in_dim(chosen, new, start, 0),
            jnp.maximum(left - jnp.sum(more**2, axis=0), 0),
            jax.lax.dynamic_update_slice_in_dim(factor, more, start, 0),
        )

    left = jnp.where(data.mask, prior.variance(phi, data.x), 0)
    jitter = JITTER[phi.dtype.name] * left.max()
    nothing = jnp.full(steps * size, n, jnp.int32), left, jnp.zeros((steps * size, n), phi.dtype)
    return jax.lax.fori_loop(0, steps, step, nothing)[0][:count]


def suited(prior: P, particles: Array, data: Data, temperature: float, exact: int) -> P:
    """Return the family that serves a client of so many rows: itself up to `exact` of them, and beyond
    the one with inducing inputs, twice as many as long as the bound rises by GAIN nats a sample."""
    rows, inner = int(np.sum(data.mask)), prior
    while hasattr(inner, "base"):
        inner = inner.base
    if rows <= exact or inner.gaussian is None:
        return prior
    few = np.linspace(0, rows - 1, min(rows, ROWS)).astype(int)
    sample, count = Data(*(np.asarray(part)[few] for part in data)), LEAST
    for most in COUNTS:
        worth = _worth(sparse_family(prior, most), particles, sample, temperature) / len(few)
        while 2 * count <= min(most, len(few)) and worth[2 * count - 1] > worth[count - 1] + GAIN:
            count *= 2
        if count < most:
            break
    return sparse_family(prior, count)


def sparse_family(prior: P, count: int) -> P:
    """Return the family whose Gaussian processes have so many inducing inputs."""
    if hasattr(prior, "base"):
        return replace(prior, base=sparse_family(prior.base, count))  # type: ignore[type-var]
    return SparseGP(prior.features, prior.settings, count)  # type: ignore[attr-defined, return-value]


@partial(jax.jit, static_argnums=0)
def _worth(prior: Prior, particles: Array, data: Data, temperature: Scalar) -> Float[Array, " M"]:
    """The particles' mean bound with 1 to M inducing inputs; targets count as they are, not warped."""

    def one(prior: Any, phi: Array) -> Array:
        if hasattr(prior, "base"):
            return jax.vmap(partial(one, prior.base))(prior.parts(phi)[1]).mean(0)
        return bounds(prior, phi, prior.chosen(phi, data), data, temperature)

    return jnp.nanmean(jax.lax.map(partial(one, prior), particles), 0)


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
    return _factorised(a)


def _factorised(a: Array) -> Array:
    """Some columns of L and rows of W at a time: more products than in tiles, of which few are compiled."""
    count = len(a)
    if count <= 2 * AT_ONCE:
        return factorise(a)
    size = -(-count // AT_ONCE) * AT_ONCE
    missing = size - count
    a = jnp.pad(a, (0, missing)) + jnp.diag((jnp.arange(size) >= count).astype(a.dtype))

    def step(number: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        (low, w), start = carry, number * AT_ONCE
        here = partial(jax.lax.dynamic_slice_in_dim, start_index=start, slice_size=AT_ONCE)
        before = here(low)
        columns = here(a, axis=1) - matmul(low, transpose(before))
        corner = factorise(here(columns))
        below = (jnp.arange(size) >= start)[:, None]
        new = matmul(corner, here(jnp.eye(size, dtype=a.dtype)) - matmul(before, w))
        columns = jnp.where(below, matmul(columns, transpose(corner)), 0)
        return (
            jax.lax.dynamic_update_slice_in_dim(low, columns, start, 1),
            jax.lax.dynamic_update_slice_in_dim(w, new, start, 0),
        )

    start = jnp.zeros_like(a), jnp.zeros_like(a)
    return jax.lax.fori_loop(0, size // AT_ONCE, step, start)[1][:count, :count]


def _factor_forward(a: Array) -> tuple[Array, Array]:
    inverse = _factorised(a)
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
