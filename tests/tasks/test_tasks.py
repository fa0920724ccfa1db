"""Every task trains, resumes, is used and reported; nothing outside its room knows its metrics."""

from __future__ import annotations

import ast
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made_data import DATA, MODELS, convolutional, federation, masks
from sklearn import metrics as theirs
from torch.nn import functional

import fedbn
from fedbn import registry, tasks
from fedbn.core.metric import ACCURACY, Metric, first_metric
from fedbn.core.task import CLASSIFICATION, majority, measure
from fedbn.errors import ConfigError, DataError, ModelError
from fedbn.report import document, page
from fedbn.report.reading import gather
from fedbn.results.aggregate import MEAN, ScoreTable, duel, reached, summarize
from fedbn.results.comparison import Side, compare, markdown
from fedbn.runs import metrics as records
from fedbn.runs.folder import RunFolder
from fedbn.tasks.metrics import METRICS
from fedbn.tasks.standard import balanced, balanced_labels, dice, dice_cross_entropy
from fedbn.trained.evaluation import evaluate_all
from fedbn.trained.trained_run import predict
from tiny import same_runs

NAMES = sorted(DATA)
FIRST = {"classification": "accuracy", "multilabel": "auroc", "regression": "r2",
         "segmentation": "dice"}  # fmt: skip
QUICK = {"training__lr": 0.1, "training__batch_size": 10, "notes": lambda text: None}


def fitted(name: str, out: Path | None = None, method: str = "fedbn", rounds: int = 6, **more):
    settings = {**QUICK, **more}
    return fedbn.fit(DATA[name](), MODELS[name], method, rounds=rounds, out=out, **settings)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, fedbn.Result]:
    home = tmp_path_factory.mktemp("runs")
    return {name: fitted(name, home / name) for name in NAMES}


def test_the_registry_has_them():
    assert registry.names(tasks) == NAMES
    for name in NAMES:
        task = registry.find(tasks, name, "task")()
        assert (task.name, task.metrics[0].name) == (name, FIRST[name])


@pytest.mark.parametrize("name", NAMES)
def test_the_targets_choose_the_task_and_it_learns(name: str, runs: dict[str, fedbn.Result]):
    run = runs[name]
    assert run.plan.task.name == name
    before = [r.value for r in run.records if (r.round, r.split, r.metric) == (1, "train", "loss")]
    after = run.scores("train", "loss").values()
    assert sum(after) < sum(before)
    assert run.scores().keys() == {"north", "south"}
    assert run.scores() == run.scores(metric=FIRST[name])


@pytest.mark.parametrize("name", NAMES)
def test_a_resumed_run_is_the_uninterrupted_one(name: str, tmp_path: Path):
    whole = fitted(name, tmp_path / "whole", rounds=3)
    fitted(name, tmp_path / "part", rounds=3, checkpoint__every=1)
    folder = RunFolder(tmp_path / "part")
    saved = sorted((folder.job("fedbn", "default", 0)).glob("round-*"))
    assert [path.name for path in saved] == ["round-000002", "round-000003"]
    shutil.rmtree(saved[-1])
    again = fitted(name, tmp_path / "part", rounds=3, checkpoint__every=1, resume=True)
    assert same_runs(whole.state, again.state)
    assert again.records == whole.records


@pytest.mark.parametrize("name", NAMES)
def test_an_opened_run_predicts_scores_and_evaluates(name: str, runs: dict[str, fedbn.Result]):
    run = runs[name]
    opened = fedbn.open_run(run.folder, data=DATA[name](), model=MODELS[name])
    test = DATA[name]().clients[0].tests["north"]
    said = opened.predict(test.x.numpy(), "north")
    assert said.shape == tuple(test.y.shape)
    y = test.y.numpy() if name != "classification" else opened.classes_[test.y.numpy()]
    assert opened.score(test.x, y, "north") == pytest.approx(run.scores()["north"], abs=1e-9)
    matrix = evaluate_all(opened, resamples=20)
    value, low, high = matrix.values[FIRST[name]]["north"]["north"]
    assert value == pytest.approx(run.scores()["north"], abs=1e-9)
    assert low <= high
    json.loads(matrix.to_json())
    assert bool(matrix.confusion) == (name == "classification")


