"""`fedbn data show`: examples, histograms, counts, and how far apart clients are.

The distance is Fréchet's between Gaussian fits in feature space. For clients with means m, m′ and
covariances S, S′ of their features it is

    d² = |m − m′|² + tr(S + S′ − 2 (S S′)^½),

given here relative to the spread of all clients' features together: d / √tr(S_all). 0 means alike;
at 1 two clients are as far apart as samples of the whole are from its mean.

The features are simple on purpose and need no network. Of a picture: the mean and the standard
deviation of each colour in each cell of an 8×8 grid. Of a vector: its entries, each scaled to a
standard deviation of 1 over all clients. Both are then reduced to their 16 principal components.
Estimates from few samples are never 0. So every distance is taken between two halves of equal
size: on the diagonal between the halves of one client, which shows what chance alone gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fedbn.core.federation import AnySplit, Client, Federation, Targets, all_targets, targets_of
from fedbn.core.findings import check_labels
from fedbn.core.randomness import generator

_GRID = 8
_COMPONENTS = 16
_MOST = 200
_BINS = 64
_CHANNELS = ("red", "green", "blue")


def client_distances(clients: Sequence[Client]) -> list[list[float]]:
    """Estimate the distance between each pair of clients, on their training data, as said above."""
    halves = [half for client in clients for half in _halves(client)]
    size = min(_MOST, *(len(half) for half in halves))
    if size < 2:
        return [[float("nan")] * len(clients) for _ in clients]
    pairs = zip(halves, [client for client in clients for _ in range(2)], strict=True)
    parts = [client.train.batch(half[:size])[0].cpu().float() for half, client in pairs]
    reduced = _components(_features(torch.cat(parts)).double(), min(_COMPONENTS, size))
    fits = [_gaussian(part) for part in reduced.split(size)]
    spread = float(_gaussian(reduced)[1].trace()) or 1.0
    found = [[0.0] * len(clients) for _ in clients]
    for i, j in combinations_with_replacement(range(len(clients)), 2):
        one, two = frechet(fits[2 * i], fits[2 * j + 1]), frechet(fits[2 * i + 1], fits[2 * j])
        found[i][j] = found[j][i] = ((one + two) / 2 / spread) ** 0.5
    return found


def frechet(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> float:
    """Compute d² between two Gaussians, each a mean and a covariance.

    Examples:
        >>> one = torch.zeros(2), torch.eye(2)
        >>> other = torch.tensor([3.0, 0.0]), 4 * torch.eye(2)
        >>> round(frechet(one, other), 4)  # 3² + 2·(2 − 1)²
        11.0
    """
    values, vectors = torch.linalg.eigh(one[1])
    root = (vectors * values.clamp(min=0).sqrt()) @ vectors.T
    inner = torch.linalg.eigvalsh(root @ other[1] @ root).clamp(min=0).sqrt().sum()
    apart = (one[0] - other[0]).square().sum() + one[1].trace() + other[1].trace() - 2 * inner
    return max(0.0, float(apart))


def _halves(client: Client) -> tuple[Tensor, Tensor]:
    """Shuffle a client's samples into two halves; samples of one group stay on one side."""
    draws = generator(0, "view", client=client.name)
    order = torch.randperm(len(client.train), generator=draws)
    if client.train.groups is None:
        middle = len(order) // 2
        return order[:middle], order[middle:]
    names, place = client.train.groups.cpu().unique(return_inverse=True)
    first = torch.randperm(len(names), generator=draws) < len(names) // 2
    chosen = first[place[order]]
    return order[chosen], order[~chosen]


def _features(x: Tensor) -> Tensor:
    if x.dim() != 4:
        flat = x.flatten(1)
        spread = flat.std(dim=0)
        return (flat - flat.mean(dim=0)) / torch.where(spread > 0, spread, 1.0)
    grid = (min(_GRID, x.shape[2]), min(_GRID, x.shape[3]))
    mean = functional.adaptive_avg_pool2d(x, grid)
    square = functional.adaptive_avg_pool2d(x.square(), grid)
    contrast = (square - mean.square()).clamp(min=0).sqrt()
    return torch.cat([mean.flatten(1), contrast.flatten(1)], dim=1)


def _components(features: Tensor, count: int) -> Tensor:
    """Principal components, from the products of all pairs of samples or of features, if fewer."""
    centred = features - features.mean(dim=0)
    first = slice(-count, None)
    if centred.shape[1] < len(centred):
        scores: Tensor = centred @ torch.linalg.eigh(centred.T @ centred)[1][:, first]
    else:
        values, vectors = torch.linalg.eigh(centred @ centred.T)
        scores = vectors[:, first] * values[first].clamp(min=0).sqrt()
    return scores


