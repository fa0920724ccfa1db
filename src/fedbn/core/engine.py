"""Engines: ways to run a plan. Each gives the same state for the same plan.

A few threads, each with something of its own to work with, that items pass through in order.

Who trains and scores the clients of a round: one by one, or in stacks.

The default engine: all clients in this process, side by side on the cores.

Clients pass through a few threads in a fixed order, so the number of workers changes the time a
round takes and not one bit of its result.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import islice
from queue import SimpleQueue
from typing import Generic, Protocol, TypeVar

import torch

from fedbn.core.federation import Client
from fedbn.core.method import BATCHNORM
from fedbn.core.packing import Pack
from fedbn.core.plan import Plan
from fedbn.core.replica import Replica
from fedbn.core.rounds import (
    Outcome,
    Record,
    Refusal,
    RunState,
    failure,
    initial_state,
    round_records,
    run_round,
    train_client,
)
from fedbn.core.scoring import (
    Piece,
    measured,
    pieces_of,
    put_together,
    score_client,
    score_pieces,
    untrained_notes,
    untrained_record,
)
from fedbn.core.state import entries
from fedbn.core.user_code import habits
from fedbn.errors import Interrupted
from fedbn.fast.stacked_models import Stack
from fedbn.fast.stacked_training import score_stack, stack_size, train_stack
from fedbn.fast.weight_gradients import Helpers

S = TypeVar("S")
T = TypeVar("T")
R = TypeVar("R")


class Pool(Generic[S]):
    """As many threads as there are tools; each task takes a tool and puts it back.

    Examples:
        >>> with Pool(["hammer", "saw"]) as pool:
        ...     list(pool.ordered(lambda tool, item: item * 2, [1, 2, 3]))
        [2, 4, 6]
    """

    def __init__(self, tools: Sequence[S]):
        self._tools: SimpleQueue[S] = SimpleQueue()
        for tool in tools:
            self._tools.put(tool)
        self._count = len(tools)
        self._threads = ThreadPoolExecutor(
            self._count, initializer=torch.set_num_threads, initargs=(1,)
        )

    def __enter__(self) -> Pool[S]:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(cancel_futures=True)

    def ordered(self, task: Callable[[S, T], R], items: Iterable[T]) -> Iterator[R]:
        """Do the task for all items, at most a few ahead, and yield the results in their order."""
        left = iter(items)
        # Two results a thread may wait for an earlier one; more would cost a model's memory each.
        waiting = deque(self._submit(task, item) for item in islice(left, 2 * self._count))
        while waiting:
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


log = logging.getLogger("fedbn")
_WORTH_LOADING = 512


class Crew(Protocol):
    """Trains and scores clients; gives results in the clients' order, whoever was first."""

    @property
    def notes(self) -> Sequence[str]:
        """What is worth saying of this way to run."""

    def train(self, clients: Sequence[Client], state: RunState) -> Iterable[Outcome]:
        """Train these clients for one round."""

    def score(
        self, clients: Sequence[Client], state: RunState
    ) -> tuple[list[Record], list[Refusal]]:
        """Score these clients' joined models; and say who could not be scored."""

    def measure(self, clients: Sequence[Client], state: RunState) -> Iterable[Pack | Refusal]:
        """Give clients that have not trained the local part they are scored with."""

    def close(self) -> None:
        """End the threads."""


def make_crew(plan: Plan, workers: int) -> Crew:
    """Make the crew that a plan asks for, with so many threads (0: as many as cores)."""
    wanted = workers or cores()
    return Stacks(plan, wanted) if plan.engine == "batched" else OneByOne(plan, wanted)


