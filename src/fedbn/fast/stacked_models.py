"""Many clients' small dense models as one: each entry stacked along a first dimension.

A layer of C clients is one batched matrix product instead of C small ones. Rows never mix, so a
client's row is what the client would have computed alone, up to rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedbn.core.method import Method
from fedbn.core.own_statistics import statistic_entries
from fedbn.core.packing import Pack, StateLayout
from fedbn.core.state import entries

_ELEMENTWISE = (nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Identity)

_KNOWN = (nn.Linear, nn.BatchNorm1d, nn.Flatten, *_ELEMENTWISE)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def unstackable(model: nn.Module) -> str | None:
    """Say why a model cannot be stacked, or None where it can.

    Examples:
        >>> unstackable(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.ReLU()))
        >>> unstackable(nn.Sequential(nn.Conv2d(1, 1, 3)))
        '0 is a Conv2d'
    """
    if type(model) is not nn.Sequential:
        return f"the model is a {type(model).__name__}, not an nn.Sequential"
    parts = (*model.modules(), *model.parameters())
    if any(getattr(part, name, None) for part in parts for name in _HOOKS):
        return "a module or a parameter has a hook"
    layers = 0  # that give tensors of their own
    for name, layer in _layers(model):
        if type(layer) not in _KNOWN:
            return f"{name} is a {type(layer).__name__}"
        if isinstance(layer, nn.BatchNorm1d) and layer.running_mean is None:
            return f"{name} has no running statistics"
        if getattr(layer, "inplace", False) and not layers:
            return f"{name} writes into its input"
        layers += isinstance(layer, nn.Linear | nn.BatchNorm1d)
        frozen = [p for p in layer.parameters() if not p.requires_grad]
        if frozen or (isinstance(layer, nn.Flatten) and layer.start_dim != 1):
            return f"{name} is frozen or flattens another dimension"
    return "entries are tied" if any(entry.alias_of for entry in entries(model)) else None


class Stack:
    """The models of several clients, and how they compute."""

    def __init__(
        self, model: nn.Module, method: Method, count: int, keeps_statistics: bool = False
    ):
        found = entries(model)
        kept = statistic_entries(found) if keeps_statistics else ()
        self.own = _rows(StateLayout.of(kept), count)  # statistics that clients keep for scoring
        self._own = _views(self.own, count)
        self.shared = _rows(StateLayout.of(method.shared(found)), count)
        self.local = _rows(StateLayout.of(method.local(found)), count)
        self._tensors = {**_views(self.shared, count), **_views(self.local, count)}
        self.leaves = {
            e.name: self._tensors[e.name].detach().requires_grad_() for e in found if e.trainable
        }
        self._tensors |= self.leaves
        self._layers = list(_layers(model))

    @torch.no_grad()
    def load(self, shared: Pack, local: Sequence[Pack]) -> None:
        """Become these clients: everyone's shared part, and each one's own."""
        for group, rows in self.shared.vectors.items():
            rows[: len(local)] = shared.vectors[group]
        for group, rows in self.local.vectors.items():
            torch.stack([pack.vectors[group] for pack in local], out=rows[: len(local)])

    @torch.no_grad()
    def load_own(self, kept: Sequence[Pack]) -> None:
        """Take over the statistics that these clients keep for scoring."""
        for group, rows in self.own.vectors.items():
            torch.stack([pack.vectors[group] for pack in kept], out=rows[: len(kept)])

    @torch.no_grad()
    def rows(self, count: int) -> tuple[Pack, Pack, Pack]:
        """Copy the first clients' shared and local parts and their own statistics, one row each."""
        shared, local, own = (
            Pack(part.layout, {group: rows[:count].clone() for group, rows in part.vectors.items()})
            for part in (self.shared, self.local, self.own)
        )
        return shared, local, own

    def forward(self, x: Tensor, counts: Tensor | None, training: bool) -> Tensor:
        """Compute all clients' outputs of x, (clients, samples, ...).

        So many samples of each client count as `counts` says; all of them, where it is None.
        """
        # Samples last: products, BatchNorm and their gradients then come as they are needed.
        x = x.movedim(1, -1)
        for name, layer in self._layers:
            if isinstance(layer, nn.Linear):
                weight = _first(self._tensors[f"{name}.weight"], len(x))
                if layer.bias is None:
                    x = torch.bmm(weight, x)
                else:
                    bias = _first(self._tensors[f"{name}.bias"], len(x))
                    x = torch.baddbmm(bias[..., None], weight, x)
            elif isinstance(layer, nn.BatchNorm1d):
                x = self._batch_norm(f"{name}.", layer, x, counts, training)
            else:
                x = x.flatten(1, -2) if isinstance(layer, nn.Flatten) else layer(x)
        return x.transpose(1, 2)

    def _batch_norm(
        self, at: str, norm: nn.BatchNorm1d, x: Tensor, counts: Tensor | None, training: bool
    ) -> Tensor:
        clients, width, samples = x.shape
        weight, bias, mean, var, seen = self._of_norm(at, clients, self._tensors)
        batch = training or mean is None
        if batch and (counts is not None or norm.momentum is None):
            some = torch.full((clients,), samples) if counts is None else counts
            return self._masked_norm(at, norm, x, some, training)
        if training and seen is not None:
            seen += 1
        # All clients' features are those of one BatchNorm.
        flat_mean, flat_var, flat_weight, flat_bias = (
            None if t is None else t.reshape(-1) for t in (mean, var, weight, bias)
        )
        flat, factor = (flat_mean, flat_var, flat_weight, flat_bias), norm.momentum or 0.0
        every = x.reshape(1, clients * width, samples)
        out = functional.batch_norm(every, *flat, batch, factor, norm.eps)
        if training:
            for kept, new in ((mean, flat_mean), (var, flat_var)):
                if kept is not None and new is not None:
                    kept.copy_(new.view_as(kept))
            _, _, mean, var, seen = self._of_norm(at, clients, self._own)
            if mean is not None and var is not None:
                flat_mean, flat_var = mean.reshape(-1), var.reshape(-1)
                torch.batch_norm_update_stats(every.detach(), flat_mean, flat_var, factor)
                mean.copy_(flat_mean.view_as(mean))
                var.copy_(flat_var.view_as(var))
                if seen is not None:
                    seen += 1
        return out.view(x.shape)

    def _masked_norm(
        self, at: str, norm: nn.BatchNorm1d, x: Tensor, counts: Tensor, training: bool
    ) -> Tensor:
        """BatchNorm where clients have batches of unequal size, padded to the largest."""
        weight, bias, *_ = self._of_norm(at, len(x), self._tensors)
        n = counts.clamp(min=1).to(x.dtype).view(-1, 1, 1)
        mask = (torch.arange(x.shape[2]) < counts[:, None])[:, None].to(x.dtype)
        centre = (x * mask).sum(dim=2, keepdim=True) / n
        spread = ((x - centre).square() * mask).sum(dim=2, keepdim=True) / n
        out = (x - centre) * torch.rsqrt(spread + norm.eps)
        if weight is not None and bias is not None:
            out = out * weight[..., None] + bias[..., None]
        if training:
            unbiased = spread * n / (n - 1).clamp(min=1)
            for tensors in (self._tensors, self._own):
                _, _, mean, var, seen = self._of_norm(at, len(x), tensors)
                if mean is not None and var is not None:
                    _update_masked(norm, (mean, var, seen), (centre, unbiased), counts)
        return out

    def _of_norm(self, at: str, clients: int, tensors: Mapping[str, Tensor]) -> list[Tensor | None]:
        """A BatchNorm's weight, bias, mean, variance and count of batches, one row per client."""
        keys = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
        found = (tensors.get(f"{at}{key}") for key in keys)
        return [None if tensor is None else _first(tensor, clients) for tensor in found]


