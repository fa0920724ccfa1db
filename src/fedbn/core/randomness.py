"""Every random draw of a run comes from a generator named by what it is for.

Because a generator is a function of (seed, purpose, round, client), a resumed run needs no stored
generator, and no draw depends on which client happened to train first.
"""

from __future__ import annotations

import hashlib

import torch


def number(seed: int, purpose: str, round: int = 0, client: str = "") -> int:
    """Derive a 63-bit number from what the randomness is for.

    Examples:
        >>> number(0, "order", 1, "a") == number(0, "order", 1, "a")
        True
        >>> number(0, "order", 1, "a") == number(0, "order", 2, "a")
        False
    """
    text = f"{seed}\0{purpose}\0{round}\0{client}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "little") >> 1


def generator(seed: int, purpose: str, round: int = 0, client: str = "") -> torch.Generator:
    """Make the CPU generator for one purpose, round and client."""
    return torch.Generator().manual_seed(number(seed, purpose, round, client))
