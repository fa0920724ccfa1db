"""The federation's folder at the server: who belongs to it, its keys, its database, its runs.

```
FED/
  federation.toml     identity, address, sites in their order
  ca.crt ca.key       the authority; ca.key is needed to renew the server's certificate only
  server.crt server.key  the server's; its key signs the log
  earlier.crt         certificates that were renewed: who signed older lines of the log
  operator.secret     whoever has it may start runs
  sites/NAME.pub      the public key of each site
  samples.toml        how many training samples each site had, for each data set it took part with
  sites/NAME.revoked  the public key of a site that is out for good
  bundles/NAME.fedbn  the one file to hand to each site; delete it here once it was handed over
  superlink.db        Flower's database; the token of a run that is on lies in it
  operator.port       the port of the loopback that this machine's own commands use
  answer.bytes        how many bytes an answer of a site may have in the run that is on
  log.jsonl           what was asked, sent and refused, and what happened to keys
  fedbn-server.service  for systemd: keeps the server up
  runs/               one run folder a run
```
"""

from __future__ import annotations

import getpass
import os
import re
import secrets
import sys
import unicodedata
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import tomli_w

from fedbn.errors import ConfigError, unknown
from fedbn.experiments.configuration import read_toml
from fedbn.flower import credentials
from fedbn.flower.credentials import Bundle, Request
from fedbn.runs.folder import check_name, explained, temporary_name, write_atomically
from fedbn.runs.metrics import append

_HOST = re.compile(r"[A-Za-z0-9.\-:]{1,253}")
_DAYS = 730
_CHANGE = 2  # a site's number of samples may grow and shrink by this factor
PORT = 9092
DOCUMENT_BYTES = 4_000_000  # of an answer of a site beside its state, at most


@dataclass(frozen=True)
class FederationInfo:
    """What `federation.toml` holds."""

    id: str
    name: str
    host: str
    port: int
    sites: tuple[str, ...]
    format: int = 1


