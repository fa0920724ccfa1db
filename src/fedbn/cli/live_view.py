"""The live view of a run on a terminal: a bar over all, a line a job, and a bar a client.

Everything is cut to the terminal's width and height: of many jobs the running ones are shown, of
many clients the best and the worst.
"""

from __future__ import annotations

import os
import statistics
import threading
import time

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from fedbn.cli.progress import Clock, job_name, remark
from fedbn.core.metric import ACCURACY, PERCENT, Metric
from fedbn.experiments.jobs import Event, Key
from fedbn.results.aggregate import scores_of_round
from fedbn.text import shown

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_MAX_JOBS, _MAX_CLIENTS = 6, 10
_NAME, _NUMBER, _BAR = 16, 6, 10
_WAITING = "checking data and model ..."


class LiveView:
    """A listener that redraws the lower end of the terminal; remarks scroll by above it."""

    def __init__(self, console: Console | None = None) -> None:
        plain = bool(os.environ.get("NO_COLOR"))
        self._console = console or Console(stderr=True, color_system=None if plain else "auto")
        self.picture = Picture()
        self._live = Live(self.picture, console=self._console, vertical_overflow="crop")
        self._live.start()

    def __call__(self, event: Event) -> None:
        """Take an event into the picture."""
        if event.kind == "note" and event.level != "debug":
            self._console.print(shown(remark(event)), markup=False, highlight=False)
        self.picture.hear(event)

    def close(self) -> None:
        """Leave one line of it on the screen."""
        self.picture.closed = True
        self._live.stop()


