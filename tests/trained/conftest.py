"""A run of FedBN, FedAvg, SiloBN and SingleSet on three clients, in a folder and opened."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from use_sites import write

import fedbn
from command_fixtures import _run, finished, sites  # noqa: F401
from fedbn.trained.trained_run import Trained


@pytest.fixture(scope="session")
def _home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("use")
    data = write(home / "data", {"a": 1.0, "b": 5.0, "c": 20.0})
    for method in ("fedbn", "fedavg", "silobn", "singleset"):
        asked = {"training__lr": 0.1, "checkpoint__every": 1, "workers": 1}
        fedbn.fit(data, "mlp", method, rounds=4, out=home / method, **asked)
    return home


@pytest.fixture
def home(_home: Path, tmp_path: Path) -> Path:
    """The folders of all runs; copies that may be changed. The data is `home / "data"`."""
    for run in ("fedbn", "fedavg", "silobn", "singleset"):
        shutil.copytree(_home / run, tmp_path / run)
    (tmp_path / "data").symlink_to(_home / "data")
    return tmp_path


@pytest.fixture
def trained(home: Path) -> Trained:
    """The FedBN run, opened."""
    return fedbn.open_run(home / "fedbn")
