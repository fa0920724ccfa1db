"""How images lie in memory while a model trains: as convolutions take them fastest.

oneDNN computes in blocks of channels. Given ordinary images it reorders them for each operation, or
takes a slower path; a model all of whose convolutions can hand blocks to one another saves that.
Which layout a model gets depends on the model as it begins and on the shape of a sample, never on
how far training is or on a clock, because the layout decides the last bits of a sum.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from fedbn.core.randomness import seeded
from fedbn.core.user_code import contained

MemoryFormat = Callable[[Tensor], Tensor]
"""Lays a batch out anew."""
_SAMPLES = 4
_TOLERANCE = 0.01


def as_usual(x: Tensor) -> Tensor:
    """Sample by sample, channel by channel."""
    return x.contiguous()


def channels_last(x: Tensor) -> Tensor:
    """All channels of a pixel side by side."""
    return x.contiguous(memory_format=torch.channels_last)


def blocked(x: Tensor) -> Tensor:
    """In oneDNN's own blocks."""
    return x.to_mkldnn()


def fastest(model: nn.Module, x: Tensor) -> MemoryFormat:
    """Choose the layout for training a model on batches like this.

    Args:
        model: With the values it begins with; it is copied, not changed.
        x: Any batch; only its shape counts.
    """
    if x.dim() != 4 or x.dtype != torch.float32:
        return as_usual
    batch = torch.rand((_SAMPLES, *x.shape[1:]), generator=_draws())
    try:
        if x.device.type == "cpu" and _all_blocked(model, batch) and _right(model, batch):
            return blocked
        _step(copy.deepcopy(model), channels_last(batch))
    except Exception:  # whatever a user's forward does: there is always the usual layout
        return as_usual
    return channels_last


def prepare(model: nn.Module, layout: MemoryFormat) -> None:
    """Make a model, in place, hand ordinary tensors to all that cannot take blocks."""
    if layout is not blocked:
        return
    for module in model.modules():
        if not any(True for _ in module.children()) and not _takes_blocks(module):
            module.register_forward_pre_hook(_unblocked)


def _takes_blocks(module: nn.Module) -> bool:
    """Tell whether blocks may go into a module, and are fast in it.

    Windows that overlap take oneDNN twenty times as long in blocks (a 3×3 pool in steps of 2).
    """
    if type(module) is nn.MaxPool2d:
        return module.kernel_size == module.stride and module.dilation == 1
    return type(module) in (nn.Conv2d, nn.BatchNorm2d, nn.ReLU)


def _all_blocked(model: nn.Module, batch: Tensor) -> bool:
    """Tell whether all convolutions are given blocks."""
    probe = copy.deepcopy(model).train()
    prepare(probe, blocked)
    given: list[bool] = []
    for module in probe.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_pre_hook(lambda _, args: given.append(args[0].is_mkldnn))
    try:
        with seeded(0), torch.no_grad(), contained():
            probe(blocked(batch))
    except Exception:  # an operation that does not know blocks
        return False
    return bool(given) and all(given)


def _right(model: nn.Module, batch: Tensor) -> bool:
    """Tell whether a step in blocks leaves the same gradients and statistics behind."""
    expected = _step(copy.deepcopy(model), as_usual(batch))
    probe = copy.deepcopy(model)
    prepare(probe, blocked)
    try:
        found = _step(probe, blocked(batch))
    except Exception:  # an operation that does not know blocks
        return False
    return all(map(_close, expected, found))


def _close(expected: Sequence[Tensor], found: Sequence[Tensor]) -> bool:
    apart = sum(float((a - b).square().sum()) for a, b in zip(expected, found, strict=True))
    return apart <= _TOLERANCE**2 * sum(float(a.square().sum()) for a in expected)


def _unblocked(module: nn.Module, args: tuple[object, ...]) -> tuple[object, ...] | None:
    if not module.training:
        return None
    return tuple(a.to_dense() if isinstance(a, Tensor) and a.is_mkldnn else a for a in args)


def _step(model: nn.Module, batch: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Take a step without the optimiser; gives all gradients and all statistics."""
    model.train()
    with seeded(0), torch.enable_grad(), contained():
        outputs = model(batch)
        weights = torch.rand(outputs.shape, generator=_draws())
        (outputs * weights).sum().backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return gradients, [b for b in model.buffers() if b.is_floating_point()]


def _draws() -> torch.Generator:
    return torch.Generator().manual_seed(0)
