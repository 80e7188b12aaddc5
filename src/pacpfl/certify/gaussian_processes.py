r"""Certificates of clients whose models are Gaussian processes, with exact risks.

A client-level bound holds for every posterior at the same time, so a client may choose the power t
of the likelihood after it has seen its samples, free of charge. In units of the noise, with
S = diag(s(x_1), ..., s(x_m)), S^-1 K S^-1 = U diag(l) U' and v = 1/t, everything a bound needs is a sum
over eigenvalues, so one decomposition serves every t:

    mean of h(X)      m + S U (l / (l + v)) z,            z = U' S^-1 (y - m)
    variance of h(X)  s_i^2 sum_j U_ij^2 l_j v / (l_j + v)
    KL                1/2 sum_j [ v/(l_j + v) - 1 + l_j z_j^2/(l_j + v)^2 + ln(l_j + v) - ln v ].

The last line is `bounds.gaussian_process_kl` in other coordinates. Components (particles, or members
of mixture priors) are on the axis before the samples, temperatures on the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import logsumexp
from scipy.stats import norm

from pacpfl import hyper
from pacpfl.bounds.losses import (
    LossRange,
    clipped_nll_range,
    clipped_squared_error_range,
    expected_clipped_gaussian_nll,
    expected_clipped_squared_error,
)
from pacpfl.certify.clients import (
    ClientBounds,
    Family,
    Models,
    Posteriors,
    gather,
    roomy,
    stores,
)
from pacpfl.certify.held_out import RowLosses
from pacpfl.data.store import ClientStore, from_clients
from pacpfl.engine.keys import Keys
from pacpfl.errors import InputError
from pacpfl.personal import personal_model
from pacpfl.priors.base import Prior
from pacpfl.priors.gp import GPPrior
from pacpfl.run import Trained
from pacpfl.types import Data, Samples

TEMPERATURES = tuple(2.0**power for power in range(-7, 2))
MOST_DRAWS = 600  # of pairs for the averages
DRAWS_ALONE = 8  # priors drawn from the hyper-prior, to tell what a client could do alone
LOWEST_NLL = -1.0  # the lower clip of the negative log-likelihood: nobody is rewarded beyond it
DEFAULT_LIMITS = {"clipped-nll": 2.0, "clipped-squared": 1.0}


@dataclass(frozen=True)
class Loss:
    """A bounded loss of one drawn function h, with exact expectations under Gaussian posteriors."""

    kind: str  # one of DEFAULT_LIMITS
    range: LossRange

    def expected(
        self, mean: np.ndarray, variance: np.ndarray, y: np.ndarray, noise_std: np.ndarray
    ) -> np.ndarray:
        """Return E of the loss for h(x) ~ N(mean, variance), sample by sample."""
        if self.kind == "clipped-squared":
            return expected_clipped_squared_error(mean, variance, y, self.range.b)
        a, b = self.range.a, self.range.b
        return expected_clipped_gaussian_nll(mean, variance, y, noise_std, a, b)

    def averaged(
        self, weights: np.ndarray, mean: np.ndarray, std: np.ndarray, y: np.ndarray
    ) -> np.ndarray:
        """Return the loss of the mixture that a client predicts with, row by row; std includes noise."""
        if self.kind == "clipped-squared":
            return np.minimum((weights @ mean - y) ** 2, self.range.b)
        each = norm.logpdf(y, mean, std)
        return np.clip(-logsumexp(each, 0, b=weights[:, None]), self.range.a, self.range.b)

    def training_width(self, noise_std: np.ndarray) -> float:
        """Return how far the loss spreads on the scale of the training's, the negative log-likelihood.

        A squared error of at most b is (y - h)^2 / (2 s^2) of at most b / (2 s^2) there.
        """
        if self.kind == "clipped-squared":
            return self.range.b / (2 * float(np.min(noise_std)) ** 2)
        return self.range.width


def build_loss(kind: str, limit: float | None = None) -> Loss:
    """Return the loss of that name with values up to `limit` (by default 2 for clipped-nll, else 1)."""
    if kind not in DEFAULT_LIMITS:
        raise InputError(f"--loss is {kind!r}, but it is one of {', '.join(DEFAULT_LIMITS)}.")
    largest = DEFAULT_LIMITS[kind] if limit is None else limit
    if kind == "clipped-squared":
        return Loss("clipped-squared", clipped_squared_error_range(largest))
    return Loss("clipped-nll", clipped_nll_range(LOWEST_NLL, largest))


class Spectrum(NamedTuple):
    """One client's samples as each of c components sees them."""

    values: np.ndarray  # [c, m] eigenvalues of the kernel matrix in units of the noise
    vectors: np.ndarray  # [c, m, m]
    mean: np.ndarray  # [c, m] prior mean at the samples
    residual: np.ndarray  # [c, m] U' (y - mean) / noise_std
    noise_std: np.ndarray  # [c, m]