@pytest.mark.parametrize("name", NAMES)
def test_a_site_is_adapted_exported_and_its_card_names_the_metric(
    name: str, runs: dict[str, fedbn.Result], tmp_path: Path
):
    run, test = runs[name], DATA[name]().clients[1].train
    for how in ("average", "finetune"):
        more = run.adapt(test.x, test.y, site="new", how=how, epochs=1)
        assert len(more.predict(test.x, "new")) == len(test)
    from fedbn.trained.export import export

    made = export(run, "north", out=tmp_path / "north.safetensors")
    card = made.card.read_text()
    assert f"Test {run.metric.words} of every client" in card
    assert f"| task | {name} |" in card


@pytest.mark.parametrize("name", NAMES)
def test_the_report_speaks_of_the_task_s_own_metric(name: str, tmp_path: Path):
    fitted(name, tmp_path / "run", rounds=2)
    whole = page([gather(tmp_path / "run")])
    text = document.markdown(whole, "1")
    assert f"Test {METRICS[FIRST[name]].title}" in text
    assert ("accuracy" in text) == (name == "classification")
    assert "<html" in document.html(whole, "1")


def test_predictions_are_a_table(runs: dict[str, fedbn.Result]):
    from fedbn.data.new_samples import Samples

    headers = {}
    for name in NAMES:
        test = DATA[name]().clients[0].tests["north"]
        made = predict(runs[name], "north", Samples(test.x, tuple("abcdefghij"), test.y))
        headers[name] = made.header()
        assert len(made.to_csv().splitlines()) == 11
        assert made.score == pytest.approx(runs[name].scores()["north"], abs=1e-9)
    assert headers["regression"] == ["input", "predicted", "label", "dose", "age"]
    assert headers["multilabel"][3] == "p(cough)"
    assert headers["segmentation"][4] == "share of vessel"


def test_accuracy_stays_and_says_what_to_call_elsewhere(runs: dict[str, fedbn.Result]):
    assert runs["classification"].accuracy() == runs["classification"].scores()
    with pytest.raises(ConfigError, match=r"segmentation, which has no accuracy; `scores\(\)`"):
        runs["segmentation"].accuracy()
    with pytest.raises(ConfigError, match="unknown metric 'dize': did you mean 'dice'"):
        runs["segmentation"].scores(metric="dize")
    with pytest.raises(ConfigError, match="regression: no probabilities"):
        runs["regression"].predict_proba(DATA["regression"]().clients[0].train.x, "north")


@pytest.mark.parametrize("space", [1, 2, 3])
def test_masks_of_any_number_of_dimensions(space: int):
    data = federation(masks, ("ground", "vessel"), (1, *[6] * space))
    run = fedbn.fit(data, lambda: convolutional(space), rounds=3, **QUICK)
    assert run.plan.task.name == "segmentation"
    assert 0 <= run.scores()["north"] <= 1


# What a run folder tells


def test_a_run_remembers_its_task_and_old_runs_are_judged_by_accuracy(
    runs: dict[str, fedbn.Result],
):
    told = RunFolder(runs["segmentation"].folder).read_environment()
    assert told["task"]["metrics"][0] == {"name": "dice", "higher": True, "unit": "%"}
    assert first_metric(told) == METRICS["dice"]
    del told["task"]
    assert first_metric(told) == ACCURACY


def test_tables_gains_and_the_best_round_turn_where_less_is_better(tmp_path: Path):
    error = Metric("mae", higher=False)

    def line(method: str, round: int, value: float) -> dict:
        return {"method": method, "setting": "default", "seed": 0, "round": round, "client": "a",
                "domain": "a", "split": "test", "metric": "mae", "value": value,
                "statistics": "running"}  # fmt: skip

    told = [line("fedbn", 1, 0.5), line("fedbn", 2, 0.00321), line("fedavg", 2, 0.4)]
    table = ScoreTable.of(told, error)
    found = summarize(table)
    assert found.best == {"a": 0.00321, MEAN: 0.00321}
    assert str(found.rows[0].cells["a"]) == "0.00321"
    fight = duel(table, found)
    assert fight is not None
    assert fight.gains[0].mean == pytest.approx(0.4 - 0.00321)
    assert reached(table.curves("a"), 0.45, error) == {"fedbn": 2, "fedavg": 2}


