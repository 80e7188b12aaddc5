"""How good, and how honest, predictions are on test samples: one client's, or many clients' at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from pacpfl import metrics, predictive
from pacpfl.types import Mixture, Probabilities, Samples

COVERAGES = (50, 90, 95)
COMPILED = 1 << 18  # numbers from which on a compiler pays
QUANTILES = np.array([0.025, 0.05, 0.25, 0.75, 0.95, 0.975])


class Evaluation(NamedTuple):
    """Results of one method for one group of clients, a list entry or row per client.

    Regression fills means, stds and quantiles; classification fills log_probabilities.
    """

    rows: list[dict[str, float]]
    calibration: np.ndarray  # [clients, levels], or [clients, bins, 3]: see metrics.reliability
    means: Sequence[np.ndarray] = ()
    stds: Sequence[np.ndarray] = ()
    quantiles: Sequence[np.ndarray] = ()
    weights: np.ndarray | None = None  # [clients, k]
    responsibilities: np.ndarray | None = None  # [clients, K]
    log_probabilities: Sequence[np.ndarray] = ()  # [t, classes] each


def measure_classes(predictions: Probabilities, tests: Sequence[Samples]) -> Evaluation:
    """Measure predictions, leading axis clients, on each client's test samples."""
    rows, curves, each = [], [], []
    for log_probabilities, test in zip(predictions.log_probabilities, tests, strict=True):
        labels = test.y.astype(int)
        own = np.asarray(log_probabilities[: len(labels)], float)
        probabilities = np.exp(own)
        rows.append(
            {
                "accuracy": metrics.accuracy(probabilities, labels),
                "ce_own": metrics.classification_calibration_error(probabilities, labels),
                "nll": float(-own[np.arange(len(labels)), labels].mean()),
                "brier": metrics.brier(probabilities, labels),
            }
        )
        curves.append(metrics.reliability(probabilities, labels))
        each.append(own)
    return Evaluation(rows, np.array(curves), log_probabilities=each)


Measured = tuple[dict[str, float], np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def measure_numbers(predictions: Mixture, tests: Sequence[Samples]) -> Evaluation:
    """Measure predictions, leading axis clients, on each client's test samples."""
    measured = list(_measured(predictions, [test.y for test in tests]))
    rows, curves, means, stds, quantiles = map(list, zip(*measured, strict=True))
    return Evaluation(rows, np.array(curves), means, stds, quantiles)


def measure(prediction: Mixture, y: np.ndarray) -> Measured:
    """Return one client's metrics, calibration curve, and predictive mean, std and quantiles."""
    one = type(prediction)(*(np.asarray(part)[None] for part in prediction))  # type: ignore[arg-type]
    return next(_measured(one, [y]))


def _measured(predictions: Mixture, targets: Sequence[np.ndarray]) -> Iterator[Measured]:
    """Yield each client's; what is computed of single samples is so for all clients at once."""
    clients, _, most = predictions.means.shape
    y = np.zeros((clients, most), predictions.means.dtype)
    for place, own in enumerate(targets):
        y[place, : len(own)] = own
    summary = _compiled() if predictions.means.size > COMPILED else _summary
    with np.errstate(all="ignore"):  # of padding
        found = summary(predictions, y, QUANTILES.astype(y.dtype))
    for place, own in enumerate(targets):
        cut = (np.asarray(part)[..., place, : len(own)] for part in found)
        mean, std, quantiles, cdf, log_density = cut
        row = {
            "rsmse": metrics.rsmse(own, mean),
            "ce": metrics.calibration_error(cdf),
            "nll": float(-log_density.mean()),
        }
        for percent, low, high in zip(COVERAGES, quantiles[2::-1], quantiles[3:], strict=True):
            row[f"coverage_{percent}"] = metrics.coverage(own, low, high)
            row[f"width_{percent}"] = float(np.mean(high - low))
        yield row, metrics.calibration_curve(cdf), mean, std, quantiles


def _summary(prediction: Mixture, y: Any, levels: Any) -> tuple[Any, ...]:
    return (
        predictive.mean(prediction),
        predictive.std(prediction),
        predictive.quantiles(prediction, levels),
        predictive.cdf(prediction, y),
        predictive.log_density(prediction, y),
    )


@cache
def _compiled() -> Callable[..., tuple[Any, ...]]:
    import jax

    return jax.jit(_summary)