class OneByOne:
    """Each thread has one model, which becomes each client's in turn."""

    def __init__(self, plan: Plan, workers: int):
        sample = two_samples(plan)
        device = plan.training.device
        found = habits(plan.initial_model, plan.federation.clients)
        alone = found.draws or not found.repeats or device != "cpu"
        count = 1 if alone else min(workers, len(plan.federation.clients))
        self._helpers = Helpers(workers)
        replicas = [
            Replica(plan.initial_model, plan.method, device, self._helpers, found)
            for _ in range(count)
        ]
        folded = [replica.fold(sample.to(device)) for replica in replicas]
        layout = replicas[0].layout(sample)
        for replica in replicas[1:]:
            replica.lay_out(layout)
        log.debug("batches lie %s; folded for scoring: %s", layout.__name__, folded[0] or "no")
        has_bn = any(entry.kind in BATCHNORM for entry in entries(plan.initial_model))
        self._plan = plan
        self._pool = Pool(replicas)
        self.notes = [
            *found.notes,
            *(
                ["clients are scored without folding BatchNorm: slower"]
                * (has_bn and not all(folded))
            ),
        ]

    def train(self, clients: Sequence[Client], state: RunState) -> Iterable[Outcome]:
        """Train these clients for one round."""

        def work(replica: Replica, client: Client) -> Outcome:
            with self._helpers.one_core_busy():
                return train_client(self._plan, replica, client, state)

        return self._pool.ordered(work, clients)

    def score(
        self, clients: Sequence[Client], state: RunState
    ) -> tuple[list[Record], list[Refusal]]:
        """Score these clients' joined models; and say who could not be scored."""
        loads = [list(_loads(pieces_of(client))) for client in clients]
        each = [(client, load) for client, own in zip(clients, loads, strict=True) for load in own]
        done = self._pool.ordered(
            lambda rep, load: score_pieces(self._plan, rep, *load, state), each
        )
        return _told_apart(
            put_together(self._plan, client, list(islice(done, len(own))), state.round)
            for client, own in zip(clients, loads, strict=True)
        )

    def measure(self, clients: Sequence[Client], state: RunState) -> Iterable[Pack | Refusal]:
        """Give clients that have not trained the local part they are scored with."""
        return self._pool.ordered(lambda rep, client: _measured(rep, client, state), clients)

    def close(self) -> None:
        """End the threads."""
        self._pool.__exit__()
        self._helpers.close()


