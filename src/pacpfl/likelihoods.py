"""What a network's outputs say about the target, and how predictions are made of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pacpfl.types import Data, Prediction, Probabilities


class Likelihood(Protocol):
    @property
    def outputs(self) -> int:
        """How many outputs a network needs."""
        ...

    def log_density(
        self, outputs: Float[Array, "m outputs"], y: Float[Array, " m"]
    ) -> Float[Array, " m"]:
        """ln p(y | outputs), sample by sample."""
        ...

    def predict(
        self, outputs: Float[Array, "s t outputs"], weights: Float[Array, " s"]
    ) -> Prediction | Probabilities:
        """The mixture, with these weights, of what s networks say at t inputs."""
        ...


@dataclass(frozen=True)
class Categorical:
    """Logits of `classes` classes; targets are class numbers."""

    classes: int

    @property
    def outputs(self) -> int:
        return self.classes

    def log_density(
        self, outputs: Float[Array, "m outputs"], y: Float[Array, " m"]
    ) -> Float[Array, " m"]:
        log_probabilities = jax.nn.log_softmax(outputs)
        return jnp.take_along_axis(log_probabilities, y.astype(jnp.int32)[:, None], 1)[:, 0]

    def predict(
        self, outputs: Float[Array, "s t outputs"], weights: Float[Array, " s"]
    ) -> Probabilities:
        each = jax.nn.log_softmax(outputs)
        return Probabilities(jax.nn.logsumexp(each, axis=0, b=weights[:, None, None]))


@dataclass(frozen=True)
class Gaussian:
    """One output, the mean; `noise` is the standard deviation around it."""

    noise: float

    outputs = 1

    def log_density(
        self, outputs: Float[Array, "m 1"], y: Float[Array, " m"]
    ) -> Float[Array, " m"]:
        z = (y - outputs[:, 0]) / self.noise
        return -0.5 * z**2 - math.log(self.noise) - 0.5 * math.log(2 * math.pi)

    def predict(self, outputs: Float[Array, "s t 1"], weights: Float[Array, " s"]) -> Prediction:
        means = outputs[..., 0]
        return Prediction(weights, means, jnp.full_like(means, self.noise))


def log_likelihood(
    likelihood: Likelihood, outputs: Float[Array, "m outputs"], data: Data
) -> Float[Array, ""]:
    """ln p(S | outputs): the sum over the samples where the mask is true."""
    each = likelihood.log_density(outputs, jnp.where(data.mask, data.y, 0))
    return jnp.where(data.mask, each, 0).sum()
