"""Bayesian neural networks as priors (paper, appendix "Background on BNN").

A particle phi = (mu, ln sigma) is a Gaussian over the weights of a network,

    w = mu + sigma * epsilon,   epsilon ~ N(0, I),

with one sigma for each weight or one for each layer. The evidence has no closed form. It is estimated
from L draws (`objective="evidence"`, equation eq:LMLBNN of the paper)

    ln Z(P_phi, S) ~ ln 1/L sum_l p(S | w_l)^t,

whose exponential is unbiased, or bounded from below by Jensen's inequality (`objective="elbo"`)

    ln Z(P_phi, S) >= E[t ln p(S | w)] ~ t/L sum_l ln p(S | w_l).

For L = 1 the two are the same, and neither is ln Z: where clients differ, both are highest for a prior
whose clients do not (sigma falls to 0), because one drawn network seldom explains a client. With few
weights that adapt, Laplace's approximation (`objective="laplace"`) is nearly ln Z itself; the layers
before those are at their means.

`noise="shared"`: in one round all clients try the same L networks (the server sends a seed); each
client's estimate has the same distribution, but their errors no longer average out.

Thousands of weights drawn from a wide hyper-prior make the activations explode, and a narrow one
shrinks the network to zero. So means start where training of a network would (He), and sigma at
`initial_std`, where its hyper-prior is centred; that of the means stays wide.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, UInt32

from pacpfl.errors import InputError
from pacpfl.hyper import Block, HyperPrior
from pacpfl.likelihoods import Likelihood, log_likelihood
from pacpfl.priors.base import Draws, LeftOut, Prior, joined
from pacpfl.priors.inference import (
    BNNPosterior,
    Problem,
    infer,
    laplace_evidence,
    network_outputs,
)
from pacpfl.priors.networks import Network, layer_sizes
from pacpfl.priors.settings import BNNSettings, Inference
from pacpfl.types import Data, Mixture, Probabilities

if TYPE_CHECKING:
    from pacpfl.priors.base import Inputs, Noise, Particle, Scalar

MOST_LOCAL = 1000  # weights whose precision is a matrix for each client and particle


@dataclass(frozen=True)
class BNNPrior(Prior):
    """The family. Frozen and hashable: it holds sizes and choices, never numbers that are learned."""

    network: Network
    likelihood: Likelihood
    settings: BNNSettings = BNNSettings()
    inference: Inference = Inference()

    @property
    def matrices(self) -> int:
        return int(self.is_local)

    def __post_init__(self) -> None:
        if not self.is_local:
            return
        adapting = self.network.size - self.inference.fixed(self.network)
        if adapting > MOST_LOCAL:
            raise InputError(
                f'bnn.objective = "laplace" is for at most {MOST_LOCAL} weights that adapt, and here '
                f'{adapting} do; choose posterior.adapt = "last", fewer neurons, or another objective.'
            )

    @property
    def is_local(self) -> bool:
        """Whether the evidence is Laplace's approximation, which draws nothing."""
        return self.settings.objective == "laplace"

    @property
    def together(self) -> bool:
        return self.is_local

    @property
    def bayesian(self) -> BNNPrior:
        return self

    @property
    def components(self) -> int:
        return self.inference.networks

    @property
    def draws(self) -> Draws:
        if self.is_local:
            return ""
        return "shared" if self.settings.noise == "shared" else "own"

    @property
    def coupling(self) -> str:
        if self.is_local:
            return "Laplace's approximation of the evidence weighs all samples together"
        if self.settings.objective == "elbo" or self.settings.draws == 1:
            return ""
        return (
            "the evidence from several draws weighs whole networks by all samples together (with "
            "bnn.objective = elbo, or bnn.draws = 1, it does not)"
        )

    @property
    def blocks(self) -> tuple[Block, ...]:
        s, weights = self.settings, self.network.size
        spreads = weights if s.std_per == "weight" else len(layer_sizes(self.network))
        log_std = Block("log_std", spreads, math.log(s.initial_std), s.std_spread)
        return Block("means", weights), log_std

    def moments(self, phi: Particle) -> tuple[Float[Array, " w"], Float[Array, " w"]]:
        """mu and sigma of every weight."""
        means, log_std = jnp.split(phi, [self.network.size])
        std = jnp.exp(log_std)
        if self.settings.std_per == "layer":
            layers = np.array(layer_sizes(self.network))
            std = jnp.repeat(std, layers, total_repeat_length=means.size)
        if self.is_local:
            std = std.at[: self.inference.fixed(self.network)].set(0)
        return means, std

    def start(
        self, key: Array, around: HyperPrior, count: int, spread: float = 1.0
    ) -> Float[Array, "count size"]:
        """Means where training of a network starts, whatever the spread."""
        means = jax.vmap(self.network.initial)(jax.random.split(key, count))
        spreads = self.size - self.network.size
        log_std = jnp.full((count, spreads), math.log(self.settings.initial_std))
        return jnp.concatenate([means, log_std], axis=1).astype(around.means.dtype)

    def draw(self, key: Array, dtype: jnp.dtype | type) -> Noise:
        """epsilon_1, ..., epsilon_L."""
        return () if self.is_local else normal(key, (self.settings.draws, self.network.size), dtype)

    def log_evidence(
        self, phi: Particle, data: Data, temperature: Scalar = 1.0, noise: Noise = ()
    ) -> Float[Array, ""]:
        if self.is_local:
            power = jnp.asarray(temperature, phi.dtype)
            return laplace_evidence(self._problem(phi), data, power)
        assert not isinstance(noise, tuple), (
            "the evidence is estimated from noise: give what `draw` gives"
        )
        means, std = self.moments(phi)

        def fit(epsilon: Array) -> Array:
            outputs = self.network(means + std * epsilon, data.x)
            return log_likelihood(self.likelihood, outputs, data)

        each = jax.vmap(fit)(noise)
        if self.settings.objective == "elbo":
            return temperature * each.mean()
        return average(temperature * each)

    def _problem(self, phi: Particle) -> Problem:
        return Problem(self.network, self.likelihood, self.inference, *self.moments(phi))

    def posterior(
        self, phi: Particle, data: Data, temperature: Scalar = 1.0, key: Array | None = None
    ) -> BNNPosterior:
        key = jax.random.key(0) if self.is_local else key  # the same places for all who integrate
        assert key is not None, "the posterior is drawn: give a key"
        power = jnp.asarray(self.inference.temperature * temperature, phi.dtype)
        return infer(self._problem(phi), data, power, key)

    def extend(self, phi: Particle, posterior: BNNPosterior, more: Data) -> BNNPosterior:
        """The posterior of both samples together; inference goes on from where it stands."""
        data, key = joined(posterior.data, more), jax.random.wrap_key_data(posterior.seed)
        return infer(self._problem(phi), data, posterior.temperature, key, posterior.reached)

    def log_evidence_of(self, phi: Particle, posterior: BNNPosterior) -> Float[Array, ""]:
        """From draws of the prior: as many as the posterior has networks."""
        return average(posterior.log_likelihoods)

    def predict(self, phi: Particle, posterior: BNNPosterior, x: Inputs) -> Mixture | Probabilities:
        """The mixture of the posterior's networks, all with the same weight."""
        outputs = network_outputs(self._problem(phi), posterior.body, posterior.head, x)
        return self.likelihood.predict(outputs)

    def leave_one_out(self, phi: Particle, posterior: BNNPosterior) -> LeftOut:
        raise InputError(
            "Stacking needs closed-form leave-one-out densities, which neural networks do not have; "
            'choose the mixture weights "uniform" or "evidence".'
        )

    def fingerprint(self, phi: Particle, x: Float[Array, "r d"]) -> Float[Array, " f"]:
        """What the network with the mean weights predicts at the reference inputs, so that distances are
        root mean square differences, in probability or in units of the target."""
        prediction = self.likelihood.predict(self.network(self.moments(phi)[0], x)[None])
        if isinstance(prediction, Probabilities):
            values = jnp.exp(prediction.log_probabilities)
        else:
            values = prediction.means
        return values.reshape(-1) / math.sqrt(values.size)


