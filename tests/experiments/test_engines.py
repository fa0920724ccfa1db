"""Which engine serves a run: one for all its jobs, written into its configuration."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from fedbn.experiments.configuration import checked
from fedbn.experiments.planner import Planner
from fedbn.experiments.runner import prepare, start
from fedbn.runs.folder import RunFolder
from tiny import federation


def settled(clients: int, **changes: Any) -> tuple[str | None, set[str]]:
    """What is settled on, and what the plans then say."""
    experiment = checked({"model": {"name": "mlp"}, "seeds": [0], **changes})
    planner = Planner(federation=federation(*[6] * clients))
    found = prepare(experiment, planner)
    return planner.settled, {planner.plan(job).engine for job in found if not job.method.pooled}


def test_many_small_clients_train_in_stacks_and_few_do_not() -> None:
    assert settled(12) == ("batched", {"batched"})
    assert settled(3) == ("plain", {"plain"})


def test_what_is_asked_for_is_kept() -> None:
    assert settled(12, engine="plain") == ("plain", {"plain"})
    assert settled(3, engine="batched") == ("batched", {"batched"})


def test_pooled_data_is_no_reason_against_stacks() -> None:
    assert settled(12, methods=["fedbn", "centralized"])[0] == "batched"


def test_where_one_setting_cannot_be_stacked_none_is() -> None:
    sweep = {"training": {"optimizer": ["SGD", "Adam"]}}
    assert settled(12, sweep=sweep) == ("plain", {"plain"})


def test_a_rule_that_stacks_do_not_know_is_left_to_the_plain_engine_and_said_once() -> None:
    raw = {"model": {"name": "mlp"}, "seeds": [0, 1], "methods": ["fedprox", "fedbn+scaffold"]}
    planner = Planner(federation=federation(*[6] * 12))
    prepare(checked(raw), planner)
    assert planner.settled == "plain"
    said = "clients train one by one: stacks do not know scaffold"
    assert [text for text in planner.warnings if "stacks" in text] == [said]


def test_the_choice_is_in_the_configuration_of_the_run(tmp_path: Path) -> None:
    raw = {"model": {"name": "mlp"}, "methods": ["fedbn"], "seeds": [0], "training": {"rounds": 1}}
    experiment, planner = checked(raw), Planner(federation=federation(*[6] * 12))
    folder = RunFolder(tmp_path / "run")
    folder.begin(raw)
    start(experiment, prepare(experiment, planner), planner, folder, lambda event: None)
    assert tomllib.loads(folder.config.read_text())["engine"] == "batched"
