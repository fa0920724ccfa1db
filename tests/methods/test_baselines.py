"""Baselines: scikit-learn's own numbers in a run's files, by seed, whatever else happens."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import r2_score, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits
from torch import Tensor
from torch.nn import functional
from torch.utils.data import TensorDataset

import fedbn
from commanding import arrays, bits, call, newest, records, write_sites
from fedbn.core.federation import Client, Federation, Split
from fedbn.core.method import Method
from fedbn.core.plan import Plan, Training
from fedbn.errors import ConfigError
from fedbn.experiments import environment
from fedbn.experiments.runner import Memory, run_plan
from fedbn.experiments.schema import Experiment
from fedbn.methods import baseline_names, parse_method
from fedbn.runs import outcomes
from fedbn.runs.folder import RunFolder
from fedbn.tasks.standard import multilabel, regression

BASELINES = ["local_linear", "local_boosting"]
CLASSIFIERS: dict[str, Callable[[], Any]] = {
    "local_linear": lambda: make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
    "local_boosting": lambda: HistGradientBoostingClassifier(early_stopping=False),
}
REGRESSORS: dict[str, Callable[[], Any]] = {
    "local_linear": lambda: make_pipeline(StandardScaler(), Ridge()),
    "local_boosting": lambda: HistGradientBoostingRegressor(early_stopping=False),
}
Numbers = dict[tuple[str, str, str], float | None]


def rows(seed: int, n: int) -> Tensor:
    """Four columns of very different scale and offset, and a fifth one that never changes."""
    x = torch.randn(n, 5, generator=torch.Generator().manual_seed(seed))
    scale = torch.tensor([1.0, 1e4, 1e-3, 50.0, 0.0])
    return x * scale + torch.tensor([0.0, -3e4, 7.0, 900.0, 5.0])


def classes(x: Tensor, count: int) -> Tensor:
    """A class that depends on two columns, not in a straight line."""
    z = x[:, 0] + (x[:, 1] + 3e4) / 1e4 * (x[:, 3] > 900)
    return ((z > -0.5).long() + (z > 0.7).long()).clamp(max=count - 1)


def federation(target: Callable[[Tensor], Tensor], names: tuple[str, ...]) -> Federation:
    """Two sites of 90 and 60 training rows, 50 test rows each."""
    clients = []
    for seed, (name, n) in enumerate({"a": 90, "b": 60}.items()):
        train, test = rows(seed, n), rows(10 + seed, 50)
        tests = {name: Split(test, target(test))}
        clients.append(Client(name, name, Split(train, target(train)), tests))
    return Federation("rows", tuple(clients), names)


def ran(method: Method, data: Federation, rounds: int = 1, **changes: Any) -> Memory:
    memory = Memory()
    plan = Plan(method, data, torch.nn.Module, Training(rounds=rounds), **changes)
    plan.check()
    plan.check_metrics()
    run_plan(plan, memory)
    return memory


def numbers(memory: Memory) -> Numbers:
    return {(r.client, r.split, r.metric): r.value for r in memory.records}


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("name", BASELINES)
def test_scores_of_classes_are_those_of_the_plain_pipeline(name: str, count: int) -> None:
    data = federation(lambda x: classes(x, count), ("p", "q", "r")[:count])
    found = numbers(ran(parse_method(name), data))
    for client in data.clients:
        plain = CLASSIFIERS[name]().fit(client.train.x.double().numpy(), client.train.y.numpy())
        for split, part in (("train", client.train), ("test", client.tests[client.name])):
            x, y = part.x.double().numpy(), part.y
            decided = torch.from_numpy(plain.decision_function(x))
            if count == 2:
                decided = torch.stack([torch.zeros(len(y)), decided], dim=1)
            loss = float(functional.cross_entropy(decided.float(), y)) * len(y) / len(y)
            assert found[client.name, split, "accuracy"] == np.mean(plain.predict(x) == y.numpy())
            assert found[client.name, split, "loss"] == loss
    assert found["a", "test", "accuracy"] != found["b", "test", "accuracy"]
    assert found["a", "train", "training_loss"] == found["a", "train", "loss"]


@pytest.mark.parametrize("name", BASELINES)
def test_scores_of_numbers_are_those_of_one_plain_pipeline_a_number(name: str) -> None:
    data = federation(
        lambda x: torch.stack([x[:, 0] * x[:, 3], x[:, 1] * 7 - 2], dim=1), ("u", "v")
    )
    found = numbers(ran(parse_method(name), data, task=regression()))
    for client in data.clients:
        train, test = client.train, client.tests[client.name]
        said = np.stack(
            [
                REGRESSORS[name]()
                .fit(train.x.double().numpy(), train.y[:, at].double().numpy())
                .predict(test.x.double().numpy())
                for at in range(2)
            ],
            axis=1,
        )
        r2 = r2_score(test.y.double().numpy(), said)
        assert found[client.name, "test", "r2"] == pytest.approx(r2, rel=1e-12)


@pytest.mark.parametrize("name", BASELINES)
def test_scores_of_labels_are_those_of_one_plain_pipeline_a_label(name: str) -> None:
    data = federation(lambda x: torch.stack([x[:, 0] > 0.3, x[:, 3] > 880], dim=1), ("s", "t"))
    found = numbers(ran(parse_method(name), data, task=multilabel()))
    for client in data.clients:
        train, test = client.train, client.tests[client.name]
        areas, right = [], []
        for at in range(2):
            plain = CLASSIFIERS[name]().fit(train.x.double().numpy(), train.y[:, at].numpy())
            true, x = test.y[:, at].numpy(), test.x.double().numpy()
            areas.append(roc_auc_score(true, plain.decision_function(x)))
            right += [*(plain.predict(x) == true)]
        assert found[client.name, "test", "auroc"] == pytest.approx(np.mean(areas), rel=1e-12)
        assert found[client.name, "test", "label_accuracy"] == np.mean(right)


def test_columns_are_standardised_by_the_training_rows_that_are_not_held_out() -> None:
    sites = {c.name: c for c in federation(lambda x: classes(x, 2), ("p", "q")).clients}
    given = {
        name: tuple((s.x.numpy(), s.y.numpy()) for s in (one.train, one.tests[name]))
        for name, one in sites.items()
    }
    result = fedbn.fit(given, method="local_linear", rounds=1, seed=3, evaluation__validation=0.3)
    held = {c.name: c for c in result.plan.federation.clients}
    for name, one in sites.items():
        train, valid = held[name].train, held[name].valid
        assert valid is not None
        assert len(train) + len(valid) == len(one.train)
        plain = CLASSIFIERS["local_linear"]().fit(train.x.double().numpy(), train.y.numpy())
        loss = {(r.split, r.metric): r.value for r in result.records if r.client == name}[
            "valid", "loss"
        ]
        decided = torch.from_numpy(plain.decision_function(valid.x.double().numpy()))
        both = torch.stack([torch.zeros(len(valid)), decided], dim=1).float()
        plain_loss = float(functional.cross_entropy(both, valid.y))
        assert loss == plain_loss * len(valid) / len(valid)


@pytest.mark.parametrize("name", BASELINES)
def test_a_site_of_one_class_always_predicts_it(name: str) -> None:
    data = federation(lambda x: classes(x, 3), ("p", "q", "r"))
    alone = data.clients[1].train
    one = Split(alone.x, torch.ones_like(alone.y))
    client = Client("b", "b", one, data.clients[1].tests)
    found = numbers(ran(parse_method(name), Federation("rows", (data.clients[0], client), "pqr")))
    share = float((client.tests["b"].y == 1).double().mean())
    assert 0 < share < 1
    assert found["b", "test", "accuracy"] == share
    assert found["b", "test", "loss"] == pytest.approx((1 - share) * 100)
    assert found["b", "train", "training_loss"] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("name", BASELINES)
def test_a_site_of_fewer_samples_than_classes_is_fitted_to_those_it_has(name: str) -> None:
    x, names = rows(0, 3), tuple("pqrst")
    test = Split(rows(1, 40), torch.arange(40) % 5)
    few = Client("a", "a", Split(x, torch.tensor([0, 4, 2])), {"a": test})
    found = numbers(ran(parse_method(name), Federation("rows", (few,), names)))
    plain = CLASSIFIERS[name]().fit(x.double().numpy(), few.train.y.numpy())
    right = float(np.mean(plain.predict(test.x.double().numpy()) == test.y.numpy()))
    assert found["a", "test", "accuracy"] == right
    loss = found["a", "test", "loss"]
    assert loss is not None
    assert loss > 30  # two fifths are of classes that the site never saw


@pytest.mark.parametrize("name", BASELINES)
def test_a_label_that_all_rows_have_is_always_predicted(name: str) -> None:
    data = federation(lambda x: torch.stack([x[:, 0] > -99, x[:, 0] > 0], dim=1), ("s", "t"))
    found = numbers(ran(parse_method(name), data, task=multilabel()))
    values = [found[client, split, "loss"] for client in "ab" for split in ("train", "test")]
    assert all(value is not None and value < 5 for value in values)


def test_the_number_of_threads_changes_no_bit() -> None:
    x = torch.randn(20_000, 200, generator=torch.Generator().manual_seed(0))
    y, baseline = x[:, :1] + x[:, 1:2], parse_method("local_linear").baseline
    assert baseline is not None
    outputs = []
    for threads in (1, 2):
        with threadpool_limits(threads):
            outputs.append(baseline.fit(x, y, 1, 0)(x))
    assert torch.equal(*outputs)


def test_every_round_repeats_the_scores_of_one_fit() -> None:
    fits = []

    class Counted:
        def fit(self, x: Tensor, y: Tensor, outputs: int, seed: int) -> Callable[[Tensor], Tensor]:
            fits.append(seed)
            return lambda x: torch.stack([x[:, 0], -x[:, 0]], dim=1)

    data = federation(lambda x: classes(x, 2), ("p", "q"))
    own = Method("own", baseline=Counted())
    memory = ran(own, data, rounds=4, evaluate_every=3, score_train=False)
    by_round: dict[int, Numbers] = {}
    for r in memory.records:
        by_round.setdefault(r.round, {})[r.client, r.split, r.metric] = r.value
    assert len(fits) == len(set(fits)) == 2
    assert list(by_round) == [1, 2, 3, 4]
    assert by_round[3] == by_round[4]
    assert {key[1:] for key in by_round[3]} == {
        *(("test", "accuracy"), ("test", "loss"), ("train", "training_loss"))
    }
    assert by_round[1] == by_round[2] == {k: v for k, v in by_round[3].items() if k[1] == "train"}
    assert memory.state is not None
    assert memory.state.round == 4
    assert ran(own, data, seed=1)
    assert len({*fits}) == 4


def test_a_client_whose_fit_fails_is_named_and_the_others_have_scores() -> None:
    class Failing:
        def fit(self, x: Tensor, y: Tensor, outputs: int, seed: int) -> Callable[[Tensor], Tensor]:
            if len(x) == 60:
                raise ValueError("too few rows")
            return lambda x: torch.zeros(len(x), outputs)

    heard: list[str] = []
    data = federation(lambda x: classes(x, 2), ("p", "q"))
    own = Method("own", baseline=Failing())
    result = fedbn.fit(data, method=own, rounds=2, notes=heard.append)
    assert heard.count("b: cannot be fitted: ValueError: too few rows") == 1
    assert result.rejected == ("b",)
    assert list(result.scores()) == ["a"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of both baselines and FedBN with two seeds, in one process; not to be changed."""
    home = tmp_path_factory.mktemp("baselines")
    write_sites(home / "sites")
    trained(home, "run", 3, workers=1)
    return home


