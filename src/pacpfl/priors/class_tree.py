"""Many classes by a tree of two-way decisions (Achituve et al. 2021, section on the GP tree).

Each inner node of the tree divides its classes in two, and one binary classifier, that sees the
node's samples only, decides between them. A class has the product of the decisions on its way:

    p(y | x) = product over levels of p(side of y at its node | x),

so the likelihood of all samples is the product of the nodes' likelihoods.

The tree is the client's own. Classes that look alike stay together: a node's classes are divided at
the median of their means' first principal component. The paper divides them by 2-means, which can
cut off one class at a time; halves make the depth log2 of the number of classes, and that is what lets
all nodes of one level share one factorisation: a level is one Gaussian process whose kernel is zero
between samples of different nodes. 62 classes need 6 factorisations, not 61.

Everything is written with "do classes a and b share a node?", so it needs no list of nodes.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from pacpfl.tiles import matmul

POWER_STEPS = 30  # of the power method: the classes' order settles before the vector does


class ClassTree(NamedTuple):
    """For each level: which classes share a node that is still to be divided, and who goes where."""

    together: Bool[Array, "levels classes classes"]
    side: Float[Array, "levels classes"]  # -1 or +1; 0 for a class that is alone already, or absent


def depth(classes: int) -> int:
    """Levels of a tree in which each node is divided in halves."""
    return (classes - 1).bit_length()


def class_tree(
    similarity: Float[Array, "classes classes"], present: Bool[Array, " classes"]
) -> ClassTree:
    """The tree of the classes that are present, from the inner products of their means."""
    similarity = jax.lax.stop_gradient(similarity)

    def divide(together: Array, _: None) -> tuple[Array, tuple[Array, Array]]:
        undivided = together & (together.sum(1) > 1)[:, None]
        right = _right_half(similarity, undivided)
        side = jnp.where(undivided.any(1), jnp.where(right, 1, -1), 0).astype(similarity.dtype)
        return together & (right[:, None] == right[None, :]), (undivided, side)

    everyone = present[:, None] & present[None, :]
    _, levels = jax.lax.scan(divide, everyone, length=depth(present.size))
    return ClassTree(*levels)


def _right_half(similarity: Array, together: Array) -> Bool[Array, " classes"]:
    """Whether a class lies in the upper half of its node along the first principal component.

    The similarities centred node by node, zero between nodes, are a block matrix whose blocks' first
    eigenvectors are the wanted components: the power method finds them all at once. It starts from
    the class that is farthest from its node's centre.
    """
    centre = together / jnp.maximum(together.sum(1, keepdims=True), 1)
    remainder = jnp.eye(len(together), dtype=similarity.dtype) - centre.astype(similarity.dtype)
    blocks = jnp.where(together, matmul(matmul(remainder, similarity), remainder.T), 0)
    farthest = jnp.argmax(jnp.where(together, jnp.diagonal(blocks), -jnp.inf), axis=1)
    start = jnp.take_along_axis(blocks, farthest[:, None], 1)[:, 0]

    def power(_: int, vector: Array) -> Array:
        longer = matmul(blocks, vector)
        largest = jnp.max(jnp.where(together, jnp.abs(longer), 0), axis=1)
        return longer / jnp.where(largest > 0, largest, 1)

    component = jax.lax.fori_loop(0, POWER_STEPS, power, start)
    numbers = jnp.arange(len(together))
    before = (component[None, :] < component[:, None]) | (
        (component[None, :] == component[:, None]) & (numbers[None, :] < numbers[:, None])
    )
    rank = jnp.sum(together & before, axis=1)
    return 2 * rank >= together.sum(1)
