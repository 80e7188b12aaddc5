"""A round that can be stopped, looked into and tampered with between its steps."""

from __future__ import annotations

import secrets
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np

from pacpfl.secagg.client import Client
from pacpfl.secagg.messages import Step
from pacpfl.secagg.server import Server
from pacpfl.secagg.settings import Settings, smallest_threshold
from pacpfl.secagg.simulate import make_members


class Round:
    """n clients c0, c1, ... with random integers; `values` sum without wrapping around."""

    def __init__(self, clients: int = 5, threshold: int | None = None, **changes: Any) -> None:
        self.members = make_members([f"c{i}" for i in range(clients)])
        settings = Settings(
            session=secrets.token_bytes(16),
            round=3,
            cohort=tuple((name, m.known[name]) for name, m in self.members.items()),
            threshold=threshold or smallest_threshold(clients, "active"),
            dimension=6,
        )
        self.settings: Settings = replace(settings, **changes)
        rng = np.random.default_rng(clients)
        self.values = {n: rng.integers(-1000, 1000, self.settings.dimension) for n in self.members}
        self.begin()

    def begin(self, **changes: Any) -> None:
        self.settings = replace(self.settings, **changes)
        self.clients: dict[str, Client] = {
            name: member.join(self.settings) for name, member in self.members.items()
        }
        self.server = Server(self.settings)

    def answer(self, step: Step, name: str, told: bytes = b"") -> bytes:
        """Return what a client says to what it is told."""
        return self.clients[name].answer(step, told, self.values[name])

    def replies(self, step: Step, silent: Collection[str] = ()) -> dict[str, bytes]:
        """Return the messages of a step, after honest ones before it; the silent send no update."""
        told = dict.fromkeys(self.clients, b"")
        if step is not Step.ADVERTISE:
            told = self.told(Step(step - 1), silent)
        heard = [name for name in told if step is not Step.MASK or name not in silent]
        return {name: self.answer(step, name, told[name]) for name in heard}

    def told(self, step: Step, silent: Collection[str] = ()) -> dict[str, bytes]:
        """Return what the server tells each client after the messages of a step."""
        return self.server.collect(step, self.replies(step, silent))

    def finish(self, step: Step, replies: dict[str, bytes]) -> np.ndarray:
        """Return the sum when these are the messages of a step, and the rest is honest."""
        told = self.server.collect(step, replies)
        if step is Step.REVEAL:
            return self.server.total
        after = Step(step + 1)
        return self.finish(after, {name: self.answer(after, name, told[name]) for name in told})

    def expected(self, silent: Collection[str] = ()) -> np.ndarray:
        """Return the sum as it must come out."""
        total = sum(values for name, values in self.values.items() if name not in silent)
        return np.asarray(total).astype(f"u{self.settings.bits // 8}")
