"""One round, Algorithm 1 of the paper: old state in, new state out, whatever the engine.

From top to bottom: what a run carries, the round, one client's part of it (`local_training` has its
steps), which updates count, and the numbers that a round gives.
"""

from __future__ import annotations

import logging
import math
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import cast

import torch
from torch import Tensor

from fedbn.core.aggregation import Weighted
from fedbn.core.federation import Client, Split, Targets, targets_of
from fedbn.core.local_training import ClientWork, local_train
from fedbn.core.own_statistics import following, statistics_of
from fedbn.core.packing import Pack, StateLayout
from fedbn.core.plan import Plan
from fedbn.core.randomness import drawn, generator, number, seeded
from fedbn.core.replica import Replica
from fedbn.core.rule import Asked, ClientRound, Memories, Rule, Trained, word_of, wrapped
from fedbn.core.state import Entry, State, entries
from fedbn.core.statistics_kinds import RUNNING, StatisticsKind
from fedbn.core.user_code import Habits, contained, habits
from fedbn.errors import DataError, FedbnError, TooFewClients, reason

log = logging.getLogger("fedbn")
# One round of training never moves a model a thousand times its own length. Statistics of
# BatchNorm may (unscaled inputs), so only trainable entries are measured.
_MOST = 1e3
# Beyond these a client's training that diverged is blamed on them.
_LARGE_LR = 1.0
_LARGE_TARGET = 100.0
_LARGE_FEATURE = 1e3


@dataclass(frozen=True)
class RunState:
    """All that a run carries from one round to the next.

    Attributes:
        round: Rounds done.
        shared: What the server holds.
        local: What each client holds; it never leaves the client.
        memory: What the server remembers: the tensors of its optimiser, and those of rules.
        untrained: Of clients whose BatchNorm has seen no data, because no update of theirs was ever
            accepted, the local part they are scored and used with; they train from `local`.
        own_statistics: Running statistics that each client keeps for scoring only, where the
            method averages them; empty if none are kept.
    """

    round: int
    shared: Pack
    local: Mapping[str, Pack]
    memory: State = field(default_factory=dict)
    untrained: Mapping[str, Pack] = field(default_factory=dict)
    own_statistics: Mapping[str, Pack] = field(default_factory=dict)

    def scored_with(self, client: str) -> Pack:
        """The local part that a client is scored and used with."""
        return self.untrained.get(client, self.local[client])


@dataclass(frozen=True)
class Update:
    """What a client's training gave; `near` where that was looked at already (`surely_near`)."""

    client: str
    shared: Pack
    local: Pack
    loss: float
    near: bool = False
    own_statistics: Pack | None = None  # those that the client keeps for scoring only


@dataclass(frozen=True)
class Refusal:
    """Why a client's update was left out of a round; `kind` is that of an error, where one was."""

    client: str
    reason: str
    kind: str = ""


Outcome = Update | Refusal
Train = Callable[[Sequence[Client], RunState], Iterable[Outcome]]


@dataclass
class Report:
    """What happened in a round: who was accepted, with which training loss, and who was not."""

    losses: dict[str, float] = field(default_factory=dict)
    local: dict[str, Pack] = field(default_factory=dict)
    own_statistics: dict[str, Pack] = field(default_factory=dict)
    refusals: list[Refusal] = field(default_factory=list)


def initial_state(plan: Plan) -> RunState:
    """Make the state before the first round; every client starts from the same local part."""
    model, method = plan.initial_model, plan.method
    found, tensors = entries(model), model.state_dict()
    memories = method.memories(found)

    def started(some: Iterable[Entry]) -> Pack:
        pack = StateLayout.of(some).zeros()
        for name, view in pack.state.items():
            memory = memories.get(name)
            like = memory.like.name if memory and memory.start == "entry" else name
            if like in tensors:
                view.copy_(tensors[like])
        return pack

    shared, local = started(method.shared(found)), started(method.local(found))
    parts = {client.name: local for client in plan.federation.clients}
    memory = {n: v.clone() for n, v in started(method.remembered(found, "server")).state.items()}
    own: dict[str, Pack] = {}
    if plan.keeps_statistics:
        own = dict.fromkeys(parts, statistics_of(model))
    return RunState(0, shared, parts, memory, parts if plan.local_statistics else {}, own)


def run_round(plan: Plan, state: RunState, train: Train) -> tuple[RunState, Report]:
    """Do one round.

    1. Draw who takes part.
    2. Each trains from the shared part and its own local part.
    3. The server combines what was shared, in the fixed order of the clients.
    4. Each client that trained keeps its new local part; the others keep theirs.
    """
    chosen = participants(plan, state.round + 1)
    report = Report()
    accepted = _accepted(plan, state.round + 1, chosen, train(chosen, state), report, state.shared)
    with seeded(number(plan.seed, "server draws", state.round + 1)):  # a user's own may draw
        shared, memory = plan.method.aggregate(
            accepted, state.shared, state.memory, len(plan.federation.clients)
        )
    _check_enough(plan, state.round + 1, len(chosen), report)
    spoilt = (name for name, value in memory.items() if not bool(torch.isfinite(value).all()))
    if name := shared.unusable() or next(spoilt, None):
        raise FedbnError(
            f"round {state.round + 1}: combining the updates overflowed in {name}; "
            "nothing was taken over. A smaller training.lr or a robust aggregator may help"
        )
    # New parts lie over those that stay as they are, which may lie on a disk.
    changed, below = state.local.maps if isinstance(state.local, ChainMap) else ({}, state.local)
    local = ChainMap({**changed, **report.local}, cast(MutableMapping[str, Pack], below))
    untrained = {name: p for name, p in state.untrained.items() if name not in report.local}
    own = {**state.own_statistics, **report.own_statistics}
    return RunState(state.round + 1, shared, local, memory, untrained, own), report


def participants(plan: Plan, round: int) -> tuple[Client, ...]:
    """Draw who takes part, from (seed, round) alone; in the federation's order."""
    clients, wanted = plan.federation.clients, plan.clients_a_round
    if wanted == len(clients):
        return clients
    order = torch.randperm(len(clients), generator=generator(plan.seed, "participants", round))
    return tuple(clients[i] for i in sorted(order[:wanted].tolist()))


def train_client(plan: Plan, replica: Replica, client: Client, state: RunState) -> Outcome:
    """Train one client for one round: join, train as the method's rules say, split.

    An error in the client's training, or an update that is not finite, becomes a refusal: it
    concerns this client and not the others.

    Raises:
        DataError: A sample that was read meanwhile cannot be trained on.
    """
    round = state.round + 1
    kept = state.own_statistics.get(client.name)
    own = None if kept is None else kept.clone()

    def train(asked: Asked) -> Trained:
        only = asked.stepped(replica.tensors)
        work = ClientWork(
            replica.model,
            client.train,
            plan.training.in_round(round),
            plan.steps(client, asked.epochs) if asked.steps is None else asked.steps,
            generator(plan.seed, f"order {asked.draws}".strip(), round, client.name),
            asked.terms,
            asked.changes,
            None if only is None else {id(replica.tensors[name]) for name in only},
            plan.loss(client),
            replica.passes,
        )
        followed = own if asked.on is None else None
        with replica.trained_on(asked.on), following(replica.model, followed):
            return local_train(work)

    replica.load(state.shared, state.local[client.name])
    try:
        with contained(), replica.seeds(number(plan.seed, "model draws", round, client.name)):
            trained = wrapped(_clients_of_rules(plan, replica, client, state), train)
    except DataError:
        raise  # bad data stops a run, whoever's it is
    except Exception as error:
        return failure(client, "", error)
    shared, local = replica.shared.clone(), replica.local.clone()
    update = Update(client.name, shared, local, trained.loss, own_statistics=own)
    return examined_after_training(plan, client, update, round)


