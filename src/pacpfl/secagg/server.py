"""The server's side of a round: clients' answers to one step become what they are told in the next.

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
from pacpfl.secagg.messages import Advertisement, Envelope, Revealed, SealedShares, Step
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
        self._left: tuple[str, ...] = tuple(settings.identities)  # who has dropped out is not in it
        self._next: Step | None = Step.ADVERTISE
        # Of the survivors' integers modulo 2^bits: under masks until the last step.
        self.total = np.zeros(settings.dimension, dtype=f"u{settings.bits // 8}")

    def collect(self, step: Step, replies: Mapping[str, bytes]) -> dict[str, bytes]:
        """Return what each client that is left is told next; after the last step `total` is the sum."""
        steps = self._keys, self._shares, self._masked, self._signatures, self._unmask
        return steps[step - 1](replies)

    def _valid(
        self, step: Step, replies: Mapping[str, bytes], read: Callable[[str, bytes], Content]
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
                if name not in self._left:
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
        self._left = tuple(valid)
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

    def _keys(self, replies: Mapping[str, bytes]) -> dict[str, bytes]:
        """After step 1: return the signed keys of U1, for everybody in it."""
        valid = self._valid(Step.ADVERTISE, replies, lambda _, keys: Advertisement.decode(keys))
        self._advertised = {name: found for name, (_, found) in valid.items()}
        return dict.fromkeys(
            valid, messages.KEYS.write([envelope for envelope, _ in valid.values()])
        )

    def _shares(self, replies: Mapping[str, bytes]) -> dict[str, bytes]:
        """After step 2: return for each client of U2, the shares that all of U2 sealed for it."""

        def read(name: str, payload: bytes) -> dict[str, SealedShares]:
            dealt = {item.peer: item for item in messages.SHARES.decode(payload)}
            if list(dealt) != list(self._advertised):
                raise SecureAggregationError(f"{name!r} did not deal one share to each client.")
            return dealt

        valid = self._valid(Step.SHARE, replies, read)
        self._dealt = {name: dealt for name, (_, dealt) in valid.items()}

        def inbox(receiver: str) -> bytes:
            dealt = self._dealt.items()
            return messages.SHARES.write(
                [replace(items[receiver], peer=peer) for peer, items in dealt]
            )

        return {receiver: inbox(receiver) for receiver in self._dealt}

    def _masked(self, replies: Mapping[str, bytes]) -> dict[str, bytes]:
        """After step 3: return the names of the survivors, U3; keep the sum of masked updates only."""

        def read(name: str, payload: bytes) -> np.ndarray:
            if len(payload) != self.total.nbytes:
                raise SecureAggregationError(
                    f"{name!r} sent a masked update of {len(payload)} bytes instead of "
                    f"{self.total.nbytes}."
                )
            return np.frombuffer(payload, dtype=f"<u{self.settings.bits // 8}")

        valid = self._valid(Step.MASK, replies, read)
        self.survivors = self._left
        for _, masked in valid.values():
            self.total += masked
        return dict.fromkeys(valid, messages.SURVIVORS.write(self.survivors))

    def _signatures(self, replies: Mapping[str, bytes]) -> dict[str, bytes]:
        """After step 4: return the signatures of the survivors under their own names."""

        def read(name: str, payload: bytes) -> None:
            if payload != messages.SURVIVORS.write(self.survivors):
                raise SecureAggregationError(f"{name!r} signed other survivors.")

        valid = self._valid(Step.AGREE, replies, read)
        items = tuple((name, envelope.signature) for name, (envelope, _) in valid.items())
        return dict.fromkeys(valid, messages.SIGNATURES.write(items))

    def _unmask(self, replies: Mapping[str, bytes]) -> dict[str, bytes]:
        """After step 5: take the masks off the sum; nobody is told anything more."""
        settings, dropped = self.settings, tuple(n for n in self._dealt if n not in self.survivors)

        def read(name: str, payload: bytes) -> dict[str, bytes]:
            """Return its share of each dealer's secret: of a survivor's seed, of another's mask key."""
            revealed = Revealed.decode(payload)
            seeds, keys = dict(revealed.seeds), dict(revealed.keys)
            if (tuple(seeds), tuple(keys)) != (self.survivors, dropped):
                raise SecureAggregationError(
                    f"{name!r} did not reveal the shares that were asked for."
                )
            for dealer, share in (seeds | keys).items():
                item = self._dealt[dealer][name]
                seed = ("seed", item.seed_digest)
                kind, known = seed if dealer in seeds else ("key", item.key_digest)
                if settings.share_digest(kind, dealer, name, share) != known:
                    raise SecureAggregationError(f"{name!r} gave out a false share of {dealer!r}.")
            return seeds | keys

        valid = self._valid(Step.REVEAL, replies, read)
        chosen = list(valid)[: settings.threshold]
        holders = {settings.numbers[name]: valid[name][1] for name in chosen}
        at = primitives.share_weights(holders)

        def secret(dealer: str) -> bytes:
            shares = {number: shares[dealer] for number, shares in holders.items()}
            return self._genuine(dealer, primitives.join_shares(shares, at))

        for name in self.survivors:
            self.total -= settings.self_mask(name, secret(name))
        for name in dropped:
            private = secret(name)
            for survivor in self.survivors:
                # The survivor added the negative of what `name` would have added for it.
                public = self._advertised[survivor].mask_key
                self.total += settings.pair_mask(name, survivor, private, public)
        return {}

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
