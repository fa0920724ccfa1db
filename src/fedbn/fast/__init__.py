"""Everything that is there for speed alone, chosen for a plan and handed to the engine.

Nothing below imports this room. It refuses what it does not know: such a plan runs plainly. With
`training.fast = false` none of it is used, and results differ in the last bits only.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from fedbn.core.bn_folding import fold
from fedbn.core.engine import Crew, OneByOne, cores
from fedbn.core.plan import Plan
from fedbn.core.replica import PLAIN, Passes, PlainPasses, Speedups
from fedbn.fast.memory_formats import MemoryFormat, fastest, prepare
from fedbn.fast.stacked_training import Stacks
from fedbn.fast.weight_gradients import IdleCores, OverlappedPasses, worth_it


def make_crew(plan: Plan, workers: int = 0) -> Crew:
    """Give who trains and scores a plan's clients fastest, on so many cores (0 for all)."""
    wanted = workers or cores()
    if plan.engine == "batched":
        return Stacks(plan, wanted)
    return OneByOne(plan, wanted, speedups(plan, wanted))


def speedups(plan: Plan, workers: int = 1, client: int = 0) -> Speedups:
    """Choose what may be done for a plan.

    Args:
        plan: Depends on its model as it begins and on the shape of its samples alone.
        workers: Cores; those that are idle compute weight gradients.
        client: Whose samples it is tried on; a site has its own alone.
    """
    if not plan.training.fast:
        return PLAIN
    device = plan.training.device
    sample = plan.federation.clients[client].train.batch(slice(0, 2))[0].cpu()
    layout = fastest(plan.initial_model, sample)
    beside = torch.device(device).type == "cpu" and worth_it(plan.initial_model)
    helpers = IdleCores(workers) if beside and workers > 1 else None
    chosen = {
        "memory_format": layout.__name__,
        "weight_gradients": "beside the pass" if beside else "in the pass",
    }
    passes = partial(_passes, layout=layout, helpers=helpers, beside=beside)
    scoring = partial(fold, x=sample.to(device))
    if helpers is None:
        return Speedups(passes, scoring, chosen=chosen)
    return Speedups(passes, scoring, helpers.one_core_busy, helpers.close, chosen)


def chosen(plan: Plan) -> dict[str, str]:
    """Say what is chosen for a plan, for a run's records."""
    if plan.engine == "batched":
        return {"engine": plan.engine}
    return {"engine": plan.engine, **speedups(plan).chosen}


class _Formatted(PlainPasses):
    """Torch's own passes, of batches that lie in memory as the model takes them fastest."""

    def __init__(self, layout: MemoryFormat):
        self._layout = layout

    def outputs(self, model: nn.Module, x: Tensor) -> Tensor:
        """Pass a batch through the model."""
        found: Tensor = model(self._layout(x))
        return found


def _passes(
    model: nn.Module, layout: MemoryFormat, helpers: IdleCores | None, beside: bool
) -> Passes:
    prepare(model, layout)
    return OverlappedPasses(helpers, layout) if beside else _Formatted(layout)
