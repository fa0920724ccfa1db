"""What goes wrong in the middle of a run: named, a documented exit code, finished rounds kept."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch

from commanding import bits, call, children, newest, records, running, shared_in, write_sites

# Client b's features are ten times those of a: a model can tell whose batch it sees.
OWN = """
import os, sys
import torch
from torch import nn

class Odd(nn.Module):
    def __init__(self, what, loud):
        super().__init__()
        self.what, self.loud = what, loud

    def forward(self, x):
        if self.training and len(x) > 2 and x.abs().max() > self.loud:
            if self.what == "raises":
                raise RuntimeError("CUDA error:\\nout of patience")
            if self.what == "exits":
                sys.exit()
            if self.what == "ends":
                os._exit(0)
            if self.what == "interrupts":
                raise KeyboardInterrupt
            return x * float(self.what)
        return x

def net(what, loud=10.0):
    return nn.Sequential(Odd(what, loud), nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))

class Breaks(nn.Sequential):
    def to(self, *place):  # no check before a run calls it, and the engine does
        raise RuntimeError("one\\nonly")

class Unscored(nn.Sequential):
    def forward(self, x):
        if not self.training and len(x) > 2 and x.abs().max() > 10:
            raise KeyError("scoring")
        return super().forward(x)

def unscored():
    return Unscored(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))

