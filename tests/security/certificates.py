"""A CA of a test's own, and what it signs, as PEM files."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_NOW = datetime.datetime.now(datetime.UTC)
_DAY = datetime.timedelta(days=1)


class Pair(NamedTuple):
    """A certificate with its key."""

    certificate: Path
    key: Path
    x509: x509.Certificate


def name_of(*parts: tuple[x509.ObjectIdentifier, str]) -> x509.Name:
    return x509.Name([x509.NameAttribute(kind, value) for kind, value in parts])


class Authority:
    """A CA, whose files are in a directory."""

    def __init__(self, directory: Path, name: str = "Test CA") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._name = name_of((NameOID.COMMON_NAME, name))
        self._key = ec.generate_private_key(ec.SECP256R1())
        usage = x509.KeyUsage(
            *(True, False, False, False, False, True, True, False, False)  # digital signature, certificates, lists
        )
        certificate = (
            self._begun(self._name, self._key, _NOW + 100 * _DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate = directory / "ca.pem"
        self.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def _begun(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, until: datetime.datetime
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(_NOW - 10 * _DAY)
            .not_valid_after(until)
        )

    def issue(
        self, file: str, subject: x509.Name, *, days: float = 10, encrypted: bool = False, host: str | None = None
    ) -> Pair:
        """A certificate for clients and for servers on this machine, or `host`; with negative `days` it has expired."""
        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        names = [*names, x509.DNSName("localhost")] if host is None else [x509.DNSName(host)]
        certificate = (
            self._begun(subject, key, _NOW + days * _DAY)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        pair = Pair(self._directory / f"{file}.pem", self._directory / f"{file}-key.pem", certificate)
        pair.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        pair.key.touch()
        pair.key.chmod(0o600)
        pair.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.BestAvailableEncryption(b"secret") if encrypted else serialization.NoEncryption(),
            )
        )
        return pair

    def revoke(self, file: Path, revoked: Sequence[Pair], *, days: float = 10) -> None:
        """Write a revocation list."""
        builder = x509.CertificateRevocationListBuilder().issuer_name(self._name)
        builder = builder.last_update(_NOW - 10 * _DAY).next_update(_NOW + days * _DAY)
        for pair in revoked:
            row = x509.RevokedCertificateBuilder().serial_number(pair.x509.serial_number).revocation_date(_NOW - _DAY)
            builder = builder.add_revoked_certificate(row.build())
        signed = builder.sign(self._key, hashes.SHA256())
        file.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
