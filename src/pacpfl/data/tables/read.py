"""A federation from people's own tables: CSV or Parquet files, or a data frame.

Up to three passes, none of which holds more than a chunk of rows: one to see what the columns hold and
whose the rows are, one to collect the categories of the training rows (where there are categories),
one to put the rows in their places. What is learned from rows (categories, medians) is learned from the
training rows of existing clients alone.
"""

from __future__ import annotations

import difflib
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pacpfl.data.settings import CYCLES, TableSettings
from pacpfl.data.store import Room, release, row_blocks
from pacpfl.data.tables.columns import (
    Column,
    Evidence,
    Schema,
    cells_of,
    decide_task,
    kind_for_learning,
    place,
    read_numbers,
    read_texts,
    read_times,
    sort_labels,
)
from pacpfl.data.tables.files import CHUNK, Chunk, Table, normalized, open_tables, opening
from pacpfl.data.tables.split import PARTS, TRAIN, UNUSED, WORDS, Split, choose_new, split_rows
from pacpfl.errors import InputError
from pacpfl.types import Client, Federation, Samples

Stamp = tuple[tuple[str, int, int], ...]


class Tables(NamedTuple):
    """A federation in the owner's units, how to read more rows for it, and what its owner should know."""

    federation: Federation
    schema: Schema
    notices: tuple[str, ...]
    room: Room  # keeps the files on disk while the federation is in use


def load_own(settings: TableSettings, seed: int) -> Tables:
    """Return the tables that `settings.source` names, read once as long as the files do not change."""
    before = stamp(settings)
    tables = _load(settings, seed, before)
    if stamp(settings) != before:  # the passes over the files may have seen different rows
        raise InputError(
            f"{settings.source} changed while it was read; start again when nobody writes there."
        )
    return tables


@lru_cache(maxsize=1)
def _load(settings: TableSettings, seed: int, files: Stamp) -> Tables:
    return load_tables(settings.source, settings, seed)


def stamp(settings: TableSettings) -> Stamp:
    """Return name, size and time of every file: when one changes, all are read again."""
    source = Path(settings.source)
    with opening(source):
        files = sorted(source.iterdir()) if source.is_dir() else [source]
        return tuple(
            (path.name, path.stat().st_size, path.stat().st_mtime_ns)
            for path in files
            if path.is_file()
        )


def load_tables(
    source: Path | str | Any,
    settings: TableSettings,
    seed: int = 0,
    *,
    chunk: int = CHUNK,
    room: Room | None = None,
) -> Tables:
    """Read a federation from tables, its features encoded and nothing scaled yet.

    Parameters
    ----------
    source
        A folder with one file for each client, one file, or a data frame of pandas or polars.
    settings
        Which column is what, and how the rows are split.
    seed
        Of the split, and of which clients are new.
    chunk
        Rows that are held at once.
    room
        Where the rows go; large ones go to files on disk.
    """
    room = room or Room()
    tables = open_tables(source)
    names = learning_columns(tables, settings)
    scan = scan_tables(tables, settings, names, chunk)
    columns, task = column_kinds(settings, names, scan)
    is_new = choose_new(settings, scan.names, scan.new, seed)
    split = split_rows(settings, scan.names, scan.codes, scan.complete, scan.split_by, is_new, seed)
    split, left_out = _without_small(scan, split, settings)
    reading = _Reading(tables, settings, scan, split, chunk)
    schema = reading.learn_schema(columns, task)
    federation, schema, unseen = reading.fill(schema, room)
    notices = (*_missing_notices(scan, settings), *left_out, *unseen)
    return Tables(federation, schema, notices, room)


def column_kinds(
    settings: TableSettings, names: Sequence[str], scan: Scan
) -> tuple[list[Column], str]:
    """Judge by all rows what each column holds, and whether the target is a number or a class."""
    task = decide_task(scan.evidence[settings.target], settings.task)
    columns, used = [], {*settings.columns, *settings.categorical}
    for name in names:
        evidence, dated = scan.evidence[name], name in settings.dates
        if evidence.kind == "date" and not dated and name not in used:
            continue
        kind = kind_for_learning(evidence, name in settings.categorical, dated)
        columns.append(Column(name, kind, cycles=settings.cycles if kind == "date" else ()))
    if not columns:
        raise InputError("No column is left to learn from; name date columns in tables.dates.")
    return columns, task


