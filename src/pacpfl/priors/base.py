"""What every prior family offers to the layers above."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from pacpfl.types import Data

Scalar = Float[Array, ""] | float


class Block(NamedTuple):
    """A stretch of a particle with its own hyper-prior: N(mean, std^2) on each entry.

    `std` None stands for the hyper-prior's common standard deviation (the paper's sigma_P).
    """

    name: str
    size: int
    mean: float = 0.0
    std: float | None = None


class LeftOut(NamedTuple):
    """What every sample is to all others; 0 for padding."""

    density: Float[Array, " m"]  # ln p(y_j | S without j)
    evidence: Float[Array, " m"]  # ln Z(S) - ln Z(S without j): the same at temperature 1


class Prior(Protocol):
    """A family P_phi of priors, phi in R^size. All functions are for one particle; vmap adds more."""

    @property
    def blocks(self) -> tuple[Block, ...]: ...

    @property
    def size(self) -> int: ...

    @property
    def components(self) -> int:
        """How many hypotheses a prediction of one particle is a mixture of."""
        ...

    def log_evidence(
        self, phi: Float[Array, " size"], data: Data, temperature: Scalar = 1.0
    ) -> Float[Array, ""]:
        """ln Z: the log expectation under P_phi of the likelihood to the power `temperature`."""
        ...

    def log_evidence_of(self, phi: Float[Array, " size"], posterior: Any) -> Float[Array, ""]:
        """ln Z of the data a posterior holds, from its factors."""
        ...

    def posterior(
        self, phi: Float[Array, " size"], data: Data, temperature: Scalar = 1.0
    ) -> Any: ...

    def predict(self, phi: Float[Array, " size"], posterior: Any, x: Float[Array, "t d"]) -> Any:
        """A `Mixture` (observation noise included), or `Probabilities` of classes."""
        ...

    def leave_one_out(self, phi: Float[Array, " size"], posterior: Any) -> LeftOut: ...

    def responsibilities(
        self, phi: Float[Array, " size"], posterior: Any
    ) -> Float[Array, " components"]:
        """How much of the posterior each base prior carries (1 for a family that is no mixture)."""
        ...

    def extend(self, phi: Float[Array, " size"], posterior: Any, more: Data) -> Any:
        """The posterior with more samples, without starting over."""
        ...

    def fingerprint(self, phi: Float[Array, " size"], x: Float[Array, "r d"]) -> Float[Array, " f"]:
        """What the prior predicts at reference inputs: particles are compared by it."""
        ...


@runtime_checkable
class SampledPrior(Prior, Protocol):
    """A family whose evidence and posterior are estimated from draws: they need `noise` and `key`."""

    @property
    def noise(self) -> str:
        """shared: in one round all clients try the same hypotheses; own: each draws its own."""
        ...

    def initial(self, key: Array, dtype: Any) -> Float[Array, " size"]:
        """Where a particle starts: no draw of the hyper-prior."""
        ...

    def draw(self, key: Array, dtype: Any) -> Array:
        """What one estimate of the evidence needs, whatever the particle."""
        ...

    def log_evidence(
        self,
        phi: Float[Array, " size"],
        data: Data,
        temperature: Scalar = 1.0,
        noise: Array | None = None,
    ) -> Float[Array, ""]:
        """The estimate of ln Z from this `noise`: deterministic, so that it has a gradient."""
        ...

    def posterior(
        self,
        phi: Float[Array, " size"],
        data: Data,
        temperature: Scalar = 1.0,
        key: Array | None = None,
    ) -> Any: ...


def random_rows(key: Array, mask: Bool[Array, " m"], size: int) -> Int[Array, " size"]:
    """`size` rows without replacement; all that the mask allows, and padding, where there are fewer."""
    order = jnp.where(mask, jax.random.uniform(key, mask.shape), 2.0)
    return jax.lax.top_k(-order, min(size, mask.shape[0]))[1]
