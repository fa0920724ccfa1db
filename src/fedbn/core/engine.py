"""The embedded engine: all clients in this process, side by side on the cores.

Clients pass through a few threads in a fixed order, so the number of workers changes the time a
round takes and not one bit of its result.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from fedbn.core.replica import PLAIN, Replica, Speedups
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
    score_pieces,
    untrained_notes,
    untrained_record,
)
from fedbn.core.state import entries
from fedbn.core.user_code import habits
from fedbn.errors import Interrupted

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


class OneByOne:
    """Each thread has one model, which becomes each client's in turn.

    Args:
        plan: What is run.
        workers: Threads; 0 for as many as there are cores.
        speedups: What may be done for speed.
    """

    def __init__(self, plan: Plan, workers: int = 0, speedups: Speedups = PLAIN):
        device = plan.training.device
        found = habits(plan.initial_model, plan.federation.clients)
        alone = found.draws or not found.repeats or device != "cpu"
        count = 1 if alone else min(workers or cores(), len(plan.federation.clients))
        replicas = [
            Replica(plan.initial_model, plan.method, device, found, speedups) for _ in range(count)
        ]
        has_bn = any(entry.kind in BATCHNORM for entry in entries(plan.initial_model))
        slower = has_bn and speedups is not PLAIN and any(r.folded is None for r in replicas)
        self._plan = plan
        self._speedups = speedups
        self._pool = Pool(replicas)
        said = ["clients are scored without folding BatchNorm: slower"] if slower else []
        self.notes = [*found.notes, *said]

    def train(self, clients: Sequence[Client], state: RunState) -> Iterable[Outcome]:
        """Train these clients for one round."""

        def work(replica: Replica, client: Client) -> Outcome:
            with self._speedups.working():
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
        return told_apart(
            put_together(self._plan, client, list(islice(done, len(own))), state.round)
            for client, own in zip(clients, loads, strict=True)
        )

    def measure(self, clients: Sequence[Client], state: RunState) -> Iterable[Pack | Refusal]:
        """Give clients that have not trained the local part they are scored with."""
        return self._pool.ordered(lambda rep, one: measured_or_refused(rep, one, state), clients)

    def close(self) -> None:
        """End the threads."""
        self._pool.__exit__()
        self._speedups.close()


def measured_or_refused(replica: Replica, client: Client, state: RunState) -> Pack | Refusal:
    """The local part that a client which has not trained is scored with, or why there is none."""
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


def told_apart(
    found: Iterable[list[Record] | Refusal],
) -> tuple[list[Record], list[Refusal]]:
    """Tell scores from who could not be scored."""
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
    stop: Callable[[], bool] = lambda: False,
    make_crew: Callable[[Plan], Crew] = OneByOne,
) -> RunState:
    """Run a plan to its last round.

    Args:
        plan: What to run.
        sinks: Who is told.
        start: The state to go on from; None for the beginning.
        stop: Asked after each round; True ends the run with `Interrupted`.
        make_crew: Gives who trains and scores.

    Returns:
        The state after the last round.
    """
    state = start or initial_state(plan)
    federation = plan.federation.to(plan.training.device)
    on_device = {client.name: client for client in federation.clients}
    with one_torch_thread(), closing(make_crew(plan)) as crew:
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
