"""Schedules, clipped gradients, mixed precision and the device: what one round trains with."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import fedbn
from fedbn.core.rounds import initial_state, run_round
from fedbn.core.schedule import rates, schedulers
from fedbn.core.training import Training
from fedbn.errors import ConfigError
from fedbn.experiments.configuration import checked
from fedbn.experiments.planner import device_of, training_of
from fedbn.experiments.runner import run_plan
from fedbn.experiments.schema import TrainingSection
from fedbn.fast import chosen
from fedbn.fast.stacked_training import unbatchable
from tiny import Trainer, bn_net, done, federation, plan, same, same_runs

NEEDED: dict[str, dict[str, Any]] = {
    "StepLR": {"step_size": 2},
    "MultiStepLR": {"milestones": [1, 3]},
    "ExponentialLR": {"gamma": 0.9},
    "CosineAnnealingWarmRestarts": {"T_0": 2},
    "CyclicLR": {"base_lr": 0.1, "max_lr": 0.5},
    "OneCycleLR": {"max_lr": 0.5},
}


@pytest.mark.parametrize("name", schedulers())
def test_every_schedule_gives_one_rate_a_round(name: str) -> None:
    found = rates(name, NEEDED.get(name, {}), 0.1, 6)
    assert len(found) == 6
    assert all(0 <= rate < math.inf for rate in found)
    assert len(set(found)) > 1


def test_rates_by_hand() -> None:
    cosine = [0.05 * (1 + math.cos(math.pi * done / 4)) for done in range(4)]
    assert rates("CosineAnnealingLR", {}, 0.1, 4) == pytest.approx(cosine)
    assert rates("LinearLR", {"start_factor": 0.5, "total_iters": 2}, 0.1, 4) == pytest.approx(
        [0.05, 0.075, 0.1, 0.1]
    )


def test_a_round_trains_with_its_own_rate() -> None:
    given = {"schedule": "ExponentialLR", "schedule_args": {"gamma": 0.5}}
    made = plan(fedbn.fedbn(), federation(9, 12), rounds=3, lr=0.2, **given)
    state = initial_state(made)
    for lr in (0.2, 0.1, 0.05):
        training = replace(made.training, lr=lr, schedule=None, schedule_args={})
        fixed = replace(made, training=training)
        state = run_round(fixed, state, Trainer(fixed)).state
    assert same_runs(state, done(made))


def test_stacks_follow_the_schedule_too() -> None:
    given = {"schedule": "StepLR", "schedule_args": {"step_size": 1, "gamma": 0.1}}
    made = plan(fedbn.fedbn(), federation(8, 8, 8), rounds=3, **given)
    assert unbatchable(made) is None
    one, other = run_plan(made), run_plan(replace(made, engine="batched"))
    for name, value in one.shared.state.items():
        torch.testing.assert_close(other.shared.state[name], value, atol=1e-5, rtol=1e-4)
    constant = run_plan(replace(made, training=replace(made.training, schedule=None)))
    assert not same(constant.shared, one.shared)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"schedule": "CosineAnealingLR"}, "did you mean 'CosineAnnealingLR'"),
        ({"schedule": "ReduceLROnPlateau"}, "ReduceLROnPlateau looks at scores"),
        ({"schedule": "LambdaLR"}, "LambdaLR needs a function"),
        ({"schedule": "SequentialLR"}, "SequentialLR is made of other schedulers"),
        ({"schedule": "StepLR"}, "training.schedule_args: StepLR: TypeError.*step_size"),
        ({"schedule": "StepLR", "schedule_args": {"stepsize": 2}}, "did you mean 'step_size'"),
        ({"schedule": "ExponentialLR", "schedule_args": {"gamma": -1.0}}, "gives lr -0.01 in ro"),
        ({"schedule_args": {"gamma": 1.0}}, "schedule_args without a schedule"),
        ({"clip_norm": 0.0}, r"training.clip_norm = 0.0: .*greater than 0"),
        ({"clip_norm": math.nan}, "training.clip_norm = nan"),
        ({"amp": "float16"}, "training.amp = 'float16': .*'bfloat16'"),
        ({"device": "gpu"}, "training.device = 'gpu'"),
    ],
)
def test_what_cannot_be_is_one_line(given: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError, match=line) as error:
        training_of(checked({"training": given}).training)
    assert "\n" not in str(error.value)


def by_hand(model: nn.Module, x: torch.Tensor, y: torch.Tensor, lr: float, clip: float) -> None:
    """Two full batches with clipped gradients."""
    for _ in range(2):
        model.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        length = math.sqrt(sum(float(p.grad.square().sum()) for p in model.parameters()))
        with torch.no_grad():
            for p in model.parameters():
                p -= lr * p.grad * min(1.0, clip / (length + 1e-6))


def test_a_gradient_is_clipped_over_all_parameters() -> None:
    made = plan(
        fedbn.fedavg(), federation(10), rounds=1, local_epochs=2, batch_size=None, clip_norm=0.05
    )
    model = fedbn_copy(made.initial_model)
    split = made.federation.clients[0].train
    by_hand(model.train(), split.x, split.y, made.training.lr, 0.05)
    state = done(made)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(state.shared.state[name], value, atol=1e-6, rtol=1e-5)
    unclipped = done(replace(made, training=replace(made.training, clip_norm=None)))
    assert not same(unclipped.shared, state.shared)


def fedbn_copy(model: nn.Module) -> nn.Module:
    copied = bn_net()
    copied.load_state_dict(model.state_dict())
    return copied


def test_clipping_comes_after_what_rules_change() -> None:
    """However strong the pull, one step is no longer than lr times the limit."""
    strong = fedbn.fedavg() | fedbn.proximal(1e6)
    made = plan(strong, federation(10), rounds=1, local_epochs=3, batch_size=None, clip_norm=0.01)
    before, after = initial_state(made).shared, done(made).shared
    moved = math.hypot(
        *(
            float((after.state[e.name] - before.state[e.name]).norm())
            for e in after.layout.entries
            if e.trainable
        )
    )
    assert moved <= 3 * made.training.lr * 0.01 * 1.001


def test_a_limit_that_no_gradient_reaches_changes_no_bit() -> None:
    made = plan(fedbn.fedbn(), federation(9, 12))
    limited = replace(made, training=replace(made.training, clip_norm=1e9))
    assert same_runs(done(made), done(limited))


def test_mixed_precision_gives_the_same_bits_again_and_others_than_without() -> None:
    made = plan(fedbn.fedbn(), federation(9, 12), amp="bfloat16")
    one = run_plan(made, workers=1)
    assert same_runs(one, run_plan(made, workers=2))
    assert all(
        not g.dtype.is_floating_point or g.dtype == torch.float32 for g in one.shared.vectors
    )
    whole = run_plan(replace(made, training=replace(made.training, amp=None)))
    assert not same(one.shared, whole.shared)
    for name, value in whole.shared.state.items():
        torch.testing.assert_close(one.shared.state[name], value, atol=0.05, rtol=0.05)


def test_mixed_precision_takes_no_fast_path() -> None:
    made = plan(fedbn.fedbn(), federation(9, 12), amp="bfloat16")
    assert unbatchable(made) == "training.amp is bfloat16"
    assert chosen(made) == {"engine": "plain"}
    clipped = replace(made, training=Training(clip_norm=1.0))
    assert unbatchable(clipped) == "training.clip_norm is 1.0"


def test_auto_is_the_gpu_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    section = TrainingSection(device="auto")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device_of(section) == "cpu"
    assert training_of(section).device == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert device_of(section) == "cuda"


def test_a_run_writes_down_what_auto_was(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tomllib

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    given = {"training__device": "auto", "rounds": 1, "out": tmp_path / "out"}
    result = fedbn.fit(federation(9, 12), bn_net, **given)
    written = tomllib.loads((tmp_path / "out" / "config.toml").read_text())
    assert written["training"]["device"] == result.plan.training.device == "cpu"
