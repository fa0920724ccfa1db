"""One round of federated learning in plain torch: what every method here is held to.

Nothing of the library is used. A client's model is the shared part and its own, joined; it trains
by gradient descent on the batches it is given; the server takes the mean of what is shared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

State = dict[str, Tensor]
Batch = tuple[Tensor, Tensor]
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def kept(model: nn.Module, method: str) -> set[str]:
    """The entries that stay with a client."""
    everything = set(model.state_dict())
    batchnorm = {
        f"{path}.{name}"
        for path, module in model.named_modules()
        if isinstance(module, _BatchNorm)
        for name in module.state_dict()
    }
    return {
        "fedavg": set(),
        "fedprox": set(),
        "centralized": set(),
        "fedbn": batchnorm,
        "silobn": {name for name in batchnorm if name.endswith(STATISTICS)},
        "singleset": everything,
    }[method]


def train(
    model: nn.Module, batches: Sequence[Batch], lr: float, pull: float, own: set[str]
) -> None:
    """Descend, batch by batch; `pull` draws shared parameters towards where they began."""
    parameters = dict(model.named_parameters())
    began = {name: p.detach().clone() for name, p in parameters.items()}
    model.train()
    for x, y in batches:
        loss = functional.cross_entropy(model(x), y)
        slopes = torch.autograd.grad(loss, list(parameters.values()))
        with torch.no_grad():
            for (name, p), slope in zip(parameters.items(), slopes, strict=True):
                if name not in own:
                    slope = slope + pull * (p - began[name])
                p.add_(slope, alpha=-lr)


def federated_round(
    model: nn.Module,
    shared: State,
    homes: dict[str, State],
    batches: Mapping[str, Sequence[Batch]],
    lr: float,
    pull: float = 0.0,
) -> State:
    """Let the clients that have batches train; returns the new shared part, changes their homes.

    A client whose update is not finite is left out, and keeps what it had.
    """
    updates = []
    for client, given in batches.items():
        model.load_state_dict({**shared, **homes[client]})
        train(model, given, lr, pull, set(homes[client]))
        after = {name: value.clone() for name, value in model.state_dict().items()}
        if all(bool(torch.isfinite(value).all()) for value in after.values()):
            homes[client] = {name: after[name] for name in homes[client]}
            updates.append({name: after[name] for name in shared})
    return {name: combined([update[name] for update in updates]) for name in shared}


def combined(values: Sequence[Tensor]) -> Tensor:
    """The mean; of whole numbers the largest."""
    stacked = torch.stack(list(values))
    return stacked.mean(dim=0) if stacked.is_floating_point() else stacked.amax(dim=0)


def adam(before: State, mean: State, memory: dict[str, tuple[Tensor, Tensor]], lr: float) -> State:
    """FedAdam (Reddi et al. 2021) on trained entries: Adam's gradient is the step to the mean."""
    after = {}
    for name, old in before.items():
        step = mean[name] - old
        m, v = memory.get(name, (torch.zeros_like(step), torch.full_like(step, 1e-6)))
        m, v = 0.9 * m + 0.1 * step, 0.99 * v + 0.01 * step.square()
        memory[name] = (m, v)
        after[name] = old + lr * m / (v.sqrt() + 1e-3)
    return after
