"""What the commands that use a run have in common: opening it, and writing a file for a user."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedbn.cli.output import printable

if TYPE_CHECKING:
    from fedbn.trained.trained_run import Trained


Run = Annotated[Path, typer.Argument(help="The run folder.")]


Method = Annotated[
    str | None,
    typer.Option(help="Which method of the run; fedbn if it is there, else the first."),
]


Seed = Annotated[int | None, typer.Option(help="Which seed; the first unless given.")]


Setting = Annotated[
    str | None, typer.Option(help="Which setting of a sweep; the first unless given.")
]


def say(text: str) -> None:
    """Print a remark on stderr, on one line."""
    print(printable(text), file=sys.stderr, flush=True)


def opened(run: Path, method: str | None, seed: int | None, setting: str | None) -> Trained:
    """Open a run; its remarks go to stderr."""
    from fedbn.trained.opening import open_run

    return open_run(run, method=method, seed=seed, setting=setting, notes=say)


def check_out(out: Path | None) -> None:
    """Refuse a file that cannot be written, before anything is computed."""
    from fedbn.errors import ConfigError

    if out is None:
        return
    if out.is_dir():
        raise ConfigError(f"--out {out}: a folder; give a file")
    if not out.parent.is_dir():
        raise ConfigError(f"--out {out}: no such folder {out.parent}")
    if not os.access(out.parent, os.W_OK):
        raise ConfigError(f"--out {out}: {out.parent} cannot be written")


def write_out(out: Path, content: bytes) -> None:
    """Write a file that the user named, whole or not at all."""
    from fedbn.errors import ConfigError
    from fedbn.runs.folder import write_atomically

    write_atomically(out, content, ConfigError)
