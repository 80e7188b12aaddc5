"""What a private run has released, written down BEFORE it is released (docs/privacy.md).

One JSON object per line, only ever appended, each line on disk before the rounds it speaks of are
computed. So a run that is killed has counted every round whose result may have been seen; goes it on
from an older checkpoint, it pays for these rounds again.

Every line holds a hash of itself and of the line before. A checkpoint holds the place in this chain
at which it was made: a ledger that was deleted, shortened, or changed no longer leads to that place,
and the run refuses to go on. (Who puts back an old ledger TOGETHER with its old checkpoint is not
found out: both are files of the same folder.)
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, get_args

from pacpfl.errors import InputError, explained
from pacpfl.files import Facts, append, append_line, damaged, read_lines, sync_folder
from pacpfl.privacy.accounting import (
    ORDER,
    Plan,
    PrivacySettings,
    Sampling,
    Spent,
    Unit,
    epsilon_spent,
    together,
)

FILE = "privacy.jsonl"
REMEDY = (
    "what was spent is not known: put the right ledger back, or choose another folder with --out"
)
START = hashlib.sha256(b"pacpfl-privacy-ledger-1").hexdigest()


@dataclass(frozen=True)
class RunRecord:
    """One run as the ledger knows it: a folder can hold several, begun with --fresh."""

    plan: Plan
    private: bool  # False: its noise can be drawn again from a seed
    identity: str
    started: str
    releases: tuple[tuple[int, int], ...]  # rounds [first, last)

    @property
    def released(self) -> int:
        """Count the rounds: those that were released again after a crash count again."""
        return sum(last - first for first, last in self.releases)

    def spent(self, delta: float = 0.0) -> Spent:
        return epsilon_spent(self.plan, self.released, delta)


class Ledger:
    """Open for appending, by one process at a time."""

    def __init__(self, file: BinaryIO, path: Path, entries: list[Facts]) -> None:
        self._file, self.path, self._entries = file, path, entries

    @property
    def released(self) -> int:
        """Count the rounds of this run so far, whether or not they came to anything."""
        return records(self._entries)[-1].released

    @property
    def position(self) -> str:
        """Return the place in the chain, which a checkpoint remembers."""
        return f"{len(self._entries)} {self._entries[-1]['chain']}"

    def release(self, first: int, last: int) -> None:
        """Write down that rounds [first, last) are about to be released; return when that is on disk."""
        self._append({"kind": "release", "first": first, "last": last})

    def check(self, position: str) -> None:
        _check(self.path, self._entries, position)

    def close(self) -> None:
        self._file.close()

    def _append(self, content: Facts) -> None:
        before = self._entries[-1]["chain"] if self._entries else START
        entry = content | {"chain": _chain(before, content)}
        append_line(self.path, entry)
        self._entries.append(entry)


def open_ledger(path: Path, plan: Plan, identity: str, private: bool) -> Ledger:
    """Open the ledger: the last run in it goes on if it is this one, else a new one begins."""
    new = not path.exists()
    with explained(f"{path} cannot be written", "choose another folder with --out", OSError):
        file = append(path)  # locked as long as the run
    try:
        ledger = _taken(file, path)
        if new:
            sync_folder(path.parent)
        last = records(ledger._entries)[-1:]
        begun_anew = bool(last) and ledger._entries[-1]["kind"] == "fresh"
        if begun_anew or [(run.identity, run.plan) for run in last] != [(identity, plan)]:
            about = {"plan": asdict(plan), "private": private, "identity": identity}
            started = datetime.now(UTC).isoformat(timespec="seconds")
            ledger._append({"kind": "run", **about, "started": started})
    except BaseException:
        file.close()
        raise
    return ledger


def read_ledger(path: Path, position: str | None = None) -> list[RunRecord]:
    """Return the runs in a ledger, oldest first; none where there is no file.

    `position` of a checkpoint: the ledger must lead there.
    """
    entries = _entries(path)
    if position is not None:
        _check(path, entries, position)
    return records(entries)


def start_over(path: Path) -> int:
    """Make the next run in this ledger a new one, whatever it is; return how many there are so far.

    What the runs before it released stays written: a new release of the same data adds to it.
    """
    known = read_ledger(path)
    if known:
        with append(path) as file:
            _taken(file, path)._append({"kind": "fresh"})
    return len(known)


def records(entries: list[Facts]) -> list[RunRecord]:
    runs: list[tuple[Facts, list[tuple[int, int]]]] = []
    for entry in entries:
        if entry["kind"] == "run":
            runs.append((entry, []))
        elif entry["kind"] == "release":
            runs[-1][1].append((entry["first"], entry["last"]))
    return [
        RunRecord(
            Plan(**run["plan"]), run["private"], run["identity"], run["started"], tuple(releases)
        )
        for run, releases in runs
    ]


def facts(
    plan: Plan, settings: PrivacySettings, runs: list[RunRecord], rounds: int, out_of_budget: bool
) -> Facts:
    """Return what run.json says: `epsilon` was spent, also in rounds that were lost in a crash.

    Parameters
    ----------
    plan, settings
        What was asked for.
    runs
        Those in the ledger, this one last; without a ledger there are none.
    rounds
        How many the training has made.
    out_of_budget
        Whether it ended because the budget did.
    """
    if rounds == 0:
        raise InputError(
            f"All {plan.rounds} rounds of the budget were released and lost when the run was "
            "interrupted, and nothing was learned; --fresh begins a new run, whose budget adds to it."
        )
    released = runs[-1].released if runs else rounds
    spent = epsilon_spent(plan, released)
    also = epsilon_spent(plan, released, settings.delta)
    return {
        "mode": plan.mode,
        "private": settings.noise_seed is None and plan.guaranteed,
        "epsilon": spent.epsilon if plan.guaranteed else plan.epsilon,
        "delta": spent.delta,
        "adjacency": spent.adjacency,
        "unit": plan.unit,
        "accountant": spent.accountant,
        **({"relaxed": also._asdict()} if plan.mode == "laplace" else {}),
        "budget": plan.epsilon,
        "noise_multiplier": plan.multiplier,
        "clip": settings.clip,
        "sampling": plan.sampling,
        "cohort": plan.cohort,
        "rounds_released": released,
        "rounds_planned": plan.rounds,
        "out_of_budget": out_of_budget,
        "earlier_runs": max(0, len(runs) - 1),
        "strict": settings.strict,
    }


def total(runs: list[RunRecord], delta: float = 0.0) -> Spent:
    """Return what all runs in a ledger that released something have spent together."""
    parts = [run.spent(delta) for run in runs if run.released]
    return together(parts) if parts else runs[-1].spent(delta)


def _entries(path: Path) -> list[Facts]:
    """Return the entries, each found to follow the one before; only the last may be half written."""
    entries, chain = read_lines(path, REMEDY), START
    for number, entry in enumerate(entries, 1):
        content = {name: value for name, value in entry.items() if name != "chain"}
        chain = _chain(chain, content)
        if entry.get("kind") not in ("run", "release", "fresh") or entry.get("chain") != chain:
            raise damaged(path, f"line {number} does not continue what stands before it", REMEDY)
    try:
        sound = all(map(_makes_sense, records(entries)))
    except (KeyError, TypeError, ValueError, IndexError):
        sound = False
    if not sound:
        raise damaged(path, "it tells of a run that cannot have been", REMEDY)
    return entries


def _makes_sense(run: RunRecord) -> bool:
    """Return whether a run has a plan that can be accounted for, and releases that can have been."""
    plan = run.plan
    whole = [plan.clients, plan.cohort, *([] if plan.rounds is None else [plan.rounds])]
    numbers = [plan.multiplier, plan.delta, *([] if plan.epsilon is None else [plan.epsilon])]
    ends = [end for pair in run.releases for end in pair]
    return (
        plan.mode in ORDER
        and plan.sampling in get_args(Sampling)
        and plan.unit in get_args(Unit)
        and all(type(number) is int and 0 < number < 2**31 for number in whole)
        and all(type(number) in (int, float) and 0 <= number < math.inf for number in numbers)
        and plan.cohort <= plan.clients
        and 1e-3 <= plan.multiplier <= 1e12
        and (0 < plan.delta < 1 or (plan.delta == 0 and plan.mode != "gaussian"))
        and all(type(end) is int and 0 <= end < 10**7 for end in ends)
        and all(first < last for first, last in run.releases)
        and type(run.private) is bool
        and isinstance(run.identity, str)
        and isinstance(run.started, str)
    )


def _taken(file: BinaryIO, path: Path) -> Ledger:
    """Lock the ledger for the process that opened the file."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise InputError(
            f"Another process is spending the budget in {path}; wait until it has ended."
        ) from error
    return Ledger(file, path, _entries(path))


def _check(path: Path, entries: list[Facts], position: str) -> None:
    """Refuse a ledger that does not go on from the place where a checkpoint was made."""
    places = (f"{count} {entry['chain']}" for count, entry in enumerate(entries, 1))
    if position not in places:
        raise InputError(
            f"{path} is not the ledger that the checkpoint beside it was made with: entries are "
            f"missing or changed, so {REMEDY}."
        )


def _chain(before: str, content: Facts) -> str:
    return hashlib.sha256((before + json.dumps(content, sort_keys=True)).encode()).hexdigest()
