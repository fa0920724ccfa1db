"""`fedbn reproduce` and `fedbn theory`: the paper's tables, figures and theory.

Each item goes into a folder of its own; what cannot run is listed as skipped.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from fedbn.cli import completion, console
from fedbn.cli.console import emit, print_table, print_text, say
from fedbn.cli.progress import Stopper
from fedbn.cli.training import train
from fedbn.errors import ConfigError, DataError, FedbnError, Interrupted, unforeseen
from fedbn.experiments.configuration import SCALES, checked
from fedbn.experiments.merging import Merged
from fedbn.paper import output
from fedbn.paper.configurations import asked, is_there, missing, shown_runs
from fedbn.paper.items import ALL, Entry, Outcome, Request, entries, find
from fedbn.paper.output import produce
from fedbn.paper.paper_figures import draw_theory
from fedbn.paper.theory.network import random_clients
from fedbn.paper.theory.study import check_size, study
from fedbn.registry import Held
from fedbn.results.aggregate import Records
from fedbn.runs import metrics
from fedbn.runs.folder import RunFolder, explained, write_atomically
from fedbn.text import shown

app = console.commands()

_EXAMPLES = console.examples(
    "fedbn reproduce --list",
    "fedbn reproduce digits-methods --scale quick",
    "fedbn reproduce abide --scale paper --workers 2   run again, it goes on",
    "fedbn reproduce office --from runs/my-run   shows a run of your own",
    "fedbn reproduce digits-methods --from runs/seed-0 runs/seed-1",
    "fedbn reproduce all --scale quick --out reproduction/",
)


@dataclass(frozen=True)
class Flags:
    """The flags of the command."""

    scale: str
    seeds: list[int]
    settings: list[str]
    runs: list[Path]
    out: Path | None
    workers: int

    def folder(self, entry: Entry, several: bool) -> Path:
        """Where an item goes."""
        name = f"{entry.name}-{'from-run' if self.runs else self.scale}"
        if self.out is None:
            return Path("runs") / "reproduce" / name
        return self.out / name if several else self.out


@app.command(epilog=_EXAMPLES)
def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(
            help="An item of --list, FILE.toml with [reproduce], or all.",
            autocompletion=completion.items,
        ),
    ] = None,
    more: Annotated[
        list[Path] | None, typer.Argument(metavar="[RUN...]", help="Further runs, after --from.")
    ] = None,
    list_: Annotated[
        bool, typer.Option("--list", help="Name all items: place, needs, cost.")
    ] = False,
    scale: Annotated[
        str, typer.Option(help="quick (minutes, settings cut) or paper (the paper's settings).")
    ] = "quick",
    seed: Annotated[list[int] | None, typer.Option(help="A seed; may be repeated.")] = None,
    set_: console.Settings = None,
    from_: Annotated[
        list[Path] | None,
        typer.Option("--from", metavar="RUN", help="Show this run, or several; train nothing."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The folder for what comes out; with all, the one above.")
    ] = None,
    workers: console.Workers = None,
    trust: console.Trust = None,
) -> None:
    """Get a table or figure of the paper, with the paper's numbers beside ours."""
    if list_:
        _print_list()
    elif name is None:
        raise ConfigError("reproduce: no item; `fedbn reproduce --list` names them")
    elif more and not from_:
        raise ConfigError(f"reproduce {name}: {more[0]}: one item at a time, or --from RUN")
    else:
        runs = [*(from_ or ()), *(more or ())]
        _reproduce(name, Flags(scale, seed or [], set_ or [], runs, out, workers or 0))


def _print_list() -> None:
    """Name every item: where in the paper, what it shows, what it needs and costs."""
    for entry in entries():
        cost: Mapping[str, str] = entry.how.get("cost", {})
        needs = [*entry.how.get("needs", ()), str(entry.raw.get("data", {}).get("name", ""))]
        said = [f"{n} ({'there' if is_there(n) else 'not there'})" for n in needs if n]
        emit(f"{entry.name}\n    {entry.title}")
        emit(f"    paper: {entry.how.get('place', '')}")
        emit(f"    needs: {', '.join(said) or 'nothing'}")
        emit(f"    on 2 cores: quick {cost.get('quick', '?')}, paper {cost.get('paper', '?')}")


