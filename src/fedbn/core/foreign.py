"""Code that is not ours, a user's model or loss: it may fail, and it must not end the process."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn


@contextmanager
def contained() -> Iterator[None]:
    """Turn what would end the process (`sys.exit`, any `BaseException`) into an error of the code.

    Examples:
        >>> with contained():
        ...     raise SystemExit(0)
        Traceback (most recent call last):
        RuntimeError: it asks for the end of the process: SystemExit(0)
    """
    try:
        yield
    except Exception:
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and _may_be_interrupted():
            raise
        raise RuntimeError(f"it asks for the end of the process: {error!r}") from error


@contextmanager
def held_exits() -> Iterator[None]:
    """Let `os._exit` raise as `sys.exit` does, in this process; for processes that are our own."""
    end, process = os._exit, os.getpid()

    def held(status: int) -> NoReturn:
        if os.getpid() != process:  # a forked child has to end itself so
            end(status)
        raise SystemExit(status)

    os._exit = held
    try:
        yield
    finally:
        os._exit = end


def _may_be_interrupted() -> bool:
    """Tell whether Ctrl-C raises here: in the main thread alone, and where nobody else hears it."""
    main = threading.current_thread() is threading.main_thread()
    return main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