def _missing_notices(scan: Scan, settings: TableSettings) -> list[str]:
    counts = {name: seen.missing for name, seen in scan.evidence.items() if seen.missing}
    if not counts:
        return []
    cells = ", ".join(f"{name!r} {count}" for name, count in counts.items())
    rows = int((~scan.complete).sum())
    if settings.missing == "drop":
        return [f"Missing cells: {cells}. {rows} rows were dropped."]
    words = "Missing features were replaced by training medians."
    return [f"Missing cells: {cells}. {words} {rows} rows without a target were dropped."]


def _without_small(scan: Scan, split: Split, settings: TableSettings) -> tuple[Split, list[str]]:
    """Leave out the clients with too few rows, or raise if they may not be left out."""
    if not split.small:
        return split, []
    names = [scan.names[client] for client in split.small]
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    if settings.small == "error":
        raise InputError(
            f"Too few rows to train on two and be measured on two: {shown}; add rows, or set "
            'tables.small = "leave" to leave such clients out.'
        )
    large = np.setdiff1d(np.arange(len(scan.names)), split.small)
    if split.is_new[large].all():
        raise InputError(f"No existing client has enough rows ({shown}); add rows.")
    parts = np.where(np.isin(scan.codes, split.small), np.uint8(UNUSED), split.parts)
    return split._replace(parts=parts), [f"Left out, having too few rows: {shown}."]


@dataclass
class Scan:
    """Results of the first pass. Arrays have an entry for each row, in the order of the files."""

    evidence: dict[str, Evidence]
    names: list[str]
    codes: np.ndarray
    complete: np.ndarray  # rows
    split_by: np.ndarray | None  # times, or parts
    new: np.ndarray | None  # whether a column calls the client new


def learning_columns(tables: Sequence[Table], settings: TableSettings) -> tuple[str, ...]:
    """Return the columns to learn from, after checking that every file has all it must have."""
    _check_settings(tables, settings)
    target, first = settings.target, tables[0]
    used = {name for name in (settings.client, settings.split_by, settings.new_by) if name}
    names = settings.columns or tuple(
        name for name in first.columns if name not in {target, *used, *settings.ignore}
    )
    for name in (*settings.categorical, *settings.dates):
        if name not in names:
            raise InputError(f"Column {name!r} is in tables.categorical or dates, and is not used.")
    if target in names:
        raise InputError(f"Column {target!r} is the target, so it cannot be learned from; drop it.")
    for table in tables:
        require_columns(table, (target, *names, *sorted(used)))
        extra = set(table.columns) - {*names, target, *used, *settings.ignore}
        if extra and not settings.columns:
            raise InputError(
                f"{table.origin} has a column {min(extra)!r}, which {first.origin} has not; put it into "
                "tables.ignore, or list the columns to learn from in tables.columns."
            )
    if not names:
        raise InputError(f"{first.origin} has no column to learn from beside {target!r}; add one.")
    return names


def _check_settings(tables: Sequence[Table], settings: TableSettings) -> None:
    if not settings.target:
        raise InputError("tables.target is empty; name the column that is to be predicted.")
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


def require_columns(table: Table, names: Iterable[str]) -> None:
    """Raise if a table lacks one of these columns, and name the one that comes nearest to it."""
    for name in names:
        if name not in table.columns:
            close = difflib.get_close_matches(name, table.columns, 1, 0.6)
            way = f" (it has {close[0]!r}); rename it or add the column" if close else "; add it"
            raise InputError(f"{table.origin} has no column {name!r}{way}.")