@pytest.mark.shows("T14")
def test_compare_turns_too_and_refuses_two_metrics(tmp_path: Path):
    for number, rate in enumerate((0.1, 0.0001)):
        for seed in range(3):
            fitted("regression", tmp_path / f"{number}{seed}", seed=seed, training__lr=rate)

    def side(number: int, environment: dict | None = None) -> Side:
        told = [
            {**line, "metric": {"mae": "r2", "r2": "mae"}.get(line["metric"], line["metric"])}
            for seed in range(3)
            for line in records.read(RunFolder(tmp_path / f"{number}{seed}").metrics)
        ]
        found = {"task": {"metrics": [Metric("r2", higher=False).facts()]}}
        return Side(str(number), told, {}, environment or found)

    found = compare(side(1), side(0))
    assert found.pairs[0].lines[-1].verdict == "better"
    assert found.pairs[0].lines[-1].b < found.pairs[0].lines[-1].a
    assert "## Test r2" in markdown(found)
    assert json.dumps(found.to_dict())
    with pytest.raises(ConfigError, match="judged by r2, 1 by accuracy, %"):
        compare(side(0), replace(side(1), environment={"x": 1}))


# Values


def test_values_are_scikit_learn_s():
    draws = np.random.default_rng(0)
    true, said = draws.normal(size=(50, 2)), draws.normal(size=(50, 2))
    there, chance = draws.random((50, 3)) > 0.4, draws.random((50, 3))

    def of(name: str, predicted: np.ndarray, target: np.ndarray) -> float:
        return measure(METRICS[name], torch.from_numpy(predicted), torch.from_numpy(target))

    assert of("r2", said, true) == pytest.approx(theirs.r2_score(true, said))
    assert of("mae", said, true) == pytest.approx(theirs.mean_absolute_error(true, said))
    squared = theirs.mean_squared_error(true, said)
    assert of("rmse", said, true) == pytest.approx(math.sqrt(squared))
    assert of("auroc", chance, there) == pytest.approx(theirs.roc_auc_score(there, chance))
    f1 = theirs.f1_score(there, chance > 0.5, average="macro")
    assert of("macro_f1", chance, there) == pytest.approx(f1)
    a, b = draws.integers(3, size=(2, 4, 5, 5)).astype(np.uint8)
    f1 = theirs.f1_score(a.ravel(), b.ravel(), labels=[1, 2], average="macro")
    iou = theirs.jaccard_score(a.ravel(), b.ravel(), labels=[1, 2], average="macro")
    assert (of("dice", b, a), of("iou", b, a)) == (pytest.approx(f1), pytest.approx(iou))


def test_further_metrics_are_measured_while_training_and_decide_nothing():
    asked = {"rounds": 2, "evaluation__validation": 0.25, "evaluation__report": "best"}
    plain = fitted("classification", **asked)
    more = fitted("classification", **asked, evaluation__metrics=["auroc", "accuracy"])
    assert more.metric == plain.metric
    assert more.state.round == plain.state.round
    assert [r for r in more.records if r.metric != "auroc"] == list(plain.records)
    scored = {(r.round, r.client, r.split) for r in plain.records if r.metric == "accuracy"}
    found = {(r.round, r.client, r.split): r.value for r in more.records if r.metric == "auroc"}
    assert found.keys() == scored
    assert all(0 <= value <= 1 for value in found.values())
    with pytest.raises(ConfigError, match="unknown metric 'aurok': did you mean 'auroc'"):
        fitted("classification", evaluation__metrics=["aurok"])


def test_a_weight_of_two_is_a_sample_twice():
    draws = np.random.default_rng(1)
    twice = np.array([0, 0, 1, 2, 2])
    weights = np.array([[2.0, 1.0, 2.0]])
    cases = {
        "r2": draws.normal(size=(2, 3, 2)),
        "rmse": draws.normal(size=(2, 3, 2)),
        "dice": draws.integers(2, size=(2, 3, 4, 4)),
        "iou": draws.integers(2, size=(2, 3, 4, 4)),
    }
    for name, (said, true) in cases.items():
        value = METRICS[name].value
        whole = value(said[twice], true[twice], np.ones((1, 5)))
        assert value(said, true, weights) == pytest.approx(whole), name


