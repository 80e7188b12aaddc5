"""What travels: frozen records of bytes, each with `encode` and a strict `decode`.

Clients send `Envelope`s: a payload, signed together with the round's context, the step and the sender.
The server sends the other lists, unsigned, since clients take nothing on its word.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

from pacpfl.errors import SecureAggregationError
from pacpfl.secagg import wire
from pacpfl.secagg.primitives import (
    DIGEST_BYTES,
    KEY_BYTES,
    SEAL_BYTES,
    SHARE_BYTES,
    SIGNATURE_BYTES,
    is_signed,
    sign,
)
from pacpfl.secagg.settings import MOST_DIMENSIONS, PROTOCOL, Settings
from pacpfl.secagg.wire import NAME, Message, Part, ascending, fixed, named

SEALED_BYTES = 2 * SHARE_BYTES + SEAL_BYTES
MOST_PAYLOAD = 8 * MOST_DIMENSIONS


class Step(IntEnum):
    """The steps of a round, in order; each is one message of every client."""

    ADVERTISE = 1
    SHARE = 2
    MASK = 3
    AGREE = 4
    REVEAL = 5


def _step(reader: wire.Reader) -> Step:
    step = reader.number(1)
    if step not in set(Step):
        raise SecureAggregationError(f"A message is of step {step}, which there is not.")
    return Step(step)


@dataclass(frozen=True)
class Envelope(Message):
    step: Step
    sender: str
    payload: bytes
    signature: bytes = b""
    parts = (
        Part(lambda step: wire.number(step, 1), _step),
        NAME,
        wire.up_to(MOST_PAYLOAD),
        fixed(SIGNATURE_BYTES),
    )

    def signed(self, settings: Settings, identity: bytes) -> Envelope:
        return replace(self, signature=sign(identity, self._text(settings)))

    def is_genuine(self, settings: Settings) -> bool:
        """Tell whether its sender, who is invited, signed it for this round."""
        return is_signed(settings.identities[self.sender], self.signature, self._text(settings))

    def _text(self, settings: Settings) -> bytes:
        return PROTOCOL + settings.context + replace(self, signature=b"").encode()

    def check(self, settings: Settings, step: Step) -> None:
        """Refuse it unless it is of this step and its sender signed it for this round."""
        if self.step is not step:
            raise SecureAggregationError(
                f"{self.sender!r} sent a message of step {self.step.name.lower()} "
                f"in step {step.name.lower()}."
            )
        if self.sender not in settings.identities:
            raise SecureAggregationError(f"{self.sender!r} is not invited to this round.")
        if not self.is_genuine(settings):
            raise SecureAggregationError(
                f"The signature of {self.sender!r} is not valid for this session, round and step."
            )


@dataclass(frozen=True)
class Advertisement(Message):
    """A client's public keys for this round, and a commitment to the seed of its own mask."""

    mask_key: bytes
    share_key: bytes
    seed_commitment: bytes
    parts = (fixed(KEY_BYTES), fixed(KEY_BYTES), fixed(DIGEST_BYTES))


@dataclass(frozen=True)
class SealedShares(Message):
    """One dealer's two shares for one receiver, sealed, and a digest of each.

    `peer` is the receiver on the way to the server, the dealer on the way from it. By the digests the
    server tells a holder who later gives out a false share.
    """

    peer: str
    sealed: bytes
    seed_digest: bytes
    key_digest: bytes
    parts = (NAME, fixed(SEALED_BYTES), fixed(DIGEST_BYTES), fixed(DIGEST_BYTES))


# Lists in order of names: the advertisements of all who sent one, as they signed them; all that one
# client sends (or is sent) in step `share`; whose masked updates the server holds, which clients sign
# as these very bytes; who signed the survivors, with the signatures.
KEYS = ascending(Part(Envelope.encode, Envelope.read), lambda envelope: envelope.sender)
SHARES = ascending(Part(SealedShares.encode, SealedShares.read), lambda item: item.peer)
SURVIVORS = ascending(NAME, str)
SIGNATURES = ascending(named(SIGNATURE_BYTES), lambda item: item[0])


@dataclass(frozen=True)
class Revealed(Message):
    """One holder's shares: of the seed of every survivor, of the mask key of everybody else."""

    seeds: tuple[tuple[str, bytes], ...]
    keys: tuple[tuple[str, bytes], ...]
    parts = 2 * (ascending(named(SHARE_BYTES), lambda item: item[0]),)
