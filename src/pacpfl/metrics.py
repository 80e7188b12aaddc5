"""How good and how honest predictions are (paper, section on metrics and appendix on calibration)."""

from __future__ import annotations

import numpy as np
from scipy import special  # scipy.stats takes half a second to import

LEVELS = 20  # H in the paper


def rsmse(y: np.ndarray, mean: np.ndarray) -> float:
    """Root mean squared error divided by the standard deviation of the targets."""
    return float(np.sqrt(np.mean((y - mean) ** 2)) / np.std(y))


def calibration_levels(count: int = LEVELS) -> np.ndarray:
    """`count` equally spaced levels q_h from 0 to 1, both included."""
    return np.linspace(0.0, 1.0, count)


def calibration_curve(cdf: np.ndarray, levels: np.ndarray | None = None) -> np.ndarray:
    """q^_h: the share of targets whose predictive CDF is at most q_h."""
    levels = calibration_levels() if levels is None else levels
    return np.mean(np.asarray(cdf)[None, :] <= levels[:, None], axis=1)


def calibration_error(cdf: np.ndarray, levels: np.ndarray | None = None) -> float:
    """CE = 1/H sum_h |q^_h - q_h|."""
    levels = calibration_levels() if levels is None else levels
    return float(np.mean(np.abs(calibration_curve(cdf, levels) - levels)))


def classification_calibration_error(
    probabilities: np.ndarray, labels: np.ndarray, bins: int = LEVELS
) -> float:
    """CE = sum_h |B_h|/m |acc(B_h) - conf(B_h)|, B_h the samples with confidence in ((h-1)/H, h/H]."""
    return reliability_error(reliability(probabilities, labels, bins))


def reliability(probabilities: np.ndarray, labels: np.ndarray, bins: int = LEVELS) -> np.ndarray:
    """[bins, 3]: samples in B_h, how many of them are right, and the sum of their confidences.

    Sums, not means, so that clients can be added up.
    """
    confidence = probabilities.max(1)
    which = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
    correct = (probabilities.argmax(1) == labels).astype(float)
    columns = (np.ones(len(labels)), correct, confidence)
    return np.stack([np.bincount(which, column, minlength=bins) for column in columns], axis=1)


def reliability_error(table: np.ndarray) -> float:
    """The calibration error of one `reliability` table, or of the sum of several."""
    return float(np.abs(table[:, 1] - table[:, 2]).sum() / table[:, 0].sum())


def brier(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Mean squared distance between the probabilities and the truth, a vector of zeros and a one."""
    truth = np.eye(probabilities.shape[1])[labels]
    return float(np.mean(np.sum((probabilities - truth) ** 2, axis=1)))


def accuracy(probabilities: np.ndarray, labels: np.ndarray) -> float:
    return float(np.mean(probabilities.argmax(1) == labels))


def coverage(y: np.ndarray, low: np.ndarray, high: np.ndarray) -> float:
    """Share of the targets inside the interval."""
    return float(np.mean((low <= y) & (y <= high)))


def interval(values: np.ndarray) -> tuple[float, float]:
    """Mean, and the half width of its 95% confidence interval (Student's t)."""
    values = np.asarray(values, float)
    values = values[np.isfinite(values)]
    if len(values) < 2:
        return (float(values.mean()) if len(values) else float("nan")), float("nan")
    half = special.stdtrit(len(values) - 1, 0.975) * values.std(ddof=1) / np.sqrt(len(values))
    return float(values.mean()), float(half)
