"""Many clients with small dense models, trained in stacks (`stacked_models`)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import accumulate, cycle, islice, zip_longest
from math import prod
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from fedbn.core import rounds
from fedbn.core.engine import Pool, measured_or_rejected, split_rejections
from fedbn.core.federation import AnySplit, Client, Split, all_targets, scaled, widened
from fedbn.core.findings import Detail
from fedbn.core.local_training import Optimizer, make_optimizer
from fedbn.core.method import Proximal, ProximalGradient
from fedbn.core.metric import ACCURACY
from fedbn.core.packing import Pack
from fedbn.core.plan import Plan
from fedbn.core.randomness import generator
from fedbn.core.replica import Replica
from fedbn.core.rounds import Outcome, Record, Rejection, RunState, Update
from fedbn.core.scoring import ClientScores, Score, score_client, score_with, scored, splits_of
from fedbn.core.statistics_kinds import StatisticsKind
from fedbn.core.task import CLASSIFICATION, Task
from fedbn.fast.stacked_models import Stack, unbound, unstackable

log = logging.getLogger("fedbn")
T = TypeVar("T")

# A stack holds at most so many numbers of a batch, parameters and clients: wide inputs
# are bound by memory and gain nothing from large stacks, narrow ones by the number of calls.
_BATCH_NUMBERS = 1 << 22
_PARAMETERS = 1 << 21
_MOST = 256
_SCORED_AT_ONCE = 64
_COPIED_BYTES = 1 << 28  # of all training data, and of all that is scored

# Optimisers that move each number by its own gradients alone, with the options that were compared
# with the plain engine. Others (Adafactor, Muon) take norms and means over a whole tensor, which in
# a stack is all clients' together.
_ADAM = {"betas", "eps", "weight_decay", "maximize"}

ROW_BY_ROW: Mapping[str, Set[str]] = {
    "SGD": {"momentum", "dampening", "weight_decay", "nesterov", "maximize"},
    "Adam": _ADAM | {"amsgrad", "decoupled_weight_decay"},
    "AdamW": _ADAM | {"amsgrad"},
    "Adamax": _ADAM,
    "NAdam": _ADAM | {"momentum_decay", "decoupled_weight_decay"},
    "RAdam": _ADAM | {"decoupled_weight_decay"},
    "Adagrad": {"lr_decay", "weight_decay", "initial_accumulator_value", "eps", "maximize"},
    "Adadelta": {"rho", "eps", "weight_decay", "maximize"},
    "RMSprop": {"alpha", "eps", "weight_decay", "momentum", "centered", "maximize"},
    "Rprop": {"etas", "step_sizes", "maximize"},
    "ASGD": {"lambd", "alpha", "t0", "weight_decay", "maximize"},
}


def unbatchable(plan: Plan) -> str | None:
    """Say why a plan cannot run in stacks, or None where it can."""
    if not plan.training.fast:
        return "training.fast = false leaves stacks out"
    if plan.training.device != "cpu":
        return f"training.device is {plan.training.device}"
    if plan.task.loss is not CLASSIFICATION.loss or plan.task.loss_for is not None:
        return "the loss is not the classification loss"
    if any(client.train.augment for client in plan.federation.clients):
        return "the data is augmented"
    for key in ("clip_norm", "amp"):
        if (value := getattr(plan.training, key)) is not None:
            return f"training.{key} is {value}"
    optimizer, options = plan.training.optimizer, plan.training.optimizer_args
    if optimizer not in ROW_BY_ROW:
        return f"training.optimizer is {optimizer}, legal here are {', '.join(ROW_BY_ROW)}"
    if untried := sorted(options.keys() - ROW_BY_ROW[optimizer]):
        return f"training.optimizer_args has {', '.join(untried)}"
    return unstackable(plan.initial_model) or unknown_rules(plan)


def unknown_rules(plan: Plan) -> str | None:
    """Name the rules that stacks cannot follow."""
    others = [rule.label for rule in plan.method.rules if type(rule) is not Proximal]
    return f"stacks do not know {', '.join(others)}" if others else None


def stack_size(plan: Plan) -> int:
    """How many clients a stack holds; depends on the plan alone, so that results do too."""
    parameters = sum(p.numel() for p in plan.initial_model.parameters())
    most = max(1, min(_MOST, _BATCH_NUMBERS // _batch_numbers(plan), _PARAMETERS // parameters))
    clients = len(plan.federation.clients)
    return -(-clients // -(-clients // most))  # stacks of equal size, none longer than `most`


def _batch_numbers(plan: Plan) -> int:
    """The numbers of the largest batch of one client."""
    joined = 2 if plan.training.last_batch == "merge" else 1
    samples = min(joined * (plan.training.batch_size or plan.largest), plan.largest) + 1
    return samples * prod(plan.federation.input_shape)


class Samples:
    """All clients' training data in one tensor, so that one call gathers a stack's batches."""

    def __init__(self, clients: Sequence[Client], splits: Sequence[Split]):
        self._x, self._y = torch.cat([s.x for s in splits]), torch.cat([s.y for s in splits])
        lengths = accumulate((len(split) for split in splits), initial=0)
        self._begin = {client.name: at for client, at in zip(clients, lengths, strict=False)}

    @classmethod
    def of(cls, clients: Sequence[Client]) -> Samples | None:
        """Copy the data where it lies in memory, is alike, and small."""
        splits = [client.train for client in clients if isinstance(client.train, Split)]
        alike = len({(split.x.dtype, split.y.dtype, split.shape) for split in splits}) == 1
        small = sum(split.x.nbytes for split in splits) <= _COPIED_BYTES
        return cls(clients, splits) if alike and small and len(splits) == len(clients) else None

    def batch(self, clients: Sequence[Client], orders: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Take some samples of each client, one client's after another's."""
        begin = torch.tensor([self._begin[client.name] for client in clients])
        counts = torch.tensor([len(order) for order in orders])
        index = torch.cat([*orders]).add_(begin.repeat_interleave(counts))
        return scaled(self._x.index_select(0, index)), widened(self._y.index_select(0, index))


