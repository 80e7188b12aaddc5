"""FedAvg (McMahan et al. 2017): one network for all, trained by steps at the clients, then averaged.

    client:  w_i = w after E steps of SGD on L_i, from the server's w
    server:  w <- w + sum_i m_i (w_i - w) / sum_i m_i

Open in the paper, settled here:
- The number of local steps E is the same for all clients (the paper counts epochs, so that clients
  with more samples would take more of them); the clients' weights m_i are the paper's.
- The server may take the mean change as a step of any optax optimiser (Reddi et al. 2021, "Adaptive
  federated optimization"). Plain SGD with rate 1, the default, is the paper's average.
- Personalisation: none in the paper. `finetune_steps` above 0 trains the server's network further at
  home, the way clients do in a round; 0 is plain FedAvg, the same network for everyone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from pacpfl.methods.network import (
    LocalTraining,
    NetworkModel,
    NetworkPredictor,
    Parameters,
    ServerState,
    combine,
    finite_or,
    mean_loss,
    server_step,
)
from pacpfl.types import Data

AVERAGE = optax.sgd(1.0)


class Update(NamedTuple):
    change: Parameters  # w_i - w
    samples: Float[Array, ""]  # m_i
    loss: Float[Array, ""]  # of the server's network: for the progress bar only


@dataclass(frozen=True)
class FedAvg:
    model: NetworkModel
    local: LocalTraining
    server_optimizer: optax.GradientTransformation = AVERAGE
    finetune_steps: int = 0

    central: ClassVar[bool] = False
    averages: ClassVar[bool] = False

    def init(self, key: Array, example: Data) -> ServerState:
        parameters = self.model.initial(key, example)
        return ServerState(
            parameters, self.server_optimizer.init(parameters), jnp.zeros((), jnp.int32)
        )

    def init_client(self, state: ServerState, data: Data, key: Array) -> tuple[()]:
        return ()

    def client_update(
        self, state: ServerState, client_state: tuple[()], data: Data, key: Array
    ) -> tuple[Update, tuple[()]]:
        trained, loss = self.local.descend(self.model.loss, state.parameters, data, key)
        samples = data.mask.sum().astype(trained.dtype)
        return Update(trained - state.parameters, samples, loss), ()

    def server_update(
        self, state: ServerState, updates: Update, weights: Float[Array, " c"], key: Array
    ) -> ServerState:
        combined = combine(updates.change, weights, updates.samples)
        return server_step(self.server_optimizer, state, -combined.mean, combined)

    def personalize(
        self, state: ServerState, client_state: tuple[()], data: Data, key: Array
    ) -> NetworkPredictor:
        start = state.parameters
        tuned, _ = self.local.descend(self.model.loss, start, data, key, self.finetune_steps)
        return self.model.predictor(finite_or(tuned, start), data)

    def diagnostics(
        self, state: ServerState, updates: Update, weights: Float[Array, " c"]
    ) -> dict[str, Array]:
        return {"loss": mean_loss(updates.loss, weights)}
