"""AlexNet with BatchNorm (appendix, Office-Caltech10 and DomainNet).

The table has a stray row "Conv2D(64, 128, 5, 1, 2)" that fits neither neighbour and is left out.
57,063,498 parameters for ten classes.
"""

from __future__ import annotations

from torch import nn

# What `fedbn inspect` builds it for, when told nothing else.
EXAMPLE = {"alexnet": {"input_shape": (3, 256, 256), "classes": 10}}


def alexnet(classes: int, input_shape: tuple[int, ...]) -> nn.Module:
    """Build five convolutions and three dense layers, BatchNorm after each but the last."""
    return nn.Sequential(
        *_conv(input_shape[0], 64, 11, 4, 2),
        nn.MaxPool2d(3, 2),
        *_conv(64, 192, 5, 1, 2),
        nn.MaxPool2d(3, 2),
        *_conv(192, 384, 3, 1, 1),
        *_conv(384, 256, 3, 1, 1),
        *_conv(256, 256, 3, 1, 1),
        nn.MaxPool2d(3, 2),
        nn.AdaptiveAvgPool2d((6, 6)),
        nn.Flatten(),
        *_dense(256 * 6 * 6, 4096),
        *_dense(4096, 4096),
        nn.Linear(4096, classes),
    )


def _conv(
    inputs: int, outputs: int, kernel: int = 5, stride: int = 1, padding: int = 2
) -> list[nn.Module]:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding)
    return [conv, nn.BatchNorm2d(outputs), nn.ReLU()]


def _dense(inputs: int, outputs: int) -> list[nn.Module]:
    return [nn.Linear(inputs, outputs), nn.BatchNorm1d(outputs), nn.ReLU()]
