"""A grid without processes: messages go to sites in this process, and may be tampered with."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch
from flwr.app import Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo

from fedbn.core.engine import RoundCost
from fedbn.core.federation import Federation, Split
from fedbn.experiments.configuration import checked
from fedbn.experiments.jobs import Event, jobs
from fedbn.experiments.planner import Planner
from fedbn.experiments.runner import Memory, run_plan
from fedbn.experiments.schema import DataSection
from fedbn.experiments.sources import load_federation
from fedbn.flower.membership import Expected
from fedbn.flower.messaging import Limits
from fedbn.flower.server_app import Service, serve
from fedbn.flower.site import Site, reply
from fedbn.flower.site_job import SiteOptions
from fedbn.runs.folder import RunFolder

SITES = ("plain", "photo")
RAW = {
    "evaluation": {"final_statistics": []},  # sites score with running statistics alone
    "methods": ["fedbn"],
    "seeds": [0],
    "training": {"rounds": 2, "local_steps": 3},
    "data": {"name": "digits_mini"},
    "model": {"name": "small_cnn"},
}
Tamper = Callable[[str, Message], Message | None]


class FakeGrid:
    """Answers as sites would; `tamper` may change an answer, or swallow it."""

    def __init__(self, sites: Iterable[Site], tamper: Tamper = lambda site, answer: answer):
        self.sites = {site.options.name: site for site in sites}
        self.tamper = tamper
        self.log: list[tuple[str, Message, Message]] = []
        self.activated = dict.fromkeys(self.sites, "first")
        self.away: set[str] = set()
        self._waiting: dict[str, list[Message]] = {}
        self._numbers = itertools.count()
        self._state = {name: RecordDict() for name in self.sites}

    def get_nodes(self) -> list[NodeInfo]:
        return [
            NodeInfo(
                node_id=number, public_key=name.encode(), last_activated_at=self.activated[name]
            )
            for number, name in enumerate(self.sites, 100)
            if name not in self.away
        ]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        return [self._push(message) for message in messages]

    def _push(self, message: Message) -> str:
        name = [*self.sites][message.metadata.dst_node_id - 100]
        identity = f"message-{next(self._numbers)}"
        message.metadata.__dict__["_message_id"] = identity
        answer = reply(self.sites[name], message, self._state[name])
        self.log.append((name, message, answer))
        changed = self.tamper(name, answer)
        self._waiting[identity] = [] if changed is None else [changed]
        return identity

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [m for identity in message_ids for m in self._waiting.pop(identity, [])]


@cache
def digits() -> Federation:
    """The data, loaded once for all tests."""
    return load_federation(DataSection(name="digits_mini"))


@cache
def few() -> Federation:
    """A little of the data: tests in this process are about what is sent, not what is learnt."""

    def cut(split: Split, count: int) -> Split:
        return split.take(torch.arange(count))

    clients = tuple(
        replace(c, train=cut(c.train, 64), tests={d: cut(t, 32) for d, t in c.tests.items()})
        for c in digits().clients
    )
    return replace(digits(), clients=clients)


def in_one_process(raw, federation: Federation | None = None, sites: Sequence[str] = SITES):
    """The same plan in the embedded engine, over the sites' data."""
    job = jobs(checked(raw))[0]
    plan = Planner(federation=federation or few()).plan(job)
    clients = tuple(c for name in sites for c in plan.federation.clients if c.name == name)
    plan = replace(plan, federation=replace(plan.federation, clients=clients))
    memory = Memory()
    return plan, run_plan(plan, memory, workers=1), memory.records


class Bench:
    """A federation of digits_mini sites in this process."""

    def __init__(self, root: Path):
        self.root = root
        self.events: list[Event] = []
        self.limits = Limits(wait=0.5, round=5.0, grace=0.0, poll=0.0, look=0.0)

    def site(self, name: str, **options: object) -> Site:
        given = {"folder": self.root / "sites" / name, "federation": "fed", **options}
        site = Site(SiteOptions(name, {"name": "digits_mini"}, **given))  # type: ignore[arg-type]
        client = [client for client in few().clients if client.name == name]
        site.__dict__["_federation"] = replace(few(), clients=tuple(client))
        return site

    def grid(self, tamper: Tamper = lambda site, answer: answer) -> FakeGrid:
        return FakeGrid([self.site(name) for name in SITES], tamper)

    def run(
        self,
        grid: FakeGrid,
        raw: dict | None = None,
        name: str = "run",
        *,
        expected: Expected | Callable[[], Expected] | None = None,
        costs: Callable[[RoundCost], None] = lambda cost: None,
        stop_after: int | None = None,
    ) -> RunFolder:
        """Run; `costs` hears what each round took, the run stops after so many rounds of it."""
        folder = RunFolder(self.root / "runs" / name)
        folder.path.mkdir(parents=True, exist_ok=True)
        keys = {site.encode(): site for site in SITES}
        sites = expected or Expected(SITES, keys, len(SITES))
        asked = sites if callable(sites) else lambda: sites
        rounds: list[Event] = []

        def hear(event: Event) -> None:
            self.events.append(event)
            if event.kind == "round":
                rounds.append(event)
                costs(event.gave.cost)

        def stop() -> bool:
            return len(rounds) == stop_after

        service = Service("fed", asked, folder, hear, self.limits, stop)
        serve(grid, checked(raw or RAW), service)
        return folder

    def notes(self) -> str:
        return "\n".join(event.text for event in self.events if event.kind == "note")
