"""pFedGP (Achituve, Shamsian, Navon, Chechik & Fetaya 2021) for regression.

One prior P_phi, a Gaussian process with a deep kernel, is shared by all clients, and learned so that it
explains each of them:

    maximise over phi the mean over clients of ln Z(P_phi, S_i);

each client then conditions it on its own samples. There is no hyper-prior, and one particle. What the
original, a classifier, leaves open for regression, and what is done here:
- Gaussian noise, learned with the kernel, instead of a classification likelihood: no inducing points
  and no augmentation, the evidence is closed form.
- The mean function is the prior's: `zero` is the original's, the PAC-PFL paper also tries a network.
- Clients send gradients, the server averages them and takes the step with any optax optimiser. That
  makes it the special case of PAC-PFL that the PAC-PFL paper names: one particle, a flat hyper-prior,
  and tau = 1 with the mean over clients. With the sum of n clients instead, PAC-PFL's gradients are
  n tau times as large.
- `batch` samples per step: the batch's log-likelihood is scaled to all m_i samples, as in PAC-PFL.
- Weights start as one draw of N(0, initial_std^2). Length scales, output scales and noise start where
  the prior's own blocks are centred: there is one particle, and nothing to gain from a bad draw.
- A client whose update is not finite is left out of its round and counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from pacpfl import hyper
from pacpfl.methods.base import Curves, Method, Nothing, Weights, mini_batch
from pacpfl.methods.network import State, server_start
from pacpfl.personal import PersonalModel, personal_model
from pacpfl.priors.base import Prior
from pacpfl.types import Data


class Update(NamedTuple):
    gradient: Float[Array, " size"]
    log_evidence: Float[Array, ""]  # per sample: for the progress bar only


@dataclass(frozen=True)
class PFedGP(Method[State, Nothing, Update]):
    prior: Prior
    optimizer: optax.GradientTransformation
    batch: int | None = None  # None: all samples
    initial_std: float = 0.5

    def init(self, key: Array, example: Data) -> State:
        blocks = [b if b.std is None else b._replace(std=0.0) for b in self.prior.blocks]
        start = hyper.hyper_prior(blocks, self.initial_std, example.x.dtype)
        return server_start(self.optimizer, hyper.sample(key, start, 1)[0])

    def client_update(
        self, state: State, client_state: Nothing, data: Data, key: Array
    ) -> tuple[Update, Nothing]:
        samples, batch = data.mask.sum(), mini_batch(key, data, self.batch)
        temperature = (samples / batch.mask.sum()).astype(data.x.dtype)
        log_evidence, gradient = jax.value_and_grad(self.prior.log_evidence)(
            state.parameters, batch, temperature
        )
        return Update(gradient, log_evidence / samples), ()

    def server_update(self, state: State, updates: Update, weights: Weights, key: Array) -> State:
        """The mean of the updates that are there and finite, and a step along it."""
        used, share, total = usable(updates, weights)
        mean = share / total @ jnp.where(used[:, None], updates.gradient, 0)
        change, memory = self.optimizer.update(-mean, state.optimizer, state.parameters)
        moved = (state.parameters + change, memory)
        parameters, memory = jax.tree.map(
            lambda new, old: jnp.where(used.any(), new, old), moved, state[:2]
        )
        missed = jnp.sum((weights > 0) & ~used, dtype=jnp.int32)
        return State(parameters, memory, state.skipped + missed)

    def personalize(
        self, state: State, client_state: Nothing, data: Data, key: Array
    ) -> PersonalModel:
        return personal_model(self.prior, state.parameters[None], data, "uniform")

    def diagnostics(self, state: State, updates: Update, weights: Weights) -> Curves:
        used, share, total = usable(updates, weights)
        return {"log_evidence": share @ jnp.where(used, updates.log_evidence, 0) / total}


def usable(updates: Update, weights: Weights) -> tuple[Array, Weights, Array]:
    """Which clients are there and sent numbers, their weights, and the sum of these (1 without any)."""
    finite = jnp.isfinite(updates.gradient).all(1) & jnp.isfinite(updates.log_evidence)
    used = (weights > 0) & finite
    share = jnp.where(used, weights, 0)
    return used, share, jnp.where(used.any(), share.sum(), 1)
