"""Multi-layer perceptrons whose parameters are a slice of a flat vector."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Float


@dataclass(frozen=True)
class MLP:
    """tanh in the hidden layers, linear output; `sizes` = (inputs, hidden..., outputs).

    Parameters lie layer by layer: weights [in, out] row by row, then biases [out].
    """

    sizes: tuple[int, ...]

    @property
    def layers(self) -> tuple[tuple[int, int], ...]:
        return tuple(zip(self.sizes[:-1], self.sizes[1:], strict=True))

    @property
    def size(self) -> int:
        return sum((a + 1) * b for a, b in self.layers)

    def __call__(
        self, parameters: Float[Array, " size"], x: Float[Array, "m inputs"]
    ) -> Float[Array, "m outputs"]:
        start = 0
        for index, (inputs, outputs) in enumerate(self.layers):
            if index:
                x = jnp.tanh(x)
            end = start + inputs * outputs
            weight = parameters[start:end].reshape(inputs, outputs)
            x = x @ weight + parameters[end : end + outputs]
            start = end + outputs
        return x
