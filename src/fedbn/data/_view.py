"""What `fedbn data show` draws and prints: examples, histograms, counts and distances."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedbn.core.federation import Client, Federation, Split
from fedbn.core.randomness import generator
from fedbn.data._distance import distances

_BINS = 64
_CHANNELS = ("red", "green", "blue")


def survey(federation: Federation, samples: int = 100, examples: int = 10) -> dict[str, Any]:
    """Measure a federation for a picture and a table.

    Args:
        federation: The data.
        samples: Training samples a client that its histogram is made of, drawn by a fixed seed.
        examples: Pictures shown a client, of different classes where there are as many.

    Returns:
        A dict of plain values: `name`, `remarks`, `samples`, `shape`, `clients`, `classes`;
        `train` and `test`, counts by client and class; `distances`, a matrix (see `_distance`);
        `edges` and `histograms`, shares by client and channel; `examples`, by client an array
        (n, h, w, 3) of uint8, or an empty list for samples that are no pictures.
    """
    clients = federation.clients
    values = [_sample(client.train, samples, client.name) for client in clients]
    pictures = len(federation.input_shape) == 3
    edges = _edges(values)
    return {
        "name": federation.name,
        "remarks": list(federation.remarks),
        "samples": samples,
        "shape": list(federation.input_shape),
        "clients": [client.name for client in clients],
        "classes": list(federation.classes),
        "train": [_counts(client.train, federation) for client in clients],
        "test": [_counts(client.tests[client.domain], federation) for client in clients],
        "distances": distances(clients),
        "edges": edges.tolist(),
        "histograms": [_histograms(x, edges) for x in values],
        "examples": [_examples(client, examples) for client in clients] if pictures else [],
    }


def _sample(split: Split, count: int, name: str) -> Tensor:
    order = torch.randperm(len(split), generator=generator(0, "view", client=name))
    return split.x[order[:count].to(split.x.device)].cpu()


def _counts(split: Split, federation: Federation) -> list[int]:
    counts: list[int] = split.y.cpu().bincount(minlength=len(federation.classes)).tolist()
    return counts


def _edges(values: Sequence[Tensor]) -> NDArray[np.float64]:
    if all(x.dtype == torch.uint8 for x in values):
        return np.linspace(0, 256, _BINS + 1)
    joined = np.concatenate([x.flatten().numpy() for x in values])
    low, high = np.quantile(joined[np.isfinite(joined)], [0.002, 0.998])
    return np.linspace(low, high if high > low else low + 1, _BINS + 1)


def _histograms(x: Tensor, edges: NDArray[np.float64]) -> dict[str, list[float]]:
    """Shares of the values in each bin, by colour channel where there are three different ones."""
    coloured = x.dim() == 4 and x.shape[1] == 3 and not _grey(x)
    parts = dict(zip(_CHANNELS, x.unbind(1), strict=True)) if coloured else {"values": x}
    return {name: _shares(part, edges) for name, part in parts.items()}


def _grey(x: Tensor) -> bool:
    return bool((x[:, 0] == x[:, 1]).all() and (x[:, 0] == x[:, 2]).all())


def _shares(x: Tensor, edges: NDArray[np.float64]) -> list[float]:
    counts, _ = np.histogram(x.flatten().numpy(), bins=edges)
    shares: list[float] = (counts / x.numel()).tolist()
    return shares


def _examples(client: Client, count: int) -> NDArray[np.uint8]:
    y = client.train.y.cpu()
    order = torch.randperm(len(y), generator=generator(0, "view", client=client.name))
    # One of each class first, in the order of classes; then a second of each, and so on.
    rank = torch.zeros_like(order)
    for label in y.unique().tolist():
        mine = y[order] == label
        rank[mine] = torch.arange(int(mine.sum()))
    turn = torch.argsort(rank * (int(y.max()) + 1) + y[order], stable=True)
    return drawable(client.train.x[order[turn[:count]].to(client.train.x.device)].cpu())


def drawable(x: Tensor) -> NDArray[np.uint8]:
    """Turn samples (n, channels, h, w) into pictures (n, h, w, 3)."""
    if x.dtype != torch.uint8:
        low, high = (-1.0, 1.0) if float(x.abs().max()) <= 1 else (float(x.min()), float(x.max()))
        x = ((x - low) / max(high - low, 1e-12) * 255).round().clamp(0, 255).byte()
    shown = x[:, :3] if x.shape[1] >= 3 else x[:, :1].expand(-1, 3, -1, -1)
    return shown.permute(0, 2, 3, 1).contiguous().numpy()
