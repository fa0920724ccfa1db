"""Many clients with small dense models, trained in stacks (see `stacking`)."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence, Set
from itertools import zip_longest
from math import prod

import torch
from torch import Tensor
from torch.nn import functional

from fedbn.core.engine import Pool, measured_or_refused, told_apart
from fedbn.core.federation import Client, Split
from fedbn.core.method import Proximal
from fedbn.core.packing import Pack
from fedbn.core.plan import CLASSIFICATION, Plan
from fedbn.core.randomness import generator
from fedbn.core.replica import Replica
from fedbn.core.rounds import (
    Outcome,
    Record,
    Refusal,
    RunState,
    Update,
    batches,
    examined,
    make_optimizer,
    train_client,
)
from fedbn.core.scoring import Score, score_client, score_records, scored, splits_of
from fedbn.fast.stacked_models import Stack, unstackable

log = logging.getLogger("fedbn")

# A stack holds at most so many numbers of a batch, parameters and clients: wide inputs
# are bound by memory and gain nothing from large stacks, narrow ones by the number of calls.
_BATCH_NUMBERS = 1 << 22


_PARAMETERS = 1 << 21
_MOST = 128
_SCORED_AT_ONCE = 64


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
    if plan.objective is not CLASSIFICATION:
        return "the loss is not the classification loss"
    if not all(isinstance(penalty, Proximal) for penalty in plan.method.penalties):
        return "a penalty other than the proximal term"
    if any(client.train.augment for client in plan.federation.clients):
        return "the data is augmented"
    optimizer, options = plan.training.optimizer, plan.training.optimizer_args
    if optimizer not in ROW_BY_ROW:
        return f"training.optimizer is {optimizer}, legal here are {', '.join(ROW_BY_ROW)}"
    if untried := sorted(options.keys() - ROW_BY_ROW[optimizer]):
        return f"training.optimizer_args has {', '.join(untried)}"
    return unstackable(plan.initial_model)


def stack_size(plan: Plan) -> int:
    """How many clients a stack holds; depends on the plan alone, so that results do too."""
    joined = 2 if plan.training.last_batch == "merge" else 1
    samples = min(joined * (plan.training.batch_size or plan.largest), plan.largest) + 1
    numbers = samples * prod(plan.federation.input_shape)
    parameters = sum(p.numel() for p in plan.initial_model.parameters())
    most = max(1, min(_MOST, _BATCH_NUMBERS // numbers, _PARAMETERS // parameters))
    clients = len(plan.federation.clients)
    return -(-clients // -(-clients // most))  # stacks of equal size, none longer than `most`


def train_stack(
    plan: Plan,
    stack: Stack,
    clients: Sequence[Client],
    state: RunState,
    local: Mapping[str, Pack],
) -> Iterator[Outcome]:
    """Train a stack of clients for one round; an outcome each, in their order.

    Args:
        plan: What to train.
        stack: What they become.
        clients: No more than the stack has room for.
        state: Where they start from.
        local: Where each one's new local part is put.
    """
    stack.load(state.shared, [state.local[client.name] for client in clients])
    losses = _train(plan, stack, clients, state)
    for row, client in enumerate(clients):
        own = local[client.name]
        shared = stack.copy_out(row, own)
        yield examined(Update(client.name, shared, own, float(losses[row])))


def score_stack(
    plan: Plan, stack: Stack, clients: Sequence[Client], state: RunState
) -> list[Record]:
    """Score a stack of clients on their train, validation and test data."""
    stack.load(state.shared, [state.scored_with(client.name) for client in clients])
    asked = [list(splits_of(client)) for client in clients]
    found: list[list[Record]] = [[] for _ in clients]
    for at in zip_longest(*asked):
        scores = _scores(stack, [None if one is None else one[2] for one in at])
        for row, (one, score) in enumerate(zip(at, scores, strict=True)):
            if one is not None and score is not None:
                split, domain, _ = one
                found[row] += score_records(plan, state.round, clients[row], split, domain, score)
    return [record for records in found for record in records]


def _train(plan: Plan, stack: Stack, clients: Sequence[Client], state: RunState) -> Tensor:
    training = plan.training
    optimizer = make_optimizer(list(stack.leaves.values()), training)
    names = [e.name for e in stack.shared.layout.entries if e.trainable]
    shared = [stack.leaves[name] for name in names]
    anchor = [state.shared.state[name] for name in names]
    orders = [
        batches(
            len(c.train),
            training.sizes(len(c.train)),
            plan.steps(c),
            generator(plan.seed, "order", state.round + 1, c.name),
        )
        for c in clients
    ]
    total, seen = torch.zeros(len(clients), dtype=torch.float64), torch.zeros(len(clients))
    while True:
        index = [next(order, None) for order in orders]
        if all(part is None for part in index):
            return total / seen
        x, y, counts = _padded(stack, [client.train for client in clients], index)
        optimizer.zero_grad(set_to_none=True)
        losses = _losses(stack.forward(x, _unequal(counts, x), training=True), y, counts)
        losses.sum().backward()
        for penalty in plan.method.penalties:
            assert isinstance(penalty, Proximal)
            penalty.add_gradient(shared, anchor)
        _step(optimizer, stack, counts)
        total += losses.detach().double() * counts
        seen += counts


def _step(optimizer: torch.optim.Optimizer, stack: Stack, counts: Tensor) -> None:
    """Move all clients that had a batch; the others have finished their round."""
    idle = (counts == 0).nonzero().flatten()
    kept = [leaf.detach()[idle].clone() for leaf in stack.leaves.values()] if len(idle) else []
    optimizer.step()
    with torch.no_grad():
        for leaf, values in zip(stack.leaves.values(), kept, strict=False):
            leaf[idle] = values


def _padded(
    stack: Stack, splits: Sequence[Split | None], index: Sequence[Tensor | slice | None]
) -> tuple[Tensor, Tensor, Tensor]:
    """Bring a batch of each client together, padded with zeros to the largest, and their sizes."""
    parts = [
        None if split is None or some is None else split.batch(some)
        for split, some in zip(splits, index, strict=True)
    ]
    counts = torch.tensor([0 if part is None else len(part[1]) for part in parts])
    first = next(part[0] for part in parts if part is not None)
    most = int(counts.max())
    x = stack.room(first, (len(parts), most, *first.shape[1:]))
    y = torch.zeros(len(parts), most, dtype=torch.int64)
    for row, part in enumerate(parts):
        count = int(counts[row])
        if part is not None:
            x[row, :count], y[row, :count] = part
        if count < most:
            x[row, count:] = 0
    return x, y, counts


def _unequal(counts: Tensor, x: Tensor) -> Tensor | None:
    return None if bool((counts == x.shape[1]).all()) else counts


def _losses(outputs: Tensor, y: Tensor, counts: Tensor) -> Tensor:
    """Each client's mean loss over its own samples."""
    clients, samples, classes = outputs.shape
    flat = functional.cross_entropy(
        outputs.reshape(-1, classes), y.reshape(-1), reduction="none"
    ).view(clients, samples)
    mask = torch.arange(samples) < counts[:, None]
    return torch.where(mask, flat, 0).sum(dim=1) / counts.clamp(min=1)


