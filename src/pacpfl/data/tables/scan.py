"""Look through tables a first time: which columns there are, what they hold, and whose the rows are."""

from __future__ import annotations

import difflib
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pacpfl.data.settings import CYCLES, TableSettings
from pacpfl.data.tables.columns import (
    Evidence,
    cells_of,
    place,
    read_numbers,
    read_texts,
    read_times,
)
from pacpfl.data.tables.files import Chunk, Table
from pacpfl.data.tables.split import WORDS
from pacpfl.errors import InputError


@dataclass
class Scan:
    """Results of the first pass. Arrays have an entry for each row, in the order of the files."""

    evidence: dict[str, Evidence]
    names: list[str]
    codes: np.ndarray
    incomplete: dict[str, int]  # missing cells by column
    complete: np.ndarray  # rows
    split_by: np.ndarray | None  # times, or parts
    new: np.ndarray | None  # whether a column calls the client new


def learning_columns(tables: Sequence[Table], settings: TableSettings) -> tuple[str, ...]:
    """Return the columns to learn from, after checking that every file has all it must have."""
    target = settings.target
    if not target:
        raise InputError("tables.target is empty; name the column that is to be predicted.")
    used = {name for name in (settings.client, settings.split_by, settings.new_by) if name}
    if settings.split != "rows" and not settings.split_by:
        raise InputError(f'tables.split = "{settings.split}" needs a column; name it in split_by.')
    if settings.held_out + settings.for_later >= 1:
        raise InputError("tables.held_out and for_later leave no rows to train on; lower them.")
    for name in settings.cycles:
        if name not in CYCLES:
            raise InputError(f"tables.cycles: {name!r} is none of {', '.join(CYCLES)}.")
    if not settings.client and len(tables) == 1:
        raise InputError(
            f"{tables[0].origin} is one table; name the column that says whose each row is in "
            "tables.client, or give a folder with one file for each client."
        )
    first = tables[0]
    names = settings.columns or tuple(
        name for name in first.columns if name not in {target, *used, *settings.ignore}
    )
    for name in (*settings.categorical, *settings.dates):
        if name not in names:
            raise InputError(f"Column {name!r} is in tables.categorical or dates, and is not used.")
    if target in names:
        raise InputError(f"Column {target!r} is the target, so it cannot be learned from; drop it.")
    needed = {*names, target, *used}
    for table in tables:
        for name in (target, *names, *sorted(used)):
            if name not in table.columns:
                near = nearest(name, table.columns)
                raise InputError(f"{table.origin} has no column {name!r}{near}.")
        extra = set(table.columns) - needed - set(settings.ignore)
        if extra and not settings.columns:
            raise InputError(
                f"{table.origin} has a column {min(extra)!r}, which {first.origin} has not; put it into "
                "tables.ignore, or list the columns to learn from in tables.columns."
            )
    if not names:
        raise InputError(f"{first.origin} has no column to learn from beside {target!r}; add one.")
    return names


def nearest(name: str, columns: Sequence[str]) -> str:
    """Return the end of a sentence about a missing column: the one that comes nearest, and the way out."""
    close = difflib.get_close_matches(name, list(columns), 1, 0.6)
    return f" (it has {close[0]!r}); rename it or add the column" if close else "; add it"


def scan_tables(
    tables: Sequence[Table], settings: TableSettings, columns: Sequence[str], chunk: int
) -> Scan:
    """Make the first pass, chunk by chunk."""
    evidence = {name: Evidence(name) for name in (*columns, settings.target)}
    numbers_of: dict[str, int] = {}
    origin_of: dict[str, str] = {}
    codes, complete, split_by = [], [], []
    incomplete: Counter[str] = Counter()
    new: dict[int, bool] = {}
    for table in tables:
        for part in table.chunks(chunk):
            own = clients_of(part, table, settings.client)
            for name in dict.fromkeys(own.tolist()):
                if origin_of.setdefault(name, table.origin) != table.origin:
                    raise InputError(
                        f"Client {name!r} is in {origin_of[name]} and in {table.origin}; give each "
                        "client one name and one file."
                    )
                numbers_of.setdefault(name, len(numbers_of))
            numbered = np.array([numbers_of[name] for name in own], np.int32)
            codes.append(numbered)
            lacking = np.zeros(len(own), bool)
            for name, seen in evidence.items():
                missing = seen.add(part)
                if missing.any():
                    incomplete[name] += int(missing.sum())
                    if settings.missing == "error":
                        raise InputError(
                            f"{place(part, int(np.flatnonzero(missing)[0]))}: column {name!r} is missing; "
                            'fill it, or set tables.missing = "drop" or "impute".'
                        )
                    if settings.missing == "drop" or name == settings.target:
                        lacking |= missing
            complete.append(~lacking)
            if settings.split != "rows":
                split_by.append(_split_by(part, settings))
            if settings.new_by:
                _note_new(part, settings.new_by, numbered, own, new)
    return Scan(
        evidence,
        list(numbers_of),
        np.concatenate(codes),
        dict(incomplete),
        np.concatenate(complete),
        np.concatenate(split_by) if split_by else None,
        np.array([new[n] for n in range(len(numbers_of))]) if settings.new_by else None,
    )


def clients_of(part: Chunk, table: Table, column: str) -> np.ndarray:
    """Name the client of each row: as `column` says, or after the file where there is none."""
    if not column:
        return np.full(len(part.frame), table.name, dtype=object)
    words = read_texts(cells_of(part, column))
    if (words == "").any():
        raise InputError(
            f"{place(part, int(np.flatnonzero(words == '')[0]))}: column {column!r}, which "
            "names the client, is empty; fill it."
        )
    return np.array([unicodedata.normalize("NFC", word) for word in words], dtype=object)


def _split_by(part: Chunk, settings: TableSettings) -> np.ndarray:
    """Read what the split goes by: times as numbers, or the words train, later and test."""
    cells = cells_of(part, settings.split_by)
    if settings.split == "time":
        found = read_numbers(cells, part.decimal).values
        if np.isnan(found).any():
            moments = read_times(cells)
            dates = moments.astype("int64").to_numpy(float)
            found = np.where(moments.isna().to_numpy(bool), np.nan, dates)
        wanted = "a number or a date such as 2024-05-31"
    else:
        words = np.array([word.lower() for word in read_texts(cells)], dtype=object)
        found = np.array([WORDS.get(word, np.nan) for word in words], float)
        wanted = "train, later or test"
    if np.isnan(found).any():
        at = int(np.flatnonzero(np.isnan(found))[0])
        raise InputError(
            f"{place(part, at)}: column {settings.split_by!r} holds {str(cells.iloc[at])!r}, which is "
            f"not {wanted}; correct it."
        )
    return found if settings.split == "time" else found.astype(np.uint8)


_NEW = {**dict.fromkeys(("new", "true", "yes", "1"), True)}
_NEW |= dict.fromkeys(("existing", "old", "false", "no", "0", ""), False)


def _note_new(
    part: Chunk, column: str, numbered: np.ndarray, own: np.ndarray, new: dict[int, bool]
) -> None:
    words = [word.lower() for word in read_texts(cells_of(part, column))]
    for row, (client, word) in enumerate(zip(numbered.tolist(), words, strict=True)):
        if word not in _NEW:
            raise InputError(
                f"{place(part, row)}: column {column!r} holds {word!r}, which is not new or existing; "
                "correct it."
            )
        if new.setdefault(client, _NEW[word]) != _NEW[word]:
            raise InputError(
                f"{place(part, row)}: column {column!r} calls client {own[row]!r} both new and existing; "
                "decide for one."
            )
