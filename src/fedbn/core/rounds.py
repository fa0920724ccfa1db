"""One round, Algorithm 1 of the paper: old state in, new state out, whatever the engine.

From top to bottom: the state that a run carries, the round, one client's part of it
(`local_training` has its steps), which updates are rejected, and what a round measures.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite

import torch
from torch import Tensor

from fedbn.core.aggregation import ClientUpdate
from fedbn.core.federation import Client, Split, Targets, targets_of
from fedbn.core.local_training import ClientWork, local_train
from fedbn.core.method import ServerState
from fedbn.core.own_statistics import following, statistics_of
from fedbn.core.packing import Pack, StateLayout
from fedbn.core.plan import Plan
from fedbn.core.randomness import derive_seed, drawn, generator, seeded
from fedbn.core.replica import Replica
from fedbn.core.rule import Asked, ClientRound, Memories, Rule, Trained, word_of, wrapped
from fedbn.core.state import Entry, entries
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
class ClientStates(Mapping[str, Pack]):
    """Local states of all clients: new ones over older ones, which may lie on a disk."""

    new: Mapping[str, Pack]
    older: Mapping[str, Pack]

    @classmethod
    def of(cls, states: Mapping[str, Pack]) -> ClientStates:
        """Return states to which others can be added."""
        return states if isinstance(states, ClientStates) else cls({}, states)

    def updated(self, changed: Mapping[str, Pack]) -> ClientStates:
        """Return the states after some have changed."""
        return ClientStates({**self.new, **changed}, self.older)

    @property
    def new_bytes(self) -> int:
        """The memory that the new states take."""
        return sum(v.nbytes for pack in self.new.values() for v in pack.vectors.values())

    def __getitem__(self, client: str) -> Pack:
        return self.new[client] if client in self.new else self.older[client]

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self.older, *self.new)))

    def __len__(self) -> int:
        return len({*self.older, *self.new})

    def __contains__(self, client: object) -> bool:
        return client in self.new or client in self.older


@dataclass(frozen=True)
class RunState:
    """Everything that a run carries from one round to the next.

    Attributes:
        round: The number of finished rounds.
        shared: The shared state, which the server holds.
        local: The local state of each client; it never leaves the client.
        server: What the server remembers: the entries of hooks and of the server optimizer.
        untrained: The local state that a client is scored and used with if no update of it was
            accepted yet, because its BatchNorm has seen no data. It trains from `local`.
        own_statistics: Running statistics that each client keeps for scoring only, where the
            method averages them; empty if none are kept.
    """

    round: int
    shared: Pack
    local: Mapping[str, Pack]
    server: ServerState = field(default_factory=ServerState)
    untrained: Mapping[str, Pack] = field(default_factory=dict)
    own_statistics: Mapping[str, Pack] = field(default_factory=dict)

    def scored_with(self, client: str) -> Pack:
        """Return the local state that a client is scored and used with."""
        return self.untrained.get(client, self.local[client])

    def advanced(
        self, shared: Pack, server: ServerState, accepted: Mapping[str, AcceptedUpdate]
    ) -> RunState:
        """Return the state after a round: clients whose update was accepted save their new state.

        All other clients keep their previous one.
        """
        local = {name: update.local for name, update in accepted.items()}
        own = {
            name: update.own_statistics
            for name, update in accepted.items()
            if update.own_statistics is not None
        }
        return RunState(
            self.round + 1,
            shared,
            ClientStates.of(self.local).updated(local),
            server,
            {name: pack for name, pack in self.untrained.items() if name not in accepted},
            {**self.own_statistics, **own},
        )


@dataclass(frozen=True)
class Update:
    """What a client returns after training; `near` if its distance is checked (`is_clearly_close`).

    `own_statistics` are running statistics that the client keeps for scoring only.
    """

    client: str
    shared: Pack
    local: Pack
    loss: float
    near: bool = False
    own_statistics: Pack | None = None


@dataclass(frozen=True)
class AcceptedUpdate:
    """What a round keeps of an accepted update: everything but the shared state."""

    loss: float
    local: Pack
    own_statistics: Pack | None = None


@dataclass(frozen=True)
class Rejection:
    """Why a client's update is not used; `kind` is the class of the exception, if any."""

    client: str
    reason: str
    kind: str = ""


Outcome = Update | Rejection
Train = Callable[[Sequence[Client], RunState], Iterable[Outcome]]
"""Trains the selected clients from a state; yields one outcome per client, in their order."""


@dataclass(frozen=True)
class RoundResult:
    """The state after a round, and by client which updates were accepted or rejected."""

    state: RunState
    accepted: Mapping[str, AcceptedUpdate]
    rejected: Mapping[str, Rejection]


def initial_state(plan: Plan) -> RunState:
    """Return the state before the first round; every client starts with the same local state."""
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
    hooks = {n: v.clone() for n, v in started(method.remembered(found, "server")).state.items()}
    untrained = parts if plan.local_statistics else {}
    own = dict.fromkeys(parts, statistics_of(model)) if plan.keeps_statistics else {}
    return RunState(0, shared, parts, ServerState(hooks), untrained, own)


