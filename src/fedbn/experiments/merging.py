"""Runs that grow, and runs that are put together.

A run grows by seeds, methods and rounds: what it has done stays, and what is added is what a run
that had it from the start would have done. Jobs of many machines or nights become one run where
they were asked for the same, on the same data. For that a folder of three files is enough:
`config.toml`, `environment.json` and `metrics.jsonl`.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbn.core.best_round import best_round, early_stop, validation
from fedbn.core.metric import first_metric
from fedbn.core.schedule import rates
from fedbn.errors import ConfigError, DataError
from fedbn.experiments.configuration import Raw, checked, held_by, held_experiment, placed
from fedbn.experiments.environment import EVERY, changed_keys, facts_for
from fedbn.experiments.jobs import Job, Key, axes, jobs, named_jobs, settings
from fedbn.experiments.planner import data_marks, scores_all
from fedbn.experiments.schema import Experiment
from fedbn.runs import checkpoints, metrics, outcomes
from fedbn.runs.folder import (
    RECORDS_ALONE,
    STOPPED,
    RunFolder,
    explained,
    without_checkpoints,
    write_atomically,
)
from fedbn.runs.messages import MessageStore, read_warnings
from fedbn.text import counted, flat

_FREE = {"data.path", "model.weights"}  # of another machine; hashes tell whether it is the same
_LENGTH = {"training.rounds", "training.epochs"}
_APART = {"methods", "seeds", "sweep", "workers", "engine", "quick", "reproduce", "checkpoint"}
UNSCORED = ("training_loss", "refused")
"""What a round says by itself; where sites score, the rest follows with the next answers."""
Rows = list[dict[str, Any]]


def grown(
    folder: RunFolder, rounds: int | None, seeds: Sequence[int], methods: Sequence[str]
) -> Experiment:
    """The configuration of a run with what can be added to it; nothing is written."""
    raw, before = folder.read_request(), held_experiment(folder)
    for name, there, added in (("seed", before.seeds, seeds), ("method", before.methods, methods)):
        raw = placed(raw, f"{name}s", [*there, *(one for one in added if one not in there)])
    if rounds is not None:
        _check_rounds(folder, before, rounds)
        raw = placed(raw, "training.rounds", rounds)
    return checked(raw, str(folder.config), held_by(folder))


def _check_rounds(folder: RunFolder, experiment: Experiment, rounds: int) -> None:
    if _LENGTH & axes(experiment).keys():
        raise ConfigError("--rounds: the run sweeps over its length: start a new one")
    for job in jobs(experiment):
        training, place = job.setting.experiment.training, folder.job(*job.key)
        had = training.total_rounds
        if rounds < had:
            raise ConfigError(f"--rounds {rounds}: the run has {had}; legal are no fewer")
        if rounds == had:  # as after a kill while it grew
            continue
        if without_checkpoints(place):
            raise ConfigError(f"--rounds: {_named(job.key)} has no checkpoint to go on from")
        bound = [rule.label for rule in job.method.rules if rule.depends_on_rounds]
        if (schedule := training.schedule) is not None:
            short, long = (rates(schedule, training.schedule_args, 1.0, n) for n in (had, rounds))
            bound += [] if long[:had] == short else [f"training.schedule {schedule}"]
        why = [f"{name} depends on the number of rounds from the first one on" for name in bound]
        if job.setting.experiment.evaluation.report == "best":
            metric, there = first_metric(folder.read_environment()), dict(checkpoints.rounds(place))
            kept = _without_ends(metrics.read(place / "metrics.jsonl"), job, rounds)
            best = best_round(validation(kept, metric), max(there, default=0), metric)
            lost = f"round {best}, the best of {_named(job.key)} that it would score, was not kept"
            why += [lost] if best and best not in there else []
        for text in why:
            raise ConfigError(f"--rounds: {text}: this run cannot grow; start a new one")


def forget_ends(folder: RunFolder, todo: Iterable[Job]) -> None:
    """Drop scores that a job has only because a round was to be its last, before it grew."""
    for job in todo:
        file = folder.job(*job.key) / "metrics.jsonl"
        rows = metrics.read(file)
        end = job.setting.experiment.training.total_rounds
        kept = _without_ends(rows, job, end)
        if len(kept) < len(rows):
            file.with_name(STOPPED).unlink(missing_ok=True)  # patience is asked again
        last = max((row["round"] for row in rows), default=0)
        if last < end and not file.with_name(STOPPED).exists():
            outcomes.forget(file.parent)
            kept = without_final(kept, job)
        if len(kept) < len(rows):
            write_atomically(file, _text(kept))


def without_final(rows: Rows, job: Job) -> Rows:
    """Leave out of a job's records what the evaluation of the reported round added."""
    always = job.setting.experiment.evaluation.statistics
    return [row for row in rows if row["statistics"] in always or row["metric"] in UNSCORED]


