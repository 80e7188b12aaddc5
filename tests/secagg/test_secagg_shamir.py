"""Shamir's shares against polynomials and Lagrange's formula written out."""

from __future__ import annotations

import itertools
from fractions import Fraction
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pacpfl.secagg import primitives

quick = settings(max_examples=30, deadline=None, derandomize=True, database=None)


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


@quick
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
    # And too few shares, joined all the same, are not the secret.
    assert primitives.join_shares(shares, primitives.share_weights([2, 5])) != secret


def test_shares_are_drawn_anew_each_time() -> None:
    first, second = (primitives.split_secret(bytes(32), [1, 2, 3], 2) for _ in range(2))
    assert all(first[holder] != second[holder] for holder in first)


@pytest.mark.parametrize(
    ("secret", "holders", "threshold"),
    [(b"short", [1, 2], 2), (bytes(32), [1, 2], 3), (bytes(32), [0, 1], 2), (bytes(32), [1, 1], 2)],
)
def test_impossible_splits_are_refused(secret: bytes, holders: list[int], threshold: int) -> None:
    with pytest.raises(ValueError, match=r"secret|holders"):
        primitives.split_secret(secret, holders, threshold)
