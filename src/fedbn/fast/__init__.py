"""Everything that is there for speed alone, chosen for a plan and handed to the engine.

Nothing below imports this room. It refuses what it does not know: such a plan runs plainly. With
`training.fast = false` none of it is used, and results differ in the last bits only.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from fedbn.core.bn_folding import fold
from fedbn.core.engine import Crew, OneByOne, cores
from fedbn.core.local_training import Passes
from fedbn.core.plan import Plan
from fedbn.core.randomness import seeded
from fedbn.core.replica import PLAIN, Speedups
from fedbn.core.user_code import contained
from fedbn.fast.stacked_training import Stacks
from fedbn.fast.weight_gradients import IdleCores, OverlappedPasses, worth_it


def make_crew(plan: Plan, workers: int = 0) -> Crew:
    """Give who trains and scores a plan's clients fastest, on so many cores (0 for all)."""
    wanted = workers or cores()
    if plan.engine == "batched":
        return Stacks(plan, wanted)
    return OneByOne(plan, wanted, speedups(plan, wanted))


def speedups(plan: Plan, workers: int = 1, client: int = 0) -> Speedups:
    """Choose what may be done for a plan, from its model as it begins and the shape of samples.

    They are the samples of one client: a site has its own alone.
    """
    if not plan.training.fast or plan.training.amp:
        return PLAIN
    sample = plan.federation.clients[client].train.batch(slice(0, 2))[0].cpu()
    layout = fastest(plan.initial_model, sample)
    beside = torch.device(plan.training.device).type == "cpu" and worth_it(plan.initial_model)
    helpers = IdleCores(workers) if beside and workers > 1 else None
    return Speedups(
        partial(OverlappedPasses, layout, helpers) if beside else partial(Passes, layout),
        partial(fold, x=sample.to(plan.training.device)),
        {
            "memory_format": layout.__name__,
            "weight_gradients": "beside the pass" if beside else "in the pass",
        },
        helpers.close if helpers else lambda: None,
    )


def chosen(plan: Plan) -> dict[str, str]:
    """Say what is chosen for a plan, for a run's records."""
    if plan.engine == "batched":
        return {"engine": plan.engine}
    return {"engine": plan.engine, **speedups(plan).chosen}


def channels_last(x: Tensor) -> Tensor:
    """All channels of a pixel side by side."""
    return x.contiguous(memory_format=torch.channels_last)


def fastest(model: nn.Module, x: Tensor) -> Callable[[Tensor], Tensor]:
    """Choose how images lie in memory while a model trains: channels last where it can take it.

    By the model as it begins and the shape of a sample, never by how far training is or by a clock:
    the layout decides the last bits of a sum.
    """
    if x.dim() != 4 or x.dtype != torch.float32:
        return Tensor.contiguous
    batch = torch.rand((4, *x.shape[1:]), generator=torch.Generator().manual_seed(0))
    try:
        with seeded(0), torch.enable_grad(), contained():
            copy.deepcopy(model).train()(channels_last(batch)).sum().backward()
    except Exception:  # whatever a user's forward does: there is always torch's own layout
        return Tensor.contiguous
    return channels_last
