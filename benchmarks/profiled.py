"""Where a training step of the digit CNN spends its time: `python -m benchmarks.profiled`."""

from __future__ import annotations

from functools import partial

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.bench import pictures
from fedbn.core.plan import Plan
from fedbn.core.replica import Replica
from fedbn.core.rounds import initial_state, train_client
from fedbn.core.training import Training
from fedbn.fast.allocator import keep_freed_memory
from fedbn.methods.paper import fedbn
from fedbn.models.networks import digit_cnn

_KINDS = {
    "convolutions": ("convolution",),
    "dense layers and their steps": ("mm", "linear"),
    "pooling, BatchNorm, ReLU": ("pool", "batch_norm", "relu", "threshold"),
}
_STEPS = 24


def main() -> None:
    keep_freed_memory()
    torch.set_num_threads(1)
    plan = Plan(
        fedbn(),
        pictures(1, 32 * _STEPS, 4, 28),
        partial(digit_cnn, 10, (3, 28, 28)),
        Training(batch_size=32, last_batch="keep"),
    )
    replica, state = Replica(plan.initial_model, plan.method), initial_state(plan)
    train_client(plan, replica, plan.federation.clients[0], state)
    with profile(activities=[ProfilerActivity.CPU]) as found:
        train_client(plan, replica, plan.federation.clients[0], state)
    spent = dict.fromkeys([*_KINDS, "all else"], 0.0)
    for event in found.key_averages():
        kind = next((k for k, parts in _KINDS.items() if _is(event.key, parts)), "all else")
        spent[kind] += event.self_cpu_time_total / _STEPS / 1e3
    for kind, milliseconds in {**spent, "whole step": sum(spent.values())}.items():
        print(f"{kind:30} {milliseconds:7.1f} ms")


def _is(operation: str, parts: tuple[str, ...]) -> bool:
    return any(part in operation for part in parts)


if __name__ == "__main__":
    main()
