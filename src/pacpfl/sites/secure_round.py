"""The server's side of a secure round: five exchanges, after which it knows a sum and nothing else.

Who does not answer a step, or not as the protocol says, has dropped out; the others go on as long as they
are enough. With too few the round is abandoned, nothing is revealed, and the segment asks for it anew
among those who are left. Inboxes travel in one message to all: they are sealed.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import numpy as np

from pacpfl.errors import SecureAggregationError
from pacpfl.files import Facts
from pacpfl.secagg.server import Server
from pacpfl.secagg.settings import SESSION_BYTES
from pacpfl.sites import wire
from pacpfl.sites.gather import Inquiry
from pacpfl.sites.opening import Opening
from pacpfl.sites.secure_site import INBOX, MESSAGE
from pacpfl.sites.secure_terms import Agreed
from pacpfl.sites.terms import Reply
from pacpfl.sites.wire import Refused

ENVELOPE_BYTES = 2**10  # name, lengths and signature around a payload


class Summed(NamedTuple):
    """The result of an attempt at a round."""

    total: np.ndarray | None  # [d] over the survivors' clients; None: abandoned
    survivors: tuple[str, ...]
    inquiry: Inquiry


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
        before_reveal: Callable[[], None],
    ) -> Summed:
        """Run one attempt at a round; `take` are the sites with their clients, as in plain rounds."""
        attempt, inquiry = self._attempts, Inquiry(self.opening.exchange)
        self._attempts += 1
        session = self._session.hex()
        fixed = {"round": number, "attempt": attempt, "session": session, "cohort": sorted(take)}

        def ask(
            step: str,
            sites: Collection[str],
            params: dict[str, np.ndarray],
            most: int,
            **more: Any,
        ) -> dict[str, bytes]:
            """Return the sites' messages of a step, by site; the protocol checks them."""

            def read(reply: Reply, about: Facts) -> bytes:
                if (about.get("round"), about.get("step")) != (number, step):
                    raise Refused(f"it did not answer step {step} of round {number}")
                return wire.to_messages(reply.params, (MESSAGE,), most)[MESSAGE]

            text = self.opening.about("secure", step=step, **fixed, **more)
            return inquiry.ask(sites, params, text, self.opening.terms.deadline, read)

        identities = {site: self.opening.identities[site] for site in take}
        server = Server(self.agreed.settings(self._session, attempt, identities))
        total = None
        # Keys and sealed shares of everybody; masked updates; never more.
        small = ENVELOPE_BYTES * (len(take) + 1)
        large = small + 8 * self.agreed.grid.dimension
        try:
            replies = ask("advertise", take, state, small, saved=saved, take=dict(take))
            keys = server.collect_keys(replies)
            replies = ask("share", replies, _broadcast(keys), small)
            inboxes = server.collect_shares(replies)
            sealed = wire.from_messages({INBOX + site: box for site, box in inboxes.items()})
            replies = ask("mask", inboxes, sealed, large)
            named = server.collect_masked(replies)
            replies = ask("agree", server.survivors, _broadcast(named), small)
            signatures = server.collect_signatures(replies)
            before_reveal()
            replies = ask("reveal", replies, _broadcast(signatures), small)
            clients = sum(len(take[site]) for site in server.survivors)
            total = self.agreed.grid.decode(server.unmask(replies), clients)
        except SecureAggregationError as error:
            self.opening.exchange.note(str(error))
            if not (inquiry.missing or inquiry.refused or server.refused):
                raise  # nobody to leave out: the next attempt would end the same way
        inquiry.refused = server.refused | inquiry.refused
        inquiry.missing.difference_update(inquiry.refused)
        return Summed(total, server.survivors if total is not None else (), inquiry)


def _broadcast(message: bytes) -> dict[str, np.ndarray]:
    return wire.from_messages({MESSAGE: message})
