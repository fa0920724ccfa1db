"""The run folder: what lies where, and that equal runs give equal files."""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from safetensors.torch import load_file
from torch import Tensor

from commanding import RECORD_KEYS, bits, call, newest, records, shared_in, write_sites
from fedbn.errors import ConfigError, DamagedRun, FedbnError
from fedbn.experiments.process_pool import affordable
from fedbn.fast.allocator import granted
from fedbn.runs.checkpoints import Checkpoint
from fedbn.runs.folder import RunFolder

ROUND = {"state.safetensors", "manifest.json"}


def test_the_layout_is_the_documented_one(finished: Path) -> None:
    found = {str(f.relative_to(finished)) for f in finished.rglob("*") if f.is_file()}
    expected = {"config.toml", "environment.json", "metrics.jsonl", "curves.png", "run.lock"}
    expected |= {"splits.json.gz"}
    expected.add("run.log")
    for method in ("fedavg", "fedbn"):
        job = f"checkpoints/{method}/default/seed-0"
        expected |= {f"{job}/{name}" for name in ("metrics.jsonl", "outcomes.safetensors")}
        expected.add(f"{job}/evaluated.json")
        expected |= {f"{job}/round-{n:06d}/{file}" for n in (2, 3) for file in ROUND}
    assert found == expected


def test_the_configuration_is_resolved(finished: Path, sites: Path) -> None:
    config = tomllib.loads((finished / "config.toml").read_text())
    assert config["data"] == {"name": "arrays", "path": str(sites)}
    assert config["model"]["name"] == "mlp"
    assert config["training"]["rounds"] == 3
    assert config["training"]["optimizer"] == "SGD"  # a default, written out
    assert (config["format"], config["seeds"]) == (1, [0])


def test_the_environment_tells_versions_seeds_and_threads(finished: Path) -> None:
    environment = json.loads((finished / "environment.json").read_text())
    assert {"fedbn", "numpy", "python", "torch", "platform"} == set(environment["versions"])
    assert environment["seeds"] == [0]
    assert environment["threads"]["torch_per_worker"] == 1
    assert environment["memory"] == granted()
    assert set(environment["data"]) == {"a", "b"}


def test_the_records(finished: Path) -> None:
    found = records(finished / "metrics.jsonl")
    assert all(list(record) == RECORD_KEYS for record in found)  # and so no clock times
    assert [r["method"] for r in found] == sorted(r["method"] for r in found)
    for method in ("fedavg", "fedbn"):
        for client in "ab":
            mine = [r for r in found if (r["method"], r["client"]) == (method, client)]
            assert [(r["split"], r["metric"]) for r in mine if r["round"] == 2] == [
                ("train", "training_loss"),
                ("train", "loss"),
                ("train", "accuracy"),
                ("test", "loss"),
                ("test", "accuracy"),
            ]


def test_the_whole_metrics_are_those_of_the_jobs_in_order(finished: Path) -> None:
    jobs = [finished / f"checkpoints/{m}/default/seed-0/metrics.jsonl" for m in ("fedavg", "fedbn")]
    whole = (finished / "metrics.jsonl").read_bytes()
    assert whole == b"".join(job.read_bytes() for job in jobs)


def sha256(tensors: dict[str, Tensor]) -> str:
    texts = [f"{name} {t.dtype} {tuple(t.shape)}\n".encode() for name, t in tensors.items()]
    contents = [value.numpy().tobytes() for value in tensors.values()]
    pieces = [piece for pair in zip(texts, contents, strict=True) for piece in pair]
    return hashlib.sha256(b"".join(pieces)).hexdigest()


def test_the_manifest_holds_the_sha256_of_every_part(finished: Path) -> None:
    checkpoint = newest(finished)
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    shared = shared_in(checkpoint)
    assert manifest["sections"] == {"shared": sha256(dict(sorted(shared.items())))}
    labels = ("float32.buffer", "float32.trainable", "int64.buffer")
    saved = load_file(checkpoint / "state.safetensors")
    rows = {label: saved[f"local/{label}"] for label in labels}
    assert manifest["rows"].keys() == {"local"}
    assert manifest["rows"]["local"]["clients"] == {
        client: sha256({label: rows[label][number] for label in labels})
        for number, client in enumerate("ab")
    }
    facts = {key: manifest[key] for key in ("format", "round", "method", "setting", "seed")}
    assert facts == {"format": 3, "round": 3, "method": "fedbn", "setting": "default", "seed": 0}


def test_fedbn_keeps_batchnorm_local_and_shares_the_rest(finished: Path) -> None:
    checkpoint = newest(finished)
    batchnorm = {
        f"{layer}.{entry}"
        for layer in (1, 4)
        for entry in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    }
    others = {f"{layer}.{entry}" for layer in (0, 3, 6) for entry in ("weight", "bias")}
    assert set(shared_in(checkpoint)) == others
    a, b = (Checkpoint(checkpoint).row("local", client) for client in "ab")
    assert set(a) == set(b) == batchnorm
    assert not a["1.running_var"].equal(b["1.running_var"])


def test_fedavg_shares_everything(finished: Path) -> None:
    checkpoint = newest(finished, "fedavg")
    assert len(shared_in(checkpoint)) == 16
    assert Checkpoint(checkpoint).row("local", "a") == {}


def test_equal_runs_are_equal_byte_by_byte(finished: Path, sites: Path, tmp_path: Path) -> None:
    asked = ("--model", "mlp", "--rounds", 3, "--seed", 0, "--method", "fedavg")
    asked += ("--method", "fedbn", "--set", "checkpoint.every=1", "--out", tmp_path / "again")
    answer = call("run", "--data", sites, *asked)
    # The default number of workers: two jobs side by side in processes, where there are two cores.
    assert answer.code == 0
    assert bits(tmp_path / "again") == bits(finished)


