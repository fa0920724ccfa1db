"""Larger networks for pictures: a U-Net, which gives a class a pixel, and ResNet-18.

ResNet-18 (He et al. 2016) has the names of torchvision and timm, so that published weights fit. The
U-Net (Ronneberger et al. 2015) is small, has BatchNorm after each convolution, and brings what it
enlarges to the size of what it is joined with, so that any size of picture will do.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["resnet18", "unet"]

EXAMPLE = {
    "unet": {"input_shape": (3, 24, 20), "classes": 2, "space": (24, 20)},
    "resnet18": {"input_shape": (3, 32, 32), "classes": 10},
}


class UNet(nn.Module):
    """Down by halves, and up again beside what was there on the way."""

    def __init__(self, channels: int, classes: int, width: int, depth: int):
        super().__init__()
        widths = [width * 2**level for level in range(depth + 1)]
        self.down = nn.ModuleList(
            _twice(a, b) for a, b in zip([channels, *widths], widths, strict=False)
        )
        pairs = list(zip(widths[1:], widths, strict=False))[::-1]
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
    layers: list[nn.Module] = []
    for wide in (inputs, outputs):
        conv = nn.Conv2d(wide, outputs, 3, padding=1, bias=False)
        layers += [conv, nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers)


def unet(classes: int, input_shape: tuple[int, ...], width: int = 16, depth: int = 3) -> nn.Module:
    """Build a U-Net that halves `depth` times; 0.48 million parameters as it is."""
    return UNet(input_shape[0], classes, width, depth)


class BasicBlock(nn.Module):
    """Two convolutions beside a way round them."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = nn.Sequential() if stride == 1 else _shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Add what the convolutions find to what came in."""
        found = functional.relu(self.bn1(self.conv1(x)))
        return functional.relu(self.bn2(self.conv2(found)) + self.downsample(x))


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


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
