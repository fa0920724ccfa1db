"""What `fedbn reproduce` does: each item in its folder, what cannot run listed as skipped."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbn.cli.launching import train
from fedbn.cli.output import emit, printable, stdout_console
from fedbn.cli.stopping import Stopper
from fedbn.errors import ConfigError, DataError, FedbnError, Interrupted, unforeseen
from fedbn.experiments.configuration import SCALES, checked
from fedbn.paper import output
from fedbn.paper.configurations import Asked, asked, is_there, shown_run
from fedbn.paper.items import ALL, Entry, Outcome, Request, Scale, entries, find
from fedbn.paper.output import produce
from fedbn.results.aggregate import Records
from fedbn.runs import metrics
from fedbn.runs.folder import RunFolder


@dataclass(frozen=True)
class Order:
    """The flags of the command."""

    scale: str
    seeds: list[int]
    settings: list[str]
    source: Path | None
    out: Path | None
    workers: int

    def flags(self) -> dict[str, Any]:
        """What overrides the file."""
        return {"seeds": self.seeds}

    def folder(self, entry: Entry, several: bool) -> Path:
        """Where an item goes."""
        end = "from-run" if self.source else self.scale
        name = f"{entry.name}-{end}"
        if self.out is None:
            return Path("runs") / "reproduce" / name
        return self.out / name if several else self.out


def print_list() -> None:
    """Name every item: where in the paper, what it shows, what it needs and costs."""
    for entry in entries():
        cost: Mapping[str, str] = entry.how.get("cost", {})
        needs = [*entry.how.get("needs", ()), str(entry.raw.get("data", {}).get("name", ""))]
        said = [f"{n} ({'there' if is_there(n) else 'not there'})" for n in needs if n]
        emit(f"{entry.name}\n    {entry.title}")
        emit(f"    paper: {entry.how.get('place', '')}")
        emit(f"    needs: {', '.join(said) or 'nothing'}")
        emit(f"    on 2 cores: quick {cost.get('quick', '?')}, paper {cost.get('paper', '?')}")


def reproduce_all(name: str, order: Order) -> None:
    """Reproduce one item, or all; what lacks its data is skipped when all are asked for."""
    if order.scale not in SCALES:
        raise ConfigError(f"--scale {order.scale!r}: legal are {', '.join(SCALES)}")
    chosen, several = find(name), name == ALL
    if several and order.source:
        raise ConfigError("--from shows one run: name one item, not all")
    told, failed = [], False
    for entry in chosen:
        begun = time.monotonic()
        try:
            _one(entry, order, several)
            told.append(f"{entry.name}: done in {time.monotonic() - begun:.0f} s")
        except Interrupted:
            raise
        except (FedbnError, OSError) as error:
            if not several:
                raise
            skipped = isinstance(error, DataError)
            failed |= not skipped
            told.append(f"{entry.name}: {'skipped' if skipped else 'failed'}: {_line(error)}")
            print(printable(told[-1]), file=sys.stderr)
    if several:
        emit("\n" + "\n".join(printable(line) for line in told))
    if failed:
        raise FedbnError("not all items could be reproduced; see the lines above")


def _line(error: Exception) -> str:
    return str(error) if isinstance(error, FedbnError) else unforeseen(error)


def _one(entry: Entry, order: Order, several: bool) -> None:
    folder = order.folder(entry, several)
    if order.source:
        wanted = shown_run(entry, order.source, order.seeds or order.settings)
    else:
        wanted = asked(entry, order.scale, order.flags(), order.settings)
        if wanted.lacking:
            raise DataError(
                f"{entry.name} at {order.scale} scale needs {', '.join(wanted.lacking)}, which is "
                "not there: `fedbn data ls` says how to get it, FEDBN_DATA names its folder"
            )
    print(f"{entry.name}: {entry.title} -> {folder}", file=sys.stderr)
    request = _request(entry, wanted, order, folder)
    outcome = produce(entry, request, _command())
    _print(outcome, folder)


def _request(entry: Entry, wanted: Asked, order: Order, folder: Path) -> Request:
    scale: Scale = "quick" if order.scale == "quick" else "paper"
    begin = "" if order.source or order.scale == "paper" else "Quick scale: "
    return Request(
        name=entry.name,
        scale=scale,
        folder=folder,
        experiment=wanted.raw,
        train=lambda raw, place: _records(raw, folder / place, order),
        tell=lambda line: print(printable(line), file=sys.stderr),
        workers=order.workers,
        label=begin + "; ".join(wanted.changes),
        changes=wanted.changes,
        comparable=wanted.comparable,
        source=order.source,
    )


def _records(raw: Mapping[str, Any], place: Path, order: Order) -> Records:
    """Train in a run folder, go on with it, or read the one that is shown."""
    if order.source:
        return metrics.read(RunFolder(order.source).metrics)
    folder = RunFolder(place)
    config = {key: value for key, value in raw.items() if key not in ("reproduce", "quick")}
    made: list[Path] = []
    if not folder.config.exists() and not folder.request.exists():
        made = folder.begin(config)
    try:
        with folder.locked(), Stopper() as stop:
            train(folder, checked(config, place.name), stop, workers=order.workers)
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
    from rich.markup import escape
    from rich.table import Table

    console = stdout_console()
    for table in outcome.tables:
        console.print(escape(f"\n{table.title}"), style="bold")
        drawn = Table(box=None, pad_edge=False, header_style="bold")
        for column in (*table.head, *table.columns):
            drawn.add_column(escape(column))
        for line in output.lines(table):
            drawn.add_row(*(escape(printable(part)) for part in line))
        console.print(drawn)
        console.print(escape(output.notes(table)))
    for remark in outcome.remarks:
        console.print(escape(printable(remark)))
    names = ", ".join(figure.name for figure in outcome.figures)
    print(f"\nwritten into {folder}: README.md, tables as CSV, Markdown and LaTeX"
          f"{', ' + names if names else ''}", file=sys.stderr)  # fmt: skip


def _command() -> str:
    return shlex.join(["fedbn", *sys.argv[1:]])
