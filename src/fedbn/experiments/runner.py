"""The run: one loop over jobs and rounds for every engine, and the one place that writes them down.

A run tells events; who writes, shows or tracks it listens. It goes on where it stopped.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from fedbn import fast
from fedbn.core.baseline_engine import BaselineEngine
from fedbn.core.best_round import Validation, best_round, early_stop, validation
from fedbn.core.engine import EmbeddedEngine, Engine, Round, RoundCost, cores
from fedbn.core.findings import Detail
from fedbn.core.metric import ACCURACY, Metric, first_metric
from fedbn.core.plan import Plan
from fedbn.core.rounds import Record, RunState
from fedbn.core.statistics_kinds import StatisticsKind
from fedbn.errors import DamagedRun, Interrupted
from fedbn.experiments.environment import embedded_facts, environment_of, same_run
from fedbn.experiments.jobs import Ahead, Event, Job, Key, Listener, jobs, to_all
from fedbn.experiments.merging import UNSCORED, forget_ends
from fedbn.experiments.planner import Planner, device_of, resolved, training_of
from fedbn.experiments.process_pool import affordable, run_side_by_side
from fedbn.experiments.run_log import RunLog
from fedbn.experiments.schema import Experiment
from fedbn.experiments.splits import write_splits
from fedbn.runs import checkpoints, metrics, outcomes
from fedbn.runs.folder import (
    STOPPED,
    RunFolder,
    explained,
    to_json,
    without_checkpoints,
    write_atomically,
)
from fedbn.runs.messages import Level

Note = Callable[[str], None]


@dataclass(frozen=True)
class Run:
    """What the jobs of a run have in common."""

    folder: RunFolder  # where they are written
    # makes a job's engine, and is given who hears its remarks
    make_engine: Callable[[Job, Note], Engine]
    listener: Listener  # hears how it goes
    # asked after each round; True ends the run with its state saved
    stop: Callable[[], bool] = lambda: False
    # what a round of a job takes, beside other jobs'
    work: Callable[[Job], float] = lambda job: 1.0
    workers: int = 1  # how many jobs run side by side at most, in processes of their own
    late_scores: bool = False  # whether a round's scores come with the next one's answers
    # whether jobs may run in processes of their own, which read the folder alone
    apart: bool = True
    # moves the data of jobs to memory that processes share, and gives its descriptor
    share: Callable[[Sequence[Job]], int | None] = lambda jobs: None
    writers: dict[Key, Writer] = field(default_factory=dict)  # who writes each job down

    def writer(self, job: Job) -> Writer:
        """Who writes a job down."""
        if job.key not in self.writers:
            experiment = job.setting.experiment
            # Sites keep their BatchNorm of two rounds back, so the server may not be further back.
            every = 1 if self.late_scores else experiment.checkpoint.every
            place = self.folder.job(*job.key)
            best = None
            if experiment.evaluation.report == "best":  # once begun, the run knows its metric
                begun = self.folder.config.exists()
                best = first_metric(self.folder.read_environment()) if begun else ACCURACY
            self.writers[job.key] = Writer(
                place,
                best,
                self.late_scores,
                Pace(every),
                None if self.late_scores else tuple(experiment.evaluation.statistics),
                evaluates=experiment.evaluation.final_statistics != [] and not self.late_scores,
            )
        return self.writers[job.key]

    def save(self) -> None:
        """Put the last finished round of each job on disk, where it is not there yet."""
        for writer in self.writers.values():
            writer.save()


_SECONDS, _SHARE = 10.0, 20.0


class Pace:
    """When the next checkpoint is due: after so many rounds, or as 5 % of the time allow.

    Then it is every ten seconds of work or, where a checkpoint takes more than half a second,
    after twenty times what the last one took.
    """

    def __init__(self, every: int | str = "auto", now: Callable[[], float] = time.monotonic):
        self._every, self._now = every, now
        self._wait = _SECONDS
        self._since = now()

    def due(self, round: int) -> bool:
        """Tell whether a round is put on disk now."""
        if isinstance(self._every, int):
            return round % self._every == 0
        return self._now() - self._since >= self._wait

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Take the time that a checkpoint takes."""
        begun = self._now()
        yield
        self._since = self._now()
        self._wait = max(_SECONDS, _SHARE * (self._since - begun))


