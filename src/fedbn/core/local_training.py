"""A client's local training: the inner loop of Algorithm 1, step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fedbn.core.federation import AnySplit
from fedbn.core.rule import Change, Term, Trained
from fedbn.core.state import is_batchnorm
from fedbn.core.task import CLASSIFICATION, Loss
from fedbn.core.training import Training
from fedbn.errors import ModelError


class Passes:
    """How batches go through one model while it trains: as torch does it, in a memory layout."""

    def __init__(self, layout: Callable[[Tensor], Tensor] = Tensor.contiguous):
        self._layout = layout

    @contextmanager
    def training(self, work: ClientWork) -> Iterator[None]:
        """Entered while a client trains."""
        yield

    def outputs(self, model: nn.Module, x: Tensor) -> Tensor:
        """Pass a batch through the model."""
        found: Tensor = model(self._layout(x))
        return found

    def backward(self, loss: Tensor) -> None:
        """Compute all gradients that the optimiser needs."""
        loss.backward()

    def step(self, optimizer: Optimizer) -> None:
        """Move the weights."""
        optimizer.step()


@dataclass(frozen=True)
class ClientWork:
    """One local training of a client."""

    model: nn.Module  # the client's joined model; trained in place
    data: AnySplit  # what it trains on
    training: Training  # optimiser and batch size; the optimiser starts anew each time
    steps: int  # how many batches
    draws: torch.Generator  # decides the order of samples, and their augmentation
    terms: Sequence[Term] = ()  # added to the loss
    changes: Sequence[Change] = ()  # called in turn between the backward pass and the step
    # the `id` of the parameters and buffers that are changed at all; None for all
    only: Set[int] | None = None
    loss: Loss = CLASSIFICATION.loss  # what is minimised, of outputs and targets
    passes: Passes = field(default_factory=Passes)  # how batches go through the model


def local_train(work: ClientWork) -> Trained:
    """Train a client's model, in place; gives the mean loss seen on the way."""
    model, data, training, passes = work.model, work.data, work.training, work.passes
    sizes = training.sizes(len(data))
    order = batches(len(data), sizes, work.steps, work.draws)
    total, seen = torch.zeros((), dtype=torch.float64, device=data.device), 0
    with trained_alone(model, work.only) as parameters, passes.training(work):
        optimizer = make_optimizer(parameters, training)
        for x, y in data.stream(order, work.draws.initial_seed(), len(sizes)):
            if data.augment is not None:
                x = data.augment(x, work.draws)
            optimizer.zero_grad(set_to_none=True)
            with autocast(training):
                outputs = passes.outputs(model, x)
                loss = whole = work.loss(outputs, y)
                for term in work.terms:
                    whole = whole + term(model, (x, y), outputs)
            passes.backward(whole)
            for change in work.changes:
                change()
            if training.clip_norm is not None:
                nn.utils.clip_grad_norm_(parameters, training.clip_norm)
            passes.step(optimizer)
            total += loss.detach() * len(y)
            seen += len(y)
        optimizer.zero_grad(set_to_none=True)
    return Trained(float(total) / seen, work.steps, training.lr)


@contextmanager
def trained_alone(model: nn.Module, only: Set[int] | None = None) -> Iterator[Sequence[Tensor]]:
    """Put a model into training mode, and give the parameters that are stepped.

    Others get no gradient, and BatchNorm whose statistics must not change is evaluated.
    """
    model.train()
    parameters = [p for p in model.parameters() if p.requires_grad]
    if only is None:
        yield parameters
        return
    for module in model.modules():
        if is_batchnorm(module) and not any(id(b) in only for b in module.buffers()):
            module.eval()
    still = [p for p in parameters if id(p) not in only]
    try:
        for parameter in still:
            parameter.requires_grad_(False)
        yield [p for p in parameters if id(p) in only]
    finally:
        for parameter in still:
            parameter.requires_grad_(True)


def autocast(training: Training) -> AbstractContextManager[object]:
    """Compute in the type that `training.amp` names, where torch holds that safe."""
    if training.amp is None:
        return nullcontext()
    return torch.autocast(torch.device(training.device).type, getattr(torch, training.amp))


def batches(n: int, sizes: list[int], steps: int, draws: torch.Generator) -> Iterator[Tensor]:
    """Yield `steps` batches of indices, in passes over `n` samples, each in a new order.

    Examples:
        >>> [len(b) for b in batches(7, [3, 4], 3, torch.Generator().manual_seed(0))]
        [3, 4, 3]
    """
    for done in range(0, steps, len(sizes)):
        parts = torch.randperm(n, generator=draws)[: sum(sizes)].split(sizes)
        yield from parts[: steps - done]


class PlainSGD:
    """SGD without options: w ← w − η ∂w, by the calls of `torch.optim.SGD` and to its bits.

    Torch's own imports torch's compiler, more than a second of every process that trains.
    """

    def __init__(self, parameters: Sequence[Tensor], lr: float):
        self._parameters, self._lr = parameters, lr

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Move the weights by their gradients."""
        for parameter in self._parameters:
            if parameter.grad is not None:
                parameter.add_(parameter.grad, alpha=-self._lr)


Optimizer = torch.optim.Optimizer | PlainSGD


def make_optimizer(parameters: Sequence[Tensor], training: Training) -> Optimizer:
    """Make a client's optimiser; it starts anew each round."""
    if not parameters:
        raise ModelError("nothing to train: no parameter that is to be stepped asks for gradients")
    plain = training.optimizer == "SGD" and not training.optimizer_args
    if plain and training.device == "cpu":
        return PlainSGD(parameters, training.lr)
    build = getattr(torch.optim, training.optimizer)
    made: Optimizer = build(parameters, lr=training.lr, **training.optimizer_args)
    return made