def test_where_cores_are_more_than_jobs_each_job_has_several(
    finished: Path, sites: Path, tmp_path: Path
) -> None:
    asked = ("--model", "mlp", "--rounds", 3, "--seed", 0, "--method", "fedavg", "--workers", 4)
    asked += ("--method", "fedbn", "--set", "checkpoint.every=1", "--out", tmp_path / "again")
    answer = call("run", "--data", sites, *asked)
    assert "2 runs, 2 side by side, 2 cores each" in answer.err
    assert bits(tmp_path / "again") == bits(finished)


def test_no_more_workers_than_memory_has_room_for() -> None:
    assert affordable(1) == 1
    assert 1 <= affordable(10**9) < 10**9


def test_another_seed_gives_other_bits(finished: Path, sites: Path, tmp_path: Path) -> None:
    asked = ("--model", "mlp", "--rounds", 3, "--seed", 1, "--method", "fedbn")
    assert call("run", "--data", sites, *asked, "--out", tmp_path / "other").code == 0
    first, second = (shared_in(newest(run, seed=s))
                     for run, s in ((finished, 0), (tmp_path / "other", 1)))  # fmt: skip
    assert not first["0.weight"].equal(second["0.weight"])


@pytest.mark.shows("D19")
def test_names_in_any_script_survive(tmp_path: Path) -> None:
    names = ["a b", "日本", "[red]c", "$x^{$", "–"]
    sites = write_sites(tmp_path / "sites", names)
    asked = ("--model", "mlp", "--rounds", 1, "--seed", 0, "--method", "fedbn")
    answer = call("run", "--data", sites, *asked, "--out", tmp_path / "out", pictures=True)
    assert answer.code == 0, answer.err
    header = answer.out.splitlines()[0]
    assert all(name in header for name in names)  # markup is shown, not followed
    assert (tmp_path / "out" / "curves.png").stat().st_size > 0
    assert {r["client"] for r in records(tmp_path / "out" / "metrics.jsonl")} == set(names)


def test_a_folder_that_is_not_empty_is_refused_and_left_alone(tmp_path: Path, sites: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("precious")
    answer = call("run", "--data", sites, "--out", tmp_path / "out")
    assert answer.code == 3
    assert "is not empty" in answer.line
    assert [f.name for f in (tmp_path / "out").iterdir()] == ["thesis.tex"]


def test_an_empty_folder_is_taken_and_given_back_empty(tmp_path: Path, sites: Path) -> None:
    (tmp_path / "out").mkdir()
    assert call("run", "--data", sites, "--model", "mpl", "--out", tmp_path / "out").code == 3
    assert list((tmp_path / "out").iterdir()) == []


def test_what_a_kill_left_of_a_first_write_does_not_occupy_a_folder(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "out")
    folder.path.mkdir()
    (folder.path / ".request.toml.tmp").write_bytes(b"half of")
    folder.begin({"seeds": [1]})
    assert folder.read_request() == {"seeds": [1]}


@pytest.mark.shows("F09")
@pytest.mark.parametrize("parent", ["file", "/proc"])
def test_a_folder_that_cannot_be_written(parent: str, sites: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    out = tmp_path / parent / "out"
    answer = call("run", "--data", sites, "--out", out)
    assert answer.code == 3
    assert f"cannot write {out}" in answer.line


def test_a_folder_name_that_is_too_long(sites: Path, tmp_path: Path) -> None:
    answer = call("run", "--data", sites, "--out", tmp_path / ("x" * 300))
    assert answer.code == 3
    assert "File name too long" in answer.line


def test_two_runs_in_one_second_get_two_folders(sites: Path, tmp_path: Path) -> None:
    asked = ("--model", "mlp", "--rounds", 1, "--seed", 0, "--method", "fedbn")
    for _ in range(2):
        assert call("run", "--data", sites, *asked, cwd=tmp_path).code == 0
    assert len(list((tmp_path / "runs").iterdir())) == 2


@pytest.mark.shows("F15")
def test_the_folder_is_one_process_at_a_time(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with folder.locked(), pytest.raises(FedbnError, match="in use"), RunFolder(tmp_path).locked():
        pass
    with folder.locked():  # and free again
        pass


def test_a_worker_that_outlives_its_parent_still_holds_the_folder(tmp_path: Path) -> None:
    """It may be writing its last checkpoint: who resumes waits for it, or is refused."""
    code = (
        "import subprocess, sys; from fedbn.runs.folder import RunFolder\n"
        "folder = RunFolder(sys.argv[1])\n"
        "with folder.locked():\n"
        "    wait = [sys.executable, '-c', 'import sys; sys.stdin.read()']\n"
        "    subprocess.Popen(wait, pass_fds=[folder.held], stdout=subprocess.DEVNULL)\n"
        "    print(flush=True); import os, signal; os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    asked = [sys.executable, "-c", code, tmp_path]
    with subprocess.Popen(asked, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        parent.stdout.read()
        assert parent.wait() == -signal.SIGKILL
        with pytest.raises(FedbnError, match="in use"), RunFolder(tmp_path).locked():
            pass
        parent.stdin.close()  # the orphan ends
    with RunFolder(tmp_path).locked():
        pass


def test_no_run_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no run here"):
        RunFolder(tmp_path).read_request()


@pytest.mark.parametrize("content", ["", "request = 3", "= ="])
def test_a_damaged_request_is_said(content: str, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.request.write_text(content)
    with pytest.raises(DamagedRun, match=r"request\.toml"):
        folder.read_request()
