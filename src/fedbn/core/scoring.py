"""Scoring clients: every client's joined model on its own train, validation and test data.

A client's samples are cut into pieces that cores can share, because few clients divide badly among
few cores.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fedbn.core.bn_statistics import average_statistics, estimate_statistics
from fedbn.core.federation import AnySplit, Client, merged_slices
from fedbn.core.metric import ACCURACY
from fedbn.core.own_statistics import statistics_of, untrained
from fedbn.core.packing import Pack
from fedbn.core.plan import Plan, named
from fedbn.core.randomness import derive_seed
from fedbn.core.replica import Replica
from fedbn.core.rounds import Record, Rejection, RunState, failure, record
from fedbn.core.state import uses_batch_statistics
from fedbn.core.statistics_kinds import StatisticsKind
from fedbn.core.task import CLASSIFICATION, Loss, Task
from fedbn.core.user_code import contained
from fedbn.errors import DataError


@dataclass(frozen=True)
class Score:
    """The mean loss on a split, and what the task measures."""

    loss: float
    metrics: Mapping[str, float]

    def records(
        self,
        plan: Plan,
        round: int,
        client: Client,
        split: str,
        domain: str,
        statistics: StatisticsKind = "running",
    ) -> list[Record]:
        """Make a record of each number."""
        return [
            record(plan, round, client, split, metric, value, domain, statistics)
            for metric, value in {"loss": self.loss, **self.metrics}.items()
        ]


PartScore = tuple[float, Tensor, Tensor]
"""The sum of losses, what was kept of outputs, and the targets."""
_PART = 512
SCORED_BATCH = 128
"""Samples of a batch in evaluation, where the batch decides its outputs; divides `_PART`."""


def evaluate(model: nn.Module, data: AnySplit, batch_size: int = 128) -> Score:
    """Score a classifier on a split, in evaluation mode."""
    cut = parts(data, uses_batch_statistics(model))
    found = [evaluate_part(model, data, p, batch_size=batch_size) for p in cut]
    return scored(CLASSIFICATION, data, found)


def parts(data: AnySplit, by_batch: bool = False) -> list[slice]:
    """Cut a split into what is scored in one go, so that cores can share a client's samples.

    The cut is the same whoever scores, because sums depend on it. For a model that normalises
    `by_batch` the last part ends with a whole batch.
    """
    if by_batch:
        return merged_slices(0, len(data), _PART, least=SCORED_BATCH)
    return [slice(i, min(i + _PART, len(data))) for i in range(0, len(data), _PART)]


def evaluation_batches(model: nn.Module, start: int, stop: int, size: int) -> list[slice]:
    """Cut samples into the batches that a model is evaluated on.

    Where BatchNorm normalises by the batch, outputs depend on the cut. Then it is always the same:
    batches of `SCORED_BATCH` samples in their order, the remainder merged into the last one.
    """
    if uses_batch_statistics(model):
        return merged_slices(start, stop, SCORED_BATCH, least=SCORED_BATCH)
    return [slice(begin, min(begin + size, stop)) for begin in range(start, stop, size)]


def evaluate_part(
    model: nn.Module,
    data: AnySplit,
    part: slice,
    task: Task = CLASSIFICATION,
    loss: Loss | None = None,
    batch_size: int = 128,
) -> PartScore:
    """Sum up the losses of a part of a split, and keep what the task measures by."""
    model.eval()
    lost = loss or task.loss
    total = torch.zeros((), dtype=torch.float64, device=data.device)
    kept, targets = [], []
    order = evaluation_batches(model, part.start, part.stop, batch_size)
    with torch.no_grad():  # a forward may differentiate, which inference mode does not allow
        for x, y in data.stream(order):
            outputs = model(x)
            total += lost(outputs, y) * len(y)
            kept.append(task.keep(outputs))
            targets.append(y)
    return float(total), torch.cat(kept), torch.cat(targets)


def scored(task: Task, data: AnySplit, found: Sequence[PartScore]) -> Score:
    """Make a score of a split's parts."""
    loss = sum(loss for loss, _, _ in found) / len(data)
    kept = torch.cat([kept for _, kept, _ in found])
    targets = torch.cat([targets for _, _, targets in found])
    return Score(loss, task.measured(kept, targets, data.groups))


@dataclass(frozen=True)
class Piece:
    """Some samples of one split of a client."""

    split: str
    domain: str
    data: AnySplit
    part: slice


Scored = list[PartScore] | Rejection
Outcomes = Mapping[tuple[str, str], Tensor]
"""By client and domain, which test samples were classified correctly, in their order."""


@dataclass(frozen=True)
class ClientScores:
    """The scores of one client, and which of its test samples were classified correctly."""

    records: list[Record]
    outcomes: Outcomes = field(default_factory=dict)


def splits_of(client: Client, train: bool = True) -> Iterator[tuple[str, str, AnySplit]]:
    """What a client is scored on: the split's name, its domain and its samples."""
    if train:
        yield "train", client.domain, client.train
    if client.valid is not None:
        yield "valid", client.domain, client.valid
    for domain, test in client.tests.items():
        yield "test", domain, test


