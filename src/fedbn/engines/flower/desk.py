"""One job at a site: trains and scores from the shared part sent and the local part kept here."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from flwr.app import ArrayRecord, RecordDict

from fedbn.core.federation import Client
from fedbn.core.habits import habits
from fedbn.core.packing import Layout, Pack
from fedbn.core.replica import Replica
from fedbn.core.rounds import (
    Refusal,
    RunState,
    Update,
    initial_state,
    train_client,
)
from fedbn.core.scoring import measured, score_client
from fedbn.core.state import Kind, entries, schema_hash
from fedbn.engines.flower import wire
from fedbn.engines.flower.codec import from_record, to_record
from fedbn.engines.flower.jobs import federation_of, plan_of
from fedbn.engines.flower.store import DiskStore, Source, StateStore, Store
from fedbn.engines.flower.wire import Answer, Order, Score
from fedbn.errors import ConfigError, ModelError
from fedbn.experiments.settings import Job

if TYPE_CHECKING:
    from fedbn.engines.flower.site import SiteOptions

log = logging.getLogger("fedbn")


class Desk:
    """A job's plan and model at a site.

    Args:
        options: What the site decided for itself.
        job: What is run.
        own: The site's data.
        order: The first order of the job; later ones have the same members.
    """

    def __init__(self, options: SiteOptions, job: Job, own: Client, order: Order):
        names = [member.name for member in order.members]
        if own.name not in names:
            raise ConfigError(f"site {own.name} is not among the members of this run")
        sites = federation_of(order.members, order.classes, order.input_shape, own)
        self._plan = plan_of(job, sites)
        self._options = options
        device = self._plan.training.device
        self._client = own.change(lambda split: split.to(device))  # and no stand-in
        sample = own.train.batch(slice(0, 2))[0].cpu()
        noticed = habits(self._plan.initial_model, [own])
        for text in noticed.notes:
            log.info(text)
        self._replica = Replica(self._plan.initial_model, self._plan.method, device, None, noticed)
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
        local, source = self._local(order, store, shared)
        # A round is trained, and its predecessor scored, from the same two parts.
        done = order.round - 1 if order.kind == "train" else order.round
        before = RunState(done, shared, {name: local})
        scores = self._scores(order, before) if order.scores else ()
        if order.kind == "score":
            return self._released(order, local, self._answer(order, source, begun, scores))
        outcome = train_client(self._plan, self._replica, self._client, before)
        if isinstance(outcome, Refusal):
            raise ModelError(outcome.reason)
        store.save(order.round, order.since, outcome.local)
        answer = self._answer(order, source, begun, scores, outcome)
        return wire.put(answer, **{wire.SHARED: to_record(outcome.shared)})

    def _store(self, order: Order, state: RecordDict) -> Store:
        if self._options.folder is None:
            return StateStore(state, order)
        return DiskStore(self._options.folder, self._client.name, order)

    def _local(self, order: Order, store: Store, shared: Pack) -> tuple[Pack, Source]:
        """The local part after the last round that the server accepted; new before the first."""
        start = self._initial.local[self._client.name]
        if order.since:
            return store.load(order.since, start.layout), store.source
        if order.joined and self._plan.local_statistics:
            # A site that came later: the statistics of its own data, new affine.
            state = RunState(0, shared, {self._client.name: start})
            return measured(self._replica, self._client, state), "fresh"
        return start, "fresh"

    def _scores(self, order: Order, state: RunState) -> tuple[Score, ...]:
        if not (order.since or order.joined) and self._plan.local_statistics:
            own = measured(self._replica, self._client, state)
            state = replace(state, untrained={self._client.name: own})
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


def _finite(loss: float) -> float | None:
    return loss if abs(loss) < float("inf") else None
