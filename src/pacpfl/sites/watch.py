"""The participation log, read as it grows: how far the run is, who answers, who fell silent."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pacpfl.engine.simulate import Progress


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
        self.moved = self.began = time.monotonic()
        self.segment = 0
        self.expected: set[str] = set()
        self.refused: set[str] = set()
        self.absent: dict[str, float] = {}  # site -> since when
        self.submitted = 0.0

    def begin(self, segment: int, sites: list[str]) -> None:
        """A new job was submitted for these sites; whoever comes later is absent from now on."""
        self.segment, self.expected = segment, set(sites)
        self.refused, self.absent = set(), {}
        self.moved = time.monotonic()
        self.submitted = self.clock()

    @property
    def present(self) -> set[str]:
        """Who was there when last heard of."""
        return self.expected - set(self.absent)

    def read(self) -> None:
        """What was written since the last time; a half-written line waits for its other half."""
        if not self.path.exists():
            return
        with open(self.path, "rb") as file:
            file.seek(self.offset)
            content = file.read()
        whole = content.rfind(b"\n") + 1
        self.offset += whole
        for line in content[:whole].splitlines():
            self._take(json.loads(line))

    def _take(self, entry: dict[str, Any]) -> None:
        self.moved = time.monotonic()
        if entry["kind"] == "segment" and entry["segment"] == self.segment:
            self.refused = set(entry.get("refused", {}))
            here = set(entry.get("sites", [])) | self.refused
            self.absent = dict.fromkeys(self.expected - here, self.clock())
        elif entry["kind"] == "round":
            for site in entry.get("missing", []):
                self.absent.setdefault(site, self.clock())
            self.most = max(self.most, entry["round"] + 1)
            seconds = time.monotonic() - self.began
            self.progress(
                Progress(entry["round"] + 1, self.rounds, seconds, entry.get("curves", {}))
            )

    def waiting(self, connected: dict[str, float]) -> dict[str, float]:
        """Sites that the server hears of but that take no part, and for how many seconds.

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
