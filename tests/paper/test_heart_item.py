"""The heart item: a task of its own, four settings, published numbers where they belong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commanding import call
from heart_files import written


def test_published_numbers_stand_beside_the_published_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    written(tmp_path)
    monkeypatch.setenv("FEDBN_DATA", str(tmp_path))
    out = tmp_path / "out"
    few = (
        "training.rounds=2",
        "training.local_steps=2",
        "evaluation.every=2",
        "methods=['fedavg','fedbn']",
    )
    asked = [part for setting in few for part in ("--set", setting)]
    answer = call("reproduce", "heart", *asked, "--scale", "paper", "--workers", 1, "--out", out)
    assert answer.code == 0, answer.err
    accuracy, gain = json.loads((out / "result.json").read_text())["tables"]
    papers = {tuple(row["label"]): row["cells"][0]["paper"] for row in accuracy["rows"]}
    assert papers.pop(("normalise=True,batchnorm=False", "fedavg")) == 73.1
    names = [label[1] for label in papers if "statistics" not in label[1]]
    assert sorted(names) == ["fedavg"] * 3 + ["fedbn"] * 4
    kinds = {label for label in papers if "statistics" in label[1]}
    assert {setting for setting, _ in kinds} == {
        "normalise=True,batchnorm=True", "normalise=False,batchnorm=True"
    }  # fmt: skip
    assert set(papers.values()) == {None}
    # Without BatchNorm FedBN is FedAvg: equal to the last digit.
    same = [row["cells"][0]["ours"] for row in gain["rows"] if "batchnorm=False" in row["label"][0]]
    assert same == [0.0, 0.0]
