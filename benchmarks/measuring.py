"""Measuring two things side by side: alternately, several passes, and the spread of the ratio."""

from __future__ import annotations

import platform
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

# What torch takes by default, before anything here sets it.
THREADS = torch.get_num_threads()


@dataclass
class Row:
    """One line of the table."""

    name: str
    unit: str
    plain: list[float] = field(default_factory=list)
    ours: list[float] = field(default_factory=list)
    note: str = ""

    @property
    def ratios(self) -> list[float]:
        """How many times as fast ours was, pass by pass."""
        return [a / b for a, b in zip(self.plain, self.ours, strict=True)]

    def __str__(self) -> str:
        ours, unit = statistics.median(self.ours), f"{self.unit:13}"
        if not self.plain:
            return f"{self.name:34} {'':>9} {ours:9.3f}  {unit} {self.note}"
        plain, ratio = statistics.median(self.plain), statistics.median(self.ratios)
        spread = f"({min(self.ratios):.2f} to {max(self.ratios):.2f})"
        return (
            f"{self.name:34} {plain:9.3f} {ours:9.3f}  {unit} {ratio:5.2f}×  {spread}  {self.note}"
        )


def seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def interleaved(
    row: Row, plain: Callable[[], object], ours: Callable[[], object], passes: int
) -> Row:
    """Warm both up, then measure them alternately."""
    torch.set_num_threads(1)
    for count in range(passes + 1):
        a, b = seconds(plain), seconds(ours)
        if count:
            row.plain.append(a)
            row.ours.append(b)
    return row


def roofline(cores: int) -> float:
    """GFLOP/s that all cores reach together on the digit CNN's second convolution, forward."""
    x, conv = torch.randn(32, 64, 14, 14), torch.nn.Conv2d(64, 64, 5, 1, 2)
    flops = 2 * 32 * 14 * 14 * 64 * 64 * 25
    done = [0] * cores
    end = time.perf_counter() + 2

    def work(which: int) -> None:
        torch.set_num_threads(1)
        with torch.inference_mode():
            while time.perf_counter() < end:
                conv(x)
                done[which] += 1

    threads = [threading.Thread(target=work, args=(i,)) for i in range(cores)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(done) * flops / 2 / 1e9


def peak_memory() -> int:
    """The most bytes this process held at once.

    Not `ru_maxrss`, which a process inherits from the one that started it.
    """
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def machine() -> dict[str, object]:
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    model = next(
        (line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line), ""
    )
    return {
        "cpu": model,
        "cores": THREADS,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
