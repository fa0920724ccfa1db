"""The server's side: all jobs of an experiment, one after another, into a run folder."""

from __future__ import annotations

import logging
import platform
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context
from flwr.serverapp import Grid as FlowerGrid
from flwr.serverapp import ServerApp

from fedbn._version import __version__
from fedbn.core.plan import Plan, remarks
from fedbn.core.rounds import RunState
from fedbn.engines.flower.cost import RoundCost
from fedbn.engines.flower.engine import Conductor
from fedbn.engines.flower.jobs import check_job, order_of, weights_hash
from fedbn.engines.flower.post import Grid, Limits
from fedbn.engines.flower.recording import Journal
from fedbn.engines.flower.roster import Expected, muster
from fedbn.engines.flower.site import one_thread
from fedbn.errors import Interrupted
from fedbn.experiments import catalogue
from fedbn.experiments.events import Event, Listener, Reporter
from fedbn.experiments.loading import checked, read_toml, with_settings
from fedbn.experiments.plans import resolved
from fedbn.experiments.runner import Assembly
from fedbn.experiments.sameness import differences
from fedbn.experiments.schema import Experiment
from fedbn.experiments.settings import Job, jobs
from fedbn.runs.folder import RunFolder

log = logging.getLogger("flwr")  # what the server app's process shows


@dataclass(frozen=True)
class Service:
    """All that the server needs to run an experiment.

    Attributes:
        federation: The federation's identity.
        expected: Which sites there are; asked again before each round.
        folder: The run folder.
        listener: Hears how it goes.
        costs: Hears what each round took.
        limits: How long to wait.
        stop: Asked after each round; True ends the run with its state saved.
    """

    federation: str
    expected: Callable[[], Expected]
    folder: RunFolder
    listener: Listener = lambda event: None
    costs: Callable[[Plan, RoundCost], None] = lambda plan, cost: None
    limits: Limits = field(default_factory=Limits)
    stop: Callable[[], bool] = lambda: False


def serve(grid: Grid, experiment: Experiment, service: Service) -> None:
    """Run an experiment, or what is left of it."""
    one_thread()
    todo = jobs(experiment)
    for job in todo:
        check_job(job)
    left = [job for job in todo if not _finished(job, service.folder)]
    for job in left:
        Journal(service.folder.job(*job.key)).trim()
    done = {job.key for job in todo} - {job.key for job in left}
    assembly = Assembly(service.folder, todo, done)

    def tell(event: Event) -> None:
        service.listener(event)
        assembly.hear(event)

    for job in left:
        _run_job(grid, job, experiment, service, tell)


def _finished(job: Job, folder: RunFolder) -> bool:
    rounds = job.setting.experiment.training.total_rounds
    return Journal(folder.job(*job.key)).finished(rounds)


def _run_job(
    grid: Grid, job: Job, experiment: Experiment, service: Service, tell: Listener
) -> None:
    def note(text: str) -> None:
        tell(Event("note", job.key, text=text))

    order = order_of(job, service.federation, service.folder.path.name)
    roster = muster(grid, service.expected(), order, service.limits, note)
    conductor = Conductor(grid, job, order, service.expected, roster, service.limits, note)
    for text in [*_commit(experiment, job, conductor, service.folder), *remarks(conductor.plan)]:
        note(text)
    journal = Journal(service.folder.job(*job.key))
    start, known, damaged = journal.resume(conductor.initial())
    conductor.remember(known)
    for text in damaged:
        note(f"{text}; going on from the one before it")
    state = _rounds(conductor, journal, start or conductor.initial(), job, service, tell)
    if not journal.scored(state.round):
        journal.add(conductor.finish(state))
    if conductor.affine:
        file = journal.release(conductor.affine)
        note(f"{', '.join(conductor.affine)} released BatchNorm affine; the mean is {file.name}")
    tell(Event("done", job.key, state.round, conductor.plan.training.rounds))


def _rounds(
    conductor: Conductor,
    journal: Journal,
    state: RunState,
    job: Job,
    service: Service,
    tell: Listener,
) -> RunState:
    reporter = Reporter(job, tell)
    rounds = conductor.plan.training.rounds
    tell(Event("begin", job.key, state.round, rounds))
    while state.round < rounds:
        state, own = conductor.round(state)
        records = [*conductor.scores, *own]
        cost = conductor.cost
        journal.round_done(conductor.plan, state, records, cost, conductor.known())
        service.costs(conductor.plan, cost)
        reporter.round_done(conductor.plan, state, records)
        if service.stop() and state.round < rounds:
            raise Interrupted(f"stopped after round {state.round} of {rounds}")
    return state


def _commit(experiment: Experiment, job: Job, conductor: Conductor, folder: RunFolder) -> list[str]:
    """Write the configuration, or refuse one that is not the run's any more; gives remarks."""
    now = _environment(experiment, job, conductor)
    if not folder.config.exists():
        folder.commit(now["config"], now)
        return []
    before = folder.read_environment()
    # Sites come and go; the data of those that are here must be what it was.
    both = before.get("data", {}).keys() & now["data"].keys()
    alike = [{**e, "data": {n: e["data"][n] for n in sorted(both)}} for e in (before, now)]
    return differences(*alike)


def _environment(experiment: Experiment, job: Job, conductor: Conductor) -> dict[str, Any]:
    config = resolved(experiment, conductor.plan.federation)
    weights = job.setting.experiment.model.weights
    return {
        "config": config,
        "data": {name: member.model_dump() for name, member in conductor.members.items()},
        "directory": str(Path.cwd()),
        "engine": "flower",
        "seeds": config["seeds"],
        "versions": {
            "fedbn": __version__,
            "python": platform.python_version(),
            "torch": str(torch.__version__),
        },
        "weights": {str(weights): weights_hash(job)} if weights else {},
    }


def make_app() -> ServerApp:
    """Make the app that `flwr run` loads; the run's configuration says what to run."""
    app = ServerApp()

    @app.main()
    def main(grid: FlowerGrid, context: Context) -> None:
        config = context.run_config
        file = catalogue.find(str(config["experiment"])) if config.get("experiment") else None
        raw = read_toml(file) if file else {}
        raw = with_settings(raw, [s for s in str(config.get("set") or "").split(";") if s.strip()])
        experiment = checked(raw, str(file or "configuration"))
        folder = RunFolder(Path(str(config.get("out") or "fedbn-run")).resolve())
        if not folder.config.exists():
            folder.begin(raw)
        expected = Expected(least=int(config.get("sites") or 2))
        wait, deadline = float(config.get("wait") or 300), float(config.get("deadline") or 3600)
        limits = Limits(wait=wait, round=deadline)
        service = Service("flwr", lambda: expected, folder, log_event, limits=limits)
        with folder.locked():
            serve(grid, experiment, service)

    return app


def log_event(event: Event) -> None:
    """Say in the server's log how a run goes."""
    log.info("%s %s %d/%d %s", event.kind, event.job, event.round, event.rounds, event.text)
