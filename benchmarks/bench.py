"""The benchmark table. `scripts/bench` runs all rows; `scripts/bench digits mlp` runs some."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch
from torch import nn

from benchmarks.baseline import Apart
from benchmarks.commands import commands, engine, peers, sharing
from benchmarks.measuring import Row, interleaved, machine, roofline, seconds
from fedbn.core.aggregation import mean_of
from fedbn.core.engine import cores
from fedbn.core.federation import Client, Federation, Split
from fedbn.core.plan import Plan
from fedbn.core.rounds import RunState, initial_state, run_round
from fedbn.core.training import Training
from fedbn.errors import unknown
from fedbn.fast import make_crew
from fedbn.fast.allocator import keep_freed_memory
from fedbn.methods.paper import fedbn
from fedbn.models.networks import abide_net, alexnet, digit_cnn, mlp

_PASSES = 3
_ROUND_GFLOP = 1037  # five clients of 743 images, the digit CNN, forward and backward


def pictures(clients: int, samples: int, tests: int, size: int) -> Federation:
    draws = torch.Generator().manual_seed(0)

    def split(n: int) -> Split:
        x = torch.randint(0, 256, (n, 3, size, size), dtype=torch.uint8, generator=draws)
        return Split(x, torch.randint(0, 10, (n,), generator=draws))

    made = [
        Client(f"c{i}", f"c{i}", split(samples), {f"c{i}": split(tests)}) for i in range(clients)
    ]
    return Federation("pictures", tuple(made), tuple("0123456789"))


def vectors(clients: int, samples: int, width: int) -> Federation:
    draws = torch.Generator().manual_seed(0)

    def split(n: int) -> Split:
        x = torch.randn(n, width, generator=draws)
        return Split(x, (x[:, 0] > 0).long())

    made = [Client(f"c{i}", "d", split(samples), {"d": split(16)}) for i in range(clients)]
    return Federation("vectors", tuple(made), ("no", "yes"))


class Ours:
    """The embedded engine, a round at a time."""

    def __init__(
        self, federation: Federation, build: Callable[[], nn.Module], engine: str = "plain"
    ):
        self.plan = Plan(
            fedbn(),
            federation,
            build,
            Training(rounds=10**6, batch_size=32, last_batch="keep"),  # as a DataLoader does
            engine=engine,  # type: ignore[arg-type]
        )
        keep_freed_memory()
        self.crew = make_crew(self.plan, 0)
        self.state: RunState = initial_state(self.plan)

    def round(self) -> None:
        """Do a round."""
        self.state = run_round(self.plan, self.state, self.crew.train).state

    def score(self) -> None:
        """Score every client."""
        self.crew.score(self.plan.federation.clients, self.state)

    def close(self) -> None:
        """End the threads."""
        self.crew.close()


def digits(peak: float) -> list[Row]:
    """One run: a round of five clients with 743 images each; and scoring."""
    federation, build = pictures(5, 743, 16, 28), partial(digit_cnn, 10, (3, 28, 28))
    with (
        closing(Apart(federation.clients, build)) as plain,
        closing(Ours(federation, build)) as ours,
    ):
        row = interleaved(
            Row("digits, one run, 5 clients", "s a round"), plain.round, ours.round, _PASSES
        )
        row.note = (
            f"{_ROUND_GFLOP / peak / sorted(row.ours)[len(row.ours) // 2]:.0%} of the roofline"
        )
    return [row]


def evaluation(peak: float) -> list[Row]:
    tests = pictures(5, 2, 600, 28)
    build = partial(digit_cnn, 10, (3, 28, 28))
    with closing(Apart(tests.clients, build)) as plain, closing(Ours(tests, build)) as ours:
        row = Row("digits, evaluation, 5 × 600 images", "s")
        return [interleaved(row, plain.evaluate, ours.score, _PASSES)]


def sweep(peak: float) -> list[Row]:
    """Four plans in worker processes, as many side by side as there are cores."""
    federation, build = pictures(5, 743, 16, 28), partial(digit_cnn, 10, (3, 28, 28))
    row = Row("digits, sweep of 4 plans", "s a run-round")
    with (
        tempfile.TemporaryDirectory() as folder,
        closing(Apart(federation.clients, build)) as plain,
    ):
        _save_npz(federation, Path(folder) / "data")
        for count in range(_PASSES):
            row.plain.append(seconds(plain.round))
            row.ours.append(_sweep_seconds(Path(folder), count))
    row.note = f"{_ROUND_GFLOP / peak / sorted(row.ours)[len(row.ours) // 2]:.0%} of the roofline"
    return [row]


def _sweep_seconds(folder: Path, count: int, rounds: int = 4) -> float:
    """Seconds a run-round: from a run's first round to its last, checkpoints and all.

    Runs are side by side, so a run-round takes a share of what lies between two rounds of a run.
    What a run needs to begin is in the row of the first round.
    """
    from fedbn.experiments.configuration import checked
    from fedbn.experiments.planner import Planner
    from fedbn.experiments.runner import prepare, start
    from fedbn.runs.folder import RunFolder

    raw = {
        "methods": ["fedbn", "fedavg"],
        "seeds": [0, 1],
        "data": {"name": "arrays", "path": str(folder / "data")},
        "model": {"name": "digit_cnn"},
        "training": {"rounds": rounds, "batch_size": 32, "last_batch": "keep"},
        "evaluation": {"every": rounds},
    }
    experiment, planner, run = checked(raw), Planner(), RunFolder(folder / f"run-{count}")
    times: dict[object, list[float]] = {}
    beside = min(cores(), len(raw["methods"]) * len(raw["seeds"]))
    run.begin(raw)
    start(
        experiment,
        prepare(experiment, planner),
        planner,
        run,
        lambda event: (
            times.setdefault(event.job, []).append(time.perf_counter())
            if event.kind == "round"
            else None
        ),
        workers=beside,
    )
    between = [(ends[-1] - ends[0]) / (len(ends) - 1) for ends in times.values()]
    return sum(between) / len(between) / beside


def _save_npz(federation: Federation, folder: Path) -> None:
    import numpy as np

    folder.mkdir()
    for client in federation.clients:
        test = client.tests[client.domain]
        np.savez(
            folder / f"{client.name}.npz",
            train_x=client.train.x.numpy(),
            train_y=client.train.y.numpy(),
            test_x=test.x.numpy(),
            test_y=test.y.numpy(),
        )


def big_pictures(peak: float) -> list[Row]:
    federation, build = pictures(4, 62, 4, 256), partial(alexnet, 10, (3, 256, 256))
    with (
        closing(Apart(federation.clients, build)) as plain,
        closing(Ours(federation, build)) as ours,
    ):
        return [
            interleaved(
                Row("AlexNet, 4 × 62 images", "s a round"), plain.round, ours.round, _PASSES
            )
        ]


def dense(peak: float) -> list[Row]:
    rows = []
    for clients, width, build in (
        (10, 30, partial(mlp, 2, (30,))),
        (100, 30, partial(mlp, 2, (30,))),
        (1000, 30, partial(mlp, 2, (30,))),
        (100, 5995, partial(abide_net, 2, (5995,))),
    ):
        federation = vectors(clients, 64, width)
        with (
            closing(Apart(federation.clients, build)) as plain,
            closing(Ours(federation, build, engine="batched")) as ours,
        ):
            row = Row(f"MLP on {width}, {clients} clients", "s a round")
            rows.append(interleaved(row, plain.round, ours.round, _PASSES))
    return rows


def clients(peak: float) -> list[Row]:
    """Memory for one more client beside its data, and time from 5 to 50 clients."""
    code = """
