"""What can be known before anything runs: certificates, keys, the port, the way to the server."""

from __future__ import annotations

import datetime
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from fedbn.engines.flower.bundle import Bundle
from fedbn.engines.flower.folder import FederationFolder, open_to_others
from fedbn.engines.flower.processes import listens
from fedbn.errors import ConfigError, FedbnError

_SOON = datetime.timedelta(days=30)
_TIMEOUT = 5.0
Finding = tuple[bool, str]


def check_folder(folder: FederationFolder) -> Iterator[Finding]:
    """Examine a federation's folder: what is right, and what is not."""
    info = folder.read()
    certificate = x509.load_pem_x509_certificate(folder.certificate.read_bytes())
    yield _dates(certificate, "the server's certificate")
    yield _dates(x509.load_pem_x509_certificate(folder.ca.read_bytes()), "the authority")
    names = [str(name.value) for name in _names(certificate)]
    yield info.host in names, f"the server's certificate is for {', '.join(names)}"
    yield from (private(file) for file in folder.private_files)
    yield True, f"{len(folder.keys())} sites with keys: {', '.join(info.sites)}"
    up = listens("127.0.0.1", info.port)
    yield True, f"port {info.port}: {'the server is up' if up else 'free; the server is not up'}"


def check_bundle(file: Path, bundle: Bundle) -> Iterator[Finding]:
    """Examine a site's bundle, and the way to the server."""
    yield private(file)
    yield _dates(x509.load_pem_x509_certificate(bundle.ca), "the authority")
    try:
        key = load_ssh_private_key(bundle.key, None)
        yield isinstance(key, ec.EllipticCurvePrivateKey), f"site {bundle.site} has its key"
    except ValueError as error:
        yield False, f"the key of site {bundle.site} cannot be read ({error})"
    try:
        reach(bundle, 0)
        yield True, f"the server answers at {bundle.address}, and its certificate is right"
    except FedbnError as error:
        yield False, str(error)


def private(file: Path) -> Finding:
    """Tell whether a file with a key is closed to others."""
    if open_to_others(file):
        return False, f"{file.name} can be read by others: `chmod 600 {file}`"
    return True, f"{file.name} is private"


def reach(bundle: Bundle, seconds: float) -> None:
    """Make sure that the server answers and is the right one.

    Args:
        bundle: Says where it is and who signs for it.
        seconds: How long to try while nothing answers.

    Raises:
        FedbnError: It does not answer in time.
        ConfigError: What answers is not the federation's server, and why.
    """
    begun = time.monotonic()
    while True:
        try:
            _shake_hands(bundle)
            return
        except ssl.SSLError as error:
            raise ConfigError(_explained(bundle, error)) from error
        except OSError as error:
            if time.monotonic() - begun >= seconds:
                raise FedbnError(
                    f"no server at {bundle.address} after {seconds:g} s ({error})"
                ) from error
            time.sleep(0.2)


def _shake_hands(bundle: Bundle) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=bundle.ca.decode("ascii"))
    with (
        socket.create_connection((bundle.host, bundle.port), timeout=_TIMEOUT) as plain,
        context.wrap_socket(plain, server_hostname=bundle.host),
    ):
        pass


def _explained(bundle: Bundle, error: ssl.SSLError) -> str:
    where = f"the server at {bundle.address}"
    if not isinstance(error, ssl.SSLCertVerificationError):
        return f"{where} does not speak TLS ({error.reason}): not this federation's server"
    shown = _shown_certificate(bundle)
    if shown is None:
        return f"{where}: {error.verify_message}"
    if not _dates(shown, "")[0]:
        ends, begins = shown.not_valid_after_utc, shown.not_valid_before_utc
        return f"{where}: its certificate is valid from {begins:%Y-%m-%d} to {ends:%Y-%m-%d} only"
    if "match" in error.verify_message.lower():
        names = ", ".join(str(name.value) for name in _names(shown))
        return f"{where}: its certificate is for {names}, not for {bundle.host}"
    return f"{where}: its certificate is signed by another authority ({error.verify_message})"


def _shown_certificate(bundle: Bundle) -> x509.Certificate | None:
    try:
        text = ssl.get_server_certificate((bundle.host, bundle.port), timeout=_TIMEOUT)
        return x509.load_pem_x509_certificate(text.encode())
    except (OSError, ValueError):
        return None


def _names(certificate: x509.Certificate) -> list[x509.GeneralName]:
    try:
        return list(
            certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        )
    except x509.ExtensionNotFound:
        return []


def _dates(certificate: x509.Certificate, what: str) -> Finding:
    now = datetime.datetime.now(datetime.UTC)
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now < begins:
        return False, f"{what} is valid only from {begins:%Y-%m-%d}: is this clock right?"
    if now > ends:
        return False, f"{what} ended on {ends:%Y-%m-%d}"
    soon = " (soon)" if ends - now < _SOON else ""
    return True, f"{what} is valid until {ends:%Y-%m-%d}{soon}"
