"""What a site does with an order: say what it is, train a round, score; its data stays here."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, RecordDict

from fedbn._version import __version__
from fedbn.core.checks import check_federation
from fedbn.core.federation import Client, Federation
from fedbn.core.packing import Layout, Pack
from fedbn.core.replica import Replica, draws_random_numbers
from fedbn.core.rounds import (
    Refusal,
    RunState,
    Update,
    initial_state,
    score_client,
    train_client,
    train_client_seeded,
)
from fedbn.core.splits import with_validation
from fedbn.core.state import Kind, entries, schema_hash
from fedbn.engines.flower import wire
from fedbn.engines.flower.codec import from_record, to_record
from fedbn.engines.flower.jobs import federation_of, job_of, plan_of
from fedbn.engines.flower.roster import digest
from fedbn.engines.flower.store import DiskStore, Source, StateStore, Store
from fedbn.engines.flower.wire import Answer, Hello, Member, Order, Score
from fedbn.errors import ConfigError, DataError, ModelError, unknown
from fedbn.experiments.schema import DataSection
from fedbn.experiments.sources import load_federation


@dataclass(frozen=True)
class SiteOptions:
    """What a site decides for itself.

    Attributes:
        name: The site; also the client's name.
        data: Its `[data]` section: where its samples are.
        folder: Where its local part is kept; None for Flower's memory (simulations).
        federation: The federation it belongs to; orders of another one are refused.
        trust: Modules of its own that the server may name as a model or a part of a method.
        release_affine: Whether it gives its BatchNorm affine away when a run has ended.
    """

    name: str
    data: Mapping[str, Any]
    folder: Path | None = None
    federation: str | None = None
    trust: tuple[str, ...] = ()
    release_affine: bool = False


class Site:
    """One site: its data, loaded once, and the models of the jobs it takes part in."""

    def __init__(self, options: SiteOptions):
        self.options = options
        self._desks: dict[str, _Desk] = {}

    def answer(self, content: RecordDict, state: RecordDict) -> RecordDict:
        """Do what a message asks; `state` is Flower's memory of this site.

        Raises:
            FedbnError: Why it is not done.
        """
        training = wire.SHARED in content
        order = wire.get(content, Order, *([wire.SHARED] if training else []))
        self._check(order)
        if order.kind == "hello":
            return wire.put(self._hello(order))
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

    def described(self) -> list[str]:
        """Say what the site would bring: versions, samples and classes."""
        client, federation = self.client(0, 0), self._federation
        return [
            f"fedbn {__version__}, torch {torch.__version__}",
            f"{len(client.train):,} training samples of shape {federation.input_shape}",
            f"{len(federation.classes)} classes, hash {digest(federation.classes)}",
        ]

    def _check(self, order: Order) -> None:
        if self.options.federation not in (None, order.federation):
            raise ConfigError(f"an order of another federation ({order.federation})")
        if order.version != __version__:
            raise ConfigError(f"fedbn {__version__} here, fedbn {order.version} at the server")
        model = order.experiment.get("model", {})
        names = [str(model.get("name")), *order.method.split("+")]
        for name in names:
            module = name.partition(":")[0]
            if ":" in name and module not in self.options.trust:
                raise ConfigError(
                    f"the server names {name!r}, code that is not fedbn's: this site runs it only "
                    f"when it was joined with --trust {module}"
                )

    def _hello(self, order: Order) -> Hello:
        job = job_of(order)
        client = self.client(job.setting.experiment.evaluation.validation, order.seed)
        plan = plan_of(job, replace(self._federation, clients=(client,)))
        return Hello(
            member=Member(name=client.name, domain=client.domain, examples=len(client.train)),
            version=__version__,
            schema_hash=schema_hash(entries(plan.initial_model)),
            classes=self._federation.classes,
            input_shape=self._federation.input_shape,
        )

    def _desk(self, order: Order) -> _Desk:
        """The job's model, made anew when its members change; one job at a time has one."""
        key = order.model_copy(
            update={"round": 0, "since": 0, "scores": False, "last": False, "kind": "train"}
        ).model_dump_json()
        if key not in self._desks:
            self._desks = {key: _Desk(self, order)}
        return self._desks[key]


