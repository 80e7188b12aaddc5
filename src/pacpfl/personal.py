"""What happens at a client: from the server's particles and its own data to its own model.

A client predicts with the mixture of its posteriors, one from every particle. Three ways to weigh
them:

- `uniform`, the default: 1/k each. With ten samples the three rules do equally well (Polynomial study);
  with many, this one alone keeps all particles, which is safest where some have over-fitted.
- `evidence` (paper): alpha_kappa proportional to Z(P_kappa, S_i). Right if the priors are, and sharp:
  from about 50 samples on it picks one particle.
- `stacking`: the weights whose mixture predicts each sample best from all the others
  (leave-one-out log density; closed form for Gaussian processes).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pacpfl import arrays
from pacpfl.arrays.records import record
from pacpfl.priors.base import Prior
from pacpfl.settings import Settings, key
from pacpfl.types import Data, Mixture, Probabilities, WarpedPrediction, flattened

if TYPE_CHECKING:
    from jaxtyping import Array, Float

    from pacpfl.priors.base import Posterior, Scalar

EXACT = 2048  # rows up to which a client's Gaussian process is exact
WEIGHTS = ("uniform", "evidence", "stacking")


@dataclass(frozen=True)
class PersonalSettings(Settings):
    weights: str = key(
        "uniform",
        "weights of the particles at a client: uniform, evidence (paper), stacking",
        choices=WEIGHTS,
    )
    exact: int = key(
        EXACT,
        "rows up to which a client's Gaussian process is exact; beyond, inducing inputs stand for them",
        least=1,
    )


@record("prior", "rule")
@dataclass(frozen=True, eq=False)
class PersonalModel:
    """One client's model. Call it with inputs; `extend` it with samples that come later."""

    prior: Prior
    rule: str
    particles: Float[Array, "k size"]
    posteriors: Posterior  # leading axis: k
    weights: Float[Array, " k"]

    def __call__(self, x: Float[Array, "t d"]) -> Mixture | Probabilities:
        xp = arrays.of(self.particles, x)
        each = xp.each(lambda p, q: self.prior.predict(p, q, x))(self.particles, self.posteriors)
        return mix(self.weights, each)

    def extend(self, more: Data) -> PersonalModel:
        """The model with more samples. Factors grow, none is computed anew; the weights are."""
        xp = arrays.of(self.particles, *more)
        posteriors = xp.each(lambda p, q: self.prior.extend(p, q, more))(
            self.particles, self.posteriors
        )
        weights = particle_weights(self.prior, self.particles, posteriors, self.rule)
        return PersonalModel(self.prior, self.rule, self.particles, posteriors, weights)

    def responsibilities(self) -> Float[Array, "k components"]:
        """For each particle, how much each of its base priors explains this client."""
        xp = arrays.of(self.particles)
        return xp.each(self.prior.responsibilities)(self.particles, self.posteriors)

    def held_out(self) -> Float[Array, " m"] | None:
        """Where each sample lies in what the others say of it, as a probability (its PIT).

        Particles are weighed without the sample, too, but for stacking. None where the family has no
        closed form.
        """
        if self.prior.bayesian is not None:
            return None
        xp = arrays.of(self.particles)
        left = xp.each(self.prior.leave_one_out)(self.particles, self.posteriors)
        if left.below is None:
            return None
        weights = self.weights[:, None]
        if self.rule == "evidence":
            whole = xp.each(self.prior.log_evidence_of)(self.particles, self.posteriors)
            without = xp.where(weights > 0, whole[:, None] - left.evidence, -xp.inf)
            weights = xp.softmax(without, axis=0)
        return xp.sum(xp.where(weights > 0, weights * left.below, 0), axis=0)


def personal_model(
    prior: Prior,
    particles: Float[Array, "k size"],
    data: Data,
    rule: str = "uniform",
    temperature: Scalar = 1.0,
    key: Array | None = None,
) -> PersonalModel:
    """Condition every particle on the data (S_i and S~_i together) and weigh them.

    The likelihood is taken to the power `temperature`.
    `key` is for families whose posterior is drawn; for the others it is not needed.
    """
    keys, xp = None, arrays.of(particles, *data)
    if key is not None:
        import jax

        keys = jax.random.split(key, particles.shape[0])

    # The matrices of many rows fill a processor, and of several particles the memory.
    each = xp.one_by_one if len(data.mask) > EXACT else xp.each
    posteriors = each(lambda phi, key: prior.posterior(phi, data, temperature, key))(
        particles, keys
    )
    weights = particle_weights(prior, particles, posteriors, rule)
    return PersonalModel(prior, rule, particles, posteriors, weights)


def mix(weights: Float[Array, " k"], each: Mixture | Probabilities) -> Mixture | Probabilities:
    """One mixture of k predictions (leading axis k). What has weight 0 may be NaN: it is not used."""
    if isinstance(each, Probabilities):
        xp = arrays.of(weights, each.log_probabilities)
        together = xp.logsumexp(each.log_probabilities, axis=0, b=weights[:, None, None])
        return Probabilities(together)
    joint = weights[:, None] * each.weights
    used = joint[..., None] > 0
    xp = arrays.of(joint, each.means)
    each = each._replace(
        weights=joint, means=xp.where(used, each.means, 0), stds=xp.where(used, each.stds, 1)
    )
    if isinstance(each, WarpedPrediction):
        each = each._replace(warps=xp.where(used, each.warps, 0))
    return flattened(each)


def particle_weights(
    prior: Prior, particles: Float[Array, "k size"], posteriors: Posterior, rule: str
) -> Float[Array, " k"]:
    """Weights that sum to one; 0 for a particle whose evidence is not finite."""
    xp = arrays.of(particles)
    log_evidence = xp.each(prior.log_evidence_of)(particles, posteriors)
    finite = xp.isfinite(log_evidence)
    if rule == "evidence":
        return xp.softmax(xp.where(finite, log_evidence, -xp.inf))
    uniform = finite / xp.maximum(finite.sum(), 1)
    if rule == "uniform":
        return uniform
    held_out = xp.each(prior.leave_one_out)(particles, posteriors).density
    return stacking_weights(xp.where(finite[:, None], held_out, -xp.inf), uniform)


def stacking_weights(
    log_densities: Float[Array, "k m"], start: Float[Array, " k"], steps: int = 200
) -> Float[Array, " k"]:
    """argmax over the simplex of sum_j ln sum_kappa w_kappa p_kappa(y_j | others): concave.

    The EM iteration w <- w mean_j(p_kappa(j) / sum w p(j)) climbs it and needs no step size.
    Samples to which all particles give the same density prefer none. They are left out, and so is
    padding (log density 0 under every particle): each would only make the steps smaller.
    """
    xp = arrays.of(log_densities, start)
    densities = xp.exp(log_densities - xp.max(log_densities, axis=0))
    telling = xp.any((densities < 1) & (start[:, None] > 0), axis=0)

    def climb(_: int, weights: Array) -> Array:
        mixture = weights @ densities
        climbed = weights * ((densities / mixture) @ telling)
        return xp.where(telling.any(), climbed / climbed.sum(), weights)

    return xp.repeat(steps, climb, start.astype(densities.dtype))
