"""The default engine: all clients in this process, side by side on the cores.

Clients pass through a few threads in a fixed order, so the number of workers changes the time a
round takes and not one bit of its result.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Protocol

import torch

from fedbn.core.federation import Client
from fedbn.core.packing import Pack
from fedbn.core.plan import Plan
from fedbn.core.rounds import (
    Outcome,
    Record,
    Refusal,
    RunState,
    initial_state,
    round_records,
    run_round,
)
from fedbn.core.scoring import untrained_notes, untrained_record
from fedbn.engines.crews import Crew, make_crew
from fedbn.errors import Interrupted

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
