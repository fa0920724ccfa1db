"""`fedbn adapt --compare` scores models that were not adapted, too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from use_sites import site

import fedbn
from commanding import arrays, call
from fedbn.core.federation import Split
from fedbn.trained.adaptation import Compared, Options, best, compare, divided


def split(n: int = 40) -> Split:
    x, y = site(8.0, 9, n)
    return Split(torch.from_numpy(x), torch.from_numpy(y))


def score_of(found: list[Compared], name: str) -> float:
    (one,) = [one for one in found if one.how == name]
    assert one.score is not None, one.reason
    return one.score[0]


def test_the_global_model_of_fedavg_is_compared_as_it_is(home: Path) -> None:
    run = fedbn.open_run(home / "fedavg")
    adapting, scoring = divided(split(), None, "new")
    found = list(compare(run, "new", adapting, scoring, Options(), None))
    expected = run.score(scoring.x, scoring.y, run.clients[0])
    assert score_of(found, "global model as it is") == expected
    assert best(found) in ("average", "reestimate", "finetune")  # what can be stored


def test_a_run_of_several_methods_compares_fedavg_as_it_is(finished: Path) -> None:
    run, other = (fedbn.open_run(finished, method=name) for name in ("fedbn", "fedavg"))
    content = arrays(5, n=40, scale=4.0)
    adapting = Split(*map(torch.from_numpy, (content["train_x"], content["train_y"])))
    scoring = Split(*map(torch.from_numpy, (content["test_x"], content["test_y"])))
    found = list(compare(run, "new", adapting, scoring, Options(), None))
    expected = other.score(scoring.x, scoring.y, "b")
    assert score_of(found, "FedAvg's global model as it is") == expected
    assert score_of(found, "global model, mean of all BatchNorm, as it is") >= 0


def test_it_is_said_where_no_way_to_adapt_helps(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = {"average": 0.2, "global model as it is": 0.3}
    made = [Compared(how, (score, score, score)) for how, score in scores.items()]
    monkeypatch.setattr("fedbn.trained.adaptation.compare", lambda *_: iter(made))
    np.savez(tmp_path / "new.npz", **arrays(5, scale=4.0))
    asked = ("adapt", finished, "--data", tmp_path / "new.npz", "--as", "new", "--compare")
    assert "'global model as it is' scores better than every way to adapt" in call(*asked).err
    made[1] = Compared("global model as it is", (0.1, 0.1, 0.1))
    assert "better than every way" not in call(*asked).err