class Inputs(NamedTuple):
    """Other inputs (a test set) as each component sees them."""

    mean: np.ndarray  # [c, t]
    cross: np.ndarray  # [c, t, m] kernel between them and the samples
    variance: np.ndarray  # [c, t] prior variance
    noise_std: np.ndarray  # [c, t]


def decompose(
    kernel: np.ndarray, mean: np.ndarray, y: np.ndarray, noise_std: np.ndarray
) -> Spectrum:
    scaled = np.asarray(kernel, np.float64) / (noise_std[:, :, None] * noise_std[:, None, :])
    values, vectors = np.linalg.eigh(scaled)
    mean = np.asarray(mean, np.float64)
    residual = np.einsum("cij,ci->cj", vectors, (y - mean) / noise_std)
    # A kernel computed in float32 may have eigenvalues just below zero.
    return Spectrum(np.maximum(values, 0.0), vectors, mean, residual, noise_std)


def divergence(spectrum: Spectrum, temperatures: Sequence[float]) -> np.ndarray:
    """Return KL(posterior process || prior process), [t, c]."""
    v = _noise(temperatures)
    values = spectrum.values
    total = values + v
    parts = v / total - 1 + values * (spectrum.residual / total) ** 2 + np.log(total / v)
    return np.asarray(np.maximum(0.5 * parts.sum(-1), 0.0))


