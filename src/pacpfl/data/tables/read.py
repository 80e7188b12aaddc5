"""A federation from people's own tables: CSV or Parquet files, or a data frame.

Up to three passes, none of which holds more than a chunk of rows: one to see what the columns hold and
whose the rows are, one to collect the categories of the training rows (where there are categories),
one to put the rows in their places. What is learned from rows (categories, medians) is learned from the
training rows of existing clients alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from pacpfl.data.settings import TableSettings
from pacpfl.data.store import IN_MEMORY, empty_samples, release, row_blocks
from pacpfl.data.tables.columns import (
    Column,
    Evidence,
    Schema,
    decide_task,
    kind_for_learning,
    read_numbers,
    read_texts,
    read_times,
    read_words,
    sort_labels,
)
from pacpfl.data.tables.files import CHUNK, Chunk, Table, normalized, open_tables, opening
from pacpfl.data.tables.split import NEW, PARTS, TRAIN, UNUSED, WORDS, Scan, Split, split_rows
from pacpfl.errors import InputError
from pacpfl.settings import nearest
from pacpfl.types import Client, Federation, Samples

Stamp = tuple[tuple[str, int, int], ...]
Words = tuple[tuple[str, tuple[str, ...]], ...]  # columns, and the categories that each may have


class Tables(NamedTuple):
    """A federation in the owner's units, how to read more rows for it, and what its owner should know."""

    federation: Federation
    schema: Schema
    notices: tuple[str, ...]


def load_own(settings: TableSettings, seed: int, categories: Words | None = None) -> Tables:
    """Return the tables that `settings.source` names, read once as long as the files do not change."""
    before = stamp(settings)
    try:
        tables = _load(settings, seed, before, categories)
    except Exception:  # whatever comes of rows that come or go between the passes
        if stamp(settings) == before:
            raise
    else:
        if stamp(settings) == before:
            return tables
    raise InputError(
        f"{settings.source} changed while it was read; start again when nobody writes there."
    )


