"""Keys and certificates: an authority, the server's certificate, and one bundle a site.

A bundle is the one file that a site is given: its own EC key, the authority's certificate and the
server's address.
"""

from __future__ import annotations

import datetime
import io
import ipaddress
import json
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedbn.errors import ConfigError
from fedbn.runs.folder import check_name

_CURVE = ec.SECP384R1
_SLACK = datetime.timedelta(hours=1)  # clocks that are a little behind
Key = ec.EllipticCurvePrivateKey


@dataclass(frozen=True)
class Authority:
    """What signs the server's certificate."""

    key: Key
    certificate: x509.Certificate


def make_key() -> Key:
    """Make an EC key on a NIST curve, as Flower asks for."""
    return ec.generate_private_key(_CURVE())


def make_authority(name: str, days: int) -> Authority:
    """Make an authority that signs only server certificates of this federation."""
    key = make_key()
    subject = _subject(f"fedbn federation {name}")
    builder = _builder(subject, subject, key, days).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    usage = _usage(digital_signature=False, key_cert_sign=True)
    builder = builder.add_extension(usage, critical=True)
    return Authority(key, builder.sign(key, hashes.SHA384()))


def make_server_certificate(
    authority: Authority, hosts: Sequence[str], days: int, begins: datetime.datetime | None = None
) -> tuple[Key, x509.Certificate]:
    """Make the server's key and certificate, valid for the host names and addresses given."""
    key = make_key()
    builder = _builder(authority.certificate.subject, _subject(hosts[0]), key, days, begins)
    names = x509.SubjectAlternativeName([_name(host) for host in dict.fromkeys(hosts)])
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    identity = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    builder = (
        builder.add_extension(names, critical=False)
        .add_extension(usage, critical=False)
        .add_extension(identity, critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True, key_cert_sign=False), critical=True)
    )
    return key, builder.sign(authority.key, hashes.SHA384())


def hosts_of(certificate: x509.Certificate) -> list[str]:
    """The host names and addresses that a certificate is for."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return []
    return [str(name.value) for name in found.value]


def certificate_bytes(certificate: x509.Certificate) -> bytes:
    """Render a certificate as PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def private_bytes(key: Key) -> bytes:
    """Render a private key as PEM."""
    return _rendered(key, serialization.PrivateFormat.PKCS8)


def ssh_private_bytes(key: Key) -> bytes:
    """Render a private key as OpenSSH does, the form that Flower's nodes read."""
    return _rendered(key, serialization.PrivateFormat.OpenSSH)


def _rendered(key: Key, form: serialization.PrivateFormat) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def public_bytes(key: Key) -> bytes:
    """Render a public key as PEM, the form in which Flower's server knows nodes."""
    return key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _builder(
    issuer: x509.Name,
    subject: x509.Name,
    key: Key,
    days: int,
    begins: datetime.datetime | None = None,
) -> x509.CertificateBuilder:
    begins = begins or datetime.datetime.now(datetime.UTC) - _SLACK
    return (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .subject_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(begins + datetime.timedelta(days=days) + _SLACK)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(digital_signature: bool, key_cert_sign: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=key_cert_sign,
        encipher_only=False,
        decipher_only=False,
    )


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


_FORMAT = 1
_NAMES = ("site.json", "ca.crt", "site.key")
_MAX_BYTES = 100_000
_WRONG = (ValueError, TypeError, KeyError, AttributeError, zipfile.BadZipFile, OSError)


@dataclass(frozen=True)
class Bundle:
    """A site's bundle.

    Attributes:
        federation: The federation's identity.
        site: The site's name.
        address: Where the server is, host:port.
        ca: The authority's certificate.
        key: The site's private key, as OpenSSH writes it.
    """

    federation: str
    site: str
    address: str
    ca: bytes
    key: bytes

    def to_bytes(self) -> bytes:
        """Pack into one file, the same bytes every time."""
        facts = {"federation": self.federation, "site": self.site, "address": self.address}
        about = json.dumps({"format": _FORMAT, **facts}, indent=2).encode()
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for name, content in zip(_NAMES, (about, self.ca, self.key), strict=True):
                archive.writestr(zipfile.ZipInfo(name), content)
        return buffer.getvalue()

    @property
    def host(self) -> str:
        """The server's host."""
        return self.address.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """The server's port."""
        return int(self.address.rpartition(":")[2])


def read_bundle(file: Path) -> Bundle:
    """Read a bundle; its members are read in memory, never unpacked to paths they name."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read ({error.strerror})") from error
    try:
        if len(content) > _MAX_BYTES:
            raise ValueError("too large")
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            parts = {entry.filename: _read(archive, entry) for entry in archive.infolist()}
        if parts.keys() != {*_NAMES}:
            raise ValueError(f"it holds {', '.join(sorted(parts))[:100]}")
        about = json.loads(parts["site.json"])
        if about.pop("format") != _FORMAT:
            raise ValueError("it is of another format")
        bundle = Bundle(**about, ca=parts["ca.crt"], key=parts["site.key"])
        if not (bundle.host and 0 < bundle.port < 65536):
            raise ValueError(f"address {bundle.address!r}")
        for name in (bundle.federation, bundle.site):
            check_name(name, "name")
        return bundle
    except (*_WRONG, ConfigError) as error:
        raise ConfigError(
            f"{file}: not a site's bundle of `fedbn federation init` ({error})"
        ) from error


def _read(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    if entry.file_size > _MAX_BYTES:
        raise ValueError(f"{entry.filename} is too large")
    return archive.read(entry)
