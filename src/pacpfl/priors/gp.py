r"""Gaussian-process priors with deep means and deep kernels (paper, appendix "Background on GP").

$$h \sim GP(m_\phi, k_\phi), \qquad y = h(x) + N(0, s_\phi(x)^2).$$

Means and kernels are sums of parts, which the tables `MEANS` and `priors.kernels.KERNELS` list. A linear
mean is the line all clients share, a linear kernel how far a client's own line may be from it.

The noise is a constant (paper), or its logarithm depends on the features, by a line or a network,
because a cloudy noon cannot be foretold as well as a clear evening:

$$s_\phi(x) = \sigma_\phi \exp(g_\phi(x)), \qquad |g_\phi| < 1.5.$$

With temperature t the likelihood is taken to the power t, which stays Gaussian, so that ln Z is closed
form for every beta = t m, not only for beta = m:

$$N(y | h, s^2)^t = c_t N(y | h, s^2 / t), \qquad c_t = (2 \pi s^2)^{(1 - t) / 2} t^{-1/2}.$$
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from pacpfl import arrays
from pacpfl.hyper import Block
from pacpfl.priors.base import LeftOut, Prior, joined
from pacpfl.priors.kernels import KERNELS, OURS, Kernel
from pacpfl.priors.networks import MLP
from pacpfl.settings import Settings, key
from pacpfl.types import Data, Prediction

if TYPE_CHECKING:
    from jaxtyping import Array, Float

    from pacpfl.priors.base import Inputs, Noise, Particle, Scalar

NOISE_WEIGHTS_STD = 0.5  # of the hyper-prior of the line or network that changes the noise
# |g| stays below it: far from the samples the noise is at most 4.5 times more or less than its level.
MOST_NOISE_CHANGE = 1.5


class Mean(NamedTuple):
    """How many parameters a mean function has, and its values from parameters and inputs."""

    size: Callable[[int, GPSettings], int]
    value: Callable[[Array, Array, GPSettings], Array]


def _network(features: int, settings: GPSettings) -> MLP:
    return MLP((features, *settings.mean_widths, 1))


MEANS = {
    "zero": Mean(lambda features, s: 0, lambda phi, x, s: arrays.of(phi, x).zeros((), x.dtype)),
    "constant": Mean(lambda features, s: 1, lambda phi, x, s: phi[0]),
    "linear": Mean(lambda features, s: features + 1, lambda phi, x, s: x @ phi[:-1] + phi[-1]),
    "mlp": Mean(
        lambda features, s: _network(features, s).size,
        lambda phi, x, s: _network(x.shape[1], s)(phi, x)[:, 0],
    ),
}


@dataclass(frozen=True)
class GPSettings(Settings):
    """What one Gaussian process is, and how many are mixed and warped into a particle.

    Of the noise, sigma = softplus(raw) with raw ~ N(softplus^-1(noise), noise_spread^2): a spread
    of its own, because with the weights' (wide) one the noise collapses.
    """

    mean: str = key(
        "mlp",
        "mean function: zero, constant, linear, mlp, or a sum such as linear+mlp",
        parts=MEANS,
    )
    mean_widths: tuple[int, ...] = key(
        (32, 32), "neurons of the mean network's hidden layers", least=1
    )
    kernel: str = key(
        "deep",
        f"kernel: {', '.join(KERNELS)}, or a sum such as deep+linear",
        parts=KERNELS,
    )
    kernel_widths: tuple[int, ...] = key(
        (32, 32), "neurons of the kernel network's hidden layers", least=1
    )
    kernel_outputs: int = key(2, "outputs of the kernel network", least=1)
    output_scale: str = key("fixed", "fixed at 1 (paper) or learned", choices=("fixed", "learned"))
    members: int = key(
        1, "K: base priors mixed into one; more than 1 for clients of several kinds", least=1
    )
    noise: float = key(0.4, "centre of the hyper-prior of the noise std", above=0)
    noise_spread: float = key(0.1, "std of that hyper-prior", above=0)
    noise_model: str = key(
        "constant",
        "how the noise depends on the features: constant, or its logarithm linear or by an mlp",
        choices=("constant", "linear", "mlp"),
    )
    noise_widths: tuple[int, ...] = key(
        (8,), "neurons of the noise network's hidden layers", least=1
    )
    warp: str = key(
        "none",
        "what is Gaussian: the target (none), or a learned warp of it, for skewed noise",
        choices=("none", "sinh-arcsinh"),
    )


class GPPosterior(NamedTuple):
    """What one client keeps of one particle: P_phi conditioned on its data."""

    data: Data
    inverse_factor: Float[Array, "m m"]  # W with W (K + s^2/t I) W^T = I
    alpha: Float[Array, " m"]  # (K + s^2/t I)^-1 (y - m)
    temperature: Float[Array, ""]


@dataclass(frozen=True)
class GPPrior(Prior):
    """The family. Frozen and hashable: it holds sizes and choices, never numbers that are learned.

    Of the settings, `members` and `warp` are left to the families around this one.

    Parameters
    ----------
    features
        Number of features d.
    settings
        Mean, kernel and noise.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> from pacpfl.types import Data
    >>> prior = GPPrior(1, GPSettings(mean="constant", kernel="ard+linear"))
    >>> [block.name for block in prior.blocks]
    ['mean.constant', 'kernel.ard', 'kernel.linear', 'noise']
    >>> x = jnp.linspace(-1, 1, 5)[:, None]
    >>> data = Data(x, x[:, 0] ** 2, jnp.ones(5, bool))
    >>> phi = jnp.zeros(prior.size)
    >>> posterior = prior.posterior(phi, data)
    >>> bool(jnp.isclose(prior.log_evidence(phi, data), prior.log_evidence_of(phi, posterior)))
    True
    >>> prior.predict(phi, posterior, jnp.zeros((3, 1))).means.shape
    (1, 3)
    >>> prior.extend(phi, posterior, data).alpha.shape
    (10,)
    """

    features: int
    settings: GPSettings = GPSettings()

    @property
    def gaussian(self) -> GPPrior:
        return self

    @property
    def plain(self) -> bool:
        return OURS.issuperset(self.settings.kernel.split("+"))

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The parts of the kernel."""
        return tuple(KERNELS[name] for name in self.settings.kernel.split("+"))

    @property
    def noise_network(self) -> MLP:
        widths = {"linear": (), "mlp": self.settings.noise_widths}[self.settings.noise_model]
        return MLP((self.features, *widths, 1))

    @property
    def blocks(self) -> tuple[Block, ...]:
        s, blocks = self.settings, self._mean_blocks
        for kernel in self.kernels:
            blocks += kernel.blocks(self.features, s)
        if s.output_scale == "learned":
            blocks.append(Block("kernel.scale", len(self.kernels), 0.0, 0.5))
        if s.noise_model != "constant":
            blocks.append(Block("noise.change", self.noise_network.size, 0.0, NOISE_WEIGHTS_STD))
        blocks.append(Block("noise", 1, _inverse_softplus(s.noise), s.noise_spread))
        return tuple(blocks)

    @property
    def _mean_blocks(self) -> list[Block]:
        return [
            Block(f"mean.{name}", MEANS[name].size(self.features, self.settings))
            for name in self.settings.mean.split("+")
        ]

    def split(self, phi: Particle) -> dict[str, Array]:
        """The particle's blocks by name."""
        blocks = self.blocks
        ends = accumulate(block.size for block in blocks)
        return {b.name: phi[end - b.size : end] for b, end in zip(blocks, ends, strict=True)}

    def mean_function(self, phi: Particle, x: Float[Array, "m d"]) -> Float[Array, " m"]:
        """m_phi at the rows of x: the sum of its parts."""
        pieces = self.split(phi)
        total = arrays.of(phi, x).zeros(x.shape[0], x.dtype)
        for name, mean in MEANS.items():
            if f"mean.{name}" in pieces:
                total = total + mean.value(pieces[f"mean.{name}"], x, self.settings)
        return total

    def covariance(
        self, phi: Particle, x: Float[Array, "m d"], other: Float[Array, "t d"] | None = None
    ) -> Float[Array, "m t"]:
        """k_phi between the rows of x and of `other` (x itself where it is not given)."""
        places = self._embedded(phi, x)
        return self._similarity(
            phi, places, places if other is None else self._embedded(phi, other)
        )

    def variance(self, phi: Particle, x: Inputs) -> Float[Array, " t"]:
        """k_phi(x, x) at the rows of x."""
        places = self._embedded(phi, x)
        each = [k.variance(at) for k, at in zip(self.kernels, places, strict=True)]
        return arrays.of(phi, x).broadcast_to(self._sum(phi, each), x.shape[:1])

    def noise_variance(
        self, phi: Particle, x: Float[Array, "m d"]
    ) -> Float[Array, " m"] | Float[Array, ""]:
        """s^2 at the rows of x; one number where it is the same everywhere."""
        xp = arrays.of(phi, x)
        level = xp.softplus(phi[-1]) ** 2
        if self.settings.noise_model == "constant":
            return level
        change = self.noise_network(self.split(phi)["noise.change"], x)[:, 0]
        return level * xp.exp(2 * MOST_NOISE_CHANGE * xp.tanh(change / MOST_NOISE_CHANGE))

    def noise_std(self, phi: Particle, x: Float[Array, "m d"]) -> Float[Array, " m"]:
        """s_phi at the rows of x."""
        xp = arrays.of(phi, x)
        return xp.broadcast_to(xp.sqrt(self.noise_variance(phi, x)), x.shape[:1])

    def least_noise(self, phi: Particle) -> Float[Array, ""]:
        """Below every standard deviation of the noise, whatever x is."""
        most = 0.0 if self.settings.noise_model == "constant" else MOST_NOISE_CHANGE
        return arrays.of(phi).softplus(phi[-1]) * math.exp(-most)

    def _embedded(self, phi: Array, x: Array) -> list[Array]:
        """Where each of the kernel's parts sees the rows of x."""
        places, start = [], sum(block.size for block in self._mean_blocks)
        for kernel in self.kernels:
            end = start + sum(b.size for b in kernel.blocks(self.features, self.settings))
            places.append(kernel.embed(phi[start:end], x, self.settings))
            start = end
        return places

    def _similarity(self, phi: Array, a: list[Array], b: list[Array]) -> Float[Array, "m t"]:
        """The kernel between two sets of embedded inputs."""
        parts = zip(self.kernels, a, b, strict=True)
        return self._sum(phi, [kernel.similarity(one, other) for kernel, one, other in parts])

    def _sum(self, phi: Array, parts: list[Array]) -> Array:
        """The values of the kernel's parts together, each times its scale."""
        if self.settings.output_scale == "learned":
            learned, xp = self.split(phi)["kernel.scale"], arrays.of(phi)
            parts = [xp.exp(2 * learned[j]) * value for j, value in enumerate(parts)]
        return reduce(operator.add, parts)

    def log_evidence(
        self, phi: Particle, data: Data, temperature: Scalar = 1.0, noise: Noise = ()
    ) -> Float[Array, ""]:
        r"""Return ln Z of the samples where the mask is true, with the likelihood to the power t:

        $$-\tfrac12 r^T A^{-1} r - \tfrac12 \ln|A| - \tfrac m2 \ln 2\pi + \sum_j \ln c_t(x_j),$$

        where A = K + diag(s^2 / t) and r = y - m(X).
        """
        variance = self.noise_variance(phi, data.x)
        residual, block = self._masked(phi, data, variance / temperature)
        density = arrays.of(phi, residual).log_density(len(residual), block, residual)
        return density + self._constant(variance, data.mask, temperature)

    def log_evidence_of(self, phi: Particle, posterior: GPPosterior) -> Float[Array, ""]:
        r"""Return ln Z from W of `posterior`, as $\ln|A| = -2 \sum_j \ln W_{jj}$."""
        data, inverse = posterior.data, posterior.inverse_factor
        xp = arrays.of(phi, *data)
        residual = xp.where(data.mask, data.y - self.mean_function(phi, data.x), 0)
        density = -0.5 * residual @ posterior.alpha + xp.log(xp.diagonal(inverse)).sum()
        noise = self.noise_variance(phi, data.x)
        return density + self._constant(noise, data.mask, posterior.temperature)

    def _constant(self, noise: Array, mask: Array, temperature: Scalar) -> Array:
        """Sum over the samples of ln c_t - 1/2 ln 2pi."""
        normal = arrays.of(noise, mask).where(mask, 0.5 * math.log(2 * math.pi), 0)
        return (self._constants(noise, mask, temperature) - normal).sum()

    def _constants(self, noise: Array, mask: Array, temperature: Scalar) -> Array:
        """ln c_t of each sample."""
        xp = arrays.of(noise, mask, temperature)
        power = 0.5 * (1 - temperature) * xp.log(2 * math.pi * noise) - 0.5 * xp.log(temperature)
        return xp.where(mask, power, 0)

    def _masked(
        self, phi: Array, data: Data, noise: Array
    ) -> tuple[Array, Callable[[slice, slice], Array]]:
        """Residual, and any block of the covariance, in which padding is an independent N(0, 1)
        observed at 0. Its determinant is 1 and its residual 0, so it adds exactly nothing."""
        mask, places, xp = data.mask, self._embedded(phi, data.x), arrays.of(phi, *data)
        residual = xp.where(mask, data.y - self.mean_function(phi, data.x), 0)
        variance = xp.where(mask, noise, 1.0).astype(residual.dtype)

        def block(rows: slice, columns: slice) -> Array:
            both = mask[rows, None] & mask[None, columns]
            at_rows, at_columns = ([at[part] for at in places] for part in (rows, columns))
            value = xp.where(both, self._similarity(phi, at_rows, at_columns), 0)
            return value + xp.diag(variance[rows]) if rows == columns else value

        return residual, block

    def posterior(
        self, phi: Particle, data: Data, temperature: Scalar = 1.0, key: Array | None = None
    ) -> GPPosterior:
        r"""Return W with $W A W^T = I$ and $\alpha = A^{-1} (y - m(X))$."""
        xp = arrays.of(phi, *data, temperature)
        power = xp.asarray(temperature, phi.dtype)
        noise = self.noise_variance(phi, data.x) / power
        residual, block = self._masked(phi, data, noise)
        inverse = xp.inverse_factor(len(residual), block)
        alpha = xp.matmul(xp.transpose(inverse), xp.matmul(inverse, residual))
        return GPPosterior(data, inverse, alpha, power)

    def extend(self, phi: Particle, posterior: GPPosterior, more: Data) -> GPPosterior:
        r"""Return the posterior with more samples, from the factor that is there: O(m^2) per sample.

        W grows by rows: with $B = K(new, old) W^T$ and $V V^T = K(new, new) + s^2/t I - B B^T$,
        the new rows of W are $[-V^{-1} B W, V^{-1}]$.
        """
        old, xp = posterior.data, arrays.of(phi, *posterior.data, *more)
        noise = self.noise_variance(phi, more.x) / posterior.temperature
        cross = xp.where(
            more.mask[:, None] & old.mask[None, :], self.covariance(phi, more.x, old.x), 0
        )
        everything = slice(len(more.y))
        corner = self._masked(phi, more, noise)[1](everything, everything)
        b = xp.matmul(cross, xp.transpose(posterior.inverse_factor))
        v = xp.factorise(corner - xp.matmul(b, xp.transpose(b)))
        top = xp.pad(posterior.inverse_factor, ((0, 0), (0, v.shape[0])))
        bottom = xp.concatenate([-xp.matmul(v, xp.matmul(b, posterior.inverse_factor)), v], -1)
        inverse = xp.concatenate([top, bottom])
        data = joined(old, more)
        residual = xp.where(data.mask, data.y - self.mean_function(phi, data.x), 0)
        alpha = xp.matmul(xp.transpose(inverse), xp.matmul(inverse, residual))
        return GPPosterior(data, inverse, alpha, posterior.temperature)

    def predict(self, phi: Particle, posterior: GPPosterior, x: Inputs) -> Prediction:
        r"""Return $N(m(x) + k_*^T \alpha,\ k(x, x) - |W k_*|^2 + s(x)^2)$ at the rows of x."""
        data, xp = posterior.data, arrays.of(phi, *posterior.data, x)
        cross = xp.where(data.mask[:, None], self.covariance(phi, data.x, x), 0)
        mean = self.mean_function(phi, x) + xp.matmul(posterior.alpha, cross)
        explained = xp.sum(xp.matmul(posterior.inverse_factor, cross) ** 2, axis=0)
        latent = xp.maximum(self.variance(phi, x) - explained, 0)
        std = xp.sqrt(latent + self.noise_variance(phi, x))
        return Prediction(xp.ones(1, mean.dtype), mean[None], std[None])

    def leave_one_out(self, phi: Particle, posterior: GPPosterior) -> LeftOut:
        r"""Return what every sample is to all others, in closed form.

        Given the others, $y_j + N(0, (1/t - 1) s_j^2)$ has mean $y_j - \alpha_j / v_j$ and variance
        $1 / v_j$ with $v_j = (A^{-1})_{jj}$ (Rasmussen & Williams 2006, section 5.4.2).
        """
        data, temperature = posterior.data, posterior.temperature
        xp = arrays.of(phi, *data)
        variance = 1 / xp.sum(posterior.inverse_factor**2, axis=0)
        error = posterior.alpha * variance
        noise = self.noise_variance(phi, data.x)
        observed = variance + (1 - 1 / temperature) * noise

        def log_normal(variance: Array) -> Array:
            density = -0.5 * (xp.log(2 * math.pi * variance) + error**2 / variance)
            return xp.where(data.mask, density, 0)

        return LeftOut(
            log_normal(observed),
            log_normal(variance) + self._constants(noise, data.mask, temperature),
            xp.where(data.mask, xp.ndtr(error / xp.sqrt(observed)), 0),
        )

    def fingerprint(self, phi: Particle, x: Float[Array, "r d"]) -> Float[Array, " f"]:
        """Prior mean at the reference inputs, prior correlation of neighbours, and the noise, so that
        distances are root mean square differences in units of the (standardised) target."""
        xp, mean = arrays.of(phi, x), self.mean_function(phi, x)
        kernel = self.covariance(phi, x)
        pairs = xp.concatenate([xp.diagonal(kernel, offset) for offset in (1, 2)])
        noise = xp.atleast_1d(xp.sqrt(self.noise_variance(phi, x)))
        parts = (mean, pairs, noise)
        return xp.concatenate([part / math.sqrt(part.size) for part in parts])


def _inverse_softplus(value: float) -> float:
    return value + math.log(-math.expm1(-value))
