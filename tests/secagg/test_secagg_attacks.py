"""Servers and clients that do not keep to the protocol: refused, and nothing revealed."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pacpfl.errors import InputError, SecureAggregationError
from pacpfl.secagg import primitives
from pacpfl.secagg.client import Client, Member
from pacpfl.secagg.messages import (
    Advertisement,
    Envelope,
    KeyList,
    Revealed,
    ShareList,
    Signatures,
    Step,
    Survivors,
)
from pacpfl.secagg.primitives import exchange_public, signing_public

Make = Callable[..., Any]


def refused(words: str) -> Any:
    return pytest.raises(SecureAggregationError, match=words)


def gone(client: Client) -> bool:
    """The client has forgotten all secrets and answers no step."""
    private = (client._identity, client._seed, client._mask_private, client._share_private)
    for step in (client.share, client.agree, client.reveal):
        with refused("out of turn"):
            step(b"")
    return not any(private) and not client._held


def edited(envelope: Envelope, party: Any, payload: bytes) -> bytes:
    """The same message with another payload, signed by the sender all the same."""
    identity = party.members[envelope.sender].identity
    return Envelope.of(party.settings, envelope.step, envelope.sender, payload, identity).encode()


# A server that swaps keys, invents clients or replays.


Keys = list[Envelope]  # of everybody, as the server shows them


def swapped(which: str) -> Callable[[Keys, Any], Keys]:
    """A key of the server's own in place of one of c1's."""

    def change(keys: Keys, party: Any) -> Keys:
        own = {which: exchange_public(secrets.token_bytes(32))}
        payload = replace(Advertisement.decode(keys[1].payload), **own).encode()
        return [keys[0], replace(keys[1], payload=payload), *keys[2:]]

    return change


def invented(keys: Keys, party: Any) -> Keys:
    identity = secrets.token_bytes(32)
    return [*keys, Envelope.of(party.settings, Step.ADVERTISE, "c9", bytes(96), identity)]


def colluding(payload: Callable[[Keys], bytes]) -> Callable[[Keys, Any], Keys]:
    """c2 plots with the server and signs whatever it likes."""
    return lambda keys, party: [
        *keys[:2], Envelope.decode(edited(keys[2], party, payload(keys))), *keys[3:]
    ]  # fmt: skip


KEY_LIES: dict[str, tuple[Callable[[Keys, Any], Keys], str]] = {
    "mask key": (swapped("mask_key"), "signature of 'c1' is not valid"),
    "share key": (swapped("share_key"), "signature of 'c1' is not valid"),
    "seed": (swapped("seed_commitment"), "signature of 'c1' is not valid"),
    "other name": (
        lambda keys, party: [keys[0], replace(keys[2], sender="c1"), *keys[2:]],
        "signature of 'c1' is not valid",
    ),
    "invented": (invented, "'c9' is not invited"),
    "left out": (lambda keys, party: keys[1:], "left out or changed the keys of 'c0'"),
    # So that masks of two pairs coincide.
    "copied": (colluding(lambda keys: keys[1].payload), "public keys are the same"),
    "small order": (
        colluding(
            lambda keys: replace(
                Advertisement.decode(keys[2].payload), share_key=bytes(32)
            ).encode()
        ),
        "not a usable X25519 key",
    ),
}


@pytest.mark.parametrize("lie", KEY_LIES)
def test_a_lie_about_keys_is_noticed(lie: str, make_round: Make) -> None:
    party = make_round(clients=6)
    change, words = KEY_LIES[lie]
    keys = change(list(KeyList.decode(party.keys()).envelopes), party)
    with refused(words):
        party.clients["c0"].share(KeyList(tuple(keys)).encode())
    assert gone(party.clients["c0"])


def test_a_made_up_identity_is_noticed(make_round: Make) -> None:
    party = make_round()
    fake = signing_public(secrets.token_bytes(32))
    cohort = tuple((name, fake if name == "c1" else key) for name, key in party.settings.cohort)
    with refused("an identity of 'c1' that 'c0' does not know"):
        party.members["c0"].join(replace(party.settings, cohort=cohort, round=4))
    with refused("does not invite 'c1' by its identity"):
        party.members["c1"].join(replace(party.settings, cohort=cohort, round=4))


def test_keys_of_an_earlier_round_are_refused(make_round: Make) -> None:
    party = make_round()
    old = party.advertise()
    party.settings = replace(party.settings, round=4)
    party.begin()
    new = party.advertise()
    party.server.collect_keys({**new, "c1": old["c1"]})
    assert "not valid for this session, round and step" in party.server.refused["c1"]
    envelopes = [Envelope.decode(new[name]) for name in sorted(new)]
    envelopes[1] = Envelope.decode(old["c1"])
    with refused("signature of 'c1' is not valid"):
        party.clients["c0"].share(KeyList(tuple(envelopes)).encode())


def test_sealed_shares_of_an_earlier_round_are_refused(make_round: Make) -> None:
    party = make_round()
    old = ShareList.decode(party.inboxes()["c0"])
    party.settings = replace(party.settings, round=4)
    party.begin()
    new = ShareList.decode(party.inboxes()["c0"])
    mixed = ShareList((new.items[0], old.items[1], *new.items[2:]))
    with refused("was not made for this receiver and round"):
        party.clients["c0"].mask(mixed.encode(), party.values["c0"])
    assert gone(party.clients["c0"])


def test_a_signature_of_an_earlier_round_is_refused(make_round: Make) -> None:
    party = make_round()
    old = Signatures.decode(party.signatures())
    party.settings = replace(party.settings, round=4)
    party.begin()
    party.agreed()
    with refused("'c0' did not sign the survivors"):
        party.clients["c0"].reveal(old.encode())


def test_a_round_is_joined_once(make_round: Make) -> None:
    party = make_round()
    for round_number in (0, 3):
        with refused(rf"Round {round_number} of this session is over for 'c0'"):
            party.members["c0"].join(replace(party.settings, round=round_number))
    party.members["c0"].join(replace(party.settings, round=4))
    party.members["c0"].join(replace(party.settings, session=b"another session!", round=0))


@pytest.mark.parametrize("change", [{"threshold": 5}, {"terms": b"no noise"}, {"dimension": 7}])
def test_clients_told_different_settings_do_not_understand_each_other(
    change: dict[str, Any], make_round: Make
) -> None:
    party = make_round()
    other = party.members["c1"].join(replace(party.settings, round=4, **change))
    told = party.members["c0"].join(replace(party.settings, round=4))
    envelopes = [Envelope.decode(told.advertise()), Envelope.decode(other.advertise())]
    with refused("signature of 'c1' is not valid"):
        told.share(KeyList(tuple(envelopes)).encode())


def test_a_member_enforces_its_own_limits(make_round: Make) -> None:
    party = make_round(clients=6, threshold=5)
    member = party.members["c0"]
    later = replace(party.settings, round=9)
    with refused("only in rounds for an active one"):
        member.join(replace(later, adversary="curious"))
    careful = Member("c0", member.identity, member.known, colluding=4)
    with refused("a server that plots with 4 clients"):
        careful.join(later)
    assert Member("c0", member.identity, member.known, colluding=3).join(later).name == "c0"
    pair = make_round(clients=2)
    only = pair.members["c0"]
    with refused("plots with 1 clients"):
        Member("c0", only.identity, only.known, colluding=1).join(replace(pair.settings, round=9))
    assert member.identity.hex() not in repr(member)


# A server that misdirects shares or lies about survivors.


def test_shares_for_another_receiver_are_refused(make_round: Make) -> None:
    party = make_round()
    inboxes = party.inboxes()
    with refused("was not made for this receiver and round"):
        party.clients["c1"].mask(inboxes["c0"], party.values["c1"])
    own, other = (ShareList.decode(inboxes[name]).items for name in ("c2", "c0"))
    with refused("was not made for this receiver and round"):
        party.clients["c2"].mask(
            ShareList((own[0], other[1], *own[2:])).encode(), party.values["c2"]
        )


def test_shares_under_another_dealers_name_are_refused(make_round: Make) -> None:
    party = make_round()
    items = list(ShareList.decode(party.inboxes()["c0"]).items)
    items[1] = replace(items[2], peer="c1")
    with refused("was not made for this receiver and round"):
        party.clients["c0"].mask(ShareList(tuple(items)).encode(), party.values["c0"])


def test_an_inbox_that_lacks_or_adds_somebody_is_refused(make_round: Make) -> None:
    for change, words in (
        (lambda items: items[1:], "left out the shares of 'c0'"),
        (lambda items: items[:3], "names 3 clients with shares"),
        (lambda items: (*items, replace(items[4], peer="c9")), "'c9', who has no keys"),
        (
            lambda items: (replace(items[0], key_digest=bytes(32)), *items[1:]),
            "match their digests",
        ),
        (
            lambda items: (replace(items[0], seed_digest=bytes(32)), *items[1:]),
            "match their digests",
        ),
    ):
        party = make_round(clients=5, threshold=4)
        items = ShareList.decode(party.inboxes()["c0"]).items
        with refused(words):
            party.clients["c0"].mask(ShareList(change(items)).encode(), party.values["c0"])
        assert gone(party.clients["c0"])


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("c0", "c1", "c2"), "names 3 survivors, and 4 are needed"),
        (("c1", "c2", "c3", "c4"), "left 'c0' out of the survivors"),
        (("c0", "c1", "c2", "c9"), r"counts \['c9'\] among the survivors"),
        (("c0", "c1", "c1", "c2"), "'c1' is there twice"),
    ],
)
def test_a_forged_list_of_survivors_is_not_signed(
    names: tuple[str, ...], words: str, make_round: Make
) -> None:
    party = make_round(clients=5, threshold=4)
    party.survivors()
    with refused(words):
        party.clients["c0"].agree(Survivors(names).encode())
    assert gone(party.clients["c0"])


def test_survivors_who_dealt_no_shares_are_refused(make_round: Make) -> None:
    """c4 advertised keys but dealt nothing: it cannot have survived."""
    party = make_round(clients=5, threshold=4)
    shares = party.share()
    del shares["c4"]
    for name, inbox in party.server.collect_shares(shares).items():
        party.clients[name].mask(inbox, party.values[name])
    with refused(r"counts \['c4'\] among the survivors"):
        party.clients["c0"].agree(Survivors(("c0", "c1", "c2", "c3", "c4")).encode())


def test_a_server_that_lies_about_the_survivors_gets_no_share(make_round: Make) -> None:
    """Some are told that c0 survived (its seed is asked for), others that it did not (its key is)."""
    party = make_round(clients=6, threshold=5)
    party.survivors()
    everybody = Survivors(tuple(f"c{i}" for i in range(6))).encode()
    without = Survivors(tuple(f"c{i}" for i in range(1, 6))).encode()
    told = {"c0": everybody, "c1": everybody, "c2": everybody}
    told |= {"c3": without, "c4": without, "c5": without}
    signed = {
        name: Envelope.decode(party.clients[name].agree(list_)).signature
        for name, list_ in told.items()
    }
    for name in ("c1", "c4"):  # whatever signatures it shows to whom: too few, or of another list
        agreeing = [n for n in told if told[n] == told[name]]
        for signers, words in (
            (agreeing, "names 3 clients who signed the survivors, and 5 are needed"),
            ([n for n in told if n != "c0"], "did not sign the survivors"),
        ):
            client = party.clients[name]
            before = dict(client.__dict__)
            shown = Signatures(tuple((n, signed[n]) for n in sorted(signers)))
            with refused(words):
                client.reveal(shown.encode())
            assert gone(client)
            client.__dict__.update(before)  # try the next lie on the same client


def test_forged_signatures_of_the_survivors_are_refused(make_round: Make) -> None:
    party = make_round(clients=5, threshold=4)
    good = Signatures.decode(party.signatures()).items
    for items, words in (
        ((*good[:4], ("c4", bytes(64))), "'c4' did not sign"),
        ((*good, ("c9", good[0][1])), "'c9' did not sign"),
        ((good[0], good[0], *good[1:3]), "there twice"),
        ((good[0], ("c1", good[2][1]), *good[2:]), "'c1' did not sign"),
        (good[:3], "names 3 clients who signed"),
    ):
        client = party.clients["c0"]
        before = dict(client.__dict__)
        with refused(words):
            client.reveal(Signatures(items).encode())
        client.__dict__.update(before)
    assert client.reveal(Signatures(good).encode())


def test_no_step_is_answered_twice(make_round: Make) -> None:
    for again in ("advertise", "share", "mask", "agree", "reveal"):
        party = make_round()
        signatures = None
        if again == "advertise":
            party.advertise()
        elif again == "share":
            party.share()
        elif again == "mask":
            party.masked()
        elif again == "agree":
            party.agreed()
        else:
            signatures = party.signatures()
            party.clients["c0"].reveal(signatures)
        client = party.clients["c0"]
        arguments = {"advertise": (), "mask": (b"", party.values["c0"])}.get(
            again, (signatures or b"",)
        )
        with refused("out of turn and leaves the round"):
            getattr(client, again)(*arguments)
        assert gone(client)


def test_one_share_of_every_peer_and_never_both(make_round: Make) -> None:
    party = make_round(clients=7, threshold=5)
    for name, reply in party.revealed(silent=("c2", "c5")).items():
        found = Revealed.decode(Envelope.decode(reply).payload)
        seeds, keys = ({peer for peer, _ in part} for part in (found.seeds, found.keys))
        assert seeds == {"c0", "c1", "c3", "c4", "c6"}, name
        assert keys == {"c2", "c5"}, name
        assert gone(party.clients[name]), "with the last answer a client forgets its secrets"


def test_both_shares_together_would_lay_an_update_bare(make_round: Make) -> None:
    """The control of the tests above: with what the clients refuse to give, the attack succeeds."""
    party = make_round(clients=5, threshold=4)
    masked = party.masked()
    numbers = party.settings.numbers
    held = {numbers[name]: client._held["c0"] for name, client in party.clients.items()}
    at = primitives.share_weights(list(held)[:4])
    seed = primitives.join_shares({number: both[0] for number, both in held.items()}, at)
    key = primitives.join_shares({number: both[1] for number, both in held.items()}, at)
    bare = np.frombuffer(Envelope.decode(masked["c0"]).payload, dtype="<u8").copy()
    bare -= party.settings.self_mask("c0", seed)
    for peer in ("c1", "c2", "c3", "c4"):
        public = party.server._advertised[peer].mask_key
        bare -= party.settings.pair_mask("c0", peer, key, public)
    assert np.array_equal(bare.astype(np.int64), party.values["c0"])


# Clients that send garbage: they drop out, and the sum of the others is exact.


def finish(party: Any, masked: dict[str, bytes]) -> np.ndarray:
    """The rest of the round, from the masked updates on."""
    named = party.server.collect_masked(masked)
    agreed = {name: party.clients[name].agree(named) for name in party.server.survivors}
    signatures = party.server.collect_signatures(agreed)
    return party.server.unmask(
        {name: party.clients[name].reveal(signatures) for name in party.server.survivors}
    )


GARBAGE: dict[str, tuple[Callable[[bytes, Any], bytes], str]] = {
    "nothing": (lambda good, party: b"", "ends after 0 bytes"),
    "noise": (lambda good, party: bytes(range(256)) * 9, "step 0"),
    "cut": (lambda good, party: good[:-1], "ends after"),
    "longer": (lambda good, party: good + b"\0", "after its end"),
    "bit": (lambda good, party: good[:20] + bytes([good[20] ^ 1]) + good[21:], "signature"),
    "name": (
        lambda good, party: replace(Envelope.decode(good), sender="c2").encode(),
        "sent a message of 'c2'",
    ),
    "step": (
        lambda good, party: Envelope.of(
            party.settings, Step.REVEAL, "c1", b"", party.members["c1"].identity
        ).encode(),
        "of step reveal in step mask",
    ),
    "short": (
        lambda good, party: edited(Envelope.decode(good), party, bytes(8 * 5)),
        "40 bytes instead of 48",
    ),
    "long": (
        lambda good, party: edited(Envelope.decode(good), party, bytes(8 * 7)),
        "56 bytes instead of 48",
    ),
    "half": (
        lambda good, party: edited(Envelope.decode(good), party, bytes(4 * 6)),
        "24 bytes instead of 48",
    ),
}


@pytest.mark.parametrize("kind", GARBAGE)
def test_garbage_in_place_of_a_masked_update(kind: str, make_round: Make) -> None:
    party = make_round(clients=5, threshold=4)
    masked = party.masked()
    spoil, words = GARBAGE[kind]
    masked["c1"] = spoil(masked["c1"], party)
    assert np.array_equal(finish(party, masked), party.expected(silent=("c1",)))
    assert party.server.survivors == ("c0", "c2", "c3", "c4")
    assert words in party.server.refused["c1"]


def test_strangers_and_those_who_left_are_not_heard(make_round: Make) -> None:
    party = make_round(clients=5, threshold=4)
    shares = party.share()
    late = shares.pop("c3")
    inboxes = party.server.collect_shares(shares)
    masked = {n: party.clients[n].mask(box, party.values[n]) for n, box in inboxes.items()}
    total = finish(party, {**masked, "c3": late, "c9": late})
    assert np.array_equal(total, party.expected(silent=("c3",)))
    assert all("answers all the same" in party.server.refused[name] for name in ("c3", "c9"))


def test_a_client_who_deals_to_some_only_drops_out(make_round: Make) -> None:
    party = make_round(clients=5, threshold=4)
    shares = party.share()
    envelope = Envelope.decode(shares["c1"])
    items = ShareList.decode(envelope.payload).items
    shares["c1"] = edited(envelope, party, ShareList(items[:-1]).encode())
    inboxes = party.server.collect_shares(shares)
    masked = {n: party.clients[n].mask(box, party.values[n]) for n, box in inboxes.items()}
    assert np.array_equal(finish(party, masked), party.expected(silent=("c1",)))
    assert "did not deal one share to each" in party.server.refused["c1"]


def test_a_client_who_signs_other_survivors_is_not_counted(make_round: Make) -> None:
    party = make_round(clients=5, threshold=4)
    agreed = party.agreed()
    other = Survivors(("c0", "c1", "c2", "c3")).encode()
    agreed["c1"] = edited(Envelope.decode(agreed["c1"]), party, other)
    signatures = party.server.collect_signatures(agreed)
    revealed = {n: c.reveal(signatures) for n, c in party.clients.items()}
    assert np.array_equal(party.server.unmask(revealed), party.expected())
    assert "signed other survivors" in party.server.refused["c1"]


@pytest.mark.parametrize("lie", ["false", "fewer", "both"])
def test_a_client_who_reveals_false_shares_is_not_counted(lie: str, make_round: Make) -> None:
    party = make_round(clients=6, threshold=5)
    revealed = party.revealed(silent=())
    envelope = Envelope.decode(revealed["c1"])
    found = Revealed.decode(envelope.payload)
    changed = {
        "false": Revealed((("c0", bytes(33)), *found.seeds[1:]), found.keys),
        "fewer": Revealed(found.seeds[1:], found.keys),
        "both": Revealed(found.seeds, (("c0", bytes(33)),)),
    }[lie]
    revealed["c1"] = edited(envelope, party, changed.encode())
    assert np.array_equal(party.server.unmask(revealed), party.expected())
    words = "a false share of 'c0'" if lie == "false" else "did not reveal the shares"
    assert words in party.server.refused["c1"]


@pytest.mark.parametrize("silent", [(), ("c1",)])
def test_a_dealer_of_worthless_shares_is_named(silent: tuple[str, ...], make_round: Make) -> None:
    """The shares of c1 match their digests but are of other secrets: the sum is not given out wrong."""
    party = make_round(clients=5, threshold=4)
    cheat = party.clients["c1"]
    keys = party.keys()
    true = cheat._seed, cheat._mask_private
    share = type(cheat)._deal

    def deal(self: Client) -> Any:
        self._seed, self._mask_private = b"\x01" * 32, b"\x02" * 32
        dealt = share(self)
        self._seed, self._mask_private = true
        return dealt

    cheat._deal = deal.__get__(cheat)  # type: ignore[method-assign]
    shares = {name: client.share(keys) for name, client in party.clients.items()}
    inboxes = party.server.collect_shares(shares)
    masked = {
        n: party.clients[n].mask(box, party.values[n])
        for n, box in inboxes.items()
        if n not in silent
    }
    with refused("the shares that 'c1' dealt are not those of the keys it advertised"):
        finish(party, masked)


@pytest.mark.parametrize(
    "values", [np.zeros(6), np.zeros(7, dtype=np.int64), np.zeros(6, dtype=np.int32)]
)
def test_a_client_masks_nothing_but_encoded_updates(values: np.ndarray, make_round: Make) -> None:
    party = make_round()
    inbox = party.inboxes()["c0"]
    with pytest.raises(InputError, match="encode the update first"):
        party.clients["c0"].mask(inbox, values)
    assert gone(party.clients["c0"])


@pytest.mark.parametrize("bits", [32, 64])
def test_the_sum_wraps_around_the_modulus_and_nothing_else(bits: int, make_round: Make) -> None:
    party = make_round(bits=bits)
    largest = np.int64(2 ** (bits - 1) - 1)
    party.values = {name: np.full(6, largest - i) for i, name in enumerate(party.values)}
    expected = (5 * int(largest) - 10) % 2**bits
    assert party.server.unmask(party.revealed()).tolist() == [expected] * 6
