"""Before training: samples are checked, then scaled by TRAINING statistics.

A client has a scaler of its own, or all together have one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pacpfl.data.store import empty_samples, release
from pacpfl.errors import InputError
from pacpfl.types import Client, Federation, Samples


def check_federation(federation: Federation) -> None:
    """Raise InputError, naming client and column, at the first thing that cannot be used."""
    if not federation.existing:
        raise InputError(f"{federation.name} has no existing clients; at least one must train.")
    names = Counter(client.name for group in federation.groups().values() for client in group)
    for name, times in names.items():
        if times > 1:
            raise InputError(f"Two clients are called {name!r}; give each its own name.")
    for group in federation.groups().values():
        for client in group:
            _check_client(federation, client)


def _check_client(federation: Federation, client: Client) -> None:
    if len(client.train) < 2:
        raise InputError(
            f"Client {client.name!r} has {len(client.train)} training samples, and from fewer than two "
            "nothing can be standardised or checked; give it more or leave it out."
        )
    parts = {"training": client.train, "later": client.later, "test": client.test}
    for part, samples in parts.items():
        if samples is not None:
            _check_samples(federation, client.name, part, samples)
    if federation.shape is not None or federation.constants:
        return  # the corners of images are all alike, and so is the altitude of a house
    still = np.flatnonzero(np.ptp(client.train.x, axis=0) == 0)
    for name in (federation.features[column] for column in still):
        raise InputError(
            f"Feature {name!r} has the same value in all training samples of client {client.name!r}, "
            "so nothing can be learned from it; drop the feature or the client."
        )


def _check_samples(federation: Federation, client: str, part: str, samples: Samples) -> None:
    where, (x, y) = f"the {part} samples of client {client!r}", (samples.x, samples.y)
    if y.ndim != 1 or x.shape != (len(y), len(federation.features)):
        raise InputError(
            f"In {where} features have shape {x.shape} and targets {y.shape}, and the features are "
            f"{', '.join(federation.features)}; give each row all of these and one target."
        )
    for column, name in enumerate((*federation.features, federation.target)):
        values = x[:, column] if column < x.shape[1] else y
        for row in np.flatnonzero(~np.isfinite(values)):
            raise InputError(
                f"Column {name!r} of {where} holds {values[row]} in row {row}; fill or drop such rows."
            )


@dataclass(frozen=True)
class Scaler:
    """(value - mean) / std, for every feature and for the target."""

    x_mean: np.ndarray
    x_std: np.ndarray
    y_mean: float
    y_std: float

    def __call__(self, samples: Samples) -> Samples:
        return Samples(
            (samples.x - self.x_mean) / self.x_std, (samples.y - self.y_mean) / self.y_std
        )

    def target(self, scaled: np.ndarray) -> np.ndarray:
        """Return to the target's own units (means and quantiles; a std only by `y_std`)."""
        return scaled * self.y_std + self.y_mean


def fit_scaler(
    train: Samples | Sequence[Samples], unscaled: np.ndarray | None = None, labels: bool = False
) -> Scaler:
    """Return means and standard deviations of training samples alone.

    What never changes keeps its unit, for a client of one row, too: no other client's spread is needed.

    Parameters
    ----------
    train
        Samples of one client, or of several together.
    unscaled
        Which features keep their unit.
    labels
        Whether the targets are class numbers, which keep theirs.

    Raises
    ------
    InputError
        If values are too large for their variance.
    """
    parts = [train] if isinstance(train, Samples) else list(train)
    count = sum(map(len, parts))
    x_mean = _total(parts, lambda part: part.x.sum(0, dtype=float)) / count
    y_mean = float(_total(parts, lambda part: part.y.sum(dtype=float)) / count)
    with np.errstate(over="ignore", invalid="ignore"):
        x_square = _total(parts, lambda part: ((part.x - x_mean) ** 2).sum(0)) / count
        y_std = float(np.sqrt(_total(parts, lambda part: ((part.y - y_mean) ** 2).sum()) / count))
    if not (np.isfinite(x_square).all() and np.isfinite(y_std)):
        what = "the target" if np.isfinite(x_square).all() else "a feature"
        raise InputError(f"The values of {what} are too large for their variance; scale them down.")
    # A sum of equal numbers may be off in the last digit: what is left is no spread.
    size = np.maximum(np.abs(x_mean), 1e-300)
    still = np.sqrt(x_square) <= 1e-13 * size
    x_std = np.where(still, 1.0, np.sqrt(x_square))
    if unscaled is not None:
        x_mean, x_std = np.where(unscaled, 0.0, x_mean), np.where(unscaled, 1.0, x_std)
    if labels:
        return Scaler(x_mean, x_std, 0.0, 1.0)
    return Scaler(x_mean, x_std, y_mean, y_std if y_std > 1e-13 * abs(y_mean) else 1.0)


def _total(parts: Sequence[Samples], value: Callable[[Samples], Any]) -> Any:
    """Return the sum of a value over all parts; where they lie on disk, one at a time is held."""
    total: Any = 0.0
    for part in parts:
        total = total + value(part)
        release(part.x)
        release(part.y)
    return total


def fit_scalers(federation: Federation, how: str) -> dict[str, Scaler]:
    """Fit a scaler for each client, by name: none, `client` (its own) or `global` (existing clients')."""
    everyone = [*federation.existing, *federation.new]
    unscaled = np.isin(np.array(federation.features, dtype=object), federation.unscaled)
    labels = federation.classes is not None
    if how == "client":
        return {c.name: fit_scaler(c.train, unscaled, labels) for c in everyone}
    if how == "global":
        one = fit_scaler([client.train for client in federation.existing], unscaled, labels)
    else:
        width = len(federation.features)
        one = Scaler(np.zeros(width), np.ones(width), 0.0, 1.0)
    return {client.name: one for client in everyone}


def standardize(federation: Federation, how: str) -> Federation:
    """Return the federation in the units of its scalers; on disk where it lies on disk."""
    if how == "none":
        return federation
    scalers = fit_scalers(federation, how)
    groups = {group: _scaled(clients, scalers) for group, clients in federation.groups().items()}
    return replace(federation, existing=groups["existing"], new=groups["new"])


def _scaled(clients: Sequence[Client], scalers: dict[str, Scaler]) -> tuple[Client, ...]:
    for part in ("train", "later", "test"):
        held = {c.name: getattr(c, part) for c in clients if getattr(c, part) is not None}
        scaled: dict[str, Any] = {c.name: None for c in clients} | _scaled_part(held, scalers)
        clients = [replace(c, **{part: scaled[c.name]}) for c in clients]
    return tuple(clients)


def _scaled_part(parts: dict[str, Samples], scalers: dict[str, Scaler]) -> dict[str, Samples]:
    """Scale them; those on disk into one array there, so that they stay neighbours."""
    if not any(isinstance(part.x, np.memmap) for part in parts.values()):
        return {name: scalers[name](part) for name, part in parts.items()}
    width = next(iter(parts.values())).x.shape[1]
    whole = empty_samples(sum(map(len, parts.values())), width, np.float32, in_memory=0)
    found, start = {}, 0
    for name, part in parts.items():
        scaled, place = scalers[name](part), slice(start, start + len(part))
        whole.x[place], whole.y[place] = scaled.x, scaled.y
        found[name], start = Samples(whole.x[place], whole.y[place]), place.stop
        release(part.x)
        release(whole.x)
    return found
