"""What an engine is, and the embedded one: all clients in this process, side by side on the cores.

Clients pass through a few threads in a fixed order, so the number of workers changes the time a
round takes and not one bit of its result.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from queue import SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from fedbn.core import rounds, scoring
from fedbn.core.best_round import EarlyStop
from fedbn.core.federation import Client
from fedbn.core.findings import Detail
from fedbn.core.packing import Pack
from fedbn.core.plan import Plan
from fedbn.core.replica import PLAIN, Replica, Speedups
from fedbn.core.rounds import Outcome, Record, Rejection, RunState
from fedbn.core.scoring import ClientScores, Piece
from fedbn.core.selectors import BATCHNORM
from fedbn.core.state import entries
from fedbn.core.statistics_kinds import StatisticsKind

S = TypeVar("S")
T = TypeVar("T")
R = TypeVar("R")


class Pool(Generic[S]):
    """As many threads as there are tools; each task takes a tool and puts it back.

    Examples:
        >>> with closing(Pool(["hammer", "saw"])) as pool:
        ...     list(pool.ordered(lambda tool, item: item * 2, [1, 2, 3]))
        [2, 4, 6]
    """

    def __init__(self, tools: Sequence[S]):
        self._tools: SimpleQueue[S] = SimpleQueue()
        self._count = len(tools)
        for tool in tools:
            self._tools.put(tool)
        self._threads = ThreadPoolExecutor(
            self._count, initializer=torch.set_num_threads, initargs=(1,)
        )

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(cancel_futures=True)

    def ordered(self, task: Callable[[S, T], R], items: Iterable[T]) -> Iterator[R]:
        """Do the task for all items, at most a few ahead, and yield the results in their order."""
        left = iter(items)
        # Two results a thread may wait for an earlier one; more would cost a model's memory each.
        waiting = deque(self._submit(task, item) for item in islice(left, 2 * self._count))
        while waiting:
            # Not for ever: a signal that comes right before a wait is heard only when it ends.
            while not waiting[0].done():
                wait([waiting[0]], timeout=_LOOK_SECONDS)
            result = waiting.popleft().result()
            waiting.extend(self._submit(task, item) for item in islice(left, 1))
            yield result

    def _submit(self, task: Callable[[S, T], R], item: T) -> Future[R]:
        def work() -> R:
            tool = self._tools.get()
            try:
                return task(tool, item)
            finally:
                self._tools.put(tool)

        return self._threads.submit(work)


_LOOK_SECONDS = 0.2  # how often a signal is looked for while clients train
_WORTH_LOADING = 512
_KEPT_BYTES = 1 << 26  # of a round's updates


class Crew(Protocol):
    """Trains and scores clients; gives results in the clients' order, whoever was first."""

    notes: Sequence[str]  # what is worth saying of this way to run
    repeatable: bool  # whether a round that is done again gives the same bits

    def train(self, clients: Sequence[Client], state: RunState) -> Iterable[Outcome]:
        """Train these clients for one round."""

    def score(
        self, clients: Sequence[Client], state: RunState
    ) -> tuple[list[Record], list[Rejection]]:
        """Score these clients' joined models; and say who could not be scored."""

    def score_with(
        self, clients: Sequence[Client], state: RunState, kind: StatisticsKind
    ) -> Iterable[ClientScores | Rejection]:
        """Score these clients' joined models with one kind of BatchNorm statistics."""

    def measure(self, clients: Sequence[Client], state: RunState) -> Iterable[Pack | Rejection]:
        """Give clients that have not trained the local part they are scored with."""

    def close(self) -> None:
        """End the threads."""


