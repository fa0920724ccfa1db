"""Two sites for every task, whose features differ in scale, and a small model for each."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedbn.core.federation import Client, Federation, Split

Made = Callable[[Tensor], Tensor]


def numbers(x: Tensor) -> Tensor:
    return torch.stack([3 * x[:, 0] - x[:, 1], x[:, 2]], dim=1)


def labels(x: Tensor) -> Tensor:
    return x > 0.2


def classes(x: Tensor) -> Tensor:
    return (x[:, 0] > 0).long() + (x[:, 1] > 0.8).long()


def federation(
    target: Made, names: tuple[str, ...], shape: tuple[int, ...] = (3,), n: int = 40
) -> Federation:
    clients = []
    for number, site in enumerate(("north", "south")):
        draws = torch.Generator().manual_seed(number)
        x = torch.randn(n, *shape, generator=draws)
        whole = Split(x * 5**number, target(x))
        train, test = whole.take(torch.arange(n * 3 // 4)), whole.take(torch.arange(n * 3 // 4, n))
        clients.append(Client(site, site, train, {site: test}))
    return Federation("made", tuple(clients), names)


def masks(x: Tensor) -> Tensor:
    """What is bright, smoothed over its neighbours, is foreground."""
    return (x[:, 0] > 0.5).to(torch.uint8)


def dense(outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, outputs))


def convolutional(space: int) -> nn.Module:
    conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[space - 1]
    norm = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[space - 1]
    return nn.Sequential(conv(1, 4, 3, padding=1), norm(4), nn.ReLU(), conv(4, 2, 1))


DATA = {
    "classification": lambda: federation(classes, ("low", "middle", "high")),
    "multilabel": lambda: federation(labels, ("cough", "fever", "rash")),
    "regression": lambda: federation(numbers, ("dose", "age")),
    "segmentation": lambda: federation(masks, ("ground", "vessel"), (1, 8, 8)),
}
MODELS = {
    "classification": lambda: dense(3),
    "multilabel": lambda: dense(3),
    "regression": lambda: dense(2),
    "segmentation": lambda: convolutional(2),
}


def regression_model() -> nn.Module:
    return dense(2)


def segmentation_model() -> nn.Module:
    return convolutional(2)
