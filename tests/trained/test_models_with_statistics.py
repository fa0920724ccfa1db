"""A run's models with other than running statistics, and their scores by `evaluate`."""

from __future__ import annotations

import csv
import io
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from use_sites import site, write

import fedbn
from commanding import call
from fedbn.core.statistics_kinds import StatisticsKind
from fedbn.errors import ConfigError
from fedbn.trained.evaluation import evaluate_all, to_csv, to_json
from fedbn.trained.trained_run import Trained

EVERY: tuple[StatisticsKind, ...] = ("running", "local", "exact", "batch")
FINAL = {"evaluation__final_statistics": [*EVERY], "training__lr": 0.1}
PARTIAL = {**FINAL, "training__participation": 0.7}


def bn_net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


def own_scores(run: Trained, kind: StatisticsKind) -> dict[str, float]:
    found = evaluate_all(run, resamples=2, statistics=kind).values["accuracy"]
    return {client: row[client][0] for client, row in found.items()}


@pytest.mark.parametrize("share", [0.0, 0.25])
def test_an_opened_run_is_evaluated_with_the_statistics_of_its_records(
    share: float, tmp_path: Path
) -> None:
    data = write(tmp_path / "data", {"a": 1.0, "b": 5.0, "c": 20.0})
    options = {**PARTIAL, "evaluation__validation": share}
    made = fedbn.fit(data, "mlp", "fedavg", rounds=3, out=tmp_path / "run", **options)
    for run in (made, fedbn.open_run(tmp_path / "run")):
        assert run.statistics == EVERY
        for kind in EVERY:
            assert own_scores(run, kind) == run.scores(statistics=kind), kind


def test_exact_statistics_are_those_of_the_training_data() -> None:
    sites = {name: site(scale, number) for number, (name, scale) in enumerate((("a", 1), ("b", 9)))}
    run = fedbn.fit(sites, bn_net, "fedavg", rounds=2, **FINAL)
    model = run.model("b", "exact")
    inputs = model[0](run.federation.clients[1].train.x)
    assert torch.allclose(model[1].running_mean, inputs.mean(dim=0), atol=1e-5)
    assert torch.allclose(model[1].running_var, inputs.var(dim=0), rtol=1e-5)
    assert torch.equal(model[0].weight, run.model("b")[0].weight)
    assert not torch.equal(model[1].running_mean, run.model("b")[1].running_mean)


def test_local_statistics_of_fedavg_are_those_of_silobn(tmp_path: Path) -> None:
    data = write(tmp_path / "data", {"a": 1.0, "b": 5.0, "c": 20.0})
    runs = {}
    for method in ("fedavg", "silobn"):
        out = tmp_path / method
        fedbn.fit(data, "mlp", method, rounds=3, out=out, **PARTIAL)
        runs[method] = fedbn.open_run(out)
    for client in "abc":
        own = runs["fedavg"].model(client, "local").state_dict()
        other = runs["silobn"].model(client).state_dict()
        assert all(torch.equal(value, other[name]) for name, value in own.items())


def test_a_run_without_such_statistics_says_which_it_has(trained: Trained, home: Path) -> None:
    with pytest.raises(ConfigError, match="fedbn: the run kept no local statistics"):
        evaluate_all(trained, statistics="local")
    x, _ = site(8.0, 9, 12)
    with pytest.raises(ConfigError, match="new was adapted after training: expected running"):
        trained.adapt(x, site="new").model("new", "exact")
    assert evaluate_all(trained.adapt(x, site="new"), resamples=2, statistics="exact").clients == (
        *"abc",
    )
    assert fedbn.open_run(home / "fedavg").state.own_statistics.keys() == set("abc")
    none: dict[str, list[str]] = {"evaluation__final_statistics": []}
    fedbn.fit(home / "data", "mlp", "fedavg", rounds=1, out=home / "bare", **none)
    bare = fedbn.open_run(home / "bare")  # as a run of an older version
    assert bare.statistics == ("running",)
    with pytest.raises(ConfigError, match="fedavg: the run kept no local statistics"):
        bare.model("a", "local")
    assert own_scores(bare, "exact").keys() == set("abc")


