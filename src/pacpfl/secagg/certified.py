"""Identities that a certificate vouches for, so that a server in the middle cannot put its own there.

Each party has a certificate of an authority that all know (RFC 5280, an RSA key) and draws a new Ed25519
identity for every process. It signs

    "pacpfl identity 1" | purpose | name | identity       (RSA-PSS, SHA-256)

with the certificate's key. Who lacks the private key of a certificate in that name cannot make such an
introduction; an old one brings nothing, because the identity's private key is gone with its process.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

from pacpfl.errors import InputError, SecureAggregationError, explained
from pacpfl.secagg import primitives, wire

# `primitives` has said what to install where the package is missing.
from cryptography import x509  # isort: skip
from cryptography.exceptions import InvalidSignature  # isort: skip
from cryptography.hazmat.primitives.asymmetric import padding, rsa  # isort: skip
from cryptography.hazmat.primitives.hashes import SHA256  # isort: skip
from cryptography.hazmat.primitives.serialization import load_pem_private_key  # isort: skip
from cryptography.x509.oid import NameOID  # isort: skip

PURPOSE = b"pacpfl identity 1"
MOST = 2**14  # bytes of a certificate, or of a signature
PADDING = padding.PSS(padding.MGF1(SHA256()), padding.PSS.DIGEST_LENGTH)


@dataclass(frozen=True)
class Introduction(wire.Message):
    """A public key, signed by the key of a certificate, which comes along (PEM)."""

    certificate: bytes
    identity: bytes
    signature: bytes
    parts = (wire.up_to(MOST), wire.fixed(primitives.KEY_BYTES), wire.up_to(MOST))


@dataclass(frozen=True)
class Passport:
    """What a party has to show: its certificate, its private key, the authority it trusts (all PEM)."""

    certificate: str
    private: bytes = field(repr=False)
    authority: str

    def introduce(self, name: str, identity: bytes, purpose: bytes) -> str:
        """Introduce the Ed25519 public key `identity`, as text for a message."""
        unread = f"The private key of {name!r} cannot be read"
        with explained(unread, "renew its kit", ValueError, TypeError):
            key = load_pem_private_key(self.private, None)
        if not isinstance(key, rsa.RSAPrivateKey):
            raise InputError(f"The private key of {name!r} is no RSA key; renew its kit.")
        signature = key.sign(_text(name, identity, purpose), PADDING, SHA256())
        return Introduction(self.certificate.encode(), identity, signature).encode().hex()


def introduced(authority: str, name: str, introduction: object, purpose: bytes) -> bytes:
    """Return the identity that an introduction shows for `name`; refuse any other, with the reason."""
    try:
        shown = Introduction.decode(bytes.fromhex(str(introduction)))
        certificate = x509.load_pem_x509_certificate(shown.certificate)
    except (ValueError, SecureAggregationError) as error:
        raise SecureAggregationError(
            f"{name!r} does not show a certificate for its keys ({error})."
        ) from error
    root = x509.load_pem_x509_certificate(authority.encode())
    for problem in _problems(root, name, certificate):
        raise SecureAggregationError(f"The certificate of {name!r} {problem}.")
    key = certificate.public_key()
    if not isinstance(key, rsa.RSAPublicKey):
        raise SecureAggregationError(f"The certificate of {name!r} holds no RSA key.")
    try:
        key.verify(shown.signature, _text(name, shown.identity, purpose), PADDING, SHA256())
    except InvalidSignature as error:
        raise SecureAggregationError(
            f"The identity of {name!r} is not signed by the key of its certificate."
        ) from error
    return shown.identity


def valid_until(certificate: str) -> datetime:
    return x509.load_pem_x509_certificate(certificate.encode()).not_valid_after_utc


def _problems(root: x509.Certificate, name: str, certificate: x509.Certificate) -> Iterator[str]:
    try:
        certificate.verify_directly_issued_by(root)
    except (InvalidSignature, ValueError, TypeError):
        yield "was not signed by the authority that is known here"
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not begin <= datetime.now(UTC) <= end:
        yield "is not valid now; renew its kit"
    subject = certificate.subject
    names = [str(one.value) for one in subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    if names != [name]:
        yield f"bears the name {names}"
    # An administrator's certificate has a role, the authority's own may sign: neither is a site's.
    kinds = [extension.value for extension in certificate.extensions]
    may_sign = any(isinstance(kind, x509.BasicConstraints) and kind.ca for kind in kinds)
    if may_sign or subject.get_attributes_for_oid(NameOID.UNSTRUCTURED_NAME):
        yield "is not that of a site"


def _text(name: str, identity: bytes, purpose: bytes) -> bytes:
    return PURPOSE + wire.block(purpose) + wire.name(name) + identity
