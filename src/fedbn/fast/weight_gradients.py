"""Weight gradients beside the backward pass, on cores that have nothing else to do.

Only the optimiser needs the gradient of a layer's weights, so the pass can go on to the layers
before it while another thread computes that gradient. With five clients on two cores the fifth
would otherwise leave one core idle. The calls are torch's own, the same whichever thread makes
them, so not one bit depends on whether a thread was free. Weights that are not plain parameters,
parameters with hooks, and passes in which torch itself does more than compute are left to torch.

Plain SGD needs the gradient of a dense layer's weights only to subtract it from them. As a product
added to the weights the step is one pass over them, and a gradient as large as the layer is never
written.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from fedbn.core.local_training import ClientWork, Optimizer, Passes
from fedbn.core.method import ProximalGradient

Gradients = Sequence[Tensor | None]
Work = Callable[[], Gradients]
_WORTH_IT = 1_000_000


def worth_it(model: nn.Module) -> bool:
    """Tell whether a model's weight gradients take long enough to hand them over."""
    return sum(parameter.numel() for parameter in model.parameters()) >= _WORTH_IT


class IdleCores:
    """Threads that take work over while fewer than all cores are busy with clients."""

    def __init__(self, cores: int):
        self._cores = cores
        self._busy = 0
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(
            max(1, cores - 1), initializer=torch.set_num_threads, initargs=(1,)
        )

    @contextmanager
    def one_core_busy(self) -> Iterator[None]:
        """Count the caller's core as busy."""
        with self._lock:
            self._busy += 1
        try:
            yield
        finally:
            with self._lock:
                self._busy -= 1

    def submit(self, work: Work) -> Work | None:
        """Hand work over where a core is idle; gives what waits for it, or does what none began."""
        if self._busy >= self._cores:
            return None
        future = self._threads.submit(work)
        return lambda: work() if future.cancel() else future.result()

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(cancel_futures=True)


class PlainSteps(NamedTuple):
    """Steps of plain SGD: its rate, and how strongly FedProx pulls which weights to what."""

    lr: float
    mu: float
    received: Mapping[Tensor, Tensor]


def plain_steps(work: ClientWork) -> PlainSteps | None:
    """How weights can take steps by themselves; None where the steps are not plain SGD's."""
    training = work.training
    plain = training.optimizer == "SGD" and not training.optimizer_args and not work.terms
    if not plain or training.clip_norm is not None or training.amp is not None:
        return None
    mu, received = 0.0, dict[Tensor, Tensor]()
    for change in work.changes:
        if type(change) is not ProximalGradient:
            return None
        received = dict(zip(change.current, change.anchor, strict=True))
        mu += change.mu
    return PlainSteps(training.lr, mu, received)


