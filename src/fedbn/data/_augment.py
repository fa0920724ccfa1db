"""A change of training pictures, drawn anew for every batch."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

_BLACK = -1.0


@dataclass(frozen=True)
class FlipAndTurn:
    """Mirror half of the pictures left to right, and turn each by a random angle.

    What a turn leaves empty becomes black. The paper does not speak of it; its authors' code
    does this to Office-Caltech10 and DomainNet.

    Attributes:
        degrees: Angles are drawn evenly from −degrees to +degrees.

    Examples:
        >>> pictures = torch.zeros(4, 3, 8, 8)
        >>> FlipAndTurn()(pictures, torch.Generator().manual_seed(0)).shape
        torch.Size([4, 3, 8, 8])
    """

    degrees: float = 30.0

    def __call__(self, x: Tensor, draws: torch.Generator) -> Tensor:
        """Change a batch (n, c, h, w) of floats in [−1, 1]."""
        n, _, height, width = x.shape
        angle = (torch.rand(n, generator=draws) * 2 - 1) * math.radians(self.degrees)
        mirror = (torch.rand(n, generator=draws) < 0.5).float() * -2 + 1
        grid = functional.affine_grid(
            _matrices(angle, mirror, height / width).to(x), list(x.shape), align_corners=False
        )
        # Outside the picture grid_sample reads 0, which must mean black.
        lifted = functional.grid_sample(x - _BLACK, grid, align_corners=False)
        return lifted.add_(_BLACK)


def _matrices(angle: Tensor, mirror: Tensor, ratio: float) -> Tensor:
    """Where each output pixel is read, in coordinates from −1 to 1 along both sides."""
    cos, sin, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
    across = torch.stack([mirror * cos, mirror * -sin * ratio, zero], dim=1)
    down = torch.stack([sin / ratio, cos, zero], dim=1)
    return torch.stack([across, down], dim=1)
