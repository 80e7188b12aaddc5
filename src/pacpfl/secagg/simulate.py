"""A whole round with all parties in one process: for tests, the documentation and trying out settings."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np

from pacpfl.errors import InputError
from pacpfl.secagg.client import NO_VALUES, Member
from pacpfl.secagg.grid import Grid
from pacpfl.secagg.messages import Step
from pacpfl.secagg.primitives import KEY_BYTES, signing_public
from pacpfl.secagg.server import Server
from pacpfl.secagg.settings import SESSION_BYTES, Adversary


class Outcome(NamedTuple):
    """The sum over the survivors, who they are, and what each client sent and received in all."""

    total: np.ndarray
    survivors: tuple[str, ...]
    bytes_per_client: dict[str, int]


def make_members(names: Collection[str], adversary: Adversary = "active") -> dict[str, Member]:
    private = {name: secrets.token_bytes(KEY_BYTES) for name in names}
    known = {name: signing_public(key) for name, key in private.items()}
    return {name: Member(name, private[name], known, adversary) for name in sorted(private)}


def simulate_round(
    updates: Mapping[str, np.ndarray],
    grid: Grid,
    threshold: int,
    dropouts: Mapping[Step, Collection[str]] | None = None,
    *,
    adversary: Adversary = "active",
) -> Outcome:
    """Play one round of the clients in `updates`; those in `dropouts[step]` are silent from that step on.

    With `grid.noise` each client adds its share of the noise.
    """
    if len(updates) > grid.clients:
        raise InputError(f"The grid has room for {grid.clients} clients, not for {len(updates)}.")
    members = make_members(updates, adversary)
    cohort = {name: member.known[name] for name, member in members.items()}
    session = secrets.token_bytes(SESSION_BYTES)
    settings = grid.settings(session, 0, cohort, threshold, adversary)
    server = Server(settings)
    clients = {name: member.join(settings) for name, member in members.items()}
    traffic = dict.fromkeys(clients, 0)
    silent: set[str] = set()
    told = dict.fromkeys(clients, b"")
    for step in Step:
        silent.update((dropouts or {}).get(step, ()))
        replies = {}
        for name in [name for name in told if name not in silent]:
            masked = step is Step.MASK
            values = grid.noisy(grid.encode(updates[name])) if masked else NO_VALUES
            replies[name] = clients[name].answer(step, told[name], values)
            traffic[name] += len(told[name]) + len(replies[name])
        told = server.collect(step, replies)
    total = grid.decode(server.total, len(server.survivors))
    return Outcome(total, server.survivors, traffic)
