"""What every prior family offers to the layers above."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from jaxtyping import Array, Float

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


class Prior(Protocol):
    """A family P_phi of priors, phi in R^size. All functions are for one particle; vmap adds more."""

    @property
    def blocks(self) -> tuple[Block, ...]: ...

    @property
    def size(self) -> int: ...

    @property
    def components(self) -> int:
        """How many Gaussians a prediction of one particle consists of."""
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

    def predict(
        self, phi: Float[Array, " size"], posterior: Any, x: Float[Array, "t d"]
    ) -> tuple[
        Float[Array, " components"], Float[Array, "components t"], Float[Array, "components t"]
    ]:
        """Weights, means and standard deviations (observation noise included)."""
        ...

    def leave_one_out(self, phi: Float[Array, " size"], posterior: Any) -> Float[Array, " m"]:
        """Log predictive density of each sample given all others."""
        ...

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