def run_round(plan: Plan, state: RunState, train: Train) -> RoundResult:
    """Run one round: Algorithm 1 of the paper.

    1. Clients are selected.
    2. Each selected client trains from the shared state and its own local state.
    3. Updates that are unusable are rejected. The others are aggregated, one at a time and in the
       order of the federation.
    4. The server finishes: the aggregator, the hooks, the server optimizer.
    5. Clients whose update was accepted save their new local state. The others keep theirs.

    Args:
        plan: What is run.
        state: The state before the round; it is not changed.
        train: Trains the selected clients.

    Raises:
        TooFewClients: Fewer updates are usable than the plan needs.
        FedbnError: The new shared state has NaN or infinity.
    """
    number = state.round + 1
    selected = select_clients(plan, number)
    weights = plan.weights(selected)
    aggregation = plan.method.begin_round(
        state.shared,
        state.server,
        clients=len(plan.federation.clients),
        generator=generator(plan.seed, "aggregation", number),
    )
    accepted: dict[str, AcceptedUpdate] = {}
    rejected: dict[str, Rejection] = {}
    for client, weight, outcome in zip(selected, weights, train(selected, state), strict=True):
        checked = check_distance(plan, client, outcome, state)
        if isinstance(checked, Rejection):
            rejected[client.name] = checked
            continue
        aggregation.add(ClientUpdate(client.name, checked.shared, weight))
        accepted[client.name] = AcceptedUpdate(checked.loss, checked.local, checked.own_statistics)
    _require_enough(plan, number, accepted, rejected)
    with seeded(derive_seed(plan.seed, "server draws", number)):  # custom code may draw globally
        shared, server = aggregation.finish()
    _require_finite(number, shared, server)
    return RoundResult(state.advanced(shared, server, accepted), accepted, rejected)


def select_clients(plan: Plan, number: int) -> tuple[Client, ...]:
    """Return the clients selected in a round, in the federation's order.

    They depend on the seed and the number of the round alone.
    """
    clients, wanted = plan.federation.clients, plan.clients_a_round
    if wanted == len(clients):
        return clients
    order = torch.randperm(len(clients), generator=generator(plan.seed, "participants", number))
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
        with contained(), replica.seeds(derive_seed(plan.seed, "model draws", round, client.name)):
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


def failure(client: Client, what: str, error: Exception) -> Rejection:
    """Make a refusal of an error in a client's own code or data."""
    log.debug("client %s failed", client.name, exc_info=True)
    return Rejection(client.name, f"{what}{reason(error)}", type(error).__name__)


def examined(update: Update) -> Outcome:
    """Refuse an update that holds a NaN or an infinity: one would poison the global model."""
    for part in (update.shared, update.local):
        if name := part.unusable():
            return Rejection(update.client, f"its update has NaN or infinity in {name}")
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


def check_distance(plan: Plan, client: Client, outcome: Outcome, state: RunState) -> Outcome:
    """Reject an update that is absurdly far from the shared state; return all others unchanged."""
    if isinstance(outcome, Rejection) or outcome.near:
        return outcome
    fault = divergence_reason(outcome.shared, state.shared)
    if fault is None:
        return outcome
    cause = likely_cause(plan, client, state.round + 1)
    text = f"its training diverged: {cause} ({fault})" if cause else fault
    return Rejection(client.name, text)


def _require_enough(
    plan: Plan,
    number: int,
    accepted: Mapping[str, AcceptedUpdate],
    rejected: Mapping[str, Rejection],
) -> None:
    asked, needed = plan.training.min_clients, plan.updates_needed
    if len(accepted) >= needed:
        return
    reasons = "; ".join(f"{client}: {one.reason}" for client, one in rejected.items())
    why = (
        f"training.min_clients = {asked}"
        if asked == needed
        else f"{plan.method.name} needs {needed}"
    )
    raise TooFewClients(
        f"round {number}: {len(accepted)} of {len(accepted) + len(rejected)} clients gave a usable "
        f"update, {why} ({reasons})"
    )


def _require_finite(number: int, shared: Pack, server: ServerState) -> None:
    remembered = {**server.hooks, **server.optimizer}
    spoilt = (name for name, v in remembered.items() if not bool(torch.isfinite(v).all()))
    if name := shared.unusable() or next(spoilt, None):
        raise FedbnError(
            f"round {number}: combining the updates overflowed in {name}; nothing was taken over. "
            "A smaller training.lr or a robust aggregator may help"
        )


def divergence_reason(update: Pack, before: Pack) -> str | None:
    """Return how an update is absurdly far from where it started, or None if it is not.

    Examples:
        >>> layer = torch.nn.Linear(2, 1)
        >>> start = StateLayout.of(entries(layer)).pack(layer.state_dict())
        >>> far = start.layout.pack({n: v + 1e9 for n, v in start.state.items()})
        >>> divergence_reason(start, start) is None, divergence_reason(far, start) is None
        (True, False)
    """
    if bool(is_clearly_close(update, before)):
        return None
    pairs = zip(_trained(update), _trained(before), strict=True)
    doubled = [(new.double(), old.double()) for new, old in pairs]
    moved = float(_length([new - old for new, old in doubled]))
    length = float(_length([old for _, old in doubled]))
    if moved <= _MOST * (length + 1):
        return None
    return f"its update moves the model by {moved:.3g}, the model's own norm is {length:.3g}"


def is_clearly_close(updates: Pack, before: Pack) -> Tensor:
    """Return True for updates that need no closer look: nearly every one.

    The updates are one pack, or one row per update.

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


def round_records(plan: Plan, result: RoundResult) -> list[Record]:
    """Return what a round measures at no extra cost: training losses, and rejected updates."""
    number = result.state.round
    losses = {name: update.loss for name, update in result.accepted.items()}
    rejected = dict.fromkeys(result.rejected, 1.0)
    return [
        record(plan, number, client, "train", metric, values[client.name])
        for client in plan.federation.clients
        for metric, values in (("training_loss", losses), ("refused", rejected))
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