def scan_tables(
    tables: Sequence[Table], settings: TableSettings, columns: Sequence[str], chunk: int
) -> Scan:
    """Make the first pass, chunk by chunk."""
    evidence = {name: Evidence(name) for name in (*columns, settings.target)}
    origins: dict[str, str] = {}  # of every client, in the order in which they come
    numbers: dict[str, int] = {}
    new: dict[str, bool] = {}
    codes, complete, split_by = [], [], []
    for table in tables:
        for part in table.chunks(chunk):
            own = clients_of(part, table, settings.client)
            for name in dict.fromkeys(own.tolist()):
                numbers.setdefault(name, len(numbers))
                if origins.setdefault(name, table.origin) != table.origin:
                    raise InputError(
                        f"Client {name!r} is in {origins[name]} and in {table.origin}; give each "
                        "client one name and one file."
                    )
            codes.append(np.array([numbers[name] for name in own], np.int32))
            complete.append(_complete_rows(part, evidence, settings))
            if settings.split != "rows":
                split_by.append(_split_by(part, settings))
            if settings.new_by:
                _note_new(part, settings.new_by, own, new)
    return Scan(
        evidence,
        list(numbers),
        np.concatenate(codes),
        np.concatenate(complete),
        np.concatenate(split_by) if split_by else None,
        np.array([new[name] for name in numbers]) if new else None,
    )


def _complete_rows(
    part: Chunk, evidence: Mapping[str, Evidence], settings: TableSettings
) -> np.ndarray:
    """Add some rows to the evidence, and return which of them can be used."""
    complete = np.ones(len(part.frame), bool)
    for name, seen in evidence.items():
        missing = seen.add(part)
        if missing.any() and settings.missing == "error":
            raise InputError(
                f"{place(part, int(np.argmax(missing)))}: column {name!r} is missing; fill it, or set "
                'tables.missing = "drop" or "impute".'
            )
        if settings.missing == "drop" or name == settings.target:
            complete &= ~missing
    return complete


