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
from fedbn.core.plan import Plan, Training
from fedbn.core.replica import PLAIN
from fedbn.core.rounds import RunState, initial_state
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
    training = Training(rounds=2, batch_size=6, lr=0.01, fast=fast)
    return Plan(fedbn(), Federation("zoo", clients, ("x", "y", "z")), ZOO[name], training)


def apart(one: RunState, other: RunState) -> float:
    """How far two states are from each other, all entries of all clients together."""
    packs = zip(
        [one.shared, *one.local.values()], [other.shared, *other.local.values()], strict=True
    )
    pairs = ((a.vectors[g].double(), b.vectors[g].double()) for a, b in packs for g in a.vectors)
    return sum(float((a - b).square().sum()) for a, b in pairs) ** 0.5


@pytest.mark.parametrize("name", ZOO)
def test_left_out_only_last_bits_differ(name: str) -> None:
    """By a hundred-thousandth of what training moved; of the deep CNN by a five-hundredth."""
    found, expected = (run_plan(made(name, fast), workers=2) for fast in (True, False))
    moved = apart(expected, initial_state(made(name, False)))
    assert moved > 0
    assert apart(found, expected) <= (2e-3 if name == "digit_cnn" else 1e-5) * moved


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
