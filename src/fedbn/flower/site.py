"""What a site does with an order: say what it is, train a round, score; its data stays here."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import cached_property

import torch
from flwr.app import Message, RecordDict

from fedbn import __version__
from fedbn.core.federation import Client, Federation, check_federation
from fedbn.core.randomness import with_validation
from fedbn.core.state import entries, schema_hash
from fedbn.data.checks import examine
from fedbn.errors import ConfigError, DataError, FedbnError, reason, unknown
from fedbn.experiments.jobs import Job
from fedbn.experiments.planner import plan_of
from fedbn.experiments.schema import DataSection
from fedbn.experiments.sources import load_federation
from fedbn.flower import messages
from fedbn.flower.membership import digest
from fedbn.flower.messages import Hello, Member, Order, job_of
from fedbn.flower.site_job import Desk, SiteOptions

log = logging.getLogger("fedbn")


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
        training = messages.SHARED in content
        order = messages.get(content, Order, *([messages.SHARED] if training else []))
        self._check(order)
        if order.kind == "hello":
            return messages.put(self.hello(order))
        if not training:
            raise messages.Unreadable(f"an order to {order.kind} without the shared part")
        return self._desk(order).work(order, content.array_records[messages.SHARED], state)

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


def reply(site: Site, message: Message, state: RecordDict) -> Message:
    """Answer a message; what goes wrong is said, not raised, so that the server can name it."""
    try:
        content = site.answer(message.content, state)
    except FedbnError as error:
        content = messages.put(messages.Sorry(reason=str(error)[:2000]))
    except Exception as error:
        log.debug("site %s failed", site.options.name, exc_info=True)
        content = messages.put(messages.Sorry(reason=reason(error)[:2000]))
    return Message(content, reply_to=message)
