"""Scoring clients: every client's joined model on its own train, validation and test data.

A client's samples are cut into pieces that cores can share, because few clients divide badly among
few cores.

Samples that belong together, such as the windows of one subject, scored as one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from fedbn.core.bn_statistics import estimate_statistics
from fedbn.core.federation import Client, Split
from fedbn.core.packing import Pack
from fedbn.core.plan import CLASSIFICATION, Objective, Plan, named
from fedbn.core.randomness import number
from fedbn.core.replica import Replica
from fedbn.core.rounds import Record, Refusal, RunState, failure, record
from fedbn.core.user_code import contained
from fedbn.errors import DataError


def majority_accuracy(predicted: Tensor, labels: Tensor, groups: Tensor) -> float:
    """Score groups: each is given the class that most of its samples are given.

    Of classes with equally many samples the first is taken. All samples of a group must have one
    label.

    Examples:
        >>> predicted = torch.tensor([0, 1, 1, 0, 0])
        >>> labels = torch.tensor([1, 1, 1, 1, 1])
        >>> majority_accuracy(predicted, labels, torch.tensor([7, 7, 7, 9, 9]))
        0.5
    """
    names, place = groups.unique(return_inverse=True)
    classes = int(max(predicted.max(), labels.max())) + 1
    votes = torch.bincount(place * classes + predicted, minlength=len(names) * classes)
    truth = torch.zeros_like(names).scatter_(0, place, labels)
    given = votes.view(len(names), classes).argmax(dim=1)
    return float((given == truth).double().mean())


@dataclass(frozen=True)
class Score:
    """Mean loss and accuracy on a split; and of its groups, by majority, where it has them."""

    loss: float
    accuracy: float
    group_accuracy: float | None = None


PartScore = tuple[float, Tensor]
_PART = 512


def evaluate(
    model: nn.Module, data: Split, objective: Objective = CLASSIFICATION, batch_size: int = 128
) -> Score:
    """Score a model on a split, in evaluation mode."""
    return scored(data, [evaluate_part(model, data, p, objective, batch_size) for p in parts(data)])


def parts(data: Split) -> list[slice]:
    """Cut a split into what is scored in one go, so that cores can share a client's samples.

    The cut is the same whoever scores, because sums depend on it.
    """
    return [slice(i, min(i + _PART, len(data))) for i in range(0, len(data), _PART)]


def evaluate_part(
    model: nn.Module,
    data: Split,
    part: slice,
    objective: Objective = CLASSIFICATION,
    batch_size: int = 128,
) -> PartScore:
    """Sum up the losses of a part of a split, and predict it."""
    model.eval()
    loss = torch.zeros((), dtype=torch.float64, device=data.y.device)
    predicted = torch.empty_like(data.y[part])
    with torch.inference_mode():
        for begin in range(part.start, part.stop, batch_size):
            some = slice(begin, min(begin + batch_size, part.stop))
            x, y = data.batch(some)
            outputs = model(x)
            loss += objective.loss(outputs, y) * len(y)
            predicted[begin - part.start : some.stop - part.start] = objective.predict(outputs)
    return float(loss), predicted


def scored(data: Split, found: Sequence[PartScore]) -> Score:
    """Make a score of a split's parts: the sums of their losses, and their predictions."""
    loss = sum(loss for loss, _ in found) / len(data)
    predicted = torch.cat([predicted for _, predicted in found])
    right = int((predicted == data.y).sum()) / len(data)
    if data.groups is None:
        return Score(loss, right)
    return Score(loss, right, majority_accuracy(predicted, data.y, data.groups))


@dataclass(frozen=True)
class Piece:
    """Some samples of one split of a client."""

    split: str
    domain: str
    data: Split
    part: slice


Scored = list[PartScore] | Refusal


def splits_of(client: Client) -> Iterator[tuple[str, str, Split]]:
    """What a client is scored on: the split's name, its domain and its samples."""
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
        estimate_statistics(replica.model, client.train.x)
    if name := replica.local.unusable():
        raise DataError(f"the statistics of its training data have NaN or infinity in {name}")
    return replica.local.clone()


def untrained_record(plan: Plan, round: int, client: str, domain: str) -> Record:
    """Record that a client's scores of a round are those of a client that has not trained yet."""
    return record(plan, round, client, domain, "train", "untrained", 1.0)


def untrained_notes(plan: Plan, round: int, names: Sequence[str]) -> list[str]:
    """Say how many clients have not trained yet: when they are scored first, and at the end."""
    rounds = plan.training.rounds
    if not names or round not in (min(plan.evaluate_every, rounds), rounds):
        return []
    return [
        f"round {round}: {len(names)} of {len(plan.federation.clients)} clients have not trained "
        f"yet ({named(names)}): scored with BatchNorm statistics of their own training data"
    ]


def pieces_of(client: Client) -> list[Piece]:
    """Cut all that a client is scored on."""
    return [
        Piece(name, domain, data, part)
        for name, domain, data in splits_of(client)
        for part in parts(data)
    ]


def score_pieces(
    plan: Plan, replica: Replica, client: Client, pieces: Sequence[Piece], state: RunState
) -> Scored:
    """Score some pieces of a client.

    An error there concerns this client's numbers only, and becomes a refusal.
    """
    try:
        with contained():
            return [_score_piece(plan, replica, client, piece, state) for piece in pieces]
    except Exception as error:
        return failure(client, "cannot be scored: ", error)


def _score_piece(
    plan: Plan, replica: Replica, client: Client, piece: Piece, state: RunState
) -> PartScore:
    model = replica.scoring_model(state.shared, state.scored_with(client.name))
    where = f"{client.name}\0{piece.split}\0{piece.domain}\0{piece.part.start}"
    with replica.seeds(number(plan.seed, "scoring draws", state.round, where)):
        return evaluate_part(model, piece.data, piece.part, plan.objective)


def put_together(
    plan: Plan, client: Client, found: Sequence[Scored], round: int
) -> list[Record] | Refusal:
    """Make a client's records of what its pieces gave, in their order."""
    every: list[PartScore] = []
    for one in found:
        if isinstance(one, Refusal):
            return one
        every += one
    records, left = [], iter(every)
    for name, domain, data in splits_of(client):
        score = scored(data, [next(left) for _ in parts(data)])
        records += score_records(plan, round, client, name, domain, score)
    return records


def score_client(
    plan: Plan, replica: Replica, client: Client, state: RunState
) -> list[Record] | Refusal:
    """Score a client's joined model on its train, validation and test data."""
    found = score_pieces(plan, replica, client, pieces_of(client), state)
    return put_together(plan, client, [found], state.round)


def score_records(
    plan: Plan, round: int, client: Client, split: str, domain: str, score: Score
) -> list[Record]:
    """Turn a score into records, one a metric."""
    return [
        record(plan, round, client.name, domain, split, metric, value)
        for metric, value in asdict(score).items()
        if value is not None
    ]
