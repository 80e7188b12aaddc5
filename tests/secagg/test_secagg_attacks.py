"""Servers and clients that do not keep to the protocol: refused, and nothing revealed."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tampering import Round

from pacpfl.errors import InputError, SecureAggregationError
from pacpfl.secagg import messages, primitives
from pacpfl.secagg.client import Client, Member
from pacpfl.secagg.messages import Advertisement, Envelope, Revealed, Step

OTHER = "was not made for this receiver and round"


def refused(words: str) -> Any:
    return pytest.raises(SecureAggregationError, match=words)


def gone(client: Client) -> bool:
    """The client has forgotten all secrets and answers no step."""
    private = (client._identity, client._seed, client._mask_private, client._share_private)
    for step in Step:
        with refused("out of turn"):
            client.answer(step)
    return not any(private) and not client._held


@contextmanager
def refused_by(client: Client, words: str) -> Iterator[None]:
    """It refuses and forgets; then it is as it was before, for the next lie."""
    before = dict(client.__dict__)
    with refused(words):
        yield
    assert gone(client)
    client.__dict__.update(before)


def edited(message: bytes, party: Any, payload: bytes, **changes: Any) -> bytes:
    """The same message with another payload, signed by the sender all the same."""
    envelope = replace(Envelope.decode(message), payload=payload, **changes)
    return envelope.signed(party.settings, party.members[envelope.sender].identity).encode()


# A server that swaps keys, invents clients or replays.


Keys = list[Envelope]  # of everybody, as the server shows them


def swapped(which: str) -> Callable[[Keys, Any], Keys]:
    """A key of the server's own in place of one of c1's."""

    def change(keys: Keys, party: Any) -> Keys:
        own = {which: primitives.exchange_public(secrets.token_bytes(32))}
        payload = replace(Advertisement.decode(keys[1].payload), **own).encode()
        return [keys[0], replace(keys[1], payload=payload), *keys[2:]]

    return change


def invented(keys: Keys, party: Any) -> Keys:
    stranger = Envelope(Step.ADVERTISE, "c9", bytes(96))
    return [*keys, stranger.signed(party.settings, secrets.token_bytes(32))]


def colluding(payload: Callable[[Keys], bytes]) -> Callable[[Keys, Any], Keys]:
    """c2 plots with the server and signs whatever it likes."""
    return lambda keys, party: [
        *keys[:2], Envelope.decode(edited(keys[2].encode(), party, payload(keys))), *keys[3:]
    ]  # fmt: skip


def powerless(keys: Keys) -> bytes:
    return replace(Advertisement.decode(keys[2].payload), share_key=bytes(32)).encode()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (swapped("mask_key"), "signature of 'c1' is not valid"),
        (swapped("share_key"), "signature of 'c1' is not valid"),
        (swapped("seed_commitment"), "signature of 'c1' is not valid"),
        (
            lambda keys, party: [keys[0], replace(keys[2], sender="c1"), *keys[2:]],
            "signature of 'c1' is not valid",
        ),
        (invented, "'c9' is not invited"),
        (lambda keys, party: keys[1:], "left out or changed the keys of 'c0'"),
        # So that masks of two pairs coincide.
        (colluding(lambda keys: keys[1].payload), "public keys are the same"),
        (colluding(powerless), "not a usable X25519 key"),
        # A server that goes on all the same gets nothing from the clients either.
        (lambda keys, party: keys[:3], "names 3 clients with keys, and 5 are needed"),
    ],
)
def test_a_lie_about_keys_is_noticed(change: Callable[[Keys, Any], Keys], words: str) -> None:
    party = Round(clients=6)
    keys = change(list(messages.KEYS.decode(party.told(Step.ADVERTISE)["c0"])), party)
    with refused(words):
        party.clients["c0"].answer(Step.SHARE, messages.KEYS.write(tuple(keys)))
    assert gone(party.clients["c0"])


def test_what_was_sent_in_an_earlier_round_is_refused() -> None:
    party = Round()
    old = party.replies(Step.ADVERTISE)
    party.begin(round=4)
    new = party.replies(Step.ADVERTISE)
    party.server.collect(Step.ADVERTISE, {**new, "c1": old["c1"]})
    assert "not valid for this session, round and step" in party.server.refused["c1"]
    envelopes = [Envelope.decode({**new, "c1": old["c1"]}[name]) for name in sorted(new)]
    with refused("signature of 'c1' is not valid"):
        party.clients["c0"].answer(Step.SHARE, messages.KEYS.write(tuple(envelopes)))

    party.begin(round=5)
    sealed = messages.SHARES.decode(party.told(Step.SHARE)["c0"])
    party.begin(round=6)
    now = messages.SHARES.decode(party.told(Step.SHARE)["c0"])
    with refused(OTHER):
        party.answer(Step.MASK, "c0", messages.SHARES.write((now[0], sealed[1], *now[2:])))
    assert gone(party.clients["c0"])

    party.begin(round=7)
    signatures = party.told(Step.AGREE)["c0"]
    party.begin(round=8)
    party.replies(Step.AGREE)
    with refused("'c0' did not sign the survivors"):
        party.clients["c0"].answer(Step.REVEAL, signatures)


def test_a_member_joins_what_it_agrees_to_and_once() -> None:
    party = Round(clients=6)
    member, later = party.members["c0"], replace(party.settings, round=9)
    fake = primitives.signing_public(secrets.token_bytes(32))
    cohort = tuple((name, fake if name == "c1" else key) for name, key in later.cohort)
    with refused("an identity of 'c1' that 'c0' does not know"):
        member.join(replace(later, cohort=cohort))
    with refused("does not invite 'c1' by its identity"):
        party.members["c1"].join(replace(later, cohort=cohort))
    with refused("only in rounds for an active one"):
        member.join(replace(later, adversary="curious"))
    careful = Member("c0", member.identity, member.known, colluding=4)
    with refused("a server that plots with 4 clients"):
        careful.join(later)
    assert replace(careful, colluding=3).join(later).name == "c0"
    pair = Round(clients=2)
    with refused("plots with 1 clients"):
        replace(pair.members["c0"], colluding=1).join(replace(pair.settings, round=9))
    for number in (0, 3):
        with refused(rf"Round {number} of this session is over for 'c0'"):
            member.join(replace(later, round=number))
    member.join(replace(later, round=4))
    member.join(replace(later, session=b"another session!", round=0))
    assert member.identity.hex() not in repr(member)


@pytest.mark.parametrize("change", [{"threshold": 5}, {"terms": b"no noise"}, {"dimension": 7}])
def test_clients_told_different_settings_do_not_understand_each_other(
    change: dict[str, Any],
) -> None:
    party = Round()
    other = party.members["c1"].join(replace(party.settings, round=4, **change))
    told = party.members["c0"].join(replace(party.settings, round=4))
    envelopes = [
        Envelope.decode(told.answer(Step.ADVERTISE)),
        Envelope.decode(other.answer(Step.ADVERTISE)),
    ]
    with refused("signature of 'c1' is not valid"):
        told.answer(Step.SHARE, messages.KEYS.write(tuple(envelopes)))


# A server that misdirects shares or lies about survivors.


@pytest.mark.parametrize(
    ("change", "words"),
    [  # of the shares for c0, where the server has those for c1 as well
        (lambda own, other: other, OTHER),
        (lambda own, other: (own[0], other[1], *own[2:]), OTHER),
        (lambda own, other: (own[0], replace(own[2], peer="c1"), *own[2:]), OTHER),
        (lambda own, other: own[1:], "left out the shares of 'c0'"),
        (lambda own, other: own[:3], "names 3 clients with shares"),
        (lambda own, other: (*own, replace(own[4], peer="c9")), "'c9', who has no keys"),
        (lambda own, other: (replace(own[0], key_digest=bytes(32)), *own[1:]), "their digests"),
        (lambda own, other: (replace(own[0], seed_digest=bytes(32)), *own[1:]), "their digests"),
    ],
)
def test_an_inbox_that_is_not_what_was_dealt_is_refused(
    change: Callable[..., Any], words: str
) -> None:
    party = Round()
    inboxes = party.told(Step.SHARE)
    own, other = (messages.SHARES.decode(inboxes[name]) for name in ("c0", "c1"))
    with refused(words):
        party.answer(Step.MASK, "c0", messages.SHARES.write(change(own, other)))
    assert gone(party.clients["c0"])


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("c0", "c1", "c2"), "names 3 survivors, and 5 are needed"),
        (("c1", "c2", "c3", "c4", "c5"), "left 'c0' out of the survivors"),
        (("c0", "c1", "c2", "c3", "c9"), r"counts \['c9'\] among the survivors"),
        # It advertised keys and dealt nothing: it cannot have survived.
        (("c0", "c1", "c2", "c3", "c6"), r"counts \['c6'\] among the survivors"),
        (("c0", "c1", "c1", "c2", "c3"), "'c1' is there twice"),
    ],
)
def test_a_forged_list_of_survivors_is_not_signed(names: tuple[str, ...], words: str) -> None:
    party = Round(clients=7)
    shares = party.replies(Step.SHARE)
    del shares["c6"]
    for name, inbox in party.server.collect(Step.SHARE, shares).items():
        party.answer(Step.MASK, name, inbox)
    with refused(words):
        party.clients["c0"].answer(Step.AGREE, messages.SURVIVORS.write(names))
    assert gone(party.clients["c0"])


def test_a_server_that_lies_about_the_survivors_gets_no_share() -> None:
    """Some are told that c0 survived (its seed is asked for), others that it did not (its key is)."""
    party = Round(clients=6)
    party.told(Step.MASK)
    everybody = tuple(f"c{i}" for i in range(6))
    told = dict.fromkeys(everybody[:3], everybody) | dict.fromkeys(everybody[3:], everybody[1:])
    signed = {
        name: Envelope.decode(
            party.clients[name].answer(Step.AGREE, messages.SURVIVORS.write(names))
        ).signature
        for name, names in told.items()
    }
    for name in ("c1", "c4"):  # whatever signatures it shows to whom: too few, or of another list
        agreeing = [n for n in told if told[n] == told[name]]
        for signers, words in (
            (agreeing, "names 3 clients who signed the survivors, and 5 are needed"),
            ([n for n in told if n != "c0"], "did not sign the survivors"),
        ):
            shown = messages.SIGNATURES.write([(n, signed[n]) for n in sorted(signers)])
            with refused_by(party.clients[name], words):
                party.clients[name].answer(Step.REVEAL, shown)


def test_forged_signatures_of_the_survivors_are_refused() -> None:
    party = Round()
    good = messages.SIGNATURES.decode(party.told(Step.AGREE)["c0"])
    for items, words in (
        ((*good[:4], ("c4", bytes(64))), "'c4' did not sign"),
        ((*good, ("c9", good[0][1])), "'c9' did not sign"),
        ((good[0], good[0], *good[1:3]), "there twice"),
        ((good[0], ("c1", good[2][1]), *good[2:]), "'c1' did not sign"),
        (good[:3], "names 3 clients who signed"),
    ):
        with refused_by(party.clients["c0"], words):
            party.clients["c0"].answer(Step.REVEAL, messages.SIGNATURES.write(items))
    assert party.clients["c0"].answer(Step.REVEAL, messages.SIGNATURES.write(good))


@pytest.mark.parametrize("again", list(Step))
def test_no_step_is_answered_twice(again: Step) -> None:
    party = Round()
    party.replies(again)
    with refused("out of turn and leaves the round"):
        party.answer(again, "c0")
    assert gone(party.clients["c0"])


def test_one_share_of_every_peer_and_never_both() -> None:
    party = Round(clients=7)
    for name, reply in party.replies(Step.REVEAL, silent=("c2", "c5")).items():
        found = Revealed.decode(Envelope.decode(reply).payload)
        seeds, keys = ({peer for peer, _ in part} for part in (found.seeds, found.keys))
        assert seeds == {"c0", "c1", "c3", "c4", "c6"}, name
        assert keys == {"c2", "c5"}, name
        assert gone(party.clients[name]), "with the last answer a client forgets its secrets"


def test_both_shares_together_would_lay_an_update_bare() -> None:
    """The control of the tests above: with what the clients refuse to give, the attack succeeds."""
    party = Round()
    masked = party.replies(Step.MASK)
    numbers = party.settings.numbers
    held = {numbers[name]: client._held["c0"] for name, client in party.clients.items()}
    at = primitives.share_weights(list(held)[:4])
    seed, key = (
        primitives.join_shares({number: both[i] for number, both in held.items()}, at)
        for i in range(2)
    )
    bare = np.frombuffer(Envelope.decode(masked["c0"]).payload, dtype="<u8").copy()
    bare -= party.settings.self_mask("c0", seed)
    for peer in ("c1", "c2", "c3", "c4"):
        public = party.server._advertised[peer].mask_key
        bare -= party.settings.pair_mask("c0", peer, key, public)
    assert np.array_equal(bare.astype(np.int64), party.values["c0"])


# Clients that send garbage: they drop out, and the sum of the others is exact.


Spoil = Callable[[bytes], bytes | tuple[bytes, dict[str, Any]]]


def changed(good: bytes) -> bytes:
    return good[:20] + bytes([good[20] ^ 1]) + good[21:]


def of_another(good: bytes) -> bytes:
    return replace(Envelope.decode(good), sender="c2").encode()


def signed(payload: Callable[[bytes], bytes] | bytes, **changes: Any) -> Spoil:
    """Another payload than the honest one, under the sender's own signature."""

    def spoil(good: bytes) -> tuple[bytes, dict[str, Any]]:
        honest = Envelope.decode(good).payload
        return payload if isinstance(payload, bytes) else payload(honest), changes

    return spoil


