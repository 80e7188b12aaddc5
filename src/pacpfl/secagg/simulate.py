"""A whole round with all parties in one process: for tests, the documentation and trying out settings."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import numpy as np

from pacpfl.errors import InputError
from pacpfl.secagg.client import Client, Member
from pacpfl.secagg.grid import Grid, sample
from pacpfl.secagg.messages import Step
from pacpfl.secagg.primitives import KEY_BYTES, signing_public
from pacpfl.secagg.server import Server
from pacpfl.secagg.settings import SESSION_BYTES, Adversary, Settings


class Outcome(NamedTuple):
    """The sum over the survivors, who they are, and what each client sent and received in all."""

    total: np.ndarray
    survivors: tuple[str, ...]
    bytes_per_client: dict[str, int]


def make_members(names: Collection[str], adversary: Adversary = "active") -> dict[str, Member]:
    """Make members with new identities who know each other."""
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
    settings = Settings(
        session=secrets.token_bytes(SESSION_BYTES),
        round=0,
        cohort=tuple((name, member.known[name]) for name, member in members.items()),
        threshold=threshold,
        dimension=grid.dimension,
        bits=grid.bits,
        adversary=adversary,
        terms=grid.terms,
    )
    server = Server(settings)
    clients = {name: member.join(settings) for name, member in members.items()}
    traffic = dict.fromkeys(clients, 0)
    silent: set[str] = set()

    def ask(
        step: Step, messages: Mapping[str, bytes], answer: Callable[[Client, bytes], bytes]
    ) -> dict[str, bytes]:
        silent.update((dropouts or {}).get(step, ()))
        replies = {}
        for name, message in messages.items():
            if name not in silent:
                replies[name] = answer(clients[name], message)
                traffic[name] += len(message) + len(replies[name])
        return replies

    def masked(client: Client, inbox: bytes) -> bytes:
        values = grid.encode(updates[client.name])
        if grid.noise:
            values = values + sample(grid.noise, grid.dimension)
        return client.mask(inbox, values)

    replies = ask(Step.ADVERTISE, dict.fromkeys(clients, b""), lambda client, _: client.advertise())
    keys = server.collect_keys(replies)
    inboxes = server.collect_shares(ask(Step.SHARE, dict.fromkeys(replies, keys), Client.share))
    replies = ask(Step.MASK, inboxes, masked)
    named = server.collect_masked(replies)
    replies = ask(Step.AGREE, dict.fromkeys(replies, named), Client.agree)
    signatures = server.collect_signatures(replies)
    replies = ask(Step.REVEAL, dict.fromkeys(replies, signatures), Client.reveal)
    total = grid.decode(server.unmask(replies), len(server.survivors))
    return Outcome(total, server.survivors, traffic)
