"""A federation run: Flower's server up with the sites' keys, sites asked, the one runner.

`running` is a whole federation on this machine, for the demo: server, two sites, TLS and keys, on
the loopback only.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedbn import registry
from fedbn.core.plan import remarks
from fedbn.errors import ConfigError, FedbnError, NotApproved, TooFewClients
from fedbn.experiments import configuration
from fedbn.experiments.configuration import checked, read_toml, with_settings
from fedbn.experiments.data_survey import SiteReport, proposed
from fedbn.experiments.environment import environment_of, same_run
from fedbn.experiments.jobs import Event, Job, Listener, jobs, to_all
from fedbn.experiments.planner import resolved
from fedbn.experiments.run_log import RunLog
from fedbn.experiments.runner import Note, Run, run_jobs
from fedbn.experiments.schema import Experiment
from fedbn.flower import messages
from fedbn.flower.audit_log import AuditLog
from fedbn.flower.credentials import Request, fingerprint, read_authority
from fedbn.flower.federation_folder import FederationFolder
from fedbn.flower.internals_node import Child, free_port, listens, wait_until
from fedbn.flower.internals_server import Control, choose_operator_port, grid_of
from fedbn.flower.membership import Attendance, Expected
from fedbn.flower.messages import Order, Reported, check_job, order_of, report_order
from fedbn.flower.messaging import Limits
from fedbn.flower.policy import DEMO
from fedbn.flower.preflight import Finding
from fedbn.flower.server_engine import FlowerEngine
from fedbn.flower.site import one_thread
from fedbn.flower.site_app import trusted_in
from fedbn.flower.status_page import StatusPage
from fedbn.registry import Held
from fedbn.runs.folder import RunFolder, check_name

log = logging.getLogger("flwr")  # what the server app's process shows
_START_SECONDS = 60.0


def orders(experiment: Experiment, federation: str) -> list[Order]:
    """One question for each different model of an experiment; a sweep may have several."""
    todo = jobs(experiment)
    for job in todo:
        check_job(job)
    different = {job.setting.experiment.model.model_dump_json(): job for job in reversed(todo)}
    return [order_of(job, federation, "check") for job in reversed(different.values())]


def ask_sites(
    grid: Grid, questions: Sequence[Order], expected: Expected, log: AuditLog | None = None
) -> Iterator[Finding]:
    """Ask all sites that are connected; each answer is compared with the first one's."""
    for order in questions:
        here = Attendance(grid, order, lambda: expected, Limits(wait=120.0), log=log)
        here.greet()
        for site in expected.names:
            if site in here.hellos:
                yield True, here.hellos[site].text
            else:
                yield False, f"{site}: {here.absent.get(site, ('', 'not connected'))[1]}"


@dataclass(frozen=True)
class Service:
    """All that the server needs to run an experiment."""

    federation: str  # the federation's identity
    expected: Callable[[], Expected]  # which sites there are; asked again before each round
    folder: RunFolder  # the run folder
    listener: Listener = lambda event: None  # hears how it goes
    limits: Limits = field(default_factory=Limits)  # how long to wait
    # asked after each round; True ends the run with its state saved
    stop: Callable[[], bool] = lambda: False
    log: AuditLog = field(default_factory=AuditLog)  # the server's log
    # told how many bytes of states an answer may have, before any site is asked to train
    limit_answers: Callable[[int], None] = lambda size: None


def serve(grid: Grid, experiment: Experiment, service: Service) -> None:
    """Run an experiment, or what is left of it."""
    one_thread()
    todo = jobs(experiment)
    for job in todo:
        check_job(job)
    place = service.folder.path
    page = StatusPage(place / "status.html", f"server: run {place.name}")

    def engine(job: Job, note: Note) -> FlowerEngine:
        order = order_of(job, service.federation, place.name)
        here = Attendance(grid, order, service.expected, service.limits, note, service.log)
        here.muster()
        made = FlowerEngine(here, job, order, note)
        here.state_bytes = made.state_bytes()
        service.limit_answers(here.state_bytes)
        config = resolved(experiment, made.plan.federation)
        data = {name: member.model_dump() for name, member in made.members.items()}
        facts = {"data": data, "engine": "flower", "task": made.plan.task.facts()}
        found = environment_of(config, todo, Path.cwd(), **facts)
        notes = same_run(service.folder, found, come_and_go=True)
        for text in [*notes, *remarks(made.plan)]:
            note(text)
        return made

    listener = to_all(RunLog(service.folder), service.listener, page.hear)
    run_jobs(todo, Run(service.folder, engine, listener, service.stop, late_scores=True))


