"""How good predictions are: of every row, pooled over rows, and as the mean over clients."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from pacpfl import metrics

LEVELS = np.linspace(0.05, 0.95, 20)  # of the calibration error
QUANTILES = np.linspace(
    0.005, 0.995, 100
)  # midpoints of equal shares: CRPS is an integral over them
BAND = np.array([0.05, 0.95])
LEAST = 1e-12  # probability that a class which came has at least
FLOOR = -1e4  # log density that a target which came has at least: infinities have no mean


class Predictive(Protocol):
    """Predictive distributions of some rows, as those of scipy.stats."""

    def mean(self) -> Any: ...
    def logpdf(self, y: Any, /) -> Any: ...
    def cdf(self, y: Any, /) -> Any: ...
    def ppf(self, levels: Any, /) -> Any: ...


def crps(y: np.ndarray, quantiles: np.ndarray) -> np.ndarray:
    r"""Return $2 \int_0^1 (\alpha - [y < q_\alpha]) (y - q_\alpha) d\alpha$, the mean pinball loss.

    `quantiles` are those at QUANTILES, [levels, n].
    """
    gap = y - quantiles
    return 2 * np.mean(np.where(gap > 0, QUANTILES[:, None], QUANTILES[:, None] - 1) * gap, axis=0)


def of_numbers(y: np.ndarray, said: Predictive) -> dict[str, np.ndarray]:
    """Return what is measured of every row."""
    *quantiles, low, high = said.ppf(np.append(QUANTILES, BAND)[:, None])
    return {
        "squared": (y - said.mean()) ** 2,
        "nll": -np.maximum(said.logpdf(y), FLOOR),
        "crps": crps(y, np.array(quantiles)),
        "cdf": said.cdf(y),
        "inside": (low <= y) & (y <= high),
        "width": high - low,
    }


def pooled_numbers(rows: dict[str, np.ndarray]) -> dict[str, float]:
    """Return the measures of some rows together."""
    return {
        "rmse": float(np.sqrt(rows["squared"].mean())),
        "nll": float(rows["nll"].mean()),
        "crps": float(rows["crps"].mean()),
        "ce": metrics.calibration_error(rows["cdf"], LEVELS),
        "coverage_90": float(rows["inside"].mean()),
        "width_90": float(rows["width"].mean()),
    }


def of_classes(y: np.ndarray, probabilities: np.ndarray) -> dict[str, np.ndarray]:
    """Return what is measured of every row; `probabilities` are [n, classes]."""
    came = np.maximum(probabilities[np.arange(len(y)), y.astype(int)], LEAST)
    return {
        "accuracy": (probabilities.argmax(1) == y).astype(float),
        "nll": -np.log(came),
        "brier": metrics.brier_scores(probabilities, y.astype(int)),
    }


def pooled_classes(rows: dict[str, np.ndarray]) -> dict[str, float]:
    """Return the measures of some rows together."""
    return {name: float(values.mean()) for name, values in rows.items()}


def measures(y: np.ndarray, clients: np.ndarray, said: Predictive | np.ndarray) -> dict[str, float]:
    """Return all measures: pooled, with "client_" as the mean over clients, and how many rows."""
    classes = isinstance(said, np.ndarray)
    rows = of_classes(y, said) if isinstance(said, np.ndarray) else of_numbers(y, said)
    pooled = pooled_classes if classes else pooled_numbers
    values = pooled(rows)
    if not classes:
        values["explained"] = 1 - float(rows["squared"].mean() / np.var(y))
    each = [
        pooled({name: array[clients == client] for name, array in rows.items()})
        for client in np.unique(clients)
    ]
    shown = [name for name in each[0] if name in ("rmse", "nll", "ce", "accuracy")]
    values |= {f"client_{name}": float(np.mean([one[name] for one in each])) for name in shown}
    return values | {"rows": float(len(y))}