@torch.inference_mode()
def _scores(stack: Stack, splits: Sequence[Split | None]) -> list[Score | None]:
    lengths = [0 if split is None else len(split) for split in splits]
    loss = torch.zeros(len(splits), dtype=torch.float64)
    predicted: list[list[Tensor]] = [[] for _ in splits]
    for begin in range(0, max(lengths), _SCORED_AT_ONCE):
        part = slice(begin, begin + _SCORED_AT_ONCE)
        index = [part if begin < length else None for length in lengths]
        x, y, counts = _padded(stack, splits, index)
        outputs = stack.forward(x, _unequal(counts, x), training=False)
        loss += _losses(outputs, y, counts).double() * counts
        for row, count in enumerate(counts.tolist()):
            predicted[row].append(outputs[row, :count].argmax(dim=1))
    return [
        None if split is None else scored(split, [(float(loss[row]), torch.cat(predicted[row]))])
        for row, split in enumerate(splits)
    ]


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
        return told_apart(scores for several in found for scores in several)

    def measure(self, clients: Sequence[Client], state: RunState) -> Iterator[Pack | Refusal]:
        """Give clients that have not trained the local part they are scored with."""

        def work(_: Stack, some: Sequence[Client]) -> list[Pack | Refusal]:
            replica = Replica(self._plan.initial_model, self._plan.method)
            return [measured_or_refused(replica, client, state) for client in some]

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