def _without_ends(rows: Rows, job: Job, end: int) -> Rows:
    """Leave out of a job's records what it has for another last round than this one."""
    every = job.setting.experiment.evaluation.every
    clients = len({r["client"] for r in rows})  # all, where a round was the last
    everyone = scores_all(job.setting.experiment, clients)
    scored = {
        (r["round"], r["client"])
        for r in rows
        if r["round"] == end or (not r["round"] % every and (everyone or r["metric"] in UNSCORED))
    }
    return [r for r in rows if r["metric"] in UNSCORED or (r["round"], r["client"]) in scored]


def check_checkpoints(folder: RunFolder) -> None:
    """Refuse to train in a folder that has numbers and nothing to go on from."""
    if not (folder.path / "checkpoints").exists() and metrics.read(folder.metrics):
        raise ConfigError(
            f"{folder.path}: records without checkpoints: nothing to go on from; `fedbn merge`, "
            "`compare` and `reproduce --from` take it as it is"
        )


@dataclass(frozen=True)
class Part:
    """One run, read: its configuration, what it was begun with and the records of its jobs."""

    folder: RunFolder
    experiment: Experiment
    environment: Mapping[str, Any]
    jobs: Mapping[Key, Rows]

    @classmethod
    def read(cls, folder: RunFolder) -> Part:
        """Read a run folder, with checkpoints or without."""
        if not folder.config.is_file():
            raise ConfigError(f"{folder.path}: no run here (no config.toml)")
        found: dict[Key, Rows] = {}
        for row in metrics.read(folder.metrics):
            found.setdefault((row["method"], row["setting"], row["seed"]), []).append(row)
        return cls(folder, held_experiment(folder), folder.read_environment(), found)

    def outcomes(self) -> dict[Key, dict[tuple[str, str, str], NDArray[np.uint8]]]:
        """Read which test samples each job's models classify correctly, as far as it is recorded.

        They are by statistics, client and domain.
        """
        read = {key: outcomes.read(self.folder.job(*key)) for key in self.jobs}
        return {key: {place: t.numpy() for place, t in own.items()} for key, own in read.items()}

    def data(self) -> dict[str, dict[str, str]]:
        """Return the hashes of clients' data in each setting."""
        recorded, marks = self.environment.get("data", {}), _marks(self.experiment)
        found = {}
        for name in dict.fromkeys(setting for _, setting, _ in self.jobs):
            mark = marks.get(name, "")
            found[name] = {k.removesuffix(mark): v for k, v in recorded.items() if k.endswith(mark)}
        return found

    @property
    def unfinished(self) -> list[str]:
        """Name the jobs that have not ended; what a merged run never had is none of them."""
        found, metric = [], first_metric(self.environment)
        for key, (_, setting) in named_jobs(self.experiment).items():
            training, rows = setting.experiment.training, self.jobs.get(key, ())
            rounds, done = training.total_rounds, max((row["round"] for row in rows), default=0)
            over = done >= rounds or early_stop(validation(rows, metric), training.patience, metric)
            if not over and (done or "merged" not in self.environment):
                found.append(f"{_named(key)}, round {done} of {rounds}")
        return found


