"""`fedbn federation request, admit, revoke, rotate`: keys that never leave their owner."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from cryptography import x509

from fedbn.cli import console
from fedbn.cli.console import emit, say
from fedbn.errors import ConfigError, FedbnError
from fedbn.flower import audit_log, credentials, server_app
from fedbn.flower.credentials import Bundle
from fedbn.flower.federation_folder import FederationFolder, write_private
from fedbn.runs.folder import check_name, write_atomically

app = console.commands()

Fed = Annotated[Path, typer.Argument(metavar="FED", help="The federation's folder.")]
Fingerprint = Annotated[
    str | None, typer.Option(help="What was read out over another channel; else a person confirms.")
]


@app.command(epilog="Example: fedbn federation request nyu")
def request(
    site: Annotated[str, typer.Argument(help="This site's name.")],
    folder: Annotated[
        Path | None, typer.Option(help="Where the site keeps its key. [default: a folder SITE]")
    ] = None,
    rotate: Annotated[
        bool, typer.Option("--rotate", help="Replace the key; the old one signs the request too.")
    ] = False,
) -> None:
    """Make this site's key here, and the file that asks the server to admit it."""
    home = folder or Path(check_name(site, "site"))
    place = home / "site.key"
    if place.exists() != rotate:
        hint = "no key to replace" if rotate else "it has a key already: --rotate replaces it"
        raise ConfigError(f"{home}: {hint}")
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    key, old, new = credentials.make_key(), None, place
    if rotate:  # the admitted key stays until the server has admitted the new one
        old, new = credentials.read_key(place.read_bytes()), credentials.next_key(home)
        if new.exists():
            key = credentials.read_key(new.read_bytes())
            say("a new key was requested before and is not in use yet: this requests it again")
    write_atomically(Path(f"{site}.request"), credentials.make_request(site, key, old), ConfigError)
    write_private(new, credentials.ssh_private_bytes(key))
    found = credentials.fingerprint(credentials.public_bytes(key))
    audit_log.log_of(home).write("new key", key=found)
    emit(f"{site}.request: send this to the server; {new} stays here")
    emit(f"the site's key: {found}")
    if rotate:
        say("`join` uses the new key as soon as the server has admitted it")


@app.command(epilog="Example: fedbn federation admit FED nyu.request")
def admit(
    fed: Fed,
    file: Annotated[Path, typer.Argument(metavar="REQUEST", help="The site's request.")],
    fingerprint: Fingerprint = None,
) -> None:
    """Take in a site that made its own key; a run that is under way takes it in too."""
    folder, asked = FederationFolder(fed.resolve()), credentials.read_request(file)
    found, whose = credentials.fingerprint(asked.key), f"the key of site {asked.site}"
    how = confirmed(fingerprint, found, whose)
    emit(f"{server_app.admit(folder, asked, how)}: send this to {asked.site}; it holds no secret")
    emit(f"the authority: {credentials.authority_fingerprint(folder.ca.read_bytes())}")


@app.command(epilog="Example: fedbn federation revoke FED nyu")
def revoke(fed: Fed, site: Annotated[str, typer.Argument(help="The site's name.")]) -> None:
    """Put a site out for good, also while a run is on: from the next message on."""
    server_app.revoke(FederationFolder(fed.resolve()), site)
    emit(f"{site} is out; its key is not admitted any more")


@app.command(epilog="Example: fedbn federation rotate FED --host new.example")
def rotate(
    fed: Fed,
    host: Annotated[
        str | None,
        typer.Option(help="The server's new name; the old one stays in the certificate."),
    ] = None,
) -> None:
    """Make the server's certificate and operator.secret anew; sites keep their keys.

    Start the server again afterwards. Where the host is another one, sites join with --address.
    """
    folder = FederationFolder(fed.resolve())
    folder.renew(host)
    server_app.own_log(folder).write("rotated", host=folder.read().host)
    emit(f"{folder.certificate} and {folder.secret} are new; start the server again")


