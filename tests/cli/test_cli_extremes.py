"""Limits of a machine, met by real processes: memory, disk, files, many clients, many rounds."""

from __future__ import annotations

import json
import multiprocessing
import os
import shlex
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch

import fedbn
from commanding import SOURCE, Processes, arrays, bits, call, records, until, write_sites
from fedbn.models.networks import small_cnn
from unprivileged import unprivileged

FEDBN = [sys.executable, "-m", "fedbn"]
SMALL = ("--model", "mlp", "--seed", "0", "--method", "fedbn", "--workers", "1")


def command(*arguments: object, cwd: Path, before: str = "") -> subprocess.CompletedProcess[str]:
    """Run the command in a shell of its own, after some words of that shell."""
    typed = f"{before} exec {shlex.join([*FEDBN, *map(str, arguments)])}"
    env = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        ["bash", "-c", typed], cwd=cwd, env=env, text=True, capture_output=True, timeout=300
    )


HUNGRY = """
import torch
from torch import nn

class Hungry(nn.Module):
    def forward(self, x):
        if self.training and torch.is_grad_enabled() and float(x.abs().max()) > 8:
            torch.empty(20 * 2**30, dtype=torch.uint8)  # never touched: only a limit refuses it
        return x

def net(classes):
    return nn.Sequential(Hungry(), nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, classes))
"""


@pytest.mark.shows("F20")
def test_a_client_out_of_memory_is_named_and_the_round_goes_on(sites: Path, tmp_path: Path) -> None:
    (tmp_path / "hungry.py").write_text(HUNGRY)
    asked = ("run", "--data", sites, "--model", "hungry:net", "--rounds", 2, "--method", "fedbn")
    asked += ("--seed", "0", "--workers", 1, "--out")
    done = command(*asked, "out", cwd=tmp_path, before=f"ulimit -v {16 * 2**20};")
    assert done.returncode == 5, done.stderr  # the rounds went on; but no update of b ever counted
    assert "round 1: b: RuntimeError" in done.stderr
    assert "every update of b was rejected" in done.stderr.splitlines()[-1]
    told = records(tmp_path / "out" / "metrics.jsonl")
    assert {r["round"] for r in told if (r["client"], r["split"]) == ("a", "test")} == {1, 2}
    assert "allocate" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.shows("F64")