class FederationFolder:
    """Paths and contents of a federation's folder."""

    def __init__(self, path: Path):
        self.path = path
        self.info_file = path / "federation.toml"
        self.ca = path / "ca.crt"
        self.ca_key = path / "ca.key"
        self.certificate = path / "server.crt"
        self.key = path / "server.key"
        self.earlier = path / "earlier.crt"
        self.secret = path / "operator.secret"
        self.samples = path / "samples.toml"
        self.database = path / "superlink.db"
        self.log = path / "log.jsonl"
        self.operator_port_file = path / "operator.port"
        self.answer_bytes_file = path / "answer.bytes"
        self.runs = path / "runs"
        self.home = path / "flower"

    def bundle(self, site: str) -> Path:
        """The file to hand to a site."""
        return self.path / "bundles" / f"{site}.fedbn"

    @property
    def private_files(self) -> list[Path]:
        """Files that no other user may read."""
        bundles = sorted((self.path / "bundles").glob("*.fedbn"))
        maybe = filter(Path.exists, [self.ca_key, self.database])
        return [*maybe, self.key, self.secret, *bundles]

    def read(self) -> FederationInfo:
        """Read what the federation is."""
        if not self.info_file.is_file():
            raise ConfigError(f"{self.path}: no federation here; make one: `fedbn federation init`")
        raw = read_toml(self.info_file)
        try:
            return FederationInfo(**{**raw, "sites": tuple(raw["sites"])})
        except (TypeError, KeyError) as error:
            raise ConfigError(f"{self.info_file}: {error}") from error

    def keys(self) -> dict[bytes, str]:
        """Map each site's public key to its name."""
        files = {site: self._public(site) for site in self.read().sites}
        if missing := [str(file) for file in files.values() if not file.is_file()]:
            raise ConfigError(f"{missing[0]}: the site's public key is missing")
        return {file.read_bytes(): site for site, file in files.items()}

    def operator_port(self) -> int:
        """Return the port of this machine's own commands; 0 where no server was started yet."""
        return _number(self.operator_port_file, 0)

    def use_operator_port(self, port: int) -> None:
        """Set that port."""
        write_private(self.operator_port_file, str(port).encode())

    def answer_bytes(self) -> int:
        """Return how many bytes an answer of a site may have: those of a document, and a state."""
        return _number(self.answer_bytes_file, DOCUMENT_BYTES)

    def limit_answers(self, state_bytes: int) -> None:
        """Set how many bytes a state may have in an answer of the run that is on."""
        write_private(self.answer_bytes_file, str(DOCUMENT_BYTES + state_bytes).encode())

    def agreed(self) -> dict[str, dict[str, int]]:
        """Return each site's number of training samples, by the hash of what data it was for.

        A number without a hash, as earlier versions wrote it, is for any data.
        """
        found = read_toml(self.samples) if self.samples.is_file() else {}
        return {site: one if isinstance(one, dict) else {"": one} for site, one in found.items()}

    def agree(self, site: str, examples: int, data: str) -> str | None:
        """Agree on a site's number of samples when it first comes with some data.

        Later, return how the number differs from the one agreed for the same data. `data` is the
        hash of what the data is: its contract, classes and shapes.
        """
        agreed = self.agreed()
        own = agreed.get(site, {})
        known = own.get(data, own.get("", examples))
        if not known / _CHANGE <= examples <= known * _CHANGE:
            return (
                f"says it has {examples:,} training samples, {known:,} were agreed for this data; "
                f"expected half to double of that. Where the change is right, write it into "
                f"{self.samples}"
            )
        if data not in own:
            new = {**agreed, site: {**own, data: examples}}
            write_atomically(self.samples, tomli_w.dumps(new).encode())
        return None

    def create(self, name: str, sites: Sequence[str], host: str, port: int = PORT) -> None:
        """Make the folder with everything in it."""
        if self.path.exists() and any(self.path.iterdir()):
            raise ConfigError(f"{self.path} is not empty; choose another folder")
        check_sites(sites)
        if not _HOST.fullmatch(host) or not 1 <= port <= 65535:
            raise ConfigError(f"--host {host!r}, port {port}: expected a host name and 1 to 65535")
        with explained(self.path):
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            (self.path / "sites").mkdir(exist_ok=True)
            (self.path / "bundles").mkdir(mode=0o700, exist_ok=True)
        authority = credentials.make_authority(name, 5 * _DAYS)
        write_private(self.ca_key, credentials.private_bytes(authority.key))
        write_atomically(self.ca, credentials.certificate_bytes(authority.certificate))
        self.certify(authority, [host, "localhost", "127.0.0.1", "::1"], _DAYS)
        write_private(self.secret, secrets.token_hex(32).encode())
        self._write(FederationInfo(secrets.token_hex(8), name, host, port, ()))
        for site in sites:
            self.add_site(site)

    def certify(self, authority: credentials.Authority, hosts: Sequence[str], days: int) -> None:
        """Make the server's key and certificate."""
        key, certificate = credentials.make_server_certificate(authority, hosts, days)
        if self.certificate.is_file():
            append(self.earlier, self.certificate.read_bytes())
        write_private(self.key, credentials.private_bytes(key))
        write_atomically(self.certificate, credentials.certificate_bytes(certificate))

    def add_site(self, site: str) -> None:
        """Make a site's key and bundle."""
        check_sites([*self.read().sites, *(one for one in self._revoked() if one != site), site])
        key = credentials.make_key()
        self._take_in(site, credentials.public_bytes(key), credentials.ssh_private_bytes(key))

    def admit(self, request: Request) -> None:
        """Take in a site that made its own key; the one that it replaces must have signed."""
        check_sites([*dict.fromkeys([*self.read().sites, *self._revoked(), request.site])])
        file = self._public(request.site)
        old = file.read_bytes() if file.is_file() else None
        if old and old != request.key and not request.replaces(old):
            raise ConfigError(
                f"site {request.site} has another key, which did not sign this request: at the "
                "site `fedbn federation request --rotate`, or here `fedbn federation revoke` first"
            )
        if self._public(request.site, "revoked").is_file():
            raise ConfigError(f"site {request.site} was revoked; admit it under another name")
        self._take_in(request.site, request.key, b"")

    def revoke(self, site: str) -> bytes:
        """Put a site out for good; returns its public key."""
        info = self.read()
        if site not in info.sites:
            raise ConfigError(f"{self.path}: {unknown('site', site, info.sites)}")
        key = self._public(site).read_bytes()
        self._write(replace(info, sites=tuple(name for name in info.sites if name != site)))
        self._public(site).rename(self._public(site, "revoked"))
        self.bundle(site).unlink(missing_ok=True)
        return key

    def renew(self, host: str | None = None) -> None:
        """Make the server's certificate and the operator's secret anew, for a new host if given."""
        info = self.read()
        if not self.ca_key.is_file():
            raise ConfigError(f"{self.ca_key}: not here; a new certificate needs it")
        names = [host or info.host, info.host, "localhost", "127.0.0.1", "::1"]
        self.certify(credentials.read_authority(self.ca_key, self.ca), names, _DAYS)
        write_private(self.secret, secrets.token_hex(32).encode())
        self._write(replace(info, host=host or info.host))

    def _revoked(self) -> list[str]:
        return sorted(file.stem for file in (self.path / "sites").glob("*.revoked"))

    def _public(self, site: str, kind: str = "pub") -> Path:
        return self.path / "sites" / f"{site}.{kind}"

    def _take_in(self, site: str, public: bytes, private: bytes) -> None:
        info = self.read()
        host = f"[{info.host}]" if ":" in info.host else info.host
        bundle = Bundle(info.id, site, f"{host}:{info.port}", self.ca.read_bytes(), private)
        write_private(self.bundle(site), bundle.to_bytes())
        write_atomically(self._public(site), public)
        self._write(replace(info, sites=tuple(dict.fromkeys((*info.sites, site)))))

    def _write(self, info: FederationInfo) -> None:
        values = {**asdict(info), "sites": list(info.sites)}
        write_atomically(self.info_file, tomli_w.dumps(values).encode())


