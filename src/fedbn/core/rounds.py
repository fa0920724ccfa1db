"""The round, Algorithm 1 of the paper: old state in, new state out, whatever the engine."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from fedbn.core.aggregators import Weighted
from fedbn.core.federation import Client
from fedbn.core.foreign import contained
from fedbn.core.packing import Layout, Pack
from fedbn.core.plan import Plan
from fedbn.core.plausible import absurd
from fedbn.core.randomness import generator, number
from fedbn.core.replica import Replica
from fedbn.core.state import State, entries
from fedbn.core.training import local_train
from fedbn.errors import FedbnError, TooFewClients

log = logging.getLogger("fedbn")


@dataclass(frozen=True)
class RunState:
    """All that a run carries from one round to the next.

    Attributes:
        round: Rounds done.
        shared: What the server holds.
        local: What each client holds; it never leaves the client.
        memory: The tensors of the server's optimiser.
        untrained: Of clients whose BatchNorm has seen no data, because no update of theirs was ever
            accepted, the local part they are scored and used with; they train from `local`.
    """

    round: int
    shared: Pack
    local: Mapping[str, Pack]
    memory: State = field(default_factory=dict)
    untrained: Mapping[str, Pack] = field(default_factory=dict)

    def scored_with(self, client: str) -> Pack:
        """The local part that a client is scored and used with."""
        return self.untrained.get(client, self.local[client])


@dataclass(frozen=True)
class Update:
    """What a client's training gave."""

    client: str
    shared: Pack
    local: Pack
    loss: float


@dataclass(frozen=True)
class Refusal:
    """Why a client's update was left out of a round."""

    client: str
    reason: str


Outcome = Update | Refusal
Train = Callable[[Sequence[Client], RunState], Iterable[Outcome]]


@dataclass
class Report:
    """What happened in a round: who was accepted, with which training loss, and who was not."""

    losses: dict[str, float] = field(default_factory=dict)
    local: dict[str, Pack] = field(default_factory=dict)
    refusals: list[Refusal] = field(default_factory=list)


@dataclass(frozen=True)
class Record:
    """One measured number, as one line of `metrics.jsonl`."""

    method: str
    setting: str
    seed: int
    round: int
    client: str
    domain: str
    split: str
    metric: str
    value: float | None


def initial_state(plan: Plan) -> RunState:
    """Make the state before the first round; every client starts from the same local part."""
    model = plan.initial_model
    found, tensors = entries(model), model.state_dict()
    packs = []
    for part in (plan.method.shared(found), plan.method.local(found)):
        layout = Layout.of(part)
        packs.append(layout.pack({entry.name: tensors[entry.name] for entry in layout.entries}))
    shared, local = packs
    parts = {client.name: local for client in plan.federation.clients}
    return RunState(0, shared, parts, untrained=parts if plan.local_statistics else {})


def participants(plan: Plan, round: int) -> tuple[Client, ...]:
    """Draw who takes part, from (seed, round) alone; in the federation's order."""
    clients, wanted = plan.federation.clients, plan.clients_a_round
    if wanted == len(clients):
        return clients
    order = torch.randperm(len(clients), generator=generator(plan.seed, "participants", round))
    return tuple(clients[i] for i in sorted(order[:wanted].tolist()))


def train_client(plan: Plan, replica: Replica, client: Client, state: RunState) -> Outcome:
    """Train one client for one round: join, train, split.

    An error in the client's training, or an update that is not finite, becomes a refusal: it
    concerns this client and not the others.
    """
    round = state.round + 1
    draws = generator(plan.seed, "order", round, client.name)
    replica.load(state.shared, state.local[client.name])
    try:
        with contained(), replica.seeds(number(plan.seed, "model draws", round, client.name)):
            loss = local_train(
                replica.model,
                client.train,
                plan.training,
                plan.steps(client),
                draws,
                plan.method.penalties,
                replica.shared_parameters,
                replica.anchor(state.shared) if plan.method.penalties else (),
                plan.objective,
                replica.layout(client.train.batch(slice(0, 2))[0]),
                replica.aside,
            )
            replica.collect()
    except Exception as error:
        return failure(client, "", error)
    return examined(Update(client.name, replica.shared.clone(), replica.local.clone(), loss))


def examined(update: Update) -> Outcome:
    """Refuse an update that holds a NaN or an infinity: one would poison the global model."""
    for part in (update.shared, update.local):
        if name := part.unusable():
            return Refusal(update.client, f"its update has NaN or infinity in {name}")
    return update


def run_round(plan: Plan, state: RunState, train: Train) -> tuple[RunState, Report]:
    """Do one round.

    1. Draw who takes part.
    2. Each trains from the shared part and its own local part.
    3. The server combines what was shared, in the fixed order of the clients.
    4. Each client that trained keeps its new local part; the others keep theirs.
    """
    chosen = participants(plan, state.round + 1)
    report = Report()
    accepted = _accepted(plan, chosen, train(chosen, state), report, state.shared)
    shared, memory = plan.method.aggregate(accepted, state.shared, state.memory)
    _check_enough(plan, state.round + 1, len(chosen), report)
    if name := shared.unusable():
        raise FedbnError(
            f"round {state.round + 1}: combining the updates overflowed in {name}; "
            "nothing was taken over. A smaller training.lr or a robust aggregator may help"
        )
    local = {**state.local, **report.local}
    untrained = {name: p for name, p in state.untrained.items() if name not in report.local}
    return RunState(state.round + 1, shared, local, memory, untrained), report


def round_records(plan: Plan, round: int, report: Report) -> list[Record]:
    """The numbers that a round gives at no extra pass: training losses, and who was refused."""
    found = []
    refused = {refusal.client for refusal in report.refusals}
    for client in plan.federation.clients:
        if client.name in report.losses:
            value = report.losses[client.name]
            found.append(
                record(plan, round, client.name, client.domain, "train", "training_loss", value)
            )
        elif client.name in refused:
            found.append(record(plan, round, client.name, client.domain, "train", "refused", 1.0))
    return found


def failure(client: Client, what: str, error: Exception) -> Refusal:
    """Make a refusal of an error in a client's own code or data."""
    log.debug("client %s failed", client.name, exc_info=True)
    reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return Refusal(client.name, f"{what}{reason}")


def _accepted(
    plan: Plan, chosen: Sequence[Client], outcomes: Iterable[Outcome], report: Report, before: Pack
) -> Iterator[Weighted]:
    for client, outcome in zip(chosen, outcomes, strict=True):
        if isinstance(outcome, Update) and (fault := absurd(outcome.shared, before)):
            outcome = Refusal(client.name, fault)
        if isinstance(outcome, Refusal):
            report.refusals.append(outcome)
            continue
        report.losses[client.name] = outcome.loss
        report.local[client.name] = outcome.local
        yield Weighted(outcome.shared, plan.weight(client))


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


def record(
    plan: Plan, round: int, client: str, domain: str, split: str, metric: str, value: float
) -> Record:
    """Make a record; a value that is not finite is kept as null."""
    number = value if math.isfinite(value) else None
    return Record(
        plan.method.name, plan.setting, plan.seed, round, client, domain, split, metric, number
    )
