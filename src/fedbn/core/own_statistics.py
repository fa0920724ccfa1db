"""Running statistics that each client keeps for scoring, where a method averages them.

FedAvg averages the running statistics of BatchNorm. Training in training mode never reads them, so
a client can keep running statistics of its own next to the averaged ones, at no change to any
weight. FedAvg scored with them is what SiloBN would have given: the copies are equal to SiloBN's to
the last bit, because every batch updates them by the operation that updates the model's own.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedbn.core.packing import Pack, StateLayout
from fedbn.core.randomness import seeded
from fedbn.core.state import Entry, Kind, entries
from fedbn.core.user_code import contained

_NAMES = ("running_mean", "running_var", "num_batches_tracked")


def statistic_entries(found: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """Return the entries that are BatchNorm statistics, without aliases.

    Examples:
        >>> [entry.name for entry in statistic_entries(entries(nn.BatchNorm1d(2)))]
        ['running_mean', 'running_var', 'num_batches_tracked']
    """
    return tuple(e for e in found if e.kind is Kind.BN_STATISTIC and e.alias_of is None)


def statistics_of(model: nn.Module) -> Pack:
    """Copy a model's BatchNorm statistics into a pack."""
    layout = StateLayout.of(statistic_entries(entries(model)))
    tensors = model.state_dict()
    return layout.pack({entry.name: tensors[entry.name] for entry in layout.entries})


@contextmanager
def following(model: nn.Module, kept: Pack | None) -> Iterator[None]:
    """Update kept statistics with every batch that updates the model's, while the block runs.

    Args:
        model: The model that trains.
        kept: A client's own statistics, changed in place; None to do nothing.
    """
    if kept is None:
        yield
        return
    handles = [
        layer.register_forward_pre_hook(_Follower(*own))
        for path, layer in model.named_modules()
        if isinstance(layer, _BatchNorm) and (own := _own(path, kept.state))
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def can_follow(model: nn.Module, sample: Tensor) -> bool:
    """Return True if kept statistics of this model stay equal to the model's own in training.

    This is tried: a copy of the model makes two passes. It fails for BatchNorm that is written by
    hand, called as a function or compiled, and for models that cannot pass the sample.
    """
    if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
        return False
    probe = copy.deepcopy(model).train()
    if any(isinstance(layer, _BatchNorm) and layer.training for layer in probe.modules()):
        kept = statistics_of(probe)
        try:
            with seeded(0), contained(), torch.no_grad(), following(probe, kept):
                for _ in range(2):
                    probe(sample)
        except Exception:  # a user's forward may do anything; then nothing is kept
            return False
        before, after = statistics_of(model), statistics_of(probe)
        return _equal(kept, after) and not _equal(before, after)
    return False


def untrained(kept: Pack, start: Pack) -> bool:
    """Return True if kept statistics are still those that every client started with."""
    return _equal(kept, start)


class _Follower:
    """A hook that updates one layer's kept statistics before the layer updates its own."""

    def __init__(self, mean: Tensor, var: Tensor, count: Tensor | None):
        self._mean, self._var, self._count = mean, var, count

    def __call__(self, layer: nn.Module, inputs: tuple[Any, ...]) -> None:
        assert isinstance(layer, _BatchNorm)
        if not (layer.training and layer.track_running_stats):
            return
        momentum = layer.momentum
        if self._count is not None:
            self._count += 1
            if momentum is None:
                momentum = 1.0 / float(self._count)
        with torch.no_grad():
            x = inputs[0].detach()
            torch.batch_norm_update_stats(x, self._mean, self._var, momentum or 0.0)


def _own(path: str, kept: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor | None] | None:
    prefix = f"{path}." if path else ""
    mean, var, count = (kept.get(f"{prefix}{name}") for name in _NAMES)
    return None if mean is None or var is None else (mean, var, count)


def _equal(one: Pack, other: Pack) -> bool:
    return all(torch.equal(value, other.state[name]) for name, value in one.state.items())
