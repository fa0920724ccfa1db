"""Without Flower these tests are skipped, and say so."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def bench(tmp_path: Path):
    """A federation in this process."""
    from flower_bench import Bench
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    return Bench(tmp_path)
