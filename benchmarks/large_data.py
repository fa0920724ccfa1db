"""Memory and bits of a Dataset that does not fit in memory.

    python benchmarks/large_data.py --gigabytes 20 --workers 0 1 4

Two clients share a data set that makes its samples, pictures of 602 KB with noise drawn from
torch's global generator. One round trains on all of them and scores all of them. A line a number
of workers: the most memory of this process, and of it and its workers together (pages that they
share counted once), seconds, and a hash of all models' bits, the same on every line.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import multiprocessing
import re
import resource
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import Dataset

import fedbn

SHAPE = (3, 224, 224)
BYTES = 4 * 3 * 224 * 224


class Pictures(Dataset):
    """Noise around a level that tells the class; nothing is kept."""

    def __init__(self, n: int, shift: float):
        self.n, self.shift = n, shift
        self.targets = [index % 2 for index in range(n)]

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        label = index % 2
        return torch.rand(SHAPE).add_(label * 0.1 + self.shift), label


def network() -> nn.Module:
    """A network that is quick beside the reading."""
    return nn.Sequential(
        nn.Conv2d(3, 4, 8, stride=8),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(64, 2),
    )


def measure(gigabytes: float, workers: int) -> str:
    """Train once; say what it took."""
    n = int(gigabytes * 1e9 / BYTES / 2)
    sites = {f"site-{at}": Pictures(n, float(at)) for at in range(2)}
    begun, seen, done = time.monotonic(), [0.0], threading.Event()
    threading.Thread(target=_watch, args=(seen, done), daemon=True).start()
    result = fedbn.fit(sites, network, rounds=1, batch_size=32, data__workers=workers)
    done.set()
    digest = hashlib.sha256()
    for client in sorted(result.models):
        for value in result.model(client).state_dict().values():
            digest.update(value.numpy().tobytes())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    took = time.monotonic() - begun
    return (
        f"{gigabytes:g} GB, {workers} workers: {peak:.2f} GB here, {max(seen):.2f} GB together, "
        f"{took:.0f} s, bits {digest.hexdigest()[:16]}"
    )


def _watch(seen: list[float], done: threading.Event) -> None:
    while not done.wait(0.5):
        children = [child.pid for child in multiprocessing.active_children()]
        seen.append(sum(_memory(process) for process in ["self", *children]))


def _memory(process: int | str | None) -> float:
    with contextlib.suppress(OSError):  # it may have ended
        text = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="ascii")
        return int(re.findall(r"^Pss:\s+(\d+)", text, re.MULTILINE)[0]) / 1e6
    return 0.0


def main() -> None:
    """Measure each number of workers in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=20.0)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 4])
    asked = parser.parse_args()
    for workers in asked.workers:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as own:
            print(own.submit(measure, asked.gigabytes, workers).result(), flush=True)


if __name__ == "__main__":
    main()
