"""Each wrapper against the vectors of its RFC; Shamir's shares against Lagrange's formula written out."""

from __future__ import annotations

import importlib
import itertools
import sys
from fractions import Fraction
from hashlib import sha256
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pacpfl.errors import InputError, SecureAggregationError
from pacpfl.secagg import primitives

hexadecimal = bytes.fromhex


def test_x25519_gives_the_keys_and_the_secret_of_rfc_7748() -> None:
    alice = hexadecimal("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")
    bob = hexadecimal("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
    alices = hexadecimal("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a")
    bobs = hexadecimal("de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f")
    secret = hexadecimal("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742")
    assert primitives.exchange_public(alice) == alices
    assert primitives.exchange_public(bob) == bobs
    assert primitives.exchange(alice, bobs) == primitives.exchange(bob, alices) == secret


@pytest.mark.parametrize("point", [bytes(32), b"\x01" + bytes(31)])
def test_public_keys_of_small_order_are_refused(point: bytes) -> None:
    with pytest.raises(SecureAggregationError, match="not a usable X25519 key"):
        primitives.exchange(b"\x07" * 32, point)


def test_hkdf_gives_the_first_key_of_rfc_5869() -> None:
    salt, info = bytes(range(13)), bytes(range(0xF0, 0xFA))
    expected = "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf"
    assert primitives.derive(b"\x0b" * 22, salt, info).hex() == expected


@pytest.mark.parametrize("bits", [32, 64])
def test_a_mask_is_the_stream_of_rfc_8439_in_little_endian_numbers(bits: int) -> None:
    stream = hexadecimal(
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f"
    )
    mask, size = primitives.expand(bytes(32), 1024 // bits, bits), bits // 8
    assert mask.dtype == np.dtype(f"u{size}")
    found = [int.from_bytes(stream[i : i + size], "little") for i in range(0, 128, size)]
    assert mask.tolist() == found


def test_sealing_gives_the_text_and_tag_of_rfc_8439(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(primitives, "_ONLY_NONCE", hexadecimal("070000004041424344454647"))
    key, bound = bytes(range(0x80, 0xA0)), hexadecimal("50515253c0c1c2c3c4c5c6c7")
    text = (
        b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the "
        b"future, sunscreen would be it."
    )
    sealed = primitives.seal(key, text, bound)
    assert sealed.hex().startswith(
        "d31a8d34648e60db7b86afbc53ef7ec2a4aded51296e08fea9e2b5a736ee62d6"
    )
    assert sealed.hex().endswith("6116" + "1ae10b594f09e26a7e902ecbd0600691")
    assert len(sealed) == len(text) + primitives.SEAL_BYTES
    assert primitives.unseal(key, sealed, bound) == text


@pytest.mark.parametrize("changed", ["key", "sealed", "bound"])
def test_what_was_changed_is_not_unsealed(changed: str) -> None:
    parts = {"key": b"k" * 32, "bound": b"to c1"}
    parts["sealed"] = primitives.seal(parts["key"], b"a share", parts["bound"])
    parts[changed] = bytes([parts[changed][0] ^ 1]) + parts[changed][1:]
    with pytest.raises(SecureAggregationError, match="damaged"):
        primitives.unseal(parts["key"], parts["sealed"], parts["bound"])


def test_signatures_are_those_of_rfc_8032() -> None:
    private = hexadecimal("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb")
    public = hexadecimal("3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c")
    signature = hexadecimal(
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
        "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
    )
    assert primitives.signing_public(private) == public
    assert primitives.sign(private, b"\x72") == signature
    assert primitives.is_signed(public, signature, b"\x72")
    assert not primitives.is_signed(public, signature, b"\x73")
    assert not primitives.is_signed(public, signature[:-1] + b"\x01", b"\x72")
    assert not primitives.is_signed(public, b"short", b"\x72")
    assert not primitives.is_signed(b"short", signature, b"\x72")


def test_a_digest_tells_lists_of_parts_apart() -> None:
    assert primitives.digest(b"ab", b"c") != primitives.digest(b"a", b"bc")
    assert primitives.digest(b"ab") == sha256(b"\0\0\0\0\0\0\0\x02ab").digest()


def test_without_the_package_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    monkeypatch.delitem(sys.modules, "pacpfl.secagg.primitives")
    with pytest.raises(InputError, match=r"pip install pacpfl\[privacy\]"):
        importlib.import_module("pacpfl.secagg.primitives")


# Shamir's secret sharing.


def interpolate(points: dict[int, int], at: int) -> int:
    """The polynomial through the points, at `at`, modulo the prime: by fractions, then an inverse."""
    value = 0
    for j, y in points.items():
        basis = prod((Fraction(at - k, j - k) for k in points if k != j), start=Fraction(1))
        value += y * basis.numerator * pow(basis.denominator, -1, primitives.PRIME)
    return value % primitives.PRIME


def test_the_modulus_is_prime_and_above_all_secrets() -> None:
    # Miller and Rabin's test for 40 bases, which a composite number passes with probability 4^-40.
    odd, twos = primitives.PRIME - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in range(2, 42):
        x = pow(base, odd, primitives.PRIME)
        chain = [pow(x, 2**i, primitives.PRIME) for i in range(twos)]
        assert x == 1 or primitives.PRIME - 1 in chain
    assert 2**256 < primitives.PRIME < 2 ** (8 * primitives.SHARE_BYTES)


def test_weights_are_those_of_lagrange() -> None:
    # At zero through 1, 2, 4: 2*4/((2-1)(4-1)), 1*4/((1-2)(4-2)), 1*2/((1-4)(2-4)).
    third = pow(3, -1, primitives.PRIME)
    assert primitives.share_weights([1, 2, 4]) == {
        1: 8 * third % primitives.PRIME,
        2: primitives.PRIME - 2,
        4: third,
    }


@settings(max_examples=30, deadline=None, derandomize=True, database=None)
@given(st.binary(min_size=32, max_size=32), st.integers(1, 6), st.integers(0, 3))
def test_any_threshold_of_shares_gives_the_secret(secret: bytes, threshold: int, more: int) -> None:
    holders = [3 * i + 1 for i in range(threshold + more)]
    shares = primitives.split_secret(secret, holders, threshold)
    numbers = {holder: int.from_bytes(share, "big") for holder, share in shares.items()}
    for chosen in itertools.combinations(holders, threshold):
        assert primitives.join_shares(shares, primitives.share_weights(chosen)) == secret
        through = {holder: numbers[holder] for holder in chosen}
        assert interpolate(through, 0) == int.from_bytes(secret, "big")
        for other in holders:  # all shares lie on one polynomial of degree threshold - 1
            assert interpolate(through, other) == numbers[other]


def test_fewer_shares_are_consistent_with_every_secret() -> None:
    secret, other = b"\x11" * 32, b"\xfe" * 32
    shares = primitives.split_secret(secret, range(1, 6), 3)
    known = {holder: int.from_bytes(shares[holder], "big") for holder in (2, 5)}
    # A polynomial of degree 2 through the two known shares and ANOTHER secret: the missing share
    # it gives to holder 4 joins with the known ones to that other secret.
    missing = interpolate({0: int.from_bytes(other, "big"), **known}, 4)
    forged = {**shares, 4: missing.to_bytes(primitives.SHARE_BYTES, "big")}
    assert primitives.join_shares(forged, primitives.share_weights([2, 4, 5])) == other
    assert primitives.join_shares(shares, primitives.share_weights([2, 4, 5])) == secret
    # And too few shares, joined all the same, are not the secret; nor are shares ever the same.
    assert primitives.join_shares(shares, primitives.share_weights([2, 5])) != secret
    again = primitives.split_secret(secret, range(1, 6), 3)
    assert all(again[holder] != shares[holder] for holder in shares)


@pytest.mark.parametrize(
    ("secret", "holders", "threshold"),
    [(b"short", [1, 2], 2), (bytes(32), [1, 2], 3), (bytes(32), [0, 1], 2), (bytes(32), [1, 1], 2)],
)
def test_impossible_splits_are_refused(secret: bytes, holders: list[int], threshold: int) -> None:
    with pytest.raises(ValueError, match=r"secret|holders"):
        primitives.split_secret(secret, holders, threshold)
