"""Tiny methods whose every number can be worked out by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pacpfl.data.store import ClientStore, from_samples
from pacpfl.methods.base import Method
from pacpfl.types import Data, Prediction, Samples


class ToyState(NamedTuple):
    value: jax.Array
    rounds: jax.Array


class Memory(NamedTuple):
    """What a client of the toy keeps: how often it was chosen, and a number of its own."""

    chosen: jax.Array
    number: jax.Array


@dataclass(frozen=True)
class Toy(Method[ToyState, Any, Any]):
    """Every function uses its key, the data and the state, so a mistake in any of them shows."""

    def init(self, key: jax.Array, example: Data) -> ToyState:
        value = jax.random.normal(key, (example.x.shape[-1],), example.x.dtype)
        return ToyState(value, jnp.zeros((), jnp.int32))

    def init_client(self, state: ToyState, data: Data, key: jax.Array) -> Memory:
        first = jnp.where(data.mask, data.y, 0).sum()
        return Memory(jnp.zeros((), jnp.int32), first + jax.random.uniform(key, (), data.y.dtype))

    def client_update(
        self, state: ToyState, client_state: Memory, data: Data, key: jax.Array
    ) -> tuple[jax.Array, Memory]:
        mean = jnp.where(data.mask[:, None], data.x, 0).sum(0) / data.mask.sum()
        noise = jax.random.normal(key, (), data.y.dtype)
        update = jnp.tanh(state.value) * mean + 0.1 * noise + 0.01 * client_state.number
        return update, Memory(client_state.chosen + 1, 0.5 * client_state.number + noise)

    def server_update(self, state: ToyState, updates: Any, weights: Any, key: Any) -> ToyState:
        step = jnp.einsum("c,cd->d", weights, updates) / weights.sum()
        noise = jax.random.normal(key, state.value.shape, state.value.dtype)
        return ToyState(0.9 * state.value + step + 0.1 * noise, state.rounds + 1)

    def diagnostics(self, state: ToyState, updates: Any, weights: Any) -> dict[str, jax.Array]:
        return {"clients": weights.sum(), "rounds": state.rounds, "value": state.value[0]}

    def personalize(self, state: Any, client_state: Any, data: Data, key: Any) -> TwoGaussians:
        mean = jnp.where(data.mask, data.y, 0).sum() / data.mask.sum()
        return TwoGaussians(mean, jax.random.uniform(key, (), data.y.dtype))


@dataclass(frozen=True)
class StatelessToy(Toy):
    """The same without anything that clients keep."""

    def init_client(self, state: Any, data: Data, key: Any) -> tuple[()]:  # type: ignore[override]
        return ()

    def client_update(self, state: ToyState, client_state: Any, data: Data, key: Any) -> Any:
        nothing = Memory(jnp.zeros((), jnp.int32), jnp.zeros((), data.y.dtype))
        return Toy.client_update(self, state, nothing, data, key)[0], ()


@dataclass(frozen=True)
class CentralToy(Toy):
    central: ClassVar[bool] = True


class TwoGaussians(NamedTuple):
    """Predicts N(mean + x, 0.5^2) with weight 1/4 and N(mean - x, 1) with weight 3/4, say."""

    mean: jax.Array
    draw: jax.Array

    def __call__(self, x: jax.Array) -> Prediction:
        first = x[:, 0]
        return Prediction(
            jnp.array([0.25, 0.75], x.dtype),
            jnp.stack([self.mean + first, self.mean + self.draw - first]),
            jnp.stack([jnp.full_like(first, 0.5), jnp.full_like(first, 1.0)]),
        )


def make_store(lengths: tuple[int, ...], features: int = 2, seed: int = 0) -> ClientStore:
    random = np.random.default_rng(seed)
    return from_samples(
        [Samples(random.normal(size=(m, features)), random.normal(size=m)) for m in lengths]
    )


def assert_same_tree(one: Any, two: Any) -> None:
    """Bit for bit."""
    leaves, others = jax.tree.leaves(one), jax.tree.leaves(two)
    assert len(leaves) == len(others)
    for a, b in zip(leaves, others, strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b), strict=True)