def breaks():
    return Breaks(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
"""
ASKED = ("--rounds", 2, "--seed", 0, "--out", "out", "--workers", 1)


@pytest.mark.shows("F18")
@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("raises", "RuntimeError: CUDA error: out of patience"),
        ("exits", "RuntimeError: it asks for the end of the process: SystemExit()"),
        ("ends", "RuntimeError: it asks for the end of the process: SystemExit(0)"),
        ("interrupts", "RuntimeError: it asks for the end of the process: KeyboardInterrupt()"),
        ("nan", "its training diverged: lower training.lr (0.01)"),
        ("inf", "its training diverged: lower training.lr (0.01)"),
    ],
)
def test_one_client_fails_and_the_round_goes_on(
    what: str, reason: str, sites: Path, tmp_path: Path
) -> None:
    (tmp_path / "odd.py").write_text(OWN)
    asked = ("--model", "odd:net", "--set", f'model.args.what="{what}"', "--method", "fedavg")
    answer = call("run", "--data", sites, *asked, *ASKED, cwd=tmp_path)
    assert answer.code == 5  # the rounds went on; but no update of b ever counted
    for round in (1, 2):
        assert f"fedavg seed 0: round {round}: b: {reason}" in answer.err
    found = records(tmp_path / "out" / "metrics.jsonl")
    refused = {(r["round"], r["client"]) for r in found if r["metric"] == "refused"}
    assert refused == {(1, "b"), (2, "b")}
    shared = shared_in(newest(tmp_path / "out", "fedavg"))
    assert all(torch.isfinite(value).all() for value in shared.values())


def test_what_ends_a_client_ends_no_worker_process(
    sites: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "odd.py").write_text(OWN)
    asked = ("--model", "odd:net", "--set", 'model.args.what="interrupts"', "--method", "fedavg")
    run = ("--rounds", 1, "--seed", 0, "--seed", 1, "--workers", 2, "--out", "out")
    answer = call("run", "--data", sites, *asked, *run, cwd=tmp_path)
    assert answer.code == 5
    for seed in (0, 1):
        assert f"fedavg seed {seed}: round 1: b: RuntimeError: it asks for the end" in answer.err
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("code", "status"),
    [("sys.exit()", 1), ("def net(): sys.exit()", 3), ("def net(): os._exit(0)", 3)],
)
def test_a_model_that_ends_the_process_is_no_success(
    code: str, status: int, sites: Path, tmp_path: Path
) -> None:
    (tmp_path / "quits.py").write_text(f"import os, sys\n{code}\n")
    answer = call("run", "--data", sites, "--model", "quits:net", *ASKED, cwd=tmp_path)
    assert answer.code == status
    assert "SystemExit" in answer.line


@pytest.mark.parametrize("report", ["last", "best"])
def test_a_client_that_cannot_be_scored_has_no_number_and_there_is_no_mean(
    report: str, sites: Path, tmp_path: Path
) -> None:
    (tmp_path / "odd.py").write_text(OWN)
    asked = ("--model", "odd:unscored", "--method", "fedbn", "--set", f"evaluation.report={report}")
    asked += ("--set", "evaluation.validation=0.25")
    answer = call("run", "--data", sites, *asked, *ASKED, cwd=tmp_path)
    assert answer.code == 0
    assert "round 1: b: cannot be scored" in answer.err
    head, running, batch, *sentences = answer.out.splitlines()
    assert head.split()[3:] == ["a", "b", "mean"]
    for row, name in ((running, "fedbn "), (batch, "fedbn, batch statistics ")):
        a, *others = row.removeprefix(name).split()
        assert 0 <= float(a) <= 100
        assert others == ["–", "–"]
    assert "running statistics of b" not in answer.err  # both rounds said so already
    said = "batch statistics of b: ModelError: the model fails: KeyError: 'scoring'"
    assert said in "\n".join(sentences)


def test_the_update_of_a_client_that_fails_changes_nothing(sites: Path, tmp_path: Path) -> None:
    """FedAvg with a refused second client is the first client alone."""
    (tmp_path / "odd.py").write_text(OWN)
    asked = ("--model", "odd:net", "--set", 'model.args.what="nan"', "--method", "fedavg")
    assert call("run", "--data", sites, *asked, *ASKED, cwd=tmp_path).code == 5
    alone = write_sites(tmp_path / "alone", "a")
    again = [*ASKED[:4], "--out", "alone_out", "--workers", 1]
    assert call("run", "--data", alone, *asked, *again, cwd=tmp_path).code == 0
    first, second = (shared_in(newest(tmp_path / run, "fedavg")) for run in ("out", "alone_out"))
    assert first.keys() == second.keys()
    assert all(value.equal(second[name]) for name, value in first.items())


@pytest.mark.shows("F19")
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["model.args.loud=0"], "0 of 2 clients gave a usable update, training.min_clients = 1"),
        (["training.min_clients=2"], "1 of 2 clients gave a usable update"),
    ],
    ids=["all fail", "fewer than asked for"],
)
def test_too_few_clients(settings: list[str], said: str, sites: Path, tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(OWN)
    asked = ["--model", "odd:net", "--set", 'model.args.what="raises"', "--method", "fedbn"]
    for setting in settings:
        asked += ["--set", setting]
    answer = call("run", "--data", sites, *asked, *ASKED, cwd=tmp_path)
    assert answer.code == 5
    last = answer.err.splitlines()[-1]
    assert said in last
    assert "b: RuntimeError: CUDA error: out of patience" in last


def test_pooled_data_is_one_client_whatever_the_least_number(sites: Path, tmp_path: Path) -> None:
    asked = ("--model", "mlp", "--method", "centralized", "--set", "training.min_clients=2")
    answer = call("run", "--data", sites, *asked, *ASKED, cwd=tmp_path)
    assert answer.code == 0
    assert answer.out.splitlines()[0].split()[3:] == ["a", "b", "mean"]


@pytest.mark.parametrize("workers", [1, 2])
def test_what_nobody_foresaw_is_one_line(workers: int, sites: Path, tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(OWN)
    asked = ("--model", "odd:breaks", "--method", "fedbn", "--method", "fedavg")
    answer = call("run", "--data", sites, *asked, *ASKED, "--workers", workers, cwd=tmp_path)
    assert answer.code == 1
    assert "RuntimeError: one only (--debug shows where)" in answer.err.splitlines()[-1]
    assert "Traceback" not in answer.err
    assert (tmp_path / "out" / "config.toml").exists()  # what there is stays
    assert not any(map(running, children(os.getpid())))


class FullDisk:
    """A disk that is full for files of one name, from the n-th time on that one is written."""

    def __init__(self, name: str, after: int, monkeypatch: pytest.MonkeyPatch):
        self._name, self._left = name, after
        self._fsync = os.fsync
        monkeypatch.setattr(os, "fsync", self.fsync)

    def fsync(self, handle: int) -> None:
        if self._name in str(Path(f"/proc/self/fd/{handle}").readlink()):
            self._left -= 1
            if self._left < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._fsync(handle)


@pytest.mark.shows("F07", "F08")
@pytest.mark.parametrize(
    ("name", "after"),
    [("fedbn/default/seed-0/metrics.jsonl", 2), ("state.safetensors", 4), ("manifest.json", 3)],
    ids=["at a metrics line", "at a checkpoint", "at its manifest"],
)
def test_a_full_disk_loses_no_finished_round(
    name: str, after: int, finished: Path, sites: Path, tmp_path: Path
) -> None:
    asked = ("--model", "mlp", "--rounds", 3, "--seed", 0, "--workers", 1)
    asked += ("--method", "fedavg", "--method", "fedbn", "--out", tmp_path / "out")
    asked += ("--set", "checkpoint.every=1")
    with pytest.MonkeyPatch.context() as patch:
        FullDisk(name, after, patch)
        answer = call("run", "--data", sites, *asked)
    assert answer.code == 1
    assert "the disk is full; saved rounds are there: make room" in answer.err.splitlines()[-1]
    assert "Traceback" not in answer.err
    assert call("resume", tmp_path / "out").code == 0
    assert bits(tmp_path / "out") == bits(finished)


@pytest.mark.parametrize("name", ["request.toml", "environment.json", "config.toml"])
def test_a_disk_full_from_the_start_leaves_nothing(name: str, sites: Path, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        FullDisk(name, 0, patch)
        answer = call("run", "--data", sites, "--model", "mlp", "--out", tmp_path / "made" / "out")
    assert answer.code == 1
    assert "the disk is full" in answer.line
    assert not (tmp_path / "made").exists()


def test_a_picture_that_cannot_be_written(finished: Path) -> None:
    (finished / "curves.png").unlink()
    (finished / "curves.png").mkdir()
    answer = call("resume", finished, pictures=True)
    assert answer.code == 1
    assert "cannot write" in answer.err.splitlines()[-1]
