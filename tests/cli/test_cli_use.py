"""`fedbn predict`, `adapt` and `evaluate`: a trained run in use, and what they refuse."""

from __future__ import annotations

import csv
import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from loading import read_samples
from PIL import Image

import fedbn
from commanding import Processes, arrays, bits, call, flip_row, newest, until
from fedbn.core.federation import Split
from fedbn.runs.folder import RunFolder
from fedbn.trained.evaluation import evaluate_all

# The runs have clients a and b of six features, and classes 0 and 1.


@pytest.fixture
def new(tmp_path: Path) -> Path:
    """A labelled site that never trained."""
    np.savez(tmp_path / "new.npz", **arrays(7, n=40, scale=3.0))
    return tmp_path / "new.npz"


def files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.name != "run.lock"}


def test_predict_prints_a_table_and_the_accuracy(finished: Path, new: Path):
    answer = call("predict", finished, "--client", "b", "--data", new)
    assert answer.code == 0, answer.err
    lines = answer.out.splitlines()
    assert lines[0].split() == ["input", "predicted", "label", "probability"]
    assert len(lines) == 1 + 8 + 1
    assert lines[-1].startswith("accuracy ")
    assert "read test_x" in answer.err


def test_predict_writes_all_rows(finished: Path, new: Path, tmp_path: Path):
    out = tmp_path / "predictions.csv"
    answer = call("predict", finished, "--client", "b", "--data", new, "--out", out)
    assert answer.code == 0, answer.err
    rows = list(csv.DictReader(out.read_text(encoding="utf-8").splitlines()))
    assert list(rows[0]) == ["input", "predicted", "label", "p(0)", "p(1)"]
    right = sum(row["predicted"] == row["label"] for row in rows)
    assert answer.out == f"accuracy {100 * right / 8:.1f} % (8 samples)\n"


def test_method_and_seed_choose_the_job(finished: Path, new: Path):
    said = {
        call("predict", finished, "--client", "a", "--data", new, *flags).out
        for flags in ((), ("--method", "fedbn", "--seed", 0), ("--method", "fedavg"))
    }
    assert len(said) == 2


def test_an_adapted_site_is_a_client_like_the_others(finished: Path, new: Path):
    answer = call("adapt", finished, "--data", new, "--as", "clinic")
    assert answer.code == 0, answer.err
    assert "clinic: average, from 40 samples; stored in" in answer.out
    assert "distance to " in answer.err
    assert call("predict", finished, "--client", "clinic", "--data", new).code == 0
    tables = call("evaluate", finished, "--resamples", 5).out.split("\n\n")[:2]
    rows = [[line.split()[0] for line in table.splitlines()[2:]] for table in tables]
    assert rows == [["a", "b", "clinic"], ["a", "b"]]  # it has running statistics alone
    assert (
        call("predict", finished, "--client", "clinic", "--data", new, "--method", "fedavg").code
        == 3
    )


def test_compare_scores_all_ways_and_stores_the_chosen(finished: Path, new: Path):
    answer = call("adapt", finished, "--data", new, "--as", "x", "--compare", "--how", "finetune")
    assert answer.code == 0, answer.err
    assert [line.split()[0] for line in answer.out.splitlines()[1:4]] == [
        "average",
        "reestimate",
        "finetune",
    ]
    assert "adapted with 40 samples, scored on 8 test samples" in answer.err
    (manifest,) = finished.glob("adapted/fedbn/default/seed-0/x/manifest.json")
    content = json.loads(manifest.read_text())
    assert (content["how"], content["samples"]) == ("finetune", 40)
    assert {"average", "reestimate", "finetune"} <= content["scores"].keys()
    assert "how_was" not in content  # a person chose


def test_a_way_that_was_chosen_on_the_scored_samples_says_so(finished: Path, new: Path):
    answer = call("adapt", finished, "--data", new, "--as", "x", "--compare")
    assert answer.code == 0, answer.err
    assert "was chosen on the samples that it was scored on: on new data expect less" in answer.err
    (manifest,) = finished.glob("adapted/fedbn/default/seed-0/x/manifest.json")
    assert "chosen on the samples" in json.loads(manifest.read_text())["how_was"]


