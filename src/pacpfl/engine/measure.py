"""How good, and how honest, predictions are on test samples: one client's, or many clients' at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from pacpfl import arrays, calibration, metrics, predictive
from pacpfl.types import Mixture, Probabilities, Samples

COVERAGES = (50, 90, 95)
COMPILED = 1 << 18  # numbers from which on a compiler pays
QUANTILES = np.array([0.025, 0.05, 0.25, 0.75, 0.95, 0.975])
NODES, WEIGHTS = np.polynomial.legendre.leggauss(32)  # of the integrals of a CRPS
Maps = Sequence[
    np.ndarray | None
]  # the shares of each client's map (pacpfl.calibration), if it has one


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
    shares: Maps = ()


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


def measure_numbers(predictions: Mixture, tests: Sequence[Samples], maps: Maps = ()) -> Evaluation:
    """Measure predictions, leading axis clients, on each client's test samples."""
    measured = list(_measured(predictions, [test.y for test in tests], maps))
    rows, curves, means, stds, quantiles = map(list, zip(*measured, strict=True))
    return Evaluation(rows, np.array(curves), means, stds, quantiles, shares=maps)


def measure(prediction: Mixture, y: np.ndarray, shares: np.ndarray | None = None) -> Measured:
    """Return one client's metrics, calibration curve, and predictive mean, std and quantiles.

    With `shares`, those of the recalibrated prediction; its mean and std stay the model's.
    """
    one = type(prediction)(*(np.asarray(part)[None] for part in prediction))  # type: ignore[arg-type]
    return next(_measured(one, [y], [shares]))


def _measured(
    predictions: Mixture, targets: Sequence[np.ndarray], maps: Maps
) -> Iterator[Measured]:
    """Yield each client's; what is computed of single samples is so for all clients at once."""
    clients, _, most = predictions.means.shape
    y = np.zeros((clients, most), predictions.means.dtype)
    for place, own in enumerate(targets):
        y[place, : len(own)] = own
    maps = maps or [None] * clients
    known = [calibration.WIDTHS if shares is None else shares for shares in maps]
    levels = np.stack([calibration.invert(shares, QUANTILES) for shares in known], axis=1)
    if all(shares is None for shares in maps):
        levels = QUANTILES
    slopes = np.stack(known) / calibration.WIDTHS
    summary = _compiled() if predictions.means.size > COMPILED else _summary
    with np.errstate(all="ignore"):  # of padding
        found = summary(predictions, y, levels.astype(y.dtype), slopes.astype(y.dtype))
    for place, (own, shares) in enumerate(zip(targets, maps, strict=True)):
        cut = (np.asarray(part)[..., place, : len(own)] for part in found)
        mean, std, quantiles, cdf, log_density, crps = cut
        if shares is not None:
            log_density = log_density + calibration.log_slope(shares, cdf)
            cdf = calibration.recalibrate(shares, cdf)
        row = {
            "rsmse": metrics.rsmse(own, mean),
            "ce": metrics.calibration_error(cdf),
            "nll": float(-log_density.mean()),
            "crps": float(crps.mean()),
        }
        for percent, low, high in zip(COVERAGES, quantiles[2::-1], quantiles[3:], strict=True):
            row[f"coverage_{percent}"] = metrics.coverage(own, low, high)
            row[f"width_{percent}"] = float(np.mean(high - low))
        yield row, metrics.calibration_curve(cdf), mean, std, quantiles


def _summary(prediction: Mixture, y: Any, levels: Any, slopes: Any) -> tuple[Any, ...]:
    quantiles = predictive.quantiles(prediction, levels)
    return (
        predictive.mean(prediction),
        predictive.std(prediction),
        quantiles,
        predictive.cdf(prediction, y),
        predictive.log_density(prediction, y),
        _crps(prediction, y, quantiles, slopes),
    )


def _crps(prediction: Mixture, y: Any, quantiles: Any, slopes: Any) -> Any:
    r"""Return $\int (R(F(z)) - [z \ge y])^2 dz$ by quadrature from far below to y, and on to far above."""
    xp = arrays.of(*prediction, y)
    width = 2 * (quantiles[-1] - quantiles[0])
    ends = xp.stack([xp.minimum(quantiles[0] - width, y), xp.maximum(quantiles[-1] + width, y)])
    steps, truth = (y - ends) / 2, xp.asarray([[[0]], [[1]]])
    nodes, weights = xp.asarray(NODES, y.dtype), xp.asarray(WEIGHTS, y.dtype)

    def add(number: Any, total: Any) -> Any:
        below = predictive.cdf(prediction, ends + steps * (1 + nodes[number]))
        parts = zip(calibration.EDGES, calibration.WIDTHS, slopes.T, strict=False)
        mapped = sum(s[:, None] * xp.clip(below - low, 0, width) for low, width, s in parts)
        return total + weights[number] * (mapped - truth) ** 2

    total = xp.repeat(len(NODES), add, xp.zeros_like(ends))
    return (total * xp.abs(steps)).sum(0)


@cache
def _compiled() -> Callable[..., tuple[Any, ...]]:
    import jax

    return jax.jit(_summary)