class Writer:
    """A listener that puts a job's rounds on disk: their numbers each round, their state at a pace.

    What is not on disk yet is put there as a job ends, however it ends; `save` may be called from
    another thread. The best round by `best_by` is kept too; with `late_scores` a round's come with
    the next one's answers. A job that `evaluates` has ended when its reported round was evaluated;
    only records with these `statistics` belong to its rounds, all others to that evaluation.
    """

    def __init__(
        self,
        place: Path,
        best_by: Metric | None = None,
        late_scores: bool = False,
        pace: Pace | None = None,
        statistics: tuple[StatisticsKind, ...] | None = None,
        evaluates: bool = False,
    ):
        self._place, self._late = place, late_scores
        self._statistics, self._evaluates = statistics, evaluates
        self._metrics, self._costs = place / "metrics.jsonl", place / "rounds.jsonl"
        self._best = best_by
        self._scores: Validation = {}
        self._pace = pace or Pace()
        self._start: RunState | None = None
        self._saved = 0  # the newest round on disk
        self._unsaved: dict[int, tuple[RunState, dict[str, Any]]] = {}  # the best and the last
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        """Write a round down, or what is left to say at a job's end."""
        if event.kind in ("stopped", "done"):  # the state before what says that it is the last
            self.save()
        if event.gave is None:
            return
        with self._lock:
            self._take(event, event.gave)
        if event.round == event.rounds or self._pace.due(event.round):
            self.save()

    def _take(self, event: Event, gave: Round) -> None:
        if event.lines:
            metrics.append(self._metrics, event.lines.encode(), wait=event.kind == "done")
        if self._best:
            self._best = event.judged_by
            self._scores |= validation(event.records, self._best)
        if gave.cost is not None:
            metrics.append(self._costs, (json.dumps(asdict(gave.cost)) + "\n").encode())
        for name, content in gave.files.items():
            write_atomically(self._place / name, content)
        if gave.final is not None:
            outcomes.write(self._place, gave.final)
        if event.kind == "round":
            method, setting, seed = event.job
            facts = {"method": method, "setting": setting, "seed": seed, **gave.facts}
            best = self._best_round(event.round)
            kept = {number: one for number, one in self._unsaved.items() if number == best}
            self._unsaved = {**kept, event.round: (gave.state, facts)}

    def save(self) -> None:
        """Put the last finished round on disk, and the best one, where they are not there yet."""
        with self._lock:
            if not self._unsaved:
                return
            with self._pace.writing():
                metrics.append(self._metrics, b"")  # numbers before the state
                for state, facts in self._unsaved.values():
                    checkpoints.save(
                        self._place, state, facts, best=self._best_round, start=self._start
                    )
                    self._saved = state.round
            self._unsaved = {}  # not before: a signal may end the writing

    def resume(self, engine: Engine) -> tuple[RunState, list[str]]:
        """Find the state to go on from, and what was damaged of newer ones."""
        with explained(self._place):
            self._place.mkdir(parents=True, exist_ok=True)
        self._start = engine.initial()
        if not engine.repeatable:  # a round that is lost would not come again
            self._pace = Pace(1)
        state, damaged = checkpoints.newest(self._place, self._start)
        self.trim(state.round if state else 0)
        if state is None:
            return self._start, damaged
        place = checkpoints.place_of(self._place, state.round)
        engine.resume(state.round, checkpoints.read_manifest(place))
        return state, damaged

    def continued(self, state: RunState) -> RunState:
        """Return the state to go on from: once saved, large local states are read from disk."""
        if self._start is None or state.round != self._saved:
            return state
        return checkpoints.read_from_disk(state, self._place, self._start)

    def reported(self, state: RunState) -> RunState:
        """Return the state of the round that is reported, at the end of a job's rounds."""
        with self._lock:
            best = self._best_round(state.round) if self._best else 0
            if best in (0, state.round):
                return state
            if best in self._unsaved:
                return self._unsaved[best][0]
            assert self._start is not None
            return checkpoints.load(checkpoints.place_of(self._place, best), self._start)

    def done(self) -> int:
        """Count the rounds that are safely on disk."""
        if without_checkpoints(self._place):
            return max(int(record["round"]) for record in self.records())
        return checkpoints.whole_round(self._place)

    def finished(self, done: int, rounds: int) -> bool:
        """Tell whether all rounds are done, and scored; or those that patience left."""
        if without_checkpoints(self._place):
            return True
        if self._evaluates and not outcomes.evaluated(self._place):
            return False
        if (self._place / STOPPED).exists():
            return True
        if done < rounds or not self._late:
            return done >= rounds
        return any(r["round"] == rounds and r["metric"] not in UNSCORED for r in self.records())

    def records(self) -> list[dict[str, Any]]:
        """Read what earlier processes wrote."""
        return metrics.read(self._metrics)

    def trim(self, done: int, finished: bool = False) -> None:
        """Drop what a kill left beside the rounds that are done: it comes again."""
        metrics.keep_until(self._metrics, done)
        kept = self.records() if self._best or self._late else []
        self._scores = validation(kept, self._best) if self._best else {}
        checkpoints.forget_before(self._place, done, best=self._best_round)
        if self._evaluates and not finished and self._metrics.exists():  # it is done again
            own = [r for r in self.records() if r["statistics"] in (self._statistics or ())]
            write_atomically(self._metrics, "".join(map(metrics.line, own)).encode())
        if self._late and not finished:  # the scores of the last round come again too
            metrics.keep_until(self._costs, done, TypeAdapter(RoundCost))
            own = [r for r in kept if r["round"] < done or r["metric"] in UNSCORED]
            if self._metrics.exists():
                write_atomically(self._metrics, "".join(map(metrics.line, own)).encode())

    def _best_round(self, until: int) -> int:
        return best_round(self._scores, until, self._best or ACCURACY)


