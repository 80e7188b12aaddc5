"""Keys and masks: written out with the standard library, and bound to round, names and purpose."""

from __future__ import annotations

import hmac
from dataclasses import replace

import numpy as np
import pytest
from tampering import Round

from pacpfl.errors import SecureAggregationError
from pacpfl.secagg.messages import Envelope, Step
from pacpfl.secagg.primitives import exchange, exchange_public, expand
from pacpfl.secagg.settings import Settings

FIRST, SECOND = b"\x11" * 32, b"\x22" * 32


@pytest.fixture(scope="module")
def settings() -> Settings:
    cohort = (("a", b"\x01" * 32), ("b", b"\x02" * 32), ("c", b"\x03" * 32))
    return Settings(b"0123456789abcdef", 7, cohort, 3, dimension=5)


def hkdf(secret: bytes, salt: bytes, info: bytes) -> bytes:
    """RFC 5869 for one block of output."""
    extracted = hmac.digest(salt, secret, "sha256")
    return hmac.digest(extracted, info + b"\x01", "sha256")


def test_masks_are_the_streams_of_keys_derived_for_this_round(settings: Settings) -> None:
    own = hkdf(FIRST, settings.context, b"mask of one\x01a")
    assert np.array_equal(settings.self_mask("a", FIRST), expand(own, 5, 64))
    secret = exchange(FIRST, exchange_public(SECOND))
    both = hkdf(secret, settings.context, b"mask of a pair\x01a\x01b")
    found = settings.pair_mask("a", "b", FIRST, exchange_public(SECOND))
    assert np.array_equal(found, expand(both, 5, 64))
    sealing = hkdf(secret, settings.context, b"shares\x01b\x01a")
    assert settings.share_key("b", "a", FIRST, exchange_public(SECOND)) == sealing


@pytest.mark.parametrize("bits", [32, 64])
def test_the_two_masks_of_a_pair_cancel(settings: Settings, bits: int) -> None:
    settings = replace(settings, bits=bits)
    one = settings.pair_mask("a", "b", FIRST, exchange_public(SECOND))
    other = settings.pair_mask("b", "a", SECOND, exchange_public(FIRST))
    assert one.any() and not (one + other).any()


def test_no_mask_key_or_digest_serves_twice(settings: Settings) -> None:
    """Another round, name, direction, kind or secret gives another value."""
    public = exchange_public(SECOND)
    ab, ba, ac = ("a", "b"), ("b", "a"), ("a", "c")
    found = [settings.seed_commitment("a", SECOND), settings.share_digest("seed", *ab, SECOND)]
    for each in (settings, replace(settings, round=8)):
        found += [each.self_mask(name, FIRST).tobytes() for name in ("a", "b")]
        found += [each.pair_mask(*pair, FIRST, public).tobytes() for pair in (ab, ac)]
        found += [each.share_key(*pair, FIRST, public) for pair in (ab, ba, ac)]
        found += [each.share_label(*pair) for pair in (ab, ba)]
        found += [each.seed_commitment(name, FIRST) for name in ("a", "b")]
        found += [each.share_digest("seed", *pair, FIRST) for pair in (ab, ba)]
        found.append(each.share_digest("key", *ab, FIRST))
    assert len(set(found)) == len(found) == 30


def test_a_signature_holds_for_one_step_sender_payload_and_round() -> None:
    party = Round()
    envelope = Envelope.decode(party.clients["c0"].answer(Step.ADVERTISE))
    envelope.check(party.settings, Step.ADVERTISE)
    for change in ({"step": Step.AGREE}, {"sender": "c1"}, {"payload": b""}, {}):
        changed = replace(envelope, **change)
        settings = party.settings if change else replace(party.settings, round=99)
        with pytest.raises(SecureAggregationError, match="not valid for this session, round and"):
            changed.check(settings, changed.step)
