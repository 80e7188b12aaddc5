"""Networks whose parameters are one flat vector, so that a particle can hold them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


class Network(Protocol):
    """A function with `size` parameters; frozen and hashable, it holds shapes, never numbers."""

    @property
    def size(self) -> int: ...

    def initial(self, key: Array) -> Float[Array, " size"]:
        """Parameters to start training from."""
        ...

    def __call__(
        self, parameters: Float[Array, " size"], x: Float[Array, "m inputs"]
    ) -> Float[Array, "m outputs"]: ...


@jax.custom_jvp
def tanh(x: Array) -> Array:
    """2 sigmoid(2 x) - 1, as accurate as XLA's own tanh (2e-7 in float32), which on a CPU takes up to
    twice as long and compiles for five times as long: it is unrolled over all units of a layer."""
    return 2 * jax.lax.logistic(2 * x) - 1


@tanh.defjvp
def _tanh_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    value = tanh(*primals)
    return value, (1 - value**2) * tangents[0]


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {"tanh": tanh, "relu": jax.nn.relu}
GAINS = {"tanh": 1.0, "relu": 2.0}  # variance of the weights times inputs: Glorot (LeCun), He


@dataclass(frozen=True)
class MLP:
    """Linear output; `sizes` = (inputs, hidden..., outputs).

    Parameters lie layer by layer: weights [in, out] row by row, then biases [out].
    """

    sizes: tuple[int, ...]
    activation: str = "tanh"

    @property
    def layers(self) -> tuple[tuple[int, int], ...]:
        return tuple(zip(self.sizes[:-1], self.sizes[1:], strict=True))

    @property
    def size(self) -> int:
        return sum((a + 1) * b for a, b in self.layers)

    def initial(self, key: Array) -> Float[Array, " size"]:
        """Weights N(0, gain / inputs), biases 0."""
        parts = []
        for index, (inputs, outputs) in enumerate(self.layers):
            std = math.sqrt((GAINS[self.activation] if index else 1.0) / inputs)
            weight = std * jax.random.normal(jax.random.fold_in(key, index), (inputs * outputs,))
            parts += [weight, jnp.zeros(outputs)]
        return jnp.concatenate(parts)

    def __call__(
        self, parameters: Float[Array, " size"], x: Float[Array, "m inputs"]
    ) -> Float[Array, "m outputs"]:
        start = 0
        for index, (inputs, outputs) in enumerate(self.layers):
            if index:
                x = ACTIVATIONS[self.activation](x)
            end = start + inputs * outputs
            weight = parameters[start:end].reshape(inputs, outputs)
            x = x @ weight + parameters[end : end + outputs]
            start = end + outputs
        return x
