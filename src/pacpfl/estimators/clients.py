"""Whose row is whose: names of clients, and their rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from pacpfl.client import Name
from pacpfl.estimators.errors import InvalidInput

EVERYBODY = "all"  # the one client there is where no groups are given


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
