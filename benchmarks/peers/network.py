"""What peers share: the model of `--model mlp`, the arrays, and the numbers of training."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.sites import CLASSES, FEATURES, site

BATCH, LR = 32, 0.01
NORMS = ("1.", "4.")  # the entries of BatchNorm begin so


def network() -> nn.Sequential:
    """Build dense layers with BatchNorm."""
    return nn.Sequential(
        *(nn.Linear(FEATURES, 64), nn.BatchNorm1d(64), nn.ReLU()),
        *(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU()),
        nn.Linear(32, CLASSES),
    )


def arrays(number: int) -> dict[str, Tensor]:
    """One client's samples."""
    return {name: torch.from_numpy(array) for name, array in site(number).items()}


def asked() -> tuple[int, int]:
    """How many clients and rounds the command line asks for."""
    clients, rounds = map(int, sys.argv[1:])
    return clients, rounds
