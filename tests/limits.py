"""What bad input may cost: seconds, and less than a gigabyte."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_GIGABYTE = 2**30


@contextmanager
def a_gigabyte() -> Iterator[None]:
    """Refuse more than a gigabyte beyond what the process has: asking for it raises an error."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + _GIGABYTE, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


class Hung(BaseException):
    """Nothing may catch it: an input took too long."""


@contextmanager
def seconds(count: float) -> Iterator[None]:
    """End what takes longer."""

    def ring(*_: object) -> None:
        raise Hung(f"still at it after {count} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, count)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
