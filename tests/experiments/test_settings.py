"""Sweeps and grids: which jobs an experiment has, and what they are called."""

from __future__ import annotations

from typing import Any

import pytest

from fedbn.errors import ConfigError
from fedbn.experiments.configuration import checked
from fedbn.experiments.jobs import jobs, settings


def keys(**raw: Any) -> list[tuple[str, str, int]]:
    return [job.key for job in jobs(checked(raw))]


def test_seed_by_seed_so_that_early_results_compare_methods() -> None:
    assert keys(seeds=[3, 1], methods=["fedavg", "fedbn"]) == [
        ("fedavg", "default", 3),
        ("fedbn", "default", 3),
        ("fedavg", "default", 1),
        ("fedbn", "default", 1),
    ]


def test_a_sweep_is_every_combination() -> None:
    sweep = {"training": {"local_epochs": [1, 4], "lr": [0.1, 0.2]}}
    assert keys(seeds=[0], methods=["fedbn"], sweep=sweep) == [
        ("fedbn", f"local_epochs={epochs},lr={lr}", 0) for epochs in (1, 4) for lr in (0.1, 0.2)
    ]
    found = settings(checked({"sweep": sweep}))
    assert [(s.experiment.training.local_epochs, s.experiment.training.lr) for s in found] == [
        (1, 0.1),
        (1, 0.2),
        (4, 0.1),
        (4, 0.2),
    ]


def test_a_grid_of_mu_runs_once_the_methods_it_does_not_change() -> None:
    raw = {"method": {"mu": [0.1, 1.0]}, "evaluation": {"validation": 0.2}}
    assert keys(seeds=[0], methods=["fedavg", "fedprox", "fedprox(0.5)"], **raw) == [
        ("fedavg", "default", 0),
        ("fedprox", "mu=0.1", 0),
        ("fedprox(0.5)", "default", 0),
        ("fedprox", "mu=1.0", 0),
    ]


def test_methods_that_differ_in_spaces_are_one() -> None:
    assert keys(seeds=[0], methods=["fedbn+prox(0.1)", "fedbn + prox(0.1)"]) == [
        ("fedbn+prox(0.1)", "default", 0)
    ]


def test_settings_that_would_share_a_folder_are_refused() -> None:
    sweep = {"model": {"args": {"name": ["a/b", "a_b"]}}}
    with pytest.raises(ConfigError, match="two settings would be called 'name=a_b'"):
        keys(sweep=sweep)


def test_a_swept_path_goes_by_its_last_part() -> None:
    names = [s.name for s in settings(checked({"sweep": {"data": {"path": ["/x/a", "/y/b"]}}}))]
    assert names == ["path=a", "path=b"]


def test_methods_that_would_share_a_folder_are_refused() -> None:
    with pytest.raises(ConfigError, match="would share a folder"):
        keys(methods=["fedbn+local('1*')", "fedbn+local('1?')"])


def test_a_method_too_long_for_a_folder_is_refused() -> None:
    with pytest.raises(ConfigError, match="at most 200 bytes"):
        keys(methods=["fedbn" + "+prox(0.1)" * 30])
