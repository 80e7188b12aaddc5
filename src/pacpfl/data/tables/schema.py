"""What the columns of a table mean, learned once, and how rows become features ever after.

A schema belongs to the model: a table that comes years later is read with the categories, medians
and encodings of the training rows.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from pacpfl.data.tables import values
from pacpfl.data.tables.files import Chunk
from pacpfl.errors import InputError
from pacpfl.types import Form

KINDS = ("number", "boolean", "category", "date")


@dataclass(frozen=True)
class Column:
    """One column to learn from. `median` is that of the training rows, where numbers are imputed."""

    name: str
    kind: str
    categories: tuple[str, ...] = ()
    cycles: tuple[str, ...] = ()
    median: float | None = None

    @property
    def features(self) -> tuple[str, ...]:
        if self.kind == "category":
            return tuple(f"{self.name}={category}" for category in self.categories)
        if self.kind == "date":
            return tuple(f"{self.name} {c} {part}" for c in self.cycles for part in ("sin", "cos"))
        return (self.name,)


class Encoded(NamedTuple):
    """Features of some rows, NaN where a cell is missing; and how often a category was not known."""

    x: np.ndarray  # [rows, features]
    unseen: Mapping[str, int]


@dataclass(frozen=True)
class Schema:
    columns: tuple[Column, ...]
    target: str
    classes: tuple[str, ...] | None = None  # None: the target is a number
    client: str = ""  # column that names the client, where there is one
    missing: str = "error"
    unseen: str = "zeros"

    @property
    def features(self) -> tuple[str, ...]:
        return tuple(name for column in self.columns for name in column.features)

    @property
    def form(self) -> Form:
        """What a federation of such tables looks like, whoever its clients are."""
        classes = None if self.classes is None else len(self.classes)
        return Form(self.features, self.target, classes)

    @property
    def unscaled(self) -> tuple[str, ...]:
        """Zeros and ones, sines and cosines have their scale already."""
        return tuple(name for c in self.columns if c.kind != "number" for name in c.features)

    def encode(self, chunk: Chunk) -> Encoded:
        """The features of rows in whatever order their columns stand."""
        parts, unseen = [], {}
        for column in self.columns:
            cells = cells_of(chunk, column.name)
            if column.kind == "category":
                part, count = self._one_hot(chunk, column, cells)
                if count:
                    unseen[column.name] = count
            else:
                part = _quantities(chunk, column, cells)
            parts.append(part)
        x = np.concatenate(parts, axis=1) if parts else np.zeros((len(chunk.frame), 0))
        return Encoded(x, unseen)

    def _one_hot(self, chunk: Chunk, column: Column, cells: pd.Series) -> tuple[np.ndarray, int]:
        words = values.texts(cells)
        codes = pd.Index(column.categories, dtype=object).get_indexer(words)
        missing = words == ""
        unknown = (codes < 0) & ~missing
        if unknown.any() and self.unseen == "error":
            at = int(np.flatnonzero(unknown)[0])
            raise InputError(
                f"{place(chunk, at)}: column {column.name!r} holds {words[at]!r}, a category no "
                'training row has; correct it, or set tables.unseen = "zeros".'
            )
        found = np.zeros((len(words), len(column.categories)))
        known = np.flatnonzero(codes >= 0)
        found[known, codes[known]] = 1.0
        if self.missing != "impute":
            found[missing] = np.nan
        return found, int(unknown.sum())

    def impute(self, x: np.ndarray) -> np.ndarray:
        """Missing numbers become training medians; a missing category is none of those known."""
        filled, at = x.copy(), 0
        for column in self.columns:
            width = len(column.features)
            if column.kind != "category" and column.median is not None:
                part = filled[:, at : at + width]
                part[np.isnan(part)] = column.median
            at += width
        return filled

    def targets(self, chunk: Chunk) -> np.ndarray:
        """Numbers, or class numbers; NaN where the cell is missing."""
        cells = cells_of(chunk, self.target)
        if self.classes is None:
            return _quantities(chunk, Column(self.target, "number"), cells)[:, 0]
        words = values.texts(cells)
        codes = pd.Index(self.classes, dtype=object).get_indexer(words).astype(float)
        unknown = (codes < 0) & (words != "")
        if unknown.any():
            at = int(np.flatnonzero(unknown)[0])
            raise InputError(
                f"{place(chunk, at)}: {self.target!r} is {words[at]!r}, which is none of the classes "
                f"{_some(self.classes)}; correct it, or train again with it."
            )
        codes[codes < 0] = np.nan
        return codes

    def with_medians(self, medians: Mapping[str, float]) -> Schema:
        columns = tuple(replace(c, median=medians.get(c.name, c.median)) for c in self.columns)
        return replace(self, columns=columns)

    def to_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)

    @staticmethod
    def from_json(text: str) -> Schema:
        record = json.loads(text)
        columns = tuple(
            Column(c["name"], c["kind"], tuple(c["categories"]), tuple(c["cycles"]), c["median"])
            for c in record.pop("columns")
        )
        classes = record.pop("classes")
        return Schema(columns, classes=None if classes is None else tuple(classes), **record)


def place(chunk: Chunk, row: int) -> str:
    return f"{chunk.origin}, row {chunk.first + row}"


def cells_of(chunk: Chunk, name: str) -> pd.Series:
    if name not in chunk.frame.columns:
        raise InputError(f"{chunk.origin} has no column {name!r}; add it to the file.")
    cells = chunk.frame[name]
    if found := values.foreign(cells):
        raise InputError(
            f"{chunk.origin}: column {name!r} holds {found}, and neither numbers, texts nor dates; turn it "
            "into one of these."
        )
    return cells


def _quantities(chunk: Chunk, column: Column, cells: pd.Series) -> np.ndarray:
    """[rows, 1 or 2 per cycle] of a column that is not categories."""
    missing = values.is_missing(cells)
    if column.kind == "boolean":
        found = values.booleans(cells)[:, None]
    elif column.kind == "date":
        moments = values.times(cells)
        found = np.concatenate([values.cycle(moments, name) for name in column.cycles], axis=1)
    else:
        found = values.numbers(cells, chunk.decimal).values[:, None]
    bad = np.isnan(found).any(1) & ~missing
    if bad.any():
        at = int(np.flatnonzero(bad)[0])
        wanted = {"boolean": "true or false", "date": "a date such as 2024-05-31"}
        raise InputError(
            f"{place(chunk, at)}: column {column.name!r} holds {str(cells.iloc[at])!r}, which is not "
            f"{wanted.get(column.kind, 'a finite number')}; correct it."
        )
    return found


def _some(names: Sequence[str], most: int = 8) -> str:
    shown = ", ".join(map(repr, names[:most]))
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def sort_labels(labels: Sequence[str]) -> tuple[str, ...]:
    """As numbers where all of them are, else by the alphabet."""
    try:
        return tuple(sorted(labels, key=lambda label: (float(label), label)))
    except ValueError:
        return tuple(sorted(labels))


def describe(schema: Schema) -> dict[str, Any]:
    """How many columns of each kind there are, for people."""
    return dict(Counter(column.kind for column in schema.columns))
