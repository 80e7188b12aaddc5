"""Vanilla: every client fits its own prior to its own data, alone (type-II maximum likelihood).

Open in the paper: the optimiser and its starting points. Here: Adam with a cosine schedule on
-ln Z(P_phi, S_i), from `restarts` draws of the hyper-prior, and the one with the highest evidence is
kept; a fit whose evidence is not finite never is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from pacpfl import hyper
from pacpfl.personal import PersonalModel, personal_model
from pacpfl.priors.base import Prior
from pacpfl.types import Data


class State(NamedTuple):
    """The server knows nothing."""


@dataclass(frozen=True)
class Vanilla:
    prior: Prior
    steps: int = 500
    learning_rate: float = 0.03
    restarts: int = 4
    hyper_std: float = 0.5

    central: ClassVar[bool] = False

    def init(self, key: Array, example: Data) -> State:
        return State()

    def init_client(self, state: State, data: Data, key: Array) -> tuple[()]:
        return ()

    def client_update(
        self, state: State, client_state: tuple[()], data: Data, key: Array
    ) -> tuple[tuple[()], tuple[()]]:
        return (), ()

    def server_update(
        self, state: State, updates: Any, weights: Float[Array, " c"], key: Array
    ) -> State:
        return state

    def personalize(
        self, state: State, client_state: tuple[()], data: Data, key: Array
    ) -> PersonalModel:
        prior = hyper.hyper_prior(self.prior.blocks, self.hyper_std, data.x.dtype)
        starts = hyper.sample(key, prior, self.restarts)
        fitted, evidence = jax.vmap(lambda phi: self._fit(phi, data))(starts)
        best = jnp.argmax(jnp.where(jnp.isfinite(evidence), evidence, -jnp.inf))
        return personal_model(self.prior, fitted[best][None], data, "uniform")

    def _fit(self, start: Float[Array, " size"], data: Data) -> tuple[Array, Array]:
        optimizer = optax.adam(optax.cosine_decay_schedule(self.learning_rate, self.steps))
        per_sample = 1 / data.mask.sum()

        def objective(phi: Array) -> Array:
            return -per_sample * self.prior.log_evidence(phi, data)

        def step(_: int, carry: tuple[Array, Any]) -> tuple[Array, Any]:
            phi, memory = carry
            gradient = jax.grad(objective)(phi)
            change, memory = optimizer.update(gradient, memory)
            return jnp.where(jnp.isfinite(gradient).all(), phi + change, phi), memory

        phi, _ = jax.lax.fori_loop(0, self.steps, step, (start, optimizer.init(start)))
        return phi, -objective(phi)

    def diagnostics(
        self, state: State, updates: Any, weights: Float[Array, " c"]
    ) -> dict[str, Array]:
        return {}
