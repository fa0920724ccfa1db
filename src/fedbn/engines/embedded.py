"""The default engine: all clients in this process, side by side on the cores.

Each worker thread has one model and one torch thread; clients pass through in a fixed order, so
the number of workers changes the time a round takes and not one bit of its result.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from queue import SimpleQueue
from typing import Protocol, TypeVar

import torch

from fedbn.core.federation import Client
from fedbn.core.plan import Plan
from fedbn.core.replica import Replica, draws_random_numbers
from fedbn.core.rounds import (
    Outcome,
    Record,
    RunState,
    initial_state,
    round_records,
    run_round,
    score_client,
    train_client,
    train_client_seeded,
)
from fedbn.engines._memory import keep_freed_memory
from fedbn.errors import Interrupted

T = TypeVar("T")
R = TypeVar("R")


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
    random = draws_random_numbers(plan.initial_model, _two_samples(plan))
    count = _worker_count(workers, plan, random)
    keep_freed_memory()
    with _one_torch_thread(), Crew(plan, count) as crew:
        for text in (*_notes(plan, random), *crew.notes):
            _tell(sinks, plan, text)
        train_one = train_client_seeded if random else train_client
        on_device = {client.name: client for client in federation.clients}

        def train(chosen: Sequence[Client], before: RunState) -> Iterable[Outcome]:
            clients = [on_device[client.name] for client in chosen]
            return crew.ordered(lambda rep, c: train_one(plan, rep, c, before), clients)

        while state.round < plan.training.rounds:
            state, report = run_round(plan, state, train)
            for refusal in report.refusals:
                _tell(sinks, plan, f"round {state.round}: {refusal.client}: {refusal.reason}")
            records = round_records(plan, state.round, report)
            if plan.evaluates(state.round):
                records += _scores(plan, crew, federation.clients, state)
            for sink in sinks:
                sink.round_done(plan, state, records)
            if stop() and state.round < plan.training.rounds:
                raise Interrupted(f"stopped after round {state.round} of {plan.training.rounds}")
    return state


def _scores(plan: Plan, crew: Crew, clients: Iterable[Client], state: RunState) -> list[Record]:
    found = crew.ordered(lambda rep, client: score_client(plan, rep, client, state), clients)
    return [record for records in found for record in records]


class Crew:
    """A few threads, each with a model, that clients pass through."""

    def __init__(self, plan: Plan, workers: int):
        device = plan.training.device
        replicas = [Replica(plan.initial_model, plan.method, device) for _ in range(workers)]
        folded = [replica.fold(_two_samples(plan).to(device)) for replica in replicas]
        self.notes = (
            () if all(folded) else ("scores without folding BatchNorm: slower, same result",)
        )
        self._replicas: SimpleQueue[Replica] = SimpleQueue()
        for replica in replicas:
            self._replicas.put(replica)
        self._workers = workers
        self._pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,))

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def ordered(self, task: Callable[[Replica, T], R], items: Iterable[T]) -> Iterator[R]:
        """Do the task for all items, at most a few ahead, and yield the results in their order."""
        left = iter(items)
        # Two results a worker may wait for an earlier one; more would cost a model's memory each.
        waiting = deque(self._submit(task, item) for item in islice(left, 2 * self._workers))
        while waiting:
            result = waiting.popleft().result()
            waiting.extend(self._submit(task, item) for item in islice(left, 1))
            yield result

    def _submit(self, task: Callable[[Replica, T], R], item: T) -> Future[R]:
        def work() -> R:
            replica = self._replicas.get()
            try:
                return task(replica, item)
            finally:
                self._replicas.put(replica)

        return self._pool.submit(work)


def _worker_count(asked: int, plan: Plan, random: bool) -> int:
    if random or plan.training.device != "cpu":
        return 1
    return max(1, min(asked or cores(), len(plan.federation.clients)))


def cores() -> int:
    """Count the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _notes(plan: Plan, random: bool) -> Iterator[str]:
    if random:
        yield "the model draws random numbers (dropout): clients train one after another"
    size = plan.training.batch_size
    if size and size > 1:
        names = [
            c.name
            for c in plan.federation.clients
            if len(c.train) > size and len(c.train) % size == 1
        ]
        if names:
            yield f"a last batch of one sample joins the batch before it ({', '.join(names)})"


def _two_samples(plan: Plan) -> torch.Tensor:
    return plan.federation.clients[0].train.batch(slice(0, 2))[0].cpu()


def _tell(sinks: Sequence[Sink], plan: Plan, text: str) -> None:
    for sink in sinks:
        sink.note(plan, text)


@contextmanager
def _one_torch_thread() -> Iterator[None]:
    """Sums inside an operation depend on its threads: one, for the same bits everywhere."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