def at_samples(spectrum: Spectrum, temperatures: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and variance of h at the client's own samples, [t, c, m]."""
    v, std = _noise(temperatures), spectrum.noise_std
    shrunk = spectrum.values / (spectrum.values + v)
    change = np.einsum("cij,tcj->tci", spectrum.vectors, shrunk * spectrum.residual)
    variance = np.einsum("cij,tcj->tci", spectrum.vectors**2, shrunk * v)
    return spectrum.mean + std * change, std**2 * variance


def at_inputs(
    spectrum: Spectrum, inputs: Inputs, temperatures: Sequence[float]
) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and variance of h at other inputs, [t, c, inputs]."""
    total = spectrum.values + _noise(temperatures)
    rotated = (inputs.cross / spectrum.noise_std[:, None, :]) @ spectrum.vectors
    mean = inputs.mean + np.einsum("cij,tcj->tci", rotated, spectrum.residual / total)
    explained = np.einsum("cij,tcj->tci", rotated**2, 1 / total)
    return mean, np.maximum(inputs.variance - explained, 0.0)


def _noise(temperatures: Sequence[float]) -> np.ndarray:
    """Return the variance of the tempered noise in units of the noise, before two more axes."""
    return 1 / np.asarray(temperatures)[:, None, None]


def base_of(prior: Prior) -> GPPrior:
    """Return the Gaussian-process family behind a prior; refuse others, which have no closed form."""
    if prior.gaussian is None:
        raise InputError(
            f"There are no certificates for this {type(prior).__name__}; certify a run with plain "
            'Gaussian processes (prior.warp = "none") or Bayesian networks.'
        )
    return prior.gaussian


def inputs_of(
    prior: Prior, particles: jax.Array, data: Data, others: Data | None = None
) -> tuple[np.ndarray, Inputs]:
    """Return the weights of the members, and what they say of the inputs `others` (or of the samples).

    Clients are padded, so that one compilation serves all of them; padding is left out again here.
    """
    weights, parts = _seen(prior, particles, data.x, None if others is None else others.x)
    # In float64, and from [k, members, ...] to [k * members, ...].
    mean, cross, variance, noise = (
        np.asarray(part, np.float64).reshape(-1, *part.shape[2:]) for part in parts
    )
    m, t = (int(np.asarray(part.mask).sum()) for part in (data, data if others is None else others))
    inputs = Inputs(mean[:, :t], cross[:, :t, :m], variance[:, :t], noise[:, :t])
    return np.asarray(weights, np.float64), inputs


@partial(jax.jit, static_argnums=0)
def _seen(
    prior: Prior, particles: jax.Array, x: jax.Array, others: jax.Array | None
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    base = base_of(prior)
    at, samples = (x, None) if others is None else (others, x)

    def member(part: jax.Array) -> tuple[jax.Array, ...]:
        cross, noise = base.covariance(part, at, samples), base.noise_std(part, at)
        return base.mean_function(part, at), cross, base.variance(part, at), noise

    def particle(phi: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        weights, members = prior.parts(phi)
        return weights, jax.vmap(member)(members)

    return jax.vmap(particle)(particles)


@partial(jax.jit, static_argnums=(0, 1))
def weights_in_use(
    prior: Prior, rule: str, particles: jax.Array, data: Data, temperature: float
) -> jax.Array:
    """Return the weights of the client's own model (`pacpfl.personal`), [k * members]."""
    model = personal_model(prior, particles, data, rule, temperature)
    return (model.weights[:, None] * model.responsibilities()).reshape(-1)


def least_noise(prior: Prior, particles: jax.Array) -> np.ndarray:
    """Return the smallest noise std that each component has at any input, [k * members]."""
    base = base_of(prior)
    members = jax.vmap(lambda phi: prior.parts(phi)[1])(particles).reshape(-1, base.size)
    return np.asarray(jax.vmap(base.least_noise)(members), np.float64)


def posteriors(
    loss: Loss,
    prior: Prior,
    particles: jax.Array,
    data: Data,
    y: np.ndarray,
    temperatures: Sequence[float],
) -> tuple[Spectrum, Posteriors]:
    """Return the components' spectra, and what their posteriors risk and cost at each temperature."""
    weights, own = inputs_of(prior, particles, data)
    spectrum = decompose(own.cross, own.mean, y, own.noise_std)
    risk = loss.expected(*at_samples(spectrum, temperatures), y, own.noise_std).mean(-1)
    weights = weights / weights.sum(1, keepdims=True)
    return spectrum, Posteriors(weights, risk, divergence(spectrum, temperatures))


def family(trained: Trained, loss: Loss) -> Family:
    """Return what a run of Gaussian processes says: nothing is drawn but priors, all risks are exact."""
    method, particles, clients = trained.method, trained.particles, trained.federation.existing
    prior, run = method.prior, method.settings.temperature
    (personal, tests), shared = stores(trained), from_clients(clients)
    key = Keys.of(trained.config.seed).certificates()
    alone = hyper.sample(key, method.hyper_prior(trained.dtype), DRAWS_ALONE)
    powers = (*TEMPERATURES, run)

    def judge(places: np.ndarray, bounds: Sequence[ClientBounds]) -> list[Models]:
        (place,), (one,) = places, bounds
        client, y, data = one.client, one.client.personal.y, single(personal, place, trained.dtype)
        spectrum, own = posteriors(loss, prior, particles, data, y, powers)
        _, others = posteriors(loss, prior, alone, data, y, TEMPERATURES)
        best, test_risk = one.best(own), None
        if client.test:
            _, inputs = inputs_of(prior, particles, data, single(tests, place, trained.dtype))
            moments = at_inputs(spectrum, inputs, [powers[best.row]])
            each = loss.expected(*moments, client.test.y, inputs.noise_std)[0].mean(-1)
            test_risk = float(best.weights @ each)
        return [Models(own, others, best, own.risk_of(best), test_risk)]

    def rows(
        places: np.ndarray, fits: Sequence[Samples], asked: Sequence[Samples]
    ) -> list[RowLosses]:
        """Judge the models as they are in use: at the run's temperature, with the run's weights."""
        (fit,), (ask,) = fits, asked
        data, others = (single(roomy([part]), 0, trained.dtype) for part in (fit, ask))
        _, own = inputs_of(prior, particles, data)
        spectrum = decompose(own.cross, own.mean, fit.y, own.noise_std)
        _, inputs = inputs_of(prior, particles, data, others)
        in_use = weights_in_use(prior, method.mixture_weights, particles, data, run)
        weights = np.asarray(in_use, np.float64)
        weights = weights / weights.sum()
        (mean,), (variance,) = at_inputs(spectrum, inputs, [run])
        drawn = weights @ loss.expected(mean, variance, ask.y, inputs.noise_std)
        std = np.sqrt(variance + inputs.noise_std**2)
        return [RowLosses(loss.averaged(weights, mean, std, ask.y), drawn)]

    def judge_pair(
        phi: np.ndarray, place: int, betas: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        y, data = clients[place].train.y, single(shared, place, trained.dtype)
        particle = jnp.asarray(phi[None], trained.dtype)
        _, own = posteriors(loss, prior, particle, data, y, TEMPERATURES)
        best = own.tightest(betas)
        logs = np.array([choice.log_evidence for choice in best])
        # Clipping to [a, b] keeps it a bound: ln Z never leaves [-beta b, -beta a].
        values = np.clip(-logs / betas, loss.range.a, loss.range.b)
        return values, np.array(list(map(own.risk_of, best)))

    return Family(
        trained,
        loss.range,
        (loss.training_width(least_noise(prior, particles)), "the bounded loss"),
        "function drawn from a tempered posterior, fitted to all rows",
        powers,
        list(np.arange(personal.clients)[:, None]),
        judge,
        rows,
        judge_pair,
        loss.range.b,
        int(np.clip(5e9 / shared.longest**3, 64, MOST_DRAWS)),
    )


def single(store: ClientStore, place: int, dtype: type) -> Data:
    return jax.tree.map(lambda a: a[0], gather(store, np.array([place]), dtype))