def _number(file: Path, otherwise: int) -> int:
    try:
        return int(file.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return otherwise


_UNIT = """# cp {file} /etc/systemd/system/ && systemctl enable --now {name}
[Unit]
Description={what}
Wants=network-online.target
After=network-online.target

[Service]
User={user}
WorkingDirectory={place}
ExecStart={command}
Restart=on-failure
RestartSec=10
UMask=0077
NoNewPrivileges=yes
PrivateTmp=yes
ProtectSystem=strict
ReadWritePaths={folder}

[Install]
WantedBy=multi-user.target
"""


def write_unit(file: Path, what: str, words: Sequence[str], place: Path) -> None:
    """Write a systemd unit that keeps a command of fedbn up, started in a place.

    It may write into the unit's own folder and nowhere else.
    """
    command = [sys.executable, "-P", "-m", "fedbn", *words]
    text = _UNIT.format(
        file=file,
        name=file.name,
        what=what,
        user=_user(),
        place=str(place).replace("%", "%%"),
        folder=_quoted(str(file.parent)),
        command=" ".join(map(_quoted, command)),
    )
    write_atomically(file, text.encode())


def _user() -> str:
    """Return the user's name, or the number of a user who has none (in containers)."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _quoted(word: str) -> str:
    """Write a word as systemd reads it back."""
    plain = word.replace("\\", "\\\\").replace("%", "%%").replace("$", "$$")
    return plain if re.fullmatch(r"[\w./:=,@+-]+", plain) else '"' + plain.replace('"', '\\"') + '"'


def check_sites(sites: Sequence[str]) -> None:
    """Refuse names that cannot be files, or are there twice.

    Names that differ only in case are the same name: to a person, and to some file systems.
    """
    known: dict[str, str] = {}
    for site in sites:
        check_name(site, "site")
        other = known.setdefault(_folded(site), site)
        if sites.count(site) > 1:
            raise ConfigError(f"site {site!r} is there twice")
        if other != site:
            raise ConfigError(f"site {site!r}: its name differs from {other!r} only in case")


def _folded(name: str) -> str:
    return unicodedata.normalize("NFKC", name).casefold()


def write_private(file: Path, content: bytes) -> None:
    """Write a file that only its owner may read, from its first byte on."""
    with explained(file):
        temporary = temporary_name(file)
        temporary.unlink(missing_ok=True)
        temporary.touch(mode=0o600, exist_ok=False)
    write_atomically(file, content)
