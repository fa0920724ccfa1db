"""The engine of a baseline: every client fits a model to its own training data, once and alone.

A baseline has no rounds and no network. Its job still has the files, the curves and the growth of
any other job: every round repeats the scores of the one fit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from torch import Tensor

from fedbn.core import rounds
from fedbn.core.best_round import EarlyStop
from fedbn.core.engine import FinalEvaluation, Round
from fedbn.core.federation import AnySplit, Client
from fedbn.core.plan import Plan
from fedbn.core.randomness import derive_seed, seeded
from fedbn.core.rounds import AcceptedUpdate, Record, Rejection, RoundResult, RunState
from fedbn.core.scoring import ClientScores, PartScore, pieces_of, put_together
from fedbn.core.statistics_kinds import RUNNING, StatisticsKind
from fedbn.core.user_code import contained
from fedbn.errors import DataError

_SEEDS = 2**32  # what other libraries take as a seed is smaller than this


@dataclass(frozen=True)
class FittedClient:
    """The loss of a client's baseline on the samples that it was fitted to, and its scores."""

    name: str
    training_loss: float
    scores: ClientScores

    def records(self, round: int) -> list[Record]:
        """Return the scores as those of a round."""
        return [replace(record, round=round) for record in self.scores.records]


def fit_client(plan: Plan, client: Client) -> FittedClient | Rejection:
    """Fit the baseline to one client's training data and score it on all of the client's data.

    An error concerns this client alone: it becomes a rejection.

    Raises:
        DataError: A sample cannot be read.
    """
    assert plan.method.baseline is not None
    seed = derive_seed(plan.seed, "baseline", client=client.name)
    try:
        with contained(), seeded(seed):
            x, y = client.train.batch(slice(None))
            predict = plan.method.baseline.fit(x, y, len(plan.federation.classes), seed % _SEEDS)
            loss, _, _ = _evaluate(plan, client, predict, client.train, slice(None))
            found = [
                _evaluate(plan, client, predict, piece.data, piece.part)
                for piece in pieces_of(client, plan.score_train)
            ]
    except DataError:
        raise
    except Exception as error:
        return rounds.failure(client, "cannot be fitted: ", error)
    scores = put_together(plan, client, [found], round=0)
    if isinstance(scores, Rejection):
        return scores
    return FittedClient(client.name, loss / len(y), scores)


def _evaluate(
    plan: Plan, client: Client, predict: Callable[[Tensor], Tensor], data: AnySplit, part: slice
) -> PartScore:
    """Sum up the losses of a part of a split, and keep what the task measures by."""
    x, y = data.batch(part)
    outputs = predict(x)
    # A custom loss may hold tensors of its own, so it gets the type that networks compute in.
    loss = float(plan.loss(client)(outputs.to(x.dtype), y))
    return loss * len(y), plan.task.keep(outputs), y


class BaselineEngine:
    """All clients in this process, one after the other; each is fitted when the job begins."""

    notes: Sequence[str] = ()
    repeatable = True

    def __init__(self, plan: Plan):
        self.plan = plan

    def initial(self) -> RunState:
        """The state before the first round; nothing is shared and nothing is kept."""
        return rounds.initial_state(self.plan)

    def resume(self, round: int, facts: Mapping[str, Any]) -> None:
        """Remember nothing: the fit depends on the data and the seed alone."""

    def round(self, state: RunState) -> Round:
        """Repeat the scores of the clients' one fit."""
        after = replace(state, round=state.round + 1)
        accepted = {
            one.name: AcceptedUpdate(one.training_loss, state.local[one.name])
            for one in self._fitted
        }
        rejected = {one.client: one for one in self._every if isinstance(one, Rejection)}
        records = rounds.round_records(self.plan, RoundResult(after, accepted, rejected))
        if self.plan.evaluates(after.round):
            records += [record for one in self._fitted for record in one.records(after.round)]
        first = after.round == 1
        notes = [f"{one.client}: {one.reason}" for one in rejected.values() if first]
        return Round(after, records, notes)

    def finish(self, state: RunState, reported: RunState, early: EarlyStop | None = None) -> Round:
        """Return which test samples were classified correctly."""
        return self.evaluate(state, reported, self.plan.scored_statistics(final=True))

    def evaluate(
        self, state: RunState, reported: RunState, kinds: tuple[StatisticsKind, ...]
    ) -> Round:
        """Evaluate the reported round; without BatchNorm, running statistics are the only kind."""
        if RUNNING not in kinds:
            return Round(state)
        records: list[Record] = []
        if RUNNING not in self.plan.scored_statistics():
            records = [record for one in self._fitted for record in one.records(reported.round)]
        outcomes = {
            (RUNNING, *place): hits
            for one in self._fitted
            for place, hits in one.scores.outcomes.items()
        }
        return Round(state, records, final=FinalEvaluation(reported.round, (RUNNING,), outcomes))

    def close(self) -> None:
        """Hold nothing that must be released."""

    @cached_property
    def _every(self) -> list[FittedClient | Rejection]:
        return [fit_client(self.plan, client) for client in self.plan.federation.clients]

    @property
    def _fitted(self) -> list[FittedClient]:
        return [one for one in self._every if isinstance(one, FittedClient)]
