"""Memory of the process: keep what was freed, because the next step needs it again.

Training allocates every gradient anew each step. Above 128 KiB glibc takes such blocks from the
system and gives them back, so that each step pays for page faults over gradients as large as the
model. With the thresholds raised, freed blocks are used again.

This lasts as long as the process, so only processes that exist to train ask for it: the command
line's and its workers', never the one of somebody who calls the library.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_LARGEST = (1 << 30, 1 << 25)  # older C libraries refuse the first
_granted: dict[str, int] = {}


def keep_freed_memory() -> None:
    """Ask the C library to keep freed blocks, where it can be asked."""
    mallopt = _mallopt()
    if mallopt is None:
        return
    for size in _LARGEST:
        if mallopt(_M_MMAP_THRESHOLD, size) == 1:
            _granted["mmap_threshold"] = size
            break
    else:
        return  # a trim threshold alone would nail the other one down at 128 KiB
    if mallopt(_M_TRIM_THRESHOLD, 2**31 - 1) == 1:
        _granted["trim_threshold"] = 2**31 - 1
    # One arena for all threads: a worker finds the blocks another one freed.
    if mallopt(_M_ARENA_MAX, 1) == 1:
        _granted["arenas"] = 1


def granted() -> dict[str, int]:
    """What the C library granted this process; empty where nothing was changed."""
    return dict(_granted)


def _mallopt() -> Callable[[int, int], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        found: Callable[[int, int], int] = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return None
    return found
