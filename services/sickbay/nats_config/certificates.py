"""A certificate authority of one's own and the servers' certificates it signs, for NATS over TLS.

    authority = Authority.make()
    pair = authority.server("nats-1", ["nats-1.internal", "10.0.0.5"])     # pair.certificate, pair.key: PEM

The authority signs nothing but these servers, so that among servers its signature is enough to be let in.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID: Final = timedelta(days=5 * 365)
_CLOCKS_APART: Final = timedelta(hours=1)
"""A certificate is valid from this long ago, for machines whose clocks are behind."""


class Pair(NamedTuple):
    """A certificate and its private key, as PEM."""

    certificate: bytes
    key: bytes


class Authority:
    """The authority that signs the servers' certificates. `pair` is its own."""

    def __init__(self, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        self._key, self._certificate = key, certificate
        self.pair = _pair(certificate, key)

    @property
    def valid_until(self) -> datetime:
        """When it and what it signs ends."""
        return self._certificate.not_valid_after_utc

    @classmethod
    def make(cls) -> Authority:
        """A new authority with a key of its own."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name("Sickbay NATS authority")
        made = (
            _builder(name, key)
            .issuer_name(name)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs=True), critical=True)
            .sign(key, hashes.SHA256())
        )
        return cls(key, made)

    @classmethod
    def read(cls, pair: Pair) -> Authority:
        """One that was made before. Raises `ValueError` for what is none."""
        key = serialization.load_pem_private_key(pair.key, password=None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError("the key is not of an elliptic curve")  # noqa: TRY004 - it is the file that is wrong
        return cls(key, x509.load_pem_x509_certificate(pair.certificate))

    def server(self, name: str, hosts: Sequence[str]) -> Pair:
        """A certificate for a server that is reached under these names and addresses. Servers of a cluster show it
        to each other as well, hence both usages."""
        key = ec.generate_private_key(ec.SECP256R1())
        authority = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        made = (
            _builder(_name(name), key)
            .issuer_name(self._certificate.subject)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
            .add_extension(x509.SubjectAlternativeName([_alternative(host) for host in hosts]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(authority), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return _pair(made, key)


def _builder(name: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_APART)
        .not_valid_after(now + VALID)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    return Pair(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )
