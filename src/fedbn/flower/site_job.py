"""One job at a site: trains and scores from the shared part sent and the local part kept here.

Flower forgets a client's state when its node restarts and when a new run begins, so the site has
its own: a run folder of one client, as `fedbn run` makes one, which is the site's to use. Beside it
lies the local part after every round that may still be asked for, written whole and with
checksums. It survives kills, restarts and messages done twice.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from flwr.app import ArrayRecord, RecordDict

from fedbn.core.federation import Federation
from fedbn.core.packing import Pack, StateLayout
from fedbn.core.replica import Replica
from fedbn.core.rounds import (
    Record,
    Rejection,
    RunState,
    Update,
    initial_state,
    noticed,
    train_client,
)
from fedbn.core.scoring import measured, score_client
from fedbn.core.state import Kind, entries, schema_hash
from fedbn.errors import ConfigError, DamagedRun, FedbnError, ModelError
from fedbn.experiments.configuration import checked
from fedbn.experiments.environment import differences, environment_of, facts_by_setting
from fedbn.experiments.jobs import DEFAULT, Event, Job
from fedbn.experiments.planner import plan_of, resolved
from fedbn.experiments.schema import DataSection
from fedbn.experiments.sources import task_of
from fedbn.fast import speedups
from fedbn.flower import messages
from fedbn.flower.audit_log import AuditLog
from fedbn.flower.messages import Answer, Order, federation_of, from_record, to_record
from fedbn.flower.policy import OPEN, Policy
from fedbn.flower.query_budget import (
    QueryBudget,
    Question,
    budget_folder,
    check_state,
    released_loss,
    released_scores,
)
from fedbn.flower.status_page import StatusPage
from fedbn.registry import TYPED, Held
from fedbn.runs import checkpoints, metrics
from fedbn.runs.folder import RunFolder, folder_name

log = logging.getLogger("fedbn")
Source = Literal["fresh", "state", "disk"]
_NOTHING = StateLayout(()).zeros()  # in place of the shared part, which is the server's


@dataclass(frozen=True)
class SiteOptions:
    """What a site decides for itself."""

    name: str  # the site; also the client's name
    data: Mapping[str, Any]  # its `[data]` section: where its samples are
    folder: Path | None = None  # where its run folders lie; None for Flower's memory (simulations)
    federation: str | None = None  # the federation it belongs to; orders of another one are refused
    release_affine: bool = False  # whether it gives its BatchNorm affine away when a run has ended
    device: str | None = None  # what it trains on; None for what the experiment says
    # its copy of the experiment's `model.weights`; no other file is opened for that
    weights: Path | None = None
    policy: Policy = OPEN  # what it allows
    home: Path | None = None  # where the experiments lie that a person approved
    log: AuditLog = field(default_factory=AuditLog)  # what was asked and what left the site
    held: Held = TYPED  # where `data` comes from: a person typed it at the site

    @property
    def section(self) -> DataSection:
        """The site's data as a checked section."""
        return DataSection.model_validate(dict(self.data), context=self.held)

    @cached_property
    def budget(self) -> QueryBudget:
        """The answers that the site gave, and those that it may still give."""
        return QueryBudget(budget_folder(self.home, self.folder), self.policy)


class Failed(FedbnError):  # noqa: N818 - the name says what happened
    """Training or scoring failed at the site; an error there is told by its kind alone."""

    def __init__(self, refused: Rejection):
        super().__init__(refused.reason)
        self.kind = refused.kind


