"""The server's optimisers, each first steps by hand; they never touch statistics."""

from __future__ import annotations

from math import sqrt

import pytest
import torch

from fedbn.core.aggregation import (
    ServerOptimizer,
    server_adagrad,
    server_adam,
    server_momentum,
    server_yogi,
)
from fedbn.core.packing import Pack, StateLayout
from fedbn.core.state import Entry, Kind
from fedbn.errors import ConfigError

LAYOUT = StateLayout(
    (
        Entry("w", Kind.WEIGHT, (1,), torch.float64, True),
        Entry("var", Kind.BN_STATISTIC, (1,), torch.float64, False),
        Entry("count", Kind.BN_STATISTIC, (), torch.int64, False),
    )
)
ALL = [server_momentum(), server_adam(), server_yogi(), server_adagrad()]


def pack(w: float, var: float = 1.0, count: int = 0) -> Pack:
    w_var = torch.tensor([w, var], dtype=torch.float64)
    return LAYOUT.pack({"w": w_var[:1], "var": w_var[1:], "count": torch.tensor(count)})


def two_steps(optimizer: ServerOptimizer) -> list[float]:
    """From 0, the clients' mean is 1 further on each time: the pseudo-gradient is 1 twice."""
    state, memory, seen = pack(0.0), {}, []
    for _ in range(2):
        target = pack(float(state.state["w"]) + 1)
        state, memory = optimizer.step(state, target, memory)
        seen.append(float(state.state["w"]))
    return seen


def test_momentum_by_hand():
    # m: 1, then 0.9·1 + 1 = 1.9
    assert two_steps(server_momentum(1.0, 0.9)) == pytest.approx([1.0, 2.9], abs=1e-12)


def test_adam_by_hand():
    # m: 0.1, 0.19; v starts at tau² = 1e-6: 0.99e-6 + 0.01, then 0.99·v + 0.01
    tau = 1e-3
    v1 = 0.99 * tau**2 + 0.01
    v2 = 0.99 * v1 + 0.01
    first = 0.5 * 0.1 / (sqrt(v1) + tau)
    second = first + 0.5 * 0.19 / (sqrt(v2) + tau)
    assert two_steps(server_adam(0.5)) == pytest.approx([first, second], abs=1e-12)


def test_yogi_by_hand():
    # v: tau² − 0.01·1·sign(tau² − 1) = tau² + 0.01, then + 0.01 again
    tau = 1e-3
    v1 = tau**2 + 0.01
    first = 0.5 * 0.1 / (sqrt(v1) + tau)
    second = first + 0.5 * 0.19 / (sqrt(v1 + 0.01) + tau)
    assert two_steps(server_yogi(0.5)) == pytest.approx([first, second], abs=1e-12)


def test_adagrad_by_hand():
    # no momentum: m = 1 both times; v: tau² + 1, tau² + 2
    tau = 1e-3
    first = 0.5 / (sqrt(tau**2 + 1) + tau)
    second = first + 0.5 / (sqrt(tau**2 + 2) + tau)
    assert two_steps(server_adagrad(0.5)) == pytest.approx([first, second], abs=1e-12)


def test_momentum_of_nothing_is_the_plain_mean():
    target = pack(0.3, 2.0, 4)
    state, _ = server_momentum(1.0, 0.0).step(pack(0.0), target, {})
    assert all(torch.equal(state.state[name], target.state[name]) for name in target.state)


@pytest.mark.parametrize("optimizer", ALL, ids=lambda o: o.name)
def test_statistics_take_the_combined_value(optimizer: ServerOptimizer):
    """A step of 100 along a variance that falls from 1 to 0.01 would make it negative."""
    bold = ServerOptimizer(optimizer.name, 100.0, 0.9)
    state, memory = bold.step(pack(0.0, 1.0, 3), pack(1.0, 0.01, 9), {})
    state, memory = bold.step(state, pack(0.0, 0.02, 12), memory)
    assert state.state["var"].tolist() == [0.02]
    assert int(state.state["count"]) == 12
    assert {key.partition(".")[2] for key in memory} == {"float64.trainable"}


@pytest.mark.parametrize("optimizer", ALL, ids=lambda o: o.name)
def test_a_step_changes_neither_of_what_it_is_given(optimizer: ServerOptimizer):
    before, target, memory = pack(0.0), pack(1.0), {}
    optimizer.step(before, target, memory)
    assert float(before.state["w"]) == 0
    assert float(target.state["w"]) == 1
    assert memory == {}


@pytest.mark.parametrize(
    ("build", "args"),
    [
        (server_momentum, (0,)),
        (server_momentum, (1, 1)),
        (server_adam, (float("nan"),)),
        (server_adam, (float("inf"),)),
        (server_adam, (1, -0.1)),
        (server_yogi, (1, 0.9, 1.5)),
        (server_adagrad, (1, 0, 0)),
    ],
)
def test_illegal_values_are_refused(build, args: tuple[float, ...]):
    with pytest.raises(ConfigError, match="legal are lr > 0, tau > 0 and 0 <= beta < 1"):
        build(*args)
