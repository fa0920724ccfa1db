"""What one client does in a round: local training, and scoring a model on a split."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedbn.core.aside import Aside, Plainly, PlainSteps
from fedbn.core.federation import Split
from fedbn.core.groups import majority_accuracy
from fedbn.core.layouts import Layout, as_usual
from fedbn.core.method import Weighting
from fedbn.core.penalties import DirectPenalty, Penalty, Proximal


@dataclass(frozen=True)
class Objective:
    """What is minimised, and what is predicted.

    Attributes:
        loss: The mean loss of a batch, from outputs and targets.
        predict: The prediction for each output, to compare with its target.
    """

    loss: Callable[[Tensor, Tensor], Tensor]
    predict: Callable[[Tensor], Tensor]


CLASSIFICATION = Objective(
    loss=functional.cross_entropy, predict=lambda outputs: outputs.argmax(dim=1)
)


@dataclass(frozen=True)
class Training:
    """How clients train and how rounds are made of it.

    Attributes:
        rounds: Communication rounds.
        local_epochs: Passes over its data that a client makes a round (the paper's E).
        local_steps: Batches a round, in place of `local_epochs`.
        batch_size: Samples a batch (the paper's B); None for all at once.
        last_batch: What is left over at the end of a pass: a batch of its own (`keep`; a single
            sample joins the batch before it), part of the batch before it (`merge`), or left out
            of that pass (`drop`).
        optimizer: Name of a class in `torch.optim`.
        optimizer_args: Its arguments beside the learning rate.
        lr: The learning rate.
        unequal: Whether clients of unequal size train on what they have (`own`) or repeat samples
            to as many steps as the largest (`repeat`, the paper's appendix E.5).
        weighting: Weight of a client in a mean.
        participation: The share of clients that takes part in a round.
        min_clients: A round with fewer usable updates ends the run.
        device: Where the model trains.
    """

    rounds: int = 1
    local_epochs: int = 1
    local_steps: int | None = None
    batch_size: int | None = 32
    last_batch: Literal["keep", "merge", "drop"] = "keep"
    optimizer: str = "SGD"
    optimizer_args: Mapping[str, Any] = field(default_factory=dict)
    lr: float = 0.01
    unequal: Literal["own", "repeat"] = "own"
    weighting: Weighting = "uniform"
    participation: float = 1.0
    min_clients: int = 1
    device: str = "cpu"

    def steps(self, samples: int, largest: int) -> int:
        """Count the batches of a round, for a client and the largest client's samples."""
        if self.local_steps is not None:
            return self.local_steps
        n = largest if self.unequal == "repeat" else samples
        return self.local_epochs * len(self.sizes(n))

    def sizes(self, n: int) -> list[int]:
        """Cut a pass over n samples into batches.

        BatchNorm cannot train on one sample, so a last batch of one is never kept.

        Examples:
            >>> [Training(batch_size=3, last_batch=last).sizes(8) for last in ("keep", "drop")]
            [[3, 3, 2], [3, 3]]
        """
        if self.batch_size is None or n <= self.batch_size:
            return [n]
        whole, left = divmod(n, self.batch_size)
        sizes = [self.batch_size] * whole
        if self.last_batch == "merge" or (self.last_batch == "keep" and left == 1):
            sizes[-1] += left
        elif self.last_batch == "keep" and left:
            sizes.append(left)
        return sizes


@dataclass(frozen=True)
class Score:
    """Mean loss and accuracy on a split; and of its groups, by majority, where it has them."""

    loss: float
    accuracy: float
    group_accuracy: float | None = None


Part = tuple[float, Tensor]
"""Of some samples of a split: the sum of their losses, and the predictions."""
_PART = 512


def batches(n: int, sizes: list[int], steps: int, draws: torch.Generator) -> Iterator[Tensor]:
    """Yield `steps` batches of indices, in passes over `n` samples, each in a new order.

    Args:
        n: Samples to draw from.
        sizes: The batches of a pass; see `Training.sizes`.
        steps: How many batches.
        draws: Decides the orders.

    Examples:
        >>> [len(b) for b in batches(7, [3, 4], 3, torch.Generator().manual_seed(0))]
        [3, 4, 3]
    """
    left = steps
    for _ in count():
        for part in torch.randperm(n, generator=draws)[: sum(sizes)].split(sizes):
            if not left:
                return
            left -= 1
            yield part


def local_train(
    model: nn.Module,
    data: Split,
    training: Training,
    steps: int,
    draws: torch.Generator,
    penalties: Sequence[Penalty] = (),
    shared: Sequence[nn.Parameter] = (),
    anchor: Sequence[Tensor] = (),
    objective: Objective = CLASSIFICATION,
    layout: Layout = as_usual,
    aside: Aside | None = None,
) -> float:
    """Train a client's model for one round, in place; returns the mean loss seen on the way.

    Args:
        model: The client's joined model.
        data: What it trains on.
        training: Optimiser and batch size; the optimiser starts anew each round.
        steps: How many batches.
        draws: Decides the order of samples, and their augmentation.
        penalties: Terms added to the loss, over `shared` and `anchor`.
        shared: The shared trainable parameters of the model.
        anchor: Their values as received.
        objective: The loss.
        layout: How batches lie in memory; see `Replica.layout`.
        aside: Who computes weight gradients beside the pass; see `Replica.aside`.
    """
    optimizer = make_optimizer([p for p in model.parameters() if p.requires_grad], training)
    direct = [p for p in penalties if isinstance(p, DirectPenalty)]
    by_graph = [p for p in penalties if not isinstance(p, DirectPenalty)]
    passes = aside or Plainly()
    passes.steps = plain_steps(training, penalties, shared, anchor)
    total, seen = torch.zeros((), dtype=torch.float64, device=data.y.device), 0
    model.train()
    for index in batches(len(data), training.sizes(len(data)), steps, draws):
        x, y = data.batch(index.to(data.y.device))
        if data.augment is not None:
            x = data.augment(x, draws)
        optimizer.zero_grad(set_to_none=True)
        loss = objective.loss(passes.outputs(model, layout(x)), y)
        whole = loss
        for penalty in by_graph:
            whole = whole + penalty.value(shared, anchor)
        passes.backward(whole)
        for penalty in direct:
            penalty.add_gradient(shared, anchor)
        optimizer.step()
        passes.step()
        total += loss.detach() * len(y)
        seen += len(y)
    optimizer.zero_grad(set_to_none=True)
    return float(total) / seen


def plain_steps(
    training: Training,
    penalties: Sequence[Penalty],
    shared: Sequence[Tensor],
    anchor: Sequence[Tensor],
) -> PlainSteps | None:
    """How weights can take steps by themselves; None where the steps are not plain SGD's."""
    if training.optimizer != "SGD" or training.optimizer_args:
        return None
    proximal = [penalty for penalty in penalties if type(penalty) is Proximal]
    if len(proximal) != len(penalties):
        return None
    received = dict(zip(shared, anchor, strict=True)) if proximal else {}
    return PlainSteps(training.lr, sum(penalty.mu for penalty in proximal), received)


def make_optimizer(parameters: Sequence[Tensor], training: Training) -> torch.optim.Optimizer:
    """Make a client's optimiser; it starts anew each round."""
    build = getattr(torch.optim, training.optimizer)
    made: torch.optim.Optimizer = build(parameters, lr=training.lr, **training.optimizer_args)
    return made


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
) -> Part:
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


def scored(data: Split, found: Sequence[Part]) -> Score:
    """Make a score of a split's parts: the sums of their losses, and their predictions."""
    loss = sum(loss for loss, _ in found) / len(data)
    predicted = torch.cat([predicted for _, predicted in found])
    right = int((predicted == data.y).sum()) / len(data)
    if data.groups is None:
        return Score(loss, right)
    return Score(loss, right, majority_accuracy(predicted, data.y, data.groups))
