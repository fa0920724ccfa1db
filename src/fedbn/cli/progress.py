"""How a run is going, on stderr: a live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import statistics
import sys
import time
from typing import Any, Protocol

from fedbn.cli.clock import Clock
from fedbn.cli.output import printable
from fedbn.experiments.jobs import Event

_QUIET_SECONDS = 10.0


class Progress(Protocol):
    """A listener that is opened and closed around a run."""

    def __call__(self, event: Event) -> None:
        """Hear an event."""

    def close(self) -> None:
        """Tidy the screen."""


def make_progress() -> Progress:
    """Choose by whether a person is looking, at a terminal that can redraw."""
    if not sys.stderr.isatty() or os.environ.get("TERM", "").lower() in ("dumb", "unknown"):
        return Lines()
    from fedbn.cli.live import LiveView

    return LiveView()


class Lines:
    """A line now and then: for logs, pipes and batch systems."""

    def __init__(self) -> None:
        self._clock = Clock()
        self._told = 0.0

    def __call__(self, event: Event) -> None:
        """Print a line, or wait for a later event."""
        self._clock.hear(event)
        if event.kind == "note":
            _print(remark(event))
        elif event.kind == "done":
            _print(f"{job_name(event)}: done ({self._clock.text()})")
        elif event.kind == "round" and time.monotonic() - self._told > _QUIET_SECONDS:
            self._told = time.monotonic()
            at = f"round {event.round}/{event.rounds}"
            _print(f"{job_name(event)}: {at}, {_numbers(event)} ({self._clock.text()})")

    def close(self) -> None:
        """Nothing to tidy."""


def job_name(event: Event) -> str:
    """What a job is called on the screen."""
    method, setting, seed = event.job
    return f"{method} seed {seed}" + ("" if setting == "default" else f" {setting}")


def remark(event: Event) -> str:
    """A remark, with the job that it is about."""
    return event.text if event.whole else f"{job_name(event)}: {event.text}"


def _numbers(event: Event) -> str:
    parts = []
    if losses := _values(event.records, "train", "training_loss"):
        parts.append(f"loss {statistics.fmean(losses):.3f}")
    if scores := _values(event.records, "test", "accuracy"):
        parts.append(f"accuracy {100 * statistics.fmean(scores):.1f} %")
    return ", ".join(parts)


def _values(records: list[dict[str, Any]], split: str, metric: str) -> list[float]:
    return [
        r["value"]
        for r in records
        if r["split"] == split and r["metric"] == metric and r["value"] is not None
    ]


def _print(text: str) -> None:
    print(printable(text), file=sys.stderr, flush=True)
