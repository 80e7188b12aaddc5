"""What a client infers from a Bayesian neural network, and how: the tempered posterior of its weights.

All inference happens in the prior's own units, z = (w - mu) / sigma, where the prior is N(0, I) and one
step size suits every layer:

    ln p(z | S) = -|z|^2 / 2 + t ln p(S | mu + sigma z) + const.

`adapt="last"`: only the last layer moves, on top of the body (all layers before it) of a network drawn
from the prior. Its features are computed once, so hundreds of steps cost less than one pass through
the whole network, and where clients share the draws they share the body, too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from pacpfl.errors import InputError
from pacpfl.likelihoods import Likelihood
from pacpfl.priors.base import random_rows
from pacpfl.priors.layers import affine, body_size, by_rows, features, has_features
from pacpfl.priors.networks import Network
from pacpfl.types import Data

KINDS = ("svgd", "variational", "laplace")
ADAPTS = ("last", "all")
KERNELS = ("rbf", "imq")  # of SVGD between the networks
OPTIMIZERS = {"adam": optax.adam, "sgd": optax.sgd}
EVERY = slice(None)


@dataclass(frozen=True)
class Inference:
    """How a client infers. `learning_rate` is in units of the prior's sigma; it falls like a cosine.

    `temperature` multiplies that of the evidence. `batch` is the number of samples in a step (None:
    all); `laplace`, whose `steps` are Newton's, always takes all.
    """

    kind: str = "svgd"
    networks: int = 5
    adapt: str = "last"
    steps: int = 20
    learning_rate: float = 0.03
    temperature: float = 1.0
    optimizer: str = "adam"
    kernel: str = "rbf"
    batch: int | None = None

    def __post_init__(self) -> None:
        for name, allowed in (
            ("kind", KINDS),
            ("adapt", ADAPTS),
            ("optimizer", tuple(OPTIMIZERS)),
            ("kernel", KERNELS),
        ):
            value = getattr(self, name)
            if value not in allowed:
                raise InputError(
                    f"{name} = {value!r} is not one of {', '.join(allowed)}; choose one of them."
                )
        if self.networks < 1 or self.steps < 0 or (self.batch is not None and self.batch < 1):
            raise InputError(
                f"networks = {self.networks}, steps = {self.steps} and batch = {self.batch} cannot be "
                "used; give at least 1 network, no negative steps, and a batch of at least 1."
            )
        if not 0 <= self.temperature < math.inf or not 0 < self.learning_rate < math.inf:
            raise InputError(
                f"temperature = {self.temperature} and learning_rate = {self.learning_rate} cannot be "
                "used; give a temperature that is not negative and a positive learning rate."
            )


class Problem(NamedTuple):
    """One particle and how to infer from it."""

    network: Network
    likelihood: Likelihood
    inference: Inference
    means: Float[Array, " w"]
    std: Float[Array, " w"]

    @property
    def fixed(self) -> int:
        """How many of the weights do not adapt: the first ones."""
        return body_size(self.network) if self.inference.adapt == "last" else 0


def masked_log_likelihood(
    likelihood: Likelihood, outputs: Float[Array, "m outputs"], data: Data
) -> Float[Array, ""]:
    """ln p(S | w) of the samples where the mask is true."""
    densities = likelihood.log_density(outputs, jnp.where(data.mask, data.y, 0))
    return jnp.where(data.mask, densities, 0).sum()


class Target(NamedTuple):
    """ln p(S | w)^t of n networks as a function of what adapts, in units of the prior's sigma."""

    problem: Problem
    seen: Array  # of each network, features of the samples, or else its body
    by_features: bool
    data: Data
    temperature: Float[Array, ""]

    def outputs(self, seen: Array, z: Float[Array, " p"], rows: Any = EVERY) -> Array:
        fixed = self.problem.fixed
        head = self.problem.means[fixed:] + self.problem.std[fixed:] * z
        if self.by_features:
            return affine(head, seen[rows])
        return self.problem.network(jnp.concatenate([seen, head]), self.data.x[rows])

    def log_likelihoods(self, z: Float[Array, "n p"], rows: Any = EVERY) -> Float[Array, " n"]:
        """With some rows only: the batch's mean stands for the mean of all."""
        batch = Data(*(part[rows] for part in self.data))
        share = self.data.mask.sum() / jnp.maximum(batch.mask.sum(), 1)

        def one(seen: Array, z: Array) -> Array:
            values = self.outputs(seen, z, rows)
            return masked_log_likelihood(self.problem.likelihood, values, batch)

        scale = self.temperature * share.astype(self.temperature.dtype)
        return scale * jax.vmap(one)(self.seen, z)

    def rows(self, key: Array) -> Any:
        """The samples of one step."""
        batch = self.problem.inference.batch
        if batch is None or batch >= self.data.mask.size:
            return EVERY
        return random_rows(key, self.data.mask, batch)


def make_target(problem: Problem, body: Array, data: Data, temperature: Array) -> Target:
    if not problem.fixed or not has_features(problem.network):
        return Target(problem, body, False, data, temperature)
    seen = jax.lax.map(
        lambda one: by_rows(lambda x: features(problem.network, one, x), data.x), body
    )
    return Target(problem, seen, True, data, temperature)
