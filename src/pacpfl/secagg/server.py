"""The server's side of a round: one method per step, each given the clients' answers to the last one.

Answers come as bytes by the name under which the channel knows the client. One that cannot be read, is
not signed for this round and step, or breaks the protocol counts as no answer, and `refused` says why:
that client has dropped out, and the others go on. With fewer than `threshold` left the round is abandoned.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

import numpy as np

from pacpfl.errors import SecureAggregationError
from pacpfl.secagg import primitives
from pacpfl.secagg.messages import (
    Advertisement,
    Envelope,
    KeyList,
    Revealed,
    SealedShares,
    ShareList,
    Signatures,
    Step,
    Survivors,
)
from pacpfl.secagg.primitives import exchange_public
from pacpfl.secagg.settings import Settings

Content = TypeVar("Content")


class Server:
    """The server in one round. It learns the sum over the survivors, and nothing else."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.refused: dict[str, str] = {}
        self.survivors: tuple[str, ...] = ()
        self._advertised: dict[str, Advertisement] = {}
        self._dealt: dict[str, ShareList] = {}
        self._signers: tuple[str, ...] = ()
        self._next: Step | None = Step.ADVERTISE

    def _collect(
        self,
        step: Step,
        replies: Mapping[str, bytes],
        expected: Collection[str],
        read: Callable[[str, bytes], Content],
    ) -> dict[str, tuple[Envelope, Content]]:
        """Return the valid answers, sorted by name; abandon the round when they are too few."""
        if self._next is not step:
            raise SecureAggregationError(
                f"The server collects step {step.name.lower()} out of turn: start a new round."
            )
        self._next = None
        valid = {}
        for name in sorted(replies):
            try:
                if name not in expected:
                    raise SecureAggregationError(
                        f"{name!r} has dropped out or was not invited, and answers all the same."
                    )
                envelope = Envelope.decode(replies[name])
                if envelope.sender != name:
                    raise SecureAggregationError(f"{name!r} sent a message of {envelope.sender!r}.")
                envelope.check(self.settings, step)
                valid[name] = envelope, read(name, envelope.payload)
            except SecureAggregationError as refusal:
                self.refused.setdefault(name, str(refusal))  # the first reason is the cause
        if len(valid) < self.settings.threshold:
            raise self._abandoned(step, valid)
        self._next = None if step is Step.REVEAL else Step(step + 1)
        return valid

    def _abandoned(self, step: Step, present: Collection[str]) -> SecureAggregationError:
        missing = ", ".join(
            f"{name} ({self.refused[name]})" if name in self.refused else name
            for name, _ in self.settings.cohort
            if name not in present
        )
        return SecureAggregationError(
            f"Round {self.settings.round} is abandoned in step {step.name.lower()} and nothing is "
            f"revealed: {len(present)} of {len(self.settings.cohort)} clients are left, "
            f"{self.settings.threshold} are needed; missing: {missing}."
        )

    def collect_keys(self, replies: Mapping[str, bytes]) -> bytes:
        """After step 1: return the signed keys of U1, for everybody in it."""
        valid = self._collect(
            Step.ADVERTISE,
            replies,
            self.settings.identities,
            lambda name, payload: Advertisement.decode(payload),
        )
        self._advertised = {name: found for name, (_, found) in valid.items()}
        return KeyList(tuple(envelope for envelope, _ in valid.values())).encode()

    def collect_shares(self, replies: Mapping[str, bytes]) -> dict[str, bytes]:
        """After step 2: return for each client of U2, the shares that all of U2 sealed for it."""

        def read(name: str, payload: bytes) -> ShareList:
            dealt = ShareList.decode(payload)
            if [item.peer for item in dealt.items] != list(self._advertised):
                raise SecureAggregationError(f"{name!r} did not deal one share to each client.")
            return dealt

        valid = self._collect(Step.SHARE, replies, self._advertised, read)
        self._dealt = {name: found for name, (_, found) in valid.items()}
        self._places = {name: place for place, name in enumerate(self._advertised)}
        return {
            receiver: ShareList(
                tuple(
                    _from(dealer, dealt, self._places[receiver])
                    for dealer, dealt in self._dealt.items()
                )
            ).encode()
            for receiver in self._dealt
        }

    def collect_masked(self, replies: Mapping[str, bytes]) -> bytes:
        """After step 3: return the names of the survivors, U3; keep the sum of masked updates only."""
        settings = self.settings
        size = settings.dimension * settings.bits // 8

        def read(name: str, payload: bytes) -> np.ndarray:
            if len(payload) != size:
                raise SecureAggregationError(
                    f"{name!r} sent a masked update of {len(payload)} bytes instead of {size}."
                )
            return np.frombuffer(payload, dtype=f"<u{settings.bits // 8}")

        valid = self._collect(Step.MASK, replies, self._dealt, read)
        self.survivors = tuple(valid)
        self._total = np.zeros(settings.dimension, dtype=f"u{settings.bits // 8}")
        for _, masked in valid.values():
            self._total += masked
        return Survivors(self.survivors).encode()

    def collect_signatures(self, replies: Mapping[str, bytes]) -> bytes:
        """After step 4: return the signatures of the survivors under their own names."""

        def read(name: str, payload: bytes) -> None:
            if payload != Survivors(self.survivors).encode():
                raise SecureAggregationError(f"{name!r} signed other survivors.")

        valid = self._collect(Step.AGREE, replies, self.survivors, read)
        self._signers = tuple(valid)
        return Signatures(
            tuple((name, envelope.signature) for name, (envelope, _) in valid.items())
        ).encode()

    def unmask(self, replies: Mapping[str, bytes]) -> np.ndarray:
        """After step 5: return the sum of the survivors' integers modulo 2^bits."""
        dropped = tuple(name for name in self._dealt if name not in self.survivors)

        def read(name: str, payload: bytes) -> dict[tuple[str, str], bytes]:
            revealed = Revealed.decode(payload)
            shares = {("seed", dealer): share for dealer, share in revealed.seeds}
            shares |= {("key", dealer): share for dealer, share in revealed.keys}
            asked = {("seed", dealer) for dealer in self.survivors}
            asked |= {("key", dealer) for dealer in dropped}
            if shares.keys() != asked:
                raise SecureAggregationError(
                    f"{name!r} did not reveal the shares that were asked for."
                )
            for (kind, dealer), share in shares.items():
                if self.settings.share_digest(kind, dealer, name, share) != self._digest(
                    kind, dealer, name
                ):
                    raise SecureAggregationError(f"{name!r} gave out a false share of {dealer!r}.")
            return shares

        valid = self._collect(Step.REVEAL, replies, self._signers, read)
        holders = list(valid)[: self.settings.threshold]
        numbers = self.settings.numbers
        at = primitives.share_weights([numbers[holder] for holder in holders])

        def secret(kind: str, dealer: str) -> bytes:
            shares = {numbers[holder]: valid[holder][1][kind, dealer] for holder in holders}
            return self._joined(kind, dealer, shares, at)

        total = self._total
        for name in self.survivors:
            total -= self.settings.self_mask(name, secret("seed", name))
        for name in dropped:
            private = secret("key", name)
            for survivor in self.survivors:
                # The survivor added the negative of what `name` would have added for it.
                public = self._advertised[survivor].mask_key
                total += self.settings.pair_mask(name, survivor, private, public)
        return total

    def _digest(self, kind: str, dealer: str, holder: str) -> bytes:
        item = self._dealt[dealer].items[self._places[holder]]
        return item.seed_digest if kind == "seed" else item.key_digest

    def _joined(
        self, kind: str, dealer: str, shares: Mapping[int, bytes], at: Mapping[int, int]
    ) -> bytes:
        """Return the seed or mask key that a client dealt; refuse one that it did not advertise."""
        advertised = self._advertised[dealer]
        secret = primitives.join_shares(shares, at)
        if kind == "seed":
            genuine = self.settings.seed_commitment(dealer, secret) == advertised.seed_commitment
        else:
            genuine = exchange_public(secret) == advertised.mask_key
        if not genuine:
            raise SecureAggregationError(
                f"Round {self.settings.round} is abandoned: the shares that {dealer!r} dealt are not "
                "those of the keys it advertised; leave it out of the next round."
            )
        return secret


def _from(dealer: str, dealt: ShareList, place: int) -> SealedShares:
    item = dealt.items[place]
    return SealedShares(dealer, item.sealed, item.seed_digest, item.key_digest)