@torch.no_grad()
def _update_masked(
    norm: nn.BatchNorm1d,
    running: tuple[Tensor, Tensor, Tensor | None],
    batch: tuple[Tensor, Tensor],
    counts: Tensor,
) -> None:
    """Move running statistics towards those of a batch, for clients that have samples in it."""
    mean, var, seen = running
    factor: Tensor | float = norm.momentum or 0.0
    if seen is not None:
        seen += (counts > 0).view_as(seen)
    if norm.momentum is None and seen is not None:  # one in all batches seen so far
        factor = 1.0 / seen.view(-1, 1).clamp(min=1).double()
    active = (counts > 0)[:, None]
    for kept, new in ((mean, batch[0]), (var, batch[1])):
        moved = kept + factor * (new[..., 0] - kept)
        kept.copy_(torch.where(active, moved, kept))


def _first(rows: Tensor, count: int) -> Tensor:
    """Take the first rows; of all of them a slice would cost the backward pass a copy."""
    return rows if len(rows) == count else rows[:count]


def _rows(layout: StateLayout, count: int) -> Pack:
    """A pack whose vectors have one row a client."""
    vectors = {
        group: torch.zeros(count, size, dtype=group.dtype) for group, size in layout.sizes.items()
    }
    return Pack(layout, vectors)


def unbound(rows: Pack, count: int) -> list[Pack]:
    """Give each row as a pack of its own; its memory stays the rows'."""
    groups, vectors = [*rows.vectors], [rows.vectors[group].unbind() for group in rows.vectors]
    each = zip(*vectors, strict=True) if vectors else ((),) * count
    return [Pack(rows.layout, dict(zip(groups, row, strict=True))) for row in each]


def _views(rows: Pack, count: int) -> dict[str, Tensor]:
    views = {}
    for entry in rows.layout.entries:
        group, offset = rows.layout.places[entry.name]
        size = torch.Size(entry.shape).numel()
        part = rows.vectors[group][:, offset : offset + size]
        views[entry.name] = part.view(count, *entry.shape)
    return views


def _layers(model: nn.Module, above: str = "") -> Iterator[tuple[str, nn.Module]]:
    # `named_children` would leave out an activation that is used a second time.
    for name, child in model._modules.items():
        assert child is not None
        if type(child) is nn.Sequential:
            yield from _layers(child, f"{above}{name}.")
        else:
            yield f"{above}{name}", child
