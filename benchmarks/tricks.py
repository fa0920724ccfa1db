"""What each trick for speed gives: rows of the benchmark with all of them, and without one.

`scripts/bench` compares with a plain loop; this says which trick earns its place (at least a tenth
of some row). Each variant is a process of its own, because some tricks are the process's; they are
measured in turn. `python -m benchmarks.tricks` for all rows, `... digits` for some.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Callable
from functools import partial

from benchmarks.measuring import machine, seconds

_PASSES = 5


def _nothing() -> None:
    """All tricks as they are."""


def _channels_last() -> None:
    import fedbn.fast

    fedbn.fast.fastest = lambda model, sample: fedbn.fast.as_usual


def _freed_memory() -> None:
    import benchmarks.bench

    benchmarks.bench.keep_freed_memory = lambda: None


def _weight_gradients() -> None:
    import fedbn.fast

    fedbn.fast.worth_it = lambda model: False


def _folding() -> None:
    import fedbn.fast

    fedbn.fast.fold = lambda model, x: None


def _blocks_in_scoring() -> None:
    import fedbn.fast

    fedbn.fast.fold = partial(fedbn.fast.fold, layouts=("plain",))


WITHOUT: dict[str, Callable[[], None]] = {
    "nothing": _nothing,
    "channels last": _channels_last,
    "freed memory": _freed_memory,
    "weight gradients": _weight_gradients,
    "folding": _folding,
    "blocks in scoring": _blocks_in_scoring,
}
ROWS = {
    "digits": ["nothing", "channels last", "freed memory", "weight gradients"],
    "alexnet": ["nothing", "channels last", "freed memory", "weight gradients"],
    "evaluation": ["nothing", "blocks in scoring", "freed memory", "folding"],
    "averaging": ["nothing", "freed memory"],
}


def _work(row: str) -> Callable[[], None]:
    from benchmarks.bench import Ours, pictures
    from fedbn.core.aggregation import mean_of
    from fedbn.models.networks import alexnet, digit_cnn

    digit = partial(digit_cnn, 10, (3, 28, 28))
    if row == "digits":
        return Ours(pictures(5, 256, 4, 28), digit).round
    if row == "alexnet":
        return Ours(pictures(4, 32, 4, 256), partial(alexnet, 10, (3, 256, 256))).round
    if row == "evaluation":
        return Ours(pictures(5, 2, 600, 28), digit).score
    shared = Ours(pictures(5, 4, 4, 28), digit).state.shared
    packs = [shared.clone() for _ in range(5)]
    return lambda: mean_of(packs) and None


def _measure(row: str, variant: str) -> None:
    """A variant's process: a line in, seconds of one pass out."""
    import torch

    WITHOUT[variant]()
    torch.set_num_threads(1)
    work = _work(row)
    work()
    print("ready", flush=True)
    for _ in sys.stdin:
        print(seconds(work), flush=True)


def _compare(row: str) -> None:
    """Measure a row's variants in turn; says what each trick gives, as a ratio of times."""
    command = [sys.executable, "-m", "benchmarks.tricks", "--variant", row]
    variants = {
        name: subprocess.Popen(
            [*command, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        for name in ROWS[row]
    }
    times: dict[str, list[float]] = {name: [] for name in variants}
    for process in variants.values():
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for _ in range(_PASSES):
        for name, process in variants.items():
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("go\n")
            times[name].append(float(process.stdout.readline()))
    for process in variants.values():
        process.communicate()
    base = times["nothing"]
    for name, found in times.items():
        ratios = [a / b for a, b in zip(found, base, strict=True)]
        print(
            f"{row:12} without {name:34} {statistics.median(found):8.3f} s  "
            f"{statistics.median(ratios):5.2f}×  ({min(ratios):.2f} to {max(ratios):.2f})",
            flush=True,
        )


def main() -> None:
    if sys.argv[1:2] == ["--variant"]:
        _measure(*sys.argv[2:4])
        return
    print(machine())
    for row in sys.argv[1:] or ROWS:
        _compare(row)


if __name__ == "__main__":
    main()