class Memory:
    """A listener that keeps the numbers of one job, and its state: the last, or the best so far."""

    def __init__(self, keep_best: bool = False):
        self.records: list[Record] = []
        self.state: RunState | None = None
        self._best = keep_best
        self._scores: Validation = {}

    def __call__(self, event: Event) -> None:
        """Keep a round's numbers, and its state where it counts."""
        if event.gave is None:
            return
        self.records += event.gave.records
        metric = event.judged_by
        self._scores |= validation(event.records, metric)
        if not self._best or best_round(self._scores, metric=metric) in (0, event.round):
            self.state = event.gave.state

    def reported(self, state: RunState) -> RunState:
        """Return the state of the round that is reported, at the end of a job's rounds."""
        return self.state or state


@dataclass(frozen=True)
class Reached:
    """How far a job has come."""

    state: RunState  # what it gives: the state of its newest round, or of its best
    round: int  # its newest round
    damaged: tuple[str, ...]  # what was damaged of newer ones


def reached(job: Job, folder: RunFolder, like: RunState) -> Reached | None:
    """Find the state that a job gives: the newest, or the best where `evaluation.report` says so.

    None where no round was ever finished; damage where no checkpoint is whole, or not the best one.
    """
    place = folder.job(*job.key)
    state, damaged = checkpoints.newest(place, like, lazy=True)
    if state is None:
        return None
    done = best = state.round
    if job.setting.experiment.evaluation.report == "best":
        # At a site of a federation the best round is the one by all sites' scores.
        told = checkpoints.read_manifest(checkpoints.place_of(place, done)).get("best")
        metric = first_metric(folder.read_environment())
        scores = validation(metrics.read(place / "metrics.jsonl"), metric)
        best = told or best_round(scores, done, metric) or done
    if best != done:
        try:
            state = checkpoints.load(checkpoints.place_of(place, best), like)
        except DamagedRun as error:
            raise DamagedRun(f"{error}; it is the best round, which the run reports") from error
    return Reached(state, done, tuple(damaged))


def rounds_of(
    engine: Engine,
    key: Key,
    start: RunState,
    tell: Listener,
    stop: Callable[[], bool],
    earlier: Iterable[Mapping[str, Any]] = (),
    reported: Callable[[RunState], RunState] = lambda state: state,
    continued: Callable[[RunState], RunState] = lambda state: state,
) -> RunState:
    """Do a job's rounds from a state on, to its end or the end of its patience.

    It comes after the rounds of `earlier` records; `stop` is asked after each. `reported` returns
    the state of the round that the job reports, given the last state. `continued` returns the state
    to go on from after a round; it may lie on disk.
    """
    state, rounds = start, engine.plan.training.rounds
    patience, measured = engine.plan.training.patience, engine.plan.task.metrics
    metric, judged = (measured[0], measured[0].facts()) if measured else (ACCURACY, {})
    scores = validation(earlier, metric)
    for text in engine.notes:
        level: Level = "debug" if isinstance(text, Detail) else "warning"
        tell(Event("note", key, text=text, level=level))
    try:
        while not (early := early_stop(scores, patience, metric)) and state.round < rounds:
            gave = engine.round(state)
            state = gave.state
            scores |= validation(map(vars, gave.records), metric)
            _tell(Event("round", key, state.round, rounds, metric=judged, gave=gave), tell)
            state = continued(state)
            if stop() and state.round < rounds:
                raise Interrupted(f"stopped after round {state.round} of {rounds}")
    except BaseException:
        tell(Event("stopped", key, state.round, rounds))
        raise
    gave = engine.finish(state, reported(state), early)
    if early:
        text = (
            f"stopped after round {early.round}: no better validation {metric.words} than round "
            f"{early.best}'s for {patience} rounds; round {early.best} is the result"
        )
        files = {**gave.files, STOPPED: to_json({**asdict(early), "why": text})}
        gave = replace(gave, notes=[*gave.notes, text], files=files)
        rounds = state.round
    _tell(Event("done", key, state.round, rounds, metric=judged, gave=gave), tell)
    return state