def test_join_makes_a_new_run_with_one_client_more(finished: Path, new: Path):
    before = bits(finished)
    answer = call("adapt", finished, "--data", new, "--as", "c", "--how", "join", "--rounds", 2)
    assert answer.code == 0, answer.err
    joined = finished.with_name("finished-c")
    assert answer.out.split()[:6] == ["test", "accuracy,", "%", "a", "b", "c"]
    assert "finished already" in call("resume", joined).err
    assert call("predict", joined, "--client", "c", "--data", new).code == 0
    assert bits(finished) == before


def test_a_joining_run_survives_kills(
    finished: Path, new: Path, processes: Processes, tmp_path: Path
):
    def command(out: str) -> list[object]:
        wanted = ("--how", "join", "--rounds", 40, "--out", tmp_path / out)
        return ["adapt", finished, "--data", new, "--as", "c", *wanted]

    assert call(*command("whole")).code == 0
    process = processes.start(*command("killed"), cwd=tmp_path)
    place = RunFolder(tmp_path / "killed").job("fedbn", "default", 0)
    until(lambda: (place / "round-000010").exists(), process)
    process.kill()
    process.wait()
    assert call("resume", tmp_path / "killed").code == 0
    assert bits(tmp_path / "killed") == bits(tmp_path / "whole")


def test_evaluate_prints_a_matrix_and_writes_all_metrics(finished: Path, new: Path, tmp_path: Path):
    out = tmp_path / "scores.json"
    answer = call("evaluate", finished, "--metric", "auroc", "--out", out, "--resamples", 9)
    assert answer.code == 0, answer.err
    heads = [line.split() for line in answer.out.splitlines() if line.startswith("auroc")]
    assert heads == [["auroc:", "model", "of", "a", "b"]] * 2  # of two kinds of statistics
    assert len(json.loads(out.read_text())["values"]) == 5
    only = call("evaluate", finished, "--data", new, "--json", "--resamples", 9)
    assert json.loads(only.out)["domains"] == ["new"]


def test_data_that_is_not_the_run_s_any_more_is_said(sites: Path, new: Path, tmp_path: Path):
    own = Path(shutil.copytree(sites, tmp_path / "own"))
    asked = ("--model", "mlp", "--method", "fedbn", "--seed", 0, "--rounds", 1, "--out", "run")
    assert call("run", "--data", own, *asked, cwd=tmp_path).code == 0
    shutil.copy(new, own / "b.npz")
    answer = call("evaluate", "run", "--resamples", 10, cwd=tmp_path)
    assert answer.code == 0
    assert "The data has changed since the run was begun: b" in answer.err
    for file in own.glob("*.npz"):  # of another shape: nothing to try an export on
        np.savez(file, **{k: v[:, :1] if k.endswith("x") else v for k, v in np.load(file).items()})
    answer = call("export", "run", "--client", "a", cwd=tmp_path)
    assert answer.code == 0, answer.err