def test_dice_by_hand():
    """Two of three places right: 2 · 1 / (2 + 1)."""
    said, true = torch.tensor([[1, 1, 0]]), torch.tensor([[1, 0, 0]])
    assert measure(METRICS["dice"], said, true) == pytest.approx(2 / 3)
    assert math.isnan(measure(METRICS["dice"], torch.zeros(1, 3).long(), torch.zeros(1, 3)))
    outputs = torch.zeros(1, 2, 2)  # a half everywhere: (2 · 0.5 + 1) / (1 + 1 + 1)
    assert float(dice(outputs, torch.tensor([[0, 1]]))) == pytest.approx(1 - 2 / 3)


def test_class_weights_are_each_client_s_own_counts(runs: dict[str, fedbn.Result]):
    assert balanced(torch.tensor([0, 0, 0, 1]), 2).tolist() == pytest.approx([2 / 3, 2])
    assert balanced_labels(torch.tensor([[True], [False], [False]]), 1).tolist() == [2]
    run = fitted("classification", rounds=1, task__class_weights="balanced")
    north = run.plan.federation.clients[0]
    outputs, y = torch.zeros(2, 3), torch.tensor([0, 1])
    weights = balanced(north.train.y, 3)
    by_hand = weights[y].mean() * math.log(3)  # of zeros each class has a third
    assert float(run.plan.loss(north)(outputs, y)) == pytest.approx(float(by_hand))
    equal = fitted("classification", rounds=2, task__class_weights=[1.0, 1.0, 1.0])
    assert same_runs(equal.state, fitted("classification", rounds=2).state)


def test_a_label_that_all_have_weighs_as_one_that_nobody_has():
    assert balanced_labels(torch.tensor([[True, False], [True, False]]), 2).tolist() == [1, 1]


@pytest.mark.parametrize("weights", [[0.1, 10.0], [0.0, 1.0]])
def test_the_recorded_loss_is_the_weighted_one_in_whatever_order_samples_lie(weights: list[float]):
    x = np.random.default_rng(0).normal(size=(280, 4)).astype("float32")
    y = np.array([0] * 256 + [1] * 24)  # sorted: two batches of one class, one of both
    x[y == 1] += 0.5
    data = dict.fromkeys("ab", ((x, y), (x, y)))
    options: dict[str, Any] = {"rounds": 1, "task__class_weights": weights, "batch_size": 8}
    run = fedbn.fit(data, "mlp", "fedavg", notes=lambda text: None, **options)
    with torch.no_grad():
        outputs = run.model("a").eval()(torch.tensor(x))
    whole = functional.cross_entropy(outputs, torch.tensor(y), torch.tensor(weights))
    asked = ("a", "loss", "running")
    found = [r.value for r in run.records if (r.client, r.metric, r.statistics) == asked]
    assert found == pytest.approx([float(whole)] * 2, rel=1e-4)


def test_groups_are_measured_by_shares_of_their_votes():
    """The sick group has all of its two votes, the healthy one six of its ten."""
    outputs = torch.tensor([[0.4, 0.6]] * 6 + [[0.6, 0.4]] * 4 + [[0.1, 0.9]] * 2)
    groups = torch.tensor([0] * 10 + [1] * 2)
    votes, truth = majority(outputs, groups, groups)
    assert votes.tolist() == [[0.4, 0.6], [0.0, 1.0]]
    assert measure(METRICS["auroc"], votes, truth) == 1
    assert measure(METRICS["calibration_error"], votes, truth) == pytest.approx(0.3)


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_r2_does_not_depend_on_units(scale: float):
    true = scale * torch.linspace(0, 1, 50, dtype=torch.float64)[:, None]
    assert measure(METRICS["r2"], true, true) == 1
    assert math.isnan(measure(METRICS["r2"], true, torch.full_like(true, 0.1 * scale)))


# One's own


def largest_error(predictions: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (predictions - targets).abs().max()


largest_error.higher_is_better = False  # type: ignore[attr-defined]


def own_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs - targets).abs().mean()


