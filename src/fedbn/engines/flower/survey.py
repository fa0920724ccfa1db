"""Before anything runs: what each site would bring to an experiment, and whether it fits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fedbn.engines.flower.jobs import check_job, order_of
from fedbn.engines.flower.post import Grid, Limits
from fedbn.engines.flower.preflight import Finding
from fedbn.engines.flower.roster import Expected, Roster, digest, greet
from fedbn.engines.flower.site import Site
from fedbn.engines.flower.wire import Hello, Order
from fedbn.experiments.schema import Experiment
from fedbn.experiments.settings import Job, jobs

_RUN = "check"


def orders(experiment: Experiment, federation: str) -> list[Order]:
    """One question for each different model of an experiment; a sweep may have several."""
    todo = jobs(experiment)
    for job in todo:
        check_job(job)
    different = {_model(job): job for job in reversed(todo)}
    return [order_of(job, federation, _RUN) for job in reversed(different.values())]


def ask_sites(grid: Grid, questions: Sequence[Order], expected: Expected) -> Iterator[Finding]:
    """Ask all sites that are connected; each answer is compared with the first one's."""
    for order in questions:
        roster = greet(grid, expected, order, Roster(), Limits(wait=120.0))
        for site in expected.names:
            yield _finding(roster, site)


def ask_self(site: Site, questions: Sequence[Order]) -> Iterator[Finding]:
    """Answer as this site would, without a server."""
    for order in questions:
        yield True, _said(site.hello(order))


def _finding(roster: Roster, site: str) -> Finding:
    if site in roster.hellos:
        return True, _said(roster.hellos[site])
    return False, f"{site}: {roster.faults.get(site, 'not connected')}"


def _said(hello: Hello) -> str:
    return (
        f"{hello.member.name}: model {hello.schema_hash[:16]}, {len(hello.classes)} classes "
        f"{digest(hello.classes)}, samples of shape {hello.input_shape}, "
        f"{hello.member.examples:,} to train with; fedbn {hello.version}, torch {hello.torch}, "
        f"{hello.device}"
    )


def _model(job: Job) -> str:
    return job.setting.experiment.model.model_dump_json()
