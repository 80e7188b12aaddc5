"""Priors at a client's inputs, as plain float64 arrays: what `certify.gaussian_processes` starts from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np

from pacpfl.certify import gaussian_processes as tempered
from pacpfl.certify.gaussian_processes import Spectrum
from pacpfl.errors import InputError
from pacpfl.personal import personal_model
from pacpfl.priors.base import Prior
from pacpfl.priors.gp import GPPrior
from pacpfl.types import Data, Samples


@dataclass(frozen=True)
class Views:
    """What priors say about samples, component by component.

    `samples` and `others` are the largest numbers there will be: smaller ones are padded, so that
    one compilation serves all clients.
    """

    prior: Prior
    samples: int
    others: int
    dtype: type

    def spectrum(self, particles: jax.Array, samples: Samples) -> tuple[np.ndarray, Spectrum]:
        """Prior weights [k, members] within each particle; and k * members components."""
        m = len(samples)
        weights, *rest = _seen(self.prior, particles, self._padded(samples, self.samples))
        inner = np.asarray(weights, np.float64)
        mean, kernel, noise = _flat(rest)
        spectrum = tempered.decompose(kernel[:, :m, :m], mean[:, :m], samples.y, noise[:, :m])
        return inner / inner.sum(1, keepdims=True), spectrum

    def inputs(self, particles: jax.Array, samples: Samples, others: Samples) -> tempered.Inputs:
        m, t = len(samples), len(others)
        x, other_x = self._padded(samples, self.samples), self._padded(others, self.others)
        mean, cross, variance, noise = _flat(_crossed(self.prior, particles, x, other_x))
        return tempered.Inputs(mean[:, :t], cross[:, :t, :m], variance[:, :t], noise[:, :t])

    def _padded(self, samples: Samples, rows: int) -> jax.Array:
        padding = ((0, rows - len(samples)), (0, 0))
        return jax.device_put(np.pad(samples.x, padding).astype(self.dtype))


@partial(jax.jit, static_argnums=0)
def _seen(prior: Prior, particles: jax.Array, x: jax.Array) -> Any:
    base = base_of(prior)

    def member(part: jax.Array) -> Any:
        return base.mean_function(part, x), base.covariance(part, x), base.noise_std(part, x)

    def particle(phi: jax.Array) -> Any:
        weights, members = prior.parts(phi)
        return weights, *jax.vmap(member)(members)

    return jax.vmap(particle)(particles)


@partial(jax.jit, static_argnums=0)
def _crossed(prior: Prior, particles: jax.Array, x: jax.Array, others: jax.Array) -> Any:
    base = base_of(prior)

    def member(part: jax.Array) -> Any:
        cross, noise = base.covariance(part, others, x), base.noise_std(part, others)
        return base.mean_function(part, others), cross, base.variance(part, others), noise

    return jax.vmap(lambda phi: jax.vmap(member)(prior.parts(phi)[1]))(particles)


def _flat(parts: Any) -> list[np.ndarray]:
    """[k, members, ...] to [k * members, ...], in float64."""
    arrays = [np.asarray(part, np.float64) for part in parts]
    return [a.reshape(-1, *a.shape[2:]) for a in arrays]


@partial(jax.jit, static_argnums=(0, 1))
def weights_in_use(
    prior: Prior, rule: str, particles: jax.Array, data: Data, temperature: float
) -> jax.Array:
    """The weights of the client's own model (`pacpfl.personal`), [k * members]."""
    model = personal_model(prior, particles, data, rule, temperature)
    return (model.weights[:, None] * model.responsibilities()).reshape(-1)


def least_noise(prior: Prior, particles: jax.Array) -> np.ndarray:
    """The smallest noise std that each component has at any input, [k * members]."""
    base = base_of(prior)
    members = jax.vmap(lambda phi: prior.parts(phi)[1])(particles).reshape(-1, base.size)
    return np.asarray(jax.vmap(base.least_noise)(members), np.float64)


def base_of(prior: Prior) -> GPPrior:
    """Return the Gaussian-process family behind a prior; refuse others, which have no closed form."""
    if prior.gaussian is None:
        raise InputError(
            f"There are no certificates for this {type(prior).__name__}; certify a run with plain "
            'Gaussian processes (prior.warp = "none") or Bayesian networks.'
        )
    return prior.gaussian