def test_two_hundred_clients(tmp_path: Path) -> None:
    sites = write_sites(tmp_path / "sites", "a")
    for number in range(200):
        np.savez(sites / f"c{number:03}.npz", **arrays(number))
    (sites / "a.npz").unlink()
    answer = call("run", "--data", sites, *SMALL, "--rounds", 2, "--out", tmp_path / "out")
    assert answer.code == 0, answer.err
    records = (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()
    assert len({json.loads(record)["client"] for record in records} - {None}) >= 200


FILLER = """
import os
from pathlib import Path
import torch
from torch import nn

HERE = Path(__file__).parent
steps = 0

class Filler(nn.Module):
    def forward(self, x):
        global steps
        if self.training and torch.is_grad_enabled():
            steps += 1
            if steps == 3 and (HERE / "shut").exists():  # round 2 of two clients
                (HERE / "shut").unlink()
                with open(HERE / "disk" / "filler", "wb", buffering=0) as file:
                    try:
                        while True:
                            file.write(bytes(512))
                    except OSError:
                        pass
        return x

def net(classes):
    return nn.Sequential(Filler(), nn.Linear(6, 64), nn.BatchNorm1d(64), nn.Linear(64, classes))
"""


@pytest.mark.shows("F07", "F08")
def test_a_disk_that_is_really_full_loses_no_finished_round(sites: Path, tmp_path: Path) -> None:
    """A file system of one megabyte, filled while round 2 is trained."""
    asked = f"--data {sites} --model filler:net --rounds 3 --method fedbn --seed 0 --workers 1"
    asked += " --set training.batch_size=full --set checkpoint.every=1"
    for name in ("small", "large"):
        (tmp_path / name / "disk").mkdir(parents=True)
        (tmp_path / name / "filler.py").write_text(FILLER)
    (tmp_path / "small" / "shut").touch()
    fedbn_command = shlex.join(FEDBN)
    script = f"""
        mount -t tmpfs -o size=1m tmpfs disk || exit 99
        {fedbn_command} run {asked} --out disk/run; echo "exit $?" >&2
        rm disk/filler
        {fedbn_command} resume disk/run --trust filler && cp -r disk/run run
    """
    env = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    unshare = ["unshare", "--mount"] + ([] if os.geteuid() == 0 else ["--map-root-user"])
    done = subprocess.run(
        [*unshare, "bash", "-c", script],
        cwd=tmp_path / "small",
        env=env,
        text=True,
        capture_output=True,
        timeout=300,
    )
    if "unshare" in done.stderr or done.returncode == 99:
        pytest.skip(f"no mount of one's own here: {done.stderr.strip()}")
    assert "exit 1" in done.stderr
    assert "the disk is full; saved rounds are there: make room" in done.stderr
    assert "Traceback" not in done.stderr
    whole = command("run", *shlex.split(asked), "--out", "run", cwd=tmp_path / "large")
    assert whole.returncode == 0, whole.stderr
    assert bits(tmp_path / "small" / "run") == bits(tmp_path / "large" / "run")


@pytest.mark.shows("F07", "F08")
@pytest.mark.parametrize("limit", [4, 16])
def test_files_that_may_not_grow_lose_no_finished_round(
    limit: int, sites: Path, tmp_path: Path
) -> None:
    """Blocks of 1,024 bytes that a file may have: too few for a state, enough for its records."""
    asked = ("run", "--data", sites, *SMALL, "--rounds", 2, "--out", "run")
    done = command(*asked, cwd=tmp_path, before=f"ulimit -f {limit};")
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert "File too large" in done.stderr.splitlines()[-1]
    answer = call("resume", tmp_path / "run")
    assert answer.code == 0, answer.err
    assert call(*asked[:-1], tmp_path / "whole").code == 0
    assert bits(tmp_path / "run") == bits(tmp_path / "whole")


SLOW_WRITE = """
import os, time
from pathlib import Path
from torch import nn

HERE = Path(__file__).parent
plainly = os.fsync
writes = 0

def slowly(handle):
    global writes
    plainly(handle)
    if "state.safetensors" in os.readlink(f"/proc/self/fd/{handle}"):
        writes += 1
        if writes == 2 and (HERE / "shut").exists():
            (HERE / "waiting").touch()
            while (HERE / "shut").exists():
                time.sleep(0.005)

os.fsync = slowly

def net(classes):
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, classes))
"""


@pytest.mark.shows("F02")
def test_a_kill_inside_the_writing_of_a_checkpoint(
    sites: Path, tmp_path: Path, processes: Processes
) -> None:
    asked = ["--data", sites, "--model", "slowly:net", "--rounds", 3, "--method", "fedbn"]
    asked += ["--seed", 0, "--workers", 1, "--set", "checkpoint.every=1", "--out", "run"]
    for name in ("killed", "whole"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "slowly.py").write_text(SLOW_WRITE)
    (tmp_path / "killed" / "shut").touch()
    process = processes.start("run", *asked, cwd=tmp_path / "killed")
    until((tmp_path / "killed" / "waiting").exists)
    process.kill()
    process.wait()
    (tmp_path / "killed" / "shut").unlink()
    assert call("run", *asked, cwd=tmp_path / "whole").code == 0
    answer = call("resume", tmp_path / "killed" / "run", "--trust", "slowly")
    assert answer.code == 0, answer.err
    assert bits(tmp_path / "killed" / "run") == bits(tmp_path / "whole" / "run")


@pytest.mark.shows("F09")
def test_a_read_only_folder_is_seen_before_training(
    finished: Path, sites: Path, tmp_path: Path
) -> None:
    shutil.copytree(finished, tmp_path / "locked" / "run")
    for folder in [*(tmp_path / "locked").rglob("*"), tmp_path / "locked"]:
        folder.chmod(0o555 if folder.is_dir() else 0o444)
    run = tmp_path / "locked" / "run"
    commands = {
        ("run", "--data", sites, *SMALL, "--out", tmp_path / "locked" / "new"): 3,
        ("resume", run, "--rounds", 9): 1,
        ("report", run): 3,
        ("adapt", run, "--data", sites / "a.npz", "--as", "c"): 1,
    }
    try:
        with unprivileged():
            for given, code in commands.items():
                answer = call(*given)
                assert answer.code == code, answer.err
                assert "Permission denied" in answer.err.splitlines()[-1]
                assert "round 1" not in answer.err
    finally:
        for folder in (tmp_path / "locked", *(tmp_path / "locked").rglob("*")):
            folder.chmod(0o755)


@pytest.mark.shows("F57")
def test_training_asks_for_nothing_that_torch_calls_not_deterministic() -> None:
    """So there is no switch for it: with torch's own switch on, no bit changes."""
    draws = np.random.default_rng(0)
    x = draws.normal(size=(2, 12, 3, 16, 16)).astype("float32")
    sites = {name: (x[i], np.arange(12) % 2) for i, name in enumerate("ab")}
    found = []
    for strict in (False, True):
        torch.use_deterministic_algorithms(strict)
        try:
            run = fedbn.fit(sites, lambda: small_cnn(2, (3, 16, 16)), "fedbn", rounds=2, seed=0)
        finally:
            torch.use_deterministic_algorithms(False)
        found.append(run.model("b").state_dict())
    assert all(torch.equal(value, found[1][name]) for name, value in found[0].items())


TRAINS = """
import hashlib, multiprocessing, sys
import numpy as np
from torch import nn
import fedbn

def net():
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))

def trained(pipe=None):
    x = np.random.default_rng(0).normal(size=(40, 4)).astype("float32")
    sites = {"a": (x[:20], np.arange(20) % 2), "b": (9 * x[20:], np.arange(20) % 2)}
    state = fedbn.fit(sites, net, "fedbn", rounds=3, seed=0).model("b").state_dict()
    found = hashlib.sha256(b"".join(v.numpy().tobytes() for v in state.values())).hexdigest()
    return found if pipe is None else pipe.send(found)

if __name__ == "__main__":
    here = trained()
    mine, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context(sys.argv[1]).Process(target=trained, args=(theirs,))
    child.start()
    assert mine.poll(100), "no answer"
    print(here == mine.recv())
    child.join()
"""


@pytest.mark.shows("F62")
@pytest.mark.parametrize("how", multiprocessing.get_all_start_methods())
def test_a_child_process_trains_to_the_bits_of_its_parent(how: str, tmp_path: Path) -> None:
    (tmp_path / "trains.py").write_text(TRAINS)
    env = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run(
        [sys.executable, "trains.py", how],
        cwd=tmp_path,
        env=env,
        text=True,
        capture_output=True,
        timeout=200,
    )
    assert done.stdout == "True\n", done.stderr


@pytest.mark.slow
@pytest.mark.shows("F63")
def test_ten_thousand_rounds_keep_memory_and_files_flat(
    sites: Path, tmp_path: Path, processes: Processes
) -> None:
    asked = ("--data", sites, *SMALL, "--rounds", 10_000, "--set", "evaluation.every=10")
    process = processes.start("run", *asked, "--out", "run", cwd=tmp_path)
    seen: list[tuple[int, int]] = []

    def held() -> tuple[int, int]:
        status = Path(f"/proc/{process.pid}/status").read_text()
        kilobytes = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        files = len(list(Path(f"/proc/{process.pid}/fd").iterdir()))
        return int(kilobytes.split()[1]) // 1024, files

    while process.poll() is None:
        with suppress(OSError, StopIteration):  # it may have just ended
            seen.append(held())
        time.sleep(0.5)
    assert process.wait() == 0
    warm = seen[len(seen) // 3 : -10]  # without its start and the drawing at its end
    assert len(warm) > 10
    assert max(m for m, _ in warm) - min(m for m, _ in warm) < 40
    assert max(f for _, f in warm) - min(f for _, f in warm) < 8
