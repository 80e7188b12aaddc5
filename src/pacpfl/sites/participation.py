"""Who took part in which round: one line of JSON each, only ever appended.

A run across sites is a chain of segments; each begins at a checkpoint. Two kinds of lines:

    {"kind": "segment", "segment": 2, "start": 40, "roster": [["site-1", 2], ["site-2", 1]]}
    {"kind": "round", "round": 40, "clients": [0, 1, 2], ...}

The roster numbers the clients: those of the first site first. It only ever grows at its end, so a
client keeps its number, and with it its random numbers. Rounds after the checkpoint that a segment
begins at are lost, and the lines of the segments before it that speak of them no longer count; with no
checkpoint at all, nobody has a number yet.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from pacpfl.errors import InputError

FILE = "participation.jsonl"


class Seat(NamedTuple):
    """A site's clients bear the numbers first, first + 1, ..."""

    site: str
    first: int
    clients: int

    @property
    def numbers(self) -> range:
        return range(self.first, self.first + self.clients)


class Round(NamedTuple):
    number: int
    total: int  # clients in the roster: n
    clients: tuple[int, ...]  # those whose updates were counted
    segment: int


class Record(NamedTuple):
    """What a log says when only the rounds that count are read."""

    roster: tuple[Seat, ...]
    rounds: tuple[Round, ...]
    segments: int

    def last_counted(self) -> dict[int, int]:
        """For each client that ever took part, the last round in which it did."""
        return {client: one.number for one in self.rounds for client in one.clients}


NO_RECORD = Record((), (), 0)


def seats(pairs: Iterable[tuple[str, int]]) -> tuple[Seat, ...]:
    found: list[Seat] = []
    first = 0
    for site, clients in pairs:
        found.append(Seat(site, first, clients))
        first += clients
    return tuple(found)


def total(roster: tuple[Seat, ...]) -> int:
    return sum(seat.clients for seat in roster)


class Log:
    """Open for appending. A line is handed to the system before the next round begins."""

    def __init__(self, path: Path) -> None:
        self.path = path
        _cut_half_line(path)
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - open as long as the segment

    def segment(self, number: int, start: int, roster: tuple[Seat, ...], **more: Any) -> None:
        pairs = [[seat.site, seat.clients] for seat in roster]
        self._append(
            {"kind": "segment", "segment": number, "start": start, "roster": pairs, **more}
        )

    def round(self, number: int, clients: Iterable[int], **more: Any) -> None:
        self._append({"kind": "round", "round": number, "clients": list(clients), **more})

    def sync(self) -> bool:
        """Sync before a checkpoint: it must not remember rounds that the log has forgotten."""
        os.fsync(self._file.fileno())
        return True

    def close(self) -> None:
        self._file.close()

    def _append(self, entry: dict[str, Any]) -> None:
        self._file.write(json.dumps(entry).encode() + b"\n")


def read(path: Path, until: int | None = None) -> Record:
    """The rounds that count, in order. `until`: of a checkpoint; the log must lead there."""
    rounds: list[Round] = []
    roster: tuple[Seat, ...] = ()
    segment = 0
    for entry in entries(path):
        try:
            if entry["kind"] == "segment":
                start = int(entry["start"])
                if start > len(rounds):
                    raise ValueError(f"round {len(rounds)} is missing")
                del rounds[start:]
                roster = roster if start else ()
                grown = seats((str(site), int(count)) for site, count in entry["roster"])
                if grown[: len(roster)] != roster:
                    raise ValueError("the roster changed")
                roster, segment = grown, int(entry["segment"])
            elif entry["kind"] == "round":
                if entry["round"] != len(rounds):
                    raise ValueError(f"round {len(rounds)} is missing")
                clients = tuple(int(client) for client in entry["clients"])
                rounds.append(Round(len(rounds), total(roster), clients, segment))
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"{path} is damaged ({error}); start the run over with --fresh."
            ) from error
    if until is not None:
        if len(rounds) < until:
            raise InputError(
                f"{path} tells of {len(rounds)} rounds, and the checkpoint was made after {until}; put "
                "the right log back, or start the run over with --fresh."
            )
        del rounds[until:]
    return Record(roster, tuple(rounds), segment)


def entries(path: Path) -> list[dict[str, Any]]:
    """All lines; the last one may be half written."""
    if not path.exists():
        return []
    content = path.read_bytes()
    found = []
    for number, line in enumerate(content[: content.rfind(b"\n") + 1].splitlines(), 1):
        try:
            entry = json.loads(line)
        except ValueError as error:
            raise InputError(
                f"{path} is damaged at line {number}; start the run over with --fresh."
            ) from error
        found.append(entry)
    return found


def _cut_half_line(path: Path) -> None:
    if path.exists():
        content = path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            with open(path, "r+b") as file:
                file.truncate(whole)