def test_of_many_clients_evaluate_tells_how_they_spread(tmp_path: Path):
    (tmp_path / "data").mkdir()
    for place in range(13):
        np.savez(tmp_path / "data" / f"site-{place:02}.npz", **arrays(place))
    run = tmp_path / "run"
    asked = ["--data", tmp_path / "data", "--model", "mlp", "--rounds", 1, "--method", "fedbn"]
    assert call("run", *asked, "--seed", 0, "--out", run).code == 0
    short = call("evaluate", run, "--resamples", 2)
    lines = short.out.splitlines()
    assert [line.split("  ")[0] for line in lines[1:5]] == [
        "mean",
        "median",
        "worst decile",
        "best",
    ]
    scores = json.loads(call("evaluate", run, "--resamples", 2, "--json").out)["values"]["accuracy"]
    assert {client: [*row] for client, row in scores.items()} == {c: [c] for c in scores}
    mean = 100 * np.mean([row[client][0] for client, row in scores.items()])
    assert lines[1].split()[1] == f"{mean:.1f}"
    every = call("evaluate", run, "--resamples", 2, "--clients", "all", "--json")
    assert all(len(row) == 13 for row in json.loads(every.out)["values"]["accuracy"].values())


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """Unlabelled samples."""
    np.savez(tmp_path / "bare.npz", x=arrays(7)["train_x"])
    return tmp_path / "bare.npz"


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ("predict RUN --client aa --data NEW", 3, "unknown client 'aa': did you mean 'a'"),
        ("predict RUN --client a --data NEW --method fedprox", 3, "unknown method 'fedprox'"),
        ("predict RUN --client a --data NEW --seed 9", 3, "unknown seed '9'"),
        ("predict RUN --client a --data NEW --setting x", 3, "unknown setting 'x'"),
        ("predict RUN --client a --data WIDE", 4, "the run was trained on (6,)"),
        ("predict RUN --client a --data STRANGE", 4, "the run knows 0 to 1"),
        ("predict RUN --client a --data EMPTY", 4, "no pictures in it"),
        ("predict RUN --client a --data NOWHERE", 4, "no such file or folder"),
        ("predict RUN --client a --data NEW --out EMPTY", 3, "a folder; give a file"),
        ("predict RUN --client a --data NEW --out NOWHERE/x.csv", 3, "no such folder"),
        ("predict EMPTY --client a --data NEW", 3, "no run here"),
        ("evaluate RUN --data BARE", 4, "no labels"),
        ("evaluate RUN --out x.txt", 3, "end in .json or .csv"),
        ("evaluate RUN --metric acc", 3, "balanced_accuracy"),
        ("adapt RUN --data BARE --as new --how finetune", 4, "needs labelled data"),
        ("adapt RUN --data BARE --as new --compare", 4, "no labels"),
        ("adapt RUN --data BARE --as new --how join", 4, "no labels"),
        ("adapt RUN --data BARE --as new --test NEW", 3, "--test is for"),
        ("adapt RUN --data NEW --as new --like c", 3, "unknown client 'c'"),
        ("adapt RUN --data NEW --as new --like a", 3, "--like is for --how reestimate and"),
        ("adapt RUN --data NEW --as new --out x", 3, "--out is for --compare and for --how join"),
        ("adapt RUN --data NEW --as new --rounds 2", 3, "--rounds is for --compare and for --how"),
        (
            "adapt RUN --data NEW --as new --epochs 2",
            3,
            "--epochs is for --compare and for --how f",
        ),
        ("adapt RUN --data NEW --as a", 3, "training client"),
        ("adapt RUN --data NEW --as ../x", 3, "client name '../x'"),
        ("adapt RUN --data NEW --as <b>x</b>", 3, "legal are"),
        ("adapt RUN --data NEW --as x --how averag", 3, "average"),
        ("adapt RUN --data NEW --as x --how join --out EMPTY", 3, "there already"),
    ],
)
def test_what_is_wrong_is_one_line_and_nothing_is_written(
    finished: Path, new: Path, bare: Path, tmp_path: Path, words: str, code: int, text: str
):
    (tmp_path / "empty").mkdir()
    np.savez(tmp_path / "wide.npz", x=np.zeros((4, 7), "float32"))
    np.savez(tmp_path / "strange.npz", x=arrays(7)["train_x"], y=np.full(16, 5))
    places = {
        "RUN": finished,
        "NEW": new,
        "BARE": bare,
        "EMPTY": tmp_path / "empty",
        "NOWHERE": tmp_path / "nowhere",
        "WIDE": tmp_path / "wide.npz",
        "STRANGE": tmp_path / "strange.npz",
    }
    for name, place in places.items():
        words = words.replace(name, str(place))
    before = files(tmp_path)
    answer = call(*words.split(), cwd=tmp_path)
    assert answer.code == code, answer.err
    assert answer.err.startswith("fedbn: ") or "\nfedbn: " in answer.err
    assert text in answer.err.splitlines()[-1]
    assert files(tmp_path) == before


