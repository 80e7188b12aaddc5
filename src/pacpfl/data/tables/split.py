"""Which rows train, which come later, which only measure; and which clients join after the training."""

from __future__ import annotations

import zlib
from typing import NamedTuple

import numpy as np

from pacpfl.data.settings import TableSettings
from pacpfl.data.store import evenly
from pacpfl.data.tables.columns import Evidence
from pacpfl.data.tables.files import listed
from pacpfl.errors import InputError
from pacpfl.settings import nearest

TRAIN, LATER, TEST, UNUSED = 0, 1, 2, 255
PARTS = ("train", "later", "test")
LEAST = 2  # rows that a client needs to train on, and to be measured on
WORDS = {"train": TRAIN, "training": TRAIN, "later": LATER, "test": TEST, "": UNUSED}
NEW = dict.fromkeys(("new", "true", "yes", "1"), 1)
NEW |= dict.fromkeys(("existing", "old", "false", "no", "0", ""), 0)


class Scan(NamedTuple):
    """Results of the first pass over tables. The rows stand in the order of the files."""

    evidence: dict[str, Evidence]
    names: list[str]  # of the clients
    codes: np.ndarray  # [rows], the client of each
    complete: np.ndarray  # [rows], whether it lacks nothing
    split_by: np.ndarray  # [rows], times or parts, where rows are split by these
    new: np.ndarray  # [clients], whether a column calls it new


class Split(NamedTuple):
    """The part of each row, whether each client is new, and who was left out."""

    parts: np.ndarray  # [rows] uint8
    is_new: np.ndarray  # [clients]
    notices: tuple[str, ...]


def split_rows(settings: TableSettings, scan: Scan, seed: int) -> Split:
    """Give every row its part, or raise where clients have too few rows and may not be left out.

    Every client is split by itself, with a seed of its own name: adding a client changes no other.
    """
    is_new = choose_new(settings, scan, seed)
    parts = np.full(len(scan.codes), UNUSED, np.uint8)
    order = np.argsort(scan.codes, kind="stable")
    ends = np.cumsum(np.bincount(scan.codes, minlength=len(scan.names)))
    small = np.zeros(len(scan.names), bool)
    for client, rows in enumerate(np.split(order, ends[:-1])):
        rows = rows[scan.complete[rows]]
        random = np.random.default_rng([seed, zlib.crc32(scan.names[client].encode())])
        if settings.split == "column":
            parts[rows] = scan.split_by[rows]
        else:
            by_time = settings.split == "time"
            keys = scan.split_by[rows]
            ranked = rows[np.argsort(keys, kind="stable")] if by_time else random.permutation(rows)
            test, later = counts(len(rows), settings)
            parts[ranked] = np.repeat([TRAIN, LATER, TEST], [len(rows) - test - later, later, test])
        training = rows[parts[rows] == TRAIN]
        if settings.most and len(training) > settings.most:
            parts[np.delete(training, evenly(len(training), settings.most))] = UNUSED
        small[client] = min(int((parts[rows] == part).sum()) for part in (TRAIN, TEST)) < LEAST
    if not small.any():
        return Split(parts, is_new, ())
    names = [name for name, few in zip(scan.names, small, strict=True) if few]
    shown = listed(names)
    if settings.small == "error":
        raise InputError(
            f"Too few rows to train on two and be measured on two: {shown}; add rows, or set "
            'tables.small = "leave" to leave such clients out.'
        )
    if is_new[~small].all():
        raise InputError(f"No existing client has enough rows ({shown}); add rows.")
    parts[small[scan.codes]] = UNUSED
    return Split(parts, is_new, (f"Left out, having too few rows: {shown}.",))


def counts(rows: int, settings: TableSettings) -> tuple[int, int]:
    """Return how many rows measure and how many come later: at least two measure, where there are."""
    test = max(round(settings.held_out * rows), min(LEAST, rows - LEAST))
    later = min(round(settings.for_later * rows), rows - test - LEAST)
    return max(0, test), max(0, later)


def choose_new(settings: TableSettings, scan: Scan, seed: int) -> np.ndarray:
    """Choose who joins after the training: listed, called so by a column, or drawn."""
    names, chosen = scan.names, scan.new | [name in settings.new for name in scan.names]
    for name in settings.new:
        if name not in names:
            hint = nearest(name, names)
            raise InputError(f"tables.new names {name!r}, and no client is called that{hint}")
    drawn = round(settings.new_share * len(names))
    chosen[np.random.default_rng([seed, 77]).permutation(len(names))[:drawn]] = True
    if chosen.all():
        raise InputError(
            "All clients would be new, and nobody would train; leave some of them out."
        )
    return chosen
