"""A federation from people's own tables: CSV or Parquet files, or a data frame.

Up to three passes, none of which holds more than a chunk of rows: one to see what the columns hold and
whose the rows are, one to collect the categories of the training rows (where there are categories),
one to put the rows in their places. What is learned from rows (categories, medians) is learned from the
training rows of existing clients alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pacpfl.data.settings import TableSettings
from pacpfl.data.store import Room, release, row_blocks
from pacpfl.data.tables.columns import (
    Column,
    Schema,
    decide_task,
    kind_for_learning,
    place,
    read_texts,
    sort_labels,
)
from pacpfl.data.tables.files import CHUNK, Chunk, Table, normalized, open_tables, opening
from pacpfl.data.tables.scan import Scan, clients_of, learning_columns, nearest, scan_tables
from pacpfl.data.tables.split import PARTS, TRAIN, UNUSED, Split, choose_new, split_rows
from pacpfl.errors import InputError
from pacpfl.types import Client, Federation, Samples

Purpose = tuple[bool, int]  # of a new client or not, and the part
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
    if not scan.incomplete:
        return []
    cells = ", ".join(f"{name!r} {count}" for name, count in scan.incomplete.items())
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
            replace(c, categories=tuple(sorted(categories[c.name] - {""})))
            if c.name in categories
            else c
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
        """Put every row at its place, clients one after the other; the schema gets its medians."""
        places, sizes = self._destinations()
        features = len(schema.features)
        total = 8 * (features + 1) * int((self.split.parts != UNUSED).sum())
        arrays = {
            purpose: (
                room.array((int(counts.sum()), features), np.float64, total),
                room.array((int(counts.sum()),), np.float64, total),
            )
            for purpose, counts in sizes.items()
        }
        unseen: Counter[str] = Counter()
        for chunk, rows in self._chunks():
            used = self.split.parts[rows] != UNUSED
            if not used.any():
                continue
            some = chunk._replace(frame=chunk.frame[used].reset_index(drop=True))
            encoded, targets = schema.encode(some), schema.targets(some)
            unseen.update(encoded.unseen)
            parts = self.split.parts[rows][used]
            is_new = self.split.is_new[self.scan.codes[rows][used]]
            at = places[rows][used]
            for purpose, (x, y) in arrays.items():
                chosen = (parts == purpose[1]) & (is_new == purpose[0])
                x[at[chosen]] = encoded.x[chosen]
                y[at[chosen]] = targets[chosen]
                release(x)
        if self.settings.missing == "impute":
            schema = schema.with_medians(_medians(schema, arrays[(False, TRAIN)][0]))
            for x, _ in arrays.values():
                for block in row_blocks(len(x)):
                    x[block] = schema.impute(x[block])
                release(x)
        notices = [
            f"Column {name!r}: {count} cells outside the training rows hold categories that those have "
            "not."
            for name, count in unseen.items()
        ]
        return self._federation(schema, arrays, sizes), schema, notices

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

    def _destinations(self) -> tuple[np.ndarray, dict[Purpose, np.ndarray]]:
        """Return each row's place in the array of its purpose, and for each purpose the clients' sizes."""
        codes, split = self.scan.codes, self.split
        places = np.zeros(len(codes), np.int64)
        sizes: dict[Purpose, np.ndarray] = {}
        for is_new in (False, True):
            for part in range(len(PARTS)):
                chosen = np.flatnonzero((split.parts == part) & (split.is_new[codes] == is_new))
                own = codes[chosen]
                sizes[(is_new, part)] = np.bincount(own, minlength=len(self.scan.names))
                places[chosen[np.argsort(own, kind="stable")]] = np.arange(len(own))
        return places, sizes

    def _federation(
        self,
        schema: Schema,
        arrays: dict[Purpose, tuple[np.ndarray, np.ndarray]],
        sizes: dict[Purpose, np.ndarray],
    ) -> Federation:
        ends = {purpose: np.append(0, np.cumsum(counts)) for purpose, counts in sizes.items()}

        def samples(client: int, part: int) -> Samples | None:
            purpose = (bool(self.split.is_new[client]), part)
            start, end = map(int, ends[purpose][client : client + 2])
            x, y = arrays[purpose]
            return None if start == end else Samples(x[start:end], y[start:end])

        groups: dict[bool, list[Client]] = {False: [], True: []}
        for client, name in enumerate(self.scan.names):
            train, later, test = (samples(client, part) for part in range(len(PARTS)))
            if train is not None:
                group = groups[bool(self.split.is_new[client])]
                group.append(Client(name, train, later, test))
        return Federation(
            Path(self.settings.source).stem or "tables",
            tuple(groups[False]),
            tuple(groups[True]),
            schema.features,
            schema.target,
            None if schema.classes is None else len(schema.classes),
            unscaled=schema.unscaled,
            constants=True,
        )


def _medians(schema: Schema, x: np.ndarray) -> dict[str, float]:
    """Return those of the training rows. A date has none: its cycles have no middle."""
    medians, at = {}, 0
    for column in schema.columns:
        if column.kind in ("number", "boolean"):
            values = x[:, at][~np.isnan(x[:, at])]
            if not len(values):
                raise InputError(
                    f"Column {column.name!r} has no value in any training row; put it into tables.ignore."
                )
            medians[column.name] = float(np.median(values))
        elif column.kind == "date":
            medians[column.name] = 0.0
        at += len(column.features)
    return medians


@dataclass(frozen=True)
class Rows:
    """One client's table, read with the schema of a model: to personalise, to extend, to predict."""

    client: str
    x: np.ndarray
    y: np.ndarray | None
    notices: tuple[str, ...] = field(default=())


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
    for name in (*([schema.target] if targets else []), *(c.name for c in schema.columns)):
        if name not in table.columns:
            raise InputError(
                f"{table.origin} has no column {name!r}{nearest(name, table.columns)}."
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
