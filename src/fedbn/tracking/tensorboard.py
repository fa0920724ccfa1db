"""TensorBoard: event files in RUN/tensorboard, one folder a job."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w

from fedbn.runs.folder import folder_name
from fedbn.tracking import Job, Names, numbers

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

NEEDS = ("tensorboard",)


def tensorboard(folder: Path, config: Mapping[str, Any]) -> TensorBoard:
    """Write event files; look at them with `tensorboard --logdir RUN/tensorboard`."""
    return TensorBoard(folder / "tensorboard", config)


class TensorBoard:
    """Writes the rounds of each job anew, so that a resumed run has no step twice."""

    def __init__(self, folder: Path, config: Mapping[str, Any]):
        from torch.utils.tensorboard import SummaryWriter  # fails here, before a job is heard

        self._make = SummaryWriter
        self._folder = folder
        self._config = config
        self._names = Names()
        self._writers: dict[Job, SummaryWriter] = {}

    def log(self, job: Job, round: int, records: Sequence[Mapping[str, Any]]) -> None:
        """Write a round's numbers."""
        if job not in self._writers:
            method, setting, seed = job
            home = self._folder / folder_name(method) / folder_name(setting) / f"seed-{seed}"
            shutil.rmtree(home, ignore_errors=True)
            self._writers[job] = self._make(str(home))
            # Indented, so that Markdown shows it unchanged.
            lines = tomli_w.dumps(self._config).splitlines()
            self._writers[job].add_text("configuration", "\n".join(f"    {n}" for n in lines), 0)
        for name, value in numbers(records, self._names).items():
            self._writers[job].add_scalar(name, value, round)

    def done(self, job: Job) -> None:
        """Close a job's file: many jobs must not hold many files open."""
        if job in self._writers:
            self._writers.pop(job).close()

    def close(self) -> None:
        """Close what is open."""
        for job in list(self._writers):
            self.done(job)
