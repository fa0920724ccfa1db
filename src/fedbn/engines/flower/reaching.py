"""The way to the server: TLS with the federation's own authority, and clocks that agree."""

from __future__ import annotations

import datetime
import email.utils
import socket
import ssl
import time

from cryptography import x509
from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_TOLERANCE

from fedbn.engines.flower.bundle import Bundle
from fedbn.engines.flower.certificates import hosts_of
from fedbn.errors import ConfigError, FedbnError

_TIMEOUT = 5.0


def reach(bundle: Bundle, seconds: float) -> float:
    """Make sure that the server answers and is the right one; tells how far this clock is ahead.

    Args:
        bundle: Says where it is and who signs for it.
        seconds: How long to try while nothing answers.

    Raises:
        FedbnError: It does not answer in time.
        ConfigError: What answers is not the federation's server, and why; or the clocks differ.
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
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=bundle.ca.decode("ascii"))
    request = f"HEAD / HTTP/1.1\r\nHost: {bundle.host}\r\nConnection: close\r\n\r\n"
    with (
        socket.create_connection((bundle.host, bundle.port), timeout=_TIMEOUT) as plain,
        context.wrap_socket(plain, server_hostname=bundle.host) as secure,
    ):
        secure.sendall(request.encode("ascii"))
        lines = secure.recv(4096).decode("latin-1").lower().split("\r\n")
    said = next((line.partition(":")[2] for line in lines if line.startswith("date:")), "")
    try:
        return time.time() - email.utils.parsedate_to_datetime(said.strip()).timestamp()
    except ValueError:
        return 0.0


def _checked(ahead: float) -> float:
    """Refuse clocks so different that Flower's server takes every message for a replayed one."""
    if -TIMESTAMP_TOLERANCE < ahead < SYSTEM_TIME_TOLERANCE:
        return ahead
    side = "ahead of" if ahead > 0 else "behind"
    raise ConfigError(
        f"the clock here is {abs(ahead):,.0f} s {side} the server's: its messages would be refused "
        f"(at most {SYSTEM_TIME_TOLERANCE} s ahead or {TIMESTAMP_TOLERANCE} s behind); set both "
        "clocks by NTP"
    )


def _explained(bundle: Bundle, error: ssl.SSLError) -> str:
    where = f"the server at {bundle.address}"
    if not isinstance(error, ssl.SSLCertVerificationError):
        return f"{where} does not speak TLS ({error.reason}): not this federation's server"
    shown = _shown_certificate(bundle)
    if shown is None:
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


def _shown_certificate(bundle: Bundle) -> x509.Certificate | None:
    try:
        text = ssl.get_server_certificate((bundle.host, bundle.port), timeout=_TIMEOUT)
        return x509.load_pem_x509_certificate(text.encode())
    except (OSError, ValueError):
        return None
