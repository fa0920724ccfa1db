"""What `run` and `resume` have in common: the lock, the signals, the progress, the results."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence

from fedbn import registry
from fedbn.cli.following import Following
from fedbn.cli.output import print_json, print_summary
from fedbn.cli.progress import make_progress
from fedbn.cli.stopping import Stopper
from fedbn.core.user_code import held_exits
from fedbn.errors import Interrupted
from fedbn.experiments.configuration import held_experiment
from fedbn.experiments.planner import Planner
from fedbn.experiments.runner import prepare, start
from fedbn.experiments.schema import Experiment
from fedbn.fast.allocator import keep_freed_memory
from fedbn.runs import metrics
from fedbn.runs.folder import RunFolder, explained
from fedbn.tracking import find_trackers


def launch(
    folder: RunFolder,
    experiment: Experiment,
    *,
    as_json: bool,
    workers: int = 0,
    log: Sequence[str] = (),
) -> bool:
    """Run, or go on running, and show what came out; False where all was done before."""
    with folder.locked():
        try:
            with Stopper() as stop:  # no longer than there are rounds to end with
                ran = train(folder, experiment, stop, workers=workers, log=log)
        except Interrupted as error:
            raise Interrupted(f"{error}; continue with `{resume_line(folder)}`") from error
        show(folder, as_json)
    if registry.trusted():
        print(f"own code must be trusted: `{resume_line(folder)}`", file=sys.stderr)
    return ran


def train(
    folder: RunFolder,
    experiment: Experiment,
    stop: Stopper,
    *,
    workers: int,
    log: Sequence[str] = (),
) -> bool:
    """Run, or go on running, in a folder that is held, and show how it goes."""
    keep_freed_memory()
    trackers = find_trackers(log)
    listener = Following(make_progress(), trackers, folder)
    try:
        planner = Planner()
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
    from fedbn.results.aggregate import ScoreTable, summarize
    from fedbn.results.figures import draw_curves

    experiment = held_experiment(folder)
    table = ScoreTable.of(metrics.read(folder.metrics))
    choose = isinstance(experiment.method.mu, list)
    summary = summarize(table, experiment.evaluation.report, choose_setting=choose)
    with explained(folder.curves):
        draw_curves(table, folder.curves)
    if as_json:
        print_json(summary, str(folder.path))
    else:
        print_summary(summary)
    seeds = ", ".join(map(str, summary.seeds))
    print(f"\nseeds {seeds}; run folder {folder.path}; curves {folder.curves}", file=sys.stderr)


def resume_line(folder: RunFolder) -> str:
    """What to type to go on with a run; its own modules must be trusted again."""
    trust = [part for module in registry.trusted() for part in ("--trust", module)]
    return shlex.join(["fedbn", "resume", str(folder.path), *trust])
