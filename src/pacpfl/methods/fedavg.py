"""FedAvg (McMahan et al. 2017): one network for all, trained by steps at the clients, then averaged.

    client:  w_i = w after E steps of SGD on L_i, from the server's w
    server:  w <- w + sum_i m_i (w_i - w) / sum_i m_i

Open in the paper, settled here:
- The number of local steps E is the same for all clients (the paper counts epochs, so that clients
  with more samples would take more of them); the clients' weights m_i are the paper's.
- Personalisation: none, the same network for everyone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import optax
from jaxtyping import Array, Float

from pacpfl.methods.base import Curves, Method, Nothing, Weights
from pacpfl.methods.network import (
    LocalTraining,
    NetworkModel,
    NetworkPredictor,
    Parameters,
    ServerState,
    mean_loss,
    server_start,
    server_step,
)
from pacpfl.types import Data

AVERAGE = optax.sgd(1.0)


class Update(NamedTuple):
    change: Parameters  # w_i - w
    samples: Float[Array, ""]  # m_i
    loss: Float[Array, ""]  # of the server's network: for the progress bar only


@dataclass(frozen=True)
class FedAvg(Method[ServerState, Nothing, Update]):
    model: NetworkModel
    local: LocalTraining

    def init(self, key: Array, example: Data) -> ServerState:
        return server_start(AVERAGE, self.model.initial(key, example))

    def client_update(
        self, state: ServerState, client_state: Nothing, data: Data, key: Array
    ) -> tuple[Update, Nothing]:
        trained, loss = self.local.descend(self.model.loss, state.parameters, data, key)
        samples = data.mask.sum().astype(trained.dtype)
        return Update(trained - state.parameters, samples, loss), ()

    def server_update(
        self, state: ServerState, updates: Update, weights: Weights, key: Array
    ) -> ServerState:
        return server_step(AVERAGE, state, -updates.change, weights, updates.samples)

    def personalize(
        self, state: ServerState, client_state: Nothing, data: Data, key: Array
    ) -> NetworkPredictor:
        return self.model.predictor(state.parameters, data)

    def diagnostics(self, state: ServerState, updates: Update, weights: Weights) -> Curves:
        return {"loss": mean_loss(updates.loss, weights)}
