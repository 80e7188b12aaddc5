"""The cryptography used here, each piece behind one function; only certified.py imports more of it.

X25519 (RFC 7748) agrees on keys, HKDF-SHA256 (RFC 5869) derives them, ChaCha20 (RFC 8439) makes mask
streams, ChaCha20-Poly1305 (RFC 8439) seals shares, Ed25519 (RFC 8032) signs.

Shamir's secret sharing over a prime field: `threshold` shares give the secret, fewer say nothing. The
secret s of 32 bytes is the constant of a polynomial f of degree threshold - 1 with uniform other
coefficients over the integers modulo P; the share of holder j is f(j), j = 1, 2, ... Through threshold - 1
shares and ANY secret goes exactly one such polynomial, which is why they say nothing.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping
from functools import reduce
from hashlib import sha256
from math import prod

import numpy as np

from pacpfl.errors import InputError, SecureAggregationError

try:
    from cryptography.exceptions import InvalidSignature, InvalidTag
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ImportError as missing:
    raise InputError(
        "Secure aggregation needs the package cryptography, which is not installed: "
        "run `pip install pacpfl[privacy]`."
    ) from missing

KEY_BYTES = 32  # also of a secret that is shared
SIGNATURE_BYTES = 64
DIGEST_BYTES = 32
SEAL_BYTES = 16  # what the authentication tag adds to a sealed text

# The smallest prime above 2^256, so that every secret of 32 bytes is an element of the field.
PRIME = 2**256 + 297
SHARE_BYTES = 33

# Every key made here seals one text or makes one stream, so a constant nonce is never used twice.
_ONLY_NONCE = bytes(12)


def digest(*parts: bytes) -> bytes:
    """Return SHA-256 of the parts, each led by its length, so that no two lists of parts coincide."""
    state = sha256()
    for part in parts:
        state.update(len(part).to_bytes(8, "big"))
        state.update(part)
    return state.digest()


def derive(secret: bytes, salt: bytes, info: bytes) -> bytes:
    """Derive a key of 32 bytes from a secret, for the one purpose that `info` names (HKDF-SHA256)."""
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=salt, info=info).derive(secret)


def exchange_public(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def exchange(private: bytes, public: bytes) -> bytes:
    """Return the secret that two X25519 key pairs share; refuse points of small order."""
    try:
        return X25519PrivateKey.from_private_bytes(private).exchange(
            X25519PublicKey.from_public_bytes(public)
        )
    except ValueError as refused:
        raise SecureAggregationError(
            "A public key is not a usable X25519 key; its owner has to make a new one."
        ) from refused


def expand(key: bytes, dimension: int, bits: int) -> np.ndarray:
    """Return a mask: `dimension` numbers modulo 2^bits (32 or 64), uniform to whoever lacks the key.

    They are the beginning of the ChaCha20 key stream (block counter and nonce zero).
    """
    stream = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()
    numbers = np.frombuffer(stream.update(bytes(dimension * bits // 8)), dtype=f"<u{bits // 8}")
    return numbers.astype(f"u{bits // 8}", copy=False)


def seal(key: bytes, text: bytes, bound: bytes) -> bytes:
    """Hide `text` and, with `bound`, protect it (ChaCha20-Poly1305). One text per key."""
    return ChaCha20Poly1305(key).encrypt(_ONLY_NONCE, text, bound)


def unseal(key: bytes, sealed: bytes, bound: bytes) -> bytes:
    """Return the text of `seal`; refuse what was changed, misdirected or sealed for another purpose."""
    try:
        return ChaCha20Poly1305(key).decrypt(_ONLY_NONCE, sealed, bound)
    except InvalidTag as refused:
        raise SecureAggregationError(
            "A sealed share is damaged, or was not made for this receiver and round."
        ) from refused


def signing_public(private: bytes) -> bytes:
    return Ed25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def sign(private: bytes, text: bytes) -> bytes:
    return Ed25519PrivateKey.from_private_bytes(private).sign(text)


def is_signed(public: bytes, signature: bytes, text: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, text)
    except (InvalidSignature, ValueError):
        return False
    return True


def split_secret(secret: bytes, holders: Collection[int], threshold: int) -> dict[int, bytes]:
    """Split a secret into shares for the holders (distinct numbers of at least 1)."""
    if len(secret) != KEY_BYTES:
        raise ValueError(f"a secret has {KEY_BYTES} bytes, not {len(secret)}")
    if not 1 <= threshold <= len(set(holders)) or min(holders) < 1:
        raise ValueError("holders are numbered from 1, and there are at least `threshold` of them")
    constant = int.from_bytes(secret, "big")
    coefficients = [constant, *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]

    def share(holder: int) -> bytes:
        value = reduce(lambda total, c: (total * holder + c) % PRIME, reversed(coefficients), 0)
        return value.to_bytes(SHARE_BYTES, "big")

    return {holder: share(holder) for holder in holders}


def share_weights(holders: Collection[int]) -> dict[int, int]:
    """Return Lagrange's weights at zero: prod over the other holders k of k / (k - j), modulo P."""
    return {
        j: prod(k for k in holders if k != j)
        * pow(prod(k - j for k in holders if k != j), -1, PRIME)
        % PRIME
        for j in holders
    }


def join_shares(shares: Mapping[int, bytes], at: Mapping[int, int]) -> bytes:
    """Join the shares of the holders that have a weight in `at`, which are `share_weights` of them.

    Shares that do not lie on one polynomial give some other 32 bytes: whoever joins them has to know
    the right secret when it is there, by a digest or a public key.
    """
    value = sum(weight * int.from_bytes(shares[holder], "big") for holder, weight in at.items())
    return (value % PRIME % 2 ** (8 * KEY_BYTES)).to_bytes(KEY_BYTES, "big")
