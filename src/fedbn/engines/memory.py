"""Memory of the process: keep what was freed, because the next step needs it again.

Training allocates every gradient anew each step. Above 128 KiB glibc takes such blocks from the
system and gives them back, so that each step pays for page faults over gradients as large as the
model. With the thresholds raised, freed blocks are used again.
"""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8


def keep_freed_memory() -> bool:
    """Ask the C library to keep freed blocks; False where it cannot be asked."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    # One arena for all threads: a worker finds the blocks another one freed.
    wishes = ((_M_MMAP_THRESHOLD, 1 << 30), (_M_TRIM_THRESHOLD, 2**31 - 1), (_M_ARENA_MAX, 1))
    done = [mallopt(option, value) == 1 for option, value in wishes]
    return all(done)