def average(log_values: Float[Array, " L"]) -> Float[Array, ""]:
    """ln of the mean of exp."""
    return logsumexp(log_values) - math.log(log_values.size)


def normal(key: Array, shape: tuple[int, ...], dtype: jnp.dtype | type) -> Float[Array, ...]:
    """Draw standard normal numbers, millions of them in every round.

    On a processor JAX's generator (threefry) takes several times as long as the rest of a normal
    number, and a large part of such a round. There, numbers in float32 come from a hash of their
    place: C. Wellons's `lowbias32`, once over place and first word of JAX's key and once more with
    the second word. That is enough for estimates by sampling; privacy's noise comes from elsewhere.
    Accelerators hash threefry in no time, and keep it.
    """
    if jnp.dtype(dtype) != jnp.float32:
        return jax.random.normal(key, shape, dtype)

    def hashed(words: UInt32[Array, " 2"]) -> Float[Array, ...]:
        place = jax.lax.iota(jnp.uint32, math.prod(shape))
        bits = _mix(_mix(place ^ words[0]) + words[1])
        # The upper 23 are the middle of one of 2^23 equal parts of (-1, 1).
        middle = (bits >> 9).astype(jnp.float32) + jnp.float32(0.5)
        uniform = middle * jnp.float32(2.0**-22) - jnp.float32(1)
        return (jnp.float32(math.sqrt(2)) * jax.lax.erf_inv(uniform)).reshape(shape)

    def drawn(words: UInt32[Array, " 2"]) -> Float[Array, ...]:
        return jax.random.normal(jax.random.wrap_key_data(words), shape, dtype)

    return jax.lax.platform_dependent(jax.random.key_data(key), cpu=hashed, default=drawn)


def _mix(x: UInt32[Array, " n"]) -> UInt32[Array, " n"]:
    """lowbias32 (https://nullprogram.com/blog/2018/07/31/)."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)
