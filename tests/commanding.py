"""The command line from tests: small sites as npz files, calls in this process, and real processes.

A call in this process costs no import of torch; real processes are for signals and kills.
"""

from __future__ import annotations

import io
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
from safetensors.torch import load_file, save as to_bytes
from torch import Tensor

from fedbn import own_modules, registry
from fedbn.cli.main import main

SOURCE = Path(__file__).parents[1] / "src"
RECORD_KEYS = [
    *("method", "setting", "seed", "round", "client", "domain", "split", "metric", "value"),
    "statistics",
]
_PATIENCE = 300.0  # a busy machine is no failure
_NOT_A_USERS = (sys.prefix, sys.base_prefix, str(SOURCE.parent))  # where other modules come from


class Answer(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def line(self) -> str:
        """The one line that a refusal is; fails where there are more, or a traceback."""
        assert self.err.startswith("fedbn: "), self.err
        assert self.err.count("\n") == 1, self.err
        return self.err.strip()


def arrays(seed: int, n: int = 16, scale: float = 1.0) -> dict[str, Any]:
    """n training and 8 test vectors of six features; the sign of the first is the class."""
    x = np.random.default_rng(seed).normal(size=(n + 8, 6)).astype("float32")
    y = (x[:, 0] > 0).astype("int64")
    y[:2] = y[n : n + 2] = [0, 1]
    x *= scale
    return {"train_x": x[:n], "train_y": y[:n], "test_x": x[n:], "test_y": y[n:]}


def write_sites(
    folder: Path, names: str | list[str] = "ab", change: Callable[..., Any] | None = None
) -> Path:
    """Write one npz a client, each with features ten times larger than the one before.

    Args:
        folder: Where to.
        names: The clients.
        change: Takes the arrays of the last client and may change them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for i, name in enumerate(names):
        content = arrays(i, scale=10.0**i)
        if change and i == len(names) - 1:
            change(content)
        np.savez(folder / f"{name}.npz", **content)
    return folder


def call(
    *arguments: object, cwd: Path | None = None, tty: bool = False, pictures: bool = False
) -> Answer:
    """Run the command in this process, as a fresh process would.

    Args:
        arguments: What is typed behind `fedbn`.
        cwd: The current directory.
        tty: Whether stdout and stderr are terminals.
        pictures: Draw learning curves, which takes longer than all the rest of a small run.
    """
    out, err = (Terminal(), Terminal()) if tty else (io.StringIO(), io.StringIO())
    argv = mock.patch.object(sys, "argv", ["fedbn", *map(str, arguments)])
    undrawn = mock.patch("fedbn.results.figures.draw_curves", lambda records, file: file.touch())
    with _restored(cwd), redirect_stdout(out), redirect_stderr(err), argv:
        try:
            with nullcontext() if pictures else undrawn:
                main()
        except SystemExit as end:
            code = end.code
    assert isinstance(code, int)
    return Answer(code, out.getvalue(), err.getvalue())


class Terminal(io.StringIO):
    """A stream that says a person is looking."""

    def isatty(self) -> bool:
        return True


@contextmanager
def _restored(cwd: Path | None) -> Iterator[None]:
    """Undo what the command does to its process."""
    here, path, modules = Path.cwd(), list(sys.path), set(sys.modules)
    trust = mock.patch.multiple(registry, _trusted=set(), _used=set(), _last_on_path=[])
    pins = mock.patch.multiple(own_modules._PINNED, pins={}, folders=set(), admitted=set())
    handlers = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
    root = logging.getLogger()
    logs, level = list(root.handlers), root.level
    os.chdir(cwd or here)
    try:
        path_of_workers = mock.patch.dict(os.environ, {"PYTHONPATH": str(SOURCE)})
        with trust, pins, path_of_workers:
            yield
    finally:
        os.chdir(here)
        sys.path[:] = path
        root.handlers[:] = logs
        root.setLevel(level)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for name in set(sys.modules) - modules:
            file = getattr(sys.modules[name], "__file__", None) or ""
            if file and not file.startswith(_NOT_A_USERS):
                del sys.modules[name]


class Processes:
    """Starts real commands, and ends what is left of them."""

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[str]] = []

    def start(
        self, *arguments: object, cwd: Path, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Start a command."""
        with (cwd / "stderr").open("w") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-m", "fedbn", *map(str, arguments)],
                cwd=cwd,
                env={**os.environ, "PYTHONPATH": str(SOURCE), **(env or {})},
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
        self._started.append(process)
        return process

    def run(self, *arguments: object, cwd: Path, env: Mapping[str, str] | None = None) -> Answer:
        """Run a command to its end."""
        process = self.start(*arguments, cwd=cwd, env=env)
        out, _ = process.communicate(timeout=_PATIENCE)
        return Answer(process.returncode, out, (cwd / "stderr").read_text())

    def end(self) -> None:
        """End every process, and every worker below it, by its id."""
        for process in self._started:
            for pid in [*(children(process.pid) if process.poll() is None else []), process.pid]:
                if pid != process.pid or process.poll() is None:
                    end(pid)
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def end(pid: int) -> None:
    """Kill one process, where it still runs."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def children(pid: int) -> list[int]:
    """The processes that a process started."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += map(int, task.read_text().split())
        except OSError:
            continue
    return found


def running(pid: int) -> bool:
    """Whether a process still runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(condition: Callable[[], Any], process: subprocess.Popen[str] | None = None) -> None:
    """Wait for a condition; fails where the process ends first."""
    give_up = time.monotonic() + _PATIENCE
    while not condition():
        assert time.monotonic() < give_up, "waited in vain"
        assert process is None or process.poll() is None, "the process ended first"
        time.sleep(0.001)


def records(file: Path) -> list[dict[str, Any]]:
    """The lines of a metrics file."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def with_running_statistics(found: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the records of scores with running statistics."""
    return [record for record in found if record["statistics"] == "running"]


def bits(run: Path) -> dict[str, bytes]:
    """What two equal runs have in common: metrics, weights and manifests, byte by byte."""
    files = [run / "metrics.jsonl", *sorted(run.glob("checkpoints/*/*/*/**/*"))]
    return {str(f.relative_to(run)): f.read_bytes() for f in files if f.is_file()}


def shared_in(checkpoint: Path) -> dict[str, Tensor]:
    """The shared part that a checkpoint holds."""
    found = load_file(checkpoint / "state.safetensors")
    return {k.removeprefix("shared/"): v for k, v in found.items() if k.startswith("shared/")}


def flip_row(checkpoint: Path, client: str, section: str = "local") -> Path:
    """Flip one bit of a client's part in a checkpoint; returns the file."""
    file = checkpoint / "state.safetensors"
    clients = json.loads((checkpoint / "manifest.json").read_text())["rows"][section]["clients"]
    tensors = load_file(file)
    name = min(key for key in tensors if key.startswith(f"{section}/"))
    tensors[name][list(clients).index(client)].view(torch.uint8)[0] ^= 4
    file.write_bytes(to_bytes(tensors))
    return file


def newest(run: Path, method: str = "fedbn", seed: int = 0) -> Path:
    """The newest checkpoint of a job."""
    return max((run / "checkpoints" / method / "default" / f"seed-{seed}").glob("round-*"))