def own_task() -> fedbn.Task:
    return fedbn.Task("mine", fedbn.Targets.NUMBERS, own_loss, (METRICS["mae"],))


def test_a_loss_and_a_metric_of_one_s_own_in_python(tmp_path: Path):
    mine = {"loss": own_loss, "metrics": [largest_error, "mae"]}
    run = fitted("regression", tmp_path / "run", **mine)
    assert same_runs(run.state, fitted("regression", loss="absolute").state)
    assert run.metric == Metric("largest_error", higher=False)
    with pytest.raises(ConfigError, match=r"loss was given in Python.*open_run\(..., loss=...\)"):
        fedbn.open_run(run.folder, data=DATA["regression"](), model=MODELS["regression"])
    again = fedbn.open_run(
        run.folder, data=DATA["regression"](), model=MODELS["regression"], **mine
    )
    assert again.scores() == run.scores()
    task = fitted("regression", task=own_task())
    assert same_runs(task.state, run.state)
    assert task.plan.task.name == "mine"


def test_one_s_own_by_name_passes_the_trust_gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "my_things.py").write_text(
        "def loss(outputs, targets):\n    return (outputs - targets).abs().mean()\n"
        "def worst(said, true):\n    return (said - true).abs().max()\n"
        "worst.higher_is_better = False\n"
    )
    monkeypatch.chdir(tmp_path)
    mine = {"task__loss": "my_things:loss", "task__metrics": ["my_things:worst"]}
    run = fitted("regression", tmp_path / "run", **mine)
    assert run.metric.name == "worst"
    monkeypatch.setattr(registry, "_trusted", set())
    data, model = DATA["regression"](), MODELS["regression"]
    with pytest.raises(ConfigError, match="my_things"):
        fedbn.open_run(run.folder, data=data, model=model)
    assert fedbn.open_run(run.folder, data=data, model=model, trust="my_things").scores()


# Bad input


def refused(name: str, match: str, error: type[Exception] = ConfigError, **more: object) -> None:
    with pytest.raises(error, match=match) as found:
        fitted(name, rounds=1, **more)
    assert "\n" not in str(found.value)


@pytest.mark.shows("T04")
def test_targets_that_do_not_fit_name_the_task_that_does():
    refused("regression", "learns from masks, but data made has numbers; task.name = 'regression'",
            task="segmentation")  # fmt: skip
    refused("segmentation", "task.name = 'segmentation' fits", task="classification")
    refused(
        "classification", "unknown task 'segmentatoin': did you mean 'segm", task="segmentatoin"
    )


@pytest.mark.shows("T08", "T09")
def test_a_bad_loss_is_refused():
    refused("regression", r"gives shape \(2, 2\).*one number", loss=lambda o, t: (o - t).abs())
    refused("regression", "gives float", loss=lambda o, t: 1.0)
    refused("regression", "no gradient", loss=lambda o, t: (o.detach() - t).abs().mean())
    refused("regression", "fails on a batch of two: ValueError: odd", loss=_odd)
    refused("regression", "unknown loss 'hubber': did you mean 'huber'", loss="hubber")
    both = {"loss": "cross_entropy", "task__class_weights": "balanced"}
    refused("classification", "exclude each other", **both)


