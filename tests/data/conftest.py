"""Every test has a data root and a home of its own, so nothing of the user's is read or written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_REAL = os.environ.get("FEDBN_DATA")


@pytest.fixture(autouse=True)
def data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data root."""
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("FEDBN_DATA", str(folder))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("USERPROFILE", str(tmp_path / "home"))
    return folder


@pytest.fixture
def real_data(data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The real data below FEDBN_DATA, where the user has set it."""
    if not _REAL:
        pytest.skip("FEDBN_DATA is not set: no real data to test on")
    monkeypatch.setenv("FEDBN_DATA", _REAL)
    return Path(_REAL)