class OneByOne:
    """Each thread has one model, which becomes each client's in turn; 0 workers for all cores."""

    def __init__(self, plan: Plan, workers: int = 0, speedups: Speedups = PLAIN):
        device = plan.training.device
        found = rounds.noticed(plan, plan.federation.clients)
        alone = found.draws or not found.repeats or device != "cpu"
        count = 1 if alone else min(workers or cores(), len(plan.federation.clients))
        replicas = [
            Replica(plan.initial_model, plan.method, device, found, speedups) for _ in range(count)
        ]
        has_bn = any(entry.kind in BATCHNORM for entry in entries(plan.initial_model))
        slower = has_bn and speedups is not PLAIN and any(r.folded is None for r in replicas)
        self._plan = plan
        self._pool = Pool(replicas)
        self._speedups = speedups
        said = [Detail("clients are scored without folding BatchNorm: slower")] if slower else []
        self.notes: Sequence[str] = [*found.notes, *said]
        self.repeatable = found.repeats and device == "cpu"

    def train(self, clients: Sequence[Client], state: RunState) -> Iterable[Outcome]:
        """Train these clients for one round; where updates are small, the largest client first.

        Then no round waits for a large client that began last. Their updates wait for their turn,
        which large ones must not: they would all be in memory at once.
        """
        kept = sum(vector.nbytes for vector in state.shared.vectors.values()) * len(clients)
        order = [*range(len(clients))]
        if kept <= _KEPT_BYTES:
            order.sort(key=lambda place: -len(clients[place].train))
        done = self._pool.ordered(
            lambda replica, client: rounds.train_client(self._plan, replica, client, state),
            [clients[place] for place in order],
        )
        if order == sorted(order):
            return done
        found = dict(zip(order, done, strict=True))
        return [found[place] for place in range(len(clients))]

    def score(
        self, clients: Sequence[Client], state: RunState
    ) -> tuple[list[Record], list[Rejection]]:
        """Score these clients' joined models; and say who could not be scored."""
        loads = [
            list(_loads(scoring.pieces_of(client, self._plan.score_train, self._plan.by_batch)))
            for client in clients
        ]
        each = [(client, load) for client, own in zip(clients, loads, strict=True) for load in own]
        done = self._pool.ordered(
            lambda rep, load: scoring.score_pieces(self._plan, rep, *load, state), each
        )
        return split_rejections(
            scoring.put_together(self._plan, client, list(islice(done, len(own))), state.round)
            for client, own in zip(clients, loads, strict=True)
        )

    def score_with(
        self, clients: Sequence[Client], state: RunState, kind: StatisticsKind
    ) -> Iterable[ClientScores | Rejection]:
        """Score these clients' joined models with one kind of BatchNorm statistics."""
        return self._pool.ordered(
            lambda rep, client: scoring.score_with(self._plan, rep, client, state, kind), clients
        )

    def measure(self, clients: Sequence[Client], state: RunState) -> Iterable[Pack | Rejection]:
        """Give clients that have not trained the local part they are scored with."""
        return self._pool.ordered(lambda rep, one: measured_or_rejected(rep, one, state), clients)

    def close(self) -> None:
        """End the threads."""
        self._pool.close()
        self._speedups.close()


def measured_or_rejected(replica: Replica, client: Client, state: RunState) -> Pack | Rejection:
    """The local part that a client which has not trained is scored with, or why there is none."""
    try:
        return scoring.measured(replica, client, state)
    except Exception as error:
        return rounds.failure(client, "cannot be scored: ", error)


def _loads(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    """Give a thread enough of a client at once to be worth loading the client's model."""
    load: list[Piece] = []
    for piece in pieces:
        load.append(piece)
        if sum(p.part.stop - p.part.start for p in load) >= _WORTH_LOADING:
            yield load
            load = []
    if load:
        yield load


def split_rejections(
    found: Iterable[ClientScores | Rejection],
) -> tuple[list[Record], list[Rejection]]:
    """Separate the scores of clients from the clients that could not be scored."""
    every = list(found)
    records = [record for one in every if isinstance(one, ClientScores) for record in one.records]
    return records, [one for one in every if isinstance(one, Rejection)]


def cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_PROCESS = os.getpid()


@dataclass(frozen=True)
class RoundCost:
    """What a round took where clients are other machines."""

    round: int  # its number
    seconds: float  # from the first letter to the last answer
    beyond_training: float  # seconds in which no site trained or scored
    bytes_down: int  # sent to the sites, letters and shared parts
    bytes_up: int  # received from them
    # where each site's BatchNorm came from
    sources: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)  # who was left out, and why