def clients_of(part: Chunk, table: Table, column: str) -> np.ndarray:
    """Name the client of each row: as `column` says, or after the file where there is none."""
    if not column:
        return np.full(len(part.frame), table.name, dtype=object)
    words = read_texts(cells_of(part, column))
    if (words == "").any():
        raise InputError(
            f"{place(part, int(np.argmax(words == '')))}: column {column!r}, which "
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
        found = np.array([WORDS.get(word.lower(), np.nan) for word in read_texts(cells)], float)
        wanted = "train, later or test"
    if np.isnan(found).any():
        at = int(np.argmax(np.isnan(found)))
        raise InputError(
            f"{place(part, at)}: column {settings.split_by!r} holds {str(cells.iloc[at])!r}, which is "
            f"not {wanted}; correct it."
        )
    return found if settings.split == "time" else found.astype(np.uint8)


_NEW = {**dict.fromkeys(("new", "true", "yes", "1"), True)}
_NEW |= dict.fromkeys(("existing", "old", "false", "no", "0", ""), False)


def _note_new(part: Chunk, column: str, own: np.ndarray, new: dict[str, bool]) -> None:
    words = [word.lower() for word in read_texts(cells_of(part, column))]
    for row, (client, word) in enumerate(zip(own.tolist(), words, strict=True)):
        if word not in _NEW:
            raise InputError(
                f"{place(part, row)}: column {column!r} holds {word!r}, which is not new or existing; "
                "correct it."
            )
        if new.setdefault(client, _NEW[word]) != _NEW[word]:
            raise InputError(
                f"{place(part, row)}: column {column!r} calls client {client!r} both new and existing; "
                "decide for one."
            )


@dataclass(frozen=True)
class _Reading:
    """The passes over tables after the first, when it is known where every row goes."""

    tables: Sequence[Table]
    settings: TableSettings
    scan: Scan
    split: Split
    chunk: int

    def learn_schema(self, columns: list[Column], task: str) -> Schema:
        """Take categories from the training rows of existing clients, class labels from all rows used."""
        categories: dict[str, set[str]] = {c.name: set() for c in columns if c.kind == "category"}
        labels: set[str] = set()
        target = self.settings.target
        for chunk, rows in self._chunks() if categories or task == "classes" else ():
            parts = self.split.parts[rows]
            training = (parts == TRAIN) & ~self.split.is_new[self.scan.codes[rows]]
            for name, words in categories.items():
                words |= set(read_texts(chunk.frame[name])[training].tolist())
            if task == "classes":
                labels |= set(read_texts(chunk.frame[target])[parts != UNUSED].tolist())
        columns = [
            replace(c, categories=tuple(sorted(categories.get(c.name, {""}) - {""})))
            for c in columns
        ]
        if not any(column.features for column in columns):
            raise InputError("No training row has a value in any column to learn from; fill some.")
        if task == "classes" and len(labels) < 2:
            raise InputError(f"The target {target!r} has one class only; nothing is to learn.")
        return Schema(
            tuple(columns),
            target,
            sort_labels(sorted(labels)) if task == "classes" else None,
            self.settings.client,
            self.settings.missing,
            self.settings.unseen,
        )

    def fill(self, schema: Schema, room: Room) -> tuple[Federation, Schema, list[str]]:
        """Put every row at its place; the schema gets its medians.

        Existing clients come before new ones, and of each group training rows before later and test
        rows: what is used together are neighbours on disk.
        """
        codes, split, clients = self.scan.codes, self.split, len(self.scan.names)
        kinds = split.is_new[codes] * len(PARTS) + split.parts.astype(int)
        purposes = kinds * clients + codes  # one number for each group, part and client
        used = split.parts != UNUSED
        order = np.flatnonzero(used)[np.argsort(purposes[used], kind="stable")]
        places = np.zeros(len(codes), np.int64)
        places[order] = np.arange(len(order))
        sizes = np.bincount(purposes[used], minlength=2 * len(PARTS) * clients)

        width = len(schema.features)
        total = 8 * (width + 1) * len(order)
        x = room.array((len(order), width), np.float64, total)
        y = room.array((len(order),), np.float64, total)
        unseen: Counter[str] = Counter()
        for chunk, rows in self._chunks():
            if used[rows].any():
                some = chunk._replace(frame=chunk.frame[used[rows]].reset_index(drop=True))
                encoded, at = schema.encode(some), places[rows][used[rows]]
                unseen.update(encoded.unseen)
                x[at], y[at] = encoded.x, schema.targets(some)
                release(x)
        if self.settings.missing == "impute":
            schema = _with_medians(schema, x[: sizes[:clients].sum()])
            for block in row_blocks(len(x)):
                x[block] = schema.impute(x[block])
            release(x)
        notices = [
            f"Column {name!r}: {count} cells outside the training rows hold categories that those have "
            "not."
            for name, count in unseen.items()
        ]
        ends = np.append(0, np.cumsum(sizes)).tolist()
        parts = [
            Samples(x[start:end], y[start:end]) if end > start else None
            for start, end in pairwise(ends)
        ]
        return self._federation(schema, parts), schema, notices

    def _federation(self, schema: Schema, parts: Sequence[Samples | None]) -> Federation:
        """Hand out the samples of every group, part and client."""
        names = self.scan.names
        clients = len(names)
        groups: list[list[Client]] = [[], []]
        for client, name in enumerate(names):
            new = int(self.split.is_new[client])
            train, later, test = parts[new * len(PARTS) * clients + client :: clients][: len(PARTS)]
            if train is not None:
                groups[new].append(Client(name, train, later, test))
        return Federation(
            Path(self.settings.source).stem or "tables",
            tuple(groups[0]),
            tuple(groups[1]),
            schema.features,
            schema.target,
            None if schema.classes is None else len(schema.classes),
            unscaled=schema.unscaled,
            constants=True,
        )

    def _chunks(self) -> Iterator[tuple[Chunk, slice]]:
        """Yield the chunks again, each with its rows' numbers."""
        start = 0
        for table in self.tables:
            for chunk in table.chunks(self.chunk):
                rows = slice(start, start + len(chunk.frame))
                start = rows.stop
                if start > len(self.scan.codes):
                    raise InputError(f"{table.origin} changed while it was read; start again.")
                yield chunk, rows
        if start < len(self.scan.codes):
            raise InputError(
                f"{self.tables[-1].origin} or another table lost rows while being read; start again."
            )


def _with_medians(schema: Schema, x: np.ndarray) -> Schema:
    """Note the medians of the training rows. A date has none: its cycles have no middle."""
    columns, at = [], 0
    for column in schema.columns:
        median = 0.0 if column.kind == "date" else None
        if column.kind in ("number", "boolean"):
            values = x[:, at][~np.isnan(x[:, at])]
            if not len(values):
                raise InputError(
                    f"Column {column.name!r} has no value in any training row; put it into tables.ignore."
                )
            median = float(np.median(values))
        columns.append(replace(column, median=median))
        at += len(column.features)
    return replace(schema, columns=tuple(columns))


@dataclass(frozen=True)
class Rows:
    """One client's table, read with the schema of a model: to personalise, to extend, to predict."""

    client: str
    x: np.ndarray
    y: np.ndarray | None
    notices: tuple[str, ...] = ()


def read_rows(
    source: Path | str | Any, schema: Schema, *, targets: bool, client: str | None = None
) -> Rows:
    """Read the rows of one client with the schema of a model.

    Parameters
    ----------
    source
        One file, or a data frame.
    schema
        Of the model.
    targets
        Whether rows have targets: one without is an error, or dropped where the schema drops or
        imputes. Without targets every row must be complete unless the schema imputes.
    client
        Whose rows, where the table holds those of several.
    """
    tables = open_tables(source)
    if len(tables) > 1:
        raise InputError(f"{source} holds {len(tables)} tables; give the file of one client.")
    table = tables[0]
    require_columns(
        table, (*([schema.target] if targets else []), *(c.name for c in schema.columns))
    )
    has_names = bool(schema.client) and schema.client in table.columns
    xs, ys, unseen, dropped = [], [], Counter[str](), 0
    owners: dict[str, None] = {}
    for chunk in table.chunks():
        if has_names:
            own = clients_of(chunk, table, schema.client)
            owners |= dict.fromkeys(own.tolist())
            if client is not None:
                frame = chunk.frame[own == normalized(client)].reset_index(drop=True)
                chunk = chunk._replace(frame=frame)
                if not len(frame):
                    continue
        encoded = schema.encode(chunk)
        unseen.update(encoded.unseen)
        y = schema.targets(chunk) if targets else np.zeros(len(chunk.frame))
        x, complete = _complete(chunk, schema, encoded.x, y, targets)
        dropped += int((~complete).sum())
        xs.append(x[complete])
        ys.append(y[complete])
    if has_names and client is None and len(owners) > 1:
        raise InputError(
            f"{table.origin} holds the rows of {len(owners)} clients; choose one with --client NAME."
        )
    if not sum(map(len, xs)):
        who = f" of client {client!r}" if client is not None else " that is complete"
        raise InputError(f"{table.origin} has no row{who}; check the file and the name.")
    notices = [
        f"Column {n!r}: {c} cells hold categories not seen in training." for n, c in unseen.items()
    ]
    notices += [f"{dropped} rows with missing cells were dropped."] if dropped else []
    name = client or (next(iter(owners)) if len(owners) == 1 else table.name)
    return Rows(name, np.concatenate(xs), np.concatenate(ys) if targets else None, tuple(notices))


def _complete(
    chunk: Chunk, schema: Schema, x: np.ndarray, y: np.ndarray, targets: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return features without gaps, and which rows can be used."""
    if schema.missing == "impute":
        x = schema.impute(x)
    gaps = np.isnan(x).any(1) | np.isnan(y)
    if gaps.any() and not (targets and schema.missing in ("drop", "impute")):
        at = int(np.flatnonzero(gaps)[0])
        columns = [c.name for c in schema.columns for _ in c.features]
        bad = np.flatnonzero(np.isnan(x[at]))
        name = columns[bad[0]] if len(bad) else schema.target
        raise InputError(f"{place(chunk, at)}: column {name!r} is missing; fill it.")
    return x, ~gaps