def _tell(event: Event, tell: Listener) -> None:
    assert event.gave is not None
    for text in event.gave.notes:
        tell(Event("note", event.job, text=text))
    tell(replace(event, records=[{**vars(record)} for record in event.gave.records]))


def run_plan(
    plan: Plan,
    *listeners: Listener,
    start: RunState | None = None,
    workers: int = 0,
    stop: Callable[[], bool] = lambda: False,
    reported: Callable[[RunState], RunState] = lambda state: state,
) -> RunState:
    """Run a plan, or go on from the state `start`, to its last round in this process.

    `workers` are the cores to use, 0 for all; where `stop` says so after a round, it is
    `Interrupted`. `reported` is as for `rounds_of`.
    """
    key = (plan.method.name, plan.setting, plan.seed)
    with closing(engine_for(plan, workers)) as engine:
        begin = start or engine.initial()
        return rounds_of(engine, key, begin, to_all(*listeners), stop, reported=reported)


def execute(job: Job, run: Run) -> None:
    """Run a job, or the rest of it, writing into the run folder."""

    def note(text: str) -> None:
        run.listener(Event("note", job.key, text=text))

    writer = run.writer(job)
    with closing(run.make_engine(job, note)) as engine:
        start, damaged = writer.resume(engine)
        for text in damaged:
            note(f"{text}; going on from the one before it")
        known = writer.records() if engine.plan.training.patience else ()
        tell = to_all(writer, run.listener)
        at = {"reported": writer.reported, "continued": writer.continued}
        rounds_of(engine, job.key, start, tell, run.stop, known, **at)


def prepare(experiment: Experiment, planner: Planner) -> list[Job]:
    """Check everything that can be checked before training: every job's plan, for one seed."""
    found = jobs(experiment)
    seen = set()
    for job in found:
        if job.key[:2] not in seen:
            seen.add(job.key[:2])
            planner.plan(job).check_metrics()
    return found


def start(
    experiment: Experiment,
    todo: list[Job],
    planner: Planner,
    folder: RunFolder,
    listener: Listener,
    *,
    workers: int = 0,
    stop: Callable[[], bool] = lambda: False,
    apart: bool = True,
    grows: bool = False,
) -> bool:
    """Begin or continue a run in this process and its worker processes; False: nothing was left.

    The jobs were checked by `prepare`; the folder holds the request (`RunFolder.begin`) or an
    earlier part of the run, to which seeds, methods or rounds are added where it `grows`. `workers`
    are cores, 0 for what the configuration says. Processes of their own (`apart`) know no objects
    of this one.
    """
    config = resolved(experiment, planner.federation(todo[0].setting.experiment))
    config["training"]["device"] = device_of(experiment.training)  # what `auto` is here
    facts = embedded_facts(todo, planner)
    if (modules := folder.modules()) is not None:
        facts["modules"] = str(modules)
    begun = environment_of(config, todo, folder.directory(), **facts)
    notes = same_run(folder, begun, grows=grows)
    write_splits(folder, todo, planner)
    forget_ends(folder, todo)
    listener = to_all(RunLog(folder, experiment.checkpoint.every), listener)
    for text in [*planner.warnings, *notes]:
        level = planner.level(text)
        listener(Event("note", todo[0].key, text=text, whole=True, level=level))
    count = workers or experiment.workers or cores()
    maker = partial(embedded_job, planner=planner, workers=count)
    costs = partial(work, planner=planner)
    run = Run(folder, maker, listener, stop, costs, count, apart=apart, share=planner.shared)
    return run_jobs(todo, run)


