"""A first look at people's own tables: which column is what, guessed, and why.

Every guess is a sentence of its own, so that it can be read, doubted and changed in the file.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

from pacpfl.data.settings import TableSettings
from pacpfl.data.tables.columns import Evidence, decide_task, kind_for_learning, read_texts
from pacpfl.data.tables.files import CHUNK, ENDINGS, Chunk, Table, listed, open_tables
from pacpfl.data.tables.read import scan_tables
from pacpfl.data.tables.split import LEAST, WORDS
from pacpfl.errors import InputError

TARGETS = ("y", "target", "label", "class", "outcome", "output", "response", "price", "value")
CLIENTS = (
    *("client", "site", "group", "owner", "user", "house", "household", "hospital", "station"),
    *("device", "store", "region", "sensor", "patient", "subject", "plant", "school", "clinic"),
    *("county", "district", "city", "farm", "customer", "participant", "person", "zip"),
)
IDS = ("id", "code", "no", "nr")  # how names of columns end that hold names, also as numbers
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
NUMBERS = ("id", "index", "row", "number", "unnamed: 0", "nr")  # columns that count rows


class Guess(NamedTuple):
    """What the tables seem to be, with one sentence for each guess."""

    settings: TableSettings
    words: tuple[str, ...]


def guess(
    source: Path,
    target: str | None = None,
    client: str | None = None,
    choose: Callable[[list[str]], str] = lambda names: names[0],
) -> Guess:
    """Guess what the columns of a folder of tables mean, or of one table with a column of clients.

    Parameters
    ----------
    source
        The folder or the table.
    target, client
        The columns that hold the target and name the client, where the owner says so.
    choose
        Which of several columns names the client; the likeliest is first.

    Raises
    ------
    InputError
        If there is nothing to learn from, or if a guess would be too bold.
    """
    tables = open_tables(source)
    shared = [n for n in tables[0].columns if all(n in table.columns for table in tables)]
    words = [_files_in_words(source, tables), *_odd_columns(tables, shared)]
    if target is not None and target == client:
        raise InputError(f"--target and --client are both {target!r}; name two columns.")
    for name, what in ((target, "--target"), (client, "--client")):
        if name is not None and name not in shared:
            missing = next((t.origin for t in tables if name not in t.columns), "")
            raise InputError(
                f"{what} {name!r} is no column of {missing}; choose one of {', '.join(shared)}."
            )
    if client is None and len(tables) == 1:
        client, why = guess_client(tables[0], target, choose)
        words.append(why)
    if target is None:
        refuse_hidden_target(tables, shared)
    plain = TableSettings(source=str(source), client=client or "", missing="impute")
    scan = scan_tables(tables, plain, shared)
    evidence, counts = scan.evidence, np.bincount(scan.codes).tolist()
    target, why = (target, "as you said") if target else guess_target(evidence, client)
    words.append(f"The target is {target!r}: {why}.")
    rows = dict(zip(scan.names, counts, strict=True))
    return _settle(replace(plain, target=target), evidence, rows, words)


def _odd_columns(tables: Sequence[Table], shared: Sequence[str]) -> list[str]:
    """Say which columns are not in every file; raise where there are no others."""
    if not shared:
        first = tables[0]
        other = min(tables, key=lambda table: len({*table.columns} & {*first.columns}))
        raise InputError(
            f"No column is in every file: {other.origin} has {listed(other.columns)}, and "
            f"{first.origin} {listed(first.columns)}; give all a first line with the same names."
        )
    odd = sorted({name for table in tables for name in table.columns} - set(shared))
    if not odd:
        return []
    file, name = next((t.origin, name) for t in tables for name in odd if name not in t.columns)
    return [f"Not in every file, so not used: {listed(odd)} ({Path(file).name} has no {name})."]


def guess_client(
    table: Table, target: str | None, choose: Callable[[list[str]], str]
) -> tuple[str, str]:
    """Return the column that seems to name the client, and why; raise where none can."""
    found = client_columns(table, target)
    if not found:
        raise InputError(
            f"{table.origin} is one table; say which column names the client with --client COLUMN, one of "
            f"{', '.join(n for n in table.columns if n != target)}."
        )
    client = choose(list(found)) if len(found) > 1 else next(iter(found))
    rows = found.pop(client)
    others = listed([f"{name!r} ({len(sizes)})" for name, sizes in found.items()])
    also = f"; it could also be {others}" if found else ""
    return client, (
        f"Column {client!r} names the client: {len(rows)} values with {min(rows)} to {max(rows)} "
        f"rows{also}. Another: --client COLUMN."
    )


def client_columns(table: Table, target: str | None) -> dict[str, list[int]]:
    """Return the columns that may name the client, likeliest first, with the rows of each value.

    They hold texts, or whole numbers that are called names, in every row, and each value in several.
    One pass counts; what has a value of its own in most rows is dropped on the way.
    """
    counts: dict[str, Counter[str]] = {}
    rows = 0
    for chunk in table.chunks():
        if not rows:
            likely = {target} if target else _likely_targets(table.columns)
            names = [name for name in table.columns if name not in likely]
            counts = {name: Counter() for name in names if _may_name_clients(chunk, name)}
        rows += len(chunk)
        for name in list(counts):
            counts[name].update(read_texts(chunk.frame[name]).tolist())
            if "" in counts[name] or len(counts[name]) > max(CHUNK, rows // 2):
                del counts[name]
        if not counts:
            break
    each = {name: [*count.values()] for name, count in counts.items()}
    found = {n: s for n, s in each.items() if 1 < len(s) <= rows // 2 and max(s) >= 2 * LEAST}

    def rank(name: str) -> tuple[bool, bool, bool, int]:
        words, sizes = _words(name), found[name]
        unknown = {*CLIENTS}.isdisjoint(words)
        enough = sum(size >= 2 * LEAST for size in sizes)
        return unknown and len(sizes) == 2, unknown, not _called_name(name), -enough

    good = [name for name in found if not rank(name)[0]] or found
    return {name: found[name] for name in sorted(good, key=rank)}


def _likely_targets(names: Sequence[str]) -> set[str]:
    """Return the columns that are called as targets are; else the last one, unless clients are."""
    called = {name for name in names if name.lower() in TARGETS}
    return called or {name for name in names[-1:] if {*CLIENTS}.isdisjoint(_words(name))}


def _may_name_clients(chunk: Chunk, name: str) -> bool:
    seen = Evidence(name)
    seen.add(chunk)
    texts = seen.kind in ("category", "text") and not _is_split(seen)
    return texts or (seen.kind in ("number", "mixed") and seen.whole and _called_name(name))


def _called_name(name: str) -> bool:
    """Tell whether a column is called as what holds names: hospital_id, site no, SchoolCode, store."""
    return bool({*_words(name)[-1:]} & {*IDS, *CLIENTS})


def _words(name: str) -> list[str]:
    words = [word.lower() for word in _WORD.findall(name)]
    for end in IDS:
        if words and words[-1].endswith(end) and words[-1].removesuffix(end) in CLIENTS:
            words[-1:] = [words[-1].removesuffix(end), end]
    return words


def refuse_hidden_target(tables: Sequence[Table], shared: Sequence[str]) -> None:
    """Raise if the column that looks most like the target would be passed over for a file that lacks it."""
    named = {name for table in tables for name in table.columns if name.lower() in TARGETS}
    last, _ = Counter(table.columns[-1] for table in tables).most_common(1)[0]
    if {*shared} & (named or {last}):
        return
    likely = min(named, default=last)
    lacking = next(table.origin for table in tables if likely not in table.columns)
    raise InputError(
        f"{lacking} has no column {likely!r}, which looks like the target elsewhere; add it, remove the "
        "file, or name the target with --target COLUMN."
    )


def guess_target(evidence: Mapping[str, Evidence], client: str | None) -> tuple[str, str]:
    """Return the column that seems to be the target, and why."""
    names = [name for name in evidence if name != client]
    for name in names:
        if name.lower() in TARGETS:
            return name, "it is called so"
    for name in reversed(names):
        seen = evidence[name]
        if seen.kind in ("number", "boolean", "category") and not _is_split(seen):
            return name, "it is the last column; name another with --target"
    raise InputError("No column can be the target; name one with --target COLUMN.")


def _settle(
    settings: TableSettings,
    evidence: Mapping[str, Evidence],
    rows: Mapping[str, int],
    words: list[str],
) -> Guess:
    """Decide about all columns and rows, now that target and client are known."""
    source, target = settings.source, settings.target
    task = decide_task(evidence[target], "auto")
    if evidence[target].constant:
        raise InputError(
            f"The target {target!r} has the same value in every row; choose another with --target."
        )
    kind = "classes" if task == "classes" else "numbers"
    words.append(f"Task: {task}, because {target!r} holds {kind}.")
    split_by = next((n for n, seen in evidence.items() if _is_split(seen) and n != target), "")
    others = [seen for n, seen in evidence.items() if n not in (target, settings.client, split_by)]
    used = _useful(source, target, others, words)
    missing = {n: evidence[n].missing for n in (*used, target) if evidence[n].missing}
    if missing:
        cells = ", ".join(f"{name!r} {count}" for name, count in missing.items())
        words.append(f'Missing cells ({cells}): features get training medians, missing = "impute".')
    dated = (n for n, seen in evidence.items() if seen.kind == "date" and not seen.missing)
    split, split_by = ("column", split_by) if split_by else ("time", next(dated, ""))
    if split == "column":
        words.append(f"Column {split_by!r} says which rows train and which measure.")
    elif split_by:
        words.append(f"Column {split_by!r} orders the rows: each client's last ones measure.")
    counts = [count for count in rows.values() if count >= 2 * LEAST]
    if small := [name for name, count in rows.items() if count < 2 * LEAST]:
        words.append(f"Left out, having fewer than {2 * LEAST} rows: {listed(small)}.")
    if not counts:
        raise InputError(f"No client of {source} has {2 * LEAST} rows; give each client more.")
    words.append(
        f"{len(counts)} clients with {min(counts)} to {max(counts)} rows (median {median(counts):g})."
    )
    settings = replace(
        settings,
        task=task,
        columns=tuple(used),
        missing="impute" if missing else "error",
        split=split if split_by else "rows",
        split_by=split_by,
        small="leave" if small else "error",
    )
    return Guess(settings, tuple(words))


def _useful(source: str, target: str, columns: Sequence[Evidence], words: list[str]) -> list[str]:
    """Name the columns to learn from, and say why the others are not."""
    useless = {column.name: why for column in columns if (why := _useless(column))}
    ignored = [f"{name!r}, {why}" for name, why in useless.items()]
    used = [column for column in columns if column.name not in useless]
    if not used:
        why = f" ({ignored[0]})" if ignored else ""
        raise InputError(f"{source} has no column to learn {target!r} from{why}; add one.")
    for column in used:
        kind_for_learning(column)  # raises where rows disagree
    names = [column.name for column in used]
    words.append(f"Learning from {len(names)} columns: {listed(names)}.")
    words += [f"Not used: {each}." for each in ignored]
    return names


def _useless(evidence: Evidence) -> str:
    """Return why a column is not learned from, or "" where it is."""
    name, reasons = (
        evidence.name.lower(),
        {
            "empty": "it is empty",
            "foreign": f"it holds {evidence.foreign}",
            "text": "it holds too many different texts",
            "date": "it holds dates (tables.dates would learn from their hour, weekday and month)",
            "unclear": "it holds dates that are not all written like 2024-05-31",
        },
    )
    numbered = (name in NUMBERS or name.endswith("_id")) and evidence.whole
    if evidence.kind not in reasons and evidence.constant:
        return "it has the same value everywhere"
    if evidence.kind not in reasons and numbered and evidence.many_levels:
        return "it numbers rows or things"
    return reasons.get(evidence.kind, "")


def _is_split(evidence: Evidence) -> bool:
    found = {word.lower() for word in evidence.words}
    return evidence.kind == "category" and found <= set(WORDS) and {"train", "test"} <= found


def _files_in_words(source: Path, tables: Sequence[Table]) -> str:
    if len(tables) == 1:
        return f"{source} is one table."
    others = [p.name for p in sorted(source.iterdir()) if p.is_file() and p.name[0] not in ".~"]
    others = [name for name in others if Path(name).suffix.lower() not in ENDINGS]
    unread = f" Not read, being no CSV or Parquet: {listed(others)}." if others else ""
    odd = [Path(t.origin).name for t in tables if t.delimiter != "," or t.decimal != "."]
    more = f"; semicolons or decimal commas in {listed(odd)}" if odd else ""
    return f"{source} holds {len(tables)} tables, one for each client{more}.{unread}"
