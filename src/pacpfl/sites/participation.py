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
import time
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pacpfl import files
from pacpfl.engine.simulate import Progress
from pacpfl.errors import InputError, explained
from pacpfl.files import Facts

FILE = "participation.jsonl"


class Seat(NamedTuple):
    """A site's place in the roster: its clients bear the numbers first, first + 1, ..."""

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


class Record(NamedTuple):
    """The part of a log that counts."""

    roster: tuple[Seat, ...]
    rounds: tuple[Round, ...]
    segments: int

    def last_counted(self) -> dict[int, int]:
        """Return the last round of each client that ever took part."""
        return {client: one.number for one in self.rounds for client in one.clients}


NO_RECORD = Record((), (), 0)


def seats(pairs: Iterable[tuple[str, int]]) -> tuple[Seat, ...]:
    pairs = list(pairs)
    ends = accumulate(clients for _, clients in pairs)
    return tuple(Seat(site, end - n, n) for (site, n), end in zip(pairs, ends, strict=True))


def total(roster: tuple[Seat, ...]) -> int:
    return sum(seat.clients for seat in roster)


def read(path: Path, until: int | None = None) -> Record:
    """Read the rounds that count, in order; the log must lead to round `until` of a checkpoint."""
    rounds: list[Round] = []
    roster: tuple[Seat, ...] = ()
    segment = 0
    kinds = KeyError, TypeError, ValueError
    with explained(f"{path} is damaged", "start the run over with --fresh", *kinds):
        for entry in entries(path):
            begins = entry["kind"] == "segment"
            place = int(entry["start" if begins else "round"])
            if place > len(rounds) or not (begins or place == len(rounds)):
                raise ValueError(f"round {len(rounds)} is missing")
            if begins:
                del rounds[place:]
                roster = roster if place else ()
                grown = seats((str(site), int(count)) for site, count in entry["roster"])
                if grown[: len(roster)] != roster:
                    raise ValueError("the roster changed")
                roster, segment = grown, int(entry["segment"])
            else:
                clients = tuple(int(client) for client in entry["clients"])
                rounds.append(Round(place, total(roster), clients))
    if until is not None:
        if len(rounds) < until:
            raise InputError(
                f"{path} tells of {len(rounds)} rounds, and the checkpoint was made after {until}; put "
                "the right log back, or start the run over with --fresh."
            )
        del rounds[until:]
    return Record(roster, tuple(rounds), segment)


def entries(path: Path) -> list[Facts]:
    """Return all lines; the last one may be half written, and then does not count."""
    return files.read_lines(path, "start the run over with --fresh")


def summary(folder: Path) -> Facts:
    rounds = [line for line in entries(folder / FILE) if line["kind"] == "round"]
    record = read(folder / FILE)

    def of_rounds(average: Callable[[list[float]], Any], name: str) -> float | None:
        return float(average([line[name] for line in rounds])) if rounds else None

    norms: dict[str, list[float]] = {}
    for line in rounds:
        for site, each in line.get("norms", {}).items():
            norms.setdefault(site, []).append(max(each))
    return {
        "norms": {site: float(np.median(each)) for site, each in norms.items()},
        "clipped": dict(Counter(site for line in rounds for site in line.get("clipped", ()))),
        "rounds": len(record.rounds),
        "segments": record.segments,
        "answered": dict(Counter(site for line in rounds for site in line["sites"])),
        "clients": {seat.site: seat.clients for seat in record.roster},
        "median_seconds": of_rounds(np.median, "seconds"),
        "bytes_sent": of_rounds(np.mean, "sent"),
        "bytes_received": of_rounds(np.mean, "received"),
    }


class Watch:
    def __init__(
        self,
        path: Path,
        rounds: int,
        progress: Callable[[Progress], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.path, self.rounds, self.progress, self.clock = path, rounds, progress, clock
        self.offset = path.stat().st_size if path.exists() else 0
        self.most = 0  # rounds reached
        self.began = time.monotonic()
        self.begin(0, [])

    def begin(self, segment: int, sites: list[str]) -> None:
        """Begin a segment with these sites; whoever comes later is absent from now on."""
        self.segment, self.expected = segment, set(sites)
        self.refused: set[str] = set()
        self.absent: dict[str, float] = {}  # site -> since when
        self.moved, self.submitted = time.monotonic(), self.clock()

    @property
    def present(self) -> set[str]:
        """Return who was there when last heard of."""
        return self.expected - set(self.absent)

    def read(self) -> None:
        """Read what was written since the last time; a half-written line waits for its other half."""
        if not self.path.exists():
            return
        with open(self.path, "rb") as file:
            file.seek(self.offset)
            content = file.read()
        whole = content.rfind(b"\n") + 1
        self.offset += whole
        for line in content[:whole].splitlines():
            self._take(json.loads(line))

    def _take(self, entry: Facts) -> None:
        self.moved = time.monotonic()
        if entry["kind"] == "segment" and entry["segment"] == self.segment:
            self.refused = set(entry.get("refused", {}))
            here = set(entry.get("sites", [])) | self.refused
            self.absent = dict.fromkeys(self.expected - here, self.clock())
        elif entry["kind"] == "round":
            for site in entry.get("missing", []):
                self.absent.setdefault(site, self.clock())
            done, seconds = entry["round"] + 1, self.moved - self.began
            self.most = max(self.most, done)
            self.progress(Progress(done, self.rounds, seconds, entry.get("curves", {})))

    def waiting(self, connected: dict[str, float]) -> dict[str, float]:
        """Return sites that are connected but take no part, and for how many seconds.

        One that fell silent counts once it was heard of after that; one that refused does not.
        """
        now = self.clock()
        for site in set(connected) - self.expected - self.refused:
            self.absent.setdefault(site, self.submitted)
        return {
            site: now - since
            for site, since in self.absent.items()
            if connected.get(site, 0.0) > since
        }
