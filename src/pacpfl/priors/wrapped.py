"""Any equinox network as one with a flat parameter vector, so that a particle can hold it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


@dataclass(frozen=True)
class WrappedNetwork:
    """`make(key)` builds the network; it is written for ONE input, and vmapped over rows here.

    `shape` is what a row of features is reshaped to before the network sees it, for instance
    (1, 28, 28) for `eqx.nn.Conv2d`. Parameters are all floating-point arrays of the network, in the
    order of its tree; `initial` are those that `make` gave them. A layer is a module that holds such
    arrays itself, so the LAST layer is the last in the order of fields, not of use.

    Networks that draw random numbers or keep a state (dropout, batch normalisation) do not fit: they
    are called with nothing but the input.
    """

    make: Callable[[Array], Any]
    shape: tuple[int, ...] | None = None

    def _divided(self, key: Array) -> tuple[Any, Any]:
        """The network's parameters, and all the rest of it."""
        return eqx.partition(self.make(key), eqx.is_inexact_array)

    def _shapes(self) -> Any:
        """The parameters' shapes, without computing any."""
        return eqx.filter_eval_shape(lambda key: self._divided(key)[0], jax.random.key(0))

    @property
    def layer_sizes(self) -> tuple[int, ...]:
        leaves = jax.tree_util.tree_leaves_with_path(self._shapes())
        return tuple(
            sum(leaf.size for _, leaf in layer)
            for _, layer in groupby(leaves, lambda pair: pair[0][:-1])
        )

    @property
    def size(self) -> int:
        return sum(self.layer_sizes)

    def initial(self, key: Array) -> Float[Array, " size"]:
        return jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(self._divided(key)[0])])

    def __call__(
        self, parameters: Float[Array, " size"], x: Float[Array, "m inputs"]
    ) -> Float[Array, "m outputs"]:
        # Only the network's structure is used, so the compiler drops the values `make` computes.
        arrays, rest = self._divided(jax.random.key(0))
        leaves, structure = jax.tree.flatten(arrays)
        ends = np.cumsum([leaf.size for leaf in leaves])
        pieces = [
            parameters[end - leaf.size : end].reshape(leaf.shape)
            for leaf, end in zip(leaves, ends, strict=True)
        ]
        network = eqx.combine(jax.tree.unflatten(structure, pieces), rest)
        shape = x.shape[1:] if self.shape is None else self.shape
        return jax.vmap(network)(x.reshape(x.shape[0], *shape))
