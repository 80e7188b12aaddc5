"""The server's side of a secure round: five exchanges, after which it knows a sum and nothing else.

Who does not answer a step, or not as the protocol says, has dropped out; the others go on as long as they
are enough. With too few the round is abandoned, nothing is revealed, and the segment asks for it anew
among those who are left. Inboxes travel in one message to all: they are sealed.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from pacpfl.errors import SecureAggregationError
from pacpfl.secagg.server import Server
from pacpfl.sites import wire
from pacpfl.sites.gather import Gathered, accepted
from pacpfl.sites.opening import Opening
from pacpfl.sites.secure_site import INBOX, MESSAGE
from pacpfl.sites.secure_terms import SESSION_BYTES, Agreed, from_row
from pacpfl.sites.wire import Refused

ENVELOPE_BYTES = 2**10  # name, lengths and signature around a payload


class Summed(NamedTuple):
    """The result of a round."""

    total: np.ndarray | None  # [d] over the survivors' clients; None: abandoned
    survivors: tuple[str, ...]
    missing: list[str]
    refused: dict[str, str]
    sent: int
    received: int
    traces: int


class SecureRounds:
    """A session of the protocol: the rounds of one segment."""

    def __init__(self, opening: Opening, agreed: Agreed) -> None:
        self.opening, self.agreed = opening, agreed
        self._session = secrets.token_bytes(SESSION_BYTES)
        self._attempts = 0

    def run(
        self,
        state: dict[str, np.ndarray],
        number: int,
        saved: int,
        take: Mapping[str, list[list[int]]],
        clients: Callable[[Collection[str]], int],
        before_reveal: Callable[[], None],
    ) -> Summed:
        """Run one attempt at a round.

        `take` are the sites with their clients, as in plain rounds; `clients` counts sites' clients.
        """
        attempt = _Attempt(self.opening, number, self._attempts, self._session, sorted(take))
        self._attempts += 1
        identities = {site: self.opening.identities[site] for site in take}
        server = Server(self.agreed.settings(self._session, attempt.attempt, identities))
        total = None
        # Keys and sealed shares of everybody; masked updates; never more.
        small = ENVELOPE_BYTES * (len(take) + 1)
        large = small + 8 * self.agreed.grid.dimension
        try:
            replies = attempt.ask("advertise", take, state, small, saved=saved, take=dict(take))
            keys = server.collect_keys(replies)
            replies = attempt.ask("share", replies, _broadcast(keys), small)
            inboxes = server.collect_shares(replies)
            sealed = wire.from_messages({INBOX + site: box for site, box in inboxes.items()})
            replies = attempt.ask("mask", inboxes, sealed, large)
            named = server.collect_masked(replies)
            replies = attempt.ask("agree", server.survivors, _broadcast(named), small)
            signatures = server.collect_signatures(replies)
            before_reveal()
            replies = attempt.ask("reveal", replies, _broadcast(signatures), small)
            integers = server.unmask(replies)
            total = self.agreed.grid.decode(integers, clients(server.survivors))
        except SecureAggregationError as error:
            self.opening.exchange.note(str(error))
            if not (attempt.missing or attempt.refused or server.refused):
                raise  # nobody to leave out: the next attempt would end the same way
        refused = server.refused | attempt.refused
        missing = sorted(attempt.missing - refused.keys())
        survivors = server.survivors if total is not None else ()
        return Summed(
            total, survivors, missing, refused, attempt.sent, attempt.received, attempt.traces
        )


def shared_out(
    summed: Summed, numbers: Mapping[str, list[int]], pattern: PyTree, n: int, dtype: type
) -> Gathered:
    """Return a round as the engine knows it: each client in the sum is given the mean (secure_terms)."""
    gathered = Gathered.nobody(pattern, n, dtype)
    clients = sorted(number for site in summed.survivors for number in numbers[site])
    if summed.total is not None:
        mean = from_row(summed.total / len(clients), pattern)
        for whole, part in zip(
            jax.tree.leaves(gathered.updates), jax.tree.leaves(mean), strict=True
        ):
            whole[clients] = part
        gathered.weights[clients] = 1
    return gathered._replace(
        clients=clients,
        answered=list(summed.survivors),
        missing=summed.missing,
        refused=summed.refused,
        enough=summed.total is not None,
        sent=summed.sent,
        received=summed.received,
        traces=summed.traces,
    )


class _Attempt:
    """Messages of one attempt at a round, and who failed to answer them."""

    def __init__(
        self, opening: Opening, number: int, attempt: int, session: bytes, cohort: list[str]
    ) -> None:
        self.opening, self.number, self.attempt = opening, number, attempt
        self._fixed = {"round": number, "attempt": attempt, "session": session.hex()}
        self._fixed["cohort"] = cohort
        self.missing: set[str] = set()
        self.refused: dict[str, str] = {}
        self.sent = self.received = self.traces = 0

    def ask(
        self,
        step: str,
        sites: Collection[str],
        params: dict[str, np.ndarray],
        most: int,
        **more: Any,
    ) -> dict[str, bytes]:
        """Return the sites' messages of a step, by site; the protocol checks them."""
        text = self.opening.about("secure", step=step, **self._fixed, **more)
        asked = sorted(sites)
        deadline = self.opening.terms.deadline
        self.sent += len(asked) * wire.size(params)
        messages: dict[str, bytes] = {}
        for reply in self.opening.exchange.ask(asked, params, text, deadline):
            site = reply.site
            if site not in asked or site in messages or site in self.refused:
                continue
            try:
                about = accepted(reply)
                if (about.get("round"), about.get("step")) != (self.number, step):
                    raise Refused(f"it did not answer step {step} of round {self.number}")
                messages[site] = wire.to_messages(reply.params, (MESSAGE,), most)[MESSAGE]
                self.received += wire.size(reply.params)
                count = about.get("traces")
                self.traces = max(self.traces, count if type(count) is int else 0)
            except Refused as error:
                self.refused[site] = str(error)
        self.missing |= set(asked) - messages.keys() - self.refused.keys()
        return messages


def _broadcast(message: bytes) -> dict[str, np.ndarray]:
    return wire.from_messages({MESSAGE: message})
