"""A run of a federation, seen by its operator: what is said round by round, and the results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedbn.cli.federation._common import say
from fedbn.cli.launching import show
from fedbn.cli.stopping import Stopper
from fedbn.errors import Interrupted
from fedbn.flower import server_app
from fedbn.flower.server_app import Service

if TYPE_CHECKING:
    from fedbn.core.plan import Plan
    from fedbn.experiments.jobs import Event
    from fedbn.flower.federation_folder import FederationFolder
    from fedbn.flower.membership import Expected
    from fedbn.flower.messaging import Limits, RoundCost


@dataclass(frozen=True)
class Running:
    """A run to start, or to continue.

    Attributes:
        folder: The federation.
        raw: The configuration.
        name: The run's name.
        where: Where the configuration comes from, for messages.
        limits: How long to wait.
        least: How many sites must be here to begin; None for all.
    """

    folder: FederationFolder
    raw: dict[str, Any]
    name: str
    where: str
    limits: Limits
    least: int | None = None

    def go(self, as_json: bool) -> None:
        """See the run to its end, and print what came out."""
        place = server_app.run_folder(self.folder, self.name)
        self._sites()  # refuses a wrong number at once
        with Stopper() as stop, server_app.begun(place, self.raw):
            service = Service(
                self.folder.read().id, self._sites, place, tell, tell_cost, self.limits, stop
            )
            try:
                server_app.run(self.folder, self.raw, service, self.where)
            except Interrupted as error:
                raise Interrupted(f"{error}; the same command continues it") from error
        show(place, as_json)

    def _sites(self) -> Expected:
        return server_app.expected_sites(self.folder, self.least)


def tell(event: Event) -> None:
    """Say how a job goes."""
    job = f"{event.job[0]} seed {event.job[2]}"
    if event.kind == "note":
        say(f"{job}: {event.text}")
    elif event.kind == "begin" and event.round:
        say(f"{job}: going on after round {event.round} of {event.rounds}")
    elif event.kind == "round":
        say(f"{job}: round {event.round}/{event.rounds}  {_numbers(event)}")


def tell_cost(plan: Plan, cost: RoundCost) -> None:
    """Say what a round took."""
    sources = ", ".join(f"{site} {source}" for site, source in cost.sources.items())
    say(
        f"  {cost.seconds:.2f} s, {cost.beyond_training:.2f} s of it beyond training; "
        f"{cost.bytes_down:,} bytes down, {cost.bytes_up:,} up; BatchNorm: {sources}"
    )


def _numbers(event: Event) -> str:
    parts = []
    for record in event.records:
        if record["metric"] == "training_loss" and record["value"] is not None:
            parts.append(f"{record['client']} loss {record['value']:.3f}")
    for record in event.records:
        if record["split"] == "test" and record["metric"] == "accuracy":
            share = f"{100 * record['value']:.1f} %"
            parts.append(f"{record['client']} {share} after round {record['round']}")
    return ", ".join(parts)
