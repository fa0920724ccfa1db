"""`fedbn resume`, and what all commands that train have in common: signals, progress, results."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import tomli_w
import typer
from rich.text import Text

from fedbn import registry
from fedbn.cli import completion, console
from fedbn.cli.console import BUT_FIRST, Showing, emit, print_table, print_text, say
from fedbn.cli.live_view import LiveView
from fedbn.cli.progress import Lines, Stopper
from fedbn.core.statistics_kinds import kind_of_statistics
from fedbn.errors import ConfigError, Interrupted, NeverAccepted
from fedbn.experiments.configuration import (
    allow_typed,
    checked,
    held_experiment,
    parts_given_in_python,
)
from fedbn.experiments.jobs import to_all
from fedbn.experiments.merging import check_checkpoints, grown, merge as merged, told
from fedbn.experiments.planner import Planner, resolved
from fedbn.experiments.process_pool import own_process
from fedbn.experiments.rescoring import rescore as scored_again
from fedbn.experiments.runner import prepare, start
from fedbn.experiments.schema import Experiment
from fedbn.results import figures
from fedbn.results.aggregate import Summary, rejected_clients, rejection
from fedbn.results.result_table import condensed, fitted, readable, tables_of, written
from fedbn.results.run_files import RunFiles
from fedbn.runs import metrics
from fedbn.runs.folder import RunFolder, explained
from fedbn.runs.messages import grouped, read_warnings
from fedbn.tracking import Tracking, find_trackers
from fedbn.trained.opening import jobs_of

app = console.commands()

_EXAMPLES = console.examples(
    "fedbn resume runs/first                after Ctrl-C, a reboot or a crash",
    "fedbn resume runs/first --rounds 100   as if it had been 100 from the start",
    "fedbn resume runs/first --add-seed 3 --add-seed 4 --add-method silobn",
)


@app.command(epilog=_EXAMPLES)
def resume(
    run: console.Run,
    rounds: Annotated[
        int | None, typer.Option(min=1, max=1_000_000, help="Grow the run to so many rounds.")
    ] = None,
    add_seed: Annotated[
        list[int] | None, typer.Option(min=0, help="A seed more; may be repeated.")
    ] = None,
    add_method: Annotated[
        list[str] | None,
        typer.Option(help="A method more; may be repeated.", autocompletion=completion.methods),
    ] = None,
    workers: console.Workers = None,
    log: console.Log = None,
    trust: console.Trust = None,
    clients: console.Clients = "some",
    form: console.TableForm = "text",
    json: console.Json = False,
) -> None:
    """Continue a run after Ctrl-C, a reboot or a crash, or let it grow.

    The result is as if nothing had happened: a run that grew from 3 to 6 rounds
    has the bits of one of 6.
    """
    folder = RunFolder(run)
    experiment = held_experiment(folder)
    check_checkpoints(folder)
    allow_typed({"methods": add_method}, (), "--add-method")
    grows = bool(rounds or add_seed or add_method)
    _check_all_on_disk(folder, experiment, grows)
    if grows:
        experiment = grown(folder, rounds, add_seed or (), add_method or ())
    flags: dict[str, Any] = {"workers": workers or 0, "log": log or [], "grows": grows}
    if not launch(folder, experiment, showing=Showing(json, form, clients), **flags):
        say(f"{folder.path} was finished already; nothing to do")


@app.command(
    epilog="Example: fedbn merge runs/job-* --out runs/all   ·   docs/configuration.md shows SLURM"
)
def merge(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="Run folders, with checkpoints or without.", autocompletion=completion.runs
        ),
    ],
    out: Annotated[Path, typer.Option(help="The new run folder; made, must be empty.")],
    trust: console.Trust = None,
    clients: console.Clients = "some",
    form: console.TableForm = "text",
    json: console.Json = False,
) -> None:
    """Put runs of one experiment together: jobs of many machines or nights become one run."""
    found = merged([RunFolder(run) for run in runs], RunFolder(out))
    say(*found.remarks, told(found))
    show(RunFolder(out), Showing(json, form, clients))


@app.command(
    epilog="Example: fedbn rescore runs/first --statistics exact   ·   docs/use.md explains them"
)
def rescore(
    run: console.Run,
    statistics: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND",
            help="BatchNorm statistics: running, local, exact or batch; may be repeated.",
        ),
    ] = None,
    workers: console.Workers = None,
    trust: console.Trust = None,
    clients: console.Clients = "some",
    form: console.TableForm = "text",
    json: console.Json = False,
) -> None:
    """Score the models of a finished run again, with other BatchNorm statistics.

    The weights stay as they are. The scores are added to the run's records.
    """
    folder = RunFolder(run)
    experiment = held_experiment(folder)
    _check_all_on_disk(folder, experiment, grows=False)
    kinds = None if statistics is None else [kind_of_statistics(name) for name in statistics]
    with folder.locked(), own_process():
        scored_again(folder, experiment, kinds, workers=workers or 0, note=say)
        show(folder, Showing(json, form, clients))


def launch(folder: RunFolder, experiment: Experiment, *, showing: Showing, **how: Any) -> bool:
    """Run, or go on running (`train` says how), and show what came out; False: nothing was left."""
    with folder.locked():
        try:
            with Stopper() as stop:  # no longer than there are rounds to end with
                ran = train(folder, experiment, stop, **how)
        except Interrupted as error:
            raise Interrupted(f"{error}; continue with `{resume_line(folder)}`") from error
        show(folder, showing)
    if registry.to_trust():
        say(f"own code must be trusted: `{resume_line(folder)}`")
    check_contributions(folder)
    return ran


def check_contributions(folder: RunFolder) -> None:
    """Raise if a finished run has a client of which no update was ever accepted."""
    if found := rejected_clients(run_files(folder).table):
        texts = (rejection(*item) for item in found.items())
        raise NeverAccepted(f"{folder.path} is saved, but {'; '.join(texts)}")


def _check_all_on_disk(folder: RunFolder, experiment: Experiment, grows: bool) -> None:
    """Refuse to go on with a run whose data, model or task only Python has."""
    if not (parts := parts_given_in_python(experiment)):
        return
    verb = "were" if len(parts) > 1 else "was"
    fact = f"the run's {' and '.join(parts)} {verb} given in Python and cannot be read from it"
    if grows:
        advice = "a run like this cannot grow: call fedbn.fit in Python with a new `out`"
    elif all(job.rounds_done >= job.rounds for job in jobs_of(folder.path)):
        advice = "all of its rounds are done"
    else:
        advice = f"in Python, call fedbn.fit as before, with out={str(folder.path)!r}, resume=True"
    raise ConfigError(f"{folder.path}: {fact}; {advice}")


def train(
    folder: RunFolder,
    experiment: Experiment,
    stop: Stopper,
    *,
    workers: int = 0,
    log: Sequence[str] = (),
    grows: bool = False,
) -> bool:
    """Run, or go on running, in a folder that is held, and show how it goes."""
    trackers = find_trackers(log)
    progress = make_progress()
    tracking = Tracking(trackers, folder, progress)
    try:
        planner, listener = Planner(), to_all(progress, tracking, stop.follow)
        with own_process():
            todo = prepare(experiment, planner)
            flags: dict[str, Any] = {"workers": workers, "stop": stop, "grows": grows}
            return start(experiment, todo, planner, folder, listener, **flags)
    finally:
        tracking.close()
        progress.close()


def make_progress() -> Lines | LiveView:
    """Choose by whether a person is looking, at a terminal that can redraw."""
    if not sys.stderr.isatty() or os.environ.get("TERM", "").lower() in ("dumb", "unknown"):
        return Lines()
    return LiveView()


def rehearse(
    raw: dict[str, Any], where: str, held: registry.Held, log: Sequence[str], as_json: bool
) -> None:
    """Check all that a run would do, and print it."""
    experiment, planner = checked(raw, where, held), Planner()
    find_trackers(log)
    jobs = prepare(experiment, planner)
    federation = planner.federation(jobs[0].setting.experiment)
    say(*(text for text in planner.warnings if planner.level(text) != "debug"))
    settings = resolved(experiment, federation)
    if as_json:
        emit(json.dumps({"configuration": settings, "jobs": [job.key for job in jobs]}, indent=2))
        return
    emit(tomli_w.dumps(settings))
    for job in jobs:
        emit(f"# would run {job.method.name}, setting {job.setting.name}, seed {job.seed}")


def run_files(folder: RunFolder) -> RunFiles:
    """Read what a run folder says of its results."""
    records, config = metrics.read(folder.metrics), folder.read_request()
    facts, warnings = folder.read_environment(), grouped(read_warnings(folder))
    return RunFiles(str(folder.path), records, config, facts, warnings)


def show(folder: RunFolder, showing: Showing) -> None:
    """Print the table, of many clients how they spread, and draw the learning curves."""
    run = run_files(folder)
    summary = run.summary
    with explained(folder.curves):
        figures.draw_curves(run.table, folder.curves)
    some = summary if showing.clients == "all" else condensed(summary)
    if showing.as_json:
        _print_json(run)
    elif showing.form == "text":
        print_summary(some)
    else:
        emit(written(readable(some, sys.maxsize, named=True), showing.form), end="")
        say(*some.remarks)
    seeds = ", ".join(map(str, summary.seeds))
    print(file=sys.stderr)
    say(f"seeds {seeds}; run folder {folder.path}; curves {folder.curves}")


def print_summary(summary: Summary) -> None:
    """Print a table that fits the terminal, the best in bold, and what is to be said of it.

    Kinds of statistics that do not fit side by side are tables below one another.
    """
    tables = tables_of(summary, console.width())
    for whole in tables:
        grid = fitted(whole, console.width())
        styled = [[Text(c.text, "bold" if c.best else "") for c in cells] for cells in grid.cells]
        rows = [[name, *cells] for name, cells in zip(grid.rows, styled, strict=True)]
        if grid.heading:
            emit(grid.heading)
        print_table([grid.title, *grid.columns], rows, BUT_FIRST)
        if len(tables) > 1:
            emit()
    print_text(*summary.remarks)


def _print_json(run: RunFiles) -> None:
    summary = run.summary
    metric = summary.metric.name
    rows: list[dict[str, Any]] = [
        {
            **row.key._asdict(),
            metric: {c: {"mean": cell.mean, "std": cell.std} for c, cell in row.cells.items()},
        }
        for row in summary.rows
    ]
    content = {
        "folder": run.path,
        "seeds": summary.seeds,
        "rows": rows,
        "remarks": summary.remarks,
        "warnings": run.warnings,
    }
    emit(json.dumps(content, indent=2))


def resume_line(folder: RunFolder) -> str:
    """What to type to go on with a run; its own modules must be trusted again."""
    trust = [part for module in registry.to_trust() for part in ("--trust", module)]
    return shlex.join(["fedbn", "resume", str(folder.path), *trust])
