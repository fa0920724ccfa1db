"""Fixtures for all tests: one torch thread, a tiny federation, a tiny model with BatchNorm."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from fedbn import own_modules, registry
from skipped_lines import (  # noqa: F401
    pytest_collection_modifyitems,
    pytest_runtest_logreport,
    pytest_sessionfinish,
    pytest_terminal_summary,
)
from tiny import bn_net, federation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from fedbn.core.federation import Federation


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    """One thread: the tensors are small, and sums must not depend on the machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def nothing_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a fresh process: what another test typed is not trusted here."""
    monkeypatch.setattr(registry, "_trusted", set())
    monkeypatch.setattr(registry, "_used", set())
    monkeypatch.setattr(registry, "_last_on_path", [])
    monkeypatch.setattr(own_modules._PINNED, "pins", {})
    monkeypatch.setattr(own_modules._PINNED, "folders", set())
    monkeypatch.setattr(own_modules._PINNED, "admitted", set())


@pytest.fixture
def vectors() -> Federation:
    """Three clients of 12 vectors each, whose scales differ."""
    return federation(12, 12, 12)


@pytest.fixture
def net() -> nn.Module:
    """A tiny network with BatchNorm that fits the vectors."""
    torch.manual_seed(0)
    return bn_net()
