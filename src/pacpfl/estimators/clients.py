"""Whose row is whose: names of clients, their rows, and their units."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pacpfl.data.standardize import Scaler
from pacpfl.estimators.errors import InvalidInput
from pacpfl.types import Samples

Name = str | int | float | bool
EVERYBODY = "all"  # the one client there is where no groups are given


@dataclass(frozen=True)
class Owner:
    """One client: its rows in their own units, and what makes them comparable with the others'."""

    samples: Samples
    scaler: Scaler
    trained: bool  # took part in the training

    def scaled(self) -> Samples:
        return self.scaler(self.samples)


def client_name(value: Any) -> Name:
    """The name as it is kept: text, a number, or true and false, so that a file can hold it."""
    if isinstance(value, np.generic):
        value = value.item()
    if not isinstance(value, (str, int, float, bool)) or value != value:
        raise InvalidInput(
            f"A client is named {value!r} in groups; name clients by text or whole numbers, such as "
            "those of groups.astype(str), and leave none out."
        )
    return value


def client_names(groups: Any, rows: int) -> list[Name]:
    """The client of every row."""
    values = np.asarray(groups, dtype=object)
    if values.ndim != 1 or len(values) != rows:
        raise InvalidInput(
            f"groups has shape {values.shape} and X has {rows} rows; give the client of every row."
        )
    return [client_name(value) for value in values]


def rows_of(names: list[Name]) -> dict[Name, np.ndarray]:
    """The rows of every client; clients in the order of their names, whatever that of the rows."""
    rows: dict[Name, list[int]] = {}
    for row, name in enumerate(names):
        rows.setdefault(name, []).append(row)
    ordered = sorted(rows, key=lambda name: (isinstance(name, str), name))
    return {name: np.array(rows[name]) for name in ordered}


def no_scaler(features: int) -> Scaler:
    return Scaler(np.zeros(features), np.ones(features), 0.0, 1.0)


def make_scaler(samples: Samples, target: bool, fallback: Scaler | None = None) -> Scaler:
    """Means and stds of these rows, of the target only where it is a number.

    What never changes in them takes its std from the fallback (everybody's rows), or keeps its unit.
    """
    other = fallback or no_scaler(samples.x.shape[1])
    x_mean, x_std = _moments(samples.x, other.x_std, "a feature")
    if not target:
        return Scaler(x_mean, x_std, 0.0, 1.0)
    y_mean, y_std = _moments(samples.y, np.asarray(other.y_std), "the target")
    return Scaler(x_mean, x_std, float(y_mean), float(y_std))


def _moments(values: np.ndarray, fallback: np.ndarray, what: str) -> tuple[np.ndarray, np.ndarray]:
    with np.errstate(over="ignore", invalid="ignore"):
        mean, std = values.mean(0), values.std(0)
    if not (np.isfinite(mean).all() and np.isfinite(std).all()):
        raise InvalidInput(
            f"The values of {what} are too large for their variance; scale them down."
        )
    changes = (np.ptp(values, axis=0) > 0) & (std > 0)
    return mean, np.where(changes, std, fallback)
