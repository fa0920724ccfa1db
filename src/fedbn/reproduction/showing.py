"""A run that is there already, shown as an item of the paper."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedbn.errors import ConfigError
from fedbn.experiments.loading import checked, held_by, held_experiment
from fedbn.reproduction.asking import Asked, comparable, told
from fedbn.reproduction.entries import Entry
from fedbn.runs.folder import RunFolder


def shown_run(entry: Entry, run: Path, overrides: Sequence[object] = ()) -> Asked:
    """Take a run's configuration in place of the file's; what differs is said."""
    if overrides:
        raise ConfigError("--from shows a run as it is: --seed and --set change nothing of it")
    if entry.by != "trained":
        raise ConfigError(f"{entry.name} is not made from one run: --from does not apply")
    folder = RunFolder(run)
    if not folder.config.exists():
        raise ConfigError(f"--from {run}: no run here (no config.toml)")
    held_experiment(folder)
    raw = {**folder.read_request(), "reproduce": dict(entry.how)}
    checked(raw, str(folder.config), held_by(folder))
    return Asked(raw, told(entry, raw), (), comparable(entry, raw))
