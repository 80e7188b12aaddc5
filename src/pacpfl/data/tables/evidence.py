"""What has been seen of a column, and what follows from it: its kind, and the task of a target."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from pacpfl.data.tables import values
from pacpfl.data.tables.files import Chunk
from pacpfl.data.tables.schema import place
from pacpfl.errors import InputError

MOST_CATEGORIES = 50
MOST_LEVELS = 20


@dataclass
class Evidence:
    """What has been seen of one column: enough to tell its kind."""

    name: str
    rows: int = 0
    missing: int = 0
    numeric: int = 0
    boolean: int = 0
    dated: int = 0
    unclear: int = 0  # dates that are not written as ISO 8601 has them
    first_unclear: str = ""  # where the first of them stands
    words: Counter[str] = field(default_factory=Counter)  # while there are few
    many_words: bool = False
    levels: set[float] = field(default_factory=set)  # numbers, while there are few
    many_levels: bool = False
    foreign: str = ""  # what else it holds: no number, text or date
    first_other: str = ""  # where the first cell stands that is no number
    whole: bool = True  # all numbers are whole

    def add(self, chunk: Chunk) -> np.ndarray:
        """Take in some rows; which of their cells are missing."""
        cells = chunk.frame[self.name]
        self.foreign = self.foreign or values.foreign(cells)
        if self.foreign:
            return cells.isna().to_numpy(bool)
        found = values.numbers(cells, chunk.decimal)
        self.rows += len(cells)
        self.missing += int(found.missing.sum())
        numeric = ~found.missing & ~found.bad
        self.numeric += int(numeric.sum())
        if not self.many_levels:
            here = np.unique(found.values[numeric])
            self.levels |= set(here[: MOST_LEVELS + 1].tolist())
            self.many_levels = len(self.levels) > MOST_LEVELS
        if self.whole:
            self.whole = bool(np.all(found.values[numeric] % 1 == 0))
        if found.bad.any():
            self._add_others(chunk, cells[found.bad], int(np.flatnonzero(found.bad)[0]))
        return found.missing

    def _add_others(self, chunk: Chunk, others: pd.Series, first: int) -> None:
        if not self.first_other:
            text = str(others.iloc[0])
            self.first_other = f"{place(chunk, first)}: column {self.name!r} holds {text!r}"
        self.boolean += int(np.isfinite(values.booleans(others)).sum())
        self.dated += int(values.times(others).notna().sum())
        unclear = values.unclear_times(others)
        self.unclear += int(unclear.sum())
        if unclear.any() and not self.first_unclear:
            at = int(others.index[int(np.flatnonzero(unclear)[0])])
            text = str(others.loc[at])
            self.first_unclear = f"{place(chunk, at)}: column {self.name!r} holds {text!r}"
        if not self.many_words:
            self.words.update(values.texts(others).tolist())
            self.many_words = len(self.words) > MOST_CATEGORIES

    @property
    def present(self) -> int:
        return self.rows - self.missing

    @property
    def kind(self) -> str:
        """number, boolean, date, unclear (dates written in other ways), category, text (too many
        different words), mixed, foreign (neither of these) or empty."""
        if self.foreign:
            return "foreign"
        others = self.present - self.numeric
        if not self.present:
            return "empty"
        if not others:
            return "number"
        if self.boolean == self.present:
            return "boolean"
        if self.dated == self.present:
            return "date"
        if self.unclear and self.dated + self.unclear >= self.present:
            return "unclear"
        if 2 * self.numeric >= self.present:
            return "mixed"
        return "text" if self.many_words else "category"

    @property
    def constant(self) -> bool:
        return len(self.levels) + len(self.words) <= 1


def kind_for_learning(evidence: Evidence, name: str, categorical: bool, dated: bool) -> str:
    """The kind of a column that is to be learned from; raises where it has none."""
    kind = evidence.kind
    if kind == "foreign":
        raise InputError(
            f"Column {name!r} holds {evidence.foreign}, and neither numbers, texts nor dates; put it into "
            "tables.ignore, or turn it into one of these."
        )
    if categorical:
        return "category"
    if kind == "empty":
        raise InputError(
            f"Column {name!r} has no values at all; put it into tables.ignore, or fill it."
        )
    if kind == "unclear":
        raise InputError(
            f"{evidence.first_unclear}, a date that is not written like 2024-05-31; write all of them "
            "so, or put the column into tables.ignore."
        )
    if dated and kind != "date":
        raise InputError(
            f"{evidence.first_other or f'Column {name!r} holds numbers'}, and it is named in "
            "tables.dates; write dates like 2024-05-31 or 2024-05-31T14:00."
        )
    if kind == "mixed":
        raise InputError(
            f"{evidence.first_other}, where other rows have numbers; correct it, or name the column in "
            "tables.categorical or tables.ignore."
        )
    if kind == "text":
        raise InputError(
            f"Column {name!r} holds more than {MOST_CATEGORIES} different texts, too many to learn "
            "from; put it into tables.ignore, or name it in tables.categorical."
        )
    return kind


def decide_task(evidence: Evidence, task: str) -> str:
    """regression or classes, and an error where the target is neither."""
    kind, name = evidence.kind, evidence.name
    if kind == "empty":
        raise InputError(f"The target {name!r} has no values at all; fill it or choose another.")
    if kind in ("date", "unclear"):
        raise InputError(
            f"The target {name!r} holds dates; choose a column of numbers or classes as the target."
        )
    if kind == "foreign":
        raise InputError(
            f"The target {name!r} holds {evidence.foreign}; choose a column of numbers or classes."
        )
    two = evidence.levels == {0.0, 1.0} and not evidence.many_levels
    if task == "regression" or (task == "auto" and kind == "number" and not two):
        if kind != "number":
            raise InputError(
                f"{evidence.first_other}, and the target must be numbers; correct it, or set "
                'tables.task = "classes".'
            )
        return "regression"
    if task == "auto" and kind == "mixed":
        raise InputError(
            f"{evidence.first_other}, where other rows have numbers; correct it, or set tables.task."
        )
    many = evidence.many_words or (evidence.numeric and evidence.many_levels)
    if many:
        raise InputError(
            f"The target {name!r} has more than {MOST_LEVELS} different values, too many classes; "
            'choose another target, or set tables.task = "regression".'
        )
    return "classes"