import sys, time
from functools import partial
from benchmarks.bench import Ours, pictures
from benchmarks.measuring import peak_memory
from fedbn.models.networks import digit_cnn
federation = pictures(int(sys.argv[1]), 64, 4, 28)
ours = Ours(federation, partial(digit_cnn, 10, (3, 28, 28)))
for _ in range(3):  # until what the threads hold at once has been at its most
    ours.round()
begin = time.perf_counter()
ours.round()
data = sum(c.train.x.nbytes + next(iter(c.tests.values())).x.nbytes for c in federation.clients)
print(time.perf_counter() - begin, peak_memory() - data, peak_memory())
"""
    few, many = ([float(v) for v in _run(code, str(n)).split()] for n in (5, 50))
    each = Row("one more digit client, memory", "MB", note="beside its data")
    each.ours = [(many[1] - few[1]) / 45 / 1e6]
    whole = Row("50 digit clients, peak memory", "MB", ours=[many[2] / 1e6])
    slower = Row("50 clients against 5, time", "×", ours=[many[0] / few[0]], note="10 is linear")
    stacked = Row("1,000 clients of 5995-16-16-2", "MB", note="peak beside their data")
    stacked.ours = [float(_run(_STACKED)) / 1e6]
    return [each, whole, slower, stacked]


_STACKED = """
from functools import partial
from benchmarks.bench import Ours, vectors
from benchmarks.measuring import peak_memory
from fedbn.models.networks import abide_net
federation = vectors(1000, 32, 5995)
ours = Ours(federation, partial(abide_net, 2, (5995,)), engine="batched")
for _ in range(2):
    ours.round()
