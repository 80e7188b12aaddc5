"""The terms that all parties of a round agree on before it begins, and the keys and masks that follow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from pacpfl.errors import InputError
from pacpfl.secagg import wire
from pacpfl.secagg.primitives import KEY_BYTES, derive, digest, exchange, expand

Adversary = Literal["active", "curious"]

PROTOCOL = b"pacpfl secure aggregation 1"
SESSION_BYTES = 16
MOST_DIMENSIONS = 2**31
MOST_TERMS = 2**16


def smallest_threshold(clients: int, adversary: Adversary) -> int:
    """Return the fewest survivors: more than 2n/3 against an active server, n/2 against a curious one."""
    return 2 * clients // 3 + 1 if adversary == "active" else clients // 2 + 1


@dataclass(frozen=True)
class Settings:
    """One round of one session.

    `cohort` holds the invited clients in order of their names, each with its Ed25519 identity, known
    beforehand (n = len(cohort) counts all of them, whether or not they answer). `threshold` is how many
    must survive. `terms` is anything else that all must agree on, such as the grid and the noise.
    """

    session: bytes
    round: int
    cohort: tuple[tuple[str, bytes], ...]
    threshold: int
    dimension: int
    bits: int = 64
    adversary: Adversary = "active"
    terms: bytes = b""

    def __post_init__(self) -> None:
        for problem in self._problems():
            raise InputError(problem)

    def _problems(self) -> Iterator[str]:
        yield from self._problems_of_cohort()
        if len(self.session) != SESSION_BYTES:
            yield (
                f"A session is {SESSION_BYTES} random bytes, not {len(self.session)}: draw it with "
                "secrets.token_bytes."
            )
        if not 0 <= self.round < 2**63:
            yield f"The round of a secure aggregation is {self.round}: count from 0."
        if self.adversary not in ("active", "curious"):
            yield f"The adversary is {self.adversary!r}: choose 'active' or 'curious'."
        n, least = len(self.cohort), smallest_threshold(len(self.cohort), self.adversary)
        if not least <= self.threshold <= n:
            share = "2/3" if self.adversary == "active" else "1/2"
            yield (
                f"A threshold of {self.threshold} survivors among {n} clients is not safe against an "
                f"{self.adversary} server: choose {least} to {n}, which is more than {share} of them."
            )
        if not 1 <= self.dimension <= MOST_DIMENSIONS:
            yield f"The dimension of a sum is {self.dimension}: choose 1 to {MOST_DIMENSIONS}."
        if self.bits not in (32, 64):
            yield f"The modulus of a secure aggregation has {self.bits} bits: take 32 or 64."
        if len(self.terms) > MOST_TERMS:
            yield f"The terms of a secure aggregation are longer than {MOST_TERMS} bytes."

    def _problems_of_cohort(self) -> Iterator[str]:
        names, identities = [n for n, _ in self.cohort], [key for _, key in self.cohort]
        if not 2 <= len(names) <= wire.MOST_CLIENTS:
            yield (
                f"A secure aggregation has 2 to {wire.MOST_CLIENTS} clients, not {len(names)}: "
                "the sum of one update is the update itself."
            )
        if names != sorted(set(names)):
            yield "The clients of a secure aggregation are not sorted, or one is there twice."
        for name, identity in self.cohort:
            if not 1 <= len(name.encode("utf-8")) <= wire.NAME_BYTES:
                yield f"The name {name!r} is empty or too long: give 1 to {wire.NAME_BYTES} bytes."
            if len(identity) != KEY_BYTES:
                yield (
                    f"The identity of {name!r} has {len(identity)} bytes: give its Ed25519 public "
                    f"key of {KEY_BYTES}."
                )
        if len(set(identities)) < len(identities):
            yield "Two clients of a secure aggregation have the same identity: give each its own."

    @cached_property
    def context(self) -> bytes:
        """Return a digest of all of the above; it stands in every signature and every derived key."""
        return digest(
            PROTOCOL,
            self.session,
            wire.number(self.round, 8),
            wire.number(self.threshold),
            wire.number(self.dimension, 8),
            wire.number(self.bits, 1),
            self.adversary.encode(),
            self.terms,
            *(part for name, key in self.cohort for part in (name.encode("utf-8"), key)),
        )

    @cached_property
    def identities(self) -> dict[str, bytes]:
        return dict(self.cohort)

    @cached_property
    def numbers(self) -> dict[str, int]:
        """Return the number under which each client holds shares: its place in the cohort, from 1."""
        return {name: place for place, (name, _) in enumerate(self.cohort, start=1)}

    @property
    def tolerated(self) -> int:
        """Count the clients that may plot with a lying server: 2t - n - 1.

        Two sets of t signers share 2t - n clients. As long as one of these is honest, and an honest
        client signs once, no two sets of survivors can both be signed.
        """
        return 2 * self.threshold - len(self.cohort) - 1

    def self_mask(self, name: str, seed: bytes) -> np.ndarray:
        """Return the mask that a client adds to its own update, from its seed b."""
        key = derive(seed, self.context, b"mask of one" + wire.name(name))
        return expand(key, self.dimension, self.bits)

    def pair_mask(self, name: str, peer: str, private: bytes, peer_public: bytes) -> np.ndarray:
        """Return what `name` adds for `peer`, who adds its negative modulo 2^bits for `name`.

        The smaller of the two names adds the stream, the larger one subtracts it.
        """
        low, high = sorted((name, peer))
        info = b"mask of a pair" + wire.name(low) + wire.name(high)
        key = derive(exchange(private, peer_public), self.context, info)
        mask = expand(key, self.dimension, self.bits)
        return mask if name == low else -mask

    def share_key(self, dealer: str, receiver: str, private: bytes, public: bytes) -> bytes:
        """Return the key that seals the shares from one dealer to one receiver."""
        info = b"shares" + wire.name(dealer) + wire.name(receiver)
        return derive(exchange(private, public), self.context, info)

    def share_label(self, dealer: str, receiver: str) -> bytes:
        """Return what is authenticated along with sealed shares."""
        return self.context + wire.name(dealer) + wire.name(receiver)

    def seed_commitment(self, name: str, seed: bytes) -> bytes:
        """Return a digest by which the server knows the right seed when it is put together."""
        return digest(b"seed", self.context, name.encode("utf-8"), seed)

    def share_digest(self, kind: str, dealer: str, holder: str, share: bytes) -> bytes:
        """Return a digest by which a share of the dealer's `seed` or `key` is known again."""
        names = (dealer.encode("utf-8"), holder.encode("utf-8"))
        return digest(b"share", kind.encode(), self.context, *names, share)
