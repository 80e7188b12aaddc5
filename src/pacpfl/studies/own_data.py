"""First looks at people's own tables: what `pacpfl init` guesses, and why.

Every guess is a sentence of its own, so that it can be read, doubted and changed in the file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pacpfl.config import Config
from pacpfl.data.tables.columns import Evidence, decide_task, kind_for_learning, read_numbers
from pacpfl.data.tables.files import ENDINGS, Table, open_tables
from pacpfl.data.tables.scan import clients_of
from pacpfl.data.tables.settings import TableSettings
from pacpfl.data.tables.split import LEAST, TRAIN, WORDS, counts
from pacpfl.defaults import defaults, reasons, scaling
from pacpfl.errors import InputError
from pacpfl.types import Form

TARGETS = ("y", "target", "label", "class", "outcome", "output", "response", "price", "value")
CLIENTS = (
    *("client", "site", "group", "owner", "user", "house", "household", "hospital", "station"),
    *("device", "store", "region", "sensor", "patient", "subject", "plant", "school"),
)
NUMBERS = ("id", "index", "row", "number", "unnamed: 0", "nr")  # columns that count rows


class Guess(NamedTuple):
    config: Config
    words: tuple[str, ...]  # one sentence for each guess


@dataclass
class Seen:
    """One pass over everything."""

    evidence: dict[str, Evidence]
    rows: dict[str, int]  # by client
    sums: dict[str, np.ndarray]  # by client: count, sum and sum of squares of the target


def guess(
    source: Path, target: str | None = None, client: str | None = None, seed: int = 0
) -> Guess:
    """A configuration for a folder of tables, or for one table with a column of clients."""
    tables = open_tables(source)
    shared = [n for n in tables[0].columns if all(n in table.columns for table in tables)]
    words = [_files_in_words(source, tables)]
    odd = sorted({n for table in tables for n in table.columns} - set(shared))
    if odd:
        where = next(t for t in tables if any(n not in t.columns for n in odd))
        lacking = next(n for n in odd if n not in where.columns)
        words.append(
            f"Not in every file, so not used: {_listed(odd)} ({Path(where.origin).name} has no "
            f"{lacking})."
        )
    if not shared:
        raise InputError(_nothing_shared(tables))
    if target is not None and target == client:
        raise InputError(f"--target and --client are both {target!r}; name two columns.")
    for name, what in ((target, "--target"), (client, "--client")):
        if name is not None and name not in shared:
            missing = next((t.origin for t in tables if name not in t.columns), "")
            raise InputError(
                f"{what} {name!r} is no column of {missing}; choose one of {', '.join(shared)}."
            )
    seen = look(tables, shared)
    if client is None and len(tables) == 1:
        client = guess_client(tables[0], seen, target)
        words.append(f"Column {client!r} names the client.")
    if target is None:
        refuse_hidden_target(tables, shared)
    target, why = (target, "as you said") if target else guess_target(shared, seen, client)
    words.append(f"The target is {target!r}: {why}.")
    seen = _by_client(tables, seen, client or "", target)
    return _settle(source, seen, shared, target, client or "", seed, words)


def look(tables: Sequence[Table], columns: Sequence[str]) -> Seen:
    seen = Seen({name: Evidence(name) for name in columns}, {}, {})
    for table in tables:
        for part in table.chunks():
            for evidence in seen.evidence.values():
                evidence.add(part)
    return seen


def _by_client(tables: Sequence[Table], seen: Seen, client: str, target: str) -> Seen:
    """Rows of each client, and how its target lies."""
    for table in tables:
        for part in table.chunks():
            own = clients_of(part, table, client)
            y = np.nan_to_num(read_numbers(part.frame[target], part.decimal).values)
            names, codes = np.unique(own.astype(str), return_inverse=True)
            count = np.bincount(codes)
            first, second = np.bincount(codes, y), np.bincount(codes, y**2)
            for index, name in enumerate(names.tolist()):
                seen.rows[name] = seen.rows.get(name, 0) + int(count[index])
                more = np.array([count[index], first[index], second[index]])
                seen.sums[name] = seen.sums.get(name, np.zeros(3)) + more
    return seen


def guess_client(table: Table, seen: Seen, target: str | None) -> str:
    for name in table.columns:
        if name.lower() in CLIENTS and name != target:
            return name
    raise InputError(
        f"{table.origin} is one table; say which column names the client with --client COLUMN, one of "
        f"{', '.join(n for n in table.columns if n != target)}."
    )


def refuse_hidden_target(tables: Sequence[Table], shared: Sequence[str]) -> None:
    """The column that looks most like the target must not be passed over because a file lacks it."""
    names = {name for table in tables for name in table.columns if name.lower() in TARGETS}
    if any(name in shared for name in names):
        return
    last, _ = Counter(table.columns[-1] for table in tables).most_common(1)[0]
    likely = min(names, default=last)
    if likely not in shared:
        lacking = next(table.origin for table in tables if likely not in table.columns)
        raise InputError(
            f"{lacking} has no column {likely!r}, which looks like the target elsewhere; add it, remove "
            "the file, or name the target with --target COLUMN."
        )


def _nothing_shared(tables: Sequence[Table]) -> str:
    first = tables[0]
    other = next((t for t in tables if not set(t.columns) & set(first.columns)), tables[-1])
    return (
        f"{other.origin} shares no column with {first.origin} (it has {_listed(other.columns)}); give "
        "both a first line with the same names."
    )


def guess_target(columns: Sequence[str], seen: Seen, client: str | None) -> tuple[str, str]:
    for name in columns:
        if name.lower() in TARGETS and name != client:
            return name, "it is called so"
    for name in reversed(columns):
        evidence = seen.evidence[name]
        usable = evidence.kind in ("number", "boolean", "category") and not _is_split(evidence)
        if name != client and usable:
            return name, "it is the last column; name another with --target"
    raise InputError("No column can be the target; name one with --target COLUMN.")


def _settle(
    source: Path,
    seen: Seen,
    columns: Sequence[str],
    target: str,
    client: str,
    seed: int,
    words: list[str],
) -> Guess:
    task = decide_task(seen.evidence[target], "auto")
    if seen.evidence[target].constant:
        raise InputError(
            f"The target {target!r} has the same value in every row; choose another with --target."
        )
    kind = "classes" if task == "classes" else "numbers"
    words.append(f"Task: {task}, because {target!r} holds {kind}.")
    split_by = next((n for n in columns if _is_split(seen.evidence[n]) and n != target), "")
    used: list[tuple[str, str]] = []
    ignored: list[tuple[str, str]] = []
    for name in columns:
        if name in (target, client, split_by):
            continue
        reason = _useless(seen.evidence[name])
        (ignored if reason else used).append((name, reason))
        if not reason:
            kind_for_learning(seen.evidence[name])  # raises where rows disagree
    if not used:
        why = "".join(f" ({name!r}: {reason})" for name, reason in ignored[:1])
        raise InputError(f"{source} has no column to learn {target!r} from{why}; add one.")
    words.append(f"Learning from {len(used)} columns: {_listed([n for n, _ in used])}.")
    words += [f"Not used: {name!r}, {reason}." for name, reason in ignored]
    missing = {n: seen.evidence[n].missing for n, _ in [*used, (target, "")]}
    missing = {name: count for name, count in missing.items() if count}
    if missing:
        cells = ", ".join(f"{name!r} {count}" for name, count in missing.items())
        words.append(f'Missing cells ({cells}): features get training medians, missing = "impute".')
    if split_by:
        words.append(f"Column {split_by!r} says which rows train and which measure.")
    small = [name for name, rows in seen.rows.items() if rows < 2 * LEAST]
    if small:
        words.append(f"Left out, having fewer than {2 * LEAST} rows: {_listed(small)}.")
    kept = [rows for name, rows in seen.rows.items() if name not in small]
    if not kept:
        raise InputError(f"No client of {source} has {2 * LEAST} rows; give each client more.")
    tables = TableSettings(
        source=str(source),
        client=client,
        target=target,
        task=task,
        columns=tuple(name for name, _ in used),
        missing="impute" if missing else "error",
        split="column" if split_by else "rows",
        split_by=split_by,
        small="leave" if small else "error",
    )
    if split_by:
        share = _training_share(seen.evidence[split_by])
        training = [max(1, round(rows * share)) for rows in kept]
    else:
        training = [rows - sum(counts(rows, tables)) for rows in kept]
    width: int = sum(_width(seen.evidence[name]) for name, _ in used)
    features = tuple(f"x{number}" for number in range(width))
    classes = _classes(seen.evidence[target], task)
    form = Form(features, target, classes, clients=len(kept), sizes=tuple(training))
    how, why = guess_scaling(seen, task, small)
    words += [
        f"{len(kept)} clients with {min(kept)} to {max(kept)} rows (median {np.median(kept):g}).",
        why,
    ]
    config = defaults(form, how)
    config = replace(config, seed=seed, tables=replace(tables, most=config.tables.most))
    return Guess(config, (*words, *reasons(config, form)))


def _useless(evidence: Evidence) -> str:
    """Why a column is not learned from; empty where it is."""
    if evidence.kind == "empty":
        return "it is empty"
    if evidence.kind == "foreign":
        return f"it holds {evidence.foreign}"
    if evidence.kind == "text":
        return "it holds too many different texts"
    if evidence.kind == "date":
        return "it holds dates (tables.dates would learn from their hour, weekday and month)"
    if evidence.kind == "unclear":
        return "it holds dates that are not all written like 2024-05-31"
    if evidence.constant:
        return "it has the same value everywhere"
    name = evidence.name.lower()
    if (name in NUMBERS or name.endswith("_id")) and evidence.whole and evidence.many_levels:
        return "it numbers rows or things"
    return ""


def _is_split(evidence: Evidence) -> bool:
    found = {word.lower() for word in evidence.words}
    return evidence.kind == "category" and found <= set(WORDS) and {"train", "test"} <= found


def _training_share(evidence: Evidence) -> float:
    """How many of the rows a column of the words train, later and test lets train."""
    train = sum(n for word, n in evidence.words.items() if WORDS[word.lower()] == TRAIN)
    return train / evidence.rows


def _width(evidence: Evidence) -> int:
    return len(evidence.words) if evidence.kind == "category" else 1


def _classes(evidence: Evidence, task: str) -> int | None:
    return len(evidence.words) + len(evidence.levels) if task == "classes" else None


def guess_scaling(seen: Seen, task: str, small: Sequence[str]) -> tuple[str, str]:
    """Together, unless the clients' targets lie so far apart that each needs its own scale."""
    if task == "classes":
        return "global", "Features are scaled by the training rows of all clients together."
    each = np.array([sums for name, sums in seen.sums.items() if name not in small])
    how, share = scaling(each)
    between = f"{share:.0%} of the target's variance lies between clients, so "
    if how == "client":
        return how, f"{between}each is scaled by its own training rows."
    return how, f"{between}all are scaled together."


def _files_in_words(source: Path, tables: Sequence[Table]) -> str:
    if len(tables) == 1:
        return f"{source} is one table."
    others = [p.name for p in sorted(source.iterdir()) if p.is_file() and p.name[0] not in ".~"]
    others = [name for name in others if Path(name).suffix.lower() not in ENDINGS]
    unread = f" Not read, being no CSV or Parquet: {_listed(others)}." if others else ""
    odd = [Path(t.origin).name for t in tables if t.delimiter != "," or t.decimal != "."]
    more = f"; semicolons or decimal commas in {_listed(odd)}" if odd else ""
    return f"{source} holds {len(tables)} tables, one for each client{more}.{unread}"


def _listed(names: Sequence[str], most: int = 6) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