class Stacks:
    """Each thread has a stack of models, which becomes that of some clients in turn."""

    def __init__(self, plan: Plan, workers: int):
        self._size = stack_size(plan)
        count = min(workers, -(-len(plan.federation.clients) // self._size))
        self._plan = plan
        self._pool = Pool(
            [Stack(plan.initial_model, plan.method, self._size) for _ in range(count)]
        )
        self.notes = [f"clients train in stacks of {self._size}"]

    def train(self, clients: Sequence[Client], state: RunState) -> Iterator[Outcome]:
        """Train these clients for one round."""
        # What lasts is made before anything that passes: it would settle in the large holes
        # that stacks leave in the heap, and each next stack would need new ones.
        local = {c.name: state.local[c.name].layout.zeros() for c in clients}
        for outcomes in self._pool.ordered(
            lambda stack, some: self._train(stack, some, state, local), self._cut(clients)
        ):
            yield from outcomes

    def score(
        self, clients: Sequence[Client], state: RunState
    ) -> tuple[list[Record], list[Refusal]]:
        """Score these clients' joined models; and say who could not be scored."""
        found = self._pool.ordered(
            lambda stack, some: self._score(stack, some, state), self._cut(clients)
        )
        return _told_apart(scores for several in found for scores in several)

    def measure(self, clients: Sequence[Client], state: RunState) -> Iterator[Pack | Refusal]:
        """Give clients that have not trained the local part they are scored with."""

        def work(_: Stack, some: Sequence[Client]) -> list[Pack | Refusal]:
            replica = Replica(self._plan.initial_model, self._plan.method)
            return [_measured(replica, client, state) for client in some]

        for several in self._pool.ordered(work, self._cut(clients)):
            yield from several

    def close(self) -> None:
        """End the threads."""
        self._pool.__exit__()

    def _cut(self, clients: Sequence[Client]) -> list[Sequence[Client]]:
        return [clients[i : i + self._size] for i in range(0, len(clients), self._size)]

    def _train(
        self, stack: Stack, clients: Sequence[Client], state: RunState, local: Mapping[str, Pack]
    ) -> list[Outcome]:
        try:
            return list(train_stack(self._plan, stack, clients, state, local))
        except Exception:
            log.debug("a stack failed; its clients train one by one", exc_info=True)
            replica = Replica(self._plan.initial_model, self._plan.method)
            return [train_client(self._plan, replica, client, state) for client in clients]

    def _score(
        self, stack: Stack, clients: Sequence[Client], state: RunState
    ) -> list[list[Record] | Refusal]:
        try:
            return [score_stack(self._plan, stack, clients, state)]
        except Exception:
            log.debug("a stack failed; its clients are scored one by one", exc_info=True)
            replica = Replica(self._plan.initial_model, self._plan.method)
            return [score_client(self._plan, replica, client, state) for client in clients]


def _measured(replica: Replica, client: Client, state: RunState) -> Pack | Refusal:
    try:
        return measured(replica, client, state)
    except Exception as error:
        return failure(client, "cannot be scored: ", error)


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


def _told_apart(
    found: Iterable[list[Record] | Refusal],
) -> tuple[list[Record], list[Refusal]]:
    records: list[Record] = []
    refusals: list[Refusal] = []
    for one in found:
        if isinstance(one, Refusal):
            refusals.append(one)
        else:
            records += one
    return records, refusals


def cores() -> int:
    """Count the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def two_samples(plan: Plan) -> torch.Tensor:
    """The first client's first two training samples."""
    return plan.federation.clients[0].train.batch(slice(0, 2))[0].cpu()


_PROCESS = os.getpid()


class Sink(Protocol):
    """Something that is told how a run goes."""

    def note(self, plan: Plan, text: str) -> None:
        """Hear a remark, once."""

    def round_done(self, plan: Plan, state: RunState, records: Sequence[Record]) -> None:
        """Take a finished round: its state and its numbers."""


def run(
    plan: Plan,
    sinks: Sequence[Sink] = (),
    *,
    start: RunState | None = None,
    workers: int = 0,
    stop: Callable[[], bool] = lambda: False,
) -> RunState:
    """Run a plan to its last round.

    Args:
        plan: What to run.
        sinks: Who is told.
        start: The state to go on from; None for the beginning.
        workers: Threads; 0 for as many as there are cores.
        stop: Asked after each round; True ends the run with `Interrupted`.

    Returns:
        The state after the last round.
    """
    state = start or initial_state(plan)
    federation = plan.federation.to(plan.training.device)
    on_device = {client.name: client for client in federation.clients}
    with one_torch_thread(), closing(make_crew(plan, workers)) as crew:
        _tell(sinks, plan, crew.notes)

        def train(chosen: Sequence[Client], before: RunState) -> Iterable[Outcome]:
            return crew.train([on_device[client.name] for client in chosen], before)

        while state.round < plan.training.rounds:
            state, report = run_round(plan, state, train)
            records, refusals = round_records(plan, state.round, report), report.refusals
            if plan.evaluates(state.round):
                state, scores, unscored = _evaluated(plan, crew, federation.clients, state)
                records, refusals = records + scores, refusals + unscored
                _tell(sinks, plan, untrained_notes(plan, state.round, [*state.untrained]))
            _tell(sinks, plan, [f"round {state.round}: {r.client}: {r.reason}" for r in refusals])
            for sink in sinks:
                sink.round_done(plan, state, records)
            if stop() and state.round < plan.training.rounds:
                raise Interrupted(f"stopped after round {state.round} of {plan.training.rounds}")
    return state


def _evaluated(
    plan: Plan, crew: Crew, clients: Sequence[Client], state: RunState
) -> tuple[RunState, list[Record], list[Refusal]]:
    """Score all clients; those that have not trained get statistics of their own data for it."""
    waiting = [client for client in clients if client.name in state.untrained]
    names = [client.name for client in waiting]
    found = dict(zip(names, crew.measure(waiting, state), strict=True))
    failed = [one for one in found.values() if isinstance(one, Refusal)]
    packs = {name: one for name, one in found.items() if isinstance(one, Pack)}
    state = replace(state, untrained={**state.untrained, **packs})
    able = [client for client in clients if client.name not in found or client.name in packs]
    scores, unscored = crew.score(able, state)
    said = [untrained_record(plan, state.round, client.name, client.domain) for client in waiting]
    return state, said + scores, failed + unscored


def _tell(sinks: Sequence[Sink], plan: Plan, texts: Sequence[str]) -> None:
    for sink in sinks:
        for text in texts:
            sink.note(plan, text)


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
