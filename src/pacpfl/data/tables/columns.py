"""Columns: what a cell says, what a column holds, and how rows become features ever after.

1. A cell is a number, a truth, a word or a date; nothing is guessed that could be read in two ways.
   Cells of CSV files are texts, and `decimal` says how their file writes one and a half: "1.5" or
   "1,5". Where it is the comma, "1.234,5" is read with its point between thousands, and "1.234" is
   refused: it could be either.
2. `Evidence` collects what has been seen of a column, whence follow its kind and the task of a target.
3. A `Schema` holds what was learned from the training rows: categories, medians, encodings. It belongs
   to the model, so a table that comes years later is read as the first one was.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from pacpfl.data.tables.files import Chunk, foreign_content, listed
from pacpfl.errors import InputError
from pacpfl.types import Form

MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?", "#n/a", "<na>", "nat"})
TRUE, FALSE = frozenset({"true", "yes"}), frozenset({"false", "no"})
LARGEST = 1e30  # beyond, squares no longer fit: such a number is a mistake
_WHOLE = r"^([+-]?\d+)[.,]0+$"
# Dates in another form than ISO 8601's, such as 31.05.2024 or 05/06/24 (which month is that?).
_OTHER_DATE = r"^\s*\d{1,2}[./-]\d{1,2}[./-](?:\d{4}|\d{2})(?:\D|$)"
_THOUSANDS = r"^\s*[+-]?\d{1,3}(?:\.\d{3})+,\d+\s*$"


class Numbers(NamedTuple):
    """Values, NaN wherever there is none; `bad` cells hold something that is no number of usual size."""

    values: np.ndarray
    missing: np.ndarray
    bad: np.ndarray


# Columns are told apart by the kind of their type: numbers are "iuf", moments "M", all others texts,
# truth values included: files of text write them as words.


def is_missing(column: pd.Series) -> np.ndarray:
    """Mark empty cells, and the words that stand for nothing."""
    absent = column.isna().to_numpy(bool)
    if column.dtype.kind in "iufM":
        return absent
    return absent | _texts(column).str.strip().str.lower().isin(MISSING).to_numpy(bool)


def read_numbers(column: pd.Series, decimal: str = ".") -> Numbers:
    """Read cells as numbers, whatever they are stored as."""
    if column.dtype.kind == "M":
        values = np.full(len(column), np.nan)
    elif column.dtype.kind in "iuf":
        values = _floats(column)
    else:
        texts = _texts(column)
        if decimal == ",":
            grouped = texts.str.match(_THOUSANDS)
            plain = texts.where(~grouped, texts.str.replace(".", "", regex=False))
            readable = ~plain.str.contains(".", regex=False)
            texts = plain.str.replace(",", ".", regex=False).where(readable, "x")
        values = _floats(pd.to_numeric(texts, errors="coerce"))
    suspicious = ~(np.abs(values) <= LARGEST)
    absent = np.zeros(len(values), bool)
    if suspicious.any():
        absent[suspicious] = is_missing(column[suspicious])
        values[suspicious] = np.nan
    return Numbers(values, absent, suspicious & ~absent)


def read_booleans(column: pd.Series) -> np.ndarray:
    """Return 1 and 0 for true and false, yes and no; NaN for anything else."""
    words = _texts(column).str.strip().str.lower()
    return np.where(words.isin(TRUE), 1.0, np.where(words.isin(FALSE), 0.0, np.nan))


def read_texts(column: pd.Series) -> np.ndarray:
    """Return stripped words, "" where nothing stands. Whole numbers are written without a fraction, so that
    a file that stores them as 3.0 has the category 3, too."""
    words: Sequence[str]
    if column.dtype.kind in "iuf":
        words = [str(int(v)) if v.is_integer() else repr(v) for v in _floats(column).tolist()]
    elif column.dtype.kind == "M":
        words = column.astype(str)
    else:
        words = _texts(column).str.strip().str.replace(_WHOLE, r"\1", regex=True)
    return np.where(is_missing(column), "", np.array(words, object))


def read_times(column: pd.Series) -> pd.Series:
    """Return dates as ISO 8601 writes them, in UTC; NaT for anything else."""
    if column.dtype.kind not in "iuf":
        with suppress(ValueError, OverflowError):  # years that no calendar has
            cells = column if column.dtype.kind == "M" else _texts(column)
            return pd.to_datetime(cells, format="ISO8601", errors="coerce", utc=True)
    return pd.Series(pd.NaT, index=column.index, dtype="datetime64[us, UTC]")


def _floats(column: pd.Series) -> np.ndarray:
    return np.array(column.to_numpy(dtype=float, na_value=np.nan))


def _texts(column: pd.Series) -> pd.Series:
    texts = column.where(column.notna(), "").astype(str)
    return texts.str.lower() if column.dtype.kind == "b" else texts


def cycle_features(moments: pd.Series, name: str) -> np.ndarray:
    """Return sine and cosine [rows, 2] of where in its cycle each moment lies."""
    at, hour = moments.dt, moments.dt.hour + moments.dt.minute / 60
    share = {
        "hour": lambda: hour / 24,
        "weekday": lambda: (at.day_of_week + hour / 24) / 7,
        "day": lambda: (at.day_of_year - 1 + hour / 24) / 365.25,
        "month": lambda: (at.month - 1 + (at.day - 1) / at.days_in_month) / 12,
    }[name]()
    angle = 2 * np.pi * _floats(share)
    return np.stack([np.sin(angle), np.cos(angle)], axis=1)


MOST_CATEGORIES = 50
MOST_LEVELS = 20


@dataclass
class Evidence:
    """Counts of what has been seen in one column: enough to tell its kind."""

    name: str
    seen: Counter[str] = field(default_factory=Counter)  # rows in all, and cells of each kind
    first: dict[str, str] = field(default_factory=dict)  # where the first cell of a kind stands
    words: set[str] = field(default_factory=set)  # hardly more than MOST_CATEGORIES
    levels: set[float] = field(default_factory=set)  # numbers, hardly more than MOST_LEVELS
    foreign: str = ""  # what else it holds: no number, text or date
    whole: bool = True  # all numbers are whole

    def add(self, chunk: Chunk) -> np.ndarray:
        """Take in some rows, and return which of their cells are missing."""
        cells = chunk.frame[self.name]
        self.foreign = self.foreign or foreign_content(cells)
        if self.foreign:
            return cells.isna().to_numpy(bool)
        values, missing, bad = read_numbers(cells, chunk.decimal)
        numbers = values[~missing & ~bad]
        self.seen.update(rows=len(cells), missing=int(missing.sum()), number=len(numbers))
        if not self.many_levels:
            self.levels |= set(np.unique(numbers)[: MOST_LEVELS + 1].tolist())
        self.whole = self.whole and bool(np.all(numbers % 1 == 0))
        if bad.any():
            self._add_others(chunk, cells[bad])
        return missing

    def _add_others(self, chunk: Chunk, others: pd.Series) -> None:
        unclear = _texts(others).str.match(_OTHER_DATE)
        kinds = {
            "other": np.ones(len(others), bool),
            "boolean": np.isfinite(read_booleans(others)),
            "date": read_times(others).notna(),
            "unclear": unclear,  # a date that is not written as ISO 8601 has it
        }
        self.seen.update({kind: int(cells.sum()) for kind, cells in kinds.items()})
        for kind in ("other", "unclear"):
            if kind not in self.first and kinds[kind].any():
                self.first[kind] = chunk.holds(others[kinds[kind]])
        if not self.many_words:
            self.words.update(read_texts(others).tolist())

    @property
    def missing(self) -> int:
        return self.seen["missing"]

    @property
    def many_words(self) -> bool:
        return len(self.words) > MOST_CATEGORIES

    @property
    def many_levels(self) -> bool:
        return len(self.levels) > MOST_LEVELS

    @property
    def kind(self) -> str:
        """Return number, boolean, date, unclear (dates written in other ways), category, text (too many
        different words), mixed, foreign (neither of these) or empty."""
        seen, present = self.seen, self.seen["rows"] - self.seen["missing"]
        rules = {
            "foreign": bool(self.foreign),
            "empty": not present,
            **{kind: seen[kind] == present for kind in ("number", "boolean", "date")},
            "unclear": bool(seen["unclear"]) and seen["date"] + seen["unclear"] >= present,
            "mixed": 2 * seen["number"] >= present,
            "text": self.many_words,
        }
        return next((kind for kind, applies in rules.items() if applies), "category")

    @property
    def constant(self) -> bool:
        return len(self.levels) + len(self.words) <= 1


def kind_for_learning(evidence: Evidence, categorical: bool = False, dated: bool = False) -> str:
    """Return the kind of a column that is to be learned from, or raise where it has none."""
    kind, column = evidence.kind, f"Column {evidence.name!r}"
    if categorical and kind != "foreign":
        return "category"
    if dated and kind not in ("date", "foreign", "empty", "unclear"):
        raise InputError(
            f"{evidence.first.get('other', f'{column} holds numbers')}, and it is named in tables.dates; "
            "write dates like 2024-05-31 or 2024-05-31T14:00."
        )
    refusals = {
        "foreign": f"{column} holds {evidence.foreign}, and neither numbers, texts nor dates",
        "empty": f"{column} has no values at all",
        "unclear": f"{evidence.first.get('unclear')}, a date that is not written like 2024-05-31",
        "mixed": f"{evidence.first.get('other')}, where other rows have numbers",
        "text": f"{column} holds more than {MOST_CATEGORIES} different texts, too many to learn from",
    }
    if kind in refusals:
        way = "tables.categorical or " if kind in ("mixed", "text") else ""
        raise InputError(f"{refusals[kind]}; correct it, or name the column in {way}tables.ignore.")
    return kind


def decide_task(evidence: Evidence, task: str) -> str:
    """Return "regression" or "classes", or raise where the target is neither."""
    kind, target = evidence.kind, f"The target {evidence.name!r}"
    others = {"empty": "no values at all", "date": "dates", "unclear": "dates"}
    if content := evidence.foreign or others.get(kind):
        raise InputError(f"{target} holds {content}; choose a column of numbers or classes.")
    if task == "auto":
        numbers = kind == "mixed" or (kind == "number" and evidence.levels != {0.0, 1.0})
        task = "regression" if numbers else "classes"
    if task == "regression" and kind != "number":
        raise InputError(
            f"{evidence.first['other']}, and the target must be numbers; correct it, or set "
            'tables.task = "classes".'
        )
    if task == "classes" and (evidence.many_words or evidence.many_levels):
        raise InputError(
            f"{target} has more than {MOST_LEVELS} different values, too many classes; choose another "
            'target, or set tables.task = "regression".'
        )
    return task


@dataclass(frozen=True)
class Column:
    """A column to learn from. `median` is that of the training rows, where numbers are imputed."""

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


@dataclass(frozen=True)
class Schema:
    """The columns of a table and what the training rows said of them."""

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
        """Describe a federation of such tables, whoever its clients are."""
        classes = None if self.classes is None else len(self.classes)
        return Form(self.features, self.target, classes)

    @property
    def unscaled(self) -> tuple[str, ...]:
        """Name the features that have their scale already: zeros and ones, sines and cosines."""
        return tuple(name for c in self.columns if c.kind != "number" for name in c.features)

    def encode(self, chunk: Chunk) -> tuple[np.ndarray, dict[str, int]]:
        """Return features [rows, features], NaN where a cell is missing; and how often which column holds
        a category that was not known. The chunk's columns may stand in any order."""
        parts, unseen = [np.zeros((len(chunk), 0))], {}
        for column in self.columns:
            if column.kind != "category":
                parts.append(_quantities(chunk, column))
                continue
            codes, missing = _codes(chunk, column.name, column.categories)
            unknown = (codes < 0) & ~missing
            if self.unseen == "error":
                fault = 'a category no training row has; correct it, or set tables.unseen = "zeros"'
                chunk.refuse(column.name, unknown, fault)
            if unknown.any():
                unseen[column.name] = int(unknown.sum())
            parts.append((codes[:, None] == np.arange(len(column.categories))).astype(float))
            if self.missing != "impute":
                parts[-1][missing] = np.nan
        return np.concatenate(parts, axis=1), unseen

    def impute(self, x: np.ndarray) -> np.ndarray:
        """Fill gaps: numbers by training medians, a category by none of those known."""
        medians = [
            math.nan if c.median is None else c.median for c in self.columns for _ in c.features
        ]
        return np.where(np.isnan(x), medians, x)

    def targets(self, chunk: Chunk) -> np.ndarray:
        """Return numbers, or class numbers; NaN where the cell is missing."""
        if self.classes is None:
            return _quantities(chunk, Column(self.target, "number"))[:, 0]
        codes, missing = _codes(chunk, self.target, self.classes)
        known = listed(list(map(repr, self.classes)))
        fault = f"which is none of the classes {known}; correct it, or train again with it"
        chunk.refuse(self.target, (codes < 0) & ~missing, fault)
        return np.where(missing, np.nan, codes)

    def to_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)

    @staticmethod
    def from_json(text: str) -> Schema:
        def with_tuples(entry: dict[str, Any]) -> dict[str, Any]:
            return {k: tuple(v) if isinstance(v, list) else v for k, v in entry.items()}

        record = json.loads(text, object_hook=with_tuples)
        return Schema(tuple(Column(**column) for column in record.pop("columns")), **record)