class OverlappedPasses(TorchFunctionMode, Passes):
    """The training passes of one model, with weight gradients left to helpers where one is idle."""

    def __init__(
        self,
        layout: Callable[[Tensor], Tensor] = Tensor.contiguous,
        helpers: IdleCores | None = None,
    ):
        super().__init__()
        self._layout = layout
        self._helpers = helpers
        self._steps: PlainSteps | None = None
        self._passing = False
        self._to_step: list[tuple[Tensor, Tensor, Tensor]] = []
        self._left: list[tuple[Gradients, Work]] = []

    @contextmanager
    def training(self, work: ClientWork) -> Iterator[None]:
        """Let weights step by themselves where the client's steps are plain."""
        self._steps = plain_steps(work)
        with self._helpers.one_core_busy() if self._helpers else nullcontext():
            yield

    def outputs(self, model: nn.Module, x: Tensor) -> Tensor:
        """Pass a batch through the model, with layers of ours in the place of torch's."""
        with self:
            return super().outputs(model, x)

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        ours, arguments, dimensions = _OURS.get(func, (func, 0, 0))
        # As `nn.Conv2d` and `nn.Linear` call them; who calls in another way is left to torch.
        known = len(args) == arguments and not kwargs and args[0].dim() == dimensions
        known = known and all(isinstance(size, tuple) for size in args[3:6]) and _plain(*args[1:3])
        if known and torch.is_grad_enabled() and not _special():
            return ours.apply(self, *args)
        return func(*args, **(kwargs or {}))

    def backward(self, loss: Tensor) -> None:
        """Compute all gradients but those of weights that step by themselves."""
        self._passing = True
        self._to_step = []
        try:
            loss.backward()
        finally:
            self._passing = False
            left, self._left = self._left, []
        for parameters, finish in left:  # in the pass's order, which is fixed
            for parameter, gradient in zip(parameters, finish(), strict=True):
                if parameter is not None and gradient is not None:
                    before = parameter.grad
                    parameter.grad = gradient if before is None else before + gradient

    def leave_to_step(self, weight: Tensor, gradient: Tensor, x: Tensor) -> bool:
        """Leave a dense weight until after the pass, which still reads it, if it may be."""
        if not self._ours or self._steps is None or weight.numel() < _WORTH_IT:
            return False
        self._to_step.append((weight, gradient, x))
        return True

    def compute(self, parameters: Gradients, work: Work) -> Gradients:
        """Give the gradients of these parameters, or nothing for now if a helper sees to them."""
        if not self._ours or self._helpers is None:
            return work()
        begun = self._helpers.submit(work) or partial(tuple, work())  # added in the pass's order
        self._left.append((parameters, begun))
        return [None] * len(parameters)

    @property
    def _ours(self) -> bool:
        """Whether this is `backward`'s pass; with gradients enabled it will be differentiated."""
        return self._passing and not torch.is_grad_enabled()

    def step(self, optimizer: Optimizer) -> None:
        """Move the weights: those that step by themselves after the others."""
        optimizer.step()
        steps, todo, self._to_step = self._steps, self._to_step, []
        if steps is None or not todo:
            return

        def descend(half: int) -> Gradients:
            # Always in two halves, whoever computes them: products may depend on their shape.
            with torch.no_grad():  # each thread has a mode of its own
                for weight, gradient, x in todo:
                    outputs = gradient.tensor_split(2, dim=1)[half]
                    weight.tensor_split(2)[half].addmm_(outputs.t(), x, alpha=-steps.lr)
            return ()

        with torch.no_grad():  # FedProx's part first: it goes by the weights before the step
            for weight in dict.fromkeys(weight for weight, _, _ in todo):
                if weight in steps.received and weight.grad is None:
                    weight.lerp_(steps.received[weight], steps.lr * steps.mu)
        second = partial(descend, 1)
        handed = self._helpers.submit(second) if self._helpers else None
        descend(0)
        (handed or second)()


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx, passes, x, weight, bias, *geometry):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x, weight)
        ctx.passes, ctx.bias, ctx.geometry = passes, bias, geometry
        return torch.conv2d(x, weight, bias, *geometry)

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        x, weight = ctx.saved_tensors
        biased, (*sizes, groups) = ctx.bias is not None, ctx.geometry
        geometry = ([len(weight)] if biased else None, *sizes, False, [0, 0], groups)

        def part(*mask: bool):  # type: ignore[no-untyped-def]
            return torch.ops.aten.convolution_backward(gradient, x, weight, *geometry, mask)

        weights = ctx.passes.compute((weight, ctx.bias), lambda: part(False, True, biased)[1:])
        inputs = part(True, False, False)[0] if ctx.needs_input_grad[1] else None
        return None, inputs, weights[0], weights[1] if biased else None, None, None, None, None


class _Dense(torch.autograd.Function):
    @staticmethod
    def forward(ctx, passes, x, weight, bias):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x, weight)
        ctx.passes, ctx.bias = passes, bias
        return functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        x, weight = ctx.saved_tensors
        product, sums = None, None if ctx.bias is None else gradient.sum(0)
        if not ctx.passes.leave_to_step(weight, gradient, x):
            (product,) = ctx.passes.compute((weight,), lambda: (gradient.t().mm(x),))
        return None, gradient.mm(weight) if ctx.needs_input_grad[1] else None, product, sums


_OURS: dict[object, tuple[Any, int, int]] = {
    torch.conv2d: (_Convolution, 7, 4),
    functional.linear: (_Dense, 3, 2),
}


def _plain(*tensors: Tensor | None) -> bool:
    """Tell whether these are parameters whose gradients nobody else waits for."""
    return all(
        tensor.is_leaf
        and tensor.requires_grad
        and not tensor._backward_hooks
        and not tensor._post_accumulate_grad_hooks
        for tensor in tensors
        if tensor is not None
    )


def _special() -> bool:
    """Tell whether torch compiles a pass, or casts, recomputes, moves or transforms its values.

    Autocast gives gradients of another type, activation checkpointing repeats the pass where
    nobody watches, and saved tensors that were moved are not the parameters any more.
    """
    return (
        torch.compiler.is_compiling()
        or torch.is_autocast_enabled("cpu")
        or torch._C._autograd._top_saved_tensors_default_hooks(False) is not None
        or torch._C._functorch.peek_interpreter_stack() is not None
    )
