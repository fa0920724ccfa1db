"""What can be known before anything runs: certificates, keys, the way to the server, clocks."""

from __future__ import annotations

import datetime
import email.utils
import os
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from cryptography import x509

from fedbn import __version__
from fedbn.errors import ConfigError, FedbnError
from fedbn.flower import installed_flower
from fedbn.flower.credentials import Bundle, Key, hosts_of, read_key
from fedbn.flower.federation_folder import FederationFolder
from fedbn.flower.internals_node import (
    ADMITTED_PATH,
    CLOCK_AHEAD,
    CLOCK_BEHIND,
    listens,
    signed_headers,
)

_TIMEOUT = 5.0


def reach(bundle: Bundle, seconds: float) -> float:
    """Make sure that the server answers and is the right one; tells how far this clock is ahead.

    A server that does not answer within `seconds` is a FedbnError; one that is not the
    federation's, and clocks that differ, are a ConfigError.
    """
    begun = time.monotonic()
    while True:
        try:
            return _checked(_ask_the_time(bundle))
        except ssl.SSLError as error:
            raise ConfigError(_explained(bundle, error)) from error
        except OSError as error:
            if time.monotonic() - begun >= seconds:
                raise FedbnError(
                    f"no server at {bundle.address} after {seconds:g} s ({error})"
                ) from error
            time.sleep(0.2)


def _ask_the_time(bundle: Bundle) -> float:
    """Shake hands, and compare this clock with the server's; 0 where it does not say the time."""
    lines = _answer(bundle, "HEAD /", {}).lower().split("\r\n")
    said = next((line.partition(":")[2] for line in lines if line.startswith("date:")), "")
    try:
        return time.time() - email.utils.parsedate_to_datetime(said.strip()).timestamp()
    except ValueError:
        return 0.0


def is_admitted(bundle: Bundle, key: Key) -> bool:
    """Tell whether the server lets a key in; False where it cannot be asked now."""
    headers = {**signed_headers(key), "Content-Length": "0"}
    try:
        return _answer(bundle, f"POST {ADMITTED_PATH}", headers).startswith("HTTP/1.1 200")
    except OSError:
        return False


def _answer(bundle: Bundle, request: str, headers: Mapping[str, str]) -> str:
    """Send a request to the server of a bundle; return the beginning of its answer."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=bundle.ca.decode("ascii"))
    named = {"Host": bundle.host, "Connection": "close", **headers}
    lines = [f"{request} HTTP/1.1", *(f"{name}: {value}" for name, value in named.items())]
    with (
        socket.create_connection((bundle.host, bundle.port), timeout=_TIMEOUT) as plain,
        context.wrap_socket(plain, server_hostname=bundle.host) as secure,
    ):
        secure.sendall("\r\n".join([*lines, "", ""]).encode("ascii"))
        return secure.recv(4096).decode("latin-1")


def _checked(ahead: float) -> float:
    """Refuse clocks so different that Flower's server takes every message for a replayed one."""
    if -CLOCK_BEHIND < ahead < CLOCK_AHEAD:
        return ahead
    side = "ahead of" if ahead > 0 else "behind"
    raise ConfigError(
        f"the clock here is {abs(ahead):,.0f} s {side} the server's: its messages would be refused "
        f"(at most {CLOCK_AHEAD} s ahead or {CLOCK_BEHIND} s behind); set both clocks by NTP"
    )


def _explained(bundle: Bundle, error: ssl.SSLError) -> str:
    where = f"the server at {bundle.address}"
    if not isinstance(error, ssl.SSLCertVerificationError):
        return f"{where} does not speak TLS ({error.reason}): not this federation's server"
    try:
        text = ssl.get_server_certificate((bundle.host, bundle.port), timeout=_TIMEOUT)
        shown = x509.load_pem_x509_certificate(text.encode())
    except (OSError, ValueError):
        return f"{where}: {error.verify_message}"
    begins, ends = shown.not_valid_before_utc, shown.not_valid_after_utc
    now = datetime.datetime.now(datetime.UTC)
    if not begins <= now <= ends:
        return (
            f"{where}: its certificate is valid from {begins:%Y-%m-%d} to {ends:%Y-%m-%d} only, "
            f"and the clock here says {now:%Y-%m-%d}"
        )
    if "match" in error.verify_message.lower():
        names = ", ".join(hosts_of(shown))
        return f"{where}: its certificate is for {names}, not for {bundle.host}"
    return f"{where}: its certificate is signed by another authority ({error.verify_message})"


_SOON = datetime.timedelta(days=30)
Finding = tuple[bool, str]


def check_folder(folder: FederationFolder) -> Iterator[Finding]:
    """Examine a federation's folder: what is right, and what is not."""
    info = folder.read()
    yield from check_dates(folder)
    certificate = x509.load_pem_x509_certificate(folder.certificate.read_bytes())
    names = hosts_of(certificate)
    yield info.host in names, f"the server's certificate is for {', '.join(names)}"
    yield from (private(file) for file in folder.private_files)
    yield True, f"{len(folder.keys())} sites with keys: {', '.join(info.sites)}"
    yield True, f"fedbn {__version__}, flwr {installed_flower()}, torch {torch.__version__}"
    up = listens("127.0.0.1", info.port)
    yield True, f"port {info.port}: {'the server is up' if up else 'free; the server is not up'}"


def check_dates(folder: FederationFolder) -> Iterator[Finding]:
    """Say until when the server's certificate and the authority are valid."""
    named = {folder.certificate: "the server's certificate", folder.ca: "the authority"}
    for file, what in named.items():
        yield _dates(x509.load_pem_x509_certificate(file.read_bytes()), what)


def check_bundle(file: Path, bundle: Bundle) -> Iterator[Finding]:
    """Examine a site's bundle, and the way to the server."""
    yield _dates(x509.load_pem_x509_certificate(bundle.ca), "the authority")
    own = file.resolve().with_suffix("") / "site.key"
    yield private(file if bundle.key or not own.exists() else own)
    try:
        read_key(bundle.key or (own.read_bytes() if own.exists() else b""))
        yield True, f"site {bundle.site} has its key"
    except ConfigError:
        yield False, f"site {bundle.site} has another kind of key"
    except ValueError as error:
        yield False, f"the key of site {bundle.site} cannot be read ({error})"
    try:
        ahead = reach(bundle, 0)
        yield True, f"the server answers at {bundle.address}, and its certificate is right"
        yield True, f"the clocks agree within {max(1, abs(round(ahead)))} s"
    except FedbnError as error:
        yield False, str(error)


def private(file: Path) -> Finding:
    """Tell whether a file with a key is closed to others."""
    if os.name == "posix" and file.stat().st_mode & 0o077:
        return False, f"{file.name} can be read by others: `chmod 600 {file}`"
    return True, f"{file.name} is private"


def _dates(certificate: x509.Certificate, what: str) -> Finding:
    now = datetime.datetime.now(datetime.UTC)
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now < begins:
        return False, f"{what} is valid only from {begins:%Y-%m-%d}: is this clock right?"
    if now > ends:
        return False, f"{what} ended on {ends:%Y-%m-%d}"
    soon = " (soon)" if ends - now < _SOON else ""
    return True, f"{what} is valid until {ends:%Y-%m-%d}{soon}"