def test_a_client_whose_statistics_cannot_be_computed_has_a_dash_and_a_reason() -> None:
    class Failing(nn.Module):
        """Fails on data with the value 7, once it is asked for statistics."""

        def __init__(self) -> None:
            super().__init__()
            self.net, self.armed = bn_net(), False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if Failing.on and bool((x == 7.0).any()):
                raise RuntimeError("seven")
            return self.net(x)

        on = False

    (x, y), other = site(1.0, 0), site(5.0, 1)
    x[0, 0] = 7.0
    run = fedbn.fit({"a": (x, y), "b": other}, Failing, "fedavg", rounds=1)
    Failing.on = True
    found = evaluate_all(
        run, {"b": run.federation.clients[1].tests["b"]}, resamples=2, statistics="exact"
    )
    assert list(found.unscored) == ["a"]
    assert "seven" in found.unscored["a"]
    assert all(map(math.isnan, found.values["accuracy"]["a"]["b"]))
    assert not math.isnan(found.values["accuracy"]["b"]["b"][0])


def test_a_model_without_batchnorm_has_one_kind() -> None:
    run = fedbn.fit({"a": site(1.0, 0), "b": site(5.0, 1)}, nn.Linear(3, 2), "fedavg", rounds=1)
    assert run.statistics == ("running",)


def test_several_kinds_are_written_to_one_file(trained: Trained) -> None:
    kinds: tuple[StatisticsKind, ...] = ("running", "exact")
    found = [evaluate_all(trained, resamples=3, statistics=kind) for kind in kinds]
    content = json.loads(to_json(found))
    assert content["statistics"] == "running"
    assert content["values"]["accuracy"]["a"]["a"][0] == found[0].values["accuracy"]["a"]["a"][0]
    (other,) = content["others"]
    assert other["statistics"] == "exact"
    assert other["values"]["accuracy"]["a"]["a"][0] == found[1].values["accuracy"]["a"]["a"][0]
    rows = list(csv.DictReader(io.StringIO(to_csv(found).decode())))
    assert [row["statistics"] for row in rows] == ["running"] * 45 + ["exact"] * 45
    assert json.loads(found[0].to_json())["others"] == []


def test_evaluate_prints_a_table_for_each_kind(home: Path) -> None:
    answer = call("evaluate", home / "fedavg", "--resamples", 5)
    assert answer.code == 0, answer.err
    kinds = fedbn.open_run(home / "fedavg").statistics
    assert kinds == ("running", "local", "batch")
    heads = [line for line in answer.out.splitlines() if line.startswith("scored with")]
    assert heads == [
        "scored with the running statistics that the method leaves",
        "scored with the client's own running statistics",
        "scored with the client's batch statistics",
    ]
    assert answer.out.count("accuracy, %: model of") == 3
    assert "BatchNorm statistics of the rows" in answer.err
    one = call("evaluate", home / "fedavg", "--resamples", 5, "--statistics", "exact")
    assert one.out.startswith("accuracy, %: model of")
    wrong = call("evaluate", home / "fedavg", "--statistics", "exakt")
    assert wrong.code == 3
    assert "did you mean 'exact'?" in wrong.err


def test_evaluate_without_the_training_data_uses_running_statistics(
    home: Path, tmp_path: Path
) -> None:
    new = write(tmp_path / "new", {"d": 8.0}) / "d.npz"
    shutil.copytree(home / "fedavg", tmp_path / "moved")
    settings = tmp_path / "moved" / "config.toml"
    line = next(one for one in settings.read_text().splitlines() if one.startswith("path = "))
    settings.write_text(settings.read_text().replace(line, 'path = "/gone"'))
    answer = call("evaluate", tmp_path / "moved", "--data", new, "--resamples", 5)
    assert answer.code == 0, answer.err
    assert "not scored with local, batch statistics, which need the training data" in answer.err
    assert answer.out.count("accuracy, %: model of") == 1


def test_of_many_clients_each_kind_has_its_spread(tmp_path: Path) -> None:
    data = write(tmp_path / "data", {f"c{i:02d}": 1.0 + i for i in range(14)})
    run = tmp_path / "run"
    fedbn.fit(data, "mlp", "fedavg", rounds=2, out=run, **FINAL)
    answer = call("evaluate", run, "--resamples", 2)
    assert answer.code == 0, answer.err
    (head, *_) = answer.out.splitlines()
    assert head.split("  ")[-1].endswith("batch statistics")
    short = call("evaluate", run, "--resamples", 2, tty=True)
    assert short.out.count("scored with the client's") == 3
    median = [row for row in answer.out.splitlines() if row.startswith("median")]
    numbers = [float(cell) for cell in median[0].split()[1:]]
    opened = fedbn.open_run(run)
    assert numbers == pytest.approx(
        [100 * np.median([*opened.scores(statistics=kind).values()]) for kind in EVERY], abs=0.051
    )
