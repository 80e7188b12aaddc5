"""Which rows train, which come later, which only measure; and which clients join after the training."""

from __future__ import annotations

import difflib
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pacpfl.data.settings import TableSettings
from pacpfl.errors import InputError

TRAIN, LATER, TEST, UNUSED = 0, 1, 2, 255
PARTS = ("train", "later", "test")
LEAST = 2  # rows that a client needs to train on, and to be measured on
WORDS = {"train": TRAIN, "training": TRAIN, "later": LATER, "test": TEST, "": UNUSED}


class Split(NamedTuple):
    """The part of each row, whether each client is new, and which clients have too few rows."""

    parts: np.ndarray  # [rows] uint8
    is_new: np.ndarray  # [clients]
    small: tuple[int, ...]


def split_rows(
    settings: TableSettings,
    names: Sequence[str],
    codes: np.ndarray,
    complete: np.ndarray,
    split_by: np.ndarray | None,
    is_new: np.ndarray,
    seed: int,
) -> Split:
    """Give every row its part.

    `codes` are the rows' clients, `complete` rows lack nothing, and `split_by` are times or parts.

    Every client is split by itself, with a seed of its own name: adding a client changes no other.
    """
    parts = np.full(len(codes), UNUSED, np.uint8)
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes, minlength=len(names)))
    small = []
    for client, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
        rows = order[start:end]
        rows = rows[complete[rows]]
        random = np.random.default_rng([seed, zlib.crc32(names[client].encode())])
        if settings.split == "column":
            assert split_by is not None
            parts[rows] = split_by[rows].astype(np.uint8)
        else:
            if settings.split == "time":
                assert split_by is not None
                ranked = rows[np.argsort(split_by[rows], kind="stable")]
            else:
                ranked = random.permutation(rows)
            test, later = counts(len(rows), settings)
            first = len(rows) - test - later
            parts[ranked[:first]] = TRAIN
            parts[ranked[first : first + later]] = LATER
            parts[ranked[first + later :]] = TEST
        training = rows[parts[rows] == TRAIN]
        if settings.most and len(training) > settings.most:
            parts[random.permutation(training)[settings.most :]] = UNUSED
        if min(int((parts[rows] == part).sum()) for part in (TRAIN, TEST)) < LEAST:
            small.append(client)
    return Split(parts, is_new, tuple(small))


def counts(rows: int, settings: TableSettings) -> tuple[int, int]:
    """Return how many rows measure and how many come later: at least two measure, where there are."""
    test = max(round(settings.held_out * rows), min(LEAST, rows - LEAST))
    later = min(round(settings.for_later * rows), rows - test - LEAST)
    return max(0, test), max(0, later)


def choose_new(
    settings: TableSettings, names: Sequence[str], called_new: np.ndarray | None, seed: int
) -> np.ndarray:
    """Choose who joins after the training: listed, called so by a column, or drawn."""
    chosen = np.zeros(len(names), bool)
    for name in settings.new:
        if name not in names:
            close = difflib.get_close_matches(name, names, 1, 0.5)
            hint = f" (there is {close[0]!r})" if close else ""
            raise InputError(f"tables.new names {name!r}, and no client is called that{hint}.")
        chosen[list(names).index(name)] = True
    if called_new is not None:
        chosen |= called_new
    drawn = round(settings.new_share * len(names))
    if drawn:
        chosen[np.random.default_rng([seed, 77]).permutation(len(names))[:drawn]] = True
    if chosen.all():
        raise InputError(
            "All clients would be new, and nobody would train; leave some of them out."
        )
    return chosen
