"""Convolutions and dense layers whose weight gradients can be computed by somebody else.

They compute what torch's own do, with the same calls. Weights that are not plain parameters,
parameters with hooks, and passes in which torch itself does more than compute are left to torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

Gradients = Sequence[Tensor | None]
Work = Callable[[], Gradients]
_Function = Callable[..., Any]


class Beside(Protocol):
    """Who sees to the gradients of weights."""

    def compute(self, parameters: Gradients, work: Work) -> Gradients:
        """Give the gradients of these parameters, or nothing for now if somebody sees to them."""

    def leave_to_step(self, weight: Tensor, gradient: Tensor, x: Tensor) -> bool:
        """Take a dense weight over, which then needs no gradient; or say False."""


class Watch(TorchFunctionMode):
    """Puts these functions in the place of torch's while a model computes its outputs."""

    def __init__(self, aside: Beside):
        super().__init__()
        self._aside = aside

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        ours = _OURS.get(func)
        if ours is None or not torch.is_grad_enabled() or _special():
            return func(*args, **(kwargs or {}))
        return ours(self._aside, func, args, kwargs or {})


def _convolved(aside: Beside, func: _Function, args: Any, kwargs: Any) -> Any:
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


def _multiplied(aside: Beside, func: _Function, args: Any, kwargs: Any) -> Any:
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
        product, sums = None, None if ctx.bias is None else gradient.sum(0)
        if not ctx.aside.leave_to_step(weight, gradient, x):
            (product,) = ctx.aside.compute((weight,), lambda: (gradient.t().mm(x),))
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
