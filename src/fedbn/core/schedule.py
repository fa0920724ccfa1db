"""Learning rates that the round alone decides: torch's schedulers by name.

Clients start their optimisers anew each round and may miss rounds, so a schedule is a list of one
learning rate a round, the same for every client, every engine and a resumed run.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch.optim import lr_scheduler

from fedbn.errors import ConfigError, blamed, unknown

_REFUSED = {
    "ReduceLROnPlateau": "looks at scores, and a schedule must be known from the round alone",
    "LambdaLR": "needs a function",
    "MultiplicativeLR": "needs a function",
    "SequentialLR": "is made of other schedulers",
    "ChainedScheduler": "is made of other schedulers",
}
# Of arguments that say how long a schedule is: as long as the run, unless given.
_LENGTHS = ("T_max", "total_steps")


def schedulers() -> dict[str, type[lr_scheduler.LRScheduler]]:
    """The schedulers that are functions of the round, by name."""
    return {
        name: value
        for name, value in vars(lr_scheduler).items()
        if inspect.isclass(value)
        and issubclass(value, lr_scheduler.LRScheduler)
        and name not in ("LRScheduler", "_LRScheduler", *_REFUSED)
    }


def rates(name: str, args: Mapping[str, Any], lr: float, rounds: int) -> tuple[float, ...]:
    """Give the learning rate of every round, a step of a scheduler of torch each.

    Its arguments `T_max` and `total_steps` are the rounds unless given.

    Examples:
        >>> rates("StepLR", {"step_size": 2, "gamma": 0.5}, 0.4, 5)
        (0.4, 0.4, 0.2, 0.2, 0.1)
    """
    legal = schedulers()
    if name in _REFUSED:
        names = ", ".join(sorted(legal))
        raise ConfigError(f"training.schedule: {name} {_REFUSED[name]}; legal values: {names}")
    if name not in legal:
        raise ConfigError(f"training.schedule: {unknown('schedule', name, legal)}")
    taken = inspect.signature(legal[name]).parameters
    known = [key for key in taken if key not in ("optimizer", "last_epoch", "verbose")]
    for key in args:
        if key not in known:
            raise ConfigError(f"training.schedule_args: {unknown('argument', key, known)}")
    own = {key: rounds for key in _LENGTHS if key in taken} | (
        {"cycle_momentum": False} if "cycle_momentum" in taken else {}  # clients begin without
    )
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)
    found = []
    with blamed(ConfigError, f"training.schedule_args: {name}"):  # values torch did not think of
        scheduler = legal[name](optimizer, **{**own, **args})
        for done in range(rounds):
            if done:
                optimizer.step()
                scheduler.step()
            found.append(float(optimizer.param_groups[0]["lr"]))
    for round, rate in enumerate(found, start=1):
        if not 0 <= rate < math.inf:
            raise ConfigError(f"training.schedule: {name} gives lr {rate:g} in round {round}")
    return tuple(found)
