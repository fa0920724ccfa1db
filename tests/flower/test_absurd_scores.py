"""A score that no metric can have is not recorded, whoever sends it."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from flower_bench import Bench
from flwr.app import ConfigRecord, Message

from fedbn.core.metric import ACCURACY
from fedbn.runs import metrics
from fedbn.tasks.metrics import METRICS


def scoring(metric: str, value: float | None, split: str = "test"):
    """Tamper with the scores that `photo` sends."""

    def tamper(site: str, answer: Message) -> Message:
        record = answer.content.config_records.get("answer")
        if site == "photo" and record:
            said = json.loads(str(record["json"]))
            if said["scores"]:
                number = {"domain": "d", "split": split, "metric": metric, "value": value}
                said["scores"] = [*said["scores"], number]
                answer.content["answer"] = ConfigRecord({"json": json.dumps(said)})
        return answer

    return tamper


@pytest.mark.parametrize(
    ("metric", "value", "reason"),
    [
        ("accuracy", 1e300, "accuracy = 1e+300, expected 0 to 1"),
        ("accuracy", 1.01, "accuracy = 1.01, expected 0 to 1"),
        ("accuracy", -0.01, "accuracy = -0.01, expected 0 to 1"),
        ("loss", 1e300, "loss = 1e+300, expected -1e+15 to 1e+15"),
        ("refused", 1.0, "'refused' is not measured in this run"),
        ("untrained", 1.0, "'untrained' is not measured in this run"),
        ("training_loss", 0.0, "'training_loss' is not measured in this run"),
        ("made up", 0.5, "'made up' is not measured in this run"),
    ],
)
def test_an_impossible_score_is_named_and_not_recorded(
    bench: Bench, metric: str, value: float, reason: str
) -> None:
    folder = bench.run(bench.grid(scoring(metric, value)))
    for round in (1, 2):
        assert f"photo's scores of round {round} are left out: {reason}" in bench.notes()
    found = [r for r in metrics.read(folder.metrics) if r["metric"] != "training_loss"]
    assert {r["client"] for r in found} == {"plain"}


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity"])
def test_a_score_that_is_no_number_is_refused(bench: Bench, constant: str) -> None:
    folder = bench.run(bench.grid(scoring("accuracy", float(constant.lower()))))
    assert f"{constant} is not a number" in bench.notes()
    assert not [
        r
        for r in metrics.read(folder.metrics)
        if r["client"] == "photo" and r["value"] and r["metric"] == "accuracy"
    ]


def test_a_score_that_could_not_be_computed_is_recorded_as_none(bench: Bench) -> None:
    folder = bench.run(bench.grid(scoring("accuracy", None)))
    values = [r["value"] for r in metrics.read(folder.metrics) if r["domain"] == "d"]
    assert values == [None, None]


def test_an_absurd_training_loss_is_refused_with_its_update(bench: Bench) -> None:
    def tamper(site: str, answer: Message) -> Message:
        record = answer.content.config_records.get("answer")
        if site == "photo" and record:
            text = json.dumps({**json.loads(str(record["json"])), "loss": 1e300})
            answer.content["answer"] = ConfigRecord({"json": text})
        return answer

    bench.run(bench.grid(tamper))
    assert "photo is left out: its training loss is 1e+300, expected at most 1e+15" in bench.notes()


@pytest.mark.parametrize("metric", [ACCURACY, *METRICS.values()], ids=lambda m: m.name)
@pytest.mark.parametrize("value", [1e300, -1e300, 1e15, 123456789.0])
def test_no_number_is_printed_at_length(metric, value: float) -> None:
    assert len(metric.said(value)) < 12


def test_usual_numbers_are_printed_as_before() -> None:
    assert (ACCURACY.said(0.8127), METRICS["mae"].said(0.0123)) == ("81.3", "0.0123")