def noticed(plan: Plan, clients: Sequence[Client]) -> Habits:
    """The habits of the model and, in one step of a client, of a user's own rules and losses."""
    found, method = habits(plan.initial_model, clients), plan.method
    rules = (getattr(rule, "penalty", rule) for rule in method.rules)  # a penalty as one gave it
    parts = (plan.task.loss, plan.task.loss_for, *rules)
    homes = {getattr(part, "__module__", "") for part in parts if part is not None}
    if found.draws or all(home.startswith(("fedbn.", "torch.")) for home in homes):
        return found
    step = replace(plan, training=replace(plan.training, local_steps=1, device="cpu"))
    replica, state = Replica(plan.initial_model, method), initial_state(plan)
    return replace(found, draws=drawn(lambda: train_client(step, replica, clients[0], state))[1])


def _clients_of_rules(
    plan: Plan, replica: Replica, client: Client, state: RunState
) -> list[tuple[Rule, ClientRound]]:
    """The client as each rule sees it; a rule's own entries begin with the client's first round."""
    replica.begin_round()
    packs = (replica.shared.state, replica.local.state)
    return [
        (
            rule,
            ClientRound(
                client.name,
                state.round + 1,
                plan.training.rounds,
                replica.model,
                replica.parts,
                replica.tensors,
                state.shared.state,
                Memories(word_of(rule), *packs),
            ),
        )
        for rule in plan.method.rules
    ]


def failure(client: Client, what: str, error: Exception) -> Refusal:
    """Make a refusal of an error in a client's own code or data."""
    log.debug("client %s failed", client.name, exc_info=True)
    return Refusal(client.name, f"{what}{reason(error)}", type(error).__name__)


def examined(update: Update) -> Outcome:
    """Refuse an update that holds a NaN or an infinity: one would poison the global model."""
    for part in (update.shared, update.local):
        if name := part.unusable():
            return Refusal(update.client, f"its update has NaN or infinity in {name}")
    return update


def examined_after_training(plan: Plan, client: Client, update: Update, round: int) -> Outcome:
    """Reject an update that is not finite, and name the cause where training diverged."""
    outcome = examined(update)
    if isinstance(outcome, Update):
        return outcome
    cause = likely_cause(plan, client, round)
    if isfinite(update.loss) and cause is None:
        return outcome
    lower = f"lower training.lr ({plan.training.in_round(round).lr:g})"
    return replace(outcome, reason=f"its training diverged: {cause or lower}")


def likely_cause(plan: Plan, client: Client, round: int) -> str | None:
    """Return what can make a client's training diverge, and what to do; None if nothing stands out.

    Looked at are the learning rate, targets that are numbers, and features.
    """
    lr, data = plan.training.in_round(round).lr, client.train
    if lr > _LARGE_LR:
        return f"training.lr = {lr:g} is too large; lower it"
    numbers = data.y is not None and targets_of(data.y) is Targets.NUMBERS
    x = data.x if isinstance(data, Split) and data.x.is_floating_point() else None
    for what, values, usual in (
        ("targets", data.y if numbers else None, _LARGE_TARGET),
        ("features", x, _LARGE_FEATURE),
    ):
        if values is not None and (largest := float(values.abs().max())) > usual:
            return f"{what} reach {largest:.3g}; standardise them, or lower training.lr ({lr:g})"
    return None


def _accepted(
    plan: Plan,
    round: int,
    chosen: Sequence[Client],
    outcomes: Iterable[Outcome],
    report: Report,
    before: Pack,
) -> Iterator[Weighted]:
    for client, weight, outcome in zip(chosen, plan.weights(chosen), outcomes, strict=True):
        far = isinstance(outcome, Update) and not outcome.near
        if far and (fault := absurd(cast(Update, outcome).shared, before)):
            cause = likely_cause(plan, client, round)
            fault = f"its training diverged: {cause} ({fault})" if cause else fault
            outcome = Refusal(client.name, fault)
        if isinstance(outcome, Refusal):
            report.refusals.append(outcome)
            continue
        report.losses[client.name] = outcome.loss
        report.local[client.name] = outcome.local
        if outcome.own_statistics is not None:
            report.own_statistics[client.name] = outcome.own_statistics
        yield Weighted(outcome.shared, weight)


