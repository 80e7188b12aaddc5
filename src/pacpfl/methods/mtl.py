"""Mean-regularised multi-task learning (Evgeniou & Pontil 2004), clients as tasks.

    minimise over w_1, ..., w_n:   sum_i L_i(w_i) + coupling / 2 |w_i - v|^2,   v = 1/n sum_i w_i

Every client keeps a network of its own; the server keeps the mean v. (The mean minimises the penalty
over v, so that w_i and v may be improved in turns, and the gradient for w_i is that of L_i plus
coupling (w_i - v).) A local step is one of forward-backward splitting, the penalty being implicit:

    backward:  w = (u + r v) / (1 + r),   r = learning rate * coupling
    forward:   u = w - learning rate * grad L_i(w)

The client keeps u, the server v = mean of all u, and the client's network is the backward step of
both. At a fixed point u = w + r (w - v) and mean u = v, hence mean w = v and grad L_i(w_i) +
coupling (w_i - v) = 0: the minimiser, whatever the number of local steps. No coupling is too stiff:
- coupling 0: u is trained locally, as if there were nobody else;
- coupling infinity: w = v, and v moves by the mean of the clients' gradient steps, which is FedAvg
  with one local step (further ones repeat it) and equal weights.

Open in the paper (written for kernel machines), settled here:
- L_i is a mean over the client's samples, and clients count alike, as in the usual federated form
  (Hanzely & Richtarik 2020). All networks start from the same initial values.
- With c of n clients per round the server adds 1/n of each one's change: v stays the mean over all n.
- With momentum or Adam the optimiser takes the forward step. Both limits stay; in between, the
  coupling is weighed against the optimiser's steps and not against the loss's gradient.
- Everyone ends with `personal_steps` steps in all, those taken in rounds counted: a new client starts
  from v and trains at home with the penalty towards v, a client who was rarely chosen catches up,
  and one who took part in every round changes nothing (personal_steps = rounds * local steps).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pacpfl.methods.base import Curves, Method, Weights
from pacpfl.methods.network import (
    LocalTraining,
    NetworkModel,
    NetworkPredictor,
    Parameters,
    combine,
    finite_or,
    mean_loss,
)
from pacpfl.settings import Settings, key
from pacpfl.types import Data


@dataclass(frozen=True)
class MTLSettings(Settings):
    """Beside [local], which says how the clients train."""

    coupling: float = key(0.1, "weight of the pull towards the mean of all clients", least=0)
    personal_steps: int = key(500, "steps of a new client, which starts from the mean", least=0)


class State(NamedTuple):
    mean: Parameters  # v
    skipped: Int[Array, ""]  # clients' updates that were left out because they were not finite


class ClientState(NamedTuple):
    forward: Parameters  # u_i
    steps: Int[Array, ""]  # local steps taken so far


class Update(NamedTuple):
    change: Parameters  # of u_i
    loss: Float[Array, ""]  # of the client's network: for the progress bar only


@dataclass(frozen=True)
class MTL(Method[State, ClientState, Update]):
    model: NetworkModel
    clients: int  # n
    local: LocalTraining
    settings: MTLSettings = MTLSettings()

    def init(self, key: Array, example: Data) -> State:
        return State(self.model.initial(key, example), jnp.zeros((), jnp.int32))

    def init_client(self, state: State, data: Data, key: Array) -> ClientState:
        return ClientState(state.mean, jnp.zeros((), jnp.int32))

    def backward(self, state: State) -> Callable[[Parameters], Parameters]:
        """u -> (u + r v) / (1 + r), the proximal step of the penalty; exact for r = 0 and infinity."""
        own = 1 / (1 + self.local.learning_rate * self.settings.coupling)
        return lambda forward: own * forward + (1 - own) * state.mean

    def client_update(
        self, state: State, client_state: ClientState, data: Data, key: Array
    ) -> tuple[Update, ClientState]:
        old, steps = client_state
        new, loss = self.local.descend(self.model.loss, old, data, key, before=self.backward(state))
        taken = jnp.where(jnp.isfinite(new).all(), self.local.steps, 0)
        # What is not finite is sent, for the server to count, and not kept.
        return Update(new - old, loss), ClientState(finite_or(new, old), steps + taken)

    def server_update(self, state: State, updates: Update, weights: Weights, key: Array) -> State:
        combined = combine(updates.change, weights)
        moved = state.mean + combined.mean * combined.used / self.clients
        skipped = combined.skipped.astype(jnp.int32)
        return State(finite_or(moved, state.mean), state.skipped + skipped)

    def personalize(
        self, state: State, client_state: ClientState | tuple[()], data: Data, key: Array
    ) -> NetworkPredictor:
        """A client without a state is a new one."""
        if not isinstance(client_state, ClientState):
            client_state = self.init_client(state, data, key)
        backward = self.backward(state)
        missing = jnp.maximum(self.settings.personal_steps - client_state.steps, 0)
        forward, _ = self.local.descend(
            self.model.loss, client_state.forward, data, key, missing, backward
        )
        own = backward(client_state.forward)
        return self.model.predictor(finite_or(backward(forward), own), data)

    def diagnostics(self, state: State, updates: Update, weights: Weights) -> Curves:
        return {"loss": mean_loss(updates.loss, weights)}
