"""One job at a site: trains and scores from the shared part sent and the local part kept here.

Flower forgets a client's state when its node restarts and when a new run begins, so the site has
its own: one folder for federation, site, run, job and model, in it the local part after every
round that may still be asked for, written whole and with checksums. It survives kills, restarts
and messages done twice.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from flwr.app import ArrayRecord, RecordDict

from fedbn.core.federation import Client
from fedbn.core.packing import Pack, StateLayout
from fedbn.core.replica import Replica
from fedbn.core.rounds import Refusal, RunState, Update, initial_state, train_client
from fedbn.core.scoring import measured, score_client
from fedbn.core.state import Kind, entries, schema_hash
from fedbn.core.user_code import habits
from fedbn.errors import ConfigError, DamagedRun, ModelError
from fedbn.experiments.jobs import Job
from fedbn.experiments.planner import plan_of
from fedbn.fast import speedups
from fedbn.flower import messages
from fedbn.flower.messages import Answer, Order, Score, federation_of, from_record, to_record
from fedbn.runs import checkpoints
from fedbn.runs.folder import RunFolder

Source = Literal["fresh", "state", "disk"]


class Store(Protocol):
    """Where a site's local part lies between rounds."""

    source: Source

    def load(self, round: int, layout: StateLayout) -> Pack:
        """Read the local part after a round.

        Raises:
            DamagedRun: It is not there, or not whole.
        """

    def save(self, round: int, since: int, local: Pack) -> None:
        """Keep the local part after a round; `since` is the round that must stay beside it."""


class DiskStore:
    """The local part on the site's own disk."""

    source: Source = "disk"

    def __init__(self, root: Path, site: str, order: Order):
        run = RunFolder(root / order.federation / site / order.run)
        self._place = run.job(order.method, order.setting, order.seed) / order.schema_hash[:16]
        self._site = site

    def load(self, round: int, layout: StateLayout) -> Pack:
        """Read and verify one round."""
        known = dict(checkpoints.rounds(self._place))
        if round not in known:
            held = ", ".join(map(str, sorted(known))) or "none"
            raise DamagedRun(
                f"{self._site}: BatchNorm of round {round} is not in {self._place} "
                f"(rounds there: {held}); a silent new start would change the result. Bring the "
                "folder back, or let the server begin a new run"
            )
        like = RunState(round, _nothing(), {self._site: layout.zeros()})
        return checkpoints.load(known[round], like).local[self._site]

    def save(self, round: int, since: int, local: Pack) -> None:
        """Write the round; keep it, the accepted one, and the one before that."""
        self._place.mkdir(parents=True, exist_ok=True)
        state = RunState(round, _nothing(), {self._site: local})
        checkpoints.save(self._place, state, {"since": since}, keep=None)
        known = checkpoints.rounds(self._place)
        before = [number for number, _ in known if number < since][:1]
        for number, path in known:
            if number not in (round, since, *before):
                shutil.rmtree(path)


class StateStore:
    """The local part in Flower's own memory, for simulations: gone with the process."""

    source: Source = "state"

    def __init__(self, state: RecordDict, order: Order):
        self._state = state
        job = f"{order.run}/{order.method}/{order.setting}/{order.seed}/{order.schema_hash[:16]}"
        self._prefix = f"local/{job}/"

    def load(self, round: int, layout: StateLayout) -> Pack:
        """Read one round."""
        record = self._state.array_records.get(f"{self._prefix}{round}")
        if record is None:
            raise DamagedRun(
                f"BatchNorm of round {round} is not in Flower's memory: the node was restarted. "
                "Give the site a folder (`state-dir` in its node configuration) to survive that"
            )
        return from_record(record, layout)

    def save(self, round: int, since: int, local: Pack) -> None:
        """Keep the round and the accepted one."""
        kept: dict[str, ArrayRecord] = {f"{self._prefix}{round}": to_record(local)}
        if before := self._state.array_records.get(f"{self._prefix}{since}"):
            kept.setdefault(f"{self._prefix}{since}", before)
        for name in [n for n in self._state.array_records if n.startswith(self._prefix)]:
            del self._state[name]
        for name, record in kept.items():
            self._state[name] = record


def _nothing() -> Pack:
    return StateLayout(()).zeros()


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
        noticed = habits(self._plan.initial_model, [own])
        for text in noticed.notes:
            log.info(text)
        fast = speedups(self._plan, client=names.index(own.name))
        self._replica = Replica(
            self._plan.initial_model, self._plan.method, device, noticed, speedups=fast
        )
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
        return messages.put(answer, **{messages.SHARED: to_record(outcome.shared)})

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
            return messages.put(answer)
        return messages.put(answer, **{messages.AFFINE: to_record(affine_of(local))})


def affine_of(local: Pack) -> Pack:
    """The BatchNorm affine of a local part."""
    chosen = [e for e in local.layout.entries if e.kind == Kind.BN_AFFINE]
    return StateLayout.of(chosen).pack({e.name: local.state[e.name] for e in chosen})


def _finite(loss: float) -> float | None:
    return loss if abs(loss) < float("inf") else None


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
