"""Gaussian posteriors of Bayesian networks: what they cost, and their risks from draws.

In the prior's own units z = (w - mu) / sigma the prior is N(0, I). A client's posterior is
N(m, diag(s^2)) in the weights that adapt, and the prior itself in all others, so that

    KL(Q || P) = sum over the weights that adapt of (s^2 + m^2 - 1) / 2 - ln s,

exactly, however m and s were found. Risks have no closed form. A risk is the average loss of one drawn
network over a client's samples; draws of networks are independent, and all clients share them: each
client's own draws are still independent of one another, and one pass of the layers that do not adapt
serves everybody.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pacpfl.bounds.divergences import diagonal_gaussian_kl
from pacpfl.bounds.losses import BRIER, ZERO_ONE, LossRange, clipped_nll_range
from pacpfl.errors import InputError
from pacpfl.methods.pacpfl import PACPFL
from pacpfl.priors.bnn import BNNPrior
from pacpfl.priors.inference import Inference
from pacpfl.priors.networks import affine, body_size, by_rows, features, has_features
from pacpfl.types import Data

ClassLossKind = Literal["zero-one", "brier", "clipped-nll"]
CLASS_LOSSES = ("zero-one", "brier", "clipped-nll")
# How `certify` looks for posteriors. The theorem holds for whatever it finds; more steps, or more
# networks in each, only find better ones.
STEPS, STEP_SIZE, NETWORKS = 150, 0.1, 4
PILOT_DRAWS = 128


@dataclass(frozen=True)
class ClassLoss:
    """A bounded loss of one network where the target is one of several classes."""

    kind: ClassLossKind
    range: LossRange
    classes: int

    def __call__(
        self, outputs: Float[Array, "*m classes"], y: Float[Array, "*m"]
    ) -> Float[Array, "*m"]:
        """Sample by sample. A network whose outputs are not finite has the largest loss."""
        labels = y.astype(jnp.int32)
        if self.kind == "zero-one":
            values = (jnp.argmax(outputs, -1) != labels).astype(outputs.dtype)
        else:
            log_probabilities = jax.nn.log_softmax(outputs)
            right = jax.nn.one_hot(labels, self.classes, dtype=outputs.dtype)
            if self.kind == "brier":
                values = jnp.sum((jnp.exp(log_probabilities) - right) ** 2, -1)
            else:
                values = -jnp.sum(jnp.where(right > 0, log_probabilities, 0), -1)
        finite = jnp.isfinite(outputs).all(-1)
        return jnp.where(finite, jnp.clip(values, self.range.a, self.range.b), self.range.b)

    @property
    def training_range(self) -> LossRange:
        """The training's own loss, the negative log-likelihood, bounded for the privacy of Q*.

        Where another loss is certified it is clipped at that of guessing, ln(classes).
        """
        if self.kind == "clipped-nll":
            return self.range
        return clipped_nll_range(0.0, math.log(self.classes))


def build_class_loss(kind: str, limit: float | None, classes: int) -> ClassLoss:
    """The loss of that name; `limit` is for clipped-nll, by default ln(classes).

    So clipped, nothing is worse than guessing among all classes, and a bound below b says: better.
    """
    if kind not in CLASS_LOSSES:
        raise InputError(
            f"--loss is {kind!r}, but for a run that predicts classes it is one of "
            f"{', '.join(CLASS_LOSSES)}."
        )
    if kind == "clipped-nll":
        largest = math.log(classes) if limit is None else limit
        return ClassLoss("clipped-nll", clipped_nll_range(0.0, largest), classes)
    if limit is not None:
        raise InputError(f"--limit is for --loss clipped-nll; {kind} has no clip, leave it out.")
    if kind == "brier":
        return ClassLoss("brier", BRIER, classes)
    return ClassLoss("zero-one", ZERO_ONE, classes)


class Gaussian(NamedTuple):
    """N(mean, diag(exp(log_std)^2)) over the weights that adapt, in units of the prior's sigma."""

    mean: Float[Array, "... p"]
    log_std: Float[Array, "... p"]

    def divergence(self) -> np.ndarray:
        """KL(Q || P), in float64: these very numbers define the posterior."""
        mean, log_std = (np.asarray(part, np.float64) for part in self)
        return diagonal_gaussian_kl(mean, np.exp(log_std), 0.0, 1.0)


def variational(prior: BNNPrior) -> BNNPrior:
    """The same family, with the inference that `certify` uses; the same layers adapt."""
    inference = Inference(
        "variational", NETWORKS, prior.inference.adapt, STEPS, STEP_SIZE, temperature=1.0
    )
    return replace(prior, inference=inference)


def fixed_weights(prior: BNNPrior) -> int:
    """How many weights do not adapt: the first ones."""
    return body_size(prior.network) if prior.inference.adapt == "last" else 0


@partial(jax.jit, static_argnums=0)
def fit(
    prior: BNNPrior,
    phi: Float[Array, " size"],
    data: Data,
    temperatures: Float[Array, " t"],
    key: Array,
) -> Gaussian:
    """One particle's variational posterior for each temperature and client, [t, clients, p].

    `prior` is one that `variational` gave. At temperature 0 it is the prior.
    """

    def one(data: Data, temperature: Array) -> Gaussian:
        return Gaussian(*prior.posterior(phi, data, temperature, key).reached)

    many = jax.vmap(jax.vmap(one, (0, None)), (None, 0))
    return many(data, temperatures)


