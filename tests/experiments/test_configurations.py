"""Any configuration is an error of ours or a list of jobs with plans, nothing else (C18)."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from fedbn.core.statistics_kinds import STATISTICS_KINDS
from fedbn.core.training import Training
from fedbn.errors import ConfigError, FedbnError
from fedbn.experiments.configuration import (
    checked,
    parsed,
    placed,
    with_absolute_paths,
    with_settings,
)
from fedbn.experiments.jobs import Job, jobs
from fedbn.experiments.planner import Planner, training_of
from fedbn.experiments.schema import TrainingSection
from limits import a_gigabyte
from tiny import federation

DATA = federation(12, 12, 12)

PARTS = [
    "fedbn",
    "fedavg",
    "fedprox",
    "prox(0.1)",
    "adam",
    "median",
    "krum(1)",
    "local(2)",
    "x",
    "",
]
ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.dates()
    | st.sampled_from(["full", "SGD", "cpu", "own", "mlp", "uniform", "best", "a\0", "\ud800"]),
    lambda below: (
        st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=4), below, max_size=3)
    ),
    max_leaves=6,
)
METHODS = st.lists(st.sampled_from(PARTS), min_size=1, max_size=3).map("+".join) | st.text(
    alphabet="fedbn+().,0 *\"'", max_size=12
)


def _spoilt(raw: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    try:
        return placed(raw, key, value)
    except ConfigError:  # the section above is a value
        return raw


KINDS = st.lists(st.sampled_from([*STATISTICS_KINDS, "pooled"]), max_size=3)
LEGAL: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "training": {
        "rounds": st.integers(1, 9),
        "local_epochs": st.integers(1, 3),
        "local_steps": st.integers(1, 3),
        "batch_size": st.integers(1, 64) | st.just("full"),
        "optimizer": st.sampled_from(["SGD", "adam"]),
        "optimizer_args": st.dictionaries(st.just("momentum"), st.floats(0, 1)),
        "lr": st.floats(1e-4, 10) | st.integers(1, 3),
        "unequal": st.sampled_from(["own", "repeat"]),
        "participation": st.floats(0.1, 1),
        "device": st.sampled_from(["auto", "cpu", "cuda:1"]),
        "schedule": st.sampled_from(["StepLR", "CosineAnnealingLR", "ReduceLROnPlateau"]),
        "schedule_args": st.dictionaries(st.sampled_from(["step_size", "T_max"]), ANYTHING),
        "clip_norm": st.floats(0, 9),
        "amp": st.just("bfloat16"),
        "patience": st.integers(0, 9),
    },
    "method": {"mu": st.floats(0, 9) | st.lists(st.integers(0, 9), min_size=1, max_size=2)},
    "data": {"name": st.just("digits_mini"), "path": st.just("sites"), "size": st.integers(1, 9)},
    "model": {"name": st.just("mlp"), "args": st.dictionaries(st.just("hidden"), ANYTHING)},
    "evaluation": {
        "every": st.integers(1, 9),
        "validation": st.floats(0, 0.9),
        "report": st.sampled_from(["last", "best"]),
        "metrics": st.lists(st.sampled_from(["auroc", "aurok"]), max_size=2),
        "statistics": KINDS,
        "final_statistics": KINDS | st.just("auto"),
    },
}
SWEPT = {
    section: st.fixed_dictionaries(
        {}, optional={k: st.lists(v, min_size=1, max_size=2) for k, v in keys.items()}
    )
    for section, keys in LEGAL.items()
}
TAME = st.fixed_dictionaries(
    {},
    optional={
        **{name: st.fixed_dictionaries({}, optional=keys) for name, keys in LEGAL.items()},
        "methods": st.lists(METHODS, min_size=1, max_size=3, unique=True),
        "seeds": st.lists(st.integers(0, 5), min_size=1, max_size=3, unique=True),
        "workers": st.integers(0, 9),
        "sweep": st.sampled_from(sorted(SWEPT)).flatmap(
            lambda name: st.fixed_dictionaries({name: SWEPT[name]})
        ),
    },
)
KEYS = [
    *(f"{section}.{key}" for section, keys in LEGAL.items() for key in keys),
    *("methods", "seeds", "workers", "format", "sweep", "training", "odd", "data.odd", "sweep.odd"),
]
# Mostly right configurations, those with one key turned into anything, and plain nonsense.
CONFIGURATIONS = (
    TAME
    | st.builds(_spoilt, TAME, st.sampled_from(KEYS), ANYTHING)
    | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=4), ANYTHING, max_size=3)
)


def check(raw: dict[str, Any]) -> None:
    try:
        found = jobs(checked(with_absolute_paths(raw)))
    except ConfigError:  # of ours, and with exit code 3; any other fails the test
        return
    assert found
    assert len({job.key for job in found}) == len(found)
    plan(found[-1])


def plan(job: Job) -> None:
    """Go on to where training would begin: model, optimiser, schedule and task are made."""
    with a_gigabyte(), suppress(FedbnError):
        made = Planner(federation=DATA).plan(job)
        assert made.method.name == job.method.name
        assert len(made.federation.clients) == (1 if job.method.pooled else 3)


@pytest.mark.shows("C18")
@settings(max_examples=300, deadline=None, database=None)
@given(CONFIGURATIONS)
def test_an_error_of_ours_or_jobs(raw: dict[str, Any]) -> None:
    check(raw)


@pytest.mark.shows("C18")
@pytest.mark.slow
@settings(
    max_examples=10_000, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)
@given(CONFIGURATIONS)
def test_ten_thousand_configurations(raw: dict[str, Any]) -> None:
    check(raw)


@settings(max_examples=200, deadline=None, database=None)
@given(st.text(max_size=40), st.sampled_from(["", "training.lr=", "data.", "methods=", "a.b.c="]))
def test_any_setting_is_an_error_of_ours_or_a_configuration(text: str, before: str) -> None:
    try:
        raw = with_settings({}, [before + text])
    except ConfigError:
        return
    check(raw)


@settings(max_examples=200, deadline=None, database=None)
@given(st.text(alphabet="ab=.[]{}\"'#\n 0-_", max_size=60))
def test_any_text_is_toml_or_a_value_error(text: str) -> None:
    with suppress(ValueError, RecursionError):
        assert isinstance(parsed(text), dict)


def test_training_has_one_set_of_options_and_defaults() -> None:
    """The configuration adds one way to say the length, and nothing else."""
    section, training = TrainingSection(), Training()
    assert TrainingSection.model_fields.keys() - {"epochs"} == {f.name for f in fields(Training)}
    for field in fields(Training):
        assert getattr(section, field.name) == getattr(training, field.name), field.name
    assert training_of(section) == training