class SiteRun:
    """A run folder of one client, which is the site's to use, and what the server may ask for."""

    source: Source = "disk"

    def __init__(self, root: Path, site: str, order: Order):
        self.folder = run_folder(root, order)
        self._site = site
        self._job = self.folder.job(order.method, DEFAULT, order.seed)
        place = Path(folder_name(order.method)) / f"seed-{order.seed}" / order.schema_hash[:16]
        self._place = self.folder.path / "local" / place
        self._written: set[Record] | None = None

    def begin(self, job: Job, data: Mapping[str, Any], federation: Federation) -> None:
        """Write down what is run, or refuse what is not what lies there under this name."""
        experiment = job.setting.experiment
        raw = experiment.model_dump(exclude_unset=True, exclude_none=True)
        # The contract, where the samples are, and options that the site left open.
        source = {**federation.settled, **raw.get("data", {}), **data}
        raw["data"] = {"name": "at_site", "site": self._site, "source": source}
        found = checked(raw, "the server's configuration", experiment.held)
        config = resolved(found, replace(federation, settled={}))  # `at_site` takes no option
        facts = {
            "data": federation.fingerprint(),
            "inputs": facts_by_setting({"": federation}),
            "task": task_of(experiment, federation).facts(),
        }
        environment = environment_of(config, [job], Path.cwd(), engine="flower", **facts)
        if self.folder.config.exists():
            here = {**config["training"], "device": ""}  # a site may take another one
            before = self.folder.read_environment()
            old = before.get("config", {})
            training = {**old.get("training", {}), "device": ""}
            differences(
                {**before, "config": {**old, "training": training}},
                {**environment, "config": {**config, "training": here}},
            )
        self.folder.path.mkdir(parents=True, exist_ok=True)
        self.folder.commit(config, environment)

    def check_start(self, order: Order) -> None:
        """Refuse a start from round 0 where a server accepted rounds, or got further, before."""
        if order.since:
            return
        kept, trains = checkpoints.rounds(self._place), order.kind == "train"
        accepted = any(checkpoints.read_manifest(path).get("since") for _, path in kept)
        found = (kept, checkpoints.rounds(self._job))
        trained, made = (max((number for number, _ in some), default=0) for some in found)
        if accepted or trained > order.round + (not trains) or made > order.round - trains:
            raise DamagedRun(
                f"{self._site}: the run begins anew, and {self.folder.path} has BatchNorm and a "
                "model of later rounds: give the run another name, or move that folder away"
            )

    def load(self, round: int, layout: StateLayout) -> Pack:
        """Read and verify the local part after a round."""
        known = dict(checkpoints.rounds(self._place))
        if round not in known:
            held = ", ".join(map(str, sorted(known))) or "none"
            raise DamagedRun(
                f"{self._site}: BatchNorm of round {round} is not in {self._place} "
                f"(rounds there: {held}); a silent new start would change the result. Bring the "
                "folder back, or let the server begin a new run"
            )
        like = RunState(round, _NOTHING, {self._site: layout.zeros()})
        return checkpoints.load(known[round], like).local[self._site]

    def save(self, round: int, since: int, local: Pack) -> None:
        """Write the local part; keep it, that of the accepted round, and the one before that."""
        state = RunState(round, _NOTHING, {self._site: local})
        checkpoints.save(self._place, state, {"since": since}, keep=None)
        before = [number for number, _ in checkpoints.rounds(self._place) if number < since][:1]
        _forget(self._place, {round, since, *before})

    def keep(self, state: RunState, best: int) -> None:
        """Keep the model after a round, shared part and local part, and that of the best round."""
        if best and best != state.round and not checkpoints.place_of(self._job, best).exists():
            say = "%s was away when round %d, the best one, was sent: round %d is used"
            log.warning(say, self._site, best, state.round)
            best = state.round
        facts = {"best": best} if best else {}
        checkpoints.save(self._job, state, facts, keep=None)
        _forget(self._job, {state.round, best})

    def end(self, like: RunState, best: int) -> None:
        """Take note of which round is the one to use."""
        state, _ = checkpoints.newest(self._job, like)
        if state is not None:
            self.keep(state, best)

    def earlier(self) -> list[dict[str, Any]]:
        """The numbers of the site's own that were written."""
        return metrics.read(self._job / "metrics.jsonl")

    def write(self, records: Iterable[Record]) -> None:
        """Add numbers of the site's own; a message done twice gives them twice."""
        file = self._job / "metrics.jsonl"
        if self._written is None:
            self._written = {Record(**record) for record in self.earlier()}
        new = [record for record in records if record not in self._written]
        text = "".join(map(metrics.line, new)).encode()
        for each in (file, self.folder.metrics):
            each.parent.mkdir(parents=True, exist_ok=True)
            metrics.append(each, text)
        self._written.update(new)


