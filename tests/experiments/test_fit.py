"""`fedbn.fit`: the same run from Python."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fedbn
from commanding import arrays, bits, call, newest, shared_in
from fedbn.errors import ConfigError, DataError


def given(*names: str) -> dict[str, Any]:
    found = {}
    for i, name in enumerate(names):
        a = arrays(i, scale=10.0**i)
        found[name] = ((a["train_x"], a["train_y"]), (a["test_x"], a["test_y"]))
    return found


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def test_fit_is_the_command(finished: Path, sites: Path, tmp_path: Path) -> None:
    result = fedbn.fit(sites, "mlp", "fedbn", rounds=3, seed=0, out=tmp_path / "out")
    ours, theirs = bits(tmp_path / "out"), bits(finished)
    assert {name: theirs[name] for name in ours if "checkpoints" in name} == {
        name: value for name, value in ours.items() if "checkpoints" in name
    }
    assert result.folder == tmp_path / "out"
    assert sorted(result.models) == ["a", "b"]


def test_arrays_as_objects_are_arrays_as_files(finished: Path) -> None:
    result = fedbn.fit(given("a", "b"), "mlp", fedbn.fedbn(), rounds=3, seed=0)
    assert result.folder is None
    asked = (3, "test", "accuracy", "running")
    last = [r for r in result.records if (r.round, r.split, r.metric, r.statistics) == asked]
    assert result.accuracy() == {r.client: r.value for r in last}
    saved = shared_in(newest(finished))
    assert all(value.equal(saved[name]) for name, value in result.state.shared.state.items())
    assert fedbn.fit(given("a", "b"), "mlp", "fedbn", rounds=1).model("b").training is False


def test_a_run_of_objects_is_resumed_from_python(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = net()
    asked: dict[str, Any] = {"rounds": 3, "out": tmp_path / "out"}
    first = fedbn.fit(given("a", "b"), model, "fedbn", **asked)
    whole = bits(tmp_path / "out")
    shutil.rmtree(newest(tmp_path / "out"))
    again = fedbn.fit(given("a", "b"), model, "fedbn", resume=True, **asked)
    assert bits(tmp_path / "out") == whole
    assert again.records == first.records


def test_a_run_of_objects_cannot_be_resumed_by_the_command(tmp_path: Path) -> None:
    fedbn.fit(given("a", "b"), net, "fedbn", rounds=1, out=tmp_path / "out")
    answer = call("resume", tmp_path / "out")
    assert answer.code == 3
    assert "the run's data and model were given in Python" in answer.line
    assert "all of its rounds are done" in answer.line
    shutil.rmtree(newest(tmp_path / "out"))
    assert f"out={str(tmp_path / 'out')!r}, resume=True" in call("resume", tmp_path / "out").line
    assert "cannot grow" in call("resume", tmp_path / "out", "--rounds", 9).line


def test_the_configuration_of_a_run_of_objects_is_not_run_without_them(tmp_path: Path) -> None:
    fedbn.fit(given("a", "b"), "mlp", "fedbn", rounds=1, out=tmp_path / "out")
    answer = call("run", tmp_path / "out" / "config.toml", "--out", tmp_path / "again")
    assert answer.code == 3
    assert "the run was made in Python" in answer.line
    assert "--data" in answer.line


def test_a_run_made_in_python_has_its_learning_curves(tmp_path: Path) -> None:
    fedbn.fit(given("a", "b"), "mlp", "fedbn", rounds=1, out=tmp_path / "out")
    assert (tmp_path / "out" / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_the_report_of_a_run_of_objects_advises_what_exists(tmp_path: Path) -> None:
    fedbn.fit(given("a", "b"), "mlp", "fedbn", rounds=1, out=tmp_path / "out")
    answer = call("report", tmp_path / "out", "--format", "md")
    text = (tmp_path / "out" / "report.md").read_text()
    assert answer.code == 0
    assert "given in Python and is not in the run folder" in answer.err
    assert "--data" not in answer.err
    assert "fedbn resume" not in text
    assert "fedbn run" not in text


def test_a_fit_killed_at_once_is_resumed_as_what_it_was(tmp_path: Path) -> None:
    from fedbn.runs.folder import RunFolder

    RunFolder(tmp_path / "out").begin({"seeds": [0], "data": {"name": "(given in Python)"}})
    result = fedbn.fit(given("a"), net, "fedbn", rounds=1, out=tmp_path / "out", resume=True)
    assert result.state.round == 1


def test_settings_by_their_keys(tmp_path: Path) -> None:
    result = fedbn.fit(
        given("a", "b"),
        net,
        "fedprox",
        rounds=1,
        training__optimizer="adam",
        training__optimizer_args={"betas": (0.8, 0.9)},
        method__mu=0.5,
        out=tmp_path / "out",
    )
    assert result.plan.training.optimizer == "Adam"
    assert result.plan.method.rules[0] == fedbn.proximal(0.5)
    again = fedbn.fit(
        given("a", "b"),
        net,
        "fedprox",
        rounds=1,
        training__optimizer="adam",
        training__optimizer_args={"betas": (0.8, 0.9)},
        method__mu=0.5,
        out=tmp_path / "out",
        resume=True,
    )
    assert again.records == result.records


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"rounds": 0}, ConfigError, "training.rounds = 0"),
        ({"seed": -1}, ConfigError, "seeds.0 = -1"),
        ({"training__ronds": 1}, ConfigError, "did you mean 'training.rounds'"),
        ({"training__lr": float("nan")}, ConfigError, "training.lr = nan"),
        ({"method": "fedbm"}, ConfigError, "did you mean 'fedbn'"),
        ({"method__mu": [1, 2], "evaluation__validation": 0.2}, ConfigError, "one number"),
        ({"seeds": [0, 0]}, ConfigError, r"seeds: \[0, 0\] names one twice"),
        ({"seeds": [1], "seed": 2}, ConfigError, r"fit: seed = 2 beside seeds = \[1\]"),
        ({"seeds": 3}, ConfigError, "fit: seeds = 3: legal is a list; one is `seed`"),
        ({"methods": []}, ConfigError, r"fit: methods = \[\]: legal is a list; one is `method`"),
        ({"methods": ["fedavg", "fedavg"]}, ConfigError, "names one twice"),
        ({"method": ["fedavg", "fedbn"]}, ConfigError, r"fit: method = \['fedavg', 'fedbn'\]"),
        ({"sweep": {"training": {"lr": [1, 2]}}}, ConfigError, "fit: sweep = .*one setting"),
        (
            {"sweep__nonsense": [1]},
            ConfigError,
            r"fit: sweep\.nonsense = \[1\]: fit trains methods",
        ),
        ({"model": nn.Linear(6, 2)}, ConfigError, "BatchNorm"),
        ({"data": {}}, DataError, "no clients"),
        ({"data": {"a": 3}}, DataError, r"expected \(x, y\)"),
        ({"data": {"../a": given("a")["a"]}}, DataError, "client name '../a'"),
        ({"data": "digits_mimi"}, ConfigError, "did you mean 'digits_mini'"),
    ],
)
def test_what_fit_refuses_it_writes_nothing_for(
    changes: dict[str, Any], error: type[Exception], said: str, tmp_path: Path
) -> None:
    asked: dict[str, Any] = {"data": given("a", "b"), "model": net, "rounds": 1, **changes}
    with pytest.raises(error, match=said):
        fedbn.fit(asked.pop("data"), asked.pop("model"), out=tmp_path / "out", **asked)
    assert not (tmp_path / "out").exists()


def test_first_weights_are_drawn_by_one_thread() -> None:
    """Orthogonal ones differ with the number of threads, so a seed would not decide them."""
    from fedbn.data.python_data import federation_of
    from fedbn.experiments.jobs import jobs
    from fedbn.experiments.planner import Planner
    from fedbn.experiments.schema import Experiment

    seen = []

    def counting() -> nn.Module:
        seen.append(torch.get_num_threads())
        return net()

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        planner = Planner(federation_of(given("a", "b")), counting)
        planner.plan(jobs(Experiment(methods=["fedbn"]))[0])
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert set(seen) == {1}


def test_an_unknown_client_is_said() -> None:
    result = fedbn.fit(given("ann", "bob"), net, "fedbn", rounds=1)
    with pytest.raises(ConfigError, match="did you mean 'ann'"):
        result.model("anne")
