"""The cryptography used here, each piece behind one function; only certified.py imports more of it.

X25519 (RFC 7748) agrees on keys, HKDF-SHA256 (RFC 5869) derives them, ChaCha20 (RFC 8439) makes mask
streams, ChaCha20-Poly1305 (RFC 8439) seals shares, Ed25519 (RFC 8032) signs.
"""

from __future__ import annotations

from hashlib import sha256

import numpy as np

from pacpfl.errors import InputError
from pacpfl.secagg.errors import SecureAggregationError

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

KEY_BYTES = 32
SIGNATURE_BYTES = 64
DIGEST_BYTES = 32
SEAL_BYTES = 16  # what the authentication tag adds to a sealed text

# Every key made here seals one text or makes one stream, so a constant nonce is never used twice.
_ONLY_NONCE = bytes(12)


def digest(*parts: bytes) -> bytes:
    """SHA-256 of the parts, each led by its length, so that no two lists of parts coincide."""
    state = sha256()
    for part in parts:
        state.update(len(part).to_bytes(8, "big"))
        state.update(part)
    return state.digest()


def derive(secret: bytes, salt: bytes, info: bytes) -> bytes:
    """HKDF-SHA256: a key of 32 bytes from a secret, for the one purpose that `info` names."""
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=salt, info=info).derive(secret)


def exchange_public(private: bytes) -> bytes:
    """The X25519 public key of a private one."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def exchange(private: bytes, public: bytes) -> bytes:
    """The secret that the owners of two X25519 key pairs share; refuses points of small order."""
    try:
        return X25519PrivateKey.from_private_bytes(private).exchange(
            X25519PublicKey.from_public_bytes(public)
        )
    except ValueError as refused:
        raise SecureAggregationError(
            "A public key is not a usable X25519 key; its owner has to make a new one."
        ) from refused


def stream(key: bytes, length: int) -> bytes:
    """The first `length` bytes of the ChaCha20 key stream (block counter and nonce zero)."""
    return Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(length))


def expand(key: bytes, dimension: int, bits: int) -> np.ndarray:
    """A mask: `dimension` numbers modulo 2^bits (32 or 64), uniform to whoever lacks the key."""
    numbers = np.frombuffer(stream(key, dimension * bits // 8), dtype=f"<u{bits // 8}")
    return numbers.astype(f"u{bits // 8}", copy=False)


def seal(key: bytes, text: bytes, bound: bytes) -> bytes:
    """ChaCha20-Poly1305: `text` hidden and, with `bound`, protected. One text per key."""
    return ChaCha20Poly1305(key).encrypt(_ONLY_NONCE, text, bound)


def unseal(key: bytes, sealed: bytes, bound: bytes) -> bytes:
    """The text of `seal`; refuses what was changed, misdirected or sealed for another purpose."""
    try:
        return ChaCha20Poly1305(key).decrypt(_ONLY_NONCE, sealed, bound)
    except InvalidTag as refused:
        raise SecureAggregationError(
            "A sealed share is damaged, or was not made for this receiver and round."
        ) from refused


def signing_public(private: bytes) -> bytes:
    """The Ed25519 public key of a private one."""
    return Ed25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def sign(private: bytes, text: bytes) -> bytes:
    return Ed25519PrivateKey.from_private_bytes(private).sign(text)


def is_signed(public: bytes, signature: bytes, text: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, text)
    except (InvalidSignature, ValueError):
        return False
    return True