def make_app() -> ServerApp:
    """Make the app that `flwr run` loads; the run's configuration says what to run."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        config = context.run_config
        file = configuration.find(str(config["experiment"])) if config.get("experiment") else None
        raw = read_toml(file) if file else {}
        raw = with_settings(raw, [s for s in str(config.get("set") or "").split(";") if s.strip()])
        registry.trust(trusted_in(config))
        where = str(file or "configuration")
        experiment = checked(raw, where, foreign(where))
        folder = RunFolder(Path(str(config.get("out") or "fedbn-run")).resolve())
        if not folder.config.exists():
            folder.begin(raw)
        expected = Expected(least=int(config.get("sites") or 2))
        limits = Limits(float(config.get("wait") or 300), float(config.get("deadline") or 3600))
        service = Service("flwr", lambda: expected, folder, log_event, limits)
        with folder.locked():
            serve(grid, experiment, service)

    return app


def log_event(event: Event) -> None:
    """Say in the server's log how a run goes."""
    log.info("%s %s %d/%d %s", event.kind, event.job, event.round, event.rounds, event.text)


@contextmanager
def server(folder: FederationFolder, host: str = "0.0.0.0") -> Iterator[Child]:
    """Run Flower's server, with every site's key let in; it ends with the block."""
    info = folder.read()
    if host not in ("0.0.0.0", "127.0.0.1"):  # at another one this machine's commands miss it
        raise ConfigError(f"--bind {host}: legal are 0.0.0.0 and 127.0.0.1")
    if listens("127.0.0.1", info.port):
        raise ConfigError(f"port {info.port} is in use: another server, or another federation's")
    choose_operator_port(folder)
    module = "fedbn.flower.internals_server"
    child = Child(module, [str(folder.path), host], folder.home, folder.path / "server.log")
    try:
        with Control(folder) as control:
            wait_until(control.reachable, child, _START_SECONDS, "Flower's server")
            control.admit_only(folder.keys())
        yield child
    finally:
        child.end()


def watch(child: Child, stop: Callable[[], bool]) -> None:
    """Wait until the server is asked to stop."""
    while not stop():
        if child.status() is not None:
            raise FedbnError(f"Flower's server ended (status {child.status()}; see {child.log})")
        time.sleep(0.2)


def foreign(where: str) -> Held:
    """Return the source of the names in an experiment of a federation.

    No module is imported without `--trust`: files next to the experiment may be another party's.
    """
    return Held(where, foreign=True)


def run(folder: FederationFolder, raw: dict[str, Any], service: Service, where: str) -> None:
    """Start or continue a run and see it to its end."""
    experiment = checked(raw, where, foreign(where))
    only = the_only_run(folder, service.folder.path.name)
    service = replace(service, limit_answers=folder.limit_answers)
    with service.folder.locked(), only, grid_of(folder) as grid:
        folder.limit_answers(0)  # until the model is known
        serve(grid, experiment, service)


@contextmanager
def the_only_run(folder: FederationFolder, name: str) -> Iterator[None]:
    """Refuse a second run while one is on: Flower would end the first."""
    lock, said = FileLock(folder.path / "run.lock", timeout=0), folder.path / "running"
    try:
        lock.acquire()
    except Timeout as error:
        other = said.read_text(encoding="utf-8") if said.is_file() else "another"
        text = f"{folder.path}: run {other} is on; wait for its end, or stop it"
        raise ConfigError(text) from error
    try:
        said.write_text(name, encoding="utf-8")
        yield
    finally:
        said.unlink(missing_ok=True)
        lock.release()


def run_folder(folder: FederationFolder, name: str) -> RunFolder:
    """The folder of a run, by its name."""
    return RunFolder(folder.runs / check_name(name, "--name"))


@contextmanager
def begun(place: RunFolder, raw: Mapping[str, Any]) -> Iterator[None]:
    """Make a run's folder where it is new; a run that is refused leaves nothing behind."""
    new = not (place.config.exists() or place.request.exists())
    made = place.begin(raw) if new else []
    try:
        yield
    except (NotApproved, TooFewClients):
        raise  # the same command goes on once they are there
    except Exception:
        if new and not place.config.exists():
            place.abandon(made)
        raise


def expected_sites(folder: FederationFolder, least: int | None) -> Expected:
    """All sites of the federation; how many must be here is all of them unless said."""
    sites = folder.read().sites
    if not sites:  # without keys every node would be believed
        raise ConfigError(f"{folder.path}: no site is admitted")
    return Expected(sites, folder.keys(), min(least or len(sites), len(sites)), folder.agree)