@lru_cache(maxsize=1)
def _load(settings: TableSettings, seed: int, files: Stamp, categories: Words | None) -> Tables:
    return load_tables(settings.source, settings, seed, categories=categories)


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
    in_memory: int = IN_MEMORY,
    categories: Words | None = None,
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
    in_memory
        Bytes above which the rows lie in files on disk.
    categories
        Of every column that has any, the target's classes too; None: those of the training rows.
    """
    tables = open_tables(source)
    names = learning_columns(tables, settings)
    scan = scan_tables(tables, settings, (*names, settings.target), chunk)
    columns, task = column_kinds(settings, names, scan)
    split = split_rows(settings, scan, seed)
    reading = _Reading(tables, settings, scan, split, chunk)
    schema = reading.learn_schema(columns, task, categories)
    federation, schema, unseen = reading.fill(schema, in_memory)
    return Tables(federation, schema, (*_missing_notices(scan, settings), *split.notices, *unseen))


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
    missing = [f"{n!r} {seen.missing}" for n, seen in scan.evidence.items() if seen.missing]
    if not missing:
        return []
    filled, lacking = "Missing features were replaced by training medians. ", " without a target"
    if settings.missing == "drop":
        filled = lacking = ""
    rows = int((~scan.complete).sum())
    return [f"Missing cells: {', '.join(missing)}. {filled}{rows} rows{lacking} were dropped."]


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
    if not settings.client and len(tables) == 1:
        raise InputError(
            f"{tables[0].origin} is one table; name the column that says whose each row is in "
            "tables.client, or give a folder with one file for each client."
        )


def require_columns(table: Table, names: Iterable[str]) -> None:
    """Raise if a table lacks one of these columns, and name the one that comes nearest to it."""
    for name in names:
        if name not in table.columns:
            hint = nearest(name, table.columns)
            raise InputError(f"{table.origin} has no column {name!r}; add it or rename one{hint}")


def scan_tables(
    tables: Sequence[Table], settings: TableSettings, columns: Sequence[str], chunk: int = CHUNK
) -> Scan:
    """Make the first pass, chunk by chunk."""
    evidence = {name: Evidence(name) for name in columns}
    clients: dict[str, tuple[int, str]] = {}  # number and origin of each, in the order they come in
    new: dict[str, bool] = {}
    rows = []
    for table in tables:
        for part in table.chunks(chunk):
            own = clients_of(part, table, settings.client).tolist()
            for name in dict.fromkeys(own):
                _, origin = clients.setdefault(name, (len(clients), table.origin))
                if origin != table.origin:
                    raise InputError(
                        f"Client {name!r} is in {origin} and in {table.origin}; give each client one "
                        "name and one file."
                    )
            codes = np.array([clients[name][0] for name in own], np.int32)
            complete = _complete_rows(part, evidence, settings)
            rows.append((codes, complete, _split_by(part, settings)))
            if settings.new_by:
                _note_new(part, settings.new_by, own, new)
    codes, complete, split_by = map(np.concatenate, zip(*rows, strict=True))
    called_new = np.array([new.get(name, False) for name in clients])
    return Scan(evidence, list(clients), codes, complete, split_by, called_new)


def _complete_rows(
    part: Chunk, evidence: Mapping[str, Evidence], settings: TableSettings
) -> np.ndarray:
    """Add some rows to the evidence, and return which of them can be used."""
    complete = np.ones(len(part), bool)
    for name, seen in evidence.items():
        missing = seen.add(part)
        if settings.missing == "error":
            part.require(name, missing, 'fill it, or set tables.missing = "drop" or "impute"')
        if settings.missing == "drop" or name == settings.target:
            complete &= ~missing
    return complete


def clients_of(part: Chunk, table: Table, column: str) -> np.ndarray:
    """Name the client of each row: as `column` says, or after the file where there is none."""
    if not column:
        return np.full(len(part), table.name, dtype=object)
    words = read_texts(part.cells(column))
    part.require(column, words == "", "fill it, since it names the client")
    return np.array([normalized(word) for word in words], dtype=object)


def _split_by(part: Chunk, settings: TableSettings) -> np.ndarray:
    """Read what the split goes by: nothing, times as numbers, or the words train, later and test."""
    if settings.split == "rows":
        return np.zeros(len(part), np.uint8)
    if settings.split == "column":
        found = read_words(part, settings.split_by, WORDS, "train, later or test")
        return found.astype(np.uint8)
    cells = part.cells(settings.split_by)
    found = read_numbers(cells, part.decimal).values
    if np.isnan(found).any():
        moments = read_times(cells)
        found = np.where(moments.isna(), np.nan, moments.astype("int64"))
    fault = "which is not a number or a date such as 2024-05-31; correct it"
    part.refuse(settings.split_by, np.isnan(found), fault)
    return found


def _note_new(part: Chunk, column: str, own: Sequence[str], new: dict[str, bool]) -> None:
    called = read_words(part, column, NEW, "new or existing").astype(bool)
    odd = np.array([new.setdefault(*pair) != pair[1] for pair in zip(own, called, strict=True)])
    part.refuse(column, odd, "and another row of its client says otherwise; decide for one")


@dataclass(frozen=True)
class _Reading:
    """The passes over tables after the first, when it is known where every row goes."""

    tables: Sequence[Table]
    settings: TableSettings
    scan: Scan
    split: Split
    chunk: int

    def learn_schema(self, columns: list[Column], task: str, given: Words | None) -> Schema:
        """Take categories from the training rows of existing clients, class labels from all rows used.

        Where categories are `given`, all must be: then none comes from rows.
        """
        target = self.settings.target
        words: dict[str, set[str]] = {c.name: set() for c in columns if c.kind == "category"}
        if task == "classes":
            words[target] = set()
        for name in words if given is not None else ():
            if name not in (known := dict(given or ())):
                raise InputError(
                    f"Column {name!r} holds words, and none are named for it; name them in [categories]."
                )
            words[name] = set(known[name])
        for chunk, rows in self._chunks() if words and given is None else ():
            parts = self.split.parts[rows]
            training = (parts == TRAIN) & ~self.split.is_new[self.scan.codes[rows]]
            for name, found in words.items():
                seen = parts != UNUSED if name == target else training
                found |= set(read_texts(chunk.frame[name])[seen].tolist()) - {""}
        columns = [replace(c, categories=tuple(sorted(words.get(c.name, ())))) for c in columns]
        if not any(column.features for column in columns):
            raise InputError("No training row has a value in any column to learn from; fill some.")
        classes = sort_labels(sorted(words[target])) if task == "classes" else None
        if classes is not None and len(classes) < 2:
            raise InputError(f"The target {target!r} has one class only; nothing is to learn.")
        settings = self.settings
        return Schema(
            tuple(columns), target, classes, settings.client, settings.missing, settings.unseen
        )

    def fill(self, schema: Schema, in_memory: int) -> tuple[Federation, Schema, list[str]]:
        """Put every row at its place; the schema gets its medians.

        Existing clients come before new ones, and of each group training rows before later and test
        rows: what is used together are neighbours on disk. Rows that are split by their times stand in
        the order of time, so that a race of settings looks ahead.
        """
        codes, split, clients = self.scan.codes, self.split, len(self.scan.names)
        kinds = split.is_new[codes] * len(PARTS) + split.parts.astype(int)
        purposes = kinds * clients + codes  # one number for each group, part and client
        used = split.parts != UNUSED
        order = np.flatnonzero(used)[np.lexsort((self.scan.split_by[used], purposes[used]))]
        places = np.zeros(len(codes), np.int64)
        places[order] = np.arange(len(order))
        sizes = np.bincount(purposes[used], minlength=2 * len(PARTS) * clients)

        whole = empty_samples(len(order), len(schema.features), np.float64, in_memory)
        unseen: Counter[str] = Counter()
        for chunk, rows in self._chunks():
            if used[rows].any():
                some, at = chunk.only(used[rows]), places[rows][used[rows]]
                whole.x[at], unknown = schema.encode(some)
                whole.y[at] = schema.targets(some)
                unseen.update(unknown)
                release(whole.x)
        if self.settings.missing == "impute":
            schema = _with_medians(schema, whole.x[: sizes[:clients].sum()])
            for block in row_blocks(len(order)):
                whole.x[block] = schema.impute(whole.x[block])
            release(whole.x)
        federation = self._federation(schema, whole, sizes.reshape(2, len(PARTS), clients))
        return federation, schema, _unseen_notices(unseen)

    def _federation(self, schema: Schema, whole: Samples, sizes: np.ndarray) -> Federation:
        """Hand out the samples of every group, part and client; `sizes` has their numbers."""
        ends = sizes.cumsum().reshape(sizes.shape)

        def samples(*of: int) -> Samples | None:
            own = slice(ends[of] - sizes[of], ends[of])
            return Samples(whole.x[own], whole.y[own]) if sizes[of] else None

        groups: list[list[Client]] = [[], []]
        for client, name in enumerate(self.scan.names):
            new = int(self.split.is_new[client])
            train, later, test = (samples(new, part, client) for part in range(len(PARTS)))
            if train is not None:
                groups[new].append(Client(name, train, later, test))
        return Federation(
            Path(self.settings.source).stem or "tables",
            tuple(groups[0]),
            tuple(groups[1]),
            *schema.form[:3],
            unscaled=schema.unscaled,
            constants=True,
        )

    def _chunks(self) -> Iterator[tuple[Chunk, slice]]:
        """Yield the chunks again, each with its rows' numbers."""
        start = 0
        for table in self.tables:
            for chunk in table.chunks(self.chunk):
                yield chunk, slice(start, start + len(chunk))
                start += len(chunk)


