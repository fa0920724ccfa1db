"""`fedbn data ls`, `data show`, `data check`: which data there is, how it looks, what is wrong."""

from __future__ import annotations

import json as codec
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

import fedbn.datasets
from fedbn import registry
from fedbn.cli import completion, console
from fedbn.cli.console import BUT_FIRST, emit, print_table, say
from fedbn.core.federation import Client, Federation
from fedbn.core.findings import Finding, in_order
from fedbn.data.benchmarks import PicturesInfo
from fedbn.data.checks import examine, examine_benchmark, examine_path, stopped
from fedbn.data.preparation import prepared
from fedbn.data.storage import data_root
from fedbn.data.survey import survey
from fedbn.datasets import PUBLIC_PICTURES, info_of, own_files
from fedbn.errors import ConfigError, DataError
from fedbn.experiments import configuration
from fedbn.experiments.column_scales import scale_warning
from fedbn.experiments.schema import DataSection
from fedbn.experiments.sources import (
    data_name,
    load_federation,
    named_task,
    options_of,
    read_federation,
    suggested_for,
)
from fedbn.results.data_figure import draw_data
from fedbn.text import counted, plain

app = console.commands()

Options = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="An option of the data set, as `fedbn run` takes it (data. may be left out), or "
        "task.name, where targets could mean two things.",
    ),
]

_CHECK = console.examples(
    "fedbn data check digits_mini",
    "fedbn data check my_pictures/",
    "fedbn data check patients.csv --set label=outcome --set site=hospital",
    "fedbn data check office_caltech10 --json",
)

_SHOW = console.examples(
    "fedbn data show digits_mini                  draws data-digits_mini.png",
    "fedbn data show digits --set percent=1 --out digits.svg",
    "fedbn data show my_pictures/ --set size=64 --with-samples",
    "fedbn data show patients.csv --set label=outcome --set site=hospital --json",
)

_WIDE = 20
_DRAWN = (".png", ".svg")


def section_of(data: str, settings: Sequence[str] | None) -> tuple[DataSection, str | None]:
    """Understand a data set's name or a path, and `--set key=value`.

    A registered name is that data set, even where a folder of that name lies here: `./digits` is
    the folder.

    Returns:
        The data, and the task that was named; None leaves the task to the data.
    """
    named = data in registry.names(fedbn.datasets) or not configuration.looks_like_path(data)
    dotted = [s if s.startswith(("data.", "task.")) else f"data.{s}" for s in settings or ()]
    flags = {"data.name" if named else "data.path": data}
    raw = configuration.request(None, flags, dotted, "--set")
    experiment = configuration.checked(raw, "--set", registry.TYPED)
    return experiment.data, named_task(experiment.task)


def subjects(client: Client) -> list[int]:
    """Count the groups of samples, in training and in test; empty where there are none."""
    splits = (client.train, client.tests[client.domain])
    return [len(split.groups.unique()) for split in splits if split.groups is not None]


@app.command(epilog="Example: fedbn data ls   ·   fedbn data ls --json")
def ls(json: console.Json = False) -> None:
    """List data sets: clients, classes, shape, whether they are here, origin and licence."""
    found = _found()
    if json:
        emit(codec.dumps({"root": str(data_root()), "data": found}, indent=2, ensure_ascii=False))
        return
    titles = ("name", "clients", "classes", "shape", "here", "from", "licence")
    print_table(titles, (_row(each) for each in found))
    say(f"Files are looked for in {data_root()}, or wherever FEDBN_DATA says.")
    say("`fedbn data prepare NAME` gets them; for your own data give a path in place of a name.")


def _found() -> list[dict[str, Any]]:
    infos = {name: info_of(name) for name in registry.names(fedbn.datasets)}
    return [
        {
            "name": name,
            **{k: v for k, v in asdict(info).items() if k not in ("benchmark", "places")},
            "here": info.is_there() and info.is_installed(),
            "installed": info.is_installed(),
        }
        for name, info in infos.items()
    ]


def _row(facts: dict[str, Any]) -> list[object]:
    own = facts["source"] == "data.path"
    here = "yours" if own else "yes" if facts["here"] else "no"
    if not facts["installed"]:
        here = f"needs fedbn[{facts['extra']}]"
    name, clients, shape, licence = (facts[k] for k in ("name", "clients", "shape", "licence"))
    source = "your own files" if own else facts["source"]
    return [name, clients, facts["classes"] or "any", shape, here, source, licence]


