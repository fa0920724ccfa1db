"""`fedbn federation check`, `propose`, `run`, `demo`: what is known before a run, and the run."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import tomli_w
import typer

from fedbn.cli import console
from fedbn.cli.console import emit, say
from fedbn.cli.federation import home_of
from fedbn.cli.federation_keys import Fed
from fedbn.cli.progress import Stopper
from fedbn.cli.training import check_contributions, show
from fedbn.core.statistics_kinds import RUNNING
from fedbn.errors import ConfigError, FedbnError, Interrupted
from fedbn.experiments import configuration
from fedbn.experiments.jobs import Event
from fedbn.flower import preflight, server_app
from fedbn.flower.credentials import Bundle, read_bundle
from fedbn.flower.federation_folder import FederationFolder
from fedbn.flower.messages import Order
from fedbn.flower.messaging import Limits
from fedbn.flower.policy import Policy, read_policy
from fedbn.flower.preflight import Finding
from fedbn.flower.server_app import Service
from fedbn.flower.site import Site
from fedbn.flower.site_app import data_section
from fedbn.flower.site_job import SiteOptions
from fedbn.results.aggregate import LOSS_SEEN, of_round
from fedbn.runs.folder import RunFolder, write_atomically
from fedbn.text import shown

app = console.commands()

Named = tuple[str, dict[str, Any], str]
"""A run's name, its configuration, and where that comes from, for messages."""

_EXAMPLES = console.examples(
    "fedbn federation check FED",
    "fedbn federation check FED --experiment my_experiment.toml",
    "fedbn federation check nyu.fedbn --data my_data/ --experiment mine.toml",
)


@app.command(epilog=_EXAMPLES)
def check(
    what: Annotated[Path, typer.Argument(metavar="FED|BUNDLE", help="What to examine.")],
    data: Annotated[str | None, typer.Option(help="With a BUNDLE: the site's data.")] = None,
    experiment: Annotated[
        str | None, typer.Option(help="FILE.toml or a name: compare models, classes, versions.")
    ] = None,
    settings: console.Settings = None,
    trust: console.Trust = None,
) -> None:
    """Examine certificates, keys, clocks, the way to the server, data, and whether models fit.

    With FED and --experiment every connected site is asked for the hashes of its
    model and class list; with a BUNDLE this site's are shown. Nothing is trained.
    """
    if what.is_dir():
        folder = FederationFolder(what.resolve())
        questions = _questions(experiment, settings, folder.read().id) if experiment else []
        findings = list(preflight.check_folder(folder))
        findings += server_app.survey_sites(folder, questions) if questions else []
    else:
        findings = _of_bundle(what, data, experiment, settings)
    for fine, text in findings:
        emit(f"{'ok   ' if fine else 'WRONG'}  {shown(text)}")
    if not all(fine for fine, _ in findings):
        raise FedbnError(f"{sum(not fine for fine, _ in findings)} of these are wrong")


def _of_bundle(
    file: Path, data: str | None, experiment: str | None, settings: list[str] | None
) -> list[Finding]:
    if experiment and data is None:
        raise ConfigError("--experiment needs --data: the model is made for this site's data")
    given = read_bundle(file)
    own = [setting for setting in settings or [] if setting.startswith("data.")]
    shared = [setting for setting in settings or [] if not setting.startswith("data.")]
    questions = _questions(experiment, shared, given.federation) if experiment else []
    findings = list(preflight.check_bundle(file, given))
    if data is None:
        return findings
    return [*findings, *_examined(home_of(file), given, data_section(data, own), questions)]


def _questions(experiment: str | None, settings: list[str] | None, federation: str) -> list[Order]:
    file, raw = experiment_of(str(experiment), settings)
    held = server_app.foreign(str(file))
    return server_app.orders(configuration.checked(raw, str(file), held), federation)


def _examined(
    home: Path, given: Bundle, data: dict[str, Any], questions: list[Order]
) -> list[Finding]:
    own = home / "policy.toml"
    policy = read_policy(own) if own.exists() else Policy()
    site = Site(SiteOptions(given.site, data, policy=policy, home=home))
    try:
        asked = (finding for order in questions for finding in site.examined(order))
        return [*site.described(questions[0] if questions else None), *asked]
    except FedbnError as error:
        return [(False, str(error))]


@app.command(epilog="Example: fedbn federation propose FED --out contract.toml")
def propose(
    fed: Fed,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write it here. [default: print it]")
    ] = None,
) -> None:
    """Propose the contract of an experiment from what the connected sites say of their data.

    Sites say counts and names, and only categories that at least 10 rows have.
    Add units and legal ranges by hand, then put it into the experiment.
    """
    console.check_out(out)
    contract, notes = server_app.propose(FederationFolder(fed.resolve()))
    say(*notes)
    text = tomli_w.dumps({"data": {"contract": contract}})
    if out is None:
        emit(text, end="")
    else:
        write_atomically(out, text.encode(), ConfigError)


