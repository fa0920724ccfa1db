"""Weight gradients beside the backward pass, on cores that have nothing else to do.

Only the optimiser needs the gradient of a layer's weights, so the pass can go on to the layers
before it while another thread computes that gradient. With five clients on two cores the fifth
would otherwise leave one core idle. The calls are the same whichever thread makes them, so not one
bit depends on whether a thread was free.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

Gradients = Sequence[Tensor | None]
_Function = Callable[..., Any]
_WORTH_IT = 1_000_000


class Helpers:
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

    def submit(self, work: Callable[[], Gradients]) -> Future[Gradients]:
        """Have some work done."""
        return self._threads.submit(work)

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(cancel_futures=True)


class Aside:
    """The training passes of one model, with weight gradients left to helpers where one is idle.

    Args:
        helpers: Who may help; None for nobody.
    """

    def __init__(self, helpers: Helpers | None = None):
        self._helpers = helpers
        self._passing = False
        self._left: list[tuple[Gradients, Callable[[], Gradients], Future[Gradients]]] = []

    def outputs(self, model: nn.Module, x: Tensor) -> Tensor:
        """Pass a batch through the model."""
        with _Watch(self):
            found: Tensor = model(x)
        return found

    def backward(self, loss: Tensor) -> None:
        """Compute all gradients, as `loss.backward()` does."""
        self._passing = True
        try:
            loss.backward()
        finally:
            self._passing = False
            left, self._left = self._left, []
        for parameters, work, future in left:  # in the pass's order, which is fixed
            # What nobody has begun is done here.
            gradients = work() if future.cancel() else future.result()
            for parameter, gradient in zip(parameters, gradients, strict=True):
                if parameter is not None and gradient is not None:
                    before = parameter.grad
                    parameter.grad = gradient if before is None else before + gradient

    def compute(self, parameters: Gradients, work: Callable[[], Gradients]) -> Gradients:
        """Give the gradients of these parameters, or nothing for now if a helper sees to them."""
        # With gradients enabled somebody wants to differentiate this pass again.
        free = self._passing and not torch.is_grad_enabled()
        if not free or self._helpers is None or not self._helpers.idle:
            return work()
        self._left.append((parameters, work, self._helpers.submit(work)))
        return [None] * len(parameters)


def worth_it(model: nn.Module) -> bool:
    """Tell whether a model's weight gradients take long enough to hand them over."""
    return sum(parameter.numel() for parameter in model.parameters()) >= _WORTH_IT


class _Watch(TorchFunctionMode):
    """Puts our own functions in the place of convolutions and dense layers with weights."""

    def __init__(self, aside: Aside):
        super().__init__()
        self._aside = aside

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        ours = _OURS.get(func)
        if ours is None or not torch.is_grad_enabled():
            return func(*args, **(kwargs or {}))
        return ours(self._aside, func, args, kwargs or {})


def _convolved(aside: Aside, func: _Function, args: Any, kwargs: Any) -> Any:
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
        return _apply(_Convolution, aside, input, weight, bias, *pairs, groups)

    return usual(*args, **kwargs)


def _multiplied(aside: Aside, func: _Function, args: Any, kwargs: Any) -> Any:
    def usual(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
        if input.dim() != 2 or input.is_mkldnn or not _plain(weight, bias):
            return func(*args, **kwargs)
        return _apply(_Dense, aside, input, weight, bias)

    return usual(*args, **kwargs)


def _apply(function: type[torch.autograd.Function], *args: object) -> Any:
    return function.apply(*args)


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx, aside, x, weight, bias, stride, padding, dilation, groups):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x, weight)
        ctx.aside, ctx.bias = aside, bias
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

        weights = ctx.aside.compute((weight, ctx.bias), lambda: part(False, True, biased)[1:])
        inputs = part(True, False, False)[0] if ctx.needs_input_grad[1] else None
        return None, inputs, weights[0], weights[1] if biased else None, None, None, None, None


class _Dense(torch.autograd.Function):
    @staticmethod
    def forward(ctx, aside, x, weight, bias):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x, weight)
        ctx.aside, ctx.bias = aside, bias
        return functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        x, weight = ctx.saved_tensors
        biased = ctx.bias is not None

        def part() -> Gradients:
            return gradient.t().mm(x), gradient.sum(0) if biased else None

        weights = ctx.aside.compute((weight, ctx.bias), part)
        return None, gradient.mm(weight) if ctx.needs_input_grad[1] else None, *weights


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


def _pair(value: int | Sequence[int]) -> list[int]:
    return [value, value] if isinstance(value, int) else list(value)


_OURS = {torch.conv2d: _convolved, functional.linear: _multiplied}
