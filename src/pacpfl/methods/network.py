"""What FedAvg, MTL and MAML share: one network per client, trained by gradient descent.

    L_i(w) = 1/m_i sum_j -ln p(y_j | network_w(x_j))

is the loss of client i everywhere. With a Gaussian likelihood of noise s it is the mean squared
error divided by 2 s^2, up to a constant: s = 1 gives the usual one, and any other s scales the
learning rates. With a categorical likelihood it is the cross-entropy.

Open in the papers, which know point predictions only:
- Regression: the predictive distribution is N(network(x), s_i^2), where s_i^2 is the sum of squared
  residuals on the client's OWN training samples divided by m_i - 1 (one degree of freedom, for the
  level; a network that has learned its samples by heart leaves residuals that are too small, and its
  calibration error says so). s_i is never below `FLOOR` times the likelihood's own noise.
- Classification: the softmax as it is, without temperature scaling.
- The optimiser of the local steps starts anew in every round: nothing of it is kept or sent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from pacpfl.errors import InputError
from pacpfl.likelihoods import Likelihood, log_likelihood
from pacpfl.methods.base import Weights, mini_batch
from pacpfl.priors.networks import Network
from pacpfl.settings import Settings, key
from pacpfl.types import Data, Prediction, Probabilities

FLOOR = 0.01
OPTIMIZERS: dict[str, Callable[[float], optax.GradientTransformation]] = {
    "sgd": optax.sgd,
    "momentum": partial(optax.sgd, momentum=0.9),
    "adam": optax.adam,
}

Parameters = Float[Array, " size"]
Loss = Callable[[Parameters, Data], Float[Array, ""]]
Carry = tuple[Parameters, optax.OptState, Array]  # with the first step's loss


@dataclass(frozen=True)
class NetworkModel:
    """A network and what its outputs mean."""

    network: Network
    likelihood: Likelihood

    def initial(self, key: Array, example: Data) -> Parameters:
        """Where training starts, in the data's precision."""
        parameters = self.network.initial(key).astype(example.x.dtype)
        outputs = jax.eval_shape(self.network, parameters, example.x).shape[-1]
        if outputs != self.likelihood.outputs:
            raise InputError(
                f"The network has {outputs} outputs, but {self.likelihood} needs "
                f"{self.likelihood.outputs}; change the size of its last layer."
            )
        return parameters

    def log_likelihood(self, parameters: Parameters, data: Data) -> Float[Array, ""]:
        """Sum over the samples of ln p(y | network(x)). Padding has no part in it, whatever it holds."""
        data = _without_padding(data)
        return log_likelihood(self.likelihood, self.network(parameters, data.x), data)

    def loss(self, parameters: Parameters, data: Data) -> Float[Array, ""]:
        """Mean over the samples of -ln p(y | network(x))."""
        return -self.log_likelihood(parameters, data) / data.mask.sum()

    def predict(self, parameters: Parameters, x: Float[Array, "t d"]) -> Prediction | Probabilities:
        """As the likelihood has it, with its own noise."""
        outputs = self.network(parameters, x)[None]
        return self.likelihood.predict(outputs, jnp.ones(1, outputs.dtype))

    def predictor(self, parameters: Parameters, data: Data) -> NetworkPredictor:
        """The client's own model, its spread from the client's own samples."""
        data = _without_padding(data)
        prediction = self.predict(parameters, data.x)
        if isinstance(prediction, Probabilities):
            return NetworkPredictor(self, parameters, None)
        residual = jnp.where(data.mask, data.y - prediction.means[0], 0)
        freedom = jnp.maximum(data.mask.sum() - 1, 1)
        return NetworkPredictor(self, parameters, jnp.sqrt(jnp.sum(residual**2) / freedom))


class NetworkPredictor(eqx.Module):
    """One client's network, and how far its samples lie from it (None for class labels)."""

    model: NetworkModel = eqx.field(static=True)
    parameters: Parameters
    residual_std: Float[Array, ""] | None

    def __call__(self, x: Float[Array, "t d"]) -> Prediction | Probabilities:
        prediction = self.model.predict(self.parameters, x)
        if isinstance(prediction, Probabilities) or self.residual_std is None:
            return prediction
        stds = jnp.maximum(self.residual_std, FLOOR * prediction.stds)
        return prediction._replace(stds=stds)