def revealing(change: Callable[[Revealed], Revealed]) -> Spoil:
    return signed(lambda payload: change(Revealed.decode(payload)).encode())


SHARES, SURVIVORS = messages.SHARES, messages.SURVIVORS
FALSE = (("c0", bytes(33)),)
NOT_ASKED = "did not reveal the shares"
DEALT_TO_SOME = signed(lambda payload: SHARES.write(SHARES.decode(payload)[:-1]))


@pytest.mark.parametrize(
    ("step", "spoil", "words"),
    [
        (Step.SHARE, DEALT_TO_SOME, "did not deal one share to each"),
        (Step.MASK, lambda good: b"", "ends after 0 bytes"),
        (Step.MASK, lambda good: bytes(range(256)) * 9, "step 0"),
        (Step.MASK, lambda good: good[:-1], "ends after"),
        (Step.MASK, lambda good: good + b"\0", "after its end"),
        (Step.MASK, changed, "The signature of 'c1' is not valid"),
        (Step.MASK, of_another, "sent a message of 'c2'"),
        (Step.MASK, signed(b"", step=Step.REVEAL), "of step reveal in step mask"),
        (Step.MASK, signed(bytes(40)), "40 bytes instead of 48"),
        (Step.MASK, signed(bytes(56)), "56 bytes instead of 48"),
        (Step.AGREE, signed(SURVIVORS.write(("c0", "c1", "c2"))), "signed other survivors"),
        (Step.REVEAL, revealing(lambda r: Revealed(FALSE + r.seeds[1:], r.keys)), "a false share"),
        (Step.REVEAL, revealing(lambda r: Revealed(r.seeds[1:], r.keys)), NOT_ASKED),
        (Step.REVEAL, revealing(lambda r: Revealed(r.seeds, FALSE)), NOT_ASKED),
    ],
)
def test_who_sends_garbage_drops_out(step: Step, spoil: Spoil, words: str) -> None:
    party = Round()
    replies = party.replies(step)
    spoilt = spoil(replies["c1"])
    if isinstance(spoilt, tuple):
        spoilt = edited(replies["c1"], party, spoilt[0], **spoilt[1])
    replies["c1"] = spoilt
    left = ("c1",) if step <= Step.MASK else ()
    assert np.array_equal(party.finish(step, replies), party.expected(left))
    assert set(party.server.survivors) == set(party.clients) - set(left)
    assert words in party.server.refused["c1"]


