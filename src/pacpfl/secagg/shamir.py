"""Shamir's secret sharing over a prime field: `threshold` shares give the secret, fewer say nothing.

The secret s of 32 bytes is the constant of a polynomial f of degree threshold - 1 with uniform other
coefficients over the integers modulo P; the share of holder j is f(j), j = 1, 2, ... Through
threshold - 1 shares and ANY secret goes exactly one such polynomial, which is why they say nothing.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping
from math import prod

# The smallest prime above 2^256, so that every secret of 32 bytes is an element of the field.
PRIME = 2**256 + 297
SECRET_BYTES = 32
SHARE_BYTES = 33


def split(secret: bytes, holders: Collection[int], threshold: int) -> dict[int, bytes]:
    """Shares of a secret for the holders (distinct numbers of at least 1)."""
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a secret has {SECRET_BYTES} bytes, not {len(secret)}")
    if not 1 <= threshold <= len(set(holders)) or min(holders) < 1:
        raise ValueError("holders are numbered from 1, and there are at least `threshold` of them")
    constant = int.from_bytes(secret, "big")
    coefficients = [constant, *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    return {holder: _evaluate(coefficients, holder) for holder in holders}


def _evaluate(coefficients: list[int], point: int) -> bytes:
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * point + coefficient) % PRIME
    return value.to_bytes(SHARE_BYTES, "big")


def weights(holders: Collection[int]) -> dict[int, int]:
    """Lagrange's weights at zero: prod over the other holders k of k / (k - j), modulo P."""
    return {
        j: prod(k for k in holders if k != j)
        * pow(prod(k - j for k in holders if k != j), -1, PRIME)
        % PRIME
        for j in holders
    }


def join(shares: Mapping[int, bytes], at: Mapping[int, int]) -> bytes:
    """The secret from the shares of the holders with a weight in `at`, which are `weights` of them.

    Shares that do not lie on one polynomial give some other 32 bytes: whoever joins them has to know
    the right secret when it is there, by a digest or a public key.
    """
    value = sum(weight * int.from_bytes(shares[holder], "big") for holder, weight in at.items())
    return (value % PRIME % 2 ** (8 * SECRET_BYTES)).to_bytes(SECRET_BYTES, "big")