@app.command(epilog=_SHOW)
def show(
    data: Annotated[
        str,
        typer.Argument(
            help="A data set's name, or the path of your own data.",
            autocompletion=completion.data_sets,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The picture, .png or .svg; data-NAME.png unless given."),
    ] = None,
    set_: Options = None,
    with_samples: console.WithSamples = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print JSON; draw only where --out is given.")
    ] = False,
) -> None:
    """Draw histograms and examples of every client; print counts and distances.

    Examples of your own pictures are drawn only with --with-samples.
    Skew is the part of a client's labels that differs from all clients' shares.
    Distance 0 means alike; 1, as far apart as samples are from the mean of all.
    The diagonal compares two halves of one client: what chance alone gives.
    """
    if out is not None and out.suffix.lower() not in _DRAWN:
        raise ConfigError(f"--out {out}: legal are names that end in {' or '.join(_DRAWN)}")
    section, task = section_of(data, set_)
    say(*filter(None, data_name(section)[1:]))
    federation = load_federation(section, task=task)
    drawn = with_samples or data_name(section)[0] in PUBLIC_PICTURES
    found = survey(federation, examples=10 if drawn else 0)
    if out or not json:
        if not drawn and len(federation.input_shape) == 3:
            say("pictures of samples are left out, as they may show persons: --with-samples")
        file = out or Path("data-" + re.sub(r"[^\w.-]+", "_", federation.name) + ".png")
        try:
            draw_data(found, file)
        except OSError as error:
            raise ConfigError(f"--out {file}: cannot be written ({error.strerror})") from error
        say(f"picture: {file}")
    if json:
        numbers = {key: value for key, value in found.items() if key != "examples"}
        emit(codec.dumps(plain(numbers), indent=2))
    else:
        _print(found, federation)


def _print(found: dict[str, Any], federation: Federation) -> None:
    say(*found["remarks"])
    for part, title in (("train", "training samples"), ("test", "test samples")):
        _print_counts(title, found["clients"], found["classes"], found[part])
        emit()
    groups = {client.name: subjects(client) for client in federation.clients}
    if any(groups.values()):
        rows = ([name, *counts] for name, counts in groups.items())
        print_table(["subjects", "training", "test"], rows, numbers=BUT_FIRST)
        emit()
    counts = zip(found["clients"], found["sizes"], found["coverage"], found["skew"], strict=True)
    rows = ([name, size, of, f"{skew:.2f}"] for name, size, of, skew in counts)
    print_table(["labels", "samples", "classes", "skew"], rows, numbers=BUT_FIRST)
    emit()
    apart = [
        [name, *(f"{d:.2f}" for d in row)]
        for name, row in zip(found["clients"], found["distances"], strict=True)
    ]
    print_table(["Fréchet distance", *found["clients"]], apart, numbers=BUT_FIRST)
    say("docs/which-method.md: what each kind of difference did to each method, as measured")


def _print_counts(
    title: str, clients: list[str], classes: list[str], counts: list[list[int]]
) -> None:
    """Print a row a client; or a row a class, where there are many."""
    if len(classes) <= _WIDE:
        rows = [[name, *row, sum(row)] for name, row in zip(clients, counts, strict=True)]
        print_table([title, *classes, "all"], rows, numbers=BUT_FIRST)
        return
    columns = zip(*counts, strict=True)
    by_class = [[name, *column] for name, column in zip(classes, columns, strict=True)]
    print_table([title, *clients], [*by_class, ["all", *map(sum, counts)]], numbers=BUT_FIRST)


@app.command(epilog=_CHECK)
def check(
    data: Annotated[
        str,
        typer.Argument(
            help="A data set's name, or the path of your own data.",
            autocompletion=completion.data_sets,
        ),
    ],
    set_: Options = None,
    json: console.Json = False,
) -> None:
    """Read all data and report faults, each with its severity, site and file.

    An error would stop a run: only then the exit code is 4.
    A warning may spoil its result; a note is good to know.
    """
    section, task = section_of(data, set_)
    own = section.path and section.name in (None, "arrays", "folders", "tables")
    found = in_order((_own if own else _registered)(section, task))
    counts = Counter(finding.severity for finding in found)
    if json:
        emit(codec.dumps({"data": data, "findings": [asdict(f) for f in found]}, indent=2))
    else:
        if found:
            rows = ([f.severity, f.site or "–", f.file or "–", f.text] for f in found)
            print_table(("severity", "site", "file", "finding"), rows)
            emit()
        emit(", ".join(counted(counts[what], what) for what in ("error", "warning", "note")))
    if counts["error"]:
        raise typer.Exit(DataError.exit_code)


def _own(section: DataSection, task: str | None) -> list[Finding]:
    """Look at a user's files one by one; where they are fine, read them as a run would."""
    with suppress(DataError):  # what is no data is a finding
        name, _ = data_name(section)
        options_of(getattr(own_files, name), section.options, f"data {name}")
    read: list[Federation] = []

    def load(changed: Mapping[str, Any]) -> Federation:
        read.append(read_federation(section.model_copy(update=changed), task=task))
        return read[-1]

    found = examine_path(section.path or "", section.options, load)
    if read and suggested_for(read[-1]) == "mlp" and not stopped(found):
        text = scale_warning(prepared(read[-1]))
        found += [Finding("warning", "", read[-1].name, text)] if text else []
    if not stopped(found):
        say(*filter(None, data_name(section)[1:]))
    return found


def _registered(section: DataSection, task: str | None) -> list[Finding]:
    """Read a data set as a run would; of a benchmark of pictures, look at all its files too."""
    name, _ = data_name(section)
    try:
        found = examine(read_federation(section, task=task))
    except DataError as error:
        found = [Finding("error", "", name, str(error))]
    info = None if ":" in name else info_of(name)
    if not isinstance(info, PicturesInfo):
        return found
    files = examine_benchmark(info.benchmark, Path(section.path or data_root() / name))
    if stopped(files) and stopped(found):
        return files
    # Pictures that no client takes stop nobody.
    found += [replace(f, severity="warning") if f.severity == "error" else f for f in files]
    return found
