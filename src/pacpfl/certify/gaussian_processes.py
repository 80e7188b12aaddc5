"""Gaussian-process posteriors at many temperatures at once, and their exact risks.

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

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from scipy.special import logsumexp

from pacpfl.bounds.losses import (
    LossRange,
    clipped_nll_range,
    clipped_squared_error_range,
    expected_clipped_gaussian_nll,
    expected_clipped_squared_error,
)
from pacpfl.errors import InputError

TEMPERATURES = 2.0 ** np.arange(-7, 2)
LOWEST_NLL = -1.0  # the lower clip of the negative log-likelihood: nobody is rewarded beyond it
LossKind = Literal["clipped-nll", "clipped-squared"]
DEFAULT_LIMITS = {"clipped-nll": 2.0, "clipped-squared": 1.0}


@dataclass(frozen=True)
class Loss:
    """A bounded loss of one drawn function h, with exact expectations under Gaussian posteriors."""

    kind: LossKind
    range: LossRange

    def expected(
        self, mean: np.ndarray, variance: np.ndarray, y: np.ndarray, noise_std: np.ndarray
    ) -> np.ndarray:
        """E of the loss for h(x) ~ N(mean, variance), sample by sample."""
        if self.kind == "clipped-squared":
            return expected_clipped_squared_error(mean, variance, y, self.range.b)
        a, b = self.range.a, self.range.b
        return expected_clipped_gaussian_nll(mean, variance, y, noise_std, a, b)

    def training_width(self, noise_std: np.ndarray) -> float:
        """How far the loss spreads on the scale of the negative log-likelihood, the training's loss.

        A squared error of at most b is (y - h)^2 / (2 s^2) of at most b / (2 s^2) there.
        """
        if self.kind == "clipped-squared":
            return self.range.b / (2 * float(np.min(noise_std)) ** 2)
        return self.range.width


def build_loss(kind: str, limit: float | None = None) -> Loss:
    """The loss of that name with values up to `limit` (by default 2 for clipped-nll, else 1)."""
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


def divergence(spectrum: Spectrum, temperatures: np.ndarray) -> np.ndarray:
    """KL(posterior process || prior process), [t, c]."""
    v = _noise(temperatures)
    values = spectrum.values
    total = values + v
    parts = v / total - 1 + values * (spectrum.residual / total) ** 2 + np.log(total / v)
    return np.asarray(np.maximum(0.5 * parts.sum(-1), 0.0))


def at_samples(spectrum: Spectrum, temperatures: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of h at the client's own samples, [t, c, m]."""
    v, std = _noise(temperatures), spectrum.noise_std
    shrunk = spectrum.values / (spectrum.values + v)
    change = np.einsum("cij,tcj->tci", spectrum.vectors, shrunk * spectrum.residual)
    variance = np.einsum("cij,tcj->tci", spectrum.vectors**2, shrunk * v)
    return spectrum.mean + std * change, std**2 * variance


def at_inputs(
    spectrum: Spectrum, inputs: Inputs, temperatures: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of h at other inputs, [t, c, inputs]."""
    total = spectrum.values + _noise(temperatures)
    rotated = (inputs.cross / spectrum.noise_std[:, None, :]) @ spectrum.vectors
    mean = inputs.mean + np.einsum("cij,tcj->tci", rotated, spectrum.residual / total)
    explained = np.einsum("cij,tcj->tci", rotated**2, 1 / total)
    return mean, np.maximum(inputs.variance - explained, 0.0)


def risks(
    loss: Loss, moments: tuple[np.ndarray, np.ndarray], y: np.ndarray, noise_std: np.ndarray
) -> np.ndarray:
    """E_h of the average loss over the samples, [t, c]."""
    return np.asarray(loss.expected(*moments, y, noise_std).mean(-1))


class Tightest(NamedTuple):
    """For each beta: the best temperature's index, the mixture weights there, and what they give."""

    place: np.ndarray  # [beta]
    weights: np.ndarray  # [beta, c]
    risk: np.ndarray  # [beta]
    log_evidence: np.ndarray  # [beta] max over t and q of -beta L^(Q) - KL(Q || P)


def tightest(
    prior_weights: np.ndarray, risk: np.ndarray, kl: np.ndarray, betas: np.ndarray
) -> Tightest:
    """The posterior among all temperatures and mixture weights with the smallest bound at each beta.

    For fixed t, sum_c q_c (beta R_c + KL_c) + KL(q || p) is smallest for q_c proportional to
    p_c exp(-beta R_c - KL_c), and is then -ln sum_c p_c exp(-beta R_c - KL_c). Since
    ln Z_beta >= -beta L^(Q) - KL(Q || P) for every Q, this is also a proved lower bound on ln Z.
    `risk` and `kl` are [t, c].
    """
    scores = np.log(prior_weights) - np.asarray(betas)[:, None, None] * risk - kl  # [beta, t, c]
    totals = logsumexp(scores, axis=-1)
    place = np.argmax(totals, axis=-1)
    rows = np.arange(len(place))
    floor = totals[rows, place]
    weights = np.exp(scores[rows, place] - floor[:, None])
    return Tightest(place, weights, np.sum(weights * risk[place], -1), floor)


def _noise(temperatures: np.ndarray) -> np.ndarray:
    """The variance of the tempered noise, in units of the noise, before axes of components and samples."""
    return 1 / np.asarray(temperatures)[:, None, None]
