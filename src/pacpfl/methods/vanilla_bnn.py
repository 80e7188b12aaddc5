"""Vanilla and Pooled with Bayesian neural networks: posterior inference without a learned prior.

The prior is fixed before any data are seen: where PAC-PFL's particles start, N(initial values of a
network, initial_std^2). From there each client infers alone, exactly as a client of PAC-PFL does
(`Vanilla`), or one model is inferred from everybody's samples together (`Pooled`, which sends data to
one place: it shows what ignoring the clients' differences costs).

Open in the paper: prior, inference and their settings. A prior that has learned nothing must not bind:
let every layer adapt (adapt = "all", hundreds of steps) and give the samples a high temperature. What
counts is temperature x initial_std^2. Measured on scikit-learn's digits, 20 samples a client, one hidden
layer of 64, initial_std 0.1: accuracy 18% at temperature 1, 67% at 100, 68% at 1,000 (a logistic
regression: 63%), and the same for std 0.3 and a ninth of the temperature.

A prior around zero instead of around initial values would be the textbook's choice, but SVGD with a few
networks contracts to the most probable weights, and those of few samples are then nearly zero
everywhere: such a network predicts nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from jaxtyping import Array, Float

from pacpfl import hyper
from pacpfl.personal import PersonalModel, personal_model
from pacpfl.priors.base import Prior
from pacpfl.types import Data


class State(NamedTuple):
    """The fixed prior: all that clients have in common."""

    particles: Float[Array, "k size"]


@dataclass(frozen=True)
class VanillaBNN:
    prior: Prior
    particles: int = 1  # independent initial values, as of an ensemble

    central: ClassVar[bool] = False
    averages: ClassVar[bool] = False

    def init(self, key: Array, example: Data) -> State:
        around = hyper.hyper_prior(self.prior.blocks, 1.0, example.x.dtype)
        return State(self.prior.start(key, around, self.particles))

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
        return personal_model(self.prior, state.particles, data, "uniform", key=key)

    def diagnostics(
        self, state: State, updates: Any, weights: Float[Array, " c"]
    ) -> dict[str, Array]:
        return {}


@dataclass(frozen=True)
class PooledBNN(VanillaBNN):
    """One model for all, and for clients who join later."""

    central: ClassVar[bool] = True
    averages: ClassVar[bool] = False