def train_stack(
    plan: Plan,
    stack: Stack,
    clients: Sequence[Client],
    state: RunState,
    samples: Samples | None = None,
) -> list[Outcome]:
    """Train clients, no more than the stack has room for, for one round from a state.

    Gives an outcome each, in their order; `samples` is their data, where it lies together.
    """
    count = len(clients)
    stack.load(state.shared, [state.local[client.name] for client in clients])
    if plan.keeps_statistics:
        stack.load_own([state.own_statistics[client.name] for client in clients])
    losses = _train(plan, stack, clients, state, samples).tolist()
    shared, local, own = stack.rows(count)
    near = rounds.is_clearly_close(shared, state.shared).expand(count).tolist()
    parts = zip(unbound(shared, count), unbound(local, count), strict=True)
    kept = unbound(own, count) if plan.keeps_statistics else [None] * count
    updates = [
        Update(client.name, *packs, loss, is_near, statistics)
        for client, packs, loss, is_near, statistics in zip(
            clients, parts, losses, near, kept, strict=True
        )
    ]
    finite = (_finite(shared, count) & _finite(local, count)).tolist()
    return [
        update if good else rounds.examined_after_training(plan, client, update, state.round + 1)
        for client, update, good in zip(clients, updates, finite, strict=True)
    ]


def _finite(rows: Pack, count: int) -> Tensor:
    """Tell which rows are surely finite: a sum is, unless a number is not, or it overflows."""
    sums = [v.sum(dim=1) for group, v in rows.vectors.items() if not group.integer]
    return torch.stack(sums).isfinite().all(dim=0) if sums else torch.ones(count, dtype=torch.bool)