@pytest.fixture
def grouped(tmp_path: Path) -> Path:
    """A run on one table of two sites with patients; new.csv is a third site's."""

    def rows(name: str, seed: int) -> str:
        numbers = enumerate(np.random.default_rng(seed).normal(size=24))
        return "".join(f"{x:.3f},{x > 0:d},{name}{n // 6},{name}\n" for n, x in numbers)

    head = "x,ill,patient,site\n"
    (tmp_path / "all.csv").write_text(head + rows("a", 0) + rows("b", 1))
    (tmp_path / "new.csv").write_text(head + rows("c", 2))
    (tmp_path / "bare.csv").write_text("x,ill\n0.5,1\n-0.5,0\n")
    asked = ["--set", "data.label=ill", "--set", "data.site=site", "--set", "data.group=patient"]
    more = ["--model", "mlp", "--rounds", 1, "--method", "fedbn", "--seed", 0, "--out", "run"]
    assert call("run", "--data", "all.csv", *asked, *more, cwd=tmp_path).code == 0
    return tmp_path


def test_rows_of_one_patient_are_drawn_together(grouped: Path):
    words = ("evaluate", "run", "--data", "new.csv", "--resamples", 50, "--json")
    told = json.loads(call(*words, cwd=grouped).out)["values"]
    run = fedbn.open_run(grouped / "run")
    samples = read_samples(grouped / "new.csv", run.inputs)
    assert samples.y is not None
    known = torch.arange(24) // 6
    for groups in (known, None):
        split = Split(samples.x, samples.y, groups=groups)
        same = evaluate_all(run, {"new": split}, resamples=50).to_json()
        assert (json.loads(same)["values"] == told) == (groups is known)


def test_where_nothing_is_divided_patients_need_not_be_named(grouped: Path):
    assert call("predict", "run", "--client", "a", "--data", "bare.csv", cwd=grouped).code == 0
    assert call("adapt", "run", "--data", "bare.csv", "--as", "c", cwd=grouped).code == 0
    for words in ("evaluate run --data bare.csv", "adapt run --data bare.csv --as d --compare"):
        answer = call(*words.split(), cwd=grouped)
        assert (answer.code, "has 'patient' (data.group)" in answer.line) == (4, True)


def test_pictures_of_one_patient_stay_together(tmp_path: Path):
    draws = np.random.default_rng(0)
    for site in ("sites/a", "sites/b", "new"):
        for patient, shot in itertools.product(range(8), range(3)):
            home = tmp_path / site / ("ill", "well")[patient % 2]
            home.mkdir(parents=True, exist_ok=True)
            pixels = draws.integers(0, 255, (8, 8), dtype=np.uint8)
            Image.fromarray(pixels).save(home / f"p{patient}_{shot}.png")
    more = ["--model", "mlp", "--rounds", 1, "--method", "fedbn", "--seed", 0, "--out", "run"]
    asked = ["--data", "sites", "--set", 'data.group="^(p[0-9]+)_"', "--set", "data.size=8"]
    assert call("run", *asked, *more, cwd=tmp_path).code == 0
    joins = ("adapt", "run", "--data", "new", "--as", "c", "--how", "join", "--rounds", 1)
    answer = call(*joins, "--out", "joined", cwd=tmp_path)
    assert answer.code == 0, answer.err
    client = fedbn.open_run(tmp_path / "joined").federation.clients[-1]
    sides = [{*split.groups.tolist()} for split in (client.train, client.tests["c"])]
    assert sides[0].isdisjoint(sides[1])
    assert len(sides[0] | sides[1]) == 8
    next((tmp_path / "new").rglob("*.png")).rename(tmp_path / "new" / "ill" / "somebody.png")
    answer = call(*joins, "--out", "again", cwd=tmp_path)
    assert (answer.code, "(data.group)" in answer.line) == (4, True)
    assert call("predict", "run", "--client", "a", "--data", "new", cwd=tmp_path).code == 0