def measured(replica: Replica, client: Client, state: RunState) -> Pack:
    """A client's local part with the exact BatchNorm statistics of its own training data.

    A client that has not trained yet would otherwise be scored with statistics of no data.
    """
    replica.load(state.shared, state.local[client.name])
    with contained(), replica.seeds(0):
        estimate_statistics(replica.model, client.train)
    if name := replica.local.unusable():
        raise DataError(f"the statistics of its training data have NaN or infinity in {name}")
    return replica.local.clone()


def client_statistics(
    plan: Plan, replica: Replica, client: Client, state: RunState, kind: StatisticsKind
) -> Pack:
    """Return the BatchNorm statistics that a client's model is scored with.

    A client that keeps its own running statistics and has not trained yet has exact ones instead,
    as it has where the method itself keeps them local.
    """
    if kind == "local":
        kept = state.own_statistics[client.name]
        if not untrained(kept, statistics_of(plan.initial_model)):
            return kept
    replica.use(state.shared, state.scored_with(client.name))
    compute = average_statistics if kind == "batch" else estimate_statistics
    with contained(), replica.seeds(0):
        compute(replica.model, client.train)
    found = replica.statistics
    if name := found.unusable():
        raise DataError(f"{kind} statistics of its training data have NaN or infinity in {name}")
    return found


def untrained_notes(plan: Plan, round: int, names: Sequence[str]) -> list[str]:
    """Say how many clients have not trained yet: when they are scored first, and at the end."""
    rounds = plan.training.rounds
    if not names or round not in (min(plan.evaluate_every, rounds), rounds):
        return []
    return [
        f"round {round}: {len(names)} of {len(plan.federation.clients)} clients have not trained "
        f"yet ({named(names)}): scored with BatchNorm statistics of their own training data"
    ]


def pieces_of(client: Client, train: bool = True, by_batch: bool = False) -> list[Piece]:
    """Cut all that a client is scored on."""
    return [
        Piece(name, domain, data, part)
        for name, domain, data in splits_of(client, train)
        for part in parts(data, by_batch)
    ]


def score_pieces(
    plan: Plan,
    replica: Replica,
    client: Client,
    pieces: Sequence[Piece],
    state: RunState,
    statistics: Pack | None = None,
) -> Scored:
    """Score some pieces of a client, with other BatchNorm statistics if they are given.

    An error there, unless of data, concerns this client's numbers only: it becomes a refusal.
    """
    found = []
    try:
        with contained():
            for piece in pieces:
                local = state.scored_with(client.name)
                model = replica.scoring_model(state.shared, local, statistics)
                where = f"{client.name}\0{piece.split}\0{piece.domain}\0{piece.part.start}"
                with replica.seeds(derive_seed(plan.seed, "scoring draws", state.round, where)):
                    data, loss = piece.data, plan.loss(client)
                    found.append(evaluate_part(model, data, piece.part, plan.task, loss))
        return found
    except DataError:  # bad data stops a run, whoever's it is
        raise
    except Exception as error:
        return failure(client, "cannot be scored: ", error)


def put_together(
    plan: Plan,
    client: Client,
    found: Sequence[Scored],
    round: int,
    statistics: StatisticsKind = "running",
) -> ClientScores | Rejection:
    """Return a client's scores from what its pieces gave, in their order."""
    every: list[PartScore] = []
    for one in found:
        if isinstance(one, Rejection):
            return one
        every += one
    records, left = [], iter(every)
    outcomes: dict[tuple[str, str], Tensor] = {}
    try:
        for name, domain, data in splits_of(client, plan.score_train):
            own = [next(left) for _ in parts(data, plan.by_batch)]
            score = scored(plan.task, data, own)
            records += score.records(plan, round, client, name, domain, statistics)
            if name == "test" and plan.task.metrics[:1] == (ACCURACY,):
                hits = [kept.argmax(dim=1) == targets for _, kept, targets in own]
                outcomes[client.name, domain] = torch.cat(hits).to(torch.uint8).cpu()
    except Exception as error:  # of a metric: this client's numbers only
        return failure(client, "cannot be scored: ", error)
    return ClientScores(records, outcomes)


def score_client(
    plan: Plan, replica: Replica, client: Client, state: RunState
) -> list[Record] | Rejection:
    """Score a client's joined model on its train, validation and test data."""
    found = score_pieces(
        plan, replica, client, pieces_of(client, plan.score_train, plan.by_batch), state
    )
    scores = put_together(plan, client, [found], state.round)
    return scores if isinstance(scores, Rejection) else scores.records


def score_with(
    plan: Plan, replica: Replica, client: Client, state: RunState, kind: StatisticsKind
) -> ClientScores | Rejection:
    """Score a client's joined model with one kind of BatchNorm statistics."""
    pieces = pieces_of(client, plan.score_train, plan.by_batch)
    statistics = None
    if kind != "running":
        try:
            statistics = client_statistics(plan, replica, client, state, kind)
        except Exception as error:
            return failure(client, "", error)
    found = score_pieces(plan, replica, client, pieces, state, statistics)
    return put_together(plan, client, [found], state.round, kind)
