"""The client's side of a round: it answers each step once, and in order.

Whatever the server sends is checked first. A refusal ends the client's part in the round: it forgets its
secrets and answers nothing more, so that a server gains nothing by asking again in another way.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from pacpfl.errors import InputError, SecureAggregationError
from pacpfl.secagg import messages, primitives
from pacpfl.secagg.messages import Advertisement, Envelope, Revealed, SealedShares, Step
from pacpfl.secagg.primitives import KEY_BYTES, SHARE_BYTES
from pacpfl.secagg.settings import Adversary, Settings

NO_VALUES = np.zeros(0)


@dataclass
class Member:
    """Who a client is from round to round: its identity, whom it knows, what it agrees to.

    `known` are the identities of all possible peers, from a source the server has no hand in. `colluding`
    is how many peers the client fears to plot with the server. The last round of each session is kept
    in memory: a client that restarts has to be given a new session, or `last_rounds` from its own store.
    """

    name: str
    identity: bytes = field(repr=False)
    known: Mapping[str, bytes]
    adversary: Adversary = "active"
    colluding: int = 0
    last_rounds: dict[bytes, int] = field(default_factory=dict)

    def join(self, settings: Settings) -> Client:
        """Take part in a round whose settings the server proposes, or refuse it."""
        for problem in self._problems(settings):
            raise SecureAggregationError(problem)
        self.last_rounds[settings.session] = settings.round
        return Client(settings, self.name, self.identity)

    def _problems(self, settings: Settings) -> Iterator[str]:
        if settings.identities.get(self.name) != primitives.signing_public(self.identity):
            yield f"The round does not invite {self.name!r} by its identity."
        for peer, identity in settings.cohort:
            if self.known.get(peer) != identity:
                yield f"The round names an identity of {peer!r} that {self.name!r} does not know."
        if settings.adversary != self.adversary:
            yield (
                f"The round is made for an {settings.adversary} server, "
                f"and {self.name!r} takes part only in rounds for an {self.adversary} one."
            )
        if settings.tolerated < self.colluding or settings.threshold - self.colluding < 2:
            yield (
                f"A threshold of {settings.threshold} among {len(settings.cohort)} does not protect "
                f"{self.name!r} from a server that plots with {self.colluding} clients."
            )
        last = self.last_rounds.get(settings.session, -1)
        if settings.round <= last:
            yield (
                f"Round {settings.round} of this session is over for {self.name!r}, "
                f"who took part in round {last}."
            )


class Client:
    """One client in one round. Made by `Member.join`."""

    def __init__(self, settings: Settings, name: str, identity: bytes) -> None:
        self.settings = settings
        self.name = name
        self._identity = identity
        self._seed, self._mask_private, self._share_private = (
            secrets.token_bytes(KEY_BYTES) for _ in range(3)
        )
        self._peers: dict[str, Advertisement] = {}
        self._held: dict[str, tuple[bytes, bytes]] = {}
        self._survivors: tuple[str, ...] = ()
        self._next: Step | None = Step.ADVERTISE

    def answer(self, step: Step, told: bytes = b"", values: np.ndarray = NO_VALUES) -> bytes:
        """Return this client's message of a step, given what the server tells it, once and in order.

        In step MASK `values` are integers (`Grid.encode`, plus noise); they count modulo 2^bits.
        """
        expected, self._next = self._next, None
        try:
            if expected is not step:
                raise SecureAggregationError(
                    f"{self.name!r} is asked for step {step.name.lower()} out of turn "
                    "and leaves the round."
                )
            steps = self._advertise, self._share, self._mask, self._agree, self._reveal
            payload = steps[step - 1](told, values)
            message = Envelope(step, self.name, payload).signed(self.settings, self._identity)
            self._next = None if step is Step.REVEAL else Step(step + 1)
            return message.encode()
        finally:
            if self._next is None:
                self._identity = self._seed = self._mask_private = self._share_private = b""
                self._held = {}

    def _check_number(self, found: int, of: str) -> None:
        if found < self.settings.threshold:
            raise SecureAggregationError(
                f"The server names {found} {of}, and {self.settings.threshold} are needed: "
                f"{self.name!r} leaves the round."
            )

    def _advertise(self, told: bytes, values: np.ndarray) -> bytes:
        """Step 1: show fresh public keys."""
        self._own = Advertisement(
            primitives.exchange_public(self._mask_private),
            primitives.exchange_public(self._share_private),
            self.settings.seed_commitment(self.name, self._seed),
        )
        return self._own.encode()

    def _share(self, told: bytes, values: np.ndarray) -> bytes:
        """Step 2: given everybody's keys (U1), seal shares of the seed and of the mask key."""
        for envelope in messages.KEYS.decode(told):
            envelope.check(self.settings, Step.ADVERTISE)
            self._peers[envelope.sender] = Advertisement.decode(envelope.payload)
        self._check_number(len(self._peers), "clients with keys")
        if self._peers.get(self.name) != self._own:
            raise SecureAggregationError(
                f"The server left out or changed the keys of {self.name!r}."
            )
        keys = [k for peer in self._peers.values() for k in (peer.mask_key, peer.share_key)]
        if len(set(keys)) < len(keys):
            raise SecureAggregationError("Two of the round's public keys are the same.")
        return messages.SHARES.write(self._deal())

    def _deal(self) -> tuple[SealedShares, ...]:
        settings = self.settings
        numbers = {peer: settings.numbers[peer] for peer in self._peers}
        seeds, keys = (
            primitives.split_secret(secret, numbers.values(), settings.threshold)
            for secret in (self._seed, self._mask_private)
        )
        dealt = []
        for peer, number in numbers.items():
            key = settings.share_key(
                self.name, peer, self._share_private, self._peers[peer].share_key
            )
            shares = seeds[number], keys[number]
            sealed = primitives.seal(key, b"".join(shares), settings.share_label(self.name, peer))
            dealt.append(SealedShares(peer, sealed, *self._digests(self.name, peer, shares)))
        return tuple(dealt)

    def _digests(self, dealer: str, holder: str, shares: tuple[bytes, bytes]) -> list[bytes]:
        kinds = zip(("seed", "key"), shares, strict=True)
        return [self.settings.share_digest(kind, dealer, holder, share) for kind, share in kinds]

    def _mask(self, told: bytes, values: np.ndarray) -> bytes:
        """Step 3: keep the shares of everybody (U2), and send the update under its masks."""
        settings = self.settings
        if values.dtype != np.int64 or values.shape != (settings.dimension,):
            raise InputError(
                f"{self.name!r} masks {settings.dimension} integers (int64), not an array of "
                f"{values.dtype} with shape {values.shape}: encode the update first."
            )
        for item in messages.SHARES.decode(told):
            self._held[item.peer] = self._unsealed(item)
        self._check_number(len(self._held), "clients with shares")
        if self.name not in self._held:
            raise SecureAggregationError(f"The server left out the shares of {self.name!r}.")
        masked = values.astype(f"u{settings.bits // 8}")
        masked += settings.self_mask(self.name, self._seed)
        for peer in self._held.keys() - {self.name}:
            public = self._peers[peer].mask_key
            masked += settings.pair_mask(self.name, peer, self._mask_private, public)
        return masked.astype(f"<u{settings.bits // 8}").tobytes()

    def _unsealed(self, item: SealedShares) -> tuple[bytes, bytes]:
        settings, dealer = self.settings, item.peer
        if dealer not in self._peers:
            raise SecureAggregationError(
                f"Shares come from {dealer!r}, who has no keys in this round."
            )
        public = self._peers[dealer].share_key
        key = settings.share_key(dealer, self.name, self._share_private, public)
        both = primitives.unseal(key, item.sealed, settings.share_label(dealer, self.name))
        shares = both[:SHARE_BYTES], both[SHARE_BYTES:]
        if [item.seed_digest, item.key_digest] != self._digests(dealer, self.name, shares):
            raise SecureAggregationError(
                f"The shares of {dealer!r} for {self.name!r} do not match their digests."
            )
        return shares

    def _agree(self, told: bytes, values: np.ndarray) -> bytes:
        """Step 4: sign the set of survivors (U3), once."""
        names = messages.SURVIVORS.decode(told)
        strangers = sorted(set(names) - self._held.keys())
        if strangers:
            raise SecureAggregationError(
                f"The server counts {strangers} among the survivors, who dealt no shares."
            )
        self._check_number(len(names), "survivors")
        if self.name not in names:
            raise SecureAggregationError(f"The server left {self.name!r} out of the survivors.")
        self._survivors = names
        return told

    def _reveal(self, told: bytes, values: np.ndarray) -> bytes:
        """Step 5: given `threshold` signatures of the same survivors, give one share of every peer.

        For a survivor it is the share of its seed, for anybody else that of its mask key; never both,
        since the two would lay an update bare.
        """
        payload = messages.SURVIVORS.write(self._survivors)
        items = messages.SIGNATURES.decode(told)
        for signer, signature in items:
            signed = Envelope(Step.AGREE, signer, payload, signature)
            if signer not in self._survivors or not signed.is_genuine(self.settings):
                raise SecureAggregationError(
                    f"{signer!r} did not sign the survivors that {self.name!r} was told of."
                )
        self._check_number(len(items), "clients who signed the survivors")
        held = sorted(self._held.items())
        seeds = tuple((peer, seed) for peer, (seed, _) in held if peer in self._survivors)
        keys = tuple((peer, key) for peer, (_, key) in held if peer not in self._survivors)
        return Revealed(seeds, keys).encode()
