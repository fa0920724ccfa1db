"""`fedbn federation check`: what can be known before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedbn.cli.federation._common import Settings, data_section, experiment_of, folder_of, require
from fedbn.cli.options import Trust
from fedbn.cli.output import emit, printable

if TYPE_CHECKING:
    from fedbn.flower.credentials import Bundle
    from fedbn.flower.messages import Order
    from fedbn.flower.preflight import Finding


_EXAMPLES = """[bold]Examples[/bold]

fedbn federation check FED

fedbn federation check FED --experiment my_experiment.toml

fedbn federation check nyu.fedbn --data my_data/ --experiment my_experiment.toml"""


def add_to(group: typer.Typer) -> None:
    """Register the command."""
    group.command(epilog=_EXAMPLES)(check)


def check(
    what: Annotated[Path, typer.Argument(metavar="FED|BUNDLE", help="What to examine.")],
    data: Annotated[str | None, typer.Option(help="With a BUNDLE: the site's data.")] = None,
    experiment: Annotated[
        str | None, typer.Option(help="FILE.toml or a name: compare models, classes, versions.")
    ] = None,
    settings: Settings = None,
    trust: Trust = None,
) -> None:
    """Examine certificates, keys, clocks, the way to the server, data, and whether models fit.

    With FED and --experiment every site that is connected is asked for the hashes of its model and
    its class list. With a BUNDLE they are shown for this site. Nothing is trained.
    """
    require()
    from fedbn.errors import FedbnError

    if what.is_dir():
        findings = _of_folder(what, experiment, settings)
    else:
        findings = _of_bundle(what, data, experiment, settings)
    for fine, text in findings:
        emit(f"{'ok   ' if fine else 'WRONG'}  {printable(text)}")
    if not all(fine for fine, _ in findings):
        raise FedbnError(f"{sum(not fine for fine, _ in findings)} of these are wrong")


def _of_folder(path: Path, experiment: str | None, settings: list[str] | None) -> list[Finding]:
    from fedbn.flower import preflight, server_app

    folder = folder_of(path)
    questions = _questions(experiment, settings, folder.read().id) if experiment else []
    findings = list(preflight.check_folder(folder))
    return [*findings, *(server_app.survey_sites(folder, questions) if questions else [])]


def _of_bundle(
    file: Path, data: str | None, experiment: str | None, settings: list[str] | None
) -> list[Finding]:
    from fedbn.errors import ConfigError
    from fedbn.flower import preflight
    from fedbn.flower.credentials import read_bundle

    if experiment and data is None:
        raise ConfigError("--experiment needs --data: the model is made for this site's data")
    given = read_bundle(file)
    questions = _questions(experiment, settings, given.federation) if experiment else []
    findings = list(preflight.check_bundle(file, given))
    return [*findings, *(_examined(given, data, questions) if data is not None else [])]


def _questions(experiment: str | None, settings: list[str] | None, federation: str) -> list[Order]:
    from fedbn.experiments.configuration import checked
    from fedbn.flower import server_app

    file, raw = experiment_of(str(experiment), settings)
    return server_app.orders(checked(raw, str(file)), federation)


def _examined(given: Bundle, data: str, questions: list[Order]) -> list[Finding]:
    from fedbn.errors import FedbnError
    from fedbn.flower import server_app
    from fedbn.flower.site import Site
    from fedbn.flower.site_job import SiteOptions

    site = Site(SiteOptions(given.site, data_section(data)))
    try:
        return [*site.described(), *server_app.ask_self(site, questions)]
    except FedbnError as error:
        return [(False, str(error))]
