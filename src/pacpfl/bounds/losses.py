"""Bounded losses, and their expectation under a posterior.

PAC-Bayes needs a loss in a known interval [a, b]. A model here is a hypothesis h drawn from the
posterior, so the risk is an AVERAGE over h of the loss of h ("Gibbs risk"), not the loss of the
averaged prediction. Under Gaussian posteriors the averages below are exact; elsewhere
`confidence.betting_bound` turns draws into an upper bound that fails with a stated probability.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr

from pacpfl import metrics
from pacpfl.bounds.conditions import finite, loss_width, not_negative, positive
from pacpfl.errors import InputError


@dataclass(frozen=True)
class LossRange:
    """The name of a loss, and the interval [a, b] its values lie in."""

    name: str
    a: float
    b: float

    def __post_init__(self) -> None:
        loss_width(self.a, self.b)

    @property
    def width(self) -> float:
        return self.b - self.a


# Gauss-Legendre on [-1, 1], exact to rounding for a Gaussian no narrower than the interval.
NODES, NODE_WEIGHTS = np.polynomial.legendre.leggauss(24)

ZERO_ONE = LossRange("0-1", 0.0, 1.0)
BRIER = LossRange("Brier", 0.0, 2.0)


def clipped_squared_error_range(limit: float) -> LossRange:
    return LossRange(f"squared error, at most {limit:g}", 0.0, positive(limit, "the limit"))


def clipped_nll_range(a: float, b: float) -> LossRange:
    return LossRange(f"negative log-likelihood within [{a:g}, {b:g}]", a, b)


def miss_range(tolerance: float) -> LossRange:
    return LossRange(f"off by more than {not_negative(tolerance, 'the tolerance'):g}", 0.0, 1.0)


# The loss of one hypothesis, element by element.


def zero_one(predicted: ArrayLike, labels: ArrayLike) -> np.ndarray:
    """Return 1 where the predicted class is not the label, else 0."""
    return np.asarray(np.asarray(predicted) != np.asarray(labels), dtype=np.float64)


def brier(probabilities: ArrayLike, labels: ArrayLike) -> np.ndarray:
    r"""Return $\sum_c (p_c - [c = \text{label}])^2$ in [0, 2]; classes on the last axis.

    Convex in p: the averaged prediction has no higher Brier loss than the average over h.
    """
    p = finite(probabilities, "probabilities")
    if np.any(p < 0) or np.any(np.abs(p.sum(axis=-1) - 1) > 1e-6):
        raise InputError("The class probabilities must be zero or more and sum to one.")
    if not np.all(np.isin(labels, np.arange(p.shape[-1]))):
        raise InputError(f"A label is no whole number in 0..{p.shape[-1] - 1}.")
    return metrics.brier_scores(p, np.asarray(labels))


def clipped_nll(log_density: ArrayLike, a: float, b: float) -> np.ndarray:
    """Return -ln p(y | x, h), clipped to [a, b]. A log density of -infinity gives b."""
    loss_width(a, b)
    values = np.asarray(log_density, dtype=np.float64)
    if np.any(np.isnan(values)) or np.any(values == np.inf):
        raise InputError("A log density is NaN or +infinity, and no loss follows from it.")
    return np.asarray(np.clip(-values, a, b))


def clipped_squared_error(predicted: ArrayLike, target: ArrayLike, limit: float) -> np.ndarray:
    """Return min((predicted - target)^2, limit) in [0, limit]."""
    difference = finite(predicted, "predictions") - finite(target, "targets")
    return np.asarray(np.minimum(difference**2, positive(limit, "the limit")))


def miss(predicted: ArrayLike, target: ArrayLike, tolerance: float) -> np.ndarray:
    """Return the 0-1 loss of regression: 1 where |predicted - target| > tolerance."""
    difference = np.abs(finite(predicted, "predictions") - finite(target, "targets"))
    return np.asarray(difference > not_negative(tolerance, "the tolerance"), dtype=np.float64)


# Exact expectations where h(x) ~ N(mean, variance).


def expected_clipped_square(
    mean: ArrayLike, variance: ArrayLike, low: ArrayLike, high: ArrayLike
) -> np.ndarray:
    r"""Return E clip(u^2, low, high) for u ~ N(mean, variance) and 0 <= low < high:

    $$\text{low} + G(\text{high}) - G(\text{low}), \qquad G(c) = E \min(u^2, c), \qquad
      G(r^2) = r^2 \Pr[|u| > r] + E[u^2; |u| \le r],$$

    the last with the truncated Gaussian's second moment. Exact, with ndtr for the probabilities
    (and by quadrature, to rounding, where that formula would cancel).
    """
    low, high = finite(low, "lower clip"), finite(high, "upper clip")
    if np.any(low < 0) or np.any(high <= low):
        raise InputError("Squares are clipped to [low, high], which needs 0 <= low < high.")
    centre, std = _gaussian(mean, variance)
    value = low + _expected_minimum(centre, std, high) - _expected_minimum(centre, std, low)
    return np.asarray(np.clip(value, low, high))


def expected_clipped_squared_error(
    mean: ArrayLike, variance: ArrayLike, target: ArrayLike, limit: float
) -> np.ndarray:
    """Return E min((h - target)^2, limit) for h ~ N(mean, variance), exactly."""
    difference = finite(mean, "means") - finite(target, "targets")
    return expected_clipped_square(difference, variance, 0.0, positive(limit, "the limit"))


def expected_clipped_gaussian_nll(
    mean: ArrayLike,
    variance: ArrayLike,
    target: ArrayLike,
    noise_std: ArrayLike,
    a: float,
    b: float,
) -> np.ndarray:
    """Return E clip(-ln N(target | h, s^2), a, b) for h ~ N(mean, variance), exactly.

    -ln N(y | h, s^2) = ln(s sqrt(2 pi)) + (y - h)^2 / (2 s^2): a clipped square, moved and
    scaled. `variance` is that of h, without the noise s.
    """
    loss_width(a, b)
    noise = finite(noise_std, "noise std", above=0.0)
    offset = np.log(noise * math.sqrt(2 * math.pi))
    scale = 2 * noise**2
    # Where even the smallest value of the loss is b or more, the clipped loss is b throughout.
    always_b = offset >= b
    low = np.maximum(a - offset, 0.0) * scale
    high = np.where(always_b, low + scale, (b - offset) * scale)
    difference = finite(mean, "means") - finite(target, "targets")
    square = expected_clipped_square(difference, variance, low, high)
    return np.asarray(np.where(always_b, b, np.clip(offset + square / scale, a, b)))


def expected_miss(
    mean: ArrayLike, variance: ArrayLike, target: ArrayLike, tolerance: float
) -> np.ndarray:
    """Return Pr[|h - target| > tolerance] for h ~ N(mean, variance), exactly."""
    centre, std = _gaussian(finite(mean, "means") - finite(target, "targets"), variance)
    not_negative(tolerance, "the tolerance")
    return np.asarray(ndtr((-tolerance - centre) / std) + ndtr((centre - tolerance) / std))


def _expected_minimum(centre: np.ndarray, std: np.ndarray, limit: np.ndarray) -> np.ndarray:
    """Return E min(u^2, r^2) = r^2 - E[(r^2 - u^2)+] for u ~ N(centre, std^2) and r^2 = limit."""
    centre, std, limit = np.broadcast_arrays(np.abs(centre), std, limit)
    root = np.sqrt(limit)
    left, right = (-root - centre) / std, (root - centre) / std
    density_left, density_right = _density(left), _density(right)
    inside = ndtr(right) - ndtr(left)
    square = (
        (centre**2 + std**2) * inside
        + 2 * centre * std * (density_left - density_right)
        + std**2 * (left * density_left - right * density_right)
    )
    # The formula cancels where the law is much wider than the clip; the law is smooth there.
    u = root[..., None] * NODES
    law = _density((u - centre[..., None]) / std[..., None]) / std[..., None]
    quadrature = root * np.sum(NODE_WEIGHTS * (limit[..., None] - u**2) * law, axis=-1)
    shortfall = np.where(root < std, quadrature, limit * inside - square)
    return np.asarray(limit - np.clip(shortfall, 0.0, limit))


def _density(z: np.ndarray) -> np.ndarray:
    # Beyond 38 the density is below the smallest float64, and the square might overflow.
    return np.asarray(np.exp(-0.5 * np.minimum(np.abs(z), 38.0) ** 2) / math.sqrt(2 * math.pi))


def _gaussian(mean: ArrayLike, variance: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and std. A variance of zero, a model that is sure, becomes a negligible one."""
    centre, spread = finite(mean, "mean"), finite(variance, "variance", least=0.0)
    return centre, np.sqrt(np.maximum(spread, np.finfo(np.float64).tiny ** 0.5))