def _train(
    plan: Plan, stack: Stack, clients: Sequence[Client], state: RunState, samples: Samples | None
) -> Tensor:
    training = plan.training.in_round(state.round + 1)
    optimizer = make_optimizer(list(stack.leaves.values()), training)
    names = [e.name for e in stack.shared.layout.entries if e.trainable]
    shared = [stack.leaves[name] for name in names]
    anchor = [state.shared.state[name] for name in names]
    total, seen = torch.zeros(len(clients), dtype=torch.float64), torch.zeros(len(clients))
    for batch in _batches(plan, clients, state.round + 1, samples):
        optimizer.zero_grad(set_to_none=True)
        losses = _losses(stack.forward(batch.x, batch.counts, training=True), batch)
        losses.sum().backward()
        for rule in plan.method.rules:
            assert isinstance(rule, Proximal)
            ProximalGradient(rule.mu, shared, anchor)()
        _step(optimizer, stack, batch.counts)
        total += losses.detach() * batch.sizes
        seen += batch.sizes
    return total / seen


def _step(optimizer: Optimizer, stack: Stack, counts: Tensor | None) -> None:
    """Move all clients that had a batch; the others have finished their round."""
    if counts is None or bool(counts.all()):
        optimizer.step()
        return
    idle = (counts == 0).nonzero().flatten()
    kept = [leaf.detach()[idle].clone() for leaf in stack.leaves.values()]
    optimizer.step()
    with torch.no_grad():
        for leaf, values in zip(stack.leaves.values(), kept, strict=True):
            leaf[idle] = values


@dataclass(frozen=True)
class StackedBatch:
    """A batch of each client, padded with zeros to the largest."""

    x: Tensor  # (clients, samples, ...)
    y: Tensor  # (clients, samples)
    counts: Tensor | None  # how many samples of each client count; None for all

    @property
    def sizes(self) -> Tensor | int:
        """Each client's samples."""
        return self.y.shape[1] if self.counts is None else self.counts

    @property
    def mask(self) -> Tensor:
        """Which samples count, (clients, samples) or alike for all clients."""
        places = torch.arange(self.y.shape[1])
        return places >= 0 if self.counts is None else places < self.counts[:, None]