@pytest.mark.parametrize("words", ["predict run --client a", "adapt run --as c", "evaluate run"])
def test_a_table_of_several_sites_is_nobody_s(grouped: Path, words: str):
    answer = call(*words.split(), "--data", "all.csv", cwd=grouped)
    assert answer.code == 4
    assert "a table of sites (column 'site': a, b); give the rows of one" in answer.line


def test_numbers_in_an_npz_are_scored_by_a_run_that_learned_numbers(tmp_path: Path):
    rows = [f"{n % 5},{n % 7},{n % 5 + n % 7},{'ab'[n // 16]}\n" for n in range(32)]
    (tmp_path / "all.csv").write_text("".join(["p,q,dose,site\n", *rows]))
    np.savez(tmp_path / "y.npz", x=np.full((4, 2), 0.5, "float32"), y=np.arange(4) / 2)
    np.savez(tmp_path / "zeros.npz", x=np.ones((4, 2), "float32"), y=np.zeros(4))
    asked = ["data.label=dose", "data.site=site", "data.numbers=true"]
    more = ["--model", "mlp", "--rounds", 1, "--method", "fedbn", "--seed", 0, "--out", "run"]
    sets = [word for one in asked for word in ("--set", one)]
    assert call("run", "--data", "all.csv", *sets, *more, cwd=tmp_path).code == 0
    answer = call("predict", "run", "--client", "a", "--data", "y.npz", cwd=tmp_path)
    assert (answer.code, answer.out.splitlines()[-1].split()[0]) == (0, "r2"), answer.err
    assert [line.split()[2] for line in answer.out.splitlines()[1:5]] == ["0", "0.5", "1", "1.5"]
    assert call("predict", "run", "--client", "a", "--data", "zeros.npz", cwd=tmp_path).code == 0
    assert call("adapt", "run", "--as", "c", "--data", "y.npz", cwd=tmp_path).code == 0
    assert call("evaluate", "run", "--data", "y.npz", "--resamples", 5, cwd=tmp_path).code == 0


@pytest.mark.shows("W09")
def test_a_name_with_a_newline_stays_on_one_line(finished: Path, new: Path):
    answer = call("adapt", finished, "--data", new, "--as", "x\ny")
    assert (answer.code, "client name 'x\\ny'" in answer.line) == (3, True)


@pytest.mark.shows("F14")
def test_damaged_and_newer_runs_end_with_six(finished: Path, new: Path):
    flip_row(newest(finished), "b")
    damaged = call("predict", finished, "--client", "b", "--data", new)
    assert (damaged.code, "the local part of b: damaged" in damaged.line) == (6, True)
    assert call("predict", finished, "--client", "a", "--data", new).code == 0
    for file in finished.glob("checkpoints/fedbn/*/*/round-*/state.safetensors"):
        file.write_bytes(file.read_bytes()[:-1])
    damaged = call("predict", finished, "--client", "a", "--data", new)
    assert (damaged.code, "state.safetensors: damaged" in damaged.line) == (6, True)
    config = finished / "config.toml"
    config.write_text(config.read_text().replace("format = 1", "format = 2"))
    newer = call("evaluate", finished)
    assert (newer.code, "from a newer fedbn" in newer.line) == (6, True)


@pytest.mark.shows("F09")
def test_a_read_only_place_for_the_site_is_said(finished: Path, new: Path):
    shutil.rmtree(finished / "adapted", ignore_errors=True)
    (finished / "adapted").write_text("in the way")
    answer = call("adapt", finished, "--data", new, "--as", "x")
    assert answer.code == 1
    assert "cannot write" in answer.err.splitlines()[-1]
