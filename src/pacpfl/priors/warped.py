"""A prior whose target is a learned warp of the clients' target, for noise that is skewed.

A particle phi = (warp, base) asks the base family to explain z = g(y) (`pacpfl.warp`). With the
likelihood of y to the power t,

    ln Z(P_phi, S) = ln Z_base(g(S)) + t sum_j ln g'(y_j),

closed form where the base's evidence is. Predictions are Gaussian in z; the target's quantiles are those
of z taken back, and the most likely value, the median and the mean differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pacpfl import arrays, warp
from pacpfl.hyper import Block
from pacpfl.priors.base import Exact, LeftOut, Prior, joined
from pacpfl.types import Data, WarpedPrediction

if TYPE_CHECKING:
    from jaxtyping import Array, Float

    from pacpfl.priors.base import Inputs, Noise, Particle, Posterior, Scalar

# Targets are standardised: the warp bends within them, and is a line at the centre of the hyper-prior.
BLOCKS = (
    Block("warp.centre", 1, 0.0, 0.5),
    Block("warp.skewness", 1, 0.0, 0.5),
    Block("warp.tail", 1, 0.0, 0.3),
)


class WarpedPosterior(NamedTuple):
    data: Data  # as it came; the base's posterior holds it warped
    base: Posterior
    temperature: Float[Array, ""]


@dataclass(frozen=True)
class WarpedPrior(Prior):
    """`base`, a family with closed-form evidence and Gaussian predictions, of a warped target."""

    base: Exact

    @property
    def plain(self) -> bool:
        return self.base.plain

    @property
    def components(self) -> int:
        return self.base.components

    @property
    def blocks(self) -> tuple[Block, ...]:
        return (*BLOCKS, *self.base.blocks)

    def split(self, phi: Particle) -> tuple[warp.Warp, Float[Array, " base"]]:
        """The warp, which has no scale of its own (the base's noise and kernel do), and the base's."""
        centre, skewness, tail = phi[: len(BLOCKS)]
        xp = arrays.of(phi)
        bend = xp.stack([centre, xp.zeros_like(centre), skewness, tail])
        return bend, phi[len(BLOCKS) :]

    def parts(self, phi: Particle) -> tuple[Float[Array, " 1"], Float[Array, "1 base"]]:
        """One part, the base: of a target that is warped."""
        return arrays.of(phi).ones(1, phi.dtype), self.split(phi)[1][None]

    def log_evidence(
        self, phi: Particle, data: Data, temperature: Scalar = 1.0, noise: Noise = ()
    ) -> Float[Array, ""]:
        bend, base = self.split(phi)
        evidence = self.base.log_evidence(base, warped(bend, data), temperature)
        return evidence + temperature * log_slopes(bend, data).sum()

    def log_evidence_of(self, phi: Particle, posterior: WarpedPosterior) -> Float[Array, ""]:
        bend, base = self.split(phi)
        slopes = log_slopes(bend, posterior.data).sum()
        return self.base.log_evidence_of(base, posterior.base) + posterior.temperature * slopes

    def posterior(
        self, phi: Particle, data: Data, temperature: Scalar = 1.0, key: Array | None = None
    ) -> WarpedPosterior:
        bend, base = self.split(phi)
        posterior = self.base.posterior(base, warped(bend, data), temperature)
        return WarpedPosterior(
            data, posterior, arrays.of(phi, temperature).asarray(temperature, phi.dtype)
        )

    def extend(self, phi: Particle, posterior: WarpedPosterior, more: Data) -> WarpedPosterior:
        bend, base = self.split(phi)
        longer = self.base.extend(base, posterior.base, warped(bend, more))
        return posterior._replace(data=joined(posterior.data, more), base=longer)

    def predict(self, phi: Particle, posterior: WarpedPosterior, x: Inputs) -> WarpedPrediction:
        bend, base = self.split(phi)
        each = self.base.predict(base, posterior.base, x)
        warps = arrays.of(phi).tile(bend, (self.components, 1))
        return WarpedPrediction(each.weights, each.means, each.stds, warps)

    def leave_one_out(self, phi: Particle, posterior: WarpedPosterior) -> LeftOut:
        bend, base = self.split(phi)
        density, evidence, below = self.base.leave_one_out(base, posterior.base)
        slopes = log_slopes(bend, posterior.data)
        return LeftOut(density + slopes, evidence + posterior.temperature * slopes, below)

    def responsibilities(
        self, phi: Particle, posterior: WarpedPosterior
    ) -> Float[Array, " components"]:
        _, base = self.split(phi)
        return self.base.responsibilities(base, posterior.base)

    def fingerprint(self, phi: Particle, x: Float[Array, "r d"]) -> Float[Array, " f"]:
        """The base's, and where the warp takes targets: a base alone is no statement about them."""
        bend, base = self.split(phi)
        xp = arrays.of(phi, x)
        targets = xp.linspace(-2, 2, 5, dtype=phi.dtype)
        places = warp.forward(bend, targets) / xp.sqrt(targets.size)
        return xp.concatenate([self.base.fingerprint(base, x), places])


def warped(bend: warp.Warp, data: Data) -> Data:
    """The samples with z for y. Padding may hold anything, which must not reach the gradient."""
    return data._replace(y=warp.forward(bend, _targets(data)))


def log_slopes(bend: warp.Warp, data: Data) -> Float[Array, " m"]:
    slopes = warp.log_slope(bend, _targets(data))
    return arrays.of(slopes, data.mask).where(data.mask, slopes, 0)


def _targets(data: Data) -> Array:
    return arrays.of(*data).where(data.mask, data.y, 0)
