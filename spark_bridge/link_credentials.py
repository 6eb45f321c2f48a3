"""What an engine is known by on its links: a key and a certificate of its own, made when it starts, and a secret."""

from __future__ import annotations

import datetime
import secrets
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

#: The certificate itself is known to whoever connects, so the name in it says nothing; TLS wants one.
TLS_NAME = "engine.sbon"
SECRET_BYTES = 16
_NOT_BEFORE = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
#: RFC 5280, section 4.1.2.5: no end. It is forgotten with the process.
_NOT_AFTER = datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=datetime.UTC)


@dataclass(frozen=True, slots=True, repr=False)
class LinkCredentials:
    """``certificate`` is DER. The key is ECDSA over P-256: gRPC does not speak Ed25519."""

    certificate: bytes
    certificate_pem: bytes
    key_pem: bytes
    secret: bytes

    @classmethod
    def generate(cls) -> LinkCredentials:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, TLS_NAME)])
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(_NOT_BEFORE)
            .not_valid_after(_NOT_AFTER)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(TLS_NAME)]), critical=False)
            .sign(key, SHA256())
        )
        return cls(
            certificate.public_bytes(Encoding.DER),
            certificate.public_bytes(Encoding.PEM),
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
            secrets.token_bytes(SECRET_BYTES),
        )


def to_pem(certificate: bytes) -> bytes:
    """Raises ValueError for what is no certificate."""
    return x509.load_der_x509_certificate(certificate).public_bytes(Encoding.PEM)
