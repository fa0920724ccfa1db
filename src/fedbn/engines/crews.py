"""Who trains and scores the clients of a round: one by one, or in stacks."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Protocol

import torch

from fedbn.core.aside import Helpers
from fedbn.core.federation import Client
from fedbn.core.habits import habits
from fedbn.core.packing import Pack
from fedbn.core.plan import Plan
from fedbn.core.replica import Replica
from fedbn.core.rounds import (
    Outcome,
    Record,
    Refusal,
    RunState,
    failure,
    train_client,
)
from fedbn.core.scoring import (
    Piece,
    measured,
    pieces_of,
    put_together,
    score_client,
    score_pieces,
)
from fedbn.core.selectors import BATCHNORM
from fedbn.core.state import entries
from fedbn.engines.batched import score_stack, stack_size, train_stack
from fedbn.engines.pool import Pool
from fedbn.engines.stacking import Stack

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
