"""The networks of the paper (appendix), small ones for any data, a U-Net and ResNet-18.

The tables of the appendix have two slips. The digit CNN's third convolution is listed twice, and
AlexNet has a stray row "Conv2D(64, 128, 5, 1, 2)"; neither fits between its neighbours, so both are
left out. The paper gives the start of weights and biases of "neuron k" of the two-layer network and
says nothing of the output layer's; `start` chooses.

ResNet-18 (He et al. 2016) has the names of torchvision and timm, so that published weights fit. The
U-Net (Ronneberger et al. 2015) is small, has BatchNorm after each convolution, and brings what it
enlarges to the size of what it is joined with, so that any size of picture will do.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedbn.errors import ConfigError, unknown

__all__ = [
    "abide_net",
    "alexnet",
    "digit_cnn",
    "logistic",
    "mlp",
    "resnet18",
    "small_cnn",
    "two_layer",
    "unet",
]


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
        layers += _dense(inputs, outputs)
    return nn.Sequential(*layers, nn.Linear(widths[-1], classes))


def small_cnn(classes: int, input_shape: tuple[int, ...], width: int = 16) -> nn.Module:
    """Build two strided convolutions, two dense layers; BatchNorm after each but the last."""
    channels, rows, columns = input_shape
    quarter = -(-rows // 4) * -(-columns // 4)
    return nn.Sequential(
        *_conv(channels, width, stride=2),
        *_conv(width, 2 * width, stride=2),
        nn.Flatten(),
        *_dense(2 * width * quarter, 64),
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
    inputs: int, outputs: int, kernel: int = 5, stride: int = 1, padding: int = 2, bias: bool = True
) -> list[nn.Module]:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=bias)
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
    "unet": {"input_shape": (3, 24, 20), "classes": 2, "space": (24, 20)},
    "resnet18": {"input_shape": (3, 32, 32), "classes": 10},
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


_DEEPEST = 16  # halves a side of 65,536 pixels down to one


class UNet(nn.Module):
    """Down by halves, and up again beside what was there on the way."""

    def __init__(self, channels: int, classes: int, width: int, depth: int):
        super().__init__()
        widths = [width * 2**level for level in range(depth + 1)]
        self.down = nn.ModuleList(_twice(a, b) for a, b in pairwise([channels, *widths]))
        pairs = list(pairwise(widths[::-1]))
        self.narrow = nn.ModuleList(nn.Conv2d(a, b, 1) for a, b in pairs)
        self.up = nn.ModuleList(_twice(2 * b, b) for _, b in pairs)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Give scores (n, classes, height, width)."""
        kept = []
        for level, block in enumerate(self.down):
            x = block(functional.max_pool2d(x, 2, ceil_mode=True) if level else x)
            kept.append(x)
        beside = kept[-2::-1]
        for narrow, block, other in zip(self.narrow, self.up, beside, strict=True):
            x = functional.interpolate(narrow(x), size=other.shape[2:])
            x = block(torch.cat([other, x], dim=1))
        scores: Tensor = self.head(x)
        return scores


def _twice(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        *_conv(inputs, outputs, 3, 1, 1, bias=False), *_conv(outputs, outputs, 3, 1, 1, bias=False)
    )


def unet(classes: int, input_shape: tuple[int, ...], width: int = 16, depth: int = 3) -> nn.Module:
    """Build a U-Net that halves `depth` times; 0.48 million parameters as it is."""
    if not 0 <= depth <= _DEEPEST:
        raise ConfigError(f"model.args.depth: expected 0 to {_DEEPEST}, got {depth}")
    return UNet(input_shape[0], classes, width, depth)


class BasicBlock(nn.Module):
    """Two convolutions beside a way round them."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = nn.Sequential()
        if stride != 1:
            conv = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.downsample = nn.Sequential(conv, nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Add what the convolutions find to what came in."""
        found = functional.relu(self.bn1(self.conv1(x)))
        return functional.relu(self.bn2(self.conv2(found)) + self.downsample(x))


class ResNet(nn.Module):
    """A first convolution, four stages of two blocks, and a head."""

    def __init__(self, channels: int, classes: int):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.layer1 = nn.Sequential(BasicBlock(64, 64, 1), BasicBlock(64, 64, 1))
        self.layer2 = nn.Sequential(BasicBlock(64, 128, 2), BasicBlock(128, 128, 1))
        self.layer3 = nn.Sequential(BasicBlock(128, 256, 2), BasicBlock(256, 256, 1))
        self.layer4 = nn.Sequential(BasicBlock(256, 512, 2), BasicBlock(512, 512, 1))
        self.fc = nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Give scores (n, classes)."""
        x = functional.max_pool2d(functional.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        scores: Tensor = self.fc(x.mean(dim=(2, 3)))
        return scores


def resnet18(classes: int, input_shape: tuple[int, ...]) -> nn.Module:
    """Build ResNet-18; 11.2 million parameters for ten classes."""
    return ResNet(input_shape[0], classes)