data = sum(c.train.x.nbytes + next(iter(c.tests.values())).x.nbytes for c in federation.clients)
print(peak_memory() - data)
"""


def aggregation(peak: float) -> list[Row]:
    federation, build = pictures(5, 4, 4, 28), partial(digit_cnn, 10, (3, 28, 28))
    with (
        closing(Apart(federation.clients, build)) as plain,
        closing(Ours(federation, build)) as ours,
    ):
        packs = [ours.state.shared.clone() for _ in range(5)]

        def average() -> None:
            mean_of(packs)

        row = Row("averaging 5 digit models", "s")
        return [interleaved(row, plain.average, average, _PASSES)]


def starting(peak: float) -> list[Row]:
    command = [sys.executable, "-m", "fedbn"]
    helped = Row("fedbn --help", "s")
    helped.ours = [
        seconds(lambda: subprocess.run([*command, "--help"], stdout=subprocess.DEVNULL, check=True))
        for _ in range(5)
    ]
    imported = Row("import fedbn", "s")
    imported.ours = [seconds(lambda: _run("import fedbn")) for _ in range(5)]
    first = Row("fedbn run: time to the first round", "s", note="torch, data, checks, one round")
    with tempfile.TemporaryDirectory() as folder:
        first.ours = [
            seconds(
                lambda i=i: subprocess.run(
                    [
                        *command,
                        "run",
                        "--method",
                        "fedbn",
                        "--seed",
                        "0",
                        "--rounds",
                        "1",
                        "--out",
                        f"{folder}/{i}",
                    ],
                    capture_output=True,
                    check=True,
                )
            )
            for i in range(3)
        ]
    return [helped, imported, first]


def _run(code: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout


ROWS: dict[str, Callable[[float], list[Row]]] = {
    "digits": digits,
    "evaluation": evaluation,
    "sweep": sweep,
    "alexnet": big_pictures,
    "mlp": dense,
    "clients": clients,
    "aggregation": aggregation,
    "starting": starting,
    "commands": commands,
    "engine": engine,
    "folder": sharing,
    "peers": peers,
}


def chosen_rows(arguments: list[str]) -> list[str]:
    """Read the command line; ends the process where it names no row."""
    parser = argparse.ArgumentParser("scripts/bench", description=__doc__)
    parser.add_argument("row", nargs="*", help=f"any of {', '.join(ROWS)}; all unless given")
    found: list[str] = parser.parse_args(arguments).row
    for name in found:
        if name not in ROWS:
            parser.error(unknown("row", name, ROWS))
    return found or list(ROWS)


def main() -> None:
    chosen = chosen_rows(sys.argv[1:])
    peaks = []
    rows: list[Row] = []
    print(f"{machine()}\n\n{'':34} {'plain':>9} {'ours':>9}  {'unit':12} ratio")
    for name in chosen:
        peaks.append(roofline(cores()))  # anew for each, because machines are not steady
        for row in ROWS[name](peaks[-1]):
            rows.append(row)
            print(row, flush=True)
    peaks.append(roofline(cores()))
    told = ", ".join(f"{peak:.0f}" for peak in peaks)
    print(
        f"\nroofline of {cores()} cores (a 5×5 convolution), before each and at the end, GFLOP/s:"
    )
    print(told)
    found = {
        "machine": machine(),
        "roofline_gflops": peaks,
        "rows": [{**asdict(row), "ratios": row.ratios if row.plain else []} for row in rows],
    }
    Path("benchmarks/results.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
