"""A federation from people's own tables: CSV or Parquet files, or a data frame.

Up to three passes, none of which holds more than a chunk of rows: one to see what the columns hold and
whose the rows are, one to collect the categories of the training rows (where there are categories),
one to put the rows in their places. What is learned from rows (categories, medians) is learned from the
training rows of existing clients alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pacpfl.data.tables import values
from pacpfl.data.tables.evidence import decide_task, kind_for_learning
from pacpfl.data.tables.files import CHUNK, Chunk, Table, open_tables
from pacpfl.data.tables.scan import Scan, learning_columns, scan_tables
from pacpfl.data.tables.schema import Column, Schema, sort_labels
from pacpfl.data.tables.settings import TableSettings
from pacpfl.data.tables.split import (
    PARTS,
    TRAIN,
    UNUSED,
    Split,
    choose_new,
    split_rows,
)
from pacpfl.data.tables.stream import Room, release, row_blocks
from pacpfl.errors import InputError
from pacpfl.types import Client, Federation, Samples


class Tables(NamedTuple):
    """What was read: the federation in the owner's units, how to read more, and what to know."""

    federation: Federation
    schema: Schema
    notices: tuple[str, ...]
    room: Room  # keeps the files on disk while the federation is in use


def load_tables(
    source: Path | str | Any,
    settings: TableSettings,
    seed: int = 0,
    *,
    chunk: int = CHUNK,
    room: Room | None = None,
) -> Tables:
    """Read everything: the federation, features encoded, nothing scaled yet."""
    room = room or Room()
    tables = open_tables(source)
    names = learning_columns(tables, settings)
    scan = scan_tables(tables, settings, names, chunk)
    columns, task = column_kinds(settings, names, scan)
    notices = _missing_notices(scan, settings)
    is_new = choose_new(settings, scan.names, scan.said_new, seed)
    split = split_rows(settings, scan.names, scan.codes, scan.complete, scan.given, is_new, seed)
    split, dropped = _without_small(scan, split, settings)
    notices += dropped
    schema = learn_schema(tables, settings, columns, task, scan, split, chunk)
    federation, schema, more = fill(tables, settings, schema, scan, split, chunk, room)
    return Tables(federation, schema, tuple(notices + more), room)


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
    if not split.small:
        return split, []
    names = [scan.names[client] for client in split.small]
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    if settings.small == "error":
        raise InputError(
            f"Too few rows to train on two and be measured on two: {shown}; add rows, or set "
            'tables.small = "leave" to leave such clients out.'
        )
    if (
        len(names) == len(scan.names)
        or not (~split.is_new)[np.setdiff1d(np.arange(len(scan.names)), split.small)].any()
    ):
        raise InputError(f"No existing client has enough rows ({shown}); add rows.")
    parts = split.parts.copy()
    parts[np.isin(scan.codes, split.small)] = UNUSED
    return split._replace(parts=parts), [f"Left out, having too few rows: {shown}."]


def column_kinds(
    settings: TableSettings, names: Sequence[str], scan: Scan
) -> tuple[list[Column], str]:
    """What each column holds, judged by all rows, and whether the target is a number or a class."""
    task = decide_task(scan.evidence[settings.target], settings.task)
    columns, used = [], set(settings.columns)
    for name in names:
        evidence, dated = scan.evidence[name], name in settings.dates
        if evidence.kind == "date" and not dated and name not in (*used, *settings.categorical):
            continue
        kind = kind_for_learning(evidence, name, name in settings.categorical, dated)
        columns.append(Column(name, kind, cycles=settings.cycles if kind == "date" else ()))
    if not columns:
        raise InputError("No column is left to learn from; name date columns in tables.dates.")
    return columns, task


def learn_schema(
    tables: Sequence[Table],
    settings: TableSettings,
    columns: list[Column],
    task: str,
    scan: Scan,
    split: Split,
    chunk: int,
) -> Schema:
    """Categories come from the training rows of existing clients, class labels from all rows used."""
    words: dict[str, set[str]] = {c.name: set() for c in columns if c.kind == "category"}
    labels: set[str] = set()
    if words or task == "classes":
        for part, where, is_new in _placed(tables, scan, split, chunk):
            training = (where == TRAIN) & ~is_new
            for name, found in words.items():
                found |= set(values.texts(part.frame[name])[training].tolist())
            if task == "classes":
                used_rows = where != UNUSED
                labels |= set(values.texts(part.frame[settings.target])[used_rows].tolist())
    columns = [
        replace(c, categories=tuple(sorted(words[c.name] - {""}))) if c.name in words else c
        for c in columns
    ]
    if not any(column.features for column in columns):
        raise InputError("No training row has a value in any column to learn from; fill some.")
    if task == "classes" and len(labels) < 2:
        raise InputError(f"The target {settings.target!r} has one class only; nothing is to learn.")
    classes = sort_labels(sorted(labels)) if task == "classes" else None
    return Schema(
        tuple(columns),
        settings.target,
        classes,
        settings.client,
        settings.missing,
        settings.unseen,
    )