def _reproduce(name: str, flags: Flags) -> None:
    """Reproduce one item, or all; what lacks its data is skipped when all are asked for."""
    if flags.scale not in SCALES:
        raise ConfigError(f"--scale {flags.scale!r}: legal are {', '.join(SCALES)}")
    chosen, several = find(name), name == ALL
    if several and flags.runs:
        raise ConfigError("--from shows one run: name one item, not all")
    told, failed = [], False
    for entry in chosen:
        begun = time.monotonic()
        try:
            _one(entry, flags, several)
            told.append(f"{entry.name}: done in {time.monotonic() - begun:.0f} s")
        except Interrupted:
            raise
        except (FedbnError, OSError) as error:
            if not several:
                raise
            skipped = isinstance(error, DataError)
            failed |= not skipped
            why = str(error) if isinstance(error, FedbnError) else unforeseen(error)
            told.append(f"{entry.name}: {'skipped' if skipped else 'failed'}: {why}")
            say(told[-1])
    if several:
        emit("\n" + "\n".join(shown(line) for line in told))
    if failed:
        raise FedbnError("not all items could be reproduced; see the lines above")


def _one(entry: Entry, flags: Flags, several: bool) -> None:
    folder = flags.folder(entry, several)
    found: Merged | None = None
    if flags.runs:
        wanted, found = shown_runs(entry, flags.runs, flags.seeds or flags.settings)
        say(*found.remarks)
    else:
        wanted = asked(entry, flags.scale, {"seeds": flags.seeds}, flags.settings)
        if lacking := missing(wanted.raw):
            raise DataError(
                f"{entry.name} at {flags.scale} scale needs {', '.join(lacking)}, which is "
                "not there: `fedbn data ls` says how to get it, FEDBN_DATA names its folder"
            )
    say(f"{entry.name}: {entry.title} -> {folder}")
    begin = "" if flags.runs or flags.scale == "paper" else "Quick scale: "
    request = Request(
        name=entry.name,
        scale="as the run shown" if flags.runs else flags.scale,
        folder=folder,
        experiment=wanted.raw,
        train=lambda raw, at: (
            found.records if found else _records(raw, folder / at, flags, wanted.held)
        ),
        tell=say,
        workers=flags.workers,
        label=begin + "; ".join(wanted.changes),
        changes=wanted.changes,
        comparable=wanted.comparable,
        cut=wanted.cut,
        source=flags.runs[0] if flags.runs else None,
        held=wanted.held,
        inputs=found.facts["inputs"] if found else None,
    )
    _print(produce(entry, request, shlex.join(["fedbn", *sys.argv[1:]])), folder)


def _records(raw: Mapping[str, Any], place: Path, flags: Flags, held: Held) -> Records:
    """Train in a run folder, or go on with it."""
    folder = RunFolder(place)
    config = {key: value for key, value in raw.items() if key not in ("reproduce", "quick")}
    made: list[Path] = []
    if not folder.config.exists() and not folder.request.exists():
        made = folder.begin(config, held.own)
    try:
        with folder.locked(), Stopper() as stop:
            train(folder, checked(config, place.name, held), stop, workers=flags.workers)
    except Interrupted as error:
        raise Interrupted(f"{error}; the same command goes on from there") from error
    except ConfigError as error:
        if not folder.config.exists():
            raise
        raise ConfigError(f"{place}: {error} with --out") from error
    finally:
        if not folder.config.exists():
            folder.abandon(made)
    return metrics.read(folder.metrics)


def _print(outcome: Outcome, folder: Path) -> None:
    for table in outcome.tables:
        emit()
        print_text(table.title, style="bold")
        print_table((*table.head, *table.columns), output.lines(table))
        print_text(output.notes(table))
    print_text(*outcome.remarks)
    names = "".join(f", {figure.name}" for figure in outcome.figures)
    written = f"README.md, tables as CSV, Markdown and LaTeX{names}"
    print(f"\nwritten into {folder}: {written}", file=sys.stderr)


