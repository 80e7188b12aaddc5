"""How a run across sites goes, how it ended, and the words between supervisor and segment: small files."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from pacpfl import files
from pacpfl.errors import InputError
from pacpfl.files import Facts
from pacpfl.methods.transforms import ENCODINGS
from pacpfl.settings import Settings, convert, key

ORDER = "segment.json"  # what the supervisor wants: which segment runs, and whether it is to end
OUTCOME = "outcome.json"


class Reply(NamedTuple):
    site: str  # as the engine knows it from the certificate, not as the message says
    params: Any
    text: object


class Exchange(Protocol):
    """A carrier of messages; `controller.py` has the one of FLARE."""

    def sites(self) -> list[str]:
        """Return who belongs to this segment."""
        ...

    def ask(
        self, sites: list[str], params: dict[str, np.ndarray], text: str, deadline: float
    ) -> list[Reply]:
        """Return answers that came in time, in any order; who answered with an error has not answered."""
        ...

    def stopped(self) -> bool: ...

    def note(self, text: str) -> None:
        """Write a line into the server's log."""
        ...


@dataclass(frozen=True)
class Terms(Settings):
    """The terms of a run across sites; what it learns is in its configuration."""

    run: str  # its name, hexadecimal digits
    segment: int
    quorum: int = key(1, "sites without which no round counts", least=1)
    deadline: float = key(60.0, "seconds to answer in a round", above=0)
    start_deadline: float = key(180.0, "seconds to get ready", above=0)
    checkpoint_rounds: int = key(25, "rounds between two checkpoints, at most", least=1)
    checkpoint_seconds: float = key(10.0, "seconds between two checkpoints, at most", above=0)
    encoding: str = key("exact", "of updates", choices=ENCODINGS)
    secure: bool = key(False, "the server sees sums of updates only")
    bound: float = key(1e6, "norm of an update in secure rounds without a privacy mode", above=0)

    @property
    def needed(self) -> int:
        """Count the sites without which there is no round: one site's sum is no secret."""
        return max(self.quorum, 2 if self.secure else 1)


def read_section(
    owner: type[Settings], table: Any, section: str, origin: str, hidden: Collection[str] = ()
) -> Facts:
    """Read and check a section of a TOML file: what people may set of a record."""
    names = [f.name for f in fields(owner) if f.name not in hidden]  # type: ignore[arg-type]
    if not isinstance(table, dict):
        raise InputError(f"{origin}: {section} is a section; write [{section}] above its keys.")
    label = f"{origin}: [{section}]"
    for name in table:
        if name not in names:
            raise InputError(f"{label} has no key {name!r}; there are {', '.join(names)}.")
    return {name: convert(owner, name, value, label) for name, value in table.items()}


def read_terms(table: Any, origin: str) -> Facts:
    """Read and check [run]: what of `Terms` people may set."""
    read = read_section(Terms, table, "run", origin, hidden=("run", "segment"))
    if read.get("secure") and read.get("encoding", "exact") != "exact":
        raise InputError(
            f"{origin}: secure aggregation has its own encoding; leave encoding out of [run]."
        )
    return read


class Outcome(NamedTuple):
    segment: int
    rounds: int  # that are saved
    finished: bool
    reason: str
    fatal: bool = False  # another segment would end the same way


def order(folder: Path) -> Facts:
    try:
        return dict(json.loads((folder / ORDER).read_text()))
    except (OSError, ValueError):
        return {}


def give_order(folder: Path, segment: int, end: bool = False) -> None:
    files.write_json(folder / ORDER, {"segment": segment, "end": end})


def is_current(folder: Path, segment: int) -> bool:
    """Return whether no other segment has taken over.

    A server that was thought dead and comes back late must not write over its successor's work.
    """
    return order(folder).get("segment", segment) == segment


def write_outcome(folder: Path, outcome: Outcome) -> None:
    if is_current(folder, outcome.segment):
        files.write_json(folder / OUTCOME, outcome._asdict())


def read_outcome(folder: Path, segment: int) -> Outcome | None:
    """Return how a segment ended; None where it has not, or was killed."""
    try:
        outcome = Outcome(**json.loads((folder / OUTCOME).read_text()))
    except (OSError, ValueError, TypeError):
        return None
    return outcome if outcome.segment == segment else None