METHODS = ("--method", "local_boosting", "--method", "fedbn", "--method", "local_linear")


def trained(home: Path, name: str, rounds: int, workers: int = 1, *more: object) -> Path:
    answer = call(
        *("run", "--data", home / "sites", *METHODS, "--seed", 0, "--seed", 1, "--rounds", rounds),
        *("--workers", workers, "--out", home / name, *more),
    )
    assert answer.code == 0, answer.err
    return home / name


def test_both_are_rows_of_the_table_and_of_compare(whole: Path) -> None:
    table = call("resume", whole / "run", "--format", "csv")
    labels = [line.partition(",")[0] for line in table.out.splitlines()[1:]]
    assert [label for label in labels if label.startswith("local_")] == [
        *("local_boosting", "local_linear")
    ]
    compared = call("compare", whole / "run", "--methods", "local_linear,fedbn")
    assert compared.code == 0
    assert "local_linear → fedbn" in compared.out


def test_the_number_of_workers_changes_no_bit(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole / "sites", tmp_path / "sites")
    two = trained(tmp_path, "run", 3, workers=2)
    assert "6 runs, 2 side by side" in (two / "run.log").read_text()
    assert bits(two) == bits(whole / "run")


def test_a_run_that_lost_its_last_round_is_resumed_to_the_same_bits(
    whole: Path, tmp_path: Path
) -> None:
    shutil.copytree(whole / "sites", tmp_path / "sites")
    run = trained(tmp_path, "run", 3, 1, "--set", "checkpoint.every=1")
    before = bits(run)
    for method in BASELINES:
        shutil.rmtree(newest(run, method))
    assert bits(run) != before
    assert call("resume", run).code == 0
    assert bits(run) == before
    assert records(run / "metrics.jsonl") == records(whole / "run" / "metrics.jsonl")


