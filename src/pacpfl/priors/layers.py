"""A flat network taken apart: how its parameters divide into layers, and what its last layer sees."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pacpfl.errors import InputError
from pacpfl.priors.networks import ACTIVATIONS, MLP, Network

ROWS = 512  # inputs at once where all there are may not fit into memory


@runtime_checkable
class LayeredNetwork(Network, Protocol):
    """A network that tells how many parameters each layer has, in the order in which they lie."""

    @property
    def layer_sizes(self) -> tuple[int, ...]: ...


@runtime_checkable
class HeadedNetwork(LayeredNetwork, Protocol):
    """A network that ends in `affine`: its last layer can be adapted without running the others."""

    def features(
        self, body: Float[Array, " body"], x: Float[Array, "m inputs"]
    ) -> Float[Array, "m features"]:
        """What the last layer sees; `body` are the parameters of all layers before it."""
        ...


def layer_sizes(network: Network) -> tuple[int, ...]:
    if isinstance(network, MLP):
        return tuple((inputs + 1) * outputs for inputs, outputs in pairwise(network.sizes))
    if isinstance(network, LayeredNetwork):
        return network.layer_sizes
    raise InputError(
        f"{type(network).__name__} does not tell its layers; give it a layer_sizes property, or "
        'choose spread = "weight" and adapt = "all".'
    )


def body_size(network: Network) -> int:
    """Number of parameters before the last layer."""
    return network.size - layer_sizes(network)[-1]


def affine(
    parameters: Float[Array, " p"], x: Float[Array, "*m inputs"]
) -> Float[Array, "*m outputs"]:
    """x W + b with the parameters as all networks here keep them: W row by row, then b.

    (Taken apart by `split`, not by slices: its gradient is one concatenation instead of a sum of
    arrays padded with zeros.)
    """
    inputs = x.shape[-1]
    outputs = parameters.size // (inputs + 1)
    weight, bias = jnp.split(parameters, [inputs * outputs])
    return x @ weight.reshape(inputs, outputs) + bias


def has_features(network: Network) -> bool:
    """Whether the network can be cut before its last layer."""
    return isinstance(network, MLP | HeadedNetwork)


def features(
    network: Network, body: Float[Array, " body"], x: Float[Array, "m inputs"]
) -> Float[Array, "m features"]:
    """What the last layer of a network that `has_features` sees."""
    if isinstance(network, HeadedNetwork):
        return network.features(body, x)
    assert isinstance(network, MLP)
    if len(network.sizes) == 2:
        return x
    return ACTIVATIONS[network.activation](MLP(network.sizes[:-1], network.activation)(body, x))


def by_rows(
    function: Callable[[Float[Array, "m inputs"]], Float[Array, "m outputs"]],
    x: Float[Array, "m inputs"],
) -> Float[Array, "m outputs"]:
    """function(x), many inputs in parts: for results that need no gradient."""
    if x.shape[0] <= ROWS:
        return function(x)
    return jax.lax.map(lambda row: function(row[None])[0], x, batch_size=ROWS)
