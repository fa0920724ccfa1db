"""The networks of the paper (appendix), and small ones for any data.

The tables of the appendix have two slips. The digit CNN's third convolution is listed twice, and
AlexNet has a stray row "Conv2D(64, 128, 5, 1, 2)"; neither fits between its neighbours, so both are
left out. The paper gives the start of weights and biases of "neuron k" of the two-layer network and
says nothing of the output layer's; `start` chooses.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import Literal, get_args

from torch import nn

from fedbn.errors import ConfigError, unknown

__all__ = ["abide_net", "alexnet", "digit_cnn", "logistic", "mlp", "small_cnn", "two_layer"]


def logistic(classes: int, input_shape: tuple[int, ...], batchnorm: bool = True) -> nn.Module:
    """Build one dense layer, BatchNorm before it; a logistic model."""
    inputs = prod(input_shape)
    layers: list[nn.Module] = [nn.Flatten()] if len(input_shape) > 1 else []
    if batchnorm:
        layers.append(nn.BatchNorm1d(inputs))
    return nn.Sequential(*layers, nn.Linear(inputs, classes))


def mlp(classes: int, input_shape: tuple[int, ...], hidden: Sequence[int] = (64, 32)) -> nn.Module:
    """Build dense layers of the widths given, BatchNorm and ReLU after each but the last."""
    widths = [prod(input_shape), *hidden]
    layers: list[nn.Module] = [nn.Flatten()] if len(input_shape) > 1 else []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.BatchNorm1d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], classes))


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


def digit_cnn(classes: int, input_shape: tuple[int, ...]) -> nn.Module:
    """Build three convolutions and three dense layers, BatchNorm after each but the last."""
    channels, height, width = input_shape
    return nn.Sequential(
        *_conv(channels, 64),
        nn.MaxPool2d(2, 2),
        *_conv(64, 64),
        nn.MaxPool2d(2, 2),
        *_conv(64, 128),
        nn.Flatten(),
        *_dense(128 * (height // 4) * (width // 4), 2048),
        *_dense(2048, 512),
        nn.Linear(512, classes),
    )


def _conv(
    inputs: int, outputs: int, kernel: int = 5, stride: int = 1, padding: int = 2
) -> list[nn.Module]:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding)
    return [conv, nn.BatchNorm2d(outputs), nn.ReLU()]


def _dense(inputs: int, outputs: int) -> list[nn.Module]:
    return [nn.Linear(inputs, outputs), nn.BatchNorm1d(outputs), nn.ReLU()]


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


def abide_net(classes: int, input_shape: tuple[int, ...]) -> nn.Module:
    """Build it; 96,306 parameters for 5,995 correlations and two classes."""
    return mlp(classes, input_shape, hidden=(16, 16))


Start = Literal["hidden", "all"]


EXAMPLE = {
    "mlp": {"input_shape": (30,), "classes": 2},
    "alexnet": {"input_shape": (3, 256, 256), "classes": 10},
    "abide_net": {"input_shape": (5995,), "classes": 2},
    "two_layer": {"input_shape": (10,), "classes": 2},
}


def two_layer(
    classes: int,
    input_shape: tuple[int, ...],
    width: int = 100,
    alpha: float = 10.0,
    start: Start = "hidden",
) -> nn.Module:
    """Build one hidden layer, then BatchNorm; N(0, alpha²) starts it, or the output layer too."""
    if start not in get_args(Start):
        raise ConfigError(f"model.args.start: {unknown('start', str(start), get_args(Start))}")
    hidden, output = nn.Linear(prod(input_shape), width), nn.Linear(width, classes)
    for layer in (hidden, output) if start == "all" else (hidden,):
        nn.init.normal_(layer.weight, std=alpha)
        nn.init.normal_(layer.bias, std=alpha)
    flat = [nn.Flatten()] if len(input_shape) > 1 else []
    return nn.Sequential(*flat, hidden, nn.BatchNorm1d(width), nn.ReLU(), output)
