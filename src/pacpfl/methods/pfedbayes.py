"""pFedBayes (Zhang, Li, Li, Guo & Shao 2022): variational Bayesian networks around a global one.

Client i has its own distribution q_i = N(mu_i, diag(sigma_i^2)) over the network's weights, and the
server one, z, of the same family; sigma = softplus(rho). They solve

    min over z of  1/n sum_i F_i(z),
    F_i(z) = min over q of  E_q[-ln p(S_i | w)] + zeta KL(q || z).

    server:  send z to c of the n clients
    client:  z_i = z, and R times:
               one step for q_i on the estimate of F_i's objective from a batch of b samples,
                 Omega(q) = -(m_i / b) 1/K sum_k sum_{j in batch} ln p(y_j | x_j, w_k) + zeta KL(q || z_i),
                 w_k = mu + sigma * noise_k;
               one step for z_i on zeta KL(q_i || z_i), which is all of F_i that depends on z
             keep q_i, send z_i
    server:  z <- (1 - beta) z + beta * mean of the z_i, in (mu, rho)

Left open by the paper, and settled here:
- The optimisers' memories start anew in each round: a client keeps its q_i and nothing else.
- q_i starts as the global distribution. A client that is personalised takes `personal_steps` more
  steps for it, z staying as it is: to catch up with z and with samples that came later.
- A client predicts with the mixture of networks drawn from its q_i, so its probabilities can be
  checked for calibration. (The public code predicts with one network, whose noise has a standard
  deviation of 0.001 instead of 1.)
- zeta is 1 by default, which makes -Omega the usual evidence lower bound. The public code has 10.
- Means start at the network's initial values, all standard deviations at `initial_std`: small
  beside the weights themselves, or the noise drowns what the network says.
- A client whose round ends in numbers that are not finite keeps the q_i it had.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from pacpfl.methods.base import Weights, mini_batch
from pacpfl.methods.network import (
    OPTIMIZERS,
    NetworkModel,
    Watched,
    combine,
    finite_or,
)
from pacpfl.methods.settings import LocalTraining, PFedBayesSettings
from pacpfl.types import Data, Prediction, Probabilities


class WeightDistribution(NamedTuple):
    """N(mean, softplus(raw)^2), independently for each weight."""

    mean: Float[Array, " size"]
    raw: Float[Array, " size"]

    @property
    def std(self) -> Float[Array, " size"]:
        return jax.nn.softplus(self.raw)

    def sample(self, key: Array) -> Float[Array, " size"]:
        return self.mean + self.std * jax.random.normal(key, self.mean.shape, self.mean.dtype)


Pair = tuple[WeightDistribution, WeightDistribution]  # q_i and z_i
Carry = tuple[Pair, tuple[optax.OptState, optax.OptState]]


class State(NamedTuple):
    shared: WeightDistribution  # z
    skipped: Int[Array, ""]  # updates left out because they were not finite


class Update(NamedTuple):
    shared: WeightDistribution  # z_i
    value: Float[Array, ""]  # -Omega per sample, last step: for the progress bar only


@dataclass(frozen=True)
class PFedBayes(Watched):
    model: NetworkModel
    local: LocalTraining = LocalTraining()  # R and b; its optimiser is not used
    settings: PFedBayesSettings = PFedBayesSettings()

    watched = "log_evidence"

    def init(self, key: Array, example: Data) -> State:
        mean = self.model.initial(key, example)
        raw = jnp.full_like(mean, math.log(math.expm1(self.settings.initial_std)))
        return State(WeightDistribution(mean, raw), jnp.zeros((), jnp.int32))

    def init_client(self, state: State, data: Data, key: Array) -> WeightDistribution:
        return state.shared

    def client_update(
        self, state: State, client_state: WeightDistribution, data: Data, key: Array
    ) -> tuple[Update, WeightDistribution]:
        """R steps for q_i and z_i in turn."""
        keys = jax.random.split(key, self.local.steps)
        (own, shared), losses = self._descend((client_state, state.shared), data, keys, True)
        return Update(shared, -losses[-1] / data.mask.sum()), finite_or(own, client_state)

    def _descend(
        self, start: Pair, data: Data, keys: Array, both: bool
    ) -> tuple[Pair, Float[Array, " steps"]]:
        """A step for q_i with each key, and one for z_i after it if `both` move; and the losses."""
        s = self.settings
        rates = s.learning_rate, s.shared_learning_rate
        optimizer, shared_optimizer = (OPTIMIZERS[s.optimizer](rate) for rate in rates)

        def step(carry: Carry, key: Array) -> tuple[Carry, Array]:
            (own, shared), (memory, shared_memory) = carry
            loss, gradient = jax.value_and_grad(self.objective)(own, shared, data, key)
            change, memory = optimizer.update(gradient, memory, own)
            own = optax.apply_updates(own, change)
            if both:
                gradient = jax.grad(lambda z: s.zeta * divergence(own, z))(shared)
                change, shared_memory = shared_optimizer.update(gradient, shared_memory, shared)
                shared = optax.apply_updates(shared, change)
            return ((own, shared), (memory, shared_memory)), loss

        memories = optimizer.init(start[0]), shared_optimizer.init(start[1])
        (end, _), losses = jax.lax.scan(step, (start, memories), keys)
        return end, losses

    def objective(
        self, own: WeightDistribution, shared: WeightDistribution, data: Data, key: Array
    ) -> Float[Array, ""]:
        """Omega(q), the estimate of E_q[-ln p(S_i | w)] + zeta KL(q || z)."""
        batch_key, noise_key = jax.random.split(key)
        batch = mini_batch(batch_key, data, self.local.batch)
        fits = jax.vmap(lambda key: self.model.log_likelihood(own.sample(key), batch))(
            jax.random.split(noise_key, self.settings.draws)
        )
        scale = data.mask.sum() / batch.mask.sum()
        return -scale * fits.mean() + self.settings.zeta * divergence(own, shared)

    def server_update(self, state: State, updates: Update, weights: Weights, key: Array) -> State:
        """z <- (1 - beta) z + beta mean of the z_i, of those that are finite."""
        combined = combine(jnp.concatenate(updates.shared, axis=1), weights)
        means = WeightDistribution(*jnp.split(combined.mean, 2))
        beta = jnp.where(combined.used > 0, self.settings.mixing, 0)
        shared = jax.tree.map(lambda old, mean: (1 - beta) * old + beta * mean, state.shared, means)
        return State(shared, state.skipped + combined.skipped.astype(jnp.int32))

    def personalize(
        self, state: State, client_state: WeightDistribution, data: Data, key: Array
    ) -> NetworkMixture:
        step_key, draw_key = jax.random.split(key)
        keys = jax.random.split(step_key, self.settings.personal_steps)
        (own, _), _ = self._descend((client_state, state.shared), data, keys, False)
        return NetworkMixture(self.model, self.settings.networks, own, draw_key)


class NetworkMixture(eqx.Module):
    """One client's model: networks drawn from its distribution over weights, equally weighed."""

    model: NetworkModel = eqx.field(static=True)
    draws: int = eqx.field(static=True)
    distribution: WeightDistribution
    key: Array

    def __call__(self, x: Float[Array, "t d"]) -> Prediction | Probabilities:
        # One network after the other: all of them at once would need `draws` times the memory.
        outputs = jax.lax.map(
            lambda key: self.model.network(self.distribution.sample(key), x),
            jax.random.split(self.key, self.draws),
        )
        return self.model.likelihood.predict(outputs)


def divergence(q: WeightDistribution, z: WeightDistribution) -> Float[Array, ""]:
    """KL(q || z) = sum of ln(s_z / s_q) + (s_q^2 + (mu_q - mu_z)^2) / (2 s_z^2) - 1/2."""
    ratio = q.std / z.std
    distance = (q.mean - z.mean) / z.std
    return jnp.sum(0.5 * (ratio**2 + distance**2 - 1) - jnp.log(ratio))
