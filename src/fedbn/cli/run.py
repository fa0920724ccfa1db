"""`fedbn run`: train and compare methods."""

from __future__ import annotations

import itertools
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from fedbn.cli.options import Log, Workers
from fedbn.cli.output import emit, printable

_EXAMPLES = """[bold]Examples[/bold]

fedbn run                                         four methods on the embedded digits

fedbn run --method fedbn --method fedbn+prox(0.1) --rounds 50 --seed 7

fedbn run --data my_arrays/ --model my_module:Net --set training.lr=0.005

fedbn run my_experiment.toml --out runs/first --dry-run"""


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(epilog=_EXAMPLES)(run)


def run(
    experiment: Annotated[
        str | None, typer.Argument(help="An experiment: FILE.toml, or a name from `fedbn ls`.")
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="A method, as fedbn+prox(0.01); may be repeated.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="A data set's name, or the path of your own data.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="A model's name, or module:callable.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Communication rounds.")] = None,
    seed: Annotated[list[int] | None, typer.Option(help="A seed; may be repeated.")] = None,
    scale: Annotated[
        str, typer.Option(help="quick takes the changes of the file's table of that name.")
    ] = "paper",
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any key of the configuration."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run folder; made, must be empty.")] = None,
    workers: Workers = None,
    log: Log = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, run nothing.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Train with one or several methods, compare them, and write a run folder."""
    from fedbn.experiments import configuration

    file = configuration.find(experiment) if experiment else None
    flags = {
        "methods": method,
        "seeds": seed,
        "model.name": model,
        "training.rounds": rounds,
        "workers": workers,
        **(
            {}
            if data is None
            else {"data.path" if configuration.looks_like_path(data) else "data.name": data}
        ),
    }
    where = str(file or "configuration")
    raw = configuration.request(file, flags, set_ or [], where, scale)
    if dry_run:
        _dry_run(raw, where, log or [])
    else:
        _run(out or _new_folder(file.stem if file else "run"), raw, where, json, log or [])


def _run(out: Path, raw: dict[str, Any], where: str, as_json: bool, log: list[str]) -> None:
    from fedbn.runs.folder import RunFolder

    folder = RunFolder(out)
    made = folder.begin(raw)
    try:
        from fedbn.cli.launching import launch  # torch takes seconds; the request is safe before
        from fedbn.experiments.configuration import checked

        launch(folder, checked(raw, where), as_json=as_json, log=log)
    except Exception:
        if not folder.config.exists():
            folder.abandon(made)
        raise


def _new_folder(name: str) -> Path:
    first = Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    others = (first.with_name(f"{first.name}-{number}") for number in itertools.count(2))
    return next(path for path in itertools.chain([first], others) if not path.exists())


def _dry_run(raw: dict[str, Any], where: str, log: list[str]) -> None:
    import tomli_w

    from fedbn.experiments.configuration import checked
    from fedbn.experiments.planner import Planner, resolved
    from fedbn.experiments.runner import prepare
    from fedbn.tracking import find_trackers

    find_trackers(log)
    experiment, planner = checked(raw, where), Planner()
    jobs = prepare(experiment, planner)
    federation = planner.federation(jobs[0].setting.experiment.data)
    for text in planner.warnings:
        print(printable(text), file=sys.stderr)
    emit(tomli_w.dumps(resolved(experiment, federation)))
    for job in jobs:
        emit(f"# would run {job.method.name}, setting {job.setting.name}, seed {job.seed}")
