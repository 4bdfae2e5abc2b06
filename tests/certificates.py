"""Certificates for tests: an authority of a test's own, and what it signs, as files."""

import datetime as dt
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from mesh.bus.credentials import TlsFiles

_DAY = dt.timedelta(days=1)


class Authority:
    """Signs certificates; everything that it makes lies in `directory`."""

    def __init__(self, directory: Path, name: str = "authority", *, days: float = 1) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        self.certificate = directory / f"{name}.pem"
        made = self._sign(self._name, self._key, x509.BasicConstraints(ca=True, path_length=None), days=days)
        self.certificate.write_bytes(made)

    def sign(self, name: str, *, host: str = "127.0.0.1", expired: bool = False, days: float = 1) -> TlsFiles:
        """Return files of a new certificate: its authority's, its own, and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        where = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))])
        cert, secret = self._directory / f"{name}.pem", self._directory / f"{name}-key.pem"
        cert.write_bytes(self._sign(_named(name), key, where, expired=expired, days=days))
        form = serialization.PrivateFormat.PKCS8
        plain = serialization.NoEncryption()
        secret.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, plain))
        return TlsFiles(self.certificate, cert, secret)

    def _sign(
        self,
        name: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        extension: x509.ExtensionType,
        *,
        expired: bool = False,
        days: float = 1,
    ) -> bytes:
        now = dt.datetime.now(dt.UTC)
        made = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 3 * _DAY)
            .not_valid_after(now - _DAY if expired else now + days * _DAY)
            .add_extension(extension, critical=True)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return made.public_bytes(serialization.Encoding.PEM)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
