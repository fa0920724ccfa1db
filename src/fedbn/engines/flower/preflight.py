"""What can be known before anything runs: certificates, keys, the port, the way to the server."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path

import flwr
import torch
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from fedbn._version import __version__
from fedbn.engines.flower.bundle import Bundle
from fedbn.engines.flower.certificates import hosts_of
from fedbn.engines.flower.folder import FederationFolder, open_to_others
from fedbn.engines.flower.processes import listens
from fedbn.engines.flower.reaching import reach
from fedbn.errors import FedbnError

_SOON = datetime.timedelta(days=30)
Finding = tuple[bool, str]


def check_folder(folder: FederationFolder) -> Iterator[Finding]:
    """Examine a federation's folder: what is right, and what is not."""
    info = folder.read()
    certificate = x509.load_pem_x509_certificate(folder.certificate.read_bytes())
    yield _dates(certificate, "the server's certificate")
    yield _dates(x509.load_pem_x509_certificate(folder.ca.read_bytes()), "the authority")
    names = hosts_of(certificate)
    yield info.host in names, f"the server's certificate is for {', '.join(names)}"
    yield from (private(file) for file in folder.private_files)
    yield True, f"{len(folder.keys())} sites with keys: {', '.join(info.sites)}"
    yield True, f"fedbn {__version__}, flwr {flwr.__version__}, torch {torch.__version__}"
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
        ahead = reach(bundle, 0)
        yield True, f"the server answers at {bundle.address}, and its certificate is right"
        yield True, f"the clocks agree within {max(1, abs(round(ahead)))} s"
    except FedbnError as error:
        yield False, str(error)


def private(file: Path) -> Finding:
    """Tell whether a file with a key is closed to others."""
    if open_to_others(file):
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