class Picture:
    """What is known of the run, and how it is drawn; another thread draws it."""

    def __init__(self) -> None:
        self.closed = False
        self._lock = threading.Lock()
        self._clock = Clock()
        self._begun = time.monotonic()
        self._done, self._rounds = 0, 0
        self._running: dict[Key, Event] = {}
        self._finished = 0
        self._means: dict[Key, float] = {}
        self._scores: dict[str, dict[str, float]] = {}  # a method's, of the seed last heard
        self._heard: dict[str, None] = {}  # methods, the last one heard last
        self._metric = ACCURACY

    def hear(self, event: Event) -> None:
        """Take note of an event."""
        with self._lock:
            self._clock.hear(event)
            if event.kind == "begin":
                self._done, self._rounds = event.round, event.rounds
            elif event.kind == "round":
                self._done += 1
                self._running[event.job] = event
                self._score(event)
            elif event.kind == "done":
                self._finished += 1
                last = self._running.pop(event.job, event)
                self._rounds -= last.rounds - event.rounds  # that patience left out

    def _score(self, event: Event) -> None:
        self._metric = event.judged_by
        if found := scores_of_round(event.records, self._metric):
            method, setting, _ = event.job
            label = method if setting == "default" else f"{method} {setting}"
            self._scores[label] = found
            self._heard.pop(label, None)
            self._heard[label] = None
            self._means[event.job] = statistics.fmean(found.values())

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        height = options.size.height
        with self._lock:
            pen = Pen(options.max_width, options.ascii_only, self._metric)
            yield self._whole(pen)
            if self.closed or not self._running:
                return
            jobs = list(self._jobs(pen, min(_MAX_JOBS, max(1, height // 4))))
            yield from jobs
            yield from self._clients(pen, min(_MAX_CLIENTS, height - len(jobs) - 6))

    def _whole(self, pen: Pen) -> Text:
        if not self._rounds:
            return pen.line(_WAITING)
        share = self._done / self._rounds
        seconds = int(time.monotonic() - self._begun)
        end = f"{100 * share:3.0f} %  {seconds // 60}:{seconds % 60:02d}"
        end += "" if self.closed else f", {self._clock.text()}"
        bar = pen.bar(share, max(0, min(24, pen.width - len(end) - 1)))
        return pen.line(f"{bar} {end}", "bold")

    def _jobs(self, pen: Pen, most: int) -> list[Text]:
        running = list(self._running.values())[-most:]
        lines = []
        for event in running:
            mean = self._means.get(event.job)
            end = f" round {event.round}/{event.rounds}" + (
                "" if mean is None else f"  {mean:{self._metric.form}} {self._metric.unit}".rstrip()
            )
            room = pen.width - len(end) - 1
            name = shown(job_name(event))
            wide = min(room - _BAR, 32)
            if wide < 12:  # no room for a bar
                lines.append(pen.line(pen.cell(name, max(4, room)) + end))
            else:
                bar = pen.bar(event.round / event.rounds, _BAR)
                lines.append(pen.line(f"{pen.cell(name, wide)} {bar}{end}"))
        hidden = len(self._running) - len(running)
        if hidden or self._finished:
            more = [f"{hidden} more running"] if hidden else []
            more += [f"{self._finished} finished"] if self._finished else []
            lines.append(pen.line(f"jobs: {', '.join(more)}", "dim"))
        return lines

    def _clients(self, pen: Pen, most: int) -> list[Text]:
        if not self._scores or most < 3:
            return []
        fitting = list(self._heard)[-max(1, pen.columns(_NUMBER + 2)) :]
        columns = {label: self._scores[label] for label in self._scores if label in fitting}
        with_bars = pen.columns(_NUMBER + _BAR + 3) >= len(columns)
        lines = [pen.row("", [pen.head(label, with_bars) for label in columns], "dim")]
        newest = columns[fitting[-1]]
        for client in _chosen(newest, most, self._metric.higher):
            cells = [pen.score(scores.get(client), with_bars) for scores in columns.values()]
            lines.append(pen.row(client, cells))
        if len(newest) > most:
            lines.append(pen.line(f"best and worst of {len(newest)} clients", "dim"))
        means = [pen.score(statistics.fmean(s.values()), with_bars) for s in columns.values()]
        return [*lines, pen.row("mean", means, "bold")]


def _chosen(scores: dict[str, float], most: int, higher: bool) -> list[str]:
    """All clients in their order; of too many, the best and the worst by the newest scores."""
    if len(scores) <= most:
        return list(scores)
    ranked = sorted(scores, key=lambda client: scores[client], reverse=higher)
    return ranked[: (most + 1) // 2] + ranked[len(ranked) - most // 2 :]


class Pen:
    """Draws lines of one width, in ASCII where the terminal has no more."""

    def __init__(self, width: int, ascii_only: bool, metric: Metric = ACCURACY):
        self.width = width
        self._ascii = ascii_only
        self._metric = metric

    def line(self, text: str, style: str = "") -> Text:
        """One line, cut to the width."""
        if self._ascii:
            text = text.encode("ascii", "replace").decode()
        if cell_len(text) > self.width:
            text = self.cell(text, self.width)
        return Text(text, style=style, no_wrap=True, overflow="crop", end="\n")

    def row(self, name: str, cells: list[str], style: str = "") -> Text:
        """A name and its cells."""
        return self.line(f"{self.cell(shown(name), self._name())} {'  '.join(cells)}", style)

    def cell(self, text: str, width: int) -> str:
        """A text of exactly this width, wide signs counted as two."""
        if cell_len(text) > width > 1:
            return set_cell_size(text, width - 1) + ("." if self._ascii else "…")
        return set_cell_size(text, width)

    def bar(self, share: float, width: int) -> str:
        """A bar, in eighths of a sign."""
        share = min(max(share, 0.0), 1.0)
        if self._ascii:
            return ("#" * round(share * width)).ljust(width, ".")
        full, rest = divmod(round(share * width * 8), 8)
        return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(width, "·")

    def score(self, value: float | None, with_bar: bool) -> str:
        """A score in its unit; a bar where it is a share."""
        number = f"{'-' if value is None else f'{value:{self._metric.form}}':>{_NUMBER}}"
        if not with_bar:
            return number
        share = (value or 0) / 100 if self._metric.unit == PERCENT else 0
        return f"{self.bar(share, _BAR)} {number}"

    def head(self, label: str, with_bars: bool) -> str:
        """A column's title, as wide as its scores."""
        return self.cell(shown(label), _NUMBER + (_BAR + 1 if with_bars else 0))

    def columns(self, width: int) -> int:
        """How many columns of a width fit."""
        return (self.width - self._name()) // width

    def _name(self) -> int:
        return min(_NAME, max(6, self.width // 3))