@partial(jax.jit, static_argnums=(0, 1))
def drawn_risks(
    prior: BNNPrior,
    loss: ClassLoss,
    phi: Float[Array, " size"],
    posteriors: Gaussian,
    parts: tuple[Data, ...],
    keys: Array,
) -> tuple[Float[Array, "draws r clients"], ...]:
    """The average loss of drawn networks, for r posteriors of each client, on each of its `parts`.

    One network per key and posterior: independent from key to key. A client without samples has 0.
    """
    means, std = prior.moments(phi)
    fixed = fixed_weights(prior)

    def draw(key: Array) -> tuple[Array, ...]:
        noise = jax.random.normal(key, means.shape, means.dtype)
        body = means[:fixed] + std[:fixed] * noise[:fixed]
        z = posteriors.mean + jnp.exp(posteriors.log_std) * noise[fixed:]
        heads = means[fixed:] + std[fixed:] * z
        return tuple(
            masked_mean(loss(_outputs(prior, body, heads, part.x), part.y), part.mask)
            for part in parts
        )

    return jax.lax.map(draw, keys)


def masked_mean(values: Float[Array, "*more m"], mask: Array) -> Float[Array, "*more"]:
    return jnp.where(mask, values, 0).sum(-1) / jnp.maximum(mask.sum(-1), 1)


def _outputs(
    prior: BNNPrior, body: Float[Array, " fixed"], heads: Float[Array, "r c p"], x: Array
) -> Float[Array, "r c m outputs"]:
    """What r networks of each client say at the client's inputs; the body is everybody's."""
    network = prior.network
    if body.size and has_features(network):
        rows = by_rows(lambda rows: features(network, body, rows), x.reshape(-1, x.shape[-1]))
        seen = rows.reshape(*x.shape[:2], rows.shape[-1])
        return jax.vmap(jax.vmap(affine), (0, None))(heads, seen)

    def one(head: Array, x: Array) -> Array:
        return network(jnp.concatenate([body, head]), x)

    return jax.vmap(jax.vmap(one), (0, None))(heads, x)


class Found(NamedTuple):
    """Posteriors of some clients, from several priors: one row for each temperature."""

    posteriors: list[Gaussian]  # of each prior, [rows, clients, p]
    kl: np.ndarray  # [rows, priors, clients]
    risk: np.ndarray  # [rows, priors, clients], from the pilot's draws


def search(
    family: BNNPrior,
    loss: ClassLoss,
    particles: jax.Array,
    data: Data,
    temperatures: tuple[float, ...],
    keys: tuple[jax.Array, jax.Array],
    more: list[Gaussian] | None = None,
) -> Found:
    """Each prior's posteriors at all temperatures, and `more` of them, with what they cost and risk."""
    powers = jnp.asarray(temperatures, particles.dtype)
    posteriors, kls, risks = [], [], []
    for j, phi in enumerate(particles):
        fitted = fit(family, phi, data, powers, jax.random.fold_in(keys[0], j))
        if more is not None:
            fitted = Gaussian(*map(jnp.concatenate, zip(fitted, more[j], strict=True)))
        draws = jax.random.split(jax.random.fold_in(keys[1], j), PILOT_DRAWS)
        (risk,) = drawn_risks(family, loss, phi, fitted, (data,), draws)
        posteriors.append(fitted)
        kls.append(fitted.divergence())
        risks.append(np.asarray(risk, np.float64).mean(0))
    return Found(posteriors, np.stack(kls, 1), np.stack(risks, 1))


class InUse(NamedTuple):
    """The run's own models: weights of the particles, and the networks' or the Gaussians' part."""

    weights: Float[Array, "clients k"]
    gaussian: Gaussian | None  # [clients, k, p], where the run's inference is variational
    test_risk: Float[Array, " clients"]  # of one of its networks, drawn with the model's weights


@partial(jax.jit, static_argnums=(0, 1))
def in_use(
    method: PACPFL, loss: ClassLoss, state: object, data: Data, tests: Data, keys: Array
) -> InUse:
    """What the run's clients predict with, as `engine.evaluate` personalises them."""
    prior = method.prior
    assert isinstance(prior, BNNPrior)

    def one(data: Data, test: Data, key: Array) -> InUse:
        model = method.personalize(state, (), data, key)  # type: ignore[arg-type]
        own = model.posteriors

        def particle(networks: tuple[Array, Array]) -> Array:
            def risk(network: tuple[Array, Array]) -> Array:
                outputs = by_rows(
                    lambda rows: prior.network(jnp.concatenate(network), rows), test.x
                )
                return masked_mean(loss(outputs, test.y), test.mask)

            return jax.lax.map(risk, networks).mean()

        risk = model.weights @ jax.lax.map(particle, (own.body, own.head))
        gaussian = Gaussian(*own.reached) if prior.inference.inference == "variational" else None
        return InUse(model.weights, gaussian, risk)

    return jax.vmap(one)(data, tests, keys)
