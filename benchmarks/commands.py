"""Rows of the benchmark for whole commands, from a process's start to its end.

The work of the first rows: `--model mlp`, 64 samples of 32 features and 10 classes a client from
npz files on disk, FedAvg and FedBN, one seed, 20 rounds, every round scored, with run folder, table
and picture.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from benchmarks.measuring import Row, interleaved, seconds
from benchmarks.sites import CLASSES, FEATURES, ROUNDS, site, write_sites
from benchmarks.vmap_round import VmapLoop
from fedbn.core.engine import cores
from fedbn.core.federation import Client, Federation, Split
from fedbn.models.networks import mlp

if TYPE_CHECKING:
    from benchmarks.bench import Ours


def fedbn(*words: object) -> None:
    """Run a command in a process of its own."""
    command = [sys.executable, "-m", "fedbn", *map(str, words)]
    subprocess.run(command, capture_output=True, check=True)


@contextmanager
def trained(
    clients: int, *more: object, methods: Sequence[str] = ("fedavg", "fedbn")
) -> Iterator[tuple[Row, Path]]:
    """Time `fedbn run`; gives the row and the run folder while it is there."""
    with tempfile.TemporaryDirectory() as folder:
        data, run = write_sites(Path(folder) / "data", clients), Path(folder) / "run"
        words = ["run", "--data", data, "--model", "mlp", "--seed", 0, "--rounds", ROUNDS]
        words += [word for method in methods for word in ("--method", method)]
        words += ["--out", run, *more]
        row = Row(f"fedbn run, {clients:,} clients", "s")
        row.ours = [seconds(lambda: fedbn(*words))]
        yield row, run


def commands(peak: float) -> list[Row]:
    """Whole commands: the demo, 200 and 1,000 clients, a report, a resume, 10,000 clients."""
    with tempfile.TemporaryDirectory() as folder:
        demo = Row("fedbn run on the demo, one seed", "s")
        demo.ours = [seconds(lambda: fedbn("run", "--seed", 0, "--out", Path(folder) / "demo"))]
    rows = [demo]
    with trained(200) as (row, run):
        report = Row("fedbn report, 200 clients", "s", ours=[seconds(lambda: fedbn("report", run))])
        resume = Row("fedbn resume, 200 clients, finished", "s")
        resume.ours = [seconds(lambda: fedbn("resume", run))]
        rows += [row, report, resume]
    with trained(1000) as (row, _):
        rows.append(row)
    part = ("--set", "training.participation=0.01")
    with trained(10_000, *part, methods=["fedbn"]) as (row, _):
        row.name, row.note = "fedbn run, 10,000 clients, 1 %", "all scored at the end"
        rows.append(row)
    return rows


def engine(peak: float) -> list[Row]:
    """A round of 1,000 small clients beside eager `torch.func.vmap` on the same arrays."""
    from benchmarks.bench import Ours

    def split(given: dict[str, np.ndarray], name: str) -> Split:
        return Split(*(torch.from_numpy(given[f"{name}_{part}"]) for part in "xy"))

    sites = {f"c{number}": site(number) for number in range(1000)}
    clients = tuple(
        Client(name, "d", split(given, "train"), {"d": split(given, "test")})
        for name, given in sites.items()
    )
    federation = Federation("vectors", clients, tuple("0123456789"))
    build = partial(mlp, CLASSES, (FEATURES,))
    vmap, threads = VmapLoop(clients, build), {}
    for count in (1, cores()):
        torch.set_num_threads(count)
        vmap.round()
        threads[seconds(vmap.round)] = count
    best = threads[min(threads)]

    def peer() -> None:
        torch.set_num_threads(best)
        vmap.round()
        torch.set_num_threads(1)

    note = f"the peer in place of plain; threads: {best}"
    row = Row("MLP, 1,000 clients: eager vmap", "s a round", note=note)
    with closing(Ours(federation, build, engine="batched")) as ours:
        return [interleaved(row, peer, ours.round, 9), *_jax(ours)]


def _jax(ours: Ours) -> list[Row]:
    """The same beside JAX, by turns of three rounds, where an environment with it is named."""
    row = Row("MLP, 1,000 clients: JAX", "s a round", note="jit, vmap over chunks of 50")
    try:
        threads = best_threads("jax_round.py")
        for _ in range(3):
            done = peer_process("jax_round.py", 1000, 3, threads)
            row.plain += map(float, done.split())
            ours.round()  # as the peer does one before the clock runs
            row.ours += [seconds(ours.round) for _ in range(3)]
    except PeerError as error:
        row.note, row.ours = str(error), [seconds(ours.round)]
    else:
        row.note += f"; threads: {threads}"
    return [row]


class PeerError(Exception):
    """Why there is no number of a peer."""


def peers(peak: float) -> list[Row]:
    """A whole run of FedBN, 1,000 clients, beside frameworks of others; from start to end."""
    scripts = {"pfl-research": "pfl", "fluke": "fluke", "Flower's simulation": "flower"}
    found = []
    for name, script in scripts.items():
        path = f"peers/{script}_run.py"
        with trained(1000, methods=["fedbn"]) as (row, _):
            row.name = f"1,000 clients, 20 rounds: {name}"
        try:
            threads = best_threads(path)
            row.plain = [seconds(lambda p=path, t=threads: peer_process(p, 1000, ROUNDS, t))]
            row.note = f"the peer in place of plain; threads: {threads}"
        except subprocess.TimeoutExpired:
            row.note = "the peer: over 10 min"
        except PeerError as error:
            row.note = str(error)
        found.append(row)
    return found


def best_threads(script: str) -> int:
    """How many threads a peer is fastest with, of one and of as many as there are cores."""
    counts = (1, cores())
    return min(counts, key=lambda n: seconds(lambda: peer_process(script, 100, 2, n)))


def peer_process(script: str, clients: int, rounds: int, threads: int) -> str:
    """Run a peer in the environment that `FEDBN_PEERS` names, ten minutes at most.

    Raises:
        PeerError: There is none, or the peer is not installed or failed.
    """
    python = os.environ.get("FEDBN_PEERS")
    if not python:
        raise PeerError("not measured: FEDBN_PEERS names no Python that has the peer")
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    limits = dict.fromkeys(("OMP_NUM_THREADS", "NPROC"), str(threads))
    command = [python, str(Path(__file__).parent / script), str(clients), str(rounds)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=600, env={**os.environ, **quiet, **limits}
    )
    if done.returncode:
        raise PeerError(f"not measured: {done.stderr.strip().splitlines()[-1]}")
    return done.stdout


def sharing(peak: float) -> list[Row]:
    """What the run folder takes of a round, 50 and 1,000 clients."""
    return [_share(clients) for clients in (50, 1000)]


def _share(clients: int) -> Row:
    code = """
import sys, tempfile, time
from functools import partial
from pathlib import Path
from benchmarks.bench import vectors
from fedbn.core.plan import Plan
from fedbn.core.training import Training
from fedbn.experiments.runner import Writer, run_plan
from fedbn.methods.paper import fedbn
from fedbn.models.networks import mlp
plan = Plan(fedbn(), vectors(int(sys.argv[1]), 64, 32), partial(mlp, 2, (32,)),
            Training(rounds=60, batch_size=32, last_batch="keep"),
            engine="batched")
spent = 0.0
with tempfile.TemporaryDirectory() as folder:
    writer = Writer(Path(folder))
    def write(event):
        global spent
        begin = time.perf_counter()
        writer(event)
        spent += time.perf_counter() - begin
    begin = time.perf_counter()
    run_plan(plan, write)
    print(100 * spent / (time.perf_counter() - begin))
"""
    found = subprocess.run(
        [sys.executable, "-c", code, str(clients)], capture_output=True, text=True, check=True
    )
    note = "checkpoints and records; 60 rounds"
    return Row(
        f"run folder's share, {clients:,} clients", "%", ours=[float(found.stdout)], note=note
    )