@dataclass(frozen=True)
class Merged:
    """Runs, put together."""

    parts: Sequence[Part]  # the runs
    raw: Raw  # the configuration of the whole
    homes: Mapping[Key, Part]  # in the order of the whole's jobs: the run that has a job
    absent: tuple[str, ...]  # jobs of the whole that no run has
    remarks: tuple[str, ...]  # what else must be said
    facts: Mapping[str, Any]  # of the data, as one run would have recorded them

    @property
    def records(self) -> Rows:
        """The records of all jobs, in the order in which one run would have written them."""
        return [row for key, part in self.homes.items() for row in part.jobs[key]]


def put_together(folders: Sequence[RunFolder]) -> Merged:
    """Read runs as one: they may differ in methods, seeds and swept values, and in nothing else."""
    first, *others = parts = [Part.read(folder) for folder in folders]
    remarks = [text for other in others for text in _same(first, other)]
    raw = first.folder.read_request()
    for key in ("methods", "seeds"):
        raw = placed(raw, key, _union(getattr(part.experiment, key) for part in parts))
    swept = [dict(flat(part.experiment.sweep)) for part in parts]
    for key in swept[0]:
        raw = placed(raw, f"sweep.{key}", _union(values[key] for values in swept))
    experiment = checked(raw, str(first.folder.path), held_by(first.folder))
    whole, marks = named_jobs(experiment), _marks(experiment)
    data = _data(parts, marks)
    homes = {key: _home(key, parts) for key in whole if any(key in part.jobs for part in parts)}
    absent = tuple(_named(key) for key in whole if key not in homes)
    inputs = {
        key[1] if marks.get(key[1]) else EVERY: facts
        for key, part in homes.items()
        if (facts := facts_for(part.environment.get("inputs", {}), key[1]))
    }
    facts = {"data": data, "inputs": inputs}
    return Merged(parts, raw, homes, absent, tuple(dict.fromkeys(remarks)), facts)


def merge(folders: Sequence[RunFolder], out: RunFolder) -> Merged:
    """Put runs together in a new folder, once all of their jobs have ended."""
    if out.path.resolve() in [folder.path.resolve() for folder in folders]:
        raise ConfigError(f"--out {out.path} is one of the runs to merge; choose another folder")
    out.check_empty()
    found = put_together(folders)
    for part in found.parts:
        if left := "; ".join(part.unfinished):
            name = part.folder.path
            raise ConfigError(f"{name}: not finished: {left}; `fedbn resume {name}` first")
    hidden = out.path.with_name(f".{out.path.name}.tmp")
    try:
        with explained(out.path, ConfigError):
            shutil.rmtree(hidden, ignore_errors=True)
            hidden.mkdir(parents=True)
            _fill(RunFolder(hidden), found)
            if out.path.exists():
                out.path.rmdir()
            hidden.rename(out.path)
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
    return found


def _fill(folder: RunFolder, found: Merged) -> None:
    for key, part in found.homes.items():
        source, place = part.folder.job(*key), folder.job(*key)
        if checkpoints.rounds(source):
            shutil.copytree(source, place)
        else:
            place.mkdir(parents=True)
            write_atomically(place / "metrics.jsonl", _text(part.jobs[key]))
            write_atomically(place / RECORDS_ALONE, b"")
    write_atomically(folder.metrics, _text(found.records))
    stored = [one for part in found.parts for one in read_warnings(part.folder)]
    MessageStore(folder).extend(stored)
    first = found.parts[0].environment
    environment = {**first, **found.facts, "config": found.raw, "seeds": found.raw["seeds"]}
    environment["merged"] = [
        {
            "run": str(part.folder.path),
            "jobs": [_named(key) for key, home in found.homes.items() if home is part],
            "versions": part.environment.get("versions", {}),
        }
        for part in found.parts
    ]
    folder.commit(found.raw, environment)


