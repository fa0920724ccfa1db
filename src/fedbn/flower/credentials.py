"""Keys and certificates: an authority, the server's certificate, a request and a bundle a site.

A site makes its key itself and asks to be admitted with a request: its name, its public key and a
signature. What it is given in return is a bundle: the authority's certificate and the server's
address. A bundle that holds the site's private key too is for trying out.
"""

from __future__ import annotations

import datetime
import hashlib
import io
import ipaddress
import json
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedbn.errors import ConfigError
from fedbn.runs.folder import check_name

_CURVE = ec.SECP384R1
_SLACK = datetime.timedelta(hours=1)  # clocks that are a little behind
Key = ec.EllipticCurvePrivateKey
SIGNATURE = ec.ECDSA(hashes.SHA384())
_FORMAT = 1
_NAMES = ("site.json", "ca.crt", "site.key")  # the key only where the server made it
_MAX_BYTES = 100_000


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
    builder = _builder(subject, subject, key, days)
    return Authority(key, _limited(builder, ca=True).sign(key, hashes.SHA384()))


def read_authority(key: Path, certificate: Path) -> Authority:
    """Read an authority from its files."""
    found = serialization.load_pem_private_key(key.read_bytes(), None)
    if not isinstance(found, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{key}: not a key of `fedbn federation init`")
    return Authority(found, x509.load_pem_x509_certificate(certificate.read_bytes()))


def make_server_certificate(
    authority: Authority, hosts: Sequence[str], days: int, begins: datetime.datetime | None = None
) -> tuple[Key, x509.Certificate]:
    """Make the server's key and certificate, valid for the host names and addresses given."""
    key = make_key()
    builder = _builder(authority.certificate.subject, _subject(hosts[0]), key, days, begins)
    names = x509.SubjectAlternativeName([_name(host) for host in dict.fromkeys(hosts)])
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    identity = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    for extension in (names, usage, identity):
        builder = builder.add_extension(extension, critical=False)
    return key, _limited(builder, ca=False).sign(authority.key, hashes.SHA384())


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
    return _public_pem(key.public_key())


def fingerprint(public: bytes) -> str:
    """What two persons read to each other to compare a public key.

    Examples:
        >>> len(fingerprint(public_bytes(make_key())))
        39
    """
    found = hashlib.sha256(public.strip()).hexdigest()[:32]
    return ":".join(found[place : place + 4] for place in range(0, 32, 4))


def authority_key(ca: bytes) -> bytes:
    """The public key that signs for a federation's server."""
    return _public_pem(x509.load_pem_x509_certificate(ca).public_key())


def authority_fingerprint(ca: bytes) -> str:
    """The fingerprint of that key."""
    return fingerprint(authority_key(ca))


def check_fingerprint(given: str, public: str, whose: str) -> None:
    """Refuse a key whose fingerprint is not the one that was read out."""
    if given.replace(":", "").lower() != public.replace(":", ""):
        raise ConfigError(f"--fingerprint {given[:60]!r}: {whose} has {public}")


def read_key(content: bytes) -> Key:
    """Read a site's private key, as OpenSSH writes it."""
    found = serialization.load_ssh_private_key(content, None)
    if not isinstance(found, ec.EllipticCurvePrivateKey):
        raise ConfigError("not a key of `fedbn federation request`")
    return found


def next_key(home: Path) -> Path:
    """Return the file of the key that a site requested and the server may not have admitted yet."""
    return home / "next.key"


def make_request(site: str, key: Key, old: Key | None = None) -> bytes:
    """Ask to be admitted: name and public key, signed by that key, and by the one it replaces."""
    public = public_bytes(key)
    text = _signed_text(site, public)
    signatures = [one.sign(text, SIGNATURE).hex() for one in (key, old) if one]
    facts = {"format": _FORMAT, "site": site, "key": public.decode(), "signatures": signatures}
    return json.dumps(facts, indent=2).encode()


@dataclass(frozen=True)
class Request:
    """A site's request, whose first signature was verified."""

    site: str
    key: bytes
    signatures: tuple[str, ...]

    def replaces(self, public: bytes) -> bool:
        """Tell whether the owner of another key signed too."""
        return len(self.signatures) > 1 and self.signed_by(public, 1)

    def signed_by(self, public: bytes, place: int = 0) -> bool:
        """Tell whether one of the signatures is that of a key."""
        owner = serialization.load_pem_public_key(public)
        return isinstance(owner, ec.EllipticCurvePublicKey) and signed(
            owner, bytes.fromhex(self.signatures[place]), _signed_text(self.site, self.key)
        )


def signed(owner: Any, signature: bytes, text: bytes) -> bool:
    """Tell whether a signature is that of a public key's owner."""
    try:
        owner.verify(signature, text, SIGNATURE)
    except InvalidSignature:
        return False
    return True


def read_request(file: Path) -> Request:
    """Read a request and verify that it is signed by the key that it names."""
    try:
        about = json.loads(file.read_bytes()[:_MAX_BYTES])
        signatures = tuple(map(str, about["signatures"]))
        request = Request(check_name(about["site"], "site"), about["key"].encode(), signatures)
        if about["format"] != _FORMAT or not request.signed_by(request.key):
            raise ValueError("its signature is not that of its key")
        return request
    except Exception as error:  # archives, JSON and keys of strangers fail in many ways
        raise ConfigError(f"{file}: not a request of a site ({error})") from error


def _signed_text(site: str, public: bytes) -> bytes:
    return b"fedbn site request\n" + site.encode() + b"\n" + public


def _public_pem(public: Any) -> bytes:
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return bytes(public.public_bytes(serialization.Encoding.PEM, form))


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


def _limited(builder: x509.CertificateBuilder, ca: bool) -> x509.CertificateBuilder:
    """Let a key sign certificates, and none for further authorities; or let it sign all else."""
    never = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    others = dict.fromkeys((*never, "encipher_only", "decipher_only"), False)
    usage = x509.KeyUsage(digital_signature=not ca, key_cert_sign=ca, crl_sign=ca, **others)
    kind = x509.BasicConstraints(ca=ca, path_length=0 if ca else None)
    return builder.add_extension(kind, critical=True).add_extension(usage, critical=True)


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


@dataclass(frozen=True)
class Bundle:
    """A site's bundle."""

    federation: str  # the federation's identity
    site: str  # the site's name
    address: str  # where the server is, host:port
    ca: bytes  # the authority's certificate
    # the site's private key, as OpenSSH writes it; empty where the site made its own
    key: bytes = b""

    def to_bytes(self) -> bytes:
        """Pack into one file, the same bytes every time."""
        facts = {"federation": self.federation, "site": self.site, "address": self.address}
        about = json.dumps({"format": _FORMAT, **facts}, indent=2).encode()
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for name, content in zip(_NAMES, (about, self.ca, self.key), strict=True):
                if content:
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
        if parts.keys() not in ({*_NAMES}, {*_NAMES[:2]}):
            raise ValueError(f"it holds {', '.join(sorted(parts))[:100]}")
        about = json.loads(parts["site.json"])
        if about.pop("format") != _FORMAT:
            raise ValueError("it is of another format")
        bundle = Bundle(**about, ca=parts["ca.crt"], key=parts.get("site.key", b""))
        if not (bundle.host and 0 < bundle.port < 65536):
            raise ValueError(f"address {bundle.address!r}")
        for name in (bundle.federation, bundle.site):
            check_name(name, "name")
        return bundle
    except Exception as error:  # archives, JSON and keys of strangers fail in many ways
        raise ConfigError(
            f"{file}: not a site's bundle of `fedbn federation init` ({error})"
        ) from error


def _read(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    if entry.file_size > _MAX_BYTES:
        raise ValueError(f"{entry.filename} is too large")
    return archive.read(entry)
