"""Ctrl-C and SIGTERM: once to stop after the round, twice to stop at once."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


class Stopper:
    """Answers whether a stop was asked for; installs the signal handlers while it is open."""

    def __init__(self) -> None:
        self._asked = False
        self._before: dict[int, object] = {}

    def __enter__(self) -> Stopper:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._hear)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def __call__(self) -> bool:
        """Tell whether a stop was asked for."""
        return self._asked

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self._asked:
            print("fedbn: stopped at once; finished rounds are saved", file=sys.stderr, flush=True)
            os._exit(130)
        self._asked = True
        print(
            "fedbn: stopping after this round (once more to stop at once) ...",
            file=sys.stderr,
            flush=True,
        )
