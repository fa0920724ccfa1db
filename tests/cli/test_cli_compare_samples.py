"""`fedbn compare --over samples` as one types it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from commanding import call
from fedbn.results.sample_tests import mcnemar
from fedbn.runs import outcomes


def test_the_methods_of_a_run_are_compared_sample_by_sample(finished: Path) -> None:
    answer = call("compare", finished, "--methods", "fedavg,fedbn", "--over", "samples")
    assert answer.code == 0, answer.err
    assert "detectable" not in answer.out
    said = answer.out.split("\n\n")[-1]
    assert said.startswith("n = 1 seed (0). A client with one seed: McNemar's exact test")
    assert "The test generalises to other test samples from the same sites for these" in said
    blocks = answer.out.split("\n\n")
    assert blocks[0].startswith("both scored with the running statistics that the method leaves\n")
    assert blocks[1].startswith("both scored with the client's ")


def test_the_numbers_are_those_of_the_stored_outcomes(finished: Path) -> None:
    command = ("compare", finished, "--methods", "fedavg,fedbn", "--over", "samples")
    found = json.loads(call(*command, "--format", "json").out)
    assert (found["over"], found["family"]) == ("samples", [4, 2])
    hits = {
        method: outcomes.read(finished / "checkpoints" / method / "default" / "seed-0")
        for method in ("fedavg", "fedbn")
    }
    for pair in found["pairs"]:
        for line in pair["lines"][:-1]:
            place = pair["statistics"], line["client"], line["client"]
            a, b = (hits[method][place].int() for method in ("fedavg", "fedbn"))
            only_a, only_b = int((a > b).sum()), int((b > a).sum())
            assert line["test"]["samples"] == len(a) == 8
            assert line["test"]["difference"] == pytest.approx(100 * (only_b - only_a) / 8)
            assert line["test"]["p"] == pytest.approx(min(1, 4 * mcnemar(only_a, only_b)))
        assert pair["lines"][-1]["test"]["samples"] == 16


@pytest.mark.parametrize("form", ["md", "csv", "latex"])
def test_other_forms_have_the_number_of_samples(finished: Path, form: str) -> None:
    answer = call("compare", finished, "--over", "samples", "--format", form)
    assert answer.code == 0, answer.err
    assert "samples" in answer.out
    assert "detectable" not in answer.out


def test_it_fits_a_terminal_of_80_columns(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    answer = call("compare", finished, "--over", "samples", tty=True)
    assert answer.code == 0, answer.err
    assert max(map(len, answer.out.splitlines())) <= 80


def without_outcomes(run: Path) -> None:
    for job in run.glob("checkpoints/*/*/seed-*"):
        outcomes.forget(job)


def test_a_run_of_an_older_version_is_compared_once_it_is_scored_again(
    finished: Path, tmp_path: Path
) -> None:
    expected = call("compare", finished, "--over", "samples").out
    without_outcomes(finished)
    answer = call("compare", finished, "--over", "samples")
    assert (answer.code, answer.out) == (3, "")
    assert answer.line == (
        f"fedbn: {finished}: no outcomes.safetensors records which test samples are classified "
        "correctly; `fedbn rescore` adds it to a finished run"
    )
    assert call("compare", finished).code == 0  # over seeds it needs no outcomes
    assert call("rescore", finished).code == 0
    assert call("compare", finished, "--over", "samples").out == expected


def test_a_run_and_its_copy_are_paired_and_other_data_is_not(
    finished: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(finished, copy)
    same = call("compare", finished, copy, "--over", "samples", "--format", "json")
    assert same.code == 0, same.err
    lines = [line for pair in json.loads(same.out)["pairs"] for line in pair["lines"]]
    assert {line["verdict"] for line in lines} == {"same"}
    file = copy / "environment.json"
    environment = json.loads(file.read_text())
    environment["data"]["b"] = "0" * 64
    file.write_text(json.dumps(environment))
    answer = call("compare", finished, copy, "--over", "samples")
    assert (answer.code, answer.out) == (3, "")
    assert "are not scored on the same test samples (the data of b differs" in answer.line


def test_a_swept_data_set_is_paired_within_each_setting(sites: Path, tmp_path: Path) -> None:
    run = tmp_path / "swept"
    answer = call(
        *("run", "--data", sites, "--model", "mlp", "--rounds", 1, "--seed", 0, "--workers", 1),
        *("--method", "fedavg", "--method", "fedbn", "--out", run),
        *("--set", "data.partition=iid", "--set", "data.clients=2"),
        *("--set", "sweep.data.partition=['iid', 'dirichlet(9)']"),
    )
    assert answer.code == 0, answer.err
    found = json.loads(call("compare", run, "--over", "samples", "--format", "json").out)
    running = [pair for pair in found["pairs"] if pair["statistics"] == "running"]
    assert len(running) == 2
    names = [f"fedbn ({pair['a'].partition(' (')[2]}" for pair in running]
    other = call("compare", run, "--over", "samples", "--methods", ",".join(names))
    assert (other.code, other.out) == (3, "")
    assert "are not scored on the same test samples (the data of client-1" in other.line


def test_an_unknown_test_is_refused(finished: Path) -> None:
    answer = call("compare", finished, "--over", "patients")
    assert (answer.code, answer.out) == (3, "")
    assert "--over" in answer.line