def _check_enough(plan: Plan, round: int, chosen: int, report: Report) -> None:
    asked, needed = plan.training.min_clients, plan.updates_needed
    if len(report.losses) >= needed:
        return
    reasons = "; ".join(f"{refusal.client}: {refusal.reason}" for refusal in report.refusals)
    why = (
        f"training.min_clients = {asked}"
        if asked == needed
        else f"{plan.method.name} needs {needed}"
    )
    raise TooFewClients(
        f"round {round}: {len(report.losses)} of {chosen} clients gave a usable update, "
        f"{why} ({reasons})"
    )


def absurd(update: Pack, before: Pack) -> str | None:
    """Say how an update is absurdly far from where it started, or None where it is not.

    Examples:
        >>> layer = torch.nn.Linear(2, 1)
        >>> start = StateLayout.of(entries(layer)).pack(layer.state_dict())
        >>> far = start.layout.pack({n: v + 1e9 for n, v in start.state.items()})
        >>> absurd(start, start) is None, absurd(far, start) is None
        (True, False)
    """
    if bool(surely_near(update, before)):
        return None
    pairs = zip(_trained(update), _trained(before), strict=True)
    doubled = [(new.double(), old.double()) for new, old in pairs]
    moved = float(_length([new - old for new, old in doubled]))
    length = float(_length([old for _, old in doubled]))
    if moved <= _MOST * (length + 1):
        return None
    return f"its update moves the model by {moved:.3g}, the model's own norm is {length:.3g}"


def surely_near(updates: Pack, before: Pack) -> Tensor:
    """Tell which updates, one or a row each, need no closer look: nearly every one.

    |new - old| <= |new| + |old|: two passes without a copy.
    """
    length = _length(_trained(before))
    return _length(_trained(updates)) + length <= _MOST * (length + 1)


def _trained(pack: Pack) -> list[Tensor]:
    return [v for group, v in pack.vectors.items() if group.trainable and not group.integer]


def _length(vectors: Sequence[Tensor]) -> Tensor:
    lengths = [torch.linalg.vector_norm(vector, dim=-1).double() for vector in vectors]
    return torch.linalg.vector_norm(torch.stack(lengths), dim=0) if lengths else torch.zeros(())


@dataclass(frozen=True)
class Record:
    """One measured number, as one line of `metrics.jsonl`.

    `statistics` is the kind of BatchNorm statistics that the client was scored with.
    """

    method: str
    setting: str
    seed: int
    round: int
    client: str
    domain: str
    split: str
    metric: str
    value: float | None
    statistics: str = RUNNING


def round_records(plan: Plan, round: int, report: Report) -> list[Record]:
    """The numbers that a round gives at no extra pass: training losses, and who was refused."""
    refused = dict.fromkeys((refusal.client for refusal in report.refusals), 1.0)
    return [
        record(plan, round, client, "train", metric, values[client.name])
        for client in plan.federation.clients
        for metric, values in (("training_loss", report.losses), ("refused", refused))
        if client.name in values
    ]


def missing_scores(
    plan: Plan, round: int, client: Client, statistics: StatisticsKind
) -> list[Record]:
    """Make records without a value, of a client's test scores that could not be computed."""
    names = ("loss", *(metric.name for metric in plan.task.metrics))
    return [
        record(plan, round, client, "test", name, math.nan, domain, statistics)
        for domain in client.tests
        for name in names
    ]


def record(
    plan: Plan,
    round: int,
    client: Client,
    split: str,
    metric: str,
    value: float,
    domain: str = "",
    statistics: str = RUNNING,
) -> Record:
    """Make a record, of the client's own domain unless said; a value not finite is null."""
    job, number = (plan.method.name, plan.setting, plan.seed), value if isfinite(value) else None
    where = (client.name, domain or client.domain, split, metric)
    return Record(*job, round, *where, number, statistics)