@dataclass(frozen=True)
class FinalEvaluation:
    """The evaluation of the round that a job reports."""

    round: int  # its number
    statistics: tuple[StatisticsKind, ...]  # the BatchNorm statistics that clients were scored with
    # by statistics, client and domain: which test samples were classified correctly, in their order
    outcomes: Mapping[tuple[StatisticsKind, str, str], Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Round:
    """What a round gave."""

    state: RunState  # what the run holds after it; no local part where clients keep their own
    # its numbers; scores that arrive late are records of the round that they are about
    records: Sequence[Record] = ()
    notes: Sequence[str] = ()  # what a user should hear of it
    # what a later process must know beside the state
    facts: Mapping[str, Any] = field(default_factory=dict)
    cost: RoundCost | None = None  # what it took, where that is counted
    files: Mapping[str, bytes] = field(default_factory=dict)  # further files of the job, by name
    final: FinalEvaluation | None = None  # of the round that is reported, at the end


class Engine(Protocol):
    """Does the rounds of one job; engines differ in how clients are reached, and in nothing else.

    Clients may come and go between rounds; then, and only then, there is another plan.
    """

    @property
    def plan(self) -> Plan:
        """What is run."""

    notes: Sequence[str]  # what is worth saying before the first round
    repeatable: bool  # whether a round that is done again gives the same bits

    def initial(self) -> RunState:
        """The state before the first round."""

    def resume(self, round: int, facts: Mapping[str, Any]) -> None:
        """Go on after a round with what an earlier process knew (`Round.facts`)."""

    def round(self, state: RunState) -> Round:
        """Do the round that follows a state."""

    def finish(self, state: RunState, reported: RunState, early: EarlyStop | None = None) -> Round:
        """Evaluate once more, after the last round.

        Args:
            state: The state after the last round.
            reported: The state of the round that is reported: the last, or the best.
            early: Why the run ended before its time; nothing counts that follows it.
        """

    def close(self) -> None:
        """Let go of threads and memory."""


class EmbeddedEngine:
    """All clients in this process, trained and scored by whom `make_crew` gives."""

    def __init__(self, plan: Plan, make_crew: Callable[[Plan], Crew] = OneByOne):
        self.plan = plan
        self._clients = plan.federation.to(plan.training.device).clients
        with ExitStack() as stack:
            stack.enter_context(one_torch_thread())
            self._crew = stack.enter_context(closing(make_crew(plan)))
            self._held = stack.pop_all()
        self.notes = self._crew.notes
        self.repeatable = self._crew.repeatable

    def initial(self) -> RunState:
        """The state before the first round."""
        return rounds.initial_state(self.plan)

    def resume(self, round: int, facts: Mapping[str, Any]) -> None:
        """The state says it all."""

    def round(self, state: RunState) -> Round:
        """Train the clients that take part, combine, and score all where the plan says so."""
        plan = self.plan
        result = rounds.run_round(plan, state, self._train)
        state, rejections = result.state, [*result.rejected.values()]
        records = rounds.round_records(plan, result)
        notes: list[str] = []
        if plan.evaluates(state.round):
            everyone = plan.score_all or state.round == plan.training.rounds
            selected = {*result.accepted, *result.rejected}
            here = [c for c in self._clients if everyone or c.name in selected]
            state, scores, unscored = self._evaluated(state, here)
            records, rejections = records + scores, rejections + unscored
            notes += scoring.untrained_notes(plan, state.round, [*state.untrained])
            for kind in plan.scored_statistics():
                if kind != "running":
                    found, faults, _ = self._scored_with(here, state, kind)
                    records, notes = [*records, *found], notes + faults
        notes += [f"round {state.round}: {r.client}: {r.reason}" for r in rejections]
        return Round(state, records, notes)

    def finish(self, state: RunState, reported: RunState, early: EarlyStop | None = None) -> Round:
        """Score the reported round with every kind of BatchNorm statistics that is asked for."""
        if self.plan.final_statistics == ():
            return Round(state)
        return self.evaluate(state, reported, self.plan.scored_statistics(final=True))

    def evaluate(
        self, state: RunState, reported: RunState, kinds: tuple[StatisticsKind, ...]
    ) -> Round:
        """Score one round with some kinds of BatchNorm statistics; its rounds are all done.

        Scores that the round has already are not recorded again, and their faults not reported.
        """
        records: list[Record] = []
        notes: list[str] = []
        outcomes: dict[tuple[StatisticsKind, str, str], Tensor] = {}
        for kind in kinds:
            scores, faults, found = self._scored_with(self._clients, reported, kind)
            outcomes |= found
            if kind not in self.plan.scored_statistics():
                records += scores
                notes += faults
        return Round(state, records, notes, final=FinalEvaluation(reported.round, kinds, outcomes))

    def _scored_with(
        self, clients: Sequence[Client], state: RunState, kind: StatisticsKind
    ) -> tuple[list[Record], list[str], dict[tuple[StatisticsKind, str, str], Tensor]]:
        """Return records, warnings and outcomes of clients; a score that failed is null."""
        records: list[Record] = []
        notes: list[str] = []
        outcomes: dict[tuple[StatisticsKind, str, str], Tensor] = {}
        for client, found in zip(clients, self._crew.score_with(clients, state, kind), strict=True):
            if isinstance(found, Rejection):
                notes.append(f"{kind} statistics of {client.name}: {found.reason}")
                records += rounds.missing_scores(self.plan, state.round, client, kind)
            else:
                records += found.records
                outcomes |= {(kind, *place): hits for place, hits in found.outcomes.items()}
        return records, notes, outcomes

    def close(self) -> None:
        """End the threads."""
        self._held.close()

    def _train(self, chosen: Sequence[Client], state: RunState) -> Iterable[Outcome]:
        here = {client.name: client for client in self._clients}
        return self._crew.train([here[client.name] for client in chosen], state)

    def _evaluated(
        self, state: RunState, clients: Sequence[Client]
    ) -> tuple[RunState, list[Record], list[Rejection]]:
        """Score clients; those that have not trained get statistics of their own data."""
        waiting = [client for client in clients if client.name in state.untrained]
        names = [client.name for client in waiting]
        found = dict(zip(names, self._crew.measure(waiting, state), strict=True))
        failed = [one for one in found.values() if isinstance(one, Rejection)]
        packs = {name: one for name, one in found.items() if isinstance(one, Pack)}
        state = replace(state, untrained={**state.untrained, **packs})
        able = [c for c in clients if c.name not in found or c.name in packs]
        scores, unscored = self._crew.score(able, state)
        said = [
            rounds.record(self.plan, state.round, c, "train", "untrained", 1.0) for c in waiting
        ]
        return state, said + scores, failed + unscored


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Sums inside an operation depend on its threads: one, for the same bits everywhere.

    A forked child keeps it: it lacks its parent's threads, and who waits for them waits for ever.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before if os.getpid() == _PROCESS else 1)
