"""`predict`, `evaluate` and `adapt --compare` recognise samples that a model has seen."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import fedbn
from commanding import Answer, arrays, call, records, with_running_statistics
from fedbn.trained.seen_samples import hashes_of, where_seen
from fedbn.trained.trained_run import Trained

NO_SCORE = "no accuracy of new samples: the model has seen all of these before"


def predicted(run: Path, data: Path, client: str = "a", *more: object) -> Answer:
    answer = call("predict", run, "--client", client, "--data", data, *more)
    assert answer.code == 0, answer.err
    return answer


def saved(file: Path, *parts: tuple[np.ndarray, np.ndarray]) -> Path:
    x, y = (np.concatenate(one) for one in zip(*parts, strict=True))
    np.savez(file, x=x, y=y)
    return file


def part(site: dict[str, np.ndarray], name: str) -> tuple[np.ndarray, np.ndarray]:
    return site[f"{name}_x"], site[f"{name}_y"]


def test_training_samples_are_named_and_not_scored(finished: Path, tmp_path: Path) -> None:
    answer = predicted(finished, saved(tmp_path / "all.npz", part(arrays(0), "train")))
    assert "the model of a was trained on 16 of 16 samples: 0, 1, 2, 3 and 12 more" in answer.err
    assert answer.out.splitlines()[-1] == NO_SCORE


def test_only_new_samples_of_a_mixture_are_scored(finished: Path, tmp_path: Path) -> None:
    site = arrays(0)
    mixed = predicted(finished, saved(tmp_path / "m.npz", part(site, "train"), part(site, "test")))
    alone = predicted(finished, saved(tmp_path / "t.npz", part(site, "test")))
    value = alone.out.splitlines()[-1].partition(" (")[0]
    assert mixed.out.splitlines()[-1] == f"{value} (8 new samples)"
    assert alone.out.splitlines()[-1] == f"{value} (8 samples)"
    recorded = {
        r["client"]: r["value"]
        for r in with_running_statistics(records(finished / "metrics.jsonl"))
        if (r["method"], r["split"], r["metric"], r["round"]) == ("fedbn", "test", "accuracy", 3)
    }
    assert value == f"accuracy {100 * recorded['a']:.1f} %"


def test_samples_of_another_client_were_seen_through_the_shared_part(
    finished: Path, tmp_path: Path
) -> None:
    other = saved(tmp_path / "b.npz", part(arrays(1, scale=10.0), "train"))
    assert predicted(finished, other).out.splitlines()[-1] == NO_SCORE


def test_a_model_that_shares_nothing_has_seen_its_own_samples_only(home: Path) -> None:
    content = np.load(home / "data" / "b.npz")
    x = torch.from_numpy(content["train_x"])
    for run, where in (("singleset", ""), ("fedbn", "training")):
        words, unknown = where_seen(fedbn.open_run(home / run), "a", x)
        assert {*words} == {where}
        assert unknown == ""


def test_evaluate_scores_new_samples_only(finished: Path, tmp_path: Path) -> None:
    site = arrays(0)
    mixed = saved(tmp_path / "m.npz", part(site, "train"), part(site, "test"))
    alone = saved(tmp_path / "t.npz", part(site, "test"))
    whole, new = (call("evaluate", finished, "--data", file, "--json") for file in (mixed, alone))
    assert "16 of 24 samples of" in whole.err
    assert "were used in training: 0, 1, 2, 3 and 12 more; not scored" in whole.err
    assert "used in training" not in new.err
    scored = [json.loads(answer.out) for answer in (whole, new)]
    assert [{*one["samples"].values()} for one in scored] == [{8}, {8}]
    values = [
        {client: [*row.values()] for client, row in one["values"]["accuracy"].items()}
        for one in scored
    ]
    assert values[0] == values[1]


def test_evaluate_refuses_training_samples_alone(finished: Path, tmp_path: Path) -> None:
    data = saved(tmp_path / "all.npz", part(arrays(0), "train"))
    answer = call("evaluate", finished, "--data", data)
    assert answer.code == 4
    assert "16 of 16 samples of" in answer.err
    assert "so a score would say nothing about new samples; give others" in answer.err
    assert answer.out == ""


def test_evaluate_leaves_out_a_site_that_was_adapted_with_the_samples(
    finished: Path, tmp_path: Path
) -> None:
    site = arrays(7, n=24, scale=3.0)
    used = saved(tmp_path / "used.npz", part(site, "train"))
    assert call("adapt", finished, "--data", used, "--as", "evaluated").code == 0
    answer = call("evaluate", finished, "--data", used, "--json")
    assert "the model of evaluated was adapted with 24 of 24 samples of" in answer.err
    assert "evaluated" not in json.loads(answer.out)["clients"]
    other = saved(tmp_path / "other.npz", part(site, "test"))
    answer = call("evaluate", finished, "--data", other, "--json")
    assert "evaluated" in json.loads(answer.out)["clients"]


@pytest.mark.parametrize(
    ("test", "cause"),
    [("own", "24 of 24 samples"), ("training", "16 of 16 samples")],
)
def test_a_comparison_of_adaptations_refuses_samples_that_were_seen(
    finished: Path, tmp_path: Path, test: str, cause: str
) -> None:
    data = saved(tmp_path / "own.npz", part(arrays(7, n=24, scale=3.0), "train"))
    saved(tmp_path / "training.npz", part(arrays(0), "train"))
    scored = ("--compare", "--test", tmp_path / f"{test}.npz")
    answer = call("adapt", finished, "--data", data, "--as", "compared", *scored)
    assert answer.code == 4
    assert f"{cause} of" in answer.err
    assert "were used in training or for the adaptation" in answer.err


@pytest.mark.parametrize("how", ["average", "finetune"])
def test_samples_of_an_adaptation_are_named_and_not_scored(
    finished: Path, tmp_path: Path, how: str
) -> None:
    site = arrays(7, n=24, scale=3.0)
    used = saved(tmp_path / "used.npz", part(site, "train"))
    asked = ("--as", "new", "--how", how, *(["--epochs", "1"] if how == "finetune" else []))
    assert call("adapt", finished, "--data", used, *asked).code == 0
    both = saved(tmp_path / "both.npz", part(site, "train"), part(site, "test"))
    answer = predicted(finished, both, "new")
    assert "the model of new was adapted with 24 of 32 samples" in answer.err
    assert answer.out.splitlines()[-1].endswith("(8 new samples)")
    assert predicted(finished, used, "new").out.splitlines()[-1] == NO_SCORE


def test_a_csv_file_says_where_each_sample_was_seen(finished: Path, tmp_path: Path) -> None:
    site = arrays(0)
    data = saved(tmp_path / "m.npz", part(site, "train"), part(site, "test"))
    predicted(finished, data, "a", "--out", tmp_path / "p.csv")
    rows = list(csv.DictReader((tmp_path / "p.csv").read_text().splitlines()))
    assert [row["seen in"] for row in rows] == ["training"] * 16 + [""] * 8


def test_rows_of_a_table_are_recognised(tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    lines = ["site,age,sex,dose,outcome"]
    for number in range(80):
        age, dose = draws.normal(50, 10), draws.normal()
        dose_said = "" if number % 9 == 0 else f"{dose:.3f}"
        lines.append(f"{'ab'[number % 2]},{age:.1f},{'mf'[number % 3 == 0]},{dose_said},{dose > 0}")
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    run = tmp_path / "run"
    options = ("site=site", "label=outcome", "missing=mean", "categorical=['sex']")
    answer = call(
        *("run", "--data", tmp_path / "t.csv", "--model", "mlp", "--rounds", 2, "--seed", 0),
        *(part for option in options for part in ("--set", f"data.{option}")),
        *("--method", "fedbn", "--workers", 1, "--out", run),
    )
    assert answer.code == 0, answer.err
    own = [lines[0], *(line for line in lines[1:] if line.startswith("a"))]
    (tmp_path / "a.csv").write_text("\n".join(own) + "\n")
    answer = predicted(run, tmp_path / "a.csv")
    assert "the model of a was trained on 32 of 40 samples" in answer.err
    assert answer.out.splitlines()[-1].endswith("(8 new samples)")


@pytest.mark.parametrize("lazy", ["true", "false"])
def test_pictures_are_recognised_under_another_name(tmp_path: Path, lazy: str) -> None:
    draws = np.random.default_rng(0)
    for site in "ab":
        for name, count in (("train", 6), ("test", 3)):
            for label in ("cat", "dog"):
                home = tmp_path / "data" / site / name / label
                home.mkdir(parents=True)
                for number in range(count):
                    pixels = draws.integers(0, 256, (20, 16, 3)).astype("uint8")
                    Image.fromarray(pixels).save(home / f"{number}.png")
    answer = call(
        *("run", "--data", tmp_path / "data", "--rounds", 1, "--seed", 0, "--method", "fedbn"),
        *("--set", f"data.lazy={lazy}", "--set", "data.workers=0"),
        *("--workers", 1, "--out", tmp_path / "run"),
    )
    assert answer.code == 0, answer.err
    other = tmp_path / "other"
    shutil.copytree(tmp_path / "data" / "a" / "test", other)
    shutil.copy(tmp_path / "data" / "a" / "train" / "dog" / "2.png", other / "dog" / "copy.png")
    answer = predicted(tmp_path / "run", other)
    assert "the model of a was trained on 1 of 7 samples: dog/copy.png" in answer.err
    assert answer.out.splitlines()[-1].endswith("(6 new samples)")


def test_it_is_said_where_the_training_data_is_not_at_hand(tmp_path: Path) -> None:
    site = arrays(0)
    x, y = site["train_x"], site["train_y"]
    fedbn.fit({"a": (x, y), "b": (2 * x, y)}, "mlp", rounds=1, out=tmp_path / "run")
    answer = predicted(tmp_path / "run", saved(tmp_path / "t.npz", part(site, "test")))
    assert "not known whether the model was trained on these samples" in answer.err
    assert "given in Python" in answer.err
    assert answer.out.splitlines()[-1].startswith("accuracy ")


def test_without_labels_nothing_is_scored_and_the_training_data_is_not_read(
    finished: Path, tmp_path: Path
) -> None:
    np.savez(tmp_path / "bare.npz", x=arrays(0)["train_x"])
    answer = predicted(finished, tmp_path / "bare.npz")
    assert "trained on" not in answer.err
    assert "accuracy" not in answer.out


def test_an_older_adapted_site_says_that_its_samples_are_not_known(trained: Trained) -> None:
    x = torch.randn(40, 3)
    adapted = trained.adapt(x, site="new")
    site = adapted.adapted["new"]
    site.facts.pop("seen")
    assert "older fedbn" in where_seen(adapted, "new", x)[1]


def test_pixels_and_their_scaled_values_are_one_sample() -> None:
    pixels = torch.randint(0, 256, (5, 3, 4, 4), dtype=torch.uint8)
    scaled = pixels.float() / 127.5 - 1
    assert hashes_of(pixels) == hashes_of(scaled)
    assert len({*hashes_of(pixels)}) == 5
