"""How a download is going, on stderr: a bar on a terminal, a line a file elsewhere."""

from __future__ import annotations

import sys
import time

from fedbn.cli.data._common import say
from fedbn.data.downloads import Listener

_QUIET_SECONDS = 10.0


def make_listener() -> Listener:
    """Choose by whether a person is looking."""
    return Bars() if sys.stderr.isatty() else Lines()


class Lines:
    """For logs and pipes: a line at the beginning of a file, and one every ten seconds."""

    def tell(self, text: str) -> None:
        """Print a sentence."""
        say(text)

    def progress(self, file: str) -> Share:
        """Follow a file."""
        say(f"{file} ...")
        return Share(file)


class Share:
    """How much of one file is there, told now and then."""

    def __init__(self, file: str) -> None:
        self.total = 0
        self._file = file
        self._done = 0
        self._told = time.monotonic()

    def update(self, count: int) -> None:
        """Count bytes."""
        self._done += count
        if time.monotonic() - self._told > _QUIET_SECONDS:
            self._told = time.monotonic()
            say(f"{self._file}: {self._done / 1e6:.1f} of {self.total / 1e6:.1f} MB")

    def reset(self) -> None:
        """Begin anew."""
        self._done = 0

    def close(self) -> None:
        """Nothing to tidy."""


class Bars:
    """For a terminal: a bar a file."""

    def tell(self, text: str) -> None:
        """Print a sentence."""
        say(text)

    def progress(self, file: str) -> Bar:
        """Follow a file."""
        return Bar(file)


class Bar:
    """One bar, gone when the file is there."""

    def __init__(self, file: str) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress as RichProgress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        self.total = 0
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
        )
        self._progress = RichProgress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._progress.add_task(file, total=None)
        self._progress.start()

    def update(self, count: int) -> None:
        """Move the bar."""
        self._progress.update(self._task, advance=count, total=self.total or None)

    def reset(self) -> None:
        """Begin anew."""
        self._progress.update(self._task, completed=0)

    def close(self) -> None:
        """Take the bar off."""
        self._progress.stop()
