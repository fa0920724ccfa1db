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
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from fedbn.core.method import Penalty, Proximal
from fedbn.core.plan import Training
from fedbn.fast.memory_formats import MemoryFormat, as_usual

Gradients = Sequence[Tensor | None]
Work = Callable[[], Gradients]
_Function = Callable[..., Any]


class WatchedLayers(TorchFunctionMode):
    """Puts these functions in the place of torch's while a model computes its outputs."""

    def __init__(self, passes: OverlappedPasses):
        super().__init__()
        self._passes = passes

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        ours = _OURS.get(func)
        if ours is None or not torch.is_grad_enabled() or _special():
            return func(*args, **(kwargs or {}))
        return ours(self._passes, func, args, kwargs or {})


def _convolved(passes: OverlappedPasses, func: _Function, args: Any, kwargs: Any) -> Any:
    def usual(
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: int | Sequence[int] = 1,
        padding: str | int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
    ) -> Any:
        if isinstance(padding, str) or input.dim() != 4 or not _plain(weight, bias):
            return func(*args, **kwargs)
        pairs = (_pair(stride), _pair(padding), _pair(dilation))
        return _apply(_Convolution, passes, input, weight, bias, *pairs, groups)

    return usual(*args, **kwargs)


def _multiplied(passes: OverlappedPasses, func: _Function, args: Any, kwargs: Any) -> Any:
    def usual(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
        if input.dim() != 2 or input.is_mkldnn or not _plain(weight, bias):
            return func(*args, **kwargs)
        return _apply(_Dense, passes, input, weight, bias)

    return usual(*args, **kwargs)


def _apply(function: type[torch.autograd.Function], *args: object) -> Any:
    return function.apply(*args)


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx, passes, x, weight, bias, stride, padding, dilation, groups):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x, weight)
        ctx.passes, ctx.bias = passes, bias
        ctx.geometry = (stride, padding, dilation, False, [0, 0], groups)
        return torch.conv2d(x, weight, bias, stride, padding, dilation, groups)

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        x, weight = ctx.saved_tensors
        biased = ctx.bias is not None

        def part(*mask: bool):  # type: ignore[no-untyped-def]
            sizes = [len(weight)] if biased else None
            return torch.ops.aten.convolution_backward(
                gradient, x, weight, sizes, *ctx.geometry, mask
            )

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


def _plain(weight: Tensor, bias: Tensor | None) -> bool:
    """Tell whether these are parameters whose gradients nobody else waits for."""
    return all(
        tensor.is_leaf
        and tensor.requires_grad
        and not tensor._backward_hooks
        and not tensor._post_accumulate_grad_hooks
        for tensor in (weight, bias)
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


def _pair(value: int | Sequence[int]) -> list[int]:
    return [value, value] if isinstance(value, int) else list(value)


_OURS = {torch.conv2d: _convolved, functional.linear: _multiplied}
_WORTH_IT = 1_000_000


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

    @property
    def idle(self) -> bool:
        """Whether a core is free."""
        return self._busy < self._cores

    def submit(self, work: Work) -> Work:
        """Have some work done; gives what waits for its result, or does it if nobody began."""
        future = self._threads.submit(work)
        return lambda: work() if future.cancel() else future.result()

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(cancel_futures=True)


@dataclass(frozen=True)
class PlainSteps:
    """Steps of plain SGD, pulled towards what was received as FedProx does.

    Attributes:
        lr: The learning rate.
        mu: FedProx's strength.
        received: What weights are pulled towards; others are not pulled.
    """

    lr: float
    mu: float = 0.0
    received: Mapping[Tensor, Tensor] = field(default_factory=dict)

    def pull(self, weight: Tensor) -> None:
        """Take the penalty's part of a step, which goes by the weight before the step."""
        if weight in self.received and weight.grad is None:
            weight.lerp_(self.received[weight], self.lr * self.mu)

    def descend(self, weight: Tensor, gradient: Tensor, x: Tensor, half: int) -> None:
        """Take the loss's part for half of a layer's outputs, by their gradient and the inputs.

        There are always two halves, whoever computes them: products may depend on their shape.
        """
        rows, outputs = weight.tensor_split(2)[half], gradient.tensor_split(2, dim=1)[half]
        rows.addmm_(outputs.t(), x, alpha=-self.lr)


class OverlappedPasses:
    """The training passes of one model, with weight gradients left to helpers where one is idle.

    Args:
        helpers: Who may help; None for nobody.
        layout: How batches lie in memory.

    Attributes:
        steps: How large dense weights take their steps by themselves; None to give gradients.
    """

    def __init__(self, helpers: IdleCores | None = None, layout: MemoryFormat = as_usual):
        self.steps: PlainSteps | None = None
        self._helpers = helpers
        self._layout = layout
        self._passing = False
        self._to_step: list[tuple[Tensor, Tensor, Tensor]] = []
        self._left: list[tuple[Gradients, Work]] = []

    def begin(
        self,
        training: Training,
        penalties: Sequence[Penalty],
        shared: Sequence[Tensor],
        anchor: Sequence[Tensor],
    ) -> None:
        """Find out whether weights can take their steps by themselves."""
        self.steps = plain_steps(training, penalties, shared, anchor)

    def outputs(self, model: nn.Module, x: Tensor) -> Tensor:
        """Pass a batch through the model."""
        with WatchedLayers(self):
            found: Tensor = model(self._layout(x))
        return found

    def backward(self, loss: Tensor) -> None:
        """Compute all gradients, as `loss.backward()` does, but of weights that `step` sees to."""
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

    def step(self) -> None:
        """Let the weights without a gradient take their steps."""
        steps, todo, self._to_step = self.steps, self._to_step, []
        if steps is None or not todo:
            return
        with torch.no_grad():
            for weight in dict.fromkeys(weight for weight, _, _ in todo):
                steps.pull(weight)

        def descend(half: int) -> Gradients:
            with torch.no_grad():  # each thread has a mode of its own
                for weight, gradient, x in todo:
                    steps.descend(weight, gradient, x, half)
            return ()

        second: Work = partial(descend, 1)
        if self._helpers is not None and self._helpers.idle:
            second = self._helpers.submit(second)
        descend(0)
        second()

    def leave_to_step(self, weight: Tensor, gradient: Tensor, x: Tensor) -> bool:
        """Leave a dense weight to `step`, if it may be: after the pass, which still reads it."""
        if not self._ours or self.steps is None or weight.numel() < _WORTH_IT:
            return False
        self._to_step.append((weight, gradient, x))
        return True

    def compute(self, parameters: Gradients, work: Work) -> Gradients:
        """Give the gradients of these parameters, or nothing for now if a helper sees to them."""
        if not self._ours or self._helpers is None or not self._helpers.idle:
            return work()
        self._left.append((parameters, self._helpers.submit(work)))
        return [None] * len(parameters)

    @property
    def _ours(self) -> bool:
        """Whether this is `backward`'s pass; with gradients enabled it will be differentiated."""
        return self._passing and not torch.is_grad_enabled()


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


def worth_it(model: nn.Module) -> bool:
    """Tell whether a model's weight gradients take long enough to hand them over."""
    return sum(parameter.numel() for parameter in model.parameters()) >= _WORTH_IT
