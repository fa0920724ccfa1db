r"""Exact BatchNorm statistics of data, whatever its size.

In training mode layer k sees what the layers before it make of the batch, each normalised with
the batch's own statistics. So the statistics of all data are defined layer by layer, and this is
how they are computed: what layer k is given is summed up over all chunks while the layers before
it normalise with their own, already exact, values; then layer k+1. Data that fits into one chunk
needs one pass in all; otherwise each layer takes a pass that ends where the layer begins.

The result is what one training-mode pass over all data at once leaves behind in layers that have
`momentum=None` and were reset: `running_var` is unbiased (n − 1), while layers further on see
values normalised with the biased variance, as in training. A layer that is called several times
in one pass normalises each call with that call's values and keeps their mean. Everything else
(dropout, other norms) is in evaluation mode. Sums are in float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedbn.core.federation import AnySplit, Split, merged_slices
from fedbn.core.state import is_batchnorm
from fedbn.errors import DataError, ModelError, blamed

AVERAGED_BATCH = 128
"""Samples of a batch of `average_statistics`."""
CHUNK = 256
_DISORDER = (
    "the model calls its BatchNorm layers in an order that depends on the samples, so their "
    "statistics cannot be told apart"
)


@dataclass
class _Moments:
    """Count, mean and sum of squared deviations of each channel, over what was added so far."""

    count: int = 0
    mean: Tensor = field(default_factory=lambda: torch.zeros(()))
    squares: Tensor = field(default_factory=lambda: torch.zeros(()))

    def add(self, x: Tensor) -> None:
        """Add (n, channels, ...) values."""
        values = x.detach().transpose(0, 1).flatten(1).double()
        count, mean = values.shape[1], values.mean(dim=1)
        squares = (values - mean[:, None]).square().sum(dim=1)
        if not self.count:
            self.count, self.mean, self.squares = count, mean, squares
            return
        whole, apart = self.count + count, mean - self.mean
        self.mean = self.mean + apart * (count / whole)
        self.squares = self.squares + squares + apart.square() * (self.count * count / whole)
        self.count = whole


class _Reached(BaseException):  # not an error, and no model should catch it
    """The layer that is being measured was reached; the rest of the pass is not needed."""


@dataclass
class _Sweep:
    """Measures one call of a layer after another, in the order in which a pass makes them."""

    layers: list[nn.Module]
    whole: bool  # whether all data is one chunk
    calls: list[tuple[nn.Module, _Moments]] = field(default_factory=list)
    measuring: int = 0
    place: int = 0  # in the pass over a chunk

    def see(self, layer: nn.Module, given: tuple[Any, ...]) -> None:
        """Hear that a layer is called: before it computes anything."""
        place, self.place = self.place, self.place + 1
        if place == len(self.calls):
            self.calls.append((layer, _Moments()))
        known, moments = self.calls[place]
        if known is not layer:
            raise ModelError(_DISORDER)
        if place == self.measuring:
            moments.add(given[0])
            if not self.whole:
                raise _Reached
            self.measuring += 1
        # It normalises with the biased variance, and keeps the unbiased one (`_keep`).
        _set(layer, moments.mean, moments.squares / moments.count)


def tracked_norms(model: nn.Module) -> list[nn.Module]:
    """The BatchNorm layers of a model that have running statistics."""
    return [m for m in model.modules() if is_batchnorm(m) and len(_running(m)) == 2]


@torch.no_grad()
def estimate_statistics(model: nn.Module, x: Tensor | AnySplit, chunk: int = CHUNK) -> None:
    """Give every BatchNorm layer of a model the exact statistics of some data, in place.

    The model has the affine and all weights it is to be used with. Layers that track no statistics
    are left alone; so are layers that no sample reaches. `uint8` is scaled batch by batch; so many
    samples at a time decide the memory needed, and not the result.

    Examples:
        >>> layer = nn.BatchNorm1d(1)
        >>> estimate_statistics(nn.Sequential(layer), torch.tensor([[1.0], [2.0], [6.0]]), chunk=2)
        >>> layer.running_mean.tolist(), layer.running_var.tolist()
        ([3.0], [7.0])
    """
    if len(x) < 2:
        raise DataError(f"{len(x)} sample(s): statistics need at least 2")
    sweep = _Sweep(tracked_norms(model), whole=len(x) <= chunk)
    data = Split(x, torch.zeros(len(x), dtype=torch.int64)) if isinstance(x, Tensor) else x
    model.eval()
    with _watched(sweep):
        while _pass(model, data, chunk, sweep):
            sweep.measuring += 1
    for layer in sweep.layers:
        if mine := [moments for known, moments in sweep.calls if known is layer]:
            _keep(layer, mine)


@torch.no_grad()
def average_statistics(
    model: nn.Module, x: Tensor | AnySplit, batch_size: int = AVERAGED_BATCH
) -> None:
    """Set every BatchNorm layer to the mean statistics of the batches of some data, in place.

    This is one pass in training mode with cumulative averages (PreciseBN, Wu and Johnson 2021). It
    costs less than exact statistics, and depends on the size and the order of the batches. Samples
    left over join the last batch. Everything but BatchNorm is in evaluation mode. The affine and
    all weights stay as they are.

    Examples:
        >>> layer = nn.BatchNorm1d(1)
        >>> average_statistics(layer, torch.tensor([[1.0], [3.0], [2.0], [8.0]]), batch_size=2)
        >>> layer.running_mean.tolist(), layer.running_var.tolist()
        ([3.5], [10.0])
    """
    if len(x) < 2:
        raise DataError(f"{len(x)} sample(s): statistics need at least 2")
    layers = [layer for layer in tracked_norms(model) if isinstance(layer, _BatchNorm)]
    if len(layers) < len(tracked_norms(model)):
        raise ModelError("batch statistics need torch's own BatchNorm layers")
    data = Split(x, torch.zeros(len(x), dtype=torch.int64)) if isinstance(x, Tensor) else x
    momenta = [layer.momentum for layer in layers]
    model.eval()
    try:
        for layer in layers:
            layer.reset_running_stats()
            layer.momentum = None
            layer.train()
        for batch, _ in data.stream(merged_slices(0, len(data), batch_size, least=batch_size)):
            with blamed(ModelError, "the model fails"):
                model(batch)
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
            layer.eval()


def exact_passes(model: nn.Module, largest: int) -> float:
    """Return how many whole passes over the data `estimate_statistics` costs, about."""
    return 1 if largest <= CHUNK else 1 + len(tracked_norms(model)) / 2


def _pass(model: nn.Module, data: AnySplit, chunk: int, sweep: _Sweep) -> bool:
    """Measure the next call over all chunks; False where no call is left."""
    stopped = 0
    parts = [slice(begin, begin + chunk) for begin in range(0, len(data), chunk)]
    for x, _ in data.stream(parts):
        sweep.place = 0
        try:
            with blamed(ModelError, "the model fails"):
                model(x)
        except _Reached:
            stopped += 1
    if stopped not in (0, len(parts)):
        raise ModelError(
            "a BatchNorm layer is called for some samples only, so its statistics depend on how "
            "the samples are divided"
        )
    return stopped > 0


@contextmanager
def _watched(sweep: _Sweep) -> Iterator[None]:
    handles = [layer.register_forward_pre_hook(sweep.see) for layer in sweep.layers]
    kept = [(layer, [tensor.clone() for tensor in _running(layer)]) for layer in sweep.layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        for layer, (mean, var) in kept:
            _set(layer, mean, var)


def _running(layer: nn.Module) -> list[Tensor]:
    found = (getattr(layer, name, None) for name in ("running_mean", "running_var"))
    return [tensor for tensor in found if isinstance(tensor, Tensor)]


def _set(layer: nn.Module, mean: Tensor, var: Tensor) -> None:
    for tensor, value in zip(_running(layer), (mean, var), strict=True):
        tensor.copy_(value)


def _keep(layer: nn.Module, calls: list[_Moments]) -> None:
    """Keep the mean over the layer's calls, as torch does with `momentum=None`."""
    if calls[0].count < 2:
        raise DataError("one value a channel: statistics need at least 2")
    mean = torch.stack([moments.mean for moments in calls]).mean(dim=0)
    var = torch.stack([m.squares / max(m.count - 1, 1) for m in calls]).mean(dim=0)
    _set(layer, mean, var)
    if isinstance(counter := getattr(layer, "num_batches_tracked", None), Tensor):
        counter.fill_(len(calls))
