"""KL divergences between posterior and prior: Gaussians, processes, mixtures, particles."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp, rel_entr

from pacpfl.bounds.conditions import ROUNDING, finite, positive
from pacpfl.errors import InputError


def diagonal_gaussian_kl(
    mean_q: ArrayLike, std_q: ArrayLike, mean_p: ArrayLike, std_p: ArrayLike
) -> np.ndarray:
    r"""Return KL(N(mean_q, diag std_q^2) || N(mean_p, diag std_p^2)), summed over the last axis:

    $$\sum_j \Big[ \ln \frac{s_j^p}{s_j^q}
      + \frac{(s_j^q)^2 + (\mu_j^q - \mu_j^p)^2}{2 (s_j^p)^2} - \frac12 \Big].$$
    """
    mean_q, std_q = finite(mean_q, "mean of Q"), finite(std_q, "std of Q", above=0.0)
    mean_p, std_p = finite(mean_p, "mean of P"), finite(std_p, "std of P", above=0.0)
    ratio = (std_q / std_p) ** 2
    shift = ((mean_q - mean_p) / std_p) ** 2
    return np.asarray(0.5 * np.sum(ratio - 1 - np.log(ratio) + shift, axis=-1))


def gaussian_kl(
    mean_q: ArrayLike, covariance_q: ArrayLike, mean_p: ArrayLike, covariance_p: ArrayLike
) -> np.ndarray:
    r"""Return KL(N(mean_q, covariance_q) || N(mean_p, covariance_p)), for any leading batch axes:

    $$\tfrac12 \big[ \mathrm{tr}(C_p^{-1} C_q) - d + (\mu_p - \mu_q)^\top C_p^{-1} (\mu_p - \mu_q)
      + \ln |C_p| - \ln |C_q| \big].$$
    """
    lower_q = _cholesky(covariance_q, "covariance of Q")
    lower_p = _cholesky(covariance_p, "covariance of P")
    difference = finite(mean_q, "mean of Q") - finite(mean_p, "mean of P")
    # With L_p L_p' = C_p: tr(C_p^-1 C_q) = |L_p^-1 L_q|^2, and likewise for the mean.
    trace = np.sum(np.linalg.solve(lower_p, lower_q) ** 2, axis=(-2, -1))
    distance = np.sum(np.linalg.solve(lower_p, difference[..., None]) ** 2, axis=(-2, -1))
    log_determinants = 2 * np.sum(_log_diagonal(lower_p) - _log_diagonal(lower_q), axis=-1)
    return np.asarray(0.5 * (trace - difference.shape[-1] + distance + log_determinants))


def gaussian_process_kl(
    kernel: ArrayLike, residual: ArrayLike, noise_variance: ArrayLike, temperature: float = 1.0
) -> np.ndarray:
    r"""Return KL(posterior process || prior process) of a Gaussian process, exactly.

    The posterior of N(y | h(x), s^2)^t has the density prod_j N(y_j | h(x_j), s^2)^t / Z with
    respect to the prior process, a function of f = (h(x_1), ..., h(x_m)) alone. So the two
    processes agree in law given f, and by the chain rule their divergence is that of the law
    of f: KL(N(K C^-1 r, K - K C^-1 K) || N(0, K)), r = y - mean(x), C = K + v I, v = s^2 / t.
    Written without K^-1, so that repeated inputs do no harm:

    $$\tfrac12 \big[ v \, \mathrm{tr}(C^{-1}) - m + r^\top C^{-1} K C^{-1} r + \ln |C| - m \ln v \big].$$

    Any leading batch axes (particles, clients); no padding. With the likelihood's power
    t = beta / m it is the Gibbs posterior of the negative log-likelihood.
    """
    kernel, residual = finite(kernel, "kernel matrix"), finite(residual, "residual")
    noise = finite(noise_variance, "noise variance", above=0.0)
    noise = noise / positive(temperature, "the temperature")
    m = residual.shape[-1]
    if m == 0 or kernel.shape[-2:] != (m, m):
        raise InputError(
            f"The kernel matrix has shape {kernel.shape} for {m} residuals: "
            "give one row and one column per sample, and at least one sample."
        )
    variance = np.expand_dims(noise, (-2, -1))
    lower = _cholesky(kernel + variance * np.eye(m), "kernel matrix plus noise")
    inverse = np.linalg.solve(np.swapaxes(lower, -2, -1), np.linalg.inv(lower))
    weights = np.einsum("...ij,...j->...i", inverse, residual)
    distance = np.einsum("...i,...ij,...j->...", weights, kernel, weights)
    trace = noise * np.trace(inverse, axis1=-2, axis2=-1)
    log_determinant = 2 * np.sum(_log_diagonal(lower), axis=-1)
    kl = 0.5 * (trace - m + distance + log_determinant - m * np.log(noise))
    # It is a sum of non-negative parts; rounding must not make it negative.
    return np.asarray(np.maximum(kl, 0.0))


def mixture_kl(weights_q: ArrayLike, weights_p: ArrayLike, kls: ArrayLike) -> np.ndarray:
    r"""Return an upper bound on KL(sum_c q_c Q_c || sum_c p_c P_c) for mixtures, last axis c:

    $$\mathrm{KL}(q \| p) + \sum_c q_c \mathrm{KL}(Q_c \| P_c).$$

    It IS the divergence of the pairs (component, hypothesis), and forgetting the component
    cannot increase a divergence. A client that mixes k particles with weights q uses it with
    p = 1/k, and with the epsilon of releasing all k particles.
    """
    q, p = _distribution(weights_q, "Q's mixture"), _distribution(weights_p, "P's mixture")
    kls = finite(kls, "divergence of the components", least=0.0)
    choice = rel_entr(q, p)
    if not np.all(np.isfinite(choice)):
        raise InputError("Q's mixture uses a component that P's gives no weight to.")
    return np.asarray(np.sum(choice + q * kls, axis=-1))


def mixture_log_evidence(weights_p: ArrayLike, log_evidences: ArrayLike) -> np.ndarray:
    """Return ln Z of the mixture prior sum_c p_c P_c: logsumexp_c(ln p_c + ln Z_c), last axis c.

    Its Gibbs posterior mixes the components' posteriors with weights p_c Z_c / Z: the paper's
    evidence weights are the optimal ones for the bound.
    """
    p = _distribution(weights_p, "P's mixture")
    return np.asarray(logsumexp(finite(log_evidences, "the log evidences"), b=p, axis=-1))


class Bracket(NamedTuple):
    """Two numbers between which a quantity is proved to lie."""

    lower: float
    upper: float


def particle_cloud_kl(
    particles: ArrayLike, bandwidth: ArrayLike, prior_mean: ArrayLike, prior_std: ArrayLike
) -> Bracket:
    r"""Return KL(Q || hyper-prior) for the particles as a cloud, $Q = \frac1k \sum_j N(\phi_j, s^2)$:

    $$\frac1k \sum_j \mathrm{KL}(N(\phi_j, s^2) \| \text{hyper-prior}) - \ln k
      \le \mathrm{KL}(Q \| \text{hyper-prior})
      \le \frac1k \sum_j \mathrm{KL}(N(\phi_j, s^2) \| \text{hyper-prior}).$$

    No estimate: the upper end is convexity of KL, and the gap is the information that a draw
    from Q has about its component, at most ln k. The bound then speaks of priors drawn from
    Q, that is of particles with noise of std s = `bandwidth` added. The bare particles
    (s -> 0) have an infinite divergence from any continuous hyper-prior.
    """
    cloud = np.atleast_2d(finite(particles, "particles"))
    kls = diagonal_gaussian_kl(cloud, bandwidth, prior_mean, prior_std)
    average = float(np.mean(kls))
    return Bracket(max(0.0, average - math.log(len(cloud))), average)


def optimal_hyper_kl(tau: float, expected_log_evidence: ArrayLike, log_partition: float) -> float:
    r"""Return KL(Q* || hyper-prior) by an identity.

    $$\mathrm{KL}(Q^* \| \text{hyper-prior}) = \tau \sum_i E_{P \sim Q^*} \ln Z_i(P) - \ln Z^S_\tau.$$

    With an average over SVGD's particles in place of E_{P~Q*} it is an estimate whose error
    nobody knows: the particles are not draws from Q*. It may then even be negative, which is
    refused.
    """
    total = float(np.sum(finite(expected_log_evidence, "the expected log evidences")))
    kl = positive(tau, "tau") * total - log_partition
    if not kl >= -ROUNDING * max(1.0, abs(log_partition)):
        raise InputError(
            f"KL(Q* || hyper-prior) comes out as {kl}, below zero: "
            "the log evidences are no average under Q* for this ln Z^S."
        )
    return max(kl, 0.0)


def _distribution(values: ArrayLike, name: str) -> np.ndarray:
    array = finite(values, f"weights of {name}")
    if np.any(array < 0) or np.any(np.abs(array.sum(axis=-1) - 1) > 1e-6):
        raise InputError(f"The weights of {name} must be zero or more and sum to one.")
    return array


def _cholesky(matrix: ArrayLike, name: str) -> np.ndarray:
    try:
        return np.linalg.cholesky(finite(matrix, name))
    except np.linalg.LinAlgError as error:
        raise InputError(f"The {name} is not positive definite.") from error


def _log_diagonal(lower: np.ndarray) -> np.ndarray:
    return np.asarray(np.log(np.diagonal(lower, axis1=-2, axis2=-1)))