def run_folder(root: Path, order: Order) -> RunFolder:
    """The run folder of an order; each setting of a sweep has one of its own."""
    setting = "" if order.setting == DEFAULT else f",{order.setting}"
    return RunFolder(root / folder_name(f"{order.run}{setting}"))


def _forget(folder: Path, but: set[int]) -> None:
    for number, path in checkpoints.rounds(folder):
        if number not in but:
            shutil.rmtree(path)


class FlowerMemory:
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
        kept = {f"{self._prefix}{number}" for number in (round, since)}
        self._state[f"{self._prefix}{round}"] = to_record(local)
        for name in [n for n in self._state.array_records if n.startswith(self._prefix)]:
            if name not in kept:
                del self._state[name]


class Desk:
    """A job's plan and model at a site, for orders that have the same members as the first."""

    def __init__(self, options: SiteOptions, job: Job, alone: Federation, order: Order):
        (own,) = alone.clients
        names = [member.name for member in order.members]
        if own.name not in names:
            raise ConfigError(f"site {own.name} is not among the members of this run")
        fits = alone.classes, alone.input_shape, alone.target
        if fits != (order.classes, order.input_shape, order.target):  # fewer classes ask for labels
            raise ModelError("other classes, or another shape, than the site's data has")
        sites = federation_of(order.members, order.classes, order.input_shape, order.target, own)
        self.plan = plan_of(job, sites)
        self._options = options
        device = self.plan.training.device
        self._client = own.change(lambda split: split.to(device))  # and no stand-in
        seen = noticed(self.plan, [own])
        for text in seen.notes:
            log.info(text)
        fast = speedups(self.plan, client=names.index(own.name))
        self._replica = Replica(
            self.plan.initial_model, self.plan.method, device, seen, speedups=fast
        )
        self._initial = initial_state(self.plan)
        found = schema_hash(entries(self.plan.initial_model))
        if found != order.schema_hash:
            raise ModelError(f"another model: {found[:16]} here, {order.schema_hash[:16]} asked")
        self._about = job, alone, order
        self._key = (self.plan.method.name, DEFAULT, self.plan.seed)
        self._page: StatusPage | None = None

    @cached_property
    def _run(self) -> SiteRun | None:
        """The site's run folder, begun when there is something to write."""
        job, alone, order = self._about
        if self._options.folder is None:
            return None
        run = SiteRun(self._options.folder, self._client.name, order)
        run.begin(job, self._options.data, alone)
        title = f"site {self._client.name}: run {order.run}"
        self._page = StatusPage(run.folder.path / "status.html", title)
        self._show("earlier", order.round, run.earlier())
        return run

    def remark(self, text: str) -> None:
        """Say on the site's page what was refused."""
        if self._page:
            self._page.hear(Event("note", self._key, text=text))

    def _show(self, kind: Literal["earlier", "round", "done"], round: int, records: Any) -> None:
        if self._page:
            judged = self.plan.task.metrics[0].facts()
            rounds = self.plan.training.rounds
            self._page.hear(Event(kind, self._key, round, rounds, records=records, metric=judged))

    def work(self, order: Order, sent: ArrayRecord, state: RecordDict) -> RecordDict:
        """Train or score from the shared part that was sent and the local part kept here."""
        begun = time.monotonic()
        store = self._run or FlowerMemory(state, order)
        shared = from_record(sent, self._initial.shared.layout)
        check_state(self._options.policy, order, shared, self._initial.shared)
        question, budget = Question.of(order, self._about[0], shared), self._options.budget
        if budget.resumed(question):
            facts = order.model_dump(include={"run", "method", "seed", "round", "session"})
            self._options.log.write("resumed", **facts)
        if (answered := budget.stored(question)) is not None:
            return answered
        if self._run:
            self._run.check_start(order)
        budget.charge(question)  # before any of the site's samples is read for it
        local, source = self._local(order, store, shared)
        answer = self._worked(order, shared, local, store, source, begun)
        budget.keep(question, answer)
        return answer

    def _worked(
        self,
        order: Order,
        shared: Pack,
        local: Pack,
        store: SiteRun | FlowerMemory,
        source: Source,
        begun: float,
    ) -> RecordDict:
        """Train or score, and write down what the site keeps of it."""
        name = self._client.name
        # A round is trained, and its predecessor scored, from the same two parts.
        done = order.round - 1 if order.kind == "train" else order.round
        before = RunState(done, shared, {name: local})
        records = self._scored(order, before) if order.scores else []
        update = None
        if order.kind == "train":
            outcome = train_client(self.plan, self._replica, self._client, before)
            if isinstance(outcome, Rejection):
                raise Failed(outcome)
            store.save(order.round, order.since, outcome.local)
            update = outcome
        self._write(order, before, records, update)
        seconds, tells = time.monotonic() - begun, "loss" in self._options.policy.sends
        loss = self._loss(update.loss) if update is not None and tells else None
        answer = self._answer(order, records, source=source, seconds=seconds, loss=loss)
        if update is not None:
            return messages.put(answer, **{messages.SHARED: to_record(update.shared)})
        return self._released(order, local, answer)

    def end(self, order: Order) -> None:
        """Take note that the run is over, and which round is the one to use."""
        if self._run:
            self._run.check_start(order)
            local = {self._client.name: self._initial.local[self._client.name]}
            self._run.end(replace(self._initial, local=local, untrained={}), order.best)

    def _write(
        self, order: Order, state: RunState, records: Sequence[Record], update: Update | None
    ) -> None:
        """Keep the model and the numbers of the site in its own run folder."""
        if self._run is None:
            return
        if state.round:
            self._run.keep(self._completed(order, state), order.best)
        own = [replace(record, setting=DEFAULT) for record in records]
        if update is not None:
            about = (self._client.name, self._client.domain, "train", "training_loss")
            own.append(Record(*self._key, order.round, *about, _finite(update.loss)))
        self._run.write(own)
        self._show("done" if order.last else "round", order.round, list(map(vars, own)))

    def _local(
        self, order: Order, store: SiteRun | FlowerMemory, shared: Pack
    ) -> tuple[Pack, Source]:
        """The local part after the last round that the server accepted; new before the first."""
        start = self._initial.local[self._client.name]
        if order.since:
            return store.load(order.since, start.layout), store.source
        if order.joined and self.plan.local_statistics:
            # A site that came later: the statistics of its own data, new affine.
            state = RunState(0, shared, {self._client.name: start})
            return measured(self._replica, self._client, state), "fresh"
        return start, "fresh"

    def _completed(self, order: Order, state: RunState) -> RunState:
        """Give a site that has not trained yet the statistics of its own data."""
        if (order.since or order.joined) or not self.plan.local_statistics:
            return state
        own = measured(self._replica, self._client, state)
        return replace(state, untrained={self._client.name: own})

    def _scored(self, order: Order, state: RunState) -> list[Record]:
        state = self._completed(order, state)
        records = score_client(self.plan, self._replica, self._client, state)
        if isinstance(records, Rejection):
            raise Failed(records)
        return records

    def _answer(self, order: Order, records: Sequence[Record], **facts: Any) -> Answer:
        policy = self._options.policy
        told = records if "scores" in policy.sends else ()
        return Answer(
            round=order.round,
            schema_hash=order.schema_hash,
            examples=len(self._client.train),
            log=self._options.log.newest,
            scores=released_scores(policy, self.plan, self._client, told),
            **facts,
        )

    def _loss(self, loss: float) -> float | None:
        """Return the training loss as it leaves the site."""
        return released_loss(self._options.policy, loss, len(self._client.train))

    def _released(self, order: Order, local: Pack, answer: Answer) -> RecordDict:
        """Add the BatchNorm affine, never a statistic, where the site agreed to give it away."""
        if not (order.last and self._options.release_affine):
            return messages.put(answer)
        chosen = [e for e in local.layout.entries if e.kind == Kind.BN_AFFINE]
        affine = StateLayout.of(chosen).pack({e.name: local.state[e.name] for e in chosen})
        return messages.put(answer, **{messages.AFFINE: to_record(affine)})


def _finite(loss: float) -> float | None:
    return loss if abs(loss) < float("inf") else None
