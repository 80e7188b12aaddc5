r"""Intervals and sets that cover as often as they say, whatever the model is, where rows are exchangeable.

`intervals` asks the client's own rows: each is predicted by the model without it (jackknife+, up to ALONE
rows) or without its fold (CV+), and how far it lies from the median, in units of the model's own spread,
says how far a new row may. Barber, Candes, Ramdas and Tibshirani (2021) prove for a model that never saw
the client's rows: coverage of a new row is at least $2p - 1$ for intervals of level p (with CV+ up to
$(1 - K/m) / (K + 1)$ less, with K folds of m rows), and close to p unless the model is unstable.

`pooled_reach` asks other clients who did not train either: each is given as many rows as the new client,
and one more. Their scores, each client counting once, give intervals that cover a row of a
client drawn like them with probability p at least, on average over clients (Lee, Barber and Willett 2023).

`sets` does the first for classes: adaptive prediction sets (Romano, Sesia and Candes 2020).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pacpfl.calibration import OFF
from pacpfl.client import QUANTILES, ClientModel
from pacpfl.errors import InputError
from pacpfl.types import Samples

ALONE = 32  # rows of a client up to which each is left out alone
FOLDS, CLASS_FOLDS = 20, 5  # of more rows; networks are trained anew for each
SPREAD = np.array([0.1587, 0.5, 0.8413])  # a median, and a standard deviation to each side
TRIED = 16  # rows of a calibration client that are left out


def intervals(model: ClientModel, x: np.ndarray, level: float = 0.9) -> np.ndarray:
    """Return lower and upper ends, [2, rows], by jackknife+ or CV+ from the client's own rows."""
    samples, count = model.samples, len(model.samples)
    spare = _spare(count, level, f"client {model.name!r} has {count} rows")
    folds, ends = _folds(count, FOLDS), np.empty((2, count, len(x)))
    for fold in range(folds.max() + 1):
        out = folds == fold
        found = _spread(_without(model, out), np.concatenate([samples.x[out], x]))
        reach = _scores(found[:, : out.sum()], samples.y[out])
        ends[:, out] = _around(found[:, out.sum() :], reach[:, None])
    low = np.partition(ends[0], spare - 1, axis=0)[spare - 1]
    return np.stack([low, np.partition(ends[1], count - spare, axis=0)[count - spare]])


def pooled_reach(others: Sequence[ClientModel], rows: int, level: float = 0.9) -> float:
    """Return how many spreads an interval must reach for a client with `rows` rows, by others' rows."""
    _spare(len(others), level, f"there are {len(others)} calibration clients")
    random = np.random.default_rng(0)
    scores, shares = [], []
    for model in others:
        if len(model.samples) <= rows:
            raise InputError(
                f"Calibration client {model.name!r} has {len(model.samples)} rows; for a client with "
                f"{rows} each needs {rows + 1}."
            )
        chosen = random.permutation(len(model.samples))[: rows + 1]
        group = replace(model, samples=Samples(model.samples.x[chosen], model.samples.y[chosen]))
        own = []
        for row in range(min(rows + 1, TRIED)):
            out = np.arange(rows + 1) == row
            found = _spread(_without(group, out), group.samples.x[out])
            own.append(_scores(found, group.samples.y[out])[0])
        scores += own
        shares += [1 / (len(others) + 1) / len(own)] * len(own)
    order = np.argsort(scores)
    reached = np.cumsum(np.array(shares)[order])
    return float(np.array(scores)[order][np.searchsorted(reached, level - 1e-12)])


def reaching(model: ClientModel, x: np.ndarray, reach: float) -> np.ndarray:
    """Return lower and upper ends, [2, rows], that lie `reach` of the model's spreads from its median."""
    none = np.zeros(len(model.samples), bool)
    return _around(_spread(_without(model, none), x), np.array(reach))


def sets(model: ClientModel, x: np.ndarray, level: float = 0.9) -> np.ndarray:
    """Return which classes each row's set holds, [rows, classes], by CV+ from the client's own rows."""
    samples, count = model.samples, len(model.samples)
    spare = _spare(count, level, f"client {model.name!r} has {count} rows")
    folds = _folds(count, CLASS_FOLDS, alone=0)
    stranger = np.zeros((len(x), len(model.shared.schema.classes or ())))
    for fold in range(folds.max() + 1):
        out = folds == fold
        rest = _without(model, out)
        own = _ranked(rest.probabilities(samples.x[out]))[
            np.arange(out.sum()), samples.y[out].astype(int)
        ]
        stranger += (_ranked(rest.probabilities(x))[..., None] > own).sum(-1)
    return stranger < count + 1 - spare


def coverage(
    model: ClientModel, x: np.ndarray, y: np.ndarray, level: float = 0.9
) -> dict[str, float]:
    """Return how often intervals (or sets) hold the target of rows, and how wide (or large) they are."""
    if model.shared.schema.classes is not None:
        held = sets(model, x, level)
        inside = held[np.arange(len(y)), np.asarray(y, int)]
        return {"set_coverage": float(inside.mean()), "set_size": float(held.sum(1).mean())}
    low, high = intervals(model, x, level)
    inside = (low <= y) & (y <= high)
    return {"interval_coverage": float(inside.mean()), "interval_width": float(np.mean(high - low))}


def _spare(count: int, level: float, who: str) -> int:
    """Return how many of `count` scores may lie beyond the interval, each side."""
    spare = math.floor((1 - level) * (count + 1) + 1e-9)
    if spare < 1:
        needed = math.ceil(1 / (1 - level) - 1e-9) - 1
        raise InputError(
            f"An interval that covers {level:.0%} whatever the model is needs {needed} of them, and {who}; "
            "ask for a lower level, or for the model's own quantiles."
        )
    return spare


def _folds(count: int, most: int, alone: int = ALONE) -> np.ndarray:
    return np.arange(count) % (count if count <= alone else min(most, count))


def _without(model: ClientModel, out: np.ndarray) -> ClientModel:
    """Return the model of the other rows, as nobody has recalibrated it."""
    rest = Samples(model.samples.x[~out], model.samples.y[~out])
    shared = replace(model.shared, recalibration=OFF)
    return replace(model, shared=shared, samples=rest, window=np.zeros(0))


def _spread(model: ClientModel, x: np.ndarray) -> np.ndarray:
    return model.ask(QUANTILES, x, SPREAD)


def _scores(spread: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return how many spreads the targets lie from the medians, each on its own side."""
    low, middle, high = spread
    return np.maximum((y - middle) / (high - middle), (middle - y) / (middle - low))


def _around(spread: np.ndarray, reach: np.ndarray) -> np.ndarray:
    low, middle, high = spread
    return np.stack([middle - reach * (middle - low), middle + reach * (high - middle)])


def _ranked(probabilities: np.ndarray) -> np.ndarray:
    """Return the probability of each class and of all that are more likely, [rows, classes]."""
    order = np.argsort(-probabilities, axis=1)
    total = np.cumsum(np.take_along_axis(probabilities, order, 1), axis=1)
    found = np.empty_like(total)
    np.put_along_axis(found, order, total, axis=1)
    return found
