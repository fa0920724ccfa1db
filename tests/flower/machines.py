"""Machines of one's own for a test: each a network namespace with a cable to one switch.

No root is needed where the system lets a user have namespaces: `unshare` makes the user root of
the switch's namespace, in which the machines' namespaces are made.
"""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

_SECONDS = 20.0


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

    def at(self, name: str) -> list[str]:
        """What to put before a command, so that it runs on a machine."""
        return self._entering(self._of[name])

    def listening(self, name: str) -> set[str]:
        """The addresses, loopback left out, at which a machine takes connections."""
        command = [*self.at(name), "cat", "/proc/net/tcp", "/proc/net/tcp6"]
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


def _is(pid: int, name: str) -> bool:
    return Path(f"/proc/{pid}/comm").read_text().strip() == name


def _end(process: subprocess.Popen) -> None:
    process.kill()
    process.wait()
    if process.stderr is not None:
        process.stderr.close()


def python(machines: Machines, name: str, *arguments: str) -> list[str]:
    """A command of fedbn on a machine."""
    return [*machines.at(name), sys.executable, "-P", "-m", "fedbn", *arguments]