def _odd(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    raise ValueError("odd")


_odd.higher_is_better = True  # type: ignore[attr-defined]


def vector(said: torch.Tensor, true: torch.Tensor) -> torch.Tensor:
    return (said - true).abs().mean(dim=0)


vector.higher_is_better = False  # type: ignore[attr-defined]


@pytest.mark.shows("T01", "T02", "T03")
def test_a_bad_metric_is_refused():
    refused("regression", "metric _odd fails: ValueError: odd", metrics=[_odd])
    refused("regression", r"vector gives shape \(2,\); legal is one number", metrics=[vector])
    refused("regression", "own_loss.higher_is_better = True or False", metrics=[own_loss])
    refused("regression", "unknown metric 'r3'", metrics=["r3"])
    refused("regression", "'mae' is taken", metrics=["mae", "mae"])
    refused("regression", "a list of one metric or more", metrics=[])


@pytest.mark.shows("T12")
def test_bad_class_weights_are_refused():
    refused("regression", "takes no class_weights", task__class_weights="balanced")
    refused("classification", "2 numbers, but the data has 3", task__class_weights=[1.0, 2.0])
    refused("classification", "legal are finite numbers >= 0", task__class_weights=[1.0, -2.0, 1.0])


@pytest.mark.shows("T05", "T07", "T10", "T11")
def test_bad_targets_are_refused():
    def broken(name: str, y: torch.Tensor, match: str) -> None:
        data = DATA[name]()
        first = data.clients[0]
        bad = replace(first, train=replace(first.train, y=y))
        with pytest.raises(DataError, match=match):
            fedbn.fit(replace(data, clients=(bad, *data.clients[1:])), MODELS[name], **QUICK)

    n = len(DATA["regression"]().clients[0].train)
    broken("segmentation", torch.full((n, 8, 8), 7, dtype=torch.uint8), "mask value 7 of sample 0")
    broken("segmentation", torch.zeros(n, 8, 7, dtype=torch.uint8), r"masks of \(8, 7\)")
    broken("regression", torch.full((n, 2), math.nan), "targets: NaN in sample 0")
    broken("regression", torch.zeros(n, 3), "3 targets a sample, but 2 names")
    constant = federation(lambda x: torch.stack([x[:, 0], 0 * x[:, 0]], 1), ("dose", "age"))
    with pytest.raises(DataError, match="target 'age': it is 0 in every training sample"):
        fedbn.fit(constant, MODELS["regression"], **QUICK)
    nobody = federation(lambda x: torch.stack([x[:, 0] > 0] * 2 + [x[:, 0] > 9], 1), tuple("abc"))
    with pytest.raises(DataError, match="target 'c': no training sample has it"):
        fedbn.fit(nobody, MODELS["multilabel"], **QUICK)


@pytest.mark.shows("T13")
def test_outputs_that_do_not_fit_are_refused():
    with pytest.raises(ModelError, match=r"has 2 target\(s\): expected \(2, 2\)"):
        fedbn.fit(DATA["regression"](), MODELS["multilabel"], **QUICK)
    flat = lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 2))  # noqa: E731
    with pytest.raises(ModelError, match=r"gives \(2, 2\).*expected \(2, 2, 8, 8\)"):
        fedbn.fit(DATA["segmentation"](), flat, "fedavg", **QUICK)


def test_the_losses_keep_a_gradient_where_a_batch_has_no_foreground():
    outputs = torch.randn(2, 2, 4, 4, requires_grad=True)
    dice_cross_entropy(outputs, torch.zeros(2, 4, 4, dtype=torch.int64)).backward()
    assert torch.isfinite(outputs.grad).all()


# Nobody else decides by the word


def test_no_other_room_decides_by_the_word_accuracy():
    """It stands where the paper's metric is defined, and in messages for people.

    These are of `Result.accuracy` and of comparisons over test samples, which need that metric.
    """
    found = set()
    root = Path(fedbn.__file__).parent
    for file in root.rglob("*.py"):
        room = file.relative_to(root).as_posix()
        if room.startswith(("tasks/", "paper/")):
            continue
        tree = ast.parse(file.read_text(encoding="utf-8"))
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
        docs = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, kinds) and node.body and isinstance(node.body[0], ast.Expr)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and id(node) not in docs:
                text = node.value if isinstance(node.value, str) else ""
                found |= {(room, text)} if "accuracy" in text.lower() else set()
    messages = {"trained/trained_run.py", "cli/compare.py", "results/sample_comparison.py"}
    assert {room for room, _ in found} == {"core/metric.py", *messages}
    assert ("core/metric.py", "accuracy") in found
    assert CLASSIFICATION.metrics == (ACCURACY,)


@pytest.mark.parametrize("name", NAMES)
def test_the_data_of_every_task_is_surveyed(name: str):
    from fedbn.data.survey import survey

    data = DATA[name]()
    found = survey(data)
    counts = np.array(found["train"])
    assert counts.shape == (2, len(data.classes))
    assert counts.max() <= 30
    if name == "segmentation":
        assert counts.tolist() == [[30, 30], [30, 30]]
