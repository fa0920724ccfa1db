"""Messages of a run: `warnings.jsonl` for reports, and `run.log` for whoever looks for a cause.

A warning is stored once per job, however often a run is resumed.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from pydantic import ConfigDict, TypeAdapter, with_config as configured

from fedbn.errors import DamagedRun
from fedbn.runs.folder import RunFolder, explained
from fedbn.runs.metrics import read_as
from fedbn.text import listed, shown

Level = Literal["warning", "info", "debug"]
"""`warning` and `info` are shown and logged, `debug` is only logged; warnings are also stored."""
Job = tuple[str, str, int]


@configured(ConfigDict(extra="forbid", strict=True))
@dataclass(frozen=True)
class RunWarning:
    """A warning that a run gave."""

    text: str
    job: Job | None = None  # method, setting and seed; None where it concerns the whole run

    @property
    def job_name(self) -> str:
        """The job that the warning is about; empty where it concerns the whole run."""
        if self.job is None:
            return ""
        method, setting, seed = self.job
        return f"{method} seed {seed}" + ("" if setting == "default" else f" {setting}")


_WARNING = TypeAdapter(RunWarning)


def read_warnings(folder: RunFolder) -> list[RunWarning]:
    """Return the warnings that a run stored; lines that are damaged are left out."""
    found: list[RunWarning] = []
    if folder.warnings.is_file():
        for line in folder.warnings.read_bytes().splitlines():
            with suppress(DamagedRun):
                found.append(read_as(_WARNING, line, str(folder.warnings)))
    return found


def warnings_of_job(folder: RunFolder, job: Job) -> tuple[str, ...]:
    """Return the warnings about the whole run and about one of its jobs."""
    found = (one.text for one in read_warnings(folder) if one.job in (None, job))
    return tuple(dict.fromkeys(found))


def grouped(warnings: Iterable[RunWarning]) -> tuple[str, ...]:
    """Return each text once, with the jobs and the rounds that it concerns.

    Examples:
        >>> jobs = [("fedbn", "default", seed) for seed in (0, 1)]
        >>> grouped([RunWarning("slow"), *(RunWarning("diverged", job) for job in jobs)])
        ('slow', 'diverged (fedbn seed 0, fedbn seed 1)')
        >>> grouped(RunWarning(f"round {number}: a: diverged (norm {number})") for number in (3, 7))
        ('a: diverged (norm 3) (in 2 rounds, the first is 3)',)
    """
    alike: dict[str, list[RunWarning]] = {}
    for one in warnings:
        found = _OF_A_ROUND.fullmatch(one.text)
        alike.setdefault(one.text if found is None else found["cause"], []).append(one)
    return tuple(_summary(some) for some in alike.values())


# The last brackets have numbers that differ from round to round.
_OF_A_ROUND = re.compile(r"round (?P<round>\d+): (?P<cause>.*?)(?: \([^()]*\))?", re.DOTALL)


def _summary(warnings: Sequence[RunWarning]) -> str:
    """Return one text for warnings that tell the same of several jobs or rounds."""
    text, facts = warnings[0].text, []
    rounds = {int(found["round"]) for one in warnings if (found := _OF_A_ROUND.match(one.text))}
    if len(rounds) > 1:
        text = text.partition(": ")[2]
        facts.append(f"in {len(rounds)} rounds, the first is {min(rounds)}")
    names = list(dict.fromkeys(one.job_name for one in warnings))
    if "" not in names:
        facts.append(listed(names, 6))
    return f"{text} ({'; '.join(facts)})" if facts else text


class MessageStore:
    """Writes the messages of a run into its folder."""

    def __init__(self, folder: RunFolder):
        self._folder = folder
        self._known = set(read_warnings(folder))

    def add(self, level: Level, text: str, job: Job, whole: bool = False) -> None:
        """Store a warning, and write every message to the log.

        Args:
            level: See `Level`.
            text: The message.
            job: The job during which it came.
            whole: True if it concerns the whole run, and not only this job.
        """
        warning = RunWarning(text, None if whole else job)
        name = warning.job_name
        self.log(level, f"{name}: {text}" if name else text)
        if level == "warning" and warning not in self._known:
            self._known.add(warning)
            self._append([warning])

    def extend(self, warnings: Iterable[RunWarning]) -> None:
        """Store warnings that another run gave."""
        new = [one for one in dict.fromkeys(warnings) if one not in self._known]
        self._known.update(new)
        if new:
            self._append(new)

    def _append(self, warnings: Iterable[RunWarning]) -> None:
        lines = b"".join(_WARNING.dump_json(one) + b"\n" for one in warnings)
        with explained(self._folder.warnings), self._folder.warnings.open("ab") as file:
            file.write(lines)

    def log(self, level: Level, text: str) -> None:
        """Write a line to the log; a log that cannot be written does not end a run."""
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        with suppress(OSError), self._folder.log.open("a", encoding="utf-8") as file:
            file.write(f"{now} {level.upper():7} {shown(text)}\n")
