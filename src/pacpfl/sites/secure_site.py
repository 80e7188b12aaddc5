"""A site's part in secure rounds. Every request is one step of the protocol; who sends it is not trusted.

The first brings a round's state and who takes part: the updates are computed, and stay here.
The identity with which the site signs is drawn with this object and lives as long as its process; the
certificate of the site's kit vouches for it (secagg.certified), for this run alone.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from pacpfl.files import Facts
from pacpfl.methods.base import Method
from pacpfl.methods.transforms import Private
from pacpfl.secagg.certified import Passport, introduced
from pacpfl.secagg.client import Client, Member
from pacpfl.secagg.messages import Step
from pacpfl.secagg.primitives import KEY_BYTES, signing_public
from pacpfl.sites import wire
from pacpfl.sites.kits import check_name
from pacpfl.sites.limits import Tally
from pacpfl.sites.secure import accept
from pacpfl.sites.wire import INBOX, MESSAGE, Refused, refusing

MOST_BYTES = 2**24  # of a message to a site: keys or shares of thousands of sites
REVEALED = "revealed.json"
STEPS = {step.name.lower(): step for step in Step}


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
        self._client: Client | None = None
        self._last_rounds: dict[bytes, int] = {}
        self._reveals = Tally(folder / REVEALED)

    def begin(
        self,
        proposal: object,
        introductions: object,
        method: Method,
        dimension: int,
        clients: int,
        contract: bytes = b"",
    ) -> None:
        """Agree to the terms, and to nobody whose certificate does not vouch for its identity."""
        self._agreed = replace(accept(proposal, method, dimension, clients), contract=contract)
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

    def advertise(self, about: Facts, state: Mapping[str, np.ndarray], rows: np.ndarray) -> bytes:
        """Begin a round with the sum of the clients' updates, which are the `rows`, at this state."""
        self._client = None
        self._check_reveals()
        with refusing("update"):
            self._values = np.stack([self._agreed.grid.encode(row) for row in rows]).sum(0)
        known, cohort = self._member.known, [str(peer) for peer in about["cohort"]]
        if strangers := sorted(set(cohort) - known.keys()):
            raise Refused(f"the round invites {strangers}, who were not introduced")
        session, attempt = bytes.fromhex(about["session"]), about["attempt"]
        if type(attempt) is not int:
            raise Refused("an attempt at a round has a number")
        identities = {peer: known[peer] for peer in cohort}
        seen = wire.fingerprint({"round": about["round"], "take": about["take"]}, state)
        self._client = self._member.join(self._agreed.settings(session, attempt, identities, seen))
        return self._client.answer(Step.ADVERTISE)

    def step(self, params: object, about: Facts) -> bytes:
        """Answer every step but the first."""
        client, name = self._client, about["step"]
        if client is None or about["attempt"] != client.settings.round:
            raise Refused(f"step {str(name)[:20]} belongs to no round that this site has joined")
        if name not in STEPS:
            raise Refused(f"there is no step {str(name)[:40]!r}")
        if name == "mask":
            # All inboxes come in one message; the others' are sealed.
            own = INBOX + self.name
            if not isinstance(params, Mapping) or own not in params:
                raise Refused("the server sent no shares for this site")
            inbox = wire.to_message({own: params[own]}, own, MOST_BYTES)
            return client.answer(Step.MASK, inbox, self._agreed.grid.noisy(self._values))
        answer = client.answer(STEPS[name], wire.to_message(params, MESSAGE, MOST_BYTES))
        if name == "reveal" and self._most_reveals is not None:
            self._check_reveals()
            self._reveals.add(self.run)
        return answer

    def _check_reveals(self) -> None:
        most = self._most_reveals
        if most is not None and self._reveals.read()[self.run] >= most:
            raise Refused(
                f"the budget of this run is for {most} rounds, and this site has revealed as many",
                "budget",
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
