"""`fedbn data prepare`: get a data set's files, told as they come, and read them once."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich import progress
from rich.console import Console

import fedbn.datasets
from fedbn import registry
from fedbn.cli import completion, console
from fedbn.cli.console import BUT_FIRST, emit, print_table, say
from fedbn.cli.data import Options, section_of, subjects
from fedbn.core.federation import Federation
from fedbn.data.downloads import DownloadListener, provide
from fedbn.datasets import info_of
from fedbn.errors import ConfigError, unknown
from fedbn.experiments.sources import load_federation

app = console.commands()

_QUIET_SECONDS = 10.0

_EXAMPLES = console.examples(
    "fedbn data prepare digits                    downloads MNIST, SVHN and USPS",
    "fedbn data prepare digits --from ~/Downloads       takes over what you have",
    'fedbn data prepare digits --set domains=\'["mnist","usps"]\'',
    "fedbn data prepare synth_digits              renders them once, keeps them",
)


@app.command(epilog=_EXAMPLES)
def prepare(
    name: Annotated[
        str,
        typer.Argument(
            help="A data set's name from `fedbn data ls`.", autocompletion=completion.data_sets
        ),
    ],
    source: Annotated[
        Path | None,
        typer.Option("--from", metavar="DIR", help="Take files from here; download nothing."),
    ] = None,
    set_: Options = None,
) -> None:
    """Get a data set's files, check them, read them once and keep what was prepared.

    Files go to the folder that FEDBN_DATA names.
    Where nothing can be downloaded, a line says what to get and where to put it.
    """
    names = registry.names(fedbn.datasets)
    if ":" not in name and (name not in names or info_of(name).source == "data.path"):
        legal = [known for known in names if info_of(known).source != "data.path"]
        more = "; your own data needs no preparing, try `fedbn data check PATH`"
        raise ConfigError(unknown("data set", name, legal) + more)
    section, _ = section_of(name, set_)
    begun = time.monotonic()
    if ":" not in name:
        provide(name, info_of(name), section.options, source, DownloadListener(say, Download))
    got = time.monotonic()
    federation = load_federation(section)
    _print(federation, got - begun, time.monotonic() - got)


def _print(federation: Federation, getting: float, reading: float) -> None:
    say(*federation.remarks)
    groups = [subjects(client) for client in federation.clients]
    more = ["subjects", "test subjects"] if any(groups) else []
    rows = (
        [client.name, len(client.train), len(client.tests[client.domain]), *counts]
        for client, counts in zip(federation.clients, groups, strict=True)
    )
    print_table([federation.name, "training", "test", *more], rows, numbers=BUT_FIRST)
    shape = "×".join(map(str, federation.input_shape))
    emit(
        f"\n{len(federation.clients)} client(s), {len(federation.classes)} classes, samples of "
        f"{shape}; {getting:.1f} s to get, {reading:.1f} s to read"
    )


class Download:
    """A bar on a terminal, gone when the file is there; a line now and then for logs and pipes."""

    def __init__(self, file: str) -> None:
        self.total = self._done = 0
        self._file, self._told = file, time.monotonic()
        self._bar: progress.Progress | None = None
        if not sys.stderr.isatty():
            say(f"{file} ...")
            return
        self._bar = progress.Progress(
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(bar_width=24),
            progress.DownloadColumn(),
            progress.TransferSpeedColumn(),
            progress.TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._bar.add_task(file, total=None)
        self._bar.start()

    def update(self, count: int) -> None:
        """Count bytes."""
        self._done += count
        if self._bar:
            self._bar.update(self._task, completed=self._done, total=self.total or None)
        elif time.monotonic() - self._told > _QUIET_SECONDS:
            self._told = time.monotonic()
            say(f"{self._file}: {self._done / 1e6:.1f} of {self.total / 1e6:.1f} MB")

    def reset(self) -> None:
        """Begin anew."""
        self._done = 0

    def close(self) -> None:
        """Take the bar off."""
        if self._bar:
            self._bar.stop()
