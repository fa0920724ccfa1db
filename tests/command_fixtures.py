"""Fixtures for tests of the command line; a folder's conftest imports those it uses."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from commanding import Processes, call, write_sites


@pytest.fixture
def processes() -> Iterator[Processes]:
    """Real processes, ended when the test ends, however it ends."""
    started = Processes()
    yield started
    started.end()


@pytest.fixture(scope="session")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two clients, `a` and `b`, of 16 samples each. Not to be changed."""
    return write_sites(tmp_path_factory.mktemp("data") / "sites")


@pytest.fixture(scope="session")
def _run(tmp_path_factory: pytest.TempPathFactory, sites: Path) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    answer = call(
        *("run", "--data", sites, "--model", "mlp", "--rounds", 3, "--seed", 0, "--workers", 1),
        *("--method", "fedavg", "--method", "fedbn", "--out", folder),
        *("--set", "checkpoint.every=1"),
        pictures=True,
    )
    assert answer.code == 0, answer.err
    return folder


@pytest.fixture
def finished(_run: Path, tmp_path: Path) -> Path:
    """A finished run of FedAvg and FedBN, three rounds each; a copy that may be changed."""
    return Path(shutil.copytree(_run, tmp_path / "finished"))