class _Desk:
    """One job at a site: its plan and its model."""

    def __init__(self, site: Site, order: Order):
        job = job_of(order)
        own = site.client(job.setting.experiment.evaluation.validation, order.seed)
        if own.name not in [member.name for member in order.members]:
            raise ConfigError(f"site {own.name} is not among the members of this run")
        sites = federation_of(order.members, order.classes, order.input_shape, own)
        self._plan = plan_of(job, sites)
        self._options = site.options
        device = self._plan.training.device
        self._client = self._plan.federation.to(device).clients[_place(order, own.name)]
        sample = own.train.batch(slice(0, 2))[0].cpu()
        self._random = draws_random_numbers(self._plan.initial_model, sample)
        self._replica = Replica(self._plan.initial_model, self._plan.method, device)
        self._replica.fold(sample.to(device))
        self._initial = initial_state(self._plan)
        found = schema_hash(entries(self._plan.initial_model))
        if found != order.schema_hash:
            raise ModelError(f"another model: {found[:16]} here, {order.schema_hash[:16]} asked")

    def work(self, order: Order, sent: ArrayRecord, state: RecordDict) -> RecordDict:
        """Train or score from the shared part that was sent and the local part kept here."""
        begun = time.monotonic()
        name = self._client.name
        store = self._store(order, state)
        shared = from_record(sent, self._initial.shared.layout)
        local, source = self._local(order, store)
        # A round is trained, and its predecessor scored, from the same two parts.
        done = order.round - 1 if order.kind == "train" else order.round
        before = RunState(done, shared, {name: local})
        scores = self._scores(before) if order.scores else ()
        if order.kind == "score":
            return self._released(order, local, self._answer(order, source, begun, scores))
        train = train_client_seeded if self._random else train_client
        outcome = train(self._plan, self._replica, self._client, before)
        if isinstance(outcome, Refusal):
            raise ModelError(outcome.reason)
        store.save(order.round, order.since, outcome.local)
        answer = self._answer(order, source, begun, scores, outcome)
        return wire.put(answer, **{wire.SHARED: to_record(outcome.shared)})

    def _store(self, order: Order, state: RecordDict) -> Store:
        if self._options.folder is None:
            return StateStore(state, order)
        return DiskStore(self._options.folder, self._client.name, order)

    def _local(self, order: Order, store: Store) -> tuple[Pack, Source]:
        """The local part after the last round that the server accepted; new before the first."""
        start = self._initial.local[self._client.name]
        if order.since == 0:
            return start, "fresh"
        return store.load(order.since, start.layout), store.source

    def _scores(self, state: RunState) -> tuple[Score, ...]:
        records = score_client(self._plan, self._replica, self._client, state)
        if isinstance(records, Refusal):
            raise ModelError(records.reason)
        return tuple(
            Score(domain=r.domain, split=r.split, metric=r.metric, value=r.value) for r in records
        )

    def _answer(
        self,
        order: Order,
        source: Source,
        begun: float,
        scores: tuple[Score, ...],
        update: Update | None = None,
    ) -> Answer:
        return Answer(
            round=order.round,
            schema_hash=order.schema_hash,
            examples=len(self._client.train),
            loss=None if update is None else _finite(update.loss),
            source=source,
            seconds=time.monotonic() - begun,
            scores=scores,
        )

    def _released(self, order: Order, local: Pack, answer: Answer) -> RecordDict:
        """Add the BatchNorm affine, never a statistic, where the site agreed to give it away."""
        if not (order.last and self._options.release_affine):
            return wire.put(answer)
        return wire.put(answer, **{wire.AFFINE: to_record(affine_of(local))})


def affine_of(local: Pack) -> Pack:
    """The BatchNorm affine of a local part."""
    chosen = [e for e in local.layout.entries if e.kind == Kind.BN_AFFINE]
    return Layout.of(chosen).pack({e.name: local.state[e.name] for e in chosen})


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


def _place(order: Order, name: str) -> int:
    return [member.name for member in order.members].index(name)


def _finite(loss: float) -> float | None:
    return loss if abs(loss) < float("inf") else None
