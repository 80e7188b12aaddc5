"""Certificates for tests, as a project's authority signs them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from pacpfl.secagg.certified import Passport


class Authority:
    """Signs certificates, as the one of a project does."""

    def __init__(self) -> None:
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=1024)
        self.site_key = rsa.generate_private_key(public_exponent=65537, key_size=1024)
        self.pem = self.sign("houses", self.key, authority=True)

    def sign(
        self, name: str, key: Any, role: str = "", days: float = 1.0, authority: bool = False
    ) -> str:
        subject = [x509.NameAttribute(NameOID.COMMON_NAME, name)]
        if role:
            subject.append(x509.NameAttribute(NameOID.UNSTRUCTURED_NAME, role))
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name(subject))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "houses")]))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=3))
            .not_valid_after(now + timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        )
        made = builder.sign(self.key, hashes.SHA256())
        return made.public_bytes(serialization.Encoding.PEM).decode()

    def passport(self, name: str, **certificate: Any) -> Passport:
        private = self.site_key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
        return Passport(self.sign(name, self.site_key, **certificate), private, self.pem)