def survey_sites(folder: FederationFolder, questions: Sequence[Order]) -> list[Finding]:
    """Ask every site that is connected what it would bring; needs the server to be up."""
    with the_only_run(folder, "check"), grid_of(folder) as grid:
        return list(ask_sites(grid, questions, expected_sites(folder, None), own_log(folder)))


def propose(folder: FederationFolder) -> tuple[dict[str, Any], list[str]]:
    """Propose a contract from what the sites that are connected say of their data."""
    with the_only_run(folder, "propose"), grid_of(folder) as grid:
        order, sites = report_order(folder.read().id), expected_sites(folder, None)
        return ask_reports(grid, order, sites, own_log(folder))


def ask_reports(
    grid: Grid, order: Order, expected: Expected, log: AuditLog | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Ask sites what their data is, and propose a contract; who does not say is named."""
    here = Attendance(grid, order, lambda: expected, Limits(round=120.0), log=log)
    mail = here.ask(here.letters(), "report")
    reports, notes = list[SiteReport](), list[str]()
    for site in expected.names:
        try:
            if site not in mail.contents:
                raise FedbnError(mail.faults.get(site, "not connected"))
            reports.append(messages.get(mail.contents[site], Reported).report)
        except FedbnError as error:
            notes.append(f"{site} says nothing: {error}")
    if not reports:
        raise TooFewClients(f"no site said what its data is: {'; '.join(notes)}")
    contract, said = proposed(reports)
    return contract, [*notes, *said]


def own_log(folder: FederationFolder) -> AuditLog:
    """The server's log, signed by the key that its certificate is for: ca.key may be elsewhere."""
    return AuditLog(folder.log, read_authority(folder.key, folder.certificate).key)


def admit(folder: FederationFolder, request: Request, confirmed: str) -> Path:
    """Take in a site by its request; a server that is up learns its key at once."""
    own = own_log(folder)  # first: what cannot be logged is not done
    folder.admit(request)
    own.write("admitted", site=request.site, key=fingerprint(request.key), confirmed=confirmed)
    _tell_server(folder)
    return folder.bundle(request.site)


def revoke(folder: FederationFolder, site: str) -> None:
    """Put a site out; a run under way leaves it out from its next message on."""
    own = own_log(folder)
    own.write("revoked", site=site, key=fingerprint(folder.revoke(site)))
    _tell_server(folder)


def add_site(folder: FederationFolder, site: str) -> Path:
    """Add a site; a server that is up learns its key at once."""
    folder.add_site(site)
    note_made(folder, [site])
    _tell_server(folder)
    return folder.bundle(site)


def note_made(folder: FederationFolder, sites: Sequence[str]) -> None:
    """Log the keys that were made here for sites."""
    own, keys = own_log(folder), {site: key for key, site in folder.keys().items()}
    for site in sites:
        own.write("admitted", site=site, key=fingerprint(keys[site]), confirmed="made here")


def _tell_server(folder: FederationFolder) -> None:
    """Let a server that is up know whose keys are let in now."""
    with Control(folder) as control:
        if control.reachable():
            control.admit_only(folder.keys())


SITES = ("plain", "photo")
RAW: dict[str, Any] = {
    "methods": ["fedbn"],
    "seeds": [0],
    "training": {"rounds": 3, "local_epochs": 2},
    "data": {"name": "digits_mini"},
}
DEMO_POLICY = DEMO
"""What sites allow on one machine, where nobody approves an experiment and scores may be exact."""


def make(path: Path, sites: Sequence[str] = SITES) -> FederationFolder:
    """Make a federation for the loopback, on a port that is free."""
    folder = FederationFolder(path)
    folder.create("demo", sites, "127.0.0.1", free_port())
    return folder


def start_site(folder: FederationFolder, site: str, data: str = "digits_mini") -> Child:
    """Start a site of the federation, as `fedbn federation join` does on its own machine."""
    home = folder.path / "demo-sites" / site
    home.mkdir(parents=True, exist_ok=True)
    (home / "policy.toml").write_text(DEMO_POLICY.to_toml(), encoding="utf-8")
    arguments = ["federation", "join", str(folder.bundle(site)), "--data", data]
    arguments += ["--folder", str(home), "--parent"]
    return Child("fedbn", arguments, home / "flower", home / "join.log")


@contextmanager
def running(folder: FederationFolder, sites: Sequence[str] = SITES) -> Iterator[dict[str, Child]]:
    """Run the server and the sites; all of them end with the block."""
    children: dict[str, Child] = {}
    with server(folder, "127.0.0.1"):
        try:
            for site in sites:
                children[site] = start_site(folder, site)
            yield children
        finally:
            for child in children.values():
                child.ask_to_end()  # all of them side by side
            for child in children.values():
                child.end()
