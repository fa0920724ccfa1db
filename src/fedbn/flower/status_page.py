"""`status.html`: a page to watch a run by, written anew after every round, at server and sites.

It needs no port and no script: the browser reads the file again by itself until the run is over.
"""

from __future__ import annotations

import html
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedbn.core.metric import Metric
from fedbn.core.statistics_kinds import RUNNING
from fedbn.experiments.jobs import Event, Key
from fedbn.runs.folder import write_atomically
from fedbn.text import one_line, spread

_REMARKS, _POINTS, _ROUNDS = 50, 60, 20
_STATES = {"earlier": "to do", "round": "running"}
_HEAD = """<!doctype html>
<html lang="en"><meta charset="utf-8">{refresh}
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: auto; padding: 1rem; }}
div {{ overflow-x: auto; margin: 1rem 0; }}
table {{ border-collapse: collapse; width: 100%; }}
th, td {{ text-align: left; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid #8886; }}
td {{ font-variant-numeric: tabular-nums; }}
progress {{ width: 100%; height: 1rem; }}
svg {{ width: 5rem; height: 1.5rem; }}
polyline {{ fill: none; stroke: currentColor; vector-effect: non-scaling-stroke; }}
li {{ overflow-wrap: anywhere; }}
</style>
"""


@dataclass
class _Site:
    """What is known of a site: when an answer of its came last, of which round, its numbers."""

    seen: str = "before this start"
    round: int = 0
    losses: list[float] = field(default_factory=list)
    score: str = ""


class StatusPage:
    """Hears the events of a run and keeps the page."""

    def __init__(self, file: Path, title: str):
        self._file, self._title = file, title
        self._jobs: dict[Key, tuple[int, int, str]] = {}
        self._sites: dict[str, _Site] = {}
        self._remarks: deque[str] = deque(maxlen=_REMARKS)
        self._seconds: deque[float] = deque(maxlen=_ROUNDS)
        self._since = time.monotonic()

    def hear(self, event: Event) -> None:
        """Take an event, and write the page."""
        if event.kind == "note" or event.text:
            self._remarks.appendleft(f"{_clock()} {one_line(event.text)}")
        if event.kind == "round":
            now = time.monotonic()
            self._seconds.append(now - self._since)
            self._since = now
        if event.kind not in ("begin", "note"):
            state = "done" if event.over else _STATES.get(event.kind, event.kind)
            self._jobs[event.job] = event.round, event.rounds, state
            self._take(event)
        write_atomically(self._file, self.rendered().encode())

    def _take(self, event: Event) -> None:
        for record in event.records:
            site = self._sites.setdefault(record["client"], _Site())
            value, metric = record["value"], event.judged_by
            if record["metric"] == "training_loss":
                site.round = record["round"]
                site.losses += [] if value is None else [value]
                site.seen = site.seen if event.kind == "earlier" else _clock()
            elif _is_score(record, metric) and value is not None:
                text = f"{metric.words} {metric.said(value)} {metric.unit}".rstrip()
                site.score = html.escape(f"{text} after round {record['round']}")

    def rendered(self) -> str:
        """The page as it is now."""
        done = sum(round for round, _, _ in self._jobs.values())
        total = sum(rounds for _, rounds, _ in self._jobs.values())
        states = {state for _, _, state in self._jobs.values()}
        over = bool(states) and not states & {*_STATES.values()}
        said = [f"round {done} of {total}", *([] if over else [self._left(total - done)])]
        refresh = "" if over else '<meta http-equiv="refresh" content="10">'
        jobs = [
            [html.escape(f"{method} {setting} seed {seed}"), f"{round} of {rounds}", state]
            for (method, setting, seed), (round, rounds, state) in self._jobs.items()
        ]
        sites = [
            [html.escape(name), one.round, _drawn(one.losses), one.score, one.seen]
            for name, one in self._sites.items()
        ]
        remarks = "".join(f"<li>{html.escape(text)}</li>" for text in self._remarks)
        title = html.escape(self._title)
        return (
            _HEAD.format(title=title, refresh=refresh)
            + f"<h1>{title}</h1>\n<p>{'; '.join(said)}; written {_clock()}</p>\n"
            + f'<progress max="{max(total, 1)}" value="{done}"></progress>\n'
            + _table("site", "round", "training loss", "score", "last answer", rows=sites)
            + _table("job", "rounds", "", rows=jobs)
            + f"<h2>Remarks and refusals</h2>\n<ul>{remarks or '<li>none</li>'}</ul>\n</html>\n"
        )

    def _left(self, rounds: int) -> str:
        if not self._seconds:
            return "time left not known yet"
        left = rounds * sum(self._seconds) / len(self._seconds)
        unit, size = ("s", 1) if left < 90 else ("min", 60) if left < 5400 else ("h", 3600)
        return f"about {left / size:.0f} {unit} left"


def _is_score(record: Mapping[str, Any], metric: Metric) -> bool:
    """True if a record is a test score with running statistics, by a run's own metric."""
    kind = record["split"], record["metric"], record["statistics"]
    return kind == ("test", metric.name, RUNNING)


def _table(*titles: str, rows: Sequence[Sequence[object]]) -> str:
    head = "".join(f"<th>{title}</th>" for title in titles)
    body = "".join(f"<tr>{''.join(f'<td>{c}</td>' for c in row)}</tr>\n" for row in rows)
    return f"<div><table><tr>{head}</tr>\n{body}</table></div>\n"


def _drawn(losses: Sequence[float]) -> str:
    """The last loss, and all so far as a line."""
    if not losses:
        return "–"
    points = spread(losses, _POINTS)
    low, high = min(points), max(points)
    scale = 20 / (high - low or 1)
    drawn = " ".join(f"{at},{22 - (y - low) * scale:.1f}" for at, y in enumerate(points))
    box = f'viewBox="0 0 {max(len(points) - 1, 1)} 24" preserveAspectRatio="none"'
    return f'{losses[-1]:.4g} <svg {box}><polyline points="{drawn}"/></svg>'


def _clock() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