def _batches(
    plan: Plan, clients: Sequence[Client], round: int, samples: Samples | None
) -> Iterator[StackedBatch]:
    """Give the batches of a round, each client's in the order that it has alone."""
    lengths = [len(client.train) for client in clients]
    cuts = {n: plan.training.sizes(n) for n in set(lengths)}
    steps = [plan.training.steps(n, plan.largest) for n in lengths]
    sizes = [list(islice(cycle(cuts[n]), k)) for n, k in zip(lengths, steps, strict=True)]
    orders = [
        _order(n, cuts[n], k, generator(plan.seed, "order", round, client.name))
        for client, n, k in zip(clients, lengths, steps, strict=True)
    ]
    at_once = max(1, _BATCH_NUMBERS // (len(clients) * _batch_numbers(plan)))
    for begin in range(0, max(steps), at_once):
        now = [own[begin : begin + at_once] for own in sizes]
        starts = [sum(own[:begin]) for own in sizes]
        some = [
            order[start : start + sum(own)]
            for order, start, own in zip(orders, starts, now, strict=True)
        ]
        if samples is None:
            given = zip(
                *(c.train.batch(o) for c, o in zip(clients, some, strict=True)), strict=True
            )
            x, y = map(torch.cat, given)
        else:
            x, y = samples.batch(clients, some)
        yield from _side_by_side(x, y, now)


def _order(n: int, sizes: list[int], steps: int, draws: torch.Generator) -> Tensor:
    """All samples of `local_training.batches`, one after another."""
    passes = range(-(-steps // len(sizes)))
    orders = [torch.randperm(n, generator=draws)[: sum(sizes)] for _ in passes]
    return orders[0] if len(orders) == 1 else torch.cat(orders)


def _side_by_side(x: Tensor, y: Tensor, sizes: Sequence[list[int]]) -> Iterator[StackedBatch]:
    """Cut each client's samples into batches of its sizes, and give those of a step together."""
    if all(own == sizes[0] for own in sizes):
        xs, ys = (t.view(len(sizes), -1, *t.shape[1:]).split(sizes[0], dim=1) for t in (x, y))
        for part in zip(xs, ys, strict=True):
            yield StackedBatch(*part, None)
        return
    flat = [size for own in sizes for size in own]
    parts = zip(x.split(flat), y.split(flat), strict=True)
    cut = [list(islice(parts, len(own))) for own in sizes]
    nothing = (x[:0], y[:0])
    for step in range(max(map(len, sizes))):
        now = [own[step] if step < len(own) else nothing for own in cut]
        x, y = (pad_sequence([part[i] for part in now], batch_first=True) for i in (0, 1))
        counts = torch.tensor([len(part[1]) for part in now])
        yield StackedBatch(x, y, None if bool((counts == y.shape[1]).all()) else counts)


def _losses(outputs: Tensor, batch: StackedBatch) -> Tensor:
    """Each client's mean loss over its own samples."""
    flat = functional.cross_entropy(outputs.transpose(1, 2), batch.y, reduction="none")
    if batch.counts is None:
        return flat.mean(dim=1)
    return torch.where(batch.mask, flat, 0).sum(dim=1) / batch.counts.clamp(min=1)


def score_stack(
    plan: Plan, stack: Stack, clients: Sequence[Client], state: RunState, batches: ScoredBatches
) -> list[Record]:
    """Score a stack of clients on their train, validation and test data."""
    stack.load(state.shared, [state.scored_with(client.name) for client in clients])
    asked = [list(splits_of(client, plan.score_train)) for client in clients]
    found: list[list[Record]] = [[] for _ in clients]
    for at in zip_longest(*asked):
        splits = [None if one is None else one[2] for one in at]
        scores = _scores(plan.task, stack, splits, batches.of(splits))
        for row, (one, score) in enumerate(zip(at, scores, strict=True)):
            if one is not None and score is not None:
                split, domain, _ = one
                found[row] += score.records(plan, state.round, clients[row], split, domain)
    return [record for records in found for record in records]


class ScoredBatches:
    """What stacks are scored on; kept from round to round where all are scored and it is small."""

    def __init__(self, plan: Plan):
        splits = [s for c in plan.federation.clients for *_, s in splits_of(c, plan.score_train)]
        lying = all(isinstance(split, Split) for split in splits)
        self._room = _COPIED_BYTES if plan.score_all and lying else 0
        self._kept: dict[tuple[int, ...], tuple[object, list[StackedBatch]]] = {}

    def of(self, splits: Sequence[AnySplit | None]) -> Iterable[StackedBatch]:
        """Give some samples of each client at a time; where there is no split, none."""
        key = tuple(map(id, splits))  # of objects that are kept too
        if key not in self._kept:
            most = max((split for split in splits if split is not None), key=len)
            size = len(splits) * len(most) * prod(most.shape) * max(4, most.dtype.itemsize)
            if size > self._room:  # padded to the largest client's samples
                return self._made(splits)
            self._room -= size
            self._kept[key] = splits, list(self._made(splits))
        return self._kept[key][1]

    def _made(self, splits: Sequence[AnySplit | None]) -> Iterator[StackedBatch]:
        some = next(split for split in splits if split is not None)
        lengths = [0 if split is None else len(split) for split in splits]
        for begin in range(0, max(lengths), _SCORED_AT_ONCE):
            given = [
                (split or some).batch(slice(begin, min(begin + _SCORED_AT_ONCE, length)))
                for split, length in zip(splits, lengths, strict=True)
            ]
            x, y = map(torch.cat, zip(*given, strict=True))
            yield from _side_by_side(x, y, [[len(y)] for _, y in given])


@torch.inference_mode()
def _scores(
    task: Task, stack: Stack, splits: Sequence[AnySplit | None], batches: Iterable[StackedBatch]
) -> list[Score | None]:
    """Score each client on its split; the accuracy of all at once, other metrics one by one."""
    loss = torch.zeros(len(splits), dtype=torch.float64)
    right = torch.zeros(len(splits), dtype=torch.float64)
    found, at_once = [], all(metric is ACCURACY for metric in task.metrics)
    for batch in batches:
        outputs = stack.forward(batch.x, batch.counts, training=False)
        loss += _losses(outputs, batch) * batch.sizes
        found.append(task.keep(outputs.flatten(0, 1)).unflatten(0, batch.y.shape))
        if at_once:
            right += (batch.mask & (found[-1].argmax(dim=2) == batch.y)).sum(dim=1)
    lengths = [0 if split is None else len(split) for split in splits]
    each = zip(splits, lengths, loss.tolist(), right.tolist(), torch.cat(found, dim=1), strict=True)
    scores: list[Score | None] = []
    for split, length, lost, hits, outputs in each:
        if split is None:
            scores.append(None)
        elif at_once and split.groups is None:
            scores.append(Score(lost / length, {ACCURACY.name: hits / length}))
        else:
            scores.append(scored(task, split, [(lost, outputs[:length], all_targets(split))]))
    return scores


class Stacks:
    """Each thread has a stack of models, which becomes that of some clients in turn."""

    repeatable = True

    def __init__(self, plan: Plan, workers: int):
        self._size, self._samples = stack_size(plan), Samples.of(plan.federation.clients)
        count = min(workers, -(-len(plan.federation.clients) // self._size))
        self._plan, self._scored = plan, ScoredBatches(plan)
        self._pool = Pool(
            [
                Stack(plan.initial_model, plan.method, self._size, plan.keeps_statistics)
                for _ in range(count)
            ]
        )
        self.notes: Sequence[str] = [Detail(f"clients train in stacks of {self._size}")]

    def train(self, clients: Sequence[Client], state: RunState) -> Iterator[Outcome]:
        """Train these clients for one round."""
        return self._each(
            clients,
            lambda replica, one: rounds.train_client(self._plan, replica, one, state),
            lambda stack, some: train_stack(self._plan, stack, some, state, self._samples),
        )

    def score(
        self, clients: Sequence[Client], state: RunState
    ) -> tuple[list[Record], list[Rejection]]:
        """Score these clients' joined models; and say who could not be scored."""
        scores: Iterator[list[Record] | Rejection] = self._each(
            clients,
            lambda replica, one: score_client(self._plan, replica, one, state),
            lambda stack, some: [score_stack(self._plan, stack, some, state, self._scored)],
        )
        return split_rejections(
            found if isinstance(found, Rejection) else ClientScores(found) for found in scores
        )

    def score_with(
        self, clients: Sequence[Client], state: RunState, kind: StatisticsKind
    ) -> Iterator[ClientScores | Rejection]:
        """Score these clients' joined models with one kind of BatchNorm statistics."""
        return self._each(clients, lambda rep, one: score_with(self._plan, rep, one, state, kind))

    def measure(self, clients: Sequence[Client], state: RunState) -> Iterator[Pack | Rejection]:
        """Give clients that have not trained the local part they are scored with."""
        return self._each(clients, lambda rep, one: measured_or_rejected(rep, one, state))

    def close(self) -> None:
        """End the threads."""
        self._pool.close()

    def _each(
        self,
        clients: Sequence[Client],
        alone: Callable[[Replica, Client], T],
        together: Callable[[Stack, Sequence[Client]], Sequence[T]] | None = None,
    ) -> Iterator[T]:
        """Do something with clients, in stacks where that works, otherwise one by one."""

        def work(stack: Stack, some: Sequence[Client]) -> Sequence[T]:
            try:
                if together is not None:
                    return together(stack, some)
            except Exception:
                log.debug("a stack failed; its clients follow one by one", exc_info=True)
            replica = Replica(self._plan.initial_model, self._plan.method)
            return [alone(replica, client) for client in some]

        cut = [clients[i : i + self._size] for i in range(0, len(clients), self._size)]
        for several in self._pool.ordered(work, cut):
            yield from several