def test_a_baseline_says_which_test_samples_it_classifies_correctly(whole: Path) -> None:
    for name in BASELINES:
        found = outcomes.read(RunFolder(whole / "run").job(name, "default", 0))
        assert {*found} == {("running", "a", "a"), ("running", "b", "b")}
        for seed, client in enumerate("ab"):
            own = arrays(seed, scale=10.0**seed)
            plain = CLASSIFIERS[name]().fit(own["train_x"].astype(float), own["train_y"])
            right = plain.predict(own["test_x"].astype(float)) == own["test_y"]
            assert found["running", client, client].tolist() == right.astype(int).tolist()


def test_rescore_gives_a_finished_run_the_same_evaluation(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "home")
    run, before = tmp_path / "home" / "run", bits(whole / "run")
    for name in BASELINES:
        outcomes.forget(RunFolder(run).job(name, "default", 0))
    assert bits(run) != before
    answer = call("rescore", run, cwd=tmp_path / "home")
    assert answer.code == 0, answer.err
    assert bits(run) == before


def test_a_run_that_grows_has_the_numbers_of_one_that_was_longer(
    whole: Path, tmp_path: Path
) -> None:
    shutil.copytree(whole / "sites", tmp_path / "sites")
    trained(tmp_path, "grown", 2)
    grown = call("resume", tmp_path / "grown", "--rounds", 3)
    assert grown.code == 0, grown.err
    longer = (whole / "run" / "metrics.jsonl").read_bytes()
    assert (tmp_path / "grown" / "metrics.jsonl").read_bytes() == longer