def embedded_job(job: Job, note: Note, planner: Planner, workers: int) -> Engine:
    """Make the engine of a job in this process; the planner has its remarks."""
    return engine_for(planner.plan(job), workers)


def engine_for(plan: Plan, workers: int = 0) -> EmbeddedEngine | BaselineEngine:
    """Make the engine of a plan in this process, on so many cores (0 for all)."""
    if plan.method.baseline is not None:
        return BaselineEngine(plan)
    return EmbeddedEngine(plan, partial(fast.make_crew, workers=workers))


def run_jobs(todo: Sequence[Job], run: Run) -> bool:
    """Run what is left of the jobs, side by side where that is faster."""
    writers = {job.key: run.writer(job) for job in todo}
    done = {key: writer.done() for key, writer in writers.items()}
    lengths = {job.key: job.setting.experiment.training.total_rounds for job in todo}
    over = {key for key, one in writers.items() if one.finished(done[key], lengths[key])}
    left = [job for job in todo if job.key not in over]
    costs = {job.key: run.work(job) for job in left}
    left.sort(key=lambda job: -costs[job.key] * (lengths[job.key] - done[job.key]))  # longest first
    alone = run.workers == 1  # as at a federation's server, which has no sites' GPU
    on_cpu = alone or all(device_of(job.setting.experiment.training) == "cpu" for job in left)
    beside = min(run.workers, len(left)) if on_cpu and run.apart else 1
    data = run.share(left) if beside > 1 else None
    beside = affordable(beside)
    ahead = [Ahead(j.key, lengths[j.key] - done[j.key], costs[j.key]) for j in left]
    so_far = sum(done.values())
    whole_length = sum(done[key] if key in over else n for key, n in lengths.items())
    run.listener(Event("begin", todo[0].key, so_far, whole_length, ahead=ahead, beside=beside))
    for key, writer in writers.items():
        writer.trim(done[key], key in over)
    tell = to_all(Assembly(run.folder.metrics, [*writers]), run.listener)
    for key, writer in writers.items():
        known = writer.records()
        tell(Event("earlier", key, done[key], lengths[key], records=known, over=key in over))
    run = replace(run, listener=tell)
    try:
        if beside > 1:
            each = run.workers // beside
            what = "one core" if each == 1 else f"{each} cores"
            text = f"{len(left)} runs, {beside} side by side, {what} each"
            tell(Event("note", left[0].key, text=text, whole=True, level="info"))
            run_side_by_side(left, run.folder, tell, [each] * beside, run.stop, data)
        else:
            for job in left:
                if run.stop():
                    raise Interrupted("stopped between two jobs")
                execute(job, run)
    finally:
        if data is not None:
            os.close(data)
    return bool(left)


def work(job: Job, planner: Planner) -> float:
    """Count the samples that pass the model in a round; without gradients one costs a third."""
    if job.method.baseline is not None:
        return 0.0
    experiment = job.setting.experiment
    training = training_of(experiment.training)
    clients = planner.federation(experiment).clients
    largest = max(len(client.train) for client in clients)
    passed = 0.0
    for client in clients:
        size = min(training.batch_size or largest, len(client.train))
        passed += training.participation * training.steps(len(client.train), largest) * size
        passed += sum(map(len, client.tests.values())) / 3 / experiment.evaluation.every
    return passed


class Assembly:
    """A listener that grows the run's `metrics.jsonl` in the order of the jobs, whoever is first.

    What arrives out of turn waits in memory.
    """

    def __init__(self, file: Path, order: Sequence[Key]):
        self._file = file
        self._waiting: dict[Key, list[str]] = {key: [] for key in order}
        self._finished: set[Key] = set()
        write_atomically(file, b"")

    def __call__(self, event: Event) -> None:
        """Take the numbers of a job."""
        if event.kind not in ("earlier", "round", "done"):
            return
        self._waiting[event.job].append(event.lines)
        if event.over or event.kind == "done":
            self._finished.add(event.job)
        while self._waiting:
            key, lines = next(iter(self._waiting.items()))
            if lines:
                metrics.append(self._file, "".join(lines).encode(), wait=event.kind == "done")
                lines.clear()
            if key not in self._finished:
                return
            del self._waiting[key]