def _gaussian(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.mean(dim=0), torch.cov(x.T).reshape(x.shape[1], x.shape[1])


def survey(federation: Federation, samples: int = 100, examples: int = 10) -> dict[str, Any]:
    """Measure a federation for a picture and a table, in plain values.

    A client's histogram is made of so many training samples, drawn by a fixed seed; its examples
    are pictures of different classes where there are as many, an array (n, h, w, 3) of uint8, and
    there are none of samples that are no pictures. `sizes`, `coverage` and `skew` are of the
    training samples (how many, of how many classes, `label_skew`), `train` and `test` counts by
    client and class, `histograms` shares by client and channel between the `edges`.
    """
    check_labels(federation)
    clients = federation.clients
    draws = {c.name: generator(0, "view", client=c.name) for c in clients}
    orders = {c.name: torch.randperm(len(c.train), generator=draws[c.name]) for c in clients}
    values = [c.train.raw(orders[c.name][:samples])[0].cpu() for c in clients]
    drawn = len(federation.input_shape) == 3 and examples > 0
    edges = _edges(values)
    train = [_counts(client.train, federation) for client in clients]
    return {
        "name": federation.name,
        "remarks": list(federation.remarks),
        "samples": samples,
        "shape": list(federation.input_shape),
        "clients": [client.name for client in clients],
        "classes": list(federation.classes),
        "sizes": [len(client.train) for client in clients],
        "coverage": [sum(count > 0 for count in counts) for counts in train],
        "skew": label_skew(train),
        "train": train,
        "test": [_counts(client.tests[client.domain], federation) for client in clients],
        "distances": client_distances(clients),
        "edges": edges.tolist(),
        "histograms": [_histograms(x, edges) for x in values],
        "examples": [_examples(c, orders[c.name], examples) for c in clients] if drawn else [],
    }


def label_skew(counts: Sequence[Sequence[int]]) -> list[float]:
    """How far each client's labels are from all clients' together: the part that had to move.

    It is the total variation distance of the shares of classes: 0 for the same shares, nearly 1
    for a client of many that has classes of its own.

    Examples:
        >>> label_skew([[10, 10], [20, 0]])
        [0.25, 0.25]
    """
    table = np.asarray(counts, float)
    shares = table / np.maximum(table.sum(axis=1, keepdims=True), 1)
    whole = table.sum(axis=0) / max(table.sum(), 1)
    skew: list[float] = (np.abs(shares - whole).sum(axis=1) / 2).tolist()
    return skew


def _counts(split: AnySplit, federation: Federation) -> list[int]:
    """Samples of each class; that have each label; whose mask has each class; or all of them."""
    y, classes = all_targets(split).cpu(), len(federation.classes)
    if (kind := targets_of(y)) is Targets.NUMBERS:
        return [len(y)] * classes
    if kind is Targets.MASK:
        y = torch.stack([(y == label).flatten(1).any(dim=1) for label in range(classes)], dim=1)
    return (y.sum(dim=0) if y.dim() > 1 else y.bincount(minlength=classes)).tolist()


def _edges(values: Sequence[Tensor]) -> NDArray[np.float64]:
    if all(x.dtype == torch.uint8 for x in values):
        return np.linspace(0, 256, _BINS + 1)
    joined = np.concatenate([x.flatten().numpy() for x in values])
    low, high = np.quantile(joined[np.isfinite(joined)], [0.002, 0.998])
    return np.linspace(low, high if high > low else low + 1, _BINS + 1)


def _histograms(x: Tensor, edges: NDArray[np.float64]) -> dict[str, list[float]]:
    """Shares of the values in each bin, by colour channel where there are three different ones."""
    coloured = x.dim() == 4 and x.shape[1] == 3 and not bool((x == x[:, :1]).all())
    parts = dict(zip(_CHANNELS, x.unbind(1), strict=True)) if coloured else {"values": x}
    counts = {name: np.histogram(part.flatten().numpy(), edges)[0] for name, part in parts.items()}
    return {name: (count / parts[name].numel()).tolist() for name, count in counts.items()}


def _examples(client: Client, order: Tensor, count: int) -> NDArray[np.uint8]:
    y = all_targets(client.train).cpu()
    y = y if y.dim() == 1 else torch.zeros(len(y), dtype=torch.int64)
    # One of each class first, in the order of classes; then a second of each, and so on.
    rank = torch.zeros_like(order)
    for label in y.unique().tolist():
        mine = y[order] == label
        rank[mine] = torch.arange(int(mine.sum()))
    turn = torch.argsort(rank * (int(y.max()) + 1) + y[order], stable=True)
    return drawable(client.train.raw(order[turn[:count]])[0].cpu())


def drawable(x: Tensor) -> NDArray[np.uint8]:
    """Turn samples (n, channels, h, w) into pictures (n, h, w, 3)."""
    if x.dtype != torch.uint8:
        low, high = (-1.0, 1.0) if float(x.abs().max()) <= 1 else (float(x.min()), float(x.max()))
        x = ((x - low) / max(high - low, 1e-12) * 255).round().clamp(0, 255).byte()
    shown = x[:, :3] if x.shape[1] >= 3 else x[:, :1].expand(-1, 3, -1, -1)
    return shown.permute(0, 2, 3, 1).contiguous().numpy()
