"""What every method of the battery is given: rows to learn from, rows of new clients, and questions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Self

import numpy as np


class Rows(NamedTuple):
    """Rows of several clients; targets that are classes are numbers from 0 on."""

    x: np.ndarray  # [n, features]
    y: np.ndarray  # [n]
    clients: np.ndarray  # [n], text

    def take(self, which: np.ndarray) -> Rows:
        return Rows(self.x[which], self.y[which], self.clients[which])

    def join(self, other: Rows) -> Rows:
        return Rows(*(np.concatenate(pair) for pair in zip(self, other, strict=True)))

    def by_client(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield each client with the numbers of its rows."""
        for client in np.unique(self.clients):
            yield str(client), np.flatnonzero(self.clients == client)


class Task(NamedTuple):
    """One data set, split with one seed.

    Existing clients have rows in `train`, new ones in `given`, which only personalise; `tests` are
    other rows of either, by the name of the group.
    """

    train: Rows
    given: Rows
    tests: dict[str, Rows]
    features: tuple[str, ...]
    classes: int | None = None

    @property
    def known(self) -> Rows:
        """Return all rows whose targets a method may see."""
        return self.train.join(self.given)

    def standardised(self) -> tuple[Self, float, float]:
        """Return the task in units of the training rows, and their targets' mean and spread."""
        middle, spread = self.train.x.mean(0), self.train.x.std(0)
        spread = np.where(spread > 0, spread, 1.0)
        shift, scale = 0.0, 1.0
        if self.classes is None:
            shift, scale = float(self.train.y.mean()), float(self.train.y.std()) or 1.0

        def moved(rows: Rows) -> Rows:
            y = rows.y if self.classes else (rows.y - shift) / scale
            return Rows((rows.x - middle) / spread, y, rows.clients)

        tests = {group: moved(rows) for group, rows in self.tests.items()}
        ours = self._replace(train=moved(self.train), given=moved(self.given), tests=tests)
        return ours, shift, scale
