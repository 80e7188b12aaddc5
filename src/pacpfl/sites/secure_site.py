"""A site's part in secure rounds. Every request is one step of the protocol; who sends it is not trusted.

    advertise   a round's state and who takes part -> the updates are computed, new keys are shown
    share       everybody's keys                   -> sealed shares of this site's secrets
    mask        the shares for this site           -> the sum of its clients' updates under its masks
    agree       who survived                       -> this site's signature of that
    reveal      the signatures                     -> what takes the masks off the sum, and no more

The identity with which the site signs is drawn with this object and lives as long as its process; the
certificate of the site's kit vouches for it (secagg.certified), for this run alone.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from pacpfl.files import Facts
from pacpfl.methods.base import Method
from pacpfl.methods.transforms import Private
from pacpfl.secagg.certified import Passport, introduced
from pacpfl.secagg.client import Client, Member
from pacpfl.secagg.grid import sample
from pacpfl.secagg.primitives import KEY_BYTES, signing_public
from pacpfl.sites import wire
from pacpfl.sites.kits import check_name
from pacpfl.sites.limits import Tally
from pacpfl.sites.secure_terms import Agreed, accept
from pacpfl.sites.wire import Refused

MESSAGE, INBOX = "message", "inbox."  # names of arrays
MOST_BYTES = 2**24  # of a message to a site: keys or shares of thousands of sites
REVEALED = "revealed.json"


def known_as(authority: str, name: str, introduction: object, run: str) -> bytes:
    """Return the identity of a site for which a certificate of its name vouches in this run.

    The server's and the administrator's certificates bear names that no site can have.
    """
    check_name(name, "secure aggregation")
    return introduced(authority, name, introduction, run.encode())


class SecureSite:
    def __init__(self, name: str, folder: Path, passport: Passport, run: str) -> None:
        self.name, self.run = name, run
        self._authority = passport.authority
        self._identity = secrets.token_bytes(KEY_BYTES)
        public = signing_public(self._identity)
        self.introduction = passport.introduce(name, public, run.encode())
        self._agreed: Agreed | None = None
        self._member: Member | None = None
        self._client: Client | None = None
        self._last_rounds: dict[bytes, int] = {}
        self._values = np.zeros(0, np.int64)
        self._reveals = Tally(folder / REVEALED)
        self._most_reveals: int | None = None

    def begin(
        self, proposal: object, introductions: object, method: Method, dimension: int, clients: int
    ) -> None:
        """Agree to the terms, and to nobody whose certificate does not vouch for its identity."""
        self._agreed = accept(proposal, method, dimension, clients)
        if not isinstance(introductions, Mapping):
            raise Refused("nobody is introduced")
        identities = {
            str(peer): known_as(self._authority, str(peer), shown, self.run)
            for peer, shown in introductions.items()
        }
        # The server may ask to begin again, and still gets each attempt once.
        self._member = Member(self.name, self._identity, identities, last_rounds=self._last_rounds)
        self._client = None
        # A server that lies about what was abandoned could ask for sums that no ledger knows of.
        self._most_reveals = method.plan.rounds if isinstance(method, Private) else None

    def advertise(self, about: Facts, rows: np.ndarray) -> bytes:
        """Begin a round with the sum of the clients' updates, which are the `rows`."""
        agreed, member = self._agreed, self._member
        if agreed is None or member is None:
            raise Refused("a secure round was asked for before the run had begun")
        self._client = None
        self._check_reveals()
        self._values = np.sum([agreed.grid.encode(row) for row in rows], axis=0, dtype=np.int64)
        cohort = [str(peer) for peer in about["cohort"]]
        strangers = sorted(set(cohort) - member.known.keys())
        if strangers:
            raise Refused(f"the round invites {strangers}, who were not introduced")
        identities = {peer: member.known[peer] for peer in cohort}
        session, attempt = bytes.fromhex(about["session"]), about["attempt"]
        if type(attempt) is not int:
            raise Refused("an attempt at a round has a number")
        self._client = member.join(agreed.settings(session, attempt, identities))
        return self._client.advertise()

    def step(self, params: object, about: Facts) -> bytes:
        """Answer every step but the first."""
        client, name = self._client, about["step"]
        if client is None or about["attempt"] != client.settings.round:
            raise Refused(f"step {str(name)[:20]} belongs to no round that this site has joined")
        if name == "mask":
            return client.mask(self._inbox(params, client), self._noisy())
        steps = {"share": client.share, "agree": client.agree, "reveal": client.reveal}
        if name not in steps:
            raise Refused(f"there is no step {str(name)[:40]!r}")
        answer = steps[name](wire.to_messages(params, (MESSAGE,), MOST_BYTES)[MESSAGE])
        if name == "reveal" and self._most_reveals is not None:
            self._check_reveals()
            self._reveals.add(self.run)
        return answer

    def _inbox(self, params: object, client: Client) -> bytes:
        """Return this site's inbox; all come in one message, the others' are sealed."""
        possible = {INBOX + peer for peer, _ in client.settings.cohort}
        sent = possible & set(params) if isinstance(params, Mapping) else possible
        messages = wire.to_messages(params, sent, MOST_BYTES)
        if INBOX + self.name not in messages:
            raise Refused("the server sent no shares for this site")
        return messages[INBOX + self.name]

    def _noisy(self) -> np.ndarray:
        """Return the sum with this site's share of the noise, drawn for this one round."""
        assert self._agreed is not None
        grid = self._agreed.grid
        if not grid.noise:
            return self._values
        return self._values + sample(grid.noise, grid.dimension)

    def _check_reveals(self) -> None:
        most = self._most_reveals
        if most is not None and self._reveals.read()[self.run] >= most:
            raise Refused(
                f"the budget of this run is for {most} rounds, and this site has revealed as many"
            )


def read_passport(kit: Path) -> Passport | None:
    """Read the passport in a site's kit; None where its certificate is not there."""
    place = kit / "startup"
    try:
        return Passport(
            (place / "client.crt").read_text(),
            (place / "client.key").read_bytes(),
            (place / "rootCA.pem").read_text(),
        )
    except (OSError, UnicodeDecodeError):
        return None
