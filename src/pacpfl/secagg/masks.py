"""Keys and masks of a round: who can derive which, and with which sign a mask counts."""

from __future__ import annotations

import numpy as np

from pacpfl.secagg import wire
from pacpfl.secagg.primitives import derive, digest, exchange, expand
from pacpfl.secagg.settings import Settings


def self_mask(settings: Settings, name: str, seed: bytes) -> np.ndarray:
    """The mask that a client adds to its own update, from its seed b."""
    key = derive(seed, settings.context, b"mask of one" + wire.name(name))
    return expand(key, settings.dimension, settings.bits)


def pair_mask(
    settings: Settings, name: str, peer: str, private: bytes, peer_public: bytes
) -> np.ndarray:
    """What `name` adds for `peer`; what `peer` adds for `name` is its negative modulo 2^bits.

    The smaller of the two names adds the stream, the larger one subtracts it.
    """
    low, high = sorted((name, peer))
    secret = exchange(private, peer_public)
    info = b"mask of a pair" + wire.name(low) + wire.name(high)
    mask = expand(derive(secret, settings.context, info), settings.dimension, settings.bits)
    return mask if name == low else -mask


def share_key(
    settings: Settings, dealer: str, receiver: str, private: bytes, public: bytes
) -> bytes:
    """The key that seals the shares from one dealer to one receiver, for this round alone."""
    info = b"shares" + wire.name(dealer) + wire.name(receiver)
    return derive(exchange(private, public), settings.context, info)


def share_label(settings: Settings, dealer: str, receiver: str) -> bytes:
    """What is authenticated along with sealed shares."""
    return settings.context + wire.name(dealer) + wire.name(receiver)


def seed_commitment(settings: Settings, name: str, seed: bytes) -> bytes:
    """A digest by which the server knows the right seed when it is put together."""
    return digest(b"seed", settings.context, name.encode("utf-8"), seed)


def share_digest(kind: str, settings: Settings, dealer: str, holder: str, share: bytes) -> bytes:
    """A digest by which a share of the dealer's `seed` or `key` is known again."""
    names = (dealer.encode("utf-8"), holder.encode("utf-8"))
    return digest(b"share", kind.encode(), settings.context, *names, share)
