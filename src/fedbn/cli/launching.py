"""What `run` and `resume` have in common: the lock, the signals, the progress, the results."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedbn.cli.following import Following
from fedbn.cli.output import print_json, print_summary
from fedbn.cli.progress import make_progress
from fedbn.cli.stopping import Stopper
from fedbn.core.foreign import held_exits
from fedbn.engines.memory import keep_freed_memory
from fedbn.errors import Interrupted
from fedbn.experiments.loading import checked
from fedbn.experiments.plans import Planner
from fedbn.experiments.runner import prepare, start
from fedbn.runs import metrics
from fedbn.runs.files import explained
from fedbn.runs.folder import RunFolder
from fedbn.tracking._following import find_trackers


def launch(
    folder: RunFolder,
    raw: dict[str, Any],
    *,
    where: str,
    as_json: bool,
    workers: int = 0,
    log: Sequence[str] = (),
) -> bool:
    """Run, or go on running, and show what came out; False where all was done before."""
    with folder.locked():
        try:
            with Stopper() as stop:  # no longer than there are rounds to end with
                ran = train(folder, raw, stop, where=where, workers=workers, log=log)
        except Interrupted as error:
            raise Interrupted(f"{error}; continue with `fedbn resume {folder.path}`") from error
        show(folder, as_json)
    return ran


def train(
    folder: RunFolder,
    raw: dict[str, Any],
    stop: Stopper,
    *,
    where: str,
    workers: int,
    log: Sequence[str] = (),
) -> bool:
    """Run, or go on running, in a folder that is held, and show how it goes."""
    keep_freed_memory()
    _import_from(folder.directory())
    trackers = find_trackers(log)
    listener = Following(make_progress(), trackers, folder)
    try:
        experiment, planner = checked(raw, where), Planner()
        with held_exits():
            todo = prepare(experiment, planner)
            listener.jobs = [job.key for job in todo]
            ran = start(experiment, todo, planner, folder, listener, workers=workers, stop=stop)
        listener.finish()
        return ran
    finally:
        listener.close()


def show(folder: RunFolder, as_json: bool) -> None:
    """Print the table and draw the learning curves."""
    from fedbn.results.curves import draw_curves
    from fedbn.results.summary import summarize

    experiment = checked(folder.read_request(), str(folder.config))
    records = metrics.read(folder.metrics)
    choose = isinstance(experiment.method.mu, list)
    summary = summarize(records, experiment.evaluation.report, choose_setting=choose)
    with explained(folder.curves):
        draw_curves(records, folder.curves)
    if as_json:
        print_json(summary, str(folder.path))
    else:
        print_summary(summary)
    seeds = ", ".join(map(str, summary.seeds))
    print(f"\nseeds {seeds}; run folder {folder.path}; curves {folder.curves}", file=sys.stderr)


def _import_from(directory: Path) -> None:
    """Let a user's own modules be found, here and in worker processes."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{directory}{os.pathsep}{before}" if before else str(directory)
    sys.path[:0] = [str(directory), str(Path.cwd())]
