"""What is there for speed changes last bits and nothing else, and can be left out as a whole."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fedbn.core.federation import Client, Federation, Split
from fedbn.core.plan import Plan
from fedbn.core.replica import PLAIN
from fedbn.core.rounds import RunState, initial_state
from fedbn.core.training import Training
from fedbn.experiments.runner import run_plan
from fedbn.fast import chosen, speedups
from fedbn.methods.paper import fedbn
from fedbn.models.networks import digit_cnn, mlp, small_cnn

IMAGES = (3, 16, 16)


class Large(nn.Module):
    """More than a million parameters, so that weight gradients are computed beside the pass."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.wide = nn.Linear(16 * 256, 300)
        self.last = nn.Linear(300, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.first(x)))
        return self.last(torch.relu(self.wide(x.flatten(1))))  # type: ignore[no-any-return]


class Cast(Large):
    """Computes in half precision."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(x).float()


class Recomputed(Large):
    """Keeps no activations."""

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(super().forward, x, use_reentrant=False)  # type: ignore[no-any-return]


class Joined(nn.Module):
    """Concatenates, and uses one weight twice."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(3, 4, 3, padding=1)
        self.norm, self.last = nn.BatchNorm2d(8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.left(x), self.right(x), self.left(x)[:, :0]], dim=1)
        return self.last(self.norm(x).mean(dim=(2, 3)))  # type: ignore[no-any-return]


ZOO = {
    "mlp": lambda: mlp(3, IMAGES),
    "small_cnn": lambda: small_cnn(3, IMAGES),
    "digit_cnn": lambda: digit_cnn(3, IMAGES),
    "large": Large,
    "cast": Cast,
    "recomputed": Recomputed,
    "joined": Joined,
    "dropout": lambda: nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(768, 3)),
}


def made(name: str, fast: bool) -> Plan:
    draws = torch.Generator().manual_seed(0)

    def split(n: int) -> Split:
        y = torch.arange(n) % 3
        return Split(torch.rand(n, *IMAGES, generator=draws) + y[:, None, None, None], y)

    clients = tuple(Client(c, c, split(12), {c: split(6)}) for c in "ab")
    # One batch a round: after two of six samples the deep CNN blows last bits up to per cents.
    training = Training(rounds=2, batch_size=12, lr=0.01, fast=fast)
    return Plan(fedbn(), Federation("zoo", clients, ("x", "y", "z")), ZOO[name], training)


def apart(one: RunState, other: RunState, part: str) -> float:
    """How far two states are from each other in what is shared, or in what stays with clients."""
    parts = [
        [state.shared] if part == "shared" else list(state.local.values()) for state in (one, other)
    ]
    packs = zip(*parts, strict=True)
    pairs = ((a.vectors[g].double(), b.vectors[g].double()) for a, b in packs for g in a.vectors)
    return sum(float((a - b).square().sum()) for a, b in pairs) ** 0.5


@pytest.mark.parametrize("name", ZOO)
def test_left_out_only_last_bits_differ(name: str) -> None:
    """By a thousandth of what training moved.

    Weights that start apart by 1e-7 end apart by about 1e-5 of it; one value of the deep CNN that
    falls on the other side of zero makes that a few thousandths.
    """
    found, expected = (run_plan(made(name, fast), workers=2) for fast in (True, False))
    start = initial_state(made(name, False))
    assert apart(expected, start, "shared") > 0
    for part in ("shared", "local"):
        most = (1e-2 if name == "digit_cnn" else 1e-3) * apart(expected, start, part)
        assert apart(found, expected, part) <= most


def test_what_was_chosen_is_said() -> None:
    assert chosen(made("small_cnn", False)) == {"engine": "plain"}
    assert chosen(made("digit_cnn", True)) == {
        "engine": "plain",
        "memory_format": "channels_last",
        "weight_gradients": "beside the pass",
    }
    assert chosen(made("joined", True))["weight_gradients"] == "in the pass"
    assert chosen(replace(made("mlp", True), engine="batched")) == {"engine": "batched"}
    assert speedups(made("large", False)) is PLAIN


def test_the_plain_engine_needs_nothing_of_it() -> None:
    code = (
        "import sys, fedbn.core.engine, fedbn.core.scoring; "
        "sys.exit(any(name.startswith('fedbn.fast') for name in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
