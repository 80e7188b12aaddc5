"""One run out of many segments: submits, watches, and submits again after whatever crashed.

A server that is gone is waited for; where it was restarted, or its job ended early, the next segment
begins at the last checkpoint. For a site that is back, or new, the segment is asked to end.
The segment and this process speak through small files of the run's folder (terms.py), so the command
runs on the server's machine. FLARE is behind `Console`; nothing else here knows of it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pacpfl.errors import InputError
from pacpfl.run import Watcher
from pacpfl.sites import participation
from pacpfl.sites.kits import write_job
from pacpfl.sites.participation import Watch
from pacpfl.sites.terms import Outcome, Unreachable, give_order, read_outcome

if TYPE_CHECKING:
    from pacpfl.sites.session import Console


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


class Stopped(Exception):
    """Somebody asked for it; what was reached is saved."""


@dataclass
class Supervisor:
    """Looks after a run until its last round; `folder` holds terms.json and config.toml."""

    console: Console
    folder: Path
    name: str
    rounds: int
    care: Care
    watcher: Watcher
    sleep: Callable[[float], None] = time.sleep
    refusals: Counter[str] = field(default_factory=Counter)  # how often a segment ended for a site
    said: str = ""

    def run(self) -> Outcome:
        log = self.folder / participation.FILE
        segment = participation.read(log).segments
        failures, reached = 0, -1
        watch = Watch(log, self.rounds, self.watcher.progress or (lambda progress: None))
        try:
            while True:
                segment += 1
                outcome = self._segment(segment, watch)
                if outcome.finished:
                    return outcome
                if outcome.fatal:
                    raise InputError(outcome.reason)
                failures = 0 if watch.most > reached else failures + 1
                reached = max(reached, watch.most)
                self._say(f"segment {segment} ended ({outcome.reason}); going on")
                if failures >= self.care.most_failures:
                    raise InputError(
                        f"{failures} segments in a row got nowhere, the last because {outcome.reason}; "
                        "see the logs of server and sites, then start the same command again."
                    )
        finally:
            self.console.close()

    def _segment(self, segment: int, watch: Watch) -> Outcome:
        """Run one job, from submission to its end."""
        killed = Outcome(segment, 0, False, "it was killed")
        sites = self._gather(segment == 1, watch.present)
        give_order(self.folder, segment)
        job_folder = write_job(self.folder / "jobs", self.folder, self.name, segment, sites)
        try:
            started, job = self.console.server_started(), self.console.submit(job_folder)
        except Unreachable as error:
            self._pause()
            return killed._replace(reason=f"the server did not take its job: {error}")
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
                if self.watcher.stop():
                    give_order(self.folder, segment, end=True)
                    self._winds_down(lambda: read_outcome(self.folder, segment) is not None)
                    raise Stopped(f"stopped after round {watch.most} of {self.rounds}")
                if time.monotonic() - watch.moved > self.care.stall_seconds:
                    self.console.abort(job)
                    return killed
                if time.monotonic() - looked < self.care.look_seconds:
                    continue
                looked = time.monotonic()
                if self.console.server_started() != started or self.console.has_ended(job):
                    return read_outcome(self.folder, segment) or killed
                self._look_for_returned(watch, segment)
            except Unreachable:
                self._say("the server does not answer; waiting for it")

    def _look_for_returned(self, watch: Watch, segment: int) -> None:
        """Give a site that is connected and takes no part its chance, less often each time."""
        for site, waited in watch.waiting(self._connected()).items():
            if waited >= self.care.rejoin_seconds * 2 ** self.refusals[site]:
                self.refusals[site] += 1
                self._say(f"{site} is there again: it takes part from the next segment")
                give_order(self.folder, segment, end=True)
                return

    def _gather(self, first: bool, before: set[str]) -> list[str]:
        """Wait for enough sites, and a while for those who were there before; return them."""
        wanted = set(self.care.sites) if first else before
        patience = self.care.gather_seconds if first else self.care.regather_seconds
        began = time.monotonic()
        while True:
            there: list[str] = []
            with suppress(Unreachable):
                there = sorted(self._connected())
            enough = len(there) >= max(1, self.care.quorum)
            missing = sorted(wanted - set(there))
            if enough and not (missing and time.monotonic() - began < patience):
                return there
            self._say(f"waiting for {', '.join(missing)}" if missing else "waiting for sites")
            self._pause()
            if self.watcher.stop():
                raise Stopped("stopped while waiting for sites")

    def _connected(self) -> dict[str, float]:
        """Return the sites that may take part and are there, with when they were last heard of."""
        everyone = self.care.strangers or not self.care.sites
        connected = self.console.connected().items()
        return {site: seen for site, seen in connected if everyone or site in self.care.sites}

    def _wind_down(self, job: str) -> None:
        """Wait until a job has ended, so that the next one finds the sites free."""
        with suppress(Unreachable):
            if not self._winds_down(lambda: self.console.has_ended(job)):
                self.console.abort(job)

    def _winds_down(self, ended: Callable[[], bool]) -> bool:
        """Wait for an end, but not for ever; return whether it came."""
        began = time.monotonic()
        while not ended():
            if time.monotonic() - began > self.care.wind_down_seconds:
                return False
            self._pause()
        return True

    def _say(self, stage: str) -> None:
        """Tell of a stage when it changes, not each time it is looked at."""
        if stage != self.said:
            self.said = stage
            self.watcher.stage(stage)

    def _pause(self) -> None:
        self.sleep(self.care.poll_seconds)
