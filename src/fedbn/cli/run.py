"""`fedbn run`: train and compare methods."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from fedbn.errors import FedbnError

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
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any key of the configuration."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run folder; made, must be empty.")] = None,
    workers: Annotated[
        int | None, typer.Option(help="Cores to use; changes no result. [default: all]")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, run nothing.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Train with one or several methods, compare them, and write a run folder."""
    from fedbn.cli.launching import launch
    from fedbn.experiments import catalogue, loading
    from fedbn.runs.folder import RunFolder

    file = catalogue.find(experiment) if experiment else None
    raw: dict[str, Any] = loading.read_toml(file) if file else {}
    flags = {
        "methods": method,
        "seeds": seed,
        "model.name": model,
        "training.rounds": rounds,
        "workers": workers,
        **(
            {}
            if data is None
            else {"data.path" if loading.looks_like_path(data) else "data.name": data}
        ),
    }
    for key, value in flags.items():
        if value is not None and value != []:
            raw = loading.placed(raw, key, value)
    raw = loading.with_absolute_paths(loading.with_settings(raw, set_ or []))
    where = str(file or "configuration")
    if dry_run:
        _dry_run(raw, where)
        return
    folder = RunFolder(out or _new_folder(file.stem if file else "run"))
    made = folder.begin(raw)
    try:
        launch(folder, raw, where=where, as_json=json)
    except FedbnError:
        if not folder.config.exists():
            folder.abandon(made)
        raise


def _new_folder(name: str) -> Path:
    return Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"


def _dry_run(raw: dict[str, Any], where: str) -> None:
    import tomli_w

    from fedbn.experiments.loading import checked
    from fedbn.experiments.plans import Planner, resolved
    from fedbn.experiments.runner import prepare

    experiment, planner = checked(raw, where), Planner()
    jobs = prepare(experiment, planner)
    federation = planner.federation(jobs[0].setting.experiment.data)
    print(tomli_w.dumps(resolved(experiment, federation)))
    for job in jobs:
        print(f"# would run {job.method.name}, setting {job.setting.name}, seed {job.seed}")
