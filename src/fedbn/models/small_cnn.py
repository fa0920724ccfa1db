"""A small CNN with BatchNorm for small images: what `fedbn run` uses unless told otherwise."""

from __future__ import annotations

from torch import nn


def small_cnn(classes: int, input_shape: tuple[int, ...], width: int = 16) -> nn.Module:
    """Build two strided convolutions, two dense layers; BatchNorm after each but the last."""
    channels, rows, columns = input_shape
    quarter = -(-rows // 4) * -(-columns // 4)
    return nn.Sequential(
        nn.Conv2d(channels, width, 5, stride=2, padding=2),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 5, stride=2, padding=2),
        nn.BatchNorm2d(2 * width),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(2 * width * quarter, 64),
        nn.BatchNorm1d(64),
        nn.ReLU(),
        nn.Linear(64, classes),
    )