@app.command(epilog="Examples: fedbn theory   ·   fedbn theory --alpha 10 --out theory/")
def theory(
    width: Annotated[int, typer.Option(min=1, max=10**6, help="Neurons, the paper's m.")] = 1024,
    alpha: Annotated[
        float, typer.Option(min=0.001, max=1000, help="Deviation at the start.")
    ] = 4.0,
    steps: Annotated[int, typer.Option(min=1, max=10**5, help="Steps of gradient descent.")] = 200,
    step: Annotated[
        float,
        typer.Option(min=1e-6, max=1, help="Length of a step, by the longest without overshoot."),
    ] = 1.0,
    clients: Annotated[int, typer.Option(min=1, max=200, help="Clients, the paper's N.")] = 3,
    dim: Annotated[int, typer.Option(min=2, max=256, help="Inputs, the paper's d.")] = 8,
    seed: Annotated[int, typer.Option(min=0, help="Decides data and network.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="A folder for the figure (SVG, PNG) and theory.json.")
    ] = None,
    json: console.Json = False,
) -> None:
    """Compare FedAvg's and FedBN's kernels, bounds and measured convergence (section 4).

    docs/theory.md explains every number.
    """
    data = random_clients(clients=clients, dim=dim, seed=seed)
    check_size(data, width)
    if out is not None:
        with explained(out, ConfigError):
            out.mkdir(parents=True, exist_ok=True)
    found = study(data, width=width, alpha=alpha, steps=steps, step=step, seed=seed)
    if out is not None:
        write_atomically(out / "theory.json", (found.to_json() + "\n").encode())
        pictures = draw_theory(found.to_dict(), out)
        say(f"wrote {', '.join(str(p) for p in pictures)}, theory.json")
    emit(found.to_json()) if json else _print_theory(found.to_dict())


def _print_theory(found: dict[str, Any]) -> None:
    never, endless = "never", "infinite"
    rows: tuple[tuple[str, Callable[[dict[str, Any]], Any], str], ...] = (
        ("least eigenvalue of G∞", lambda b: b["printed"]["mu"], ""),
        ("least eigenvalue of the limit of G(0)", lambda b: b["start"]["mu"], ""),
        ("least eigenvalue of Λ(0)", lambda b: b["kernels"]["total"][0], ""),
        ("the same in federated rounds", lambda b: b["kernels"]["of_rounds"][0], ""),
        ("condition number of Λ(0)", lambda b: b["own"]["condition"], endless),
        ("the same in federated rounds", lambda b: b["own_rounds"]["condition"], endless),
        ("error at the end, one step for all", lambda b: b["measured"][-1], ""),
        ("error at the end, rounds, one step", lambda b: b["rounds"][-1], ""),
        ("error at the end, own step", lambda b: b["own"]["errors"][-1], ""),
        ("error at the end, rounds, own step", lambda b: b["own_rounds"]["errors"][-1], ""),
        ("λmin(Λ(t)) ≥ μ/2 with G∞", lambda b: b["printed"]["kernel_holds"], ""),
        ("λmin(Λ(t)) ≥ μ/2 with the limit of G(0)", lambda b: b["start"]["kernel_holds"], ""),
        ("bound with G∞ broken at step", lambda b: b["printed"]["violation"], never),
        ("the same in federated rounds", lambda b: b["printed"]["rounds_violation"], never),
        ("bound with the limit of G(0) broken at", lambda b: b["start"]["violation"], never),
        ("the same in federated rounds", lambda b: b["start"]["rounds_violation"], never),
        ("width the theorem asks for (G∞)", lambda b: b["printed"]["width"], endless),
        ("the condition on the width", lambda b: b["printed"]["width_met"], ""),
        ("width the theorem asks for (limit)", lambda b: b["start"]["width"], endless),
        ("the condition on the width", lambda b: b["start"]["width_met"], ""),
    )
    emit(f"{'':40} {'FedAvg':>16} {'FedBN':>16}")
    for name, value, none in rows:
        told = (_told(value(found[method]), none) for method in ("fedavg", "fedbn"))
        emit(f"{name:40} " + " ".join(f"{each:>16}" for each in told))
    checks = found["checks"]
    emit(f"\nCorollary 4.6, λmin(G*∞) >= λmin(G∞): {_told(checks['corollary'])}")
    emit(f"the same for the limit of G(0): {_told(checks['start_corollary'])}")
    fails = "not beyond rounding" if checks["assumption"] else "fails"
    emit(f"Lemma 4.3, both positive definite: {'holds' if checks['definite'] else fails}")


def _told(value: float | bool | None, none: str = "") -> str:
    if isinstance(value, bool):
        return "holds" if value else "fails"
    return none if value is None else f"{value:.4g}"
