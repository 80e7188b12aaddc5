"""Measures of how good and how honest predictions are (paper, section and appendix on calibration).

Of numbers, from their means, intervals and the predictive CDF at the targets:

>>> rsmse(np.array([0.0, 1.0, 2.0]), np.ones(3)), coverage(np.array([0.0, 2.0]), 0.0, 1.0)
(1.0, 0.5)
>>> calibration_error(np.array([0.2, 0.8]), np.array([0.25, 1.0]))
0.125

Of classes, from their probabilities:

>>> p, labels = np.array([[0.75, 0.25], [0.75, 0.25]]), np.array([0, 1])
>>> accuracy(p, labels), brier(p, labels), classification_calibration_error(p, labels)
(0.5, 0.625, 0.25)
>>> reliability(p, labels, bins=1).tolist()
[[2.0, 1.0, 1.5]]
"""

from __future__ import annotations

import numpy as np
from scipy import special  # scipy.stats takes half a second to import

LEVELS = 20  # H in the paper


def rsmse(y: np.ndarray, mean: np.ndarray) -> float:
    r"""Return $\sqrt{\mathrm{mean}((y - \mu)^2)} / \mathrm{std}(y)$: 1 for who always says the mean."""
    return float(np.sqrt(np.mean((y - mean) ** 2)) / np.std(y))


def calibration_levels(count: int = LEVELS) -> np.ndarray:
    """Return `count` equally spaced levels q_h from 0 to 1, both included."""
    return np.linspace(0.0, 1.0, count)


def calibration_curve(cdf: np.ndarray, levels: np.ndarray | None = None) -> np.ndarray:
    r"""Return $\hat q_h$, the share of targets whose predictive CDF is at most q_h."""
    levels = calibration_levels() if levels is None else levels
    return np.mean(np.asarray(cdf)[None, :] <= levels[:, None], axis=1)


def calibration_error(cdf: np.ndarray, levels: np.ndarray | None = None) -> float:
    r"""Return $CE = \frac1H \sum_h |\hat q_h - q_h|$."""
    levels = calibration_levels() if levels is None else levels
    return float(np.mean(np.abs(calibration_curve(cdf, levels) - levels)))


def classification_calibration_error(
    probabilities: np.ndarray, labels: np.ndarray, bins: int = LEVELS
) -> float:
    r"""Return $CE = \sum_h \frac{|B_h|}{m} |\mathrm{acc}(B_h) - \mathrm{conf}(B_h)|$.

    B_h are the samples with confidence in ((h - 1) / H, h / H].
    """
    return reliability_error(reliability(probabilities, labels, bins))


def reliability(probabilities: np.ndarray, labels: np.ndarray, bins: int = LEVELS) -> np.ndarray:
    """Return [bins, 3]: samples in B_h, how many of them are right, and the sum of their confidences.

    Sums, not means, so that clients can be added up.
    """
    confidence = probabilities.max(1)
    which = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
    correct = (probabilities.argmax(1) == labels).astype(float)
    columns = (np.ones(len(labels)), correct, confidence)
    return np.stack([np.bincount(which, column, minlength=bins) for column in columns], axis=1)


def reliability_error(table: np.ndarray) -> float:
    """Return the calibration error of one `reliability` table, or of the sum of several."""
    return float(np.abs(table[:, 1] - table[:, 2]).sum() / table[:, 0].sum())


def brier_scores(probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
    r"""Return $\sum_c (p_c - [c = y])^2$ of every sample, in [0, 2]; classes are on the last axis."""
    truth = np.asarray(labels)[..., None] == np.arange(probabilities.shape[-1])
    return np.asarray(np.sum((probabilities - truth.astype(float)) ** 2, axis=-1))


def brier(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Return the mean of `brier_scores`."""
    return float(np.mean(brier_scores(probabilities, labels)))


def accuracy(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Return the share of samples whose most probable class is theirs."""
    return float(np.mean(probabilities.argmax(1) == labels))


def coverage(y: np.ndarray, low: np.ndarray, high: np.ndarray) -> float:
    """Return the share of the targets inside the interval, its ends included."""
    return float(np.mean((low <= y) & (y <= high)))


def interval(values: np.ndarray) -> tuple[float, float]:
    r"""Return the mean, and the half width of its 95% confidence interval, $t_{n-1} s / \sqrt n$.

    Values that are not finite are left out.
    """
    values = np.asarray(values, float)
    values = values[np.isfinite(values)]
    if len(values) < 2:
        return (float(values.mean()) if len(values) else float("nan")), float("nan")
    half = special.stdtrit(len(values) - 1, 0.975) * values.std(ddof=1) / np.sqrt(len(values))
    return float(values.mean()), float(half)