def test_the_best_round_of_a_baseline_is_its_first(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole / "sites", tmp_path / "sites")
    more = ("--set", "evaluation.validation=0.25", "--set", "training.patience=1")
    run = trained(tmp_path, "run", 3, 1, *more)
    result = fedbn.open_run(run, method="local_linear")
    assert result.state.round == 1
    assert {*result.scores()} == {"a", "b"}


@pytest.mark.parametrize(
    "command",
    [
        ("predict", "--client", "a", "--data", "sites"),
        ("evaluate",),
        ("evaluate", "--data", "sites"),
        ("export", "--client", "a"),
        ("adapt", "--data", "sites/b.npz", "--as", "new"),
        ("adapt", "--data", "sites/b.npz", "--as", "new", "--how", "join"),
        ("adapt", "--data", "sites/b.npz", "--as", "new", "--compare"),
    ],
    ids=" ".join,
)
def test_a_command_that_needs_a_model_says_that_a_baseline_has_none(
    command: tuple[str, ...], whole: Path
) -> None:
    name, *rest = command
    answer = call(name, "run", *rest, "--method", "local_linear", cwd=whole)
    assert answer.code == 3
    assert "local_linear is a baseline: a run keeps its scores and no model" in answer.line


def test_a_result_in_python_has_scores_and_no_models(whole: Path) -> None:
    result = fedbn.open_run(whole / "run", method="local_linear", seed=1)
    assert result.scores() == {
        r["client"]: r["value"]
        for r in records(whole / "run" / "metrics.jsonl")
        if (r["method"], r["seed"], r["round"]) == ("local_linear", 1, 3)
        and (r["split"], r["metric"]) == ("test", "accuracy")
    }
    x = np.zeros((1, 6), "float32")
    for use in (
        lambda: result.models,
        lambda: result.predict(x, "a"),
        lambda: result.predict_proba(x, "a"),
        lambda: result.adapt(x, site="new"),
    ):
        with pytest.raises(ConfigError, match="local_linear is a baseline"):
            use()


def test_a_run_is_opened_by_a_method_that_has_models(tmp_path: Path) -> None:
    write_sites(tmp_path / "sites")
    methods = ("--method", "local_linear", "--method", "fedavg")
    answer = call(
        *("run", "--data", tmp_path / "sites", *methods, "--rounds", 1, "--seed", 0),
        *("--workers", 1, "--out", tmp_path / "run"),
    )
    assert answer.code == 0, answer.err
    assert fedbn.open_run(tmp_path / "run").plan.method.name == "fedavg"


