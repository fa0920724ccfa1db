"""Every random draw of a run comes from a generator named by what it is for.

Because a generator is a function of (seed, purpose, round, client), a resumed run needs no stored
generator, and no draw depends on which client happened to train first.
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

T = TypeVar("T")


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


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Let the generators that a whole process shares begin from a seed, and put them back.

    These are torch's, Python's and NumPy's; a user's code may draw from any of them.
    """
    numpy = _numpy()
    before, numpys = random.getstate(), numpy and numpy.get_state()
    gpus = range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0)
    with torch.random.fork_rng(gpus):
        torch.manual_seed(seed)
        random.seed(seed)
        if numpy:
            numpy.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(before)
            if numpy:
                numpy.set_state(numpys)


def drawn(run: Callable[[], T]) -> tuple[T, tuple[str, ...]]:
    """Run something from a fixed seed; gives its result, and whose generators it drew from.

    Examples:
        >>> drawn(lambda: random.random() < 2)
        (True, ("Python's",))
    """
    with seeded(0):
        untouched = _next()
    with seeded(0):
        result, found = run(), _next()
    return result, tuple(name for name in found if found[name] != untouched.get(name))


def _next() -> dict[str, float]:
    found = {"torch's": float(torch.rand(())), "Python's": random.random()}
    return found | ({"NumPy's": numpy.random()} if (numpy := _numpy()) else {})


def _numpy() -> Any:
    """NumPy's own generator, where anybody imported it."""
    return getattr(sys.modules.get("numpy"), "random", None)