def read_words(chunk: Chunk, name: str, meanings: Mapping[str, int], wanted: str) -> np.ndarray:
    """Return what the words of a column mean, or raise where a cell holds another one."""
    found = np.array([meanings.get(word.lower(), -1) for word in read_texts(chunk.cells(name))])
    chunk.refuse(name, found < 0, f"which is not {wanted}; correct it")
    return found


def _codes(chunk: Chunk, name: str, known: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return where each cell of a column stands among the known words, or -1; and which are missing."""
    words = read_texts(chunk.cells(name))
    return pd.Index(known, dtype=object).get_indexer(words), words == ""


def _quantities(chunk: Chunk, column: Column) -> np.ndarray:
    """Return the features [rows, 1 or 2 per cycle] of a column that is not categories."""
    cells = chunk.cells(column.name)
    if column.kind == "boolean":
        found = read_booleans(cells)[:, None]
    elif column.kind == "date":
        moments = read_times(cells)
        found = np.concatenate([cycle_features(moments, name) for name in column.cycles], axis=1)
    else:
        found = read_numbers(cells, chunk.decimal).values[:, None]
    wanted = {"boolean": "true or false", "date": "a date such as 2024-05-31"}
    words = f"which is not {wanted.get(column.kind, 'a finite number')}; correct it"
    chunk.refuse(column.name, np.isnan(found).any(1) & ~is_missing(cells), words)
    return found


def sort_labels(labels: Sequence[str]) -> tuple[str, ...]:
    """Sort labels as numbers where all of them are, else by the alphabet."""
    try:
        return tuple(sorted(labels, key=lambda label: (float(label), label)))
    except ValueError:
        return tuple(sorted(labels))
