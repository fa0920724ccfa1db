"""Ctrl-C and SIGTERM: once to stop after the round, twice to stop at once."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from os import _exit
from types import FrameType

_SHOW_CURSOR = "\x1b[?25h"  # a bar hides it


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
            _say(_SHOW_CURSOR if sys.stderr.isatty() else "")
            _say("fedbn: stopped at once; finished rounds are saved\n")
            _exit(130)
        self._asked = True
        _say("fedbn: stopping after this round (once more to stop at once) ...\n")


def _say(text: str) -> None:
    """Write past Python's buffers: a signal may arrive in the middle of a print."""
    with suppress(OSError):
        os.write(2, text.encode())