@app.command(epilog="Example: fedbn federation log nyu --verify")
def log(
    what: Annotated[Path, typer.Argument(metavar="FED|SITE", help="Whose log.")],
    verify: Annotated[
        bool, typer.Option("--verify", help="Look for lines that were changed, removed or moved.")
    ] = False,
    against: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The other side's log: is this one's end still there?"),
    ] = None,
) -> None:
    """Show what was asked, sent and refused, one JSON line an event; or verify it."""
    home = what.resolve() if what.is_dir() else what.resolve().with_suffix("")
    file = home / "log.jsonl"
    if not file.is_file():
        raise ConfigError(f"{file}: no log here")
    if not verify and against is None:
        emit(file.read_text(encoding="utf-8"), end="")
        return
    heard = _heard(against, home) if against else set()
    wrong = audit_log.verify(file, _owner_keys(home))
    lost = len(heard - audit_log.line_hashes(file))
    wrong += [f"{lost} hash(es) that {against} heard of are not here: cut off"] if lost else []
    for text in wrong:
        emit(f"WRONG  {text}")
    if wrong:
        raise FedbnError(f"{file}: not what its owner wrote")
    emit(f"ok     {file}: every line follows the one before it and is signed")


def _heard(other: Path, home: Path) -> set[str]:
    """The hashes of a log's lines that the other side's log has heard of."""
    if not other.is_file():
        raise ConfigError(f"--against {other}: no log here; give the other side's log.jsonl")
    unit = next(home.glob("fedbn-site-*.service"), home)  # `join` wrote the site's name into it
    own = unit.name.removeprefix("fedbn-site-").removesuffix(".service")
    name = "server" if (home / "federation.toml").is_file() else own
    if not (heard := audit_log.mentioned(other).get(name)):
        raise ConfigError(f"--against {other}: it names no line of {name}, nothing was compared")
    return heard


def _owner_keys(home: Path) -> list[bytes]:
    """The public keys that may have signed a log: the server's, or a site's, earlier too."""
    folder, earlier = FederationFolder(home), home / "earlier.pub"
    if folder.info_file.is_file():
        files = [folder.ca, *filter(Path.is_file, [folder.certificate, folder.earlier])]
        ca, *others = x509.load_pem_x509_certificates(b"".join(map(Path.read_bytes, files)))
        return [
            credentials.authority_key(credentials.certificate_bytes(one))
            for one in (ca, *others)
            if credentials.signed(ca.public_key(), one.signature, one.tbs_certificate_bytes)
        ]
    own = credentials.public_bytes(credentials.read_key((home / "site.key").read_bytes()))
    text = earlier.read_bytes() if earlier.is_file() else b""
    return [own, *re.findall(b"-+BEGIN.+?END PUBLIC KEY-+\n", text, re.DOTALL)]


def confirmed(given: str | None, found: str, whose: str) -> str:
    """Compare a fingerprint with what was read out, or ask a person to; says how it was done."""
    if given is not None:
        credentials.check_fingerprint(given, found, whose)
        return "by --fingerprint"
    say(f"{whose}: {found}")
    if not sys.stdin.isatty():
        raise ConfigError(f"nobody is here to confirm {whose}: give --fingerprint")
    if not typer.confirm("Is that what its owner reads out?", err=True):
        raise ConfigError(f"{whose} was not confirmed")
    return "by a person"


def known_authority(bundle: Bundle, home: Path, fingerprint: str | None) -> Bundle:
    """Give a bundle the site's own key, once the authority was confirmed."""
    key, place = home / "site.key", home / "authority.fingerprint"
    own = key.read_bytes() if key.is_file() else bundle.key
    if not own:
        raise ConfigError(f"{key}: no key here; `fedbn federation request {bundle.site}` makes it")
    if bundle.key not in (b"", own):
        raise ConfigError(f"{key}: the bundle holds another key; --folder NEW where that is right")
    if bundle.key and fingerprint is None and not place.exists():
        say("this bundle holds a private key that the server made: for trying out only")
        return bundle
    found = credentials.authority_fingerprint(bundle.ca)
    if fingerprint is not None or not place.exists():
        how = confirmed(fingerprint, found, "the authority")
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(place, found.encode())
        audit_log.log_of(home).write("authority confirmed", authority=found, confirmed=how)
    credentials.check_fingerprint(place.read_text(), found, "the authority of this bundle")
    return replace(bundle, key=own)
