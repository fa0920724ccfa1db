"""Trackers, for `--log`: one file a name, holding a function of that name.

A tracker is made by a function of the run folder and the configuration, hears every round of every
job once, in order, and is closed. Rounds that were done before a resume are among them. Your own is
`module:callable`, as docs/export.md shows.
"""

from __future__ import annotations

import importlib.util
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, count, groupby
from pathlib import Path
from typing import Any, Protocol

from fedbn import registry, tracking
from fedbn.core.statistics_kinds import RUNNING
from fedbn.errors import ConfigError, reason
from fedbn.experiments.jobs import Event, Key, Listener
from fedbn.runs.folder import RunFolder

Record = Mapping[str, Any]
Job = Key


class Tracker(Protocol):
    """Hears a run; what it raises ends the tracking and never the run."""

    def log(self, job: Job, round: int, records: Sequence[Record]) -> None:
        """Hear a round's numbers."""

    def done(self, job: Job) -> None:
        """Hear that a job is finished."""

    def close(self) -> None:
        """Hear the end of this part of the run."""


Make = Callable[[Path, Mapping[str, Any]], Tracker]


def find_trackers(names: Iterable[str]) -> dict[str, Make]:
    """Find trackers before anything is written or trained."""
    found: dict[str, Make] = {}
    for name in names:
        found[name] = registry.find(tracking, name, "tracker", registry.TYPED)
        needs = getattr(sys.modules[found[name].__module__], "NEEDS", ())
        missing = [package for package in needs if importlib.util.find_spec(package) is None]
        if missing:
            raise ConfigError(
                f"--log {name} needs {', '.join(missing)}: pip install 'fedbn[{name}]'"
            )
    return found


class Tracking:
    """A listener that tells every tracker of each round once, earlier ones of a resumed run too.

    Trackers are made when a run begins: its configuration is on disk then.
    """

    def __init__(self, make: Mapping[str, Make], folder: RunFolder, tell: Listener):
        self._make, self._folder, self._tell = make, folder, tell
        self._trackers: dict[str, Tracker] = {}
        self._first: Job = ("", "", 0)

    def __call__(self, event: Event) -> None:
        """Hear how a run goes."""
        if event.kind == "begin" and self._make:
            self._first, config = event.job, self._folder.read_request()
            for name, make in self._make.items():
                with self._guarded(name):
                    self._trackers[name] = make(self._folder.path, config)
        for round, records in groupby(event.records, key=lambda record: int(record["round"])):
            self._tell_all("log", event.job, round, list(records))
        if event.over or event.kind == "done":
            self._tell_all("done", event.job)

    def close(self) -> None:
        """Close all trackers, whether the run was finished or not."""
        self._tell_all("close")

    def _tell_all(self, what: str, *arguments: Any) -> None:
        for name, tracker in list(self._trackers.items()):
            with self._guarded(name):
                getattr(tracker, what)(*arguments)

    @contextmanager
    def _guarded(self, name: str) -> Iterator[None]:
        """Go on without a tracker that fails: a server that is away must not cost a run."""
        try:
            yield
        except Exception as error:
            self._trackers.pop(name, None)
            text = f"--log {name} failed and is left out from here on ({reason(error)[:300]})"
            again = f"`fedbn resume {self._folder.path} --log ...` logs the whole run later"
            self._tell(Event("note", self._first, text=f"{text}; {again}", whole=True))


_ILLEGAL = re.compile(r"[^\w.\- ]", re.ASCII)


class Names:
    """Makes legal names, in the order of asking; equal words always get equal names.

    Examples:
        >>> names = Names()
        >>> names("a/b"), names("a?b"), names("a/b")
        ('a_b', 'a_b 2', 'a_b')
    """

    def __init__(self) -> None:
        self._given: dict[str, str] = {}

    def __call__(self, word: str) -> str:
        """Give a word's name."""
        if word not in self._given:
            plain = _ILLEGAL.sub("_", word)[:150] or "_"
            names = chain([plain], (f"{plain} {number}" for number in count(2)))
            self._given[word] = next(n for n in names if n not in self._given.values())
        return self._given[word]


def numbers(records: Sequence[Mapping[str, Any]], names: Names) -> dict[str, float]:
    """Name a round's numbers `SPLIT METRIC/CLIENT`, and add the mean of each over the clients.

    Pooled data has one client and several domains; these name its numbers. A score with other than
    running statistics is named by these too: `SPLIT METRIC exact statistics/CLIENT`.
    """
    found: dict[str, float] = {}
    means: dict[str, list[float]] = defaultdict(list)
    for record in records:
        if record["value"] is None:
            continue
        kind = f"{record['split']} {record['metric']}"
        if record["statistics"] != RUNNING:
            kind += f" {record['statistics']} statistics"
        who = record["domain"] if record["client"] == "all" else record["client"]
        found[f"{kind}/{names(who)}"] = record["value"]
        means[kind].append(record["value"])
    averages = {f"mean/{kind}": statistics.fmean(values) for kind, values in means.items()}
    return averages | found
