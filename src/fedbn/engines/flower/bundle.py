"""What a site is given: one file with its own key, the authority's certificate and the address."""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import dataclass
from pathlib import Path

from fedbn.errors import ConfigError

_FORMAT = 1
_NAMES = {"site.json", "ca.crt", "site.key"}
_MAX_BYTES = 100_000


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
            for name, content in (
                ("site.json", about),
                ("ca.crt", self.ca),
                ("site.key", self.key),
            ):
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
        if parts.keys() != _NAMES:
            raise ValueError(f"it holds {', '.join(sorted(parts))[:100]}")
        about = json.loads(parts["site.json"])
        if about.pop("format") != _FORMAT:
            raise ValueError("it is of another format")
        bundle = Bundle(**about, ca=parts["ca.crt"], key=parts["site.key"])
        if not (bundle.host and 0 < bundle.port < 65536):
            raise ValueError(f"address {bundle.address!r}")
        return bundle
    except (ValueError, TypeError, KeyError, AttributeError, zipfile.BadZipFile, OSError) as error:
        raise ConfigError(
            f"{file}: not a site's bundle of `fedbn federation init` ({error})"
        ) from error


def _read(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    if entry.file_size > _MAX_BYTES:
        raise ValueError(f"{entry.filename} is too large")
    return archive.read(entry)
