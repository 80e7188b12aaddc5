"""A round that can be stopped, looked into and tampered with between its steps."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection
from dataclasses import replace

import numpy as np
import pytest

from pacpfl.secagg.client import Client, Member
from pacpfl.secagg.server import Server
from pacpfl.secagg.settings import Settings, smallest_threshold
from pacpfl.secagg.simulate import make_members


class Round:
    """n clients c0, c1, ... with random integers; `values` sum without wrapping around."""

    def __init__(self, clients: int = 5, threshold: int | None = None, **changes: object) -> None:
        names = [f"c{i}" for i in range(clients)]
        self.members: dict[str, Member] = make_members(names)
        settings = Settings(
            session=secrets.token_bytes(16),
            round=3,
            cohort=tuple((name, m.known[name]) for name, m in self.members.items()),
            threshold=threshold or smallest_threshold(clients, "active"),
            dimension=6,
        )
        self.settings: Settings = replace(settings, **changes)  # type: ignore[arg-type]
        generator = np.random.default_rng(clients)
        self.values = {
            name: generator.integers(-1000, 1000, self.settings.dimension) for name in names
        }
        self.begin()

    def begin(self) -> None:
        self.clients: dict[str, Client] = {
            name: member.join(self.settings) for name, member in self.members.items()
        }
        self.server = Server(self.settings)

    def advertise(self) -> dict[str, bytes]:
        return {name: client.advertise() for name, client in self.clients.items()}

    def keys(self) -> bytes:
        return self.server.collect_keys(self.advertise())

    def share(self) -> dict[str, bytes]:
        keys = self.keys()
        return {name: client.share(keys) for name, client in self.clients.items()}

    def inboxes(self) -> dict[str, bytes]:
        return self.server.collect_shares(self.share())

    def masked(self, silent: Collection[str] = ()) -> dict[str, bytes]:
        return {
            name: self.clients[name].mask(inbox, self.values[name])
            for name, inbox in self.inboxes().items()
            if name not in silent
        }

    def survivors(self, silent: Collection[str] = ()) -> bytes:
        return self.server.collect_masked(self.masked(silent))

    def agreed(self, silent: Collection[str] = ()) -> dict[str, bytes]:
        named = self.survivors(silent)
        return {name: self.clients[name].agree(named) for name in self.server.survivors}

    def signatures(self, silent: Collection[str] = ()) -> bytes:
        return self.server.collect_signatures(self.agreed(silent))

    def revealed(self, silent: Collection[str] = ()) -> dict[str, bytes]:
        signatures = self.signatures(silent)
        return {name: self.clients[name].reveal(signatures) for name in self.server.survivors}

    def expected(self, silent: Collection[str] = ()) -> np.ndarray:
        """The sum as it must come out."""
        total = sum(values for name, values in self.values.items() if name not in silent)
        return np.asarray(total).astype(f"u{self.settings.bits // 8}")


@pytest.fixture
def make_round() -> Callable[..., Round]:
    return Round
