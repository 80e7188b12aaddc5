"""What travels: frozen records of bytes, each with `encode` and a strict `decode`.

Clients send `Envelope`s: a payload, signed together with the round's context, the step and the sender.
The server sends the other lists, unsigned, since clients take nothing on its word.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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
from pacpfl.secagg.settings import MOST_CLIENTS, MOST_DIMENSIONS, PROTOCOL, Settings

SEALED_BYTES = 2 * SHARE_BYTES + SEAL_BYTES
MOST_PAYLOAD = 8 * MOST_DIMENSIONS


class Step(IntEnum):
    """The steps of a round, in order; each is one message of every client."""

    ADVERTISE = 1
    SHARE = 2
    MASK = 3
    AGREE = 4
    REVEAL = 5


def signed_text(context: bytes, step: Step, sender: str, payload: bytes) -> bytes:
    return PROTOCOL + context + wire.number(step, 1) + wire.name(sender) + wire.block(payload)


@dataclass(frozen=True)
class Envelope:
    """A client's message of one step."""

    step: Step
    sender: str
    payload: bytes
    signature: bytes

    @classmethod
    def of(
        cls, settings: Settings, step: Step, sender: str, payload: bytes, identity: bytes
    ) -> Envelope:
        text = signed_text(settings.context, step, sender, payload)
        return cls(step, sender, payload, sign(identity, text))

    def encode(self) -> bytes:
        return (
            wire.number(self.step, 1)
            + wire.name(self.sender)
            + wire.block(self.payload)
            + self.signature
        )

    @classmethod
    def read(cls, reader: wire.Reader) -> Envelope:
        step = reader.number(1)
        if step not in set(Step):
            raise SecureAggregationError(f"A message is of step {step}, which there is not.")
        return cls(
            Step(step), reader.name(), reader.block(MOST_PAYLOAD), reader.fixed(SIGNATURE_BYTES)
        )

    @classmethod
    def decode(cls, data: bytes) -> Envelope:
        return wire.whole(data, cls.read)

    def check(self, settings: Settings, step: Step) -> None:
        """Refuse it unless it is of this step and its sender signed it for this round."""
        if self.step is not step:
            raise SecureAggregationError(
                f"{self.sender!r} sent a message of step {self.step.name.lower()} "
                f"in step {step.name.lower()}."
            )
        identity = settings.identities.get(self.sender)
        if identity is None:
            raise SecureAggregationError(f"{self.sender!r} is not invited to this round.")
        text = signed_text(settings.context, step, self.sender, self.payload)
        if not is_signed(identity, self.signature, text):
            raise SecureAggregationError(
                f"The signature of {self.sender!r} is not valid for this session, round and step."
            )


@dataclass(frozen=True)
class Advertisement:
    """A client's public keys for this round, and a commitment to the seed of its own mask."""

    mask_key: bytes
    share_key: bytes
    seed_commitment: bytes

    def encode(self) -> bytes:
        return self.mask_key + self.share_key + self.seed_commitment

    @classmethod
    def decode(cls, data: bytes) -> Advertisement:
        sizes = (KEY_BYTES, KEY_BYTES, DIGEST_BYTES)
        return wire.whole(data, lambda reader: cls(*map(reader.fixed, sizes)))


@dataclass(frozen=True)
class SealedShares:
    """One dealer's two shares for one receiver, sealed, and a digest of each.

    `peer` is the receiver on the way to the server, the dealer on the way from it. By the digests the
    server tells a holder who later gives out a false share.
    """

    peer: str
    sealed: bytes
    seed_digest: bytes
    key_digest: bytes

    def encode(self) -> bytes:
        return wire.name(self.peer) + self.sealed + self.seed_digest + self.key_digest

    @classmethod
    def read(cls, reader: wire.Reader) -> SealedShares:
        return cls(
            reader.name(),
            reader.fixed(SEALED_BYTES),
            reader.fixed(DIGEST_BYTES),
            reader.fixed(DIGEST_BYTES),
        )


@dataclass(frozen=True)
class ShareList:
    """All that one client sends (or is sent) in step `share`, in order of the peers."""

    items: tuple[SealedShares, ...]

    def encode(self) -> bytes:
        return wire.sequence(item.encode() for item in self.items)

    @classmethod
    def decode(cls, data: bytes) -> ShareList:
        items = wire.whole(data, lambda r: r.sequence(SealedShares.read, MOST_CLIENTS))
        wire.ascending(item.peer for item in items)
        return cls(items)


@dataclass(frozen=True)
class KeyList:
    """The advertisements of all who sent one, as they signed them."""

    envelopes: tuple[Envelope, ...]

    def encode(self) -> bytes:
        return wire.sequence(envelope.encode() for envelope in self.envelopes)

    @classmethod
    def decode(cls, data: bytes) -> KeyList:
        envelopes = wire.whole(data, lambda r: r.sequence(Envelope.read, MOST_CLIENTS))
        wire.ascending(envelope.sender for envelope in envelopes)
        return cls(envelopes)


@dataclass(frozen=True)
class Survivors:
    """Whose masked updates the server holds; clients sign these very bytes."""

    names: tuple[str, ...]

    def encode(self) -> bytes:
        return wire.sequence(wire.name(name) for name in self.names)

    @classmethod
    def decode(cls, data: bytes) -> Survivors:
        names = wire.whole(data, lambda r: r.sequence(wire.Reader.name, MOST_CLIENTS))
        wire.ascending(names)
        return cls(names)


@dataclass(frozen=True)
class Signatures:
    """Who signed the survivors, with the signatures."""

    items: tuple[tuple[str, bytes], ...]

    def encode(self) -> bytes:
        return wire.sequence(wire.name(name) + signature for name, signature in self.items)

    @classmethod
    def decode(cls, data: bytes) -> Signatures:
        items = wire.whole(data, lambda r: r.sequence(_named(SIGNATURE_BYTES), MOST_CLIENTS))
        wire.ascending(name for name, _ in items)
        return cls(items)


@dataclass(frozen=True)
class Revealed:
    """One holder's shares: of the seed of every survivor, of the mask key of everybody else."""

    seeds: tuple[tuple[str, bytes], ...]
    keys: tuple[tuple[str, bytes], ...]

    def encode(self) -> bytes:
        return b"".join(
            wire.sequence(wire.name(name) + share for name, share in part)
            for part in (self.seeds, self.keys)
        )

    @classmethod
    def decode(cls, data: bytes) -> Revealed:
        shares = _named(SHARE_BYTES)
        both = wire.whole(data, lambda r: [r.sequence(shares, MOST_CLIENTS) for _ in range(2)])
        for part in both:
            wire.ascending(name for name, _ in part)
        return cls(*both)


def _named(size: int) -> Callable[[wire.Reader], tuple[str, bytes]]:
    """Return the reader of a name and so many bytes."""
    return lambda reader: (reader.name(), reader.fixed(size))
