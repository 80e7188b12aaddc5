"""MAML (Finn et al. 2017), federated as Per-FedAvg (Fallah et al. 2020): a start to adapt from.

    minimise over w:   F(w) = 1/n sum_i F_i(w),   F_i(w) = L_i(U_i(w)),
    U_i(w):            `inner_steps` gradient steps on L_i from w, with `inner_learning_rate`

    client:  gradient of F_i, through the inner steps: J_U(w)^T grad L_i(U_i(w))
    server:  one step of its optimiser with the mean over the clients
    personal model:  U_i with `personal_steps`, on all of the client's samples

Open in the papers, settled here:
- Batches: U_i sees one mini-batch of `batch` samples (the same in all inner steps), the outer loss
  another, drawn independently of it, as in Per-FedAvg; the second derivatives are those of the first
  batch, while Per-FedAvg draws a third for them. `batch=None`: all samples in both places, which is
  F_i exactly.
- A client takes one meta-step in a round and sends its gradient, that of F_i itself: Per-FedAvg is
  SGD with it at the server, whose Adam needs it, too.
- `first_order=True` takes J_U for the identity (FO-MAML): grad L_i at U_i(w).
- Clients count alike, as in Per-FedAvg, however many samples they have.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import optax
from jaxtyping import Array, Float

from pacpfl.methods.base import Curves, Method, Nothing, Weights, mini_batch
from pacpfl.methods.network import (
    NetworkModel,
    NetworkPredictor,
    Parameters,
    ServerState,
    finite_or,
    mean_loss,
    server_start,
    server_step,
)
from pacpfl.settings import Settings, key
from pacpfl.types import Data

ADAM = optax.adam(1e-3)


@dataclass(frozen=True)
class MAMLSettings(Settings):
    """Beside [train], whose optimiser is the server's, and whose batch the clients'."""

    inner_steps: int = key(1, "steps of adaptation while learning", least=1)
    inner_learning_rate: float = key(0.05, "their size", above=0)
    personal_steps: int = key(1, "steps of adaptation at the end", least=0)
    first_order: bool = key(False, "leave out the second derivatives")


class Update(NamedTuple):
    gradient: Parameters  # of F_i
    loss: Float[Array, ""]  # F_i of the server's network: for the progress bar only


@dataclass(frozen=True)
class MAML(Method[ServerState, Nothing, Update]):
    model: NetworkModel
    settings: MAMLSettings = MAMLSettings()
    batch: int | None = None
    server_optimizer: optax.GradientTransformation = ADAM

    def init(self, key: Array, example: Data) -> ServerState:
        return server_start(self.server_optimizer, self.model.initial(key, example))

    def adapt(self, parameters: Parameters, data: Data, steps: int) -> Parameters:
        """U: gradient steps from `parameters`."""

        def step(_: int, adapted: Parameters) -> Parameters:
            gradient = jax.grad(self.model.loss)(adapted, data)
            if self.settings.first_order:
                gradient = jax.lax.stop_gradient(gradient)
            return adapted - self.settings.inner_learning_rate * gradient

        return jax.lax.fori_loop(0, steps, step, parameters)

    def adapted_loss(self, parameters: Parameters, data: Data, key: Array) -> Float[Array, ""]:
        """F_i, estimated from two batches."""
        inner, outer = (mini_batch(own, data, self.batch) for own in jax.random.split(key))
        return self.model.loss(self.adapt(parameters, inner, self.settings.inner_steps), outer)

    def client_update(
        self, state: ServerState, client_state: Nothing, data: Data, key: Array
    ) -> tuple[Update, Nothing]:
        loss, gradient = jax.value_and_grad(self.adapted_loss)(
            state.parameters, data, jax.random.fold_in(key, 0)
        )
        return Update(gradient, loss), ()

    def server_update(
        self, state: ServerState, updates: Update, weights: Weights, key: Array
    ) -> ServerState:
        return server_step(self.server_optimizer, state, updates.gradient, weights)

    def personalize(
        self, state: ServerState, client_state: Nothing, data: Data, key: Array
    ) -> NetworkPredictor:
        adapted = self.adapt(state.parameters, data, self.settings.personal_steps)
        return self.model.predictor(finite_or(adapted, state.parameters), data)

    def diagnostics(self, state: ServerState, updates: Update, weights: Weights) -> Curves:
        return {"loss": mean_loss(updates.loss, weights)}