def _unseen_notices(unseen: Mapping[str, int]) -> list[str]:
    return [
        f"Column {n!r}: {c} cells hold categories not seen in training." for n, c in unseen.items()
    ]


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


def schema_of(frame: Any) -> Schema:
    """Return what the columns of a data frame hold, its gaps to be filled; dates are left out."""
    (table,) = open_tables(frame)
    (chunk,) = table.chunks(len(frame))
    columns = []
    for name in table.columns:
        evidence = Evidence(name)
        evidence.add(chunk)
        if evidence.kind != "date":
            kind = kind_for_learning(evidence)
            words = set(read_texts(chunk.frame[name])) - {""} if kind == "category" else ()
            columns.append(Column(name, kind, tuple(sorted(words))))
    if not columns:
        raise InputError("No column is left to learn from: all hold dates; add one.")
    schema = Schema(tuple(columns), "y", missing="impute")
    return _with_medians(schema, schema.encode(chunk)[0])


def read_features(frame: Any, schema: Schema) -> np.ndarray:
    """Return the features of a data frame as `schema` reads them, its gaps filled where it fills them."""
    (table,) = open_tables(frame)
    (chunk,) = table.chunks(len(frame))
    x = schema.encode(chunk)[0]
    return schema.impute(x) if schema.missing == "impute" else x


