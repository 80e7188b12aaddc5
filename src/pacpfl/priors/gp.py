"""Gaussian-process priors with deep means and deep kernels (paper, appendix "Background on GP").

    h ~ GP(m_phi, k_phi),   y = h(x) + N(0, s_phi(x)^2),
    k_phi(x, x') = exp(-|f_phi(x) - f_phi(x')|^2 / 2).

Means and kernels are sums of parts: `mlp`, `linear`, `constant`, `zero` for the mean; `deep`
(squared exponential on a network's output), `ard` (one length scale per feature) and `linear` for the
kernel. A linear mean is the line all clients share, a linear kernel how far a client's own line may be
from it: the sum of s_j^2 x_j x'_j over the features, and of s_0^2 for the intercept, is ridge
regression with a penalty of its own for each slope.

The noise is a constant (paper), or its logarithm depends on the features, by a line or a network:

    s_phi(x) = sigma_phi exp(g_phi(x)),   |g_phi| < 1.5.

A cloudy noon cannot be foretold as well as a clear evening; with one noise for both, intervals are too
wide for the one and too narrow for the other. Everything stays closed form, since the noise of
different samples is still independent and Gaussian.

With temperature t the likelihood is taken to the power t, which stays Gaussian:

    N(y | h, s^2)^t = c_t N(y | h, s^2 / t),   c_t = (2 pi s^2)^((1 - t) / 2) t^(-1/2),

so ln Z is closed form for every beta = t m, not only for beta = m.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pacpfl import tiles
from pacpfl.hyper import Block
from pacpfl.linalg import factorise, factorise_tiles, gaussian_log_density, inverse_factor
from pacpfl.priors.base import ClosedForm, LeftOut, Scalar
from pacpfl.priors.kernels import Embedded, similarity
from pacpfl.priors.networks import MLP
from pacpfl.tiles import matmul, transpose
from pacpfl.types import Data, Prediction

NOISE_WEIGHTS_STD = 0.5  # of the hyper-prior of the line or network that changes the noise
# |g| stays below it: far from the samples the noise is at most 4.5 times more or less than its level.
MOST_NOISE_CHANGE = 1.5


class GPPosterior(NamedTuple):
    """What one client keeps of one particle: P_phi conditioned on its data."""

    data: Data
    inverse_factor: Float[Array, "m m"]  # W with W (K + s^2/t I) W^T = I
    alpha: Float[Array, " m"]  # (K + s^2/t I)^-1 (y - m)
    temperature: Float[Array, ""]


@dataclass(frozen=True)
class GPPrior(ClosedForm):
    """The family. Frozen and hashable: it holds sizes and choices, never numbers that are learned.

    `noise` and `noise_spread` centre the hyper-prior of the noise: sigma = softplus(raw), with
    raw ~ N(softplus^-1(noise), noise_spread^2). It has its own spread because with the weights'
    (wide) one the noise collapses. `noise_model` says how it depends on the features.
    """

    features: int
    mean: tuple[str, ...] = ("mlp",)
    kernel: tuple[str, ...] = ("deep",)
    mean_widths: tuple[int, ...] = (32, 32)
    kernel_widths: tuple[int, ...] = (32, 32)
    kernel_outputs: int = 2
    learn_output_scale: bool = False
    noise: float = 0.4
    noise_spread: float = 0.1
    noise_model: str = "constant"
    noise_widths: tuple[int, ...] = (8,)

    components = 1
    matrices = 1

    @property
    def gaussian(self) -> GPPrior:  # type: ignore[override]
        return self

    @property
    def mean_network(self) -> MLP:
        return MLP((self.features, *self.mean_widths, 1))

    @property
    def kernel_network(self) -> MLP:
        return MLP((self.features, *self.kernel_widths, self.kernel_outputs))

    @property
    def noise_network(self) -> MLP:
        widths = {"linear": (), "mlp": self.noise_widths}[self.noise_model]
        return MLP((self.features, *widths, 1))

    @property
    def blocks(self) -> tuple[Block, ...]:
        means = {
            "zero": Block("mean.zero", 0),
            "constant": Block("mean.constant", 1),
            "linear": Block("mean.linear", self.features + 1),
            "mlp": Block("mean.mlp", self.mean_network.size),
        }
        kernels = {
            "deep": Block("kernel.deep", self.kernel_network.size),
            # Features are standardised: a length of sqrt(d) makes typical points neighbours.
            "ard": Block("kernel.ard", self.features, 0.5 * math.log(self.features), 1.0),
            "linear": Block("kernel.linear", self.features + 1, math.log(0.1), 1.0),
        }
        scales = (Block("kernel.scale", len(self.kernel), 0.0, 0.5),)
        changes: tuple[Block, ...] = ()
        if self.noise_model != "constant":
            size = self.noise_network.size
            changes = (Block("noise.change", size, 0.0, NOISE_WEIGHTS_STD),)
        noise = Block("noise", 1, _inverse_softplus(self.noise), self.noise_spread)
        return (
            *(means[part] for part in self.mean),
            *(kernels[part] for part in self.kernel),
            *(scales if self.learn_output_scale else ()),
            *changes,
            noise,
        )

    def split(self, phi: Float[Array, " size"]) -> dict[str, Array]:
        """The particle's blocks by name."""
        pieces, start = {}, 0
        for block in self.blocks:
            pieces[block.name] = phi[start : start + block.size]
            start += block.size
        return pieces

    def mean_function(
        self, phi: Float[Array, " size"], x: Float[Array, "m d"]
    ) -> Float[Array, " m"]:
        pieces = self.split(phi)
        total = jnp.zeros(x.shape[0], x.dtype)
        if "constant" in self.mean:
            total += pieces["mean.constant"][0]
        if "linear" in self.mean:
            slope = pieces["mean.linear"]
            total += x @ slope[:-1] + slope[-1]
        if "mlp" in self.mean:
            total += self.mean_network(pieces["mean.mlp"], x)[:, 0]
        return total

    def covariance(
        self,
        phi: Float[Array, " size"],
        x: Float[Array, "m d"],
        other: Float[Array, "t d"] | None = None,
    ) -> Float[Array, "m t"]:
        """k_phi between the rows of x and of `other` (x itself where it is not given)."""
        embedded = self._embedded(phi, x)
        return similarity(embedded, embedded if other is None else self._embedded(phi, other))

    def variance(self, phi: Float[Array, " size"], x: Float[Array, "t d"]) -> Float[Array, " t"]:
        """k_phi(x, x): 1 for each squared exponential part, |embedding|^2 for the linear one."""
        pieces = self.split(phi)
        total = jnp.zeros(x.shape[0], x.dtype)
        for index, part in enumerate(self.kernel):
            value = jnp.ones((), x.dtype)
            if part == "linear":
                value = jnp.sum(self._embed(part, pieces, x) ** 2, axis=-1)
            if self.learn_output_scale:
                value *= jnp.exp(2 * pieces["kernel.scale"][index])
            total += value
        return total

    def noise_variance(
        self, phi: Float[Array, " size"], x: Float[Array, "m d"]
    ) -> Float[Array, " m"] | Float[Array, ""]:
        """s^2 at the rows of x; one number where it is the same everywhere."""
        level = jax.nn.softplus(phi[-1]) ** 2
        if self.noise_model == "constant":
            return level
        change = self.noise_network(self.split(phi)["noise.change"], x)[:, 0]
        return level * jnp.exp(2 * MOST_NOISE_CHANGE * jnp.tanh(change / MOST_NOISE_CHANGE))

    def noise_std(self, phi: Float[Array, " size"], x: Float[Array, "m d"]) -> Float[Array, " m"]:
        return jnp.broadcast_to(jnp.sqrt(self.noise_variance(phi, x)), x.shape[:1])

    def least_noise(self, phi: Float[Array, " size"]) -> Float[Array, ""]:
        """Below every standard deviation of the noise, whatever x is."""
        most = 0.0 if self.noise_model == "constant" else MOST_NOISE_CHANGE
        return jax.nn.softplus(phi[-1]) * math.exp(-most)

    def _embed(self, part: str, pieces: dict[str, Array], x: Array) -> Array:
        if part == "deep":
            return self.kernel_network(pieces["kernel.deep"], x)
        if part == "linear":
            scales = jnp.exp(pieces["kernel.linear"])
            return jnp.concatenate([x, jnp.ones_like(x[:, :1])], axis=1) * scales
        return x * jnp.exp(-pieces["kernel.ard"])

    def _embedded(self, phi: Array, x: Array) -> list[Embedded]:
        """Where the kernel's parts see the rows of x."""
        pieces = self.split(phi)
        scales = [
            jnp.exp(2 * pieces["kernel.scale"][index]) if self.learn_output_scale else None
            for index in range(len(self.kernel))
        ]
        return [
            Embedded(part, scale, self._embed(part, pieces, x))
            for part, scale in zip(self.kernel, scales, strict=True)
        ]

    def log_evidence(
        self,
        phi: Float[Array, " size"],
        data: Data,
        temperature: Scalar = 1.0,
        noise: tuple[()] = (),
    ) -> Float[Array, ""]:
        """ln Z of the samples where the mask is true, with the likelihood to the power t:

        -1/2 r^T A^-1 r - 1/2 ln|A| - m/2 ln 2pi + m ln c_t,   A = K + s^2/t I,  r = y - m(X).
        """
        variance = self.noise_variance(phi, data.x)
        residual, block = self._masked(phi, data, variance / temperature)
        density = gaussian_log_density(tiles.build(len(residual), block), residual)
        return density + self._constant(variance, data.mask, temperature)

    def log_evidence_of(
        self, phi: Float[Array, " size"], posterior: GPPosterior
    ) -> Float[Array, ""]:
        data, inverse = posterior.data, posterior.inverse_factor
        residual = jnp.where(data.mask, data.y - self.mean_function(phi, data.x), 0)
        density = -0.5 * residual @ posterior.alpha + jnp.log(jnp.diagonal(inverse)).sum()
        noise = self.noise_variance(phi, data.x)
        return density + self._constant(noise, data.mask, posterior.temperature)

    def _constant(self, noise: Array, mask: Array, temperature: Scalar) -> Array:
        """Sum over the samples of ln c_t - 1/2 ln 2pi."""
        normal = jnp.where(mask, 0.5 * math.log(2 * math.pi), 0)
        return (self._constants(noise, mask, temperature) - normal).sum()

    def _constants(self, noise: Array, mask: Array, temperature: Scalar) -> Array:
        """ln c_t of each sample."""
        power = 0.5 * (1 - temperature) * jnp.log(2 * jnp.pi * noise) - 0.5 * jnp.log(temperature)
        return jnp.where(mask, power, 0)

    def _masked(
        self, phi: Array, data: Data, noise: Array
    ) -> tuple[Array, Callable[[slice, slice], Array]]:
        """Residual, and any block of the covariance, in which padding is an independent N(0, 1)
        observed at 0. Its determinant is 1 and its residual 0, so it adds exactly nothing."""
        mask, embedded = data.mask, self._embedded(phi, data.x)
        residual = jnp.where(mask, data.y - self.mean_function(phi, data.x), 0)
        variance = jnp.where(mask, noise, 1.0).astype(residual.dtype)

        def block(rows: slice, columns: slice) -> Array:
            at_rows = [part._replace(x=part.x[rows]) for part in embedded]
            at_columns = [part._replace(x=part.x[columns]) for part in embedded]
            both = mask[rows, None] & mask[None, columns]
            value = jnp.where(both, similarity(at_rows, at_columns), 0)
            return value + jnp.diag(variance[rows]) if rows == columns else value

        return residual, block

    def posterior(
        self,
        phi: Float[Array, " size"],
        data: Data,
        temperature: Scalar = 1.0,
        key: Array | None = None,
    ) -> GPPosterior:
        temperature = jnp.asarray(temperature, phi.dtype)
        noise = self.noise_variance(phi, data.x) / temperature
        residual, block = self._masked(phi, data, noise)
        low = factorise_tiles(tiles.build(len(residual), block)).low
        inverse = tiles.join(inverse_factor(low))
        alpha = matmul(transpose(inverse), matmul(inverse, residual))
        return GPPosterior(data, inverse, alpha, temperature)

    def extend(self, phi: Float[Array, " size"], posterior: GPPosterior, more: Data) -> GPPosterior:
        """The posterior with more samples, from the factor that is there: O(m^2) per sample.

        W grows by rows: with B = K(new, old) W^T and V V^T = K(new, new) + s^2/t I - B B^T,
        the new rows of W are [-V^-1 B W, V^-1].
        """
        old = posterior.data
        noise = self.noise_variance(phi, more.x) / posterior.temperature
        cross = jnp.where(
            more.mask[:, None] & old.mask[None, :], self.covariance(phi, more.x, old.x), 0
        )
        everything = slice(len(more.y))
        corner = self._masked(phi, more, noise)[1](everything, everything)
        b = matmul(cross, transpose(posterior.inverse_factor))
        v = factorise(corner - matmul(b, transpose(b))).inverse
        top = jnp.pad(posterior.inverse_factor, ((0, 0), (0, v.shape[0])))
        bottom = jnp.concatenate([-matmul(v, matmul(b, posterior.inverse_factor)), v], -1)
        inverse = jnp.concatenate([top, bottom])
        data = Data(*(jnp.concatenate([a, b]) for a, b in zip(old, more, strict=True)))
        residual = jnp.where(data.mask, data.y - self.mean_function(phi, data.x), 0)
        alpha = matmul(transpose(inverse), matmul(inverse, residual))
        return GPPosterior(data, inverse, alpha, posterior.temperature)

    def predict(
        self, phi: Float[Array, " size"], posterior: GPPosterior, x: Float[Array, "t d"]
    ) -> Prediction:
        """mu = m(x) + k*^T alpha,   var = k(x,x) - |W k*|^2 + s^2."""
        mean, variance = self.latent(phi, posterior, x)
        std = jnp.sqrt(variance + self.noise_variance(phi, x))
        return Prediction(jnp.ones(1, mean.dtype), mean[None], std[None])

    def latent(
        self, phi: Float[Array, " size"], posterior: GPPosterior, x: Float[Array, "t d"]
    ) -> tuple[Float[Array, " t"], Float[Array, " t"]]:
        """Mean and variance of h(x), without the observation noise."""
        cross = jnp.where(
            posterior.data.mask[:, None], self.covariance(phi, posterior.data.x, x), 0
        )
        mean = self.mean_function(phi, x) + matmul(posterior.alpha, cross)
        explained = jnp.sum(matmul(posterior.inverse_factor, cross) ** 2, axis=0)
        return mean, jnp.maximum(self.variance(phi, x) - explained, 0)

    def leave_one_out(self, phi: Float[Array, " size"], posterior: GPPosterior) -> LeftOut:
        """Closed form: given all others, y_j + N(0, (1/t - 1) s_j^2) has mean y_j - alpha_j / v_j and
        variance 1 / v_j with v_j = (A^-1)_jj (Rasmussen & Williams 2006, section 5.4.2)."""
        data, temperature = posterior.data, posterior.temperature
        variance = 1 / jnp.sum(posterior.inverse_factor**2, axis=0)
        error = posterior.alpha * variance
        noise = self.noise_variance(phi, data.x)

        def log_normal(variance: Array) -> Array:
            density = -0.5 * (jnp.log(2 * jnp.pi * variance) + error**2 / variance)
            return jnp.where(data.mask, density, 0)

        return LeftOut(
            log_normal(variance + (1 - 1 / temperature) * noise),
            log_normal(variance) + self._constants(noise, data.mask, temperature),
        )

    def responsibilities(
        self, phi: Float[Array, " size"], posterior: GPPosterior
    ) -> Float[Array, " 1"]:
        return jnp.ones(1, phi.dtype)

    def fingerprint(self, phi: Float[Array, " size"], x: Float[Array, "r d"]) -> Float[Array, " f"]:
        """Prior mean at the reference inputs, prior correlation of neighbours, and the noise.

        Divided by the square root of their number, so that the distance of two fingerprints is
        a root mean square difference in units of the (standardised) target.
        """
        mean = self.mean_function(phi, x)
        kernel = self.covariance(phi, x)
        pairs = jnp.concatenate([jnp.diagonal(kernel, offset) for offset in (1, 2)])
        noise = jnp.atleast_1d(jnp.sqrt(self.noise_variance(phi, x)))
        parts = (mean, pairs, noise)
        return jnp.concatenate([part / math.sqrt(part.size) for part in parts])


def _inverse_softplus(value: float) -> float:
    return value + math.log(-math.expm1(-value))
