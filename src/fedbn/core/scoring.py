"""Scoring clients: every client's joined model on its own train, validation and test data.

A client's samples are cut into pieces that cores can share, because few clients divide badly among
few cores.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from fedbn.core.federation import Client, Split
from fedbn.core.foreign import contained
from fedbn.core.packing import Pack
from fedbn.core.plan import Plan, named
from fedbn.core.randomness import number
from fedbn.core.replica import Replica
from fedbn.core.rounds import Record, Refusal, RunState, failure, record
from fedbn.core.statistics import estimate_statistics
from fedbn.core.training import Part, Score, evaluate_part, parts, scored
from fedbn.errors import DataError


@dataclass(frozen=True)
class Piece:
    """Some samples of one split of a client."""

    split: str
    domain: str
    data: Split
    part: slice


Scored = list[Part] | Refusal


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
) -> Part:
    model = replica.scoring_model(state.shared, state.scored_with(client.name))
    where = f"{client.name}\0{piece.split}\0{piece.domain}\0{piece.part.start}"
    with replica.seeds(number(plan.seed, "scoring draws", state.round, where)):
        return evaluate_part(model, piece.data, piece.part, plan.objective)


def put_together(
    plan: Plan, client: Client, found: Sequence[Scored], round: int
) -> list[Record] | Refusal:
    """Make a client's records of what its pieces gave, in their order."""
    every: list[Part] = []
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