def test_the_report_shows_scores_and_says_that_there_is_no_model(whole: Path) -> None:
    page, run = whole / "report.html", whole / "run"
    assert call("report", run, "--method", "local_linear", "--out", page).code == 0
    text = page.read_text(encoding="utf-8")
    assert "Not shown: local_linear is a baseline" in text
    shared = text[text.index('<section id="r1-shared"') :]
    exchanged = shared[: shared.index("</section>")]
    assert "fedbn" in exchanged
    assert "local_linear" not in exchanged


@pytest.mark.parametrize("name", BASELINES)
def test_pictures_and_class_weights_are_refused_in_a_line(name: str, tmp_path: Path) -> None:
    pictures = call("run", "--method", name, "--out", tmp_path / "run")
    assert pictures.code == 3
    assert f"{name} is a baseline for tables: expected samples of one dimension" in pictures.line
    assert "got samples of shape (3, 28, 28)" in pictures.line
    write_sites(tmp_path / "sites")
    weighted = call(
        *("run", "--data", tmp_path / "sites", "--method", name, "--out", tmp_path / "run"),
        *("--set", "task.class_weights=balanced"),
    )
    assert weighted.code == 3
    assert f"{name} weights all samples alike" in weighted.line
    assert not (tmp_path / "run").exists()


def test_no_network_is_made_and_none_is_inspected(tmp_path: Path) -> None:
    write_sites(tmp_path / "sites")

    def impossible() -> torch.nn.Module:
        raise AssertionError("a network was made")

    result = fedbn.fit(tmp_path / "sites", impossible, "local_linear", rounds=1)
    assert {*result.scores()} == {"a", "b"}
    answer = call("inspect", "mlp", "--method", "local_linear", "--input", "6")
    assert answer.code == 3
    assert "a baseline has no network, so no entries to inspect" in answer.line


def test_a_baseline_needs_no_scaling_by_the_user() -> None:
    data = federation(lambda x: classes(x, 2), ("p", "q"))
    heard: dict[str, list[str]] = {"fedbn": [], "local_linear": []}
    for method, texts in heard.items():
        fedbn.fit(data, method=method, rounds=1, notes=texts.append)
    assert any("columns of very different scale" in text for text in heard["fedbn"])
    assert heard["local_linear"] == []


def test_a_run_records_the_speedups_of_a_method_that_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "chosen", lambda plan: {"of": plan.method.name})
    data = federation(lambda x: classes(x, 2), ("p", "q"))
    fedbn.fit(data, methods=["local_linear", "fedbn"], rounds=1, out=tmp_path / "run")
    assert json.loads((tmp_path / "run" / "environment.json").read_text())["fast"] == {
        "of": "fedbn"
    }


@pytest.mark.parametrize("engine", ["auto", "batched"])
def test_a_baseline_is_fitted_beside_methods_that_train_in_stacks(engine: str) -> None:
    names = [f"site {number:02}" for number in range(12)]
    data = {name: (rows(at, 40).numpy(), (np.arange(40) % 2)) for at, name in enumerate(names)}
    both = fedbn.fit(
        data,
        "mlp",
        methods=["fedbn", "local_linear"],
        rounds=1,
        engine=engine,
        notes=lambda _: None,
    )
    assert [*both.runs["local_linear", 0].scores()] == names
    assert both.runs["fedbn", 0].plan.engine == "batched"


def test_samples_that_are_read_when_they_are_needed_are_fitted_alike() -> None:
    data = federation(lambda x: classes(x, 2), ("p", "q")).clients[0]
    train, test = data.train, data.tests["a"]
    given = {"a": tuple((one.x.numpy(), one.y.numpy()) for one in (train, test))}
    lazy = {"a": tuple(TensorDataset(one.x, one.y) for one in (train, test))}
    found = [fedbn.fit(one, method="local_linear", rounds=1) for one in (given, lazy)]
    assert found[0].scores(metric="loss") == found[1].scores(metric="loss")


def test_a_federation_of_machines_refuses_a_baseline() -> None:
    pytest.importorskip("flwr")
    from fedbn.experiments.jobs import Job, Setting
    from fedbn.flower.messages import check_job
    from fedbn.flower.policy import OPEN, Policy

    for name in BASELINES:
        job = Job(parse_method(name), Setting("default", Experiment()), 0)
        with pytest.raises(ConfigError, match=f"method {name} is a baseline, which each site fits"):
            check_job(job)
        assert name not in Policy().methods
        assert name not in OPEN.methods


def test_the_baselines_are_registered_as_such() -> None:
    assert sorted(BASELINES) == baseline_names()
