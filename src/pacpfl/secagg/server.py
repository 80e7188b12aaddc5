"""The server's side of a round: one method per step, each given the clients' answers to the last one.

Answers come as bytes by the name under which the channel knows the client. One that cannot be read, is
not signed for this round and step, or breaks the protocol counts as no answer, and `refused` says why:
that client has dropped out, and the others go on. With fewer than `threshold` left the round is abandoned.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import TypeVar

import numpy as np

from pacpfl.errors import SecureAggregationError
from pacpfl.secagg import messages, primitives
from pacpfl.secagg.messages import Advertisement, Envelope, SealedShares, ShareList, Step, Survivors
from pacpfl.secagg.settings import Settings

Content = TypeVar("Content")


class Server:
    """The server in one round. It learns the sum over the survivors, and nothing else."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.refused: dict[str, str] = {}
        self.survivors: tuple[str, ...] = ()
        self._advertised: dict[str, Advertisement] = {}
        self._dealt: dict[str, dict[str, SealedShares]] = {}  # by dealer and holder
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
        why = {name: f" ({reason})" for name, reason in self.refused.items()}
        gone = [name for name in self.settings.identities if name not in present]
        missing = ", ".join(name + why.get(name, "") for name in gone)
        return SecureAggregationError(
            f"Round {self.settings.round} is abandoned in step {step.name.lower()} and nothing is "
            f"revealed: {len(present)} of {len(self.settings.cohort)} clients are left, "
            f"{self.settings.threshold} are needed; missing: {missing}."
        )

    def collect_keys(self, replies: Mapping[str, bytes]) -> bytes:
        """After step 1: return the signed keys of U1, for everybody in it."""

        def read(name: str, payload: bytes) -> Advertisement:
            return Advertisement.decode(payload)

        valid = self._collect(Step.ADVERTISE, replies, self.settings.identities, read)
        self._advertised = {name: found for name, (_, found) in valid.items()}
        return messages.KeyList(tuple(envelope for envelope, _ in valid.values())).encode()

    def collect_shares(self, replies: Mapping[str, bytes]) -> dict[str, bytes]:
        """After step 2: return for each client of U2, the shares that all of U2 sealed for it."""

        def read(name: str, payload: bytes) -> ShareList:
            dealt = ShareList.decode(payload)
            if [item.peer for item in dealt.items] != list(self._advertised):
                raise SecureAggregationError(f"{name!r} did not deal one share to each client.")
            return dealt

        valid = self._collect(Step.SHARE, replies, self._advertised, read)
        self._dealt = {name: {i.peer: i for i in found.items} for name, (_, found) in valid.items()}

        def inbox(receiver: str) -> ShareList:
            dealt = self._dealt.items()
            return ShareList(tuple(replace(items[receiver], peer=peer) for peer, items in dealt))

        return {receiver: inbox(receiver).encode() for receiver in self._dealt}

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
        items = tuple((name, envelope.signature) for name, (envelope, _) in valid.items())
        return messages.Signatures(items).encode()

    def unmask(self, replies: Mapping[str, bytes]) -> np.ndarray:
        """After step 5: return the sum of the survivors' integers modulo 2^bits."""
        settings, dropped = self.settings, tuple(n for n in self._dealt if n not in self.survivors)

        def read(name: str, payload: bytes) -> dict[str, bytes]:
            """Return its share of each dealer's secret: of a survivor's seed, of another's mask key."""
            revealed = messages.Revealed.decode(payload)
            seeds, keys = dict(revealed.seeds), dict(revealed.keys)
            if (tuple(seeds), tuple(keys)) != (self.survivors, dropped):
                raise SecureAggregationError(
                    f"{name!r} did not reveal the shares that were asked for."
                )
            for dealer, share in (seeds | keys).items():
                item, is_seed = self._dealt[dealer][name], dealer in seeds
                known = item.seed_digest if is_seed else item.key_digest
                kind = "seed" if is_seed else "key"
                if settings.share_digest(kind, dealer, name, share) != known:
                    raise SecureAggregationError(f"{name!r} gave out a false share of {dealer!r}.")
            return seeds | keys

        valid = self._collect(Step.REVEAL, replies, self._signers, read)
        chosen = list(valid)[: settings.threshold]
        holders = {settings.numbers[name]: valid[name][1] for name in chosen}
        at = primitives.share_weights(holders)

        def secret(dealer: str) -> bytes:
            shares = {number: shares[dealer] for number, shares in holders.items()}
            return self._genuine(dealer, primitives.join_shares(shares, at))

        total = self._total
        for name in self.survivors:
            total -= settings.self_mask(name, secret(name))
        for name in dropped:
            private = secret(name)
            for survivor in self.survivors:
                # The survivor added the negative of what `name` would have added for it.
                public = self._advertised[survivor].mask_key
                total += settings.pair_mask(name, survivor, private, public)
        return total

    def _genuine(self, dealer: str, secret: bytes) -> bytes:
        """Return the seed or mask key that a client dealt; refuse one that it did not advertise."""
        own = self._advertised[dealer]
        if dealer in self.survivors:
            genuine = self.settings.seed_commitment(dealer, secret) == own.seed_commitment
        else:
            genuine = primitives.exchange_public(secret) == own.mask_key
        if not genuine:
            raise SecureAggregationError(
                f"Round {self.settings.round} is abandoned: the shares that {dealer!r} dealt are not "
                "those of the keys it advertised; leave it out of the next round."
            )
        return secret
