"""pFedGP (Achituve, Shamsian, Navon, Chechik & Fetaya 2021) for regression.

One prior P_phi, a Gaussian process with a deep kernel, is shared by all clients, and learned so that it
explains each of them:

    maximise over phi the mean over clients of ln Z(P_phi, S_i);

each client then conditions it on its own samples. There is no hyper-prior, and one particle. What the
original, a classifier, leaves open for regression, and what is done here:
- Gaussian noise, learned with the kernel, instead of a classification likelihood: no inducing points
  and no augmentation, the evidence is closed form.
- The mean function is the prior's: `zero` is the original's, the PAC-PFL paper also tries a network.
- `local_steps = 1`: clients send gradients, the server averages them and takes the step with any
  optax optimiser. That makes it the special case of PAC-PFL that the PAC-PFL paper names: one
  particle, a flat hyper-prior, and tau = 1 with the mean over clients. With the sum of n clients
  instead, PAC-PFL's gradients are n tau times as large.
- `local_steps > 1`, as in the original: every client takes so many steps of the optimiser from the
  server's parameters, and the server takes the mean of where they arrive. The optimiser starts anew in
  every round (the server cannot average what clients remember), so a schedule of its rate would too.
- `batch` samples per step: the batch's log-likelihood is scaled to all m_i samples, as in PAC-PFL.
- Weights start as one draw of N(0, initial_std^2). Length scales, output scales and noise start where
  the prior's own blocks are centred: there is one particle, and nothing to gain from a bad draw.
- A client whose update is not finite is left out of its round and counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from pacpfl import hyper
from pacpfl.methods.pacpfl import subsample
from pacpfl.personal import PersonalModel, personal_model
from pacpfl.priors.base import Prior
from pacpfl.types import Data


class State(NamedTuple):
    parameters: Float[Array, " size"]
    optimizer: optax.OptState  # () where the clients take the steps
    skipped: Int[Array, ""]  # updates left out because they were not finite


class Update(NamedTuple):
    direction: Float[Array, " size"]  # the gradient; with local steps how far the client moved
    log_evidence: Float[Array, ""]  # per sample, of the server's parameters: for the progress bar


@dataclass(frozen=True)
class PFedGP:
    prior: Prior
    optimizer: optax.GradientTransformation
    local_steps: int = 1
    batch: int | None = None  # None: all samples
    initial_std: float = 0.5

    central: ClassVar[bool] = False
    averages: ClassVar[bool] = False

    def init(self, key: Array, example: Data) -> State:
        blocks = [b if b.std is None else b._replace(std=0.0) for b in self.prior.blocks]
        start = hyper.hyper_prior(blocks, self.initial_std, example.x.dtype)
        parameters = hyper.sample(key, start, 1)[0]
        optimizer = self.optimizer.init(parameters) if self.local_steps == 1 else ()
        return State(parameters, optimizer, jnp.zeros((), jnp.int32))

    def init_client(self, state: State, data: Data, key: Array) -> tuple[()]:
        return ()

    def client_update(
        self, state: State, client_state: tuple[()], data: Data, key: Array
    ) -> tuple[Update, tuple[()]]:
        samples = data.mask.sum()
        if self.local_steps == 1:
            log_evidence, direction = self._evidence(state.parameters, data, key)
            return Update(direction, log_evidence / samples), ()

        def step(
            carry: tuple[Array, optax.OptState], step_key: Array
        ) -> tuple[tuple[Array, optax.OptState], Array]:
            parameters, memory = carry
            log_evidence, gradient = self._evidence(parameters, data, step_key)
            return self._ascend(parameters, gradient, memory), log_evidence

        start = (state.parameters, self.optimizer.init(state.parameters))
        (end, _), log_evidences = jax.lax.scan(step, start, jax.random.split(key, self.local_steps))
        return Update(end - state.parameters, log_evidences[0] / samples), ()

    def _evidence(self, parameters: Array, data: Data, key: Array) -> tuple[Array, Array]:
        """ln Z(P_phi, S_i) and its gradient, from all samples or a batch of them."""
        batch = data if self.batch is None else subsample(key, data, self.batch)
        temperature = (data.mask.sum() / batch.mask.sum()).astype(data.x.dtype)
        return jax.value_and_grad(self.prior.log_evidence)(parameters, batch, temperature)

    def _ascend(
        self, parameters: Array, gradient: Array, memory: optax.OptState
    ) -> tuple[Array, optax.OptState]:
        change, memory = self.optimizer.update(-gradient, memory, parameters)
        return parameters + change, memory

    def server_update(
        self, state: State, updates: Update, weights: Float[Array, " c"], key: Array
    ) -> State:
        """The mean of the updates that are there and finite, and a step along it."""
        used = usable(updates, weights)
        share = jnp.where(used, weights, 0)
        share = share / jnp.where(used.any(), share.sum(), 1)
        mean = share @ jnp.where(used[:, None], updates.direction, 0)
        if self.local_steps == 1:
            moved = self._ascend(state.parameters, mean, state.optimizer)
        else:
            moved = state.parameters + mean, ()
        parameters, optimizer = jax.tree.map(
            lambda new, old: jnp.where(used.any(), new, old), moved, state[:2]
        )
        missed = jnp.sum((weights > 0) & ~used, dtype=jnp.int32)
        return State(parameters, optimizer, state.skipped + missed)

    def personalize(
        self, state: State, client_state: tuple[()], data: Data, key: Array
    ) -> PersonalModel:
        return personal_model(self.prior, state.parameters[None], data, "uniform")

    def diagnostics(
        self, state: State, updates: Update, weights: Float[Array, " c"]
    ) -> dict[str, Array]:
        used = usable(updates, weights)
        share = jnp.where(used, weights, 0)
        total = share @ jnp.where(used, updates.log_evidence, 0)
        return {"log_evidence": total / jnp.where(used.any(), share.sum(), 1)}


def usable(updates: Update, weights: Float[Array, " c"]) -> Array:
    """Which clients are there and sent numbers."""
    finite = jnp.isfinite(updates.direction).all(1) & jnp.isfinite(updates.log_evidence)
    return (weights > 0) & finite
