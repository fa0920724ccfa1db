"""Machines of one's own for a test: each a network namespace with a cable to one switch.

No root is needed where the system lets a user have namespaces: `unshare` makes the user root of
the switch's namespace, in which the machines' namespaces are made. Commands are processes of their
own, forked from one that has imported everything: a test has dozens of them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path

_SECONDS = 20.0
_SHELL = """
import ctypes, json, os, signal, sys
import fedbn.cli.federation, fedbn.cli.federation_run, fedbn.cli.training
from fedbn.cli.main import main
libc, folder = ctypes.CDLL(None, use_errno=True), sys.argv[1]
def reap(*_):
    try:
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            code = os.waitstatus_to_exitcode(ended[1])
            open(f"{folder}/{ended[0]}.part", "w").write(str(code))
            os.rename(f"{folder}/{ended[0]}.part", f"{folder}/{ended[0]}.status")
    except ChildProcessError:
        pass
signal.signal(signal.SIGCHLD, reap)
print("ready", flush=True)
while line := sys.stdin.readline():
    machine, words, place, out, environment = json.loads(line)
    if pid := os.fork():
        print(pid, flush=True)
        continue
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    network = os.open(f"/proc/{machine}/ns/net", os.O_RDONLY)
    assert libc.setns(network, 0x40000000) == 0, os.strerror(ctypes.get_errno())
    os.chdir(place)
    os.environ.update(environment)
    said = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number, taken in enumerate((os.open("/dev/null", os.O_RDONLY), said, said)):
        os.dup2(taken, number)
    sys.argv = ["fedbn", *words]
    code = 1
    try:
        main()
    except SystemExit as end:
        code = end.code
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code or 0)
"""


class NoMachines(Exception):  # noqa: N818 - a test that cannot have them is skipped
    """This system lets no process have a network of its own, and why."""


class Machines:
    """A switch and the machines at it; the first has the address 10.77.0.1.

    Raises:
        NoMachines: Where the system does not allow it, or `ip` is not installed.
    """

    def __init__(self, stack: ExitStack, names: tuple[str, ...]):
        self._stack = stack
        self._switch = self._sleeper(["unshare", "--map-root-user", "--net"], Path("/proc/self"))
        self._ip(self._switch, "link add wires type bridge", "link set wires up")
        self._of: dict[str, int] = {}
        self.addresses: dict[str, str] = {}
        for number, name in enumerate(names, start=1):
            place = self._entering(self._switch)
            made = self._sleeper([*place, "unshare", "--net"], Path(f"/proc/{self._switch}"))
            self._of[name], self.addresses[name] = made, f"10.77.0.{number}"
            self._ip(
                self._switch,
                f"link add port{number} type veth peer name eth0 netns {made}",
                f"link set port{number} master wires up",
            )
            address = f"addr add {self.addresses[name]}/24 dev eth0"
            self._ip(made, "link set lo up", address, "link set eth0 up")
        self._shell: subprocess.Popen | None = None

    def start(self, name: str, words: list[str], place: Path, out: Path, home: dict) -> Command:
        """Start a command of fedbn on a machine, in a folder; what it says goes to a file."""
        folder = out.parent
        if self._shell is None:
            command = [*self._entering(self._switch), sys.executable, "-c", _SHELL, str(folder)]
            self._shell = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=home
            )
            self._stack.callback(_end, self._shell)
            self._folder = folder
            assert self._shell.stdout.readline() == "ready\n"
        order = [self._of[name], words, str(place), str(out), home]
        self._shell.stdin.write(json.dumps(order) + "\n")
        self._shell.stdin.flush()
        started = Command(int(self._shell.stdout.readline()), self._folder, out)
        self._stack.callback(started.kill)
        return started

    def listening(self, name: str) -> set[str]:
        """The addresses, loopback left out, at which a machine takes connections."""
        command = [*self._entering(self._of[name]), "cat", "/proc/net/tcp", "/proc/net/tcp6"]
        rows = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        found = [row.split() for row in rows.splitlines() if ":" in row.partition(":")[2]]
        open_ = {row[1] for row in found if row[3] == "0A"}
        return {one for one in open_ if not one.startswith(("0100007F", "0" * 24 + "01000000"))}

    def _entering(self, pid: int) -> list[str]:
        return ["nsenter", "--preserve-credentials", "--user", "--net", f"--target={pid}", "--"]

    def _ip(self, pid: int, *commands: str) -> None:
        for command in commands:
            self._run([*self._entering(pid), "ip", *command.split()])

    def _sleeper(self, command: list[str], outside: Path) -> int:
        """Start what holds a namespace open; it ends with the test."""
        try:
            held = subprocess.Popen(
                [*command, "sleep", "infinity"], stderr=subprocess.PIPE, text=True
            )
        except OSError as error:
            raise NoMachines(str(error)) from error
        self._stack.callback(_end, held)
        before, begun = (outside / "ns/net").readlink(), time.monotonic()
        while Path(f"/proc/{held.pid}/ns/net").readlink() == before or not _is(held.pid, "sleep"):
            if held.poll() is not None or time.monotonic() - begun > _SECONDS:
                raise NoMachines(held.stderr.read() if held.poll() is not None else "too slow")
            time.sleep(0.02)
        return held.pid

    def _run(self, command: list[str]) -> None:
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
        except OSError as error:
            raise NoMachines(str(error)) from error
        except subprocess.CalledProcessError as error:
            raise NoMachines(f"{' '.join(command[-4:])}: {error.stderr}") from error


class Command:
    """A command that runs on a machine."""

    def __init__(self, pid: int, folder: Path, out: Path):
        self.pid, self._out = pid, out
        self._status = folder / f"{pid}.status"

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""
        return int(self._status.read_text()) if self._status.exists() else None

    def wait(self, seconds: float) -> int:
        """Wait for its end."""
        begun = time.monotonic()
        while (code := self.poll()) is None:
            assert time.monotonic() - begun < seconds, f"still running: {self.said()}"
            time.sleep(0.1)
        return code

    def said(self) -> str:
        """All that it, and those before it with the same file, said."""
        return self._out.read_text() if self._out.exists() else ""

    def terminate(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Ask it to end."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, how)

    def kill(self) -> None:
        """End it; what it started ends with it."""
        if self.poll() is None:
            self.terminate(signal.SIGKILL)


def _is(pid: int, name: str) -> bool:
    return Path(f"/proc/{pid}/comm").read_text().strip() == name


def _end(process: subprocess.Popen) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()
