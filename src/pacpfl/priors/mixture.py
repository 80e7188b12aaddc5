"""K base priors with learned weights as ONE prior: for clients of several kinds.

The optimal hyper-posterior asks every particle to explain all clients, so particles do not
specialise. A particle that is itself a mixture can: with phi = (logits, phi_1, ..., phi_K) and
pi = softmax(logits), P_phi = sum_j pi_j P_{phi_j} and

    Z(P_phi, S) = sum_j pi_j Z(P_{phi_j}, S).

Every theorem of the paper holds for it, because they ask nothing of the family of priors. The
posterior is the mixture of the base posteriors with the responsibilities
r_j proportional to pi_j Z(P_{phi_j}, S) as weights: they tell which kind a client is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from pacpfl import arrays
from pacpfl.hyper import Block
from pacpfl.priors.base import Exact, LeftOut, Prior
from pacpfl.types import Data, Mixture, flattened

if TYPE_CHECKING:
    from jaxtyping import Array, Float

    from pacpfl.priors.base import Inputs, Noise, Particle, Posterior, Scalar
    from pacpfl.priors.gp import GPPrior


class MixturePosterior(NamedTuple):
    base: Posterior  # the base family's posterior, with a leading axis of K
    log_evidence: Float[Array, " K"]  # ln pi_j + ln Z(P_{phi_j}, S)


@dataclass(frozen=True)
class MixturePrior(Prior):
    """K members of `base` (any family whose predictions are Gaussian mixtures)."""

    base: Exact
    members: int

    @property
    def components(self) -> int:
        return self.members * self.base.components

    @property
    def plain(self) -> bool:
        return self.base.plain

    @property
    def gaussian(self) -> GPPrior | None:
        return self.base.gaussian

    @property
    def blocks(self) -> tuple[Block, ...]:
        names = [
            block._replace(name=f"{j}.{block.name}")
            for j in range(self.members)
            for block in self.base.blocks
        ]
        return (Block("logits", self.members, 0.0, 1.0), *names)

    def split(self, phi: Particle) -> tuple[Float[Array, " K"], Float[Array, "K base"]]:
        """ln pi and the members' own parameters."""
        logits, rest = phi[: self.members], phi[self.members :]
        return arrays.of(phi).log_softmax(logits), rest.reshape(self.members, self.base.size)

    def parts(self, phi: Particle) -> tuple[Float[Array, " K"], Float[Array, "K base"]]:
        log_weights, members = self.split(phi)
        return arrays.of(phi).exp(log_weights), members

    def _each(self, function: Callable[..., Any], phi: Particle, *more: Any) -> Any:
        """What a function says of every member; `more` has a leading axis of K."""
        return arrays.of(phi).each(function)(self.split(phi)[1], *more)

    def log_evidence(
        self, phi: Particle, data: Data, temperature: Scalar = 1.0, noise: Noise = ()
    ) -> Float[Array, ""]:
        each = self._each(lambda p: self.base.log_evidence(p, data, temperature), phi)
        return arrays.of(phi, each).logsumexp(self.split(phi)[0] + each)

    def posterior(
        self, phi: Particle, data: Data, temperature: Scalar = 1.0, key: Array | None = None
    ) -> MixturePosterior:
        base = self._each(lambda p: self.base.posterior(p, data, temperature), phi)
        return self._weigh(phi, base)

    def extend(self, phi: Particle, posterior: MixturePosterior, more: Data) -> MixturePosterior:
        base = self._each(lambda p, q: self.base.extend(p, q, more), phi, posterior.base)
        return self._weigh(phi, base)

    def _weigh(self, phi: Array, base: Posterior) -> MixturePosterior:
        each = self._each(self.base.log_evidence_of, phi, base)
        return MixturePosterior(base, self.split(phi)[0] + each)

    def log_evidence_of(self, phi: Particle, posterior: MixturePosterior) -> Float[Array, ""]:
        return arrays.of(posterior.log_evidence).logsumexp(posterior.log_evidence)

    def responsibilities(
        self, phi: Particle, posterior: MixturePosterior
    ) -> Float[Array, " components"]:
        within = self._each(self.base.responsibilities, phi, posterior.base)
        return (self._shares(posterior)[:, None] * within).reshape(-1)

    def _shares(self, posterior: MixturePosterior) -> Array:
        """How much of the posterior each member carries."""
        return arrays.of(posterior.log_evidence).softmax(posterior.log_evidence)

    def predict(self, phi: Particle, posterior: MixturePosterior, x: Inputs) -> Mixture:
        each = self._each(lambda p, q: self.base.predict(p, q, x), phi, posterior.base)
        weights = self._shares(posterior)[:, None] * each.weights
        return flattened(each._replace(weights=weights))

    def leave_one_out(self, phi: Particle, posterior: MixturePosterior) -> LeftOut:
        """Without sample j the members' weights change too: to pi_k Z_k(S without j)."""
        each = self._each(self.base.leave_one_out, phi, posterior.base)  # [K, m]
        total = posterior.log_evidence[:, None]
        others = total - each.evidence
        xp = arrays.of(others)
        rest = xp.logsumexp(others, axis=0)
        density = xp.logsumexp(others + each.density, axis=0) - rest
        below = None if each.below is None else xp.sum(xp.exp(others - rest) * each.below, axis=0)
        return LeftOut(density, xp.logsumexp(total, axis=0) - rest, below)

    def fingerprint(self, phi: Particle, x: Float[Array, "r d"]) -> Float[Array, " f"]:
        """Members' fingerprints, each as strongly as the mixture uses it."""
        each = self._each(lambda p: self.base.fingerprint(p, x), phi)
        return (arrays.of(phi).exp(0.5 * self.split(phi)[0])[:, None] * each).reshape(-1)


def mixture(base: Exact, members: int) -> Exact:
    """`base` itself for one member, else the mixture."""
    return base if members == 1 else MixturePrior(base, members)