def _placed(
    tables: Sequence[Table], scan: Scan, split: Split, chunk: int
) -> Iterator[tuple[Chunk, np.ndarray, np.ndarray]]:
    """Chunks again, with the part of each row and whether its client is new."""
    start = 0
    for table in tables:
        for part in table.chunks(chunk):
            rows = slice(start, start + len(part.frame))
            start = rows.stop
            if start > len(scan.codes):
                raise InputError(f"{table.origin} changed while it was read; start again.")
            yield part, split.parts[rows], split.is_new[scan.codes[rows]]
    if start < len(scan.codes):
        raise InputError(
            f"{tables[-1].origin} or another table lost rows while being read; start again."
        )


def fill(
    tables: Sequence[Table],
    settings: TableSettings,
    schema: Schema,
    scan: Scan,
    split: Split,
    chunk: int,
    room: Room,
) -> tuple[Federation, Schema, list[str]]:
    """The last pass: every row at its place, clients one after the other."""
    places, sizes = destinations(scan, split)
    features = len(schema.features)
    total = 8 * (features + 1) * int((split.parts != UNUSED).sum())
    arrays = {
        purpose: (
            room.array((int(counts.sum()), features), np.float64, total),
            room.array((int(counts.sum()),), np.float64, total),
        )
        for purpose, counts in sizes.items()
    }
    unseen: Counter[str] = Counter()
    start = 0
    for part, where, is_new in _placed(tables, scan, split, chunk):
        at = places[start : start + len(where)]
        start += len(where)
        used = where != UNUSED
        if not used.any():
            continue
        kept = part._replace(frame=part.frame[used].reset_index(drop=True))
        encoded, targets = schema.encode(kept), schema.targets(kept)
        unseen.update(encoded.unseen)
        for purpose, (x, y) in arrays.items():
            chosen = (where[used] == purpose[1]) & (is_new[used] == purpose[0])
            x[at[used][chosen]] = encoded.x[chosen]
            y[at[used][chosen]] = targets[chosen]
            release(x)
    if settings.missing == "impute":
        schema = schema.with_medians(medians(schema, arrays[(False, TRAIN)][0]))
        for x, _ in arrays.values():
            for rows in row_blocks(len(x)):
                x[rows] = schema.impute(x[rows])
            release(x)
    notices = [
        f"Column {name!r}: {count} cells outside the training rows hold categories that those have not."
        for name, count in unseen.items()
    ]
    return _federation(settings, schema, scan, split, arrays, sizes), schema, notices


Purpose = tuple[bool, int]  # of a new client or not, and the part


def destinations(scan: Scan, split: Split) -> tuple[np.ndarray, dict[Purpose, np.ndarray]]:
    """For each row its place in the array of its purpose, and for each purpose the clients' sizes."""
    clients = len(scan.names)
    places = np.zeros(len(scan.codes), np.int64)
    sizes: dict[Purpose, np.ndarray] = {}
    for is_new in (False, True):
        for part in range(len(PARTS)):
            chosen = np.flatnonzero((split.parts == part) & (split.is_new[scan.codes] == is_new))
            own = scan.codes[chosen]
            sizes[(is_new, part)] = np.bincount(own, minlength=clients)
            places[chosen[np.argsort(own, kind="stable")]] = np.arange(len(own))
    return places, sizes


def medians(schema: Schema, x: np.ndarray) -> dict[str, float]:
    """Of the training rows. A date has none: its cycles have no middle."""
    found, at = {}, 0
    for column in schema.columns:
        if column.kind in ("number", "boolean"):
            known = x[:, at][~np.isnan(x[:, at])]
            if not len(known):
                raise InputError(
                    f"Column {column.name!r} has no value in any training row; put it into tables.ignore."
                )
            found[column.name] = float(np.median(known))
        elif column.kind == "date":
            found[column.name] = 0.0
        at += len(column.features)
    return found


def _federation(
    settings: TableSettings,
    schema: Schema,
    scan: Scan,
    split: Split,
    arrays: dict[Purpose, tuple[np.ndarray, np.ndarray]],
    sizes: dict[Purpose, np.ndarray],
) -> Federation:
    ends = {purpose: np.concatenate([[0], np.cumsum(counts)]) for purpose, counts in sizes.items()}

    def samples(client: int, part: int) -> Samples | None:
        purpose = (bool(split.is_new[client]), part)
        rows = slice(int(ends[purpose][client]), int(ends[purpose][client + 1]))
        if rows.start == rows.stop:
            return None
        x, y = arrays[purpose]
        return Samples(x[rows], y[rows])

    groups: dict[bool, list[Client]] = {False: [], True: []}
    for client, name in enumerate(scan.names):
        train, later, test = (samples(client, part) for part in range(len(PARTS)))
        if train is not None:
            groups[bool(split.is_new[client])].append(Client(name, train, later, test))
    return Federation(
        Path(settings.source).stem or "tables",
        tuple(groups[False]),
        tuple(groups[True]),
        schema.features,
        schema.target,
        None if schema.classes is None else len(schema.classes),
        unscaled=schema.unscaled,
        constants=True,
    )
