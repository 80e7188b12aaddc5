"""Vanilla: every client fits its own prior to its own data, alone (type-II maximum likelihood).

Open in the paper: the optimiser and its starting points. Here: Adam with a cosine schedule on
-ln Z(P_phi, S_i), from `restarts` draws of the hyper-prior, and the one with the highest evidence is
kept; a fit whose evidence is not finite never is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from pacpfl import hyper
from pacpfl.personal import PersonalModel, personal_model
from pacpfl.priors.base import Prior
from pacpfl.settings import Settings, key
from pacpfl.types import Data


@dataclass(frozen=True)
class AloneSettings(Settings):
    """Models that are fitted at once, without rounds: vanilla, pooled, ard."""

    steps: int = key(500, "steps of the fit", least=1)
    learning_rate: float = key(0.03, "their size", above=0)
    restarts: int = key(4, "starting points; pooled models use one", least=1)
    hyper_std: float = key(0.5, "spread of the starting points", above=0)
    inducing: int = key(128, "inducing points of a pooled model", least=1)
    inference: str = key(
        "svgd", "of a Bayesian network: svgd or variational", choices=("svgd", "variational")
    )
    networks: int = key(5, "networks in its mixture", least=1)
    initial_std: float = key(0.1, "standard deviation of its prior, which knows no data", above=0)
    temperature: float = key(1000.0, "weight of the samples against that prior", above=0)
    batch: int | None = key(None, "samples per step of its fit; unset: all", least=1)


class State(NamedTuple):
    """The server knows nothing."""


class Alone:
    """A method without a federation: the server knows nothing, and nobody tells it anything."""

    central: ClassVar[bool] = False
    averages: ClassVar[bool] = False

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

    def diagnostics(
        self, state: State, updates: Any, weights: Float[Array, " c"]
    ) -> dict[str, Array]:
        return {}


@dataclass(frozen=True)
class Vanilla(Alone):
    prior: Prior
    settings: AloneSettings = AloneSettings()

    def personalize(
        self, state: State, client_state: tuple[()], data: Data, key: Array
    ) -> PersonalModel:
        own = self.settings
        prior = hyper.hyper_prior(self.prior.blocks, own.hyper_std, data.x.dtype)
        starts = hyper.sample(key, prior, own.restarts)
        return fit(self.prior, starts, data, own.steps, own.learning_rate)


def fit(
    prior: Prior,
    starts: Float[Array, "starts size"],
    data: Data,
    steps: int,
    learning_rate: float,
) -> PersonalModel:
    """The particle with the highest evidence that is found from any of the starts, conditioned."""
    per_sample = 1 / data.mask.sum()

    def objective(phi: Array) -> Array:
        return -per_sample * prior.log_evidence(phi, data)

    best = minimise_from_all(objective, starts, steps, learning_rate)
    return personal_model(prior, best[None], data, "uniform")


def minimise_from_all(
    objective: Callable[[Any], Array], starts: Any, steps: int, learning_rate: float
) -> Any:
    """The best of the minima found from each start (leading axis of every leaf of `starts`)."""
    found, values = jax.vmap(lambda start: minimise(objective, start, steps, learning_rate))(starts)
    best = jnp.argmin(jnp.where(jnp.isfinite(values), values, jnp.inf))
    return jax.tree.map(lambda a: a[best], found)


def minimise(
    objective: Callable[[Any], Array], start: Any, steps: int, learning_rate: float
) -> tuple[Any, Array]:
    """Adam with a cosine schedule: where it ends, and the objective there.

    A step whose gradient is not finite is not taken: the search ends where it is.
    """
    optimizer = optax.adam(optax.cosine_decay_schedule(learning_rate, steps))

    def step(_: int, carry: tuple[Any, Any]) -> tuple[Any, Any]:
        parameters, memory = carry
        gradient = jax.grad(objective)(parameters)
        change, remembered = optimizer.update(gradient, memory)
        moved = optax.apply_updates(parameters, change)
        finite = jnp.array([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient)]).all()
        return jax.tree.map(
            lambda new, old: jnp.where(finite, new, old), (moved, remembered), carry
        )

    parameters, _ = jax.lax.fori_loop(0, steps, step, (start, optimizer.init(start)))
    return parameters, objective(parameters)
