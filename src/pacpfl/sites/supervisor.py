"""One run out of many segments: submits, watches, and submits again after whatever crashed.

    server gone         wait until it answers again; a restarted one has lost its job: next segment
    job ended early     next segment, from the last checkpoint
    site back, or new   ask the segment to end at its next round, so that the next one has the site

The segment and this process speak through small files of the run's folder (terms.py), so the command
runs on the server's machine. FLARE is behind `Console`; nothing else here knows of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pacpfl.engine.simulate import Progress
from pacpfl.errors import InputError
from pacpfl.sites import participation
from pacpfl.sites.job import write_job
from pacpfl.sites.participation import Watch
from pacpfl.sites.terms import Outcome, give_order, read_outcome


class Unreachable(Exception):
    """The server does not answer, or not sensibly."""


class Console(Protocol):
    def server_started(self) -> str: ...

    def connected(self) -> dict[str, float]: ...

    def submit(self, job: Path) -> str: ...

    def has_ended(self, job: str) -> bool: ...

    def abort(self, job: str) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Care:
    """The patience with which a run is looked after."""

    sites: tuple[str, ...] = ()  # to wait for before the first segment
    quorum: int = 1
    strangers: bool = False  # whether others, who were given a kit later, take part as well
    poll_seconds: float = 0.25
    look_seconds: float = 2.0  # between two looks at who is connected
    rejoin_seconds: float = 5.0  # a site that is back waits so long; doubled each time
    gather_seconds: float = 120.0  # to wait for all `sites` at the start; then the quorum is enough
    regather_seconds: float = 20.0  # and later for those who were there: a new server knows nobody
    wind_down_seconds: float = 20.0  # for a job to end after its segment has
    stall_seconds: float = 600.0  # without any round: the segment counts as dead
    most_failures: int = 5  # segments in a row that got nowhere


@dataclass
class Callbacks:
    """Callbacks of a supervised run; by default silent."""

    progress: Callable[[Progress], None] = lambda progress: None
    stage: Callable[[str], None] = lambda text: None
    stop: Callable[[], bool] = lambda: False
    sleep: Callable[[float], None] = time.sleep


class Stopped(Exception):
    """Somebody asked for it; what was reached is saved."""


@dataclass
class Supervisor:
    """Looks after a run until its last round; `folder` holds terms.json and config.toml."""

    connect: Callable[[], Console]
    folder: Path
    name: str
    rounds: int
    care: Care
    callbacks: Callbacks
    console: Console | None = None
    refusals: dict[str, int] = field(default_factory=dict)  # how often a segment ended for a site
    trouble: str = ""  # why the latest segment did not even begin
    said: str = ""

    def run(self) -> Outcome:
        log = self.folder / participation.FILE
        segment = participation.read(log).segments
        failures, reached = 0, -1
        watch = Watch(log, self.rounds, self.callbacks.progress)
        try:
            while True:
                segment += 1
                outcome = self._segment(segment, watch)
                if outcome is not None and outcome.finished:
                    return outcome
                if outcome is not None and outcome.fatal:
                    raise InputError(outcome.reason)
                failures = 0 if watch.most > reached else failures + 1
                reached = max(reached, watch.most)
                why = (self.trouble or "it was killed") if outcome is None else outcome.reason
                self._say(f"segment {segment} ended ({why}); going on")
                if failures >= self.care.most_failures:
                    raise InputError(
                        f"{failures} segments in a row got nowhere, the last because {why}; see the "
                        "logs of server and sites, then start the same command again."
                    )
        finally:
            if self.console is not None:
                self.console.close()

    def _segment(self, segment: int, watch: Watch) -> Outcome | None:
        """Run one job, from submission to its end; None where it ended without a word."""
        self.trouble = ""
        sites = self._gather(segment == 1, watch.present)
        give_order(self.folder, segment)
        job_folder = write_job(self.folder / "jobs", self.folder, self.name, segment, sites)
        try:
            console = self._reach()
            started, job = console.server_started(), console.submit(job_folder)
        except Unreachable as error:
            self._lost()
            self.trouble = f"the server did not take its job: {error}"
            return None
        self._say(f"training at {len(sites)} sites")
        watch.begin(segment, sites)
        looked = time.monotonic()
        while True:
            self._pause()
            watch.read()
            outcome = read_outcome(self.folder, segment)
            try:
                if outcome is not None:
                    if not outcome.finished:
                        self._wind_down(job)
                    return outcome
                if self.callbacks.stop():
                    give_order(self.folder, segment, end=True)
                    self._winds_down(lambda: read_outcome(self.folder, segment) is not None)
                    raise Stopped(f"stopped after round {watch.most} of {self.rounds}")
                if time.monotonic() - watch.moved > self.care.stall_seconds:
                    self._reach().abort(job)
                    return None
                if time.monotonic() - looked < self.care.look_seconds:
                    continue
                looked = time.monotonic()
                console = self._reach()
                if console.server_started() != started or console.has_ended(job):
                    return read_outcome(self.folder, segment)
                self._look_for_returned(console, watch, segment)
            except Unreachable:
                self._lost()
                self._say("the server does not answer; waiting for it")

    def _look_for_returned(self, console: Console, watch: Watch, segment: int) -> None:
        """Give a site that is connected and takes no part its chance, less often each time."""
        connected = self._wanted(console.connected())
        for site, waited in watch.waiting(connected).items():
            patience = self.care.rejoin_seconds * 2 ** self.refusals.get(site, 0)
            if waited >= patience:
                self.refusals[site] = self.refusals.get(site, 0) + 1
                self._say(f"{site} is there again: it takes part from the next segment")
                give_order(self.folder, segment, end=True)
                return

    def _gather(self, first: bool, before: set[str]) -> list[str]:
        """Wait for enough sites, and a while for those who were there before; return them."""
        wanted = set(self.care.sites) if first else before
        patience = self.care.gather_seconds if first else self.care.regather_seconds
        began = time.monotonic()
        while True:
            try:
                there = sorted(self._wanted(self._reach().connected()))
            except Unreachable:
                self._lost()
                there = []
            enough = len(there) >= max(1, self.care.quorum)
            missing = sorted(wanted - set(there))
            if enough and not (missing and time.monotonic() - began < patience):
                return there
            self._say(f"waiting for {', '.join(missing)}" if missing else "waiting for sites")
            self._pause()
            if self.callbacks.stop():
                raise Stopped("stopped while waiting for sites")

    def _wanted(self, connected: dict[str, float]) -> dict[str, float]:
        everyone = self.care.strangers or not self.care.sites
        return {s: seen for s, seen in connected.items() if everyone or s in self.care.sites}

    def _wind_down(self, job: str) -> None:
        """Wait until a job has ended, so that the next one finds the sites free."""
        try:
            if not self._winds_down(lambda: self._reach().has_ended(job)):
                self._reach().abort(job)
        except Unreachable:
            self._lost()

    def _winds_down(self, ended: Callable[[], bool]) -> bool:
        """Wait for an end, but not for ever; return whether it came."""
        began = time.monotonic()
        while not ended():
            if time.monotonic() - began > self.care.wind_down_seconds:
                return False
            self._pause()
        return True

    def _reach(self) -> Console:
        if self.console is None:
            self.console = self.connect()
        return self.console

    def _lost(self) -> None:
        if self.console is not None:
            self.console.close()
        self.console = None
        self._pause()

    def _say(self, stage: str) -> None:
        """Tell of a stage when it changes, not each time it is looked at."""
        if stage != self.said:
            self.said = stage
            self.callbacks.stage(stage)

    def _pause(self) -> None:
        self.callbacks.sleep(self.care.poll_seconds)
