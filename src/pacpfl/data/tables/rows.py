"""One client's table, read with the schema of a model: to personalise, to extend, to predict."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pacpfl.data.tables.files import Chunk, normalized, open_tables
from pacpfl.data.tables.scan import clients_of, nearest
from pacpfl.data.tables.schema import Schema, place
from pacpfl.data.tables.settings import TableSettings
from pacpfl.errors import InputError


@dataclass(frozen=True)
class Rows:
    """A table read with the schema of a model."""

    client: str
    x: np.ndarray
    y: np.ndarray | None
    notices: tuple[str, ...] = field(default=())


def read_rows(
    source: Path | str | Any, schema: Schema, *, targets: bool, client: str | None = None
) -> Rows:
    """The rows of one client. With targets, a row without one is an error (or dropped, where the
    schema drops); without, every row must be complete unless the schema imputes."""
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
    found: dict[str, None] = {}
    for part in table.chunks():
        if has_names:
            own = clients_of(part, table, TableSettings(client=schema.client))
            found |= dict.fromkeys(own.tolist())
            if client is not None:
                frame = part.frame[own == normalized(client)].reset_index(drop=True)
                part = part._replace(frame=frame)
                if not len(frame):
                    continue
        encoded = schema.encode(part)
        unseen.update(encoded.unseen)
        y = schema.targets(part) if targets else np.zeros(len(part.frame))
        x, keep = _complete(part, schema, encoded.x, y, targets)
        dropped += int((~keep).sum())
        xs.append(x[keep])
        ys.append(y[keep])
    if has_names and client is None and len(found) > 1:
        raise InputError(
            f"{table.origin} holds the rows of {len(found)} clients; choose one with --client NAME."
        )
    if not sum(map(len, xs)):
        who = f" of client {client!r}" if client is not None else " that is complete"
        raise InputError(f"{table.origin} has no row{who}; check the file and the name.")
    notices = [
        f"Column {n!r}: {c} cells hold categories not seen in training." for n, c in unseen.items()
    ]
    notices += [f"{dropped} rows with missing cells were dropped."] if dropped else []
    name = client or (next(iter(found)) if len(found) == 1 else table.name)
    return Rows(name, np.concatenate(xs), np.concatenate(ys) if targets else None, tuple(notices))


def _complete(
    part: Chunk, schema: Schema, x: np.ndarray, y: np.ndarray, targets: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Features without gaps, and which rows can be used."""
    if schema.missing == "impute":
        x = schema.impute(x)
    gaps = np.isnan(x).any(1) | np.isnan(y)
    if gaps.any() and not (targets and schema.missing in ("drop", "impute")):
        at = int(np.flatnonzero(gaps)[0])
        columns = [c.name for c in schema.columns for _ in c.features]
        bad = np.flatnonzero(np.isnan(x[at]))
        name = columns[bad[0]] if len(bad) else schema.target
        raise InputError(f"{place(part, at)}: column {name!r} is missing; fill it.")
    return x, ~gaps