@app.command(epilog="Example: fedbn federation run FED my_experiment.toml")
def run(
    fed: Fed,
    experiment: Annotated[str, typer.Argument(help="FILE.toml, or a name from `fedbn ls`.")],
    settings: console.Settings = None,
    name: Annotated[
        str | None, typer.Option(help="The run's name; the same again continues it.")
    ] = None,
    min_sites: Annotated[
        int | None, typer.Option(help="How many sites must be here to begin. [default: all]")
    ] = None,
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait for sites.")] = 300.0,
    deadline: Annotated[float, typer.Option(min=0.1, help="Seconds a round may take.")] = 3600.0,
    trust: console.Trust = None,
    json: console.Json = False,
) -> None:
    """Start a run, or continue it after a stop or a crash."""
    folder = FederationFolder(fed.resolve())
    file, raw = experiment_of(experiment, settings)
    configuration.check_names(raw, server_app.foreign(str(file)))  # before anything is written
    limits = Limits(wait=wait, round=deadline)
    run = _see_to_end(folder, (name or file.stem, raw, str(file)), limits, min_sites)
    show(run, console.Showing(json))
    check_contributions(run)


@app.command(epilog="Example: fedbn federation demo")
def demo(
    out: Annotated[
        Path | None, typer.Option(help="Keep the federation's folder here. [default: thrown away]")
    ] = None,
) -> None:
    """Show all of it on this machine: server, two sites, TLS, keys, three rounds of FedBN."""
    with tempfile.TemporaryDirectory(prefix="fedbn-") as temporary:
        folder = server_app.make(out or Path(temporary) / "fed")
        say(f"made a federation of {', '.join(server_app.SITES)} in {folder.path}")
        with server_app.running(folder):
            say("server and sites are up: TLS, one key a site, loopback only")
            say("the sites' policy.toml says approval = false: here no person approves experiments")
            say("it says round_scores = false too: by default scores leave a site rounded")
            limits = Limits(wait=120.0, round=300.0)
            show(_see_to_end(folder, ("demo", server_app.RAW, "demo"), limits), console.Showing())


def experiment_of(name: str, settings: list[str] | None) -> tuple[Path, dict[str, Any]]:
    """Find an experiment; gives its file and what it says, with absolute paths."""
    file = configuration.find(name)
    raw = configuration.with_settings(configuration.read_toml(file), settings or [])
    return file, configuration.with_absolute_paths(raw)


def _see_to_end(
    folder: FederationFolder, named: Named, limits: Limits, least: int | None = None
) -> RunFolder:
    """Start a run or continue it, and see it to its end."""
    name, raw, where = named
    place = server_app.run_folder(folder, name)
    sites = partial(server_app.expected_sites, folder, least)
    most = len(sites().names)  # now; a site may be revoked during the run
    if least is not None and not 1 <= least <= most:
        raise ConfigError(f"--min-sites {least}: legal are 1 to {most}")
    with Stopper() as stop, server_app.begun(place, raw):
        log = server_app.own_log(folder)
        log.write("run", run=name)
        service = Service(folder.read().id, sites, place, tell, limits, stop, log)
        try:
            server_app.run(folder, raw, service, where)
        except Interrupted as error:
            raise Interrupted(f"{error}; the same command continues it") from error
    return place


def tell(event: Event) -> None:
    """Say how a job goes."""
    job = f"{event.job[0]} seed {event.job[2]}"
    if event.kind == "note":
        say(f"{job}: {event.text}")
    elif event.kind == "earlier" and event.round and not event.over:
        say(f"{job}: going on after round {event.round} of {event.rounds}")
    elif event.kind == "round":
        if event.gave and (cost := event.gave.cost):
            sources = ", ".join(f"{site} {source}" for site, source in cost.sources.items())
            say(
                f"  {cost.seconds:.2f} s, {cost.beyond_training:.2f} s of it beyond training; "
                f"{cost.bytes_down:,} bytes down, {cost.bytes_up:,} up; BatchNorm: {sources}"
            )
        say(f"{job}: round {event.round}/{event.rounds}  {_numbers(event)}")


def _numbers(event: Event) -> str:
    losses, metric = of_round(event.records, LOSS_SEEN), event.judged_by
    parts = [f"{client} loss {loss:.3f}" for client, loss in losses.items()]
    for record in event.records:
        kind = record["split"], record["metric"], record["statistics"]
        if kind == ("test", metric.name, RUNNING):
            value = record["value"]
            said = "–" if value is None else f"{metric.said(value)} {metric.unit}".rstrip()
            parts.append(f"{record['client']} {said} after round {record['round']}")
    return ", ".join(parts)
