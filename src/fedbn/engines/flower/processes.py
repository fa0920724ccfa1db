"""Child processes: started with a clean environment, watched, and ended with their parent."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from fedbn.errors import FedbnError

_GRACE = 10.0
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def environment(home: Path) -> dict[str, str]:
    """Flower's settings: no telemetry, no update checks, nothing installed, its files at home."""
    quiet = {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "OMP_NUM_THREADS": "1",
    }
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {**os.environ, **quiet, "PATH": path}


class Child:
    """A Python module running as a process of its own; its output goes to a file."""

    def __init__(self, module: str, arguments: Sequence[str], home: Path, log: Path):
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        with log.open("ab") as output:
            self._offset = output.tell()
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, *arguments, str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment(home),
                start_new_session=True,  # the terminal's Ctrl-C goes to the parent alone
            )

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def status(self) -> int | None:
        """Its exit status, None while it runs."""
        return self._process.poll()

    def ask_to_end(self) -> None:
        """Ask it to end, without waiting."""
        if self._process.poll() is None:
            self._process.terminate()

    def end(self) -> None:
        """Ask it to end, then end it."""
        self.ask_to_end()
        if self._process.poll() is None:
            try:
                self._process.wait(_GRACE)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def said(self) -> str:
        """What it wrote."""
        with self.log.open("rb") as stream:
            stream.seek(self._offset)
            return stream.read().decode(errors="replace")


def follow(parent: int) -> None:
    """End this process when the one that started it is gone, however that one ended."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=watch, daemon=True).start()


def wait_until(ready: Callable[[], bool], child: Child, seconds: float, what: str) -> None:
    """Wait for a child to be ready, as long as it lives."""
    begun = time.monotonic()
    while not ready():
        if child.status() is not None:
            raise FedbnError(f"{what} ended: {last_words(child.said())} (all of it: {child.log})")
        if time.monotonic() - begun > seconds:
            raise FedbnError(f"{what} is not ready after {seconds:g} s (see {child.log})")
        time.sleep(0.05)


def last_words(text: str) -> str:
    """The most telling line of a log: the last that names an error, or the last one."""
    lines = [line.strip() for line in _COLOURS.sub("", text).splitlines() if line.strip()]
    telling = [line for line in lines if "rror" in line or "failed" in line.lower()]
    return (telling or lines or ["it said nothing"])[-1][:300]


def listens(host: str, port: int) -> bool:
    """Tell whether something listens at a port."""
    try:
        with socket.create_connection((host, port), timeout=1):
            return True
    except OSError:
        return False


def free_port() -> int:
    """Find a port of the loopback interface that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
