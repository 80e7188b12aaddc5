"""The hyper-prior, and the optimal hyper-posterior it leads to (paper, corollary on Q*).

ln Q*(phi) = ln P(phi) + tau sum_i ln Z_beta(P_phi, S_i) + const,

where tau follows from the lambda of the server-level bound (`bounds.tau_from_lambda`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pacpfl.errors import InputError

if TYPE_CHECKING:
    import jax.numpy as jnp
    from jaxtyping import Array, Float


class Block(NamedTuple):
    """A stretch of a particle with its own hyper-prior: N(mean, std^2) on each entry.

    `std` None stands for the hyper-prior's common standard deviation (the paper's sigma_P).
    """

    name: str
    size: int
    mean: float = 0.0
    std: float | None = None


class HyperPrior(NamedTuple):
    """N(means, diag(stds^2)) over particles; with k rows the mixture of their Gaussians.

    Where a std is 0 the number stays what it is.
    """

    means: Float[Array, "*k size"]
    stds: Float[Array, "*k size"]


def hyper_prior(
    blocks: Sequence[Block], std: float, dtype: jnp.dtype | type = np.float32
) -> HyperPrior:
    """Return the hyper-prior of a particle made of these blocks.

    Blocks that name no spread of their own get `std`, the paper's sigma_P.

    >>> hyper_prior((Block("a", 2), Block("b", 1, 0.5, 0.25)), 1.0).stds.tolist()
    [1.0, 1.0, 0.25]
    """
    import jax.numpy as jnp

    if not std > 0:
        raise InputError(f"The hyper-prior's std must be positive, not {std}.")
    means = np.concatenate([np.full(b.size, b.mean) for b in blocks])
    stds = np.concatenate([np.full(b.size, std if b.std is None else b.std) for b in blocks])
    return HyperPrior(jnp.asarray(means, dtype), jnp.asarray(stds, dtype))


def sample(
    key: Array, prior: HyperPrior, count: int, spread: float = 1.0
) -> Float[Array, "count size"]:
    """Return `count` draws, of a mixture as many from each; `spread` scales how far they lie from the
    mean."""
    import jax

    noise = jax.random.normal(key, (count, prior.means.shape[-1]), prior.means.dtype)
    if prior.means.ndim == 2:
        rows = np.arange(count) % len(prior.means)
        prior = HyperPrior(prior.means[rows], prior.stds[rows])
    return prior.means + spread * prior.stds * noise


def score(prior: HyperPrior, phi: Float[Array, "*k size"]) -> Float[Array, "*k size"]:
    r"""Return the gradient of the log density, $(\mu - \phi) / \sigma^2$."""
    return (prior.means - phi) / prior.stds**2