def _same(first: Part, other: Part) -> Iterator[str]:
    """Refuse a run that was asked for something else; say what else differs."""
    names = f"{first.folder.path} and {other.folder.path}"
    one, two = (part.experiment.model_dump(exclude=_APART) for part in (first, other))
    swept = [{f"sweep.{k}" for k, _ in flat(part.experiment.sweep)} for part in (first, other)]
    # Whether all jobs have as many rounds: a run that grew says them otherwise.
    both = [*settings(first.experiment), *settings(other.experiment)]
    varied = "local_epochs" in first.experiment.sweep.get("training", {})
    alike = not varied and len({one.experiment.training.total_rounds for one in both}) == 1
    free = _FREE | (_LENGTH if alike else set())
    if differ := sorted((swept[0] ^ swept[1]) | ({*changed_keys(one, two)} - free)):
        raise ConfigError(f"{names} are not one experiment: {', '.join(differ)} differ")
    weights = [sorted(part.environment.get("weights", {}).values()) for part in (first, other)]
    if weights[0] != weights[1]:
        raise ConfigError(f"{names} did not start from the same model.weights")
    if differ := changed_keys(*(p.environment.get("versions", {}) for p in (first, other))):
        yield f"{names} were trained with other versions: {', '.join(differ)}"


def _marks(experiment: Experiment) -> dict[str, str]:
    """What marks the clients of each setting's data in `environment.json`."""
    sections = {one.name: one.experiment.data.model_dump_json() for one in settings(experiment)}
    marks = data_marks(sections.values())
    return {name: marks[section] for name, section in sections.items()}


def _data(parts: Sequence[Part], marks: Mapping[str, str]) -> dict[str, Any]:
    """Unite the hashes of clients' data; refuse runs that differ in those of one setting."""
    homes: dict[str, tuple[Part, dict[str, Any]]] = {}
    for part in parts:
        recorded, here = part.environment.get("data", {}), _marks(part.experiment)
        for old, new in {mark: marks[name] for name, mark in here.items() if name in marks}.items():
            own = {k.removesuffix(old): v for k, v in recorded.items() if k.endswith(old)}
            if old and not own:  # a merged run, and none of its runs had this data
                continue
            home, known = homes.setdefault(new, (part, own))
            if differ := ", ".join(changed_keys(known, own)):
                names = f"{home.folder.path} and {part.folder.path}"
                raise DataError(f"{names} were not trained on the same data: client {differ}")
    return {f"{c}{mark}": h for mark, (_, own) in homes.items() for c, h in own.items()}


def _home(key: Key, parts: Iterable[Part]) -> Part:
    """The run that has a job; of several the first with checkpoints, where all say the same."""
    having = [part for part in parts if key in part.jobs]
    for other in having[1:]:
        if other.jobs[key] != having[0].jobs[key]:
            both = f"{having[0].folder.path} and {other.folder.path}"
            raise ConfigError(f"{both} both have {_named(key)}, with different numbers")
    return next((p for p in having if checkpoints.rounds(p.folder.job(*key))), having[0])


def _union(lists: Iterable[Sequence[Any]]) -> list[Any]:
    found: list[Any] = []
    for values in lists:
        found += [value for value in values if value not in found]
    return found


def _named(key: Key) -> str:
    method, setting, seed = key
    return f"{method} seed {seed}" if setting == "default" else f"{method} {setting} seed {seed}"


def _text(rows: Rows) -> bytes:
    return "".join(map(metrics.line, rows)).encode()


def told(found: Merged) -> str:
    """Say in a line what was put together."""
    names = ", ".join(found.absent)
    more = f"; in none of them: {names} (`fedbn resume` would train them)" if names else ""
    return f"{counted(len(found.homes), 'job')} of {counted(len(found.parts), 'run')}{more}"