@dataclass(frozen=True)
class LocalTraining(Settings):
    """How a client trains a network at home: fedavg, mtl, pfedbayes."""

    steps: int = key(5, "steps in a round", least=1)
    learning_rate: float = key(0.05, "their size", above=0)
    optimizer: str = key("sgd", "their optimiser", choices=tuple(OPTIMIZERS))
    batch: int | None = key(None, "samples per step; unset: all", least=1)

    def descend(
        self,
        loss: Loss,
        start: Parameters,
        data: Data,
        key: Array,
        steps: int | Int[Array, ""] | None = None,
        before: Callable[[Parameters], Parameters] = lambda parameters: parameters,
    ) -> tuple[Parameters, Float[Array, ""]]:
        """Parameters after `steps` (default: `self.steps`) of the optimiser on the loss, and the first
        step's loss. `before` moves the parameters ahead of each step."""
        optimizer = OPTIMIZERS[self.optimizer](self.learning_rate)

        def step(index: Array, carry: Carry) -> Carry:
            parameters, memory, first = carry
            parameters = before(parameters)
            batch = mini_batch(jax.random.fold_in(key, index), data, self.batch)
            value, gradient = jax.value_and_grad(loss)(parameters, batch)
            change, memory = optimizer.update(gradient, memory, parameters)
            return parameters + change, memory, jnp.where(index == 0, value, first)

        begin = (start, optimizer.init(start), jnp.zeros((), start.dtype))
        count = self.steps if steps is None else steps
        parameters, _, first = jax.lax.fori_loop(0, count, step, begin)
        return parameters, first


def finite_or(new: Parameters, old: Parameters) -> Parameters:
    """Training that diverged is undone: one entry that is not finite brings all the old ones back."""
    return jnp.where(jnp.isfinite(new).all(), new, old)


class ServerState(NamedTuple):
    """Of a server that moves one network by an optimiser."""

    parameters: Parameters
    optimizer: optax.OptState
    skipped: Int[Array, ""]  # clients' updates that were left out because they were not finite


def server_start(optimizer: optax.GradientTransformation, parameters: Parameters) -> ServerState:
    return ServerState(parameters, optimizer.init(parameters), jnp.zeros((), jnp.int32))


def server_step(
    optimizer: optax.GradientTransformation,
    state: ServerState,
    gradients: Float[Array, "c size"],
    weights: Weights,
    sizes: Float[Array, " c"] | float = 1.0,
) -> ServerState:
    """One step of the optimiser with the clients' mean gradient; none, optimiser state included, without
    a client or towards infinity."""
    combined = combine(gradients, weights, sizes)
    change, memory = optimizer.update(combined.mean, state.optimizer, state.parameters)
    moved = state.parameters + change
    taken = (combined.used > 0) & jnp.isfinite(moved).all()
    skipped = combined.skipped + jnp.where(taken, 0, combined.used)
    parameters, memory = jax.tree.map(
        lambda new, old: jnp.where(taken, new, old), (moved, memory), state[:2]
    )
    return ServerState(parameters, memory, state.skipped + skipped.astype(jnp.int32))


class Combined(NamedTuple):
    """What the server makes of its clients' vectors."""

    mean: Parameters  # 0 where nobody's can be used
    used: Int[Array, ""]  # how many went into it
    skipped: Int[Array, ""]  # how many came and were not finite


def combine(
    values: Float[Array, "c size"], weights: Weights, sizes: Float[Array, " c"] | float = 1.0
) -> Combined:
    """sum_i w_i s_i v_i / sum_i w_i s_i over the clients who are present (w_i > 0) and finite."""
    present = weights > 0
    weights = weights * sizes
    usable = present & jnp.isfinite(weights) & jnp.isfinite(values).all(1)
    weights = jnp.where(usable, weights, 0)
    # Multiply and add, not a matrix product: those lose digits on GPUs, and would copy the values.
    total = jnp.sum(weights[:, None] * jnp.where(usable[:, None], values, 0), axis=0)
    scale = weights.sum()
    mean = total / jnp.where(scale > 0, scale, 1)
    return Combined(mean, usable.sum(), (present & ~usable).sum())


def mean_loss(losses: Float[Array, " c"], weights: Weights) -> Float[Array, ""]:
    """For the progress bar: over the clients who are present and have one."""
    return combine(losses[:, None], weights).mean[0]


def _without_padding(data: Data) -> Data:
    """Zeros in place of padding: a NaN there times a gradient of 0 would still be NaN."""
    return Data(
        jnp.where(data.mask[:, None], data.x, 0), jnp.where(data.mask, data.y, 0), data.mask
    )