@dataclass(frozen=True)
class Rows:
    """One client's rows, read with the schema of a model: to personalise, to extend, to predict."""

    client: str
    x: np.ndarray
    y: np.ndarray | None
    places: np.ndarray  # [rows, 2]: which file, and which row of it, from 1
    notices: tuple[str, ...] = ()  # of all that were read with them

    def only(self, chosen: np.ndarray) -> Rows:
        y = None if self.y is None else self.y[chosen]
        return replace(self, x=self.x[chosen], y=y, places=self.places[chosen])


def read_rows(
    source: Path | str | Any, schema: Schema, *, targets: bool, client: str | None = None
) -> Rows:
    """Read the rows of one client, as `read_clients` does, from one file or a data frame."""
    table, *others = open_tables(source)
    if others:
        raise InputError(f"{source} holds {1 + len(others)} tables; give the file of one client.")
    rows, *more = read_clients(source, schema, targets=targets, client=client)
    if more:
        raise InputError(
            f"{table.origin} holds the rows of {1 + len(more)} clients; choose one with --client NAME."
        )
    return rows


def read_clients(
    source: Path | str | Any, schema: Schema, *, targets: bool | None, client: str | None = None
) -> list[Rows]:
    """Read the rows of all clients with the schema of a model, in the order in which clients appear.

    Parameters
    ----------
    source
        A folder, one file, or a data frame. A file without the schema's column of clients is one client.
    schema
        Of the model.
    targets
        Whether rows have targets: one without is an error, or dropped where the schema drops or
        imputes. Without targets every row must be complete unless the schema imputes. None: some rows
        have (NaN where not), and a single table must name its clients.
    client
        Whose rows alone.
    """
    tables = open_tables(source)
    needed = ([schema.target] if targets else []) + [c.name for c in schema.columns]
    if targets is None and len(tables) == 1 and schema.client:
        needed.append(schema.client)
    owners, parts, unseen, dropped = [], [], Counter[str](), 0
    for number, table in enumerate(tables):
        require_columns(table, needed)
        column = schema.client if schema.client in table.columns else ""
        for chunk in table.chunks():
            own = clients_of(chunk, table, column)
            if client is not None and (column or len(tables) > 1):
                mine = own == normalized(client)
                own, chunk = own[mine], chunk.only(mine)
            elif client is not None:
                own[:] = client
            x, y, complete, unknown = _features(chunk, schema, targets)
            unseen.update(unknown)
            dropped += int((~complete).sum())
            places = np.column_stack([np.full(len(chunk), number), chunk.frame.index])
            owners.append(own[complete])
            parts.append((x[complete], y[complete], places[complete]))
    names = np.concatenate(owners)
    if not len(names):
        who = f" of client {client!r}" if client is not None else " that is complete"
        where = tables[0].origin if len(tables) == 1 else source
        raise InputError(f"{where} has no row{who}; check the file and the name.")
    notices = _unseen_notices(unseen)
    notices += [f"{dropped} rows with missing cells were dropped."] if dropped else []
    x, y, places = map(np.concatenate, zip(*parts, strict=True))
    codes, clients = pd.factorize(names)
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes))[:-1]
    return [
        Rows(name, x[rows], None if targets is False else y[rows], places[rows], tuple(notices))
        for name, rows in zip(clients.tolist(), np.split(order, ends), strict=True)
    ]


def _features(
    chunk: Chunk, schema: Schema, targets: bool | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, dict[str, int]]:
    """Return features, targets, which rows are complete, and categories that were not known."""
    x, unknown = schema.encode(chunk)
    given = targets or (targets is None and schema.target in chunk.frame)
    y = schema.targets(chunk) if given else np.full(len(chunk), np.nan)
    if schema.missing == "impute":
        x = schema.impute(x)
    gaps = np.isnan(np.column_stack([x, y]) if targets else x)
    if not targets or schema.missing == "error":
        features = [c.name for c in schema.columns for _ in c.features]
        for name, missing in zip([*features, schema.target], gaps.T, strict=False):
            chunk.require(name, missing)
    return x, y, ~gaps.any(1), unknown
