"""`fedbn run`; `fedbn schema` and `fedbn ls`: what a run can be told, and what there is to choose.

This module imports nothing that takes long: a run whose request is on disk can be resumed, also
where it is killed while torch is imported.
"""

from __future__ import annotations

import itertools
import json as codec
import time
from pathlib import Path
from typing import Annotated

import typer

from fedbn import registry
from fedbn.cli import completion, console
from fedbn.experiments import configuration
from fedbn.experiments.schema import Experiment
from fedbn.runs.folder import RunFolder

_EXAMPLES = console.examples(
    "fedbn run                                   four methods, embedded digits",
    "fedbn run --method fedbn --method 'fedbn+prox(0.1)' --rounds 50 --seed 7",
    "fedbn run --data my_arrays/ --model my_module:Net --set training.lr=0.005",
    "fedbn run my_experiment.toml --out runs/first --dry-run",
)

app = console.commands()


@app.command(epilog=_EXAMPLES)
def run(
    experiment: Annotated[
        str | None,
        typer.Argument(
            help="An experiment: FILE.toml, or a name from `fedbn ls`.",
            autocompletion=completion.experiments,
        ),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="A method, as fedbn or 'fedbn+prox(0.01)' (quoted in a shell); may be repeated.",
            autocompletion=completion.methods,
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="A data set's name, or the path of your own data.",
            autocompletion=completion.data_sets,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="A model's name, or module:callable.", autocompletion=completion.models),
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Communication rounds.")] = None,
    seed: Annotated[list[int] | None, typer.Option(help="A seed; may be repeated.")] = None,
    scale: Annotated[
        str, typer.Option(help="quick takes the changes of the file's table of that name.")
    ] = "paper",
    set_: console.Settings = None,
    out: Annotated[Path | None, typer.Option(help="The run folder; made, must be empty.")] = None,
    workers: console.Workers = None,
    log: console.Log = None,
    trust: console.Trust = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, run nothing.")
    ] = False,
    clients: console.Clients = "some",
    form: console.TableForm = "text",
    json: console.Json = False,
) -> None:
    """Train with one or several methods, compare them, and write a run folder.

    Python files below the folder of EXPERIMENT are your own code, and are imported if it names
    them. Every other module that it names needs --trust.
    """
    file = configuration.find(experiment) if experiment else None
    own = data is not None and configuration.looks_like_path(data)
    flags = {
        "methods": method,
        "seeds": seed,
        "model.name": model,
        "training.rounds": rounds,
        "workers": workers,
        "data.path" if own else "data.name": data,
    }
    where = str(file or "configuration")
    raw = configuration.request(file, flags, set_ or [], where, scale)
    held = configuration.held_in(file)
    configuration.allow_typed(flags, set_ or [], where)
    configuration.check_names(raw, held)  # before anything is written
    if dry_run:
        from fedbn.cli.training import rehearse

        if out:
            RunFolder(out).check_empty()
        rehearse(raw, where, held, log or [], json)
        return
    first = Path("runs", f"{file.stem if file else 'run'}-{time.strftime('%Y%m%d-%H%M%S')}")
    others = (first.with_name(f"{first.name}-{number}") for number in itertools.count(2))
    new = next(path for path in itertools.chain([first], others) if not path.exists())
    folder, showing = RunFolder(out or new), console.Showing(json, form, clients)
    made = folder.begin(raw, held.own)
    try:
        from fedbn.cli.training import launch  # torch takes seconds; the request is safe before

        found = configuration.checked(raw, where, held)
        launch(folder, found, showing=showing, log=log or [])
    except Exception:
        if not folder.config.exists():
            folder.abandon(made)
        raise


@app.command(epilog="Example: fedbn schema > fedbn.schema.json")
def schema() -> None:
    """Print the JSON schema of the configuration, for editors and for reading."""
    console.emit(codec.dumps(Experiment.model_json_schema(), indent=2))


@app.command(epilog="Example: fedbn ls   ·   fedbn ls --json")
def ls(json: console.Json = False) -> None:
    """List methods, parts of methods, models, data sets and experiments."""
    found = {
        "methods": _methods(),
        "parts, as in fedbn+prox(0.1)": completion.parts_of_methods(),
        "models": registry.described("fedbn.models"),
        "data sets": registry.described("fedbn.datasets"),
        "experiments": configuration.experiments(),
    }
    if json:
        console.emit(codec.dumps(found, indent=2))
        return
    for kind, names in found.items():
        console.print_table((kind, ""), names.items())
        console.emit()
    console.print_text(
        "Methods add up: fedbn+scaffold. Your own method, model or data set: module:callable. "
        "In a shell, put a name with parentheses in quotes: --method 'fedbn+prox(0.1)'"
    )


def _methods() -> dict[str, str]:
    """What each method is, what it shares and what is remembered for it."""
    about = registry.said("fedbn.methods", "ABOUT")
    return {
        name: text
        if name not in about
        else f"{text} Shared: {about[name][0]}. Remembered: {about[name][1]}."
        for name, text in registry.described("fedbn.methods").items()
    }
