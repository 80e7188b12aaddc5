"""How a run across sites goes: its terms, how sites are asked, and the files of supervisor and segment."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from pacpfl import files
from pacpfl.errors import InputError, SecureAggregationError
from pacpfl.files import Facts
from pacpfl.methods.transforms import ENCODINGS
from pacpfl.settings import Settings, convert, key
from pacpfl.sites import wire
from pacpfl.sites.wire import Refused
from pacpfl.version import __version__

TERMS, CONFIG = "terms.json", "config.toml"  # of a run
ORDER = "segment.json"  # what the supervisor wants: which segment runs, and whether it is to end
OUTCOME = "outcome.json"


class Unreachable(Exception):
    """The server does not answer, or not sensibly."""


class Reply(NamedTuple):
    site: str  # as the engine knows it from the certificate, not as the message says
    params: Any
    text: object


class Exchange(Protocol):
    """A carrier of messages; `controller.py` has the one of FLARE."""

    def sites(self) -> list[str]: ...

    def ask(
        self, sites: list[str], params: dict[str, np.ndarray], text: str, deadline: float
    ) -> list[Reply]:
        """Return answers that came in time, in any order; who answered with an error has not answered."""
        ...

    def stopped(self) -> bool: ...

    def note(self, text: str) -> None:
        """Write a line into the server's log."""
        ...


Read = Callable[[Reply, Facts], Any]  # from a reply and its JSON object to what was asked for


@dataclass
class Inquiry:
    """Requests for one thing, and who did not answer them, or not as asked."""

    exchange: Exchange
    run: str
    deadline: float
    refused: dict[str, str] = field(default_factory=dict)  # site -> why
    missing: set[str] = field(default_factory=set)
    sent: int = 0  # bytes
    received: int = 0
    traces: int = 0  # most often that a site has traced its update so far

    def ask(
        self,
        task: str,
        sites: Collection[str],
        params: dict[str, np.ndarray],
        read: Read = lambda reply, about: None,
        **more: Any,
    ) -> dict[str, Any]:
        """Return by site what `read` makes of its first answer; it raises if that is not as asked."""
        asked, found = sorted(sites), {}
        text = wire.to_text({"task": task, "run": self.run, **more})
        replies = self.exchange.ask(asked, params, text, self.deadline)
        self.sent += len(asked) * wire.size(params)
        for reply in sorted(replies, key=lambda reply: reply.site):
            site = reply.site
            if site not in asked or site in found or site in self.refused:
                continue
            try:
                about = wire.from_text(reply.text)
                if "refused" in about:
                    raise wire.refusal(about, __version__)
                found[site] = read(reply, about)
            except (Refused, InputError, SecureAggregationError) as error:
                self.refused[site] = str(error)
                continue
            self.received += wire.size(reply.params)
            traces = about.get("traces")
            self.traces = max(self.traces, traces if type(traces) is int else 0)
        self.missing |= set(asked) - found.keys() - self.refused.keys()
        return found


AGGREGATIONS = ("mean", "trimmed", "median", "geometric-median")  # guard.RULES


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
    longest: float = key(
        10.0,
        "times the usual norm, to which longer updates that it sees are clipped; 0: none",
        least=0,
    )
    aggregation: str = key("mean", "of the updates that it sees", choices=AGGREGATIONS)
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
    read = read_section(Terms, table, "run", origin, hidden=("run", "segment"))
    if read.get("secure") and read.get("aggregation", "mean") != "mean":
        raise InputError(
            f"{origin}: a secure server sees sums only, so it cannot leave single updates out; set "
            "aggregation to mean."
        )
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


def _told(path: Path) -> Facts:
    """Return what a file says that may not be there, or be of another run."""
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError):
        return {}


def order(folder: Path) -> Facts:
    return _told(folder / ORDER)


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
    told = _told(folder / OUTCOME)
    return Outcome(**told) if told.get("segment") == segment else None
