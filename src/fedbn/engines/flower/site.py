"""What a site does with an order: say what it is, train a round, score; its data stays here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from flwr.app import RecordDict

from fedbn._version import __version__
from fedbn.core.checks import check_federation
from fedbn.core.federation import Client, Federation
from fedbn.core.splits import with_validation
from fedbn.core.state import entries, schema_hash
from fedbn.data._check import examine
from fedbn.engines.flower import wire
from fedbn.engines.flower.desk import Desk
from fedbn.engines.flower.jobs import job_of, plan_of
from fedbn.engines.flower.roster import digest
from fedbn.engines.flower.wire import Hello, Member, Order
from fedbn.errors import ConfigError, DataError, unknown
from fedbn.experiments.schema import DataSection
from fedbn.experiments.settings import Job
from fedbn.experiments.sources import load_federation


@dataclass(frozen=True)
class SiteOptions:
    """What a site decides for itself.

    Attributes:
        name: The site; also the client's name.
        data: Its `[data]` section: where its samples are.
        folder: Where its local part is kept; None for Flower's memory (simulations).
        federation: The federation it belongs to; orders of another one are refused.
        release_affine: Whether it gives its BatchNorm affine away when a run has ended.
        device: What it trains on; None for what the experiment says.
        weights: Its copy of the experiment's `model.weights`; None where that path is right.
    """

    name: str
    data: Mapping[str, Any]
    folder: Path | None = None
    federation: str | None = None
    release_affine: bool = False
    device: str | None = None
    weights: Path | None = None


class Site:
    """One site: its data, loaded once, and the models of the jobs it takes part in."""

    def __init__(self, options: SiteOptions):
        self.options = options
        self._desks: dict[str, Desk] = {}

    def answer(self, content: RecordDict, state: RecordDict) -> RecordDict:
        """Do what a message asks; `state` is Flower's memory of this site.

        Raises:
            FedbnError: Why it is not done.
        """
        training = wire.SHARED in content
        order = wire.get(content, Order, *([wire.SHARED] if training else []))
        self._check(order)
        if order.kind == "hello":
            return wire.put(self.hello(order))
        if not training:
            raise wire.Unreadable(f"an order to {order.kind} without the shared part")
        return self._desk(order).work(order, content.array_records[wire.SHARED], state)

    @cached_property
    def _federation(self) -> Federation:
        found = load_federation(DataSection.model_validate(dict(self.options.data)))
        client = _own(found, self.options.name)
        alone = replace(found, clients=(client,))
        check_federation(alone)
        return alone

    def client(self, validation: float, seed: int) -> Client:
        """The site's data, with its validation part held out."""
        federation = self._federation
        if validation:
            federation = with_validation(federation, validation, seed)
        return federation.clients[0]

    def described(self) -> list[tuple[bool, str]]:
        """Say what the site would bring, and what is odd or wrong about its data."""
        client, federation = self.client(0, 0), self._federation
        found = [
            (True, f"fedbn {__version__}, torch {torch.__version__}"),
            (True, f"{len(client.train):,} training samples of shape {federation.input_shape}"),
            (True, f"{len(federation.classes)} classes, hash {digest(federation.classes)}"),
        ]
        for one in examine(federation):
            found.append((one.severity != "error", f"data, {one.severity}: {one.text}"))
        return found

    def _check(self, order: Order) -> None:
        if self.options.federation not in (None, order.federation):
            raise ConfigError(f"an order of another federation ({order.federation})")
        if order.version != __version__:
            raise ConfigError(f"fedbn {__version__} here, fedbn {order.version} at the server")

    def hello(self, order: Order) -> Hello:
        """Say what the site brings to a job: its model is made for that, nothing is trained."""
        job = self._job(order)
        client = self.client(job.setting.experiment.evaluation.validation, order.seed)
        plan = plan_of(job, replace(self._federation, clients=(client,)))
        return Hello(
            member=Member(name=client.name, domain=client.domain, examples=len(client.train)),
            version=__version__,
            torch=str(torch.__version__),
            device=job.setting.experiment.training.device,
            schema_hash=schema_hash(entries(plan.initial_model)),
            classes=self._federation.classes,
            input_shape=self._federation.input_shape,
        )

    def _job(self, order: Order) -> Job:
        return job_of(order, self.options.device, self.options.weights)

    def _desk(self, order: Order) -> Desk:
        """The job's model, made anew when its members change; one job at a time has one."""
        key = order.model_copy(
            update={"round": 0, "since": 0, "scores": False, "last": False, "kind": "train"}
        ).model_dump_json()
        if key not in self._desks:
            job = self._job(order)
            own = self.client(job.setting.experiment.evaluation.validation, order.seed)
            self._desks = {key: Desk(self.options, job, own, order)}
        return self._desks[key]


def one_thread() -> None:
    """Sums inside an operation depend on its threads: one, for the same bits everywhere."""
    torch.set_num_threads(1)


def _own(federation: Federation, site: str) -> Client:
    """The site's client: the one of its name, or the only one there is."""
    for client in federation.clients:
        if client.name == site:
            return client
    if len(federation.clients) == 1:
        return replace(federation.clients[0], name=site)
    names = [client.name for client in federation.clients]
    raise DataError(f"data {federation.name}: {unknown('site', site, names)}")
