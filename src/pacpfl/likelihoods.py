"""What a network's outputs say about the target, and how predictions are made of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pacpfl.types import Data, Prediction, Probabilities

Outputs = Float[Array, "m outputs"]  # of one network
Many = Float[Array, "s t outputs"]  # of s networks
Values = Float[Array, " m"]  # one for each sample


class Likelihood(Protocol):
    @property
    def outputs(self) -> int:
        """How many outputs a network needs."""
        ...

    def log_density(self, outputs: Outputs, y: Values) -> Values:
        """ln p(y | outputs), sample by sample."""
        ...

    def predict(self, outputs: Many) -> Prediction | Probabilities:
        """The mixture of what s networks say at t inputs, all with the same weight."""
        ...


@dataclass(frozen=True)
class Categorical:
    """Logits of `classes` classes; targets are class numbers."""

    classes: int

    @property
    def outputs(self) -> int:
        return self.classes

    def log_density(self, outputs: Outputs, y: Values) -> Values:
        log_probabilities = jax.nn.log_softmax(outputs)
        return jnp.take_along_axis(log_probabilities, y.astype(jnp.int32)[:, None], 1)[:, 0]

    def predict(self, outputs: Many) -> Probabilities:
        each, weights = jax.nn.log_softmax(outputs), equal_weights(outputs)
        return Probabilities(jax.nn.logsumexp(each, axis=0, b=weights[:, None, None]))


@dataclass(frozen=True)
class Gaussian:
    """One output, the mean; `noise` is the standard deviation around it."""

    noise: float

    outputs = 1

    def log_density(self, outputs: Outputs, y: Values) -> Values:
        z = (y - outputs[:, 0]) / self.noise
        return -0.5 * z**2 - math.log(self.noise) - 0.5 * math.log(2 * math.pi)

    def predict(self, outputs: Many) -> Prediction:
        means = outputs[..., 0]
        return Prediction(equal_weights(outputs), means, jnp.full_like(means, self.noise))


def equal_weights(outputs: Many) -> Float[Array, " s"]:
    return jnp.full(len(outputs), 1 / len(outputs), outputs.dtype)


def log_likelihood(likelihood: Likelihood, outputs: Outputs, data: Data) -> Float[Array, ""]:
    """ln p(S | outputs): the sum over the samples where the mask is true."""
    each = likelihood.log_density(outputs, jnp.where(data.mask, data.y, 0))
    return jnp.where(data.mask, each, 0).sum()
