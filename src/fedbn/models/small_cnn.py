"""A small CNN with BatchNorm for small images: what `fedbn run` uses unless told otherwise."""

from __future__ import annotations

from torch import nn


def small_cnn(classes: int, input_shape: tuple[int, ...], width: int = 16) -> nn.Module:
    """Build two convolutions and two dense layers, BatchNorm after each but the last."""
    channels, height, width_px = input_shape
    flat = 2 * width * (height // 4) * (width_px // 4)
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.BatchNorm2d(2 * width),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(flat, 64),
        nn.BatchNorm1d(64),
        nn.ReLU(),
        nn.Linear(64, classes),
    )