def test_strangers_and_those_who_left_are_not_heard() -> None:
    party = Round()
    shares = party.replies(Step.SHARE)
    late = shares.pop("c3")
    inboxes = party.server.collect(Step.SHARE, shares)
    masked = {name: party.answer(Step.MASK, name, box) for name, box in inboxes.items()}
    total = party.finish(Step.MASK, {**masked, "c3": late, "c9": late})
    assert np.array_equal(total, party.expected(silent=("c3",)))
    assert all("answers all the same" in party.server.refused[name] for name in ("c3", "c9"))


@pytest.mark.parametrize("silent", [(), ("c1",)])
def test_a_dealer_of_worthless_shares_is_named(silent: tuple[str, ...]) -> None:
    """The shares of c1 match their digests but are of other secrets: the sum is not given out wrong."""
    party = Round()
    cheat = party.clients["c1"]
    true = cheat._seed, cheat._mask_private
    deal = cheat._deal

    def of_others() -> Any:
        cheat._seed, cheat._mask_private = b"\x01" * 32, b"\x02" * 32
        dealt = deal()
        cheat._seed, cheat._mask_private = true
        return dealt

    cheat._deal = of_others
    with refused("the shares that 'c1' dealt are not those of the keys it advertised"):
        party.finish(Step.MASK, party.replies(Step.MASK, silent))


@pytest.mark.parametrize(
    "values", [np.zeros(6), np.zeros(7, dtype=np.int64), np.zeros(6, dtype=np.int32)]
)
def test_a_client_masks_nothing_but_encoded_updates(values: np.ndarray) -> None:
    party = Round()
    inbox = party.told(Step.SHARE)["c0"]
    with pytest.raises(InputError, match="encode the update first"):
        party.clients["c0"].answer(Step.MASK, inbox, values)
    assert gone(party.clients["c0"])


@pytest.mark.parametrize("bits", [32, 64])
def test_the_sum_wraps_around_the_modulus_and_nothing_else(bits: int) -> None:
    party = Round(bits=bits)
    largest = np.int64(2 ** (bits - 1) - 1)
    party.values = {name: np.full(6, largest - i) for i, name in enumerate(party.values)}
    expected = (5 * int(largest) - 10) % 2**bits
    party.told(Step.REVEAL)
    assert party.server.total.tolist() == [expected] * 6
