"""What a pass shows about a model's entries that the types of its modules do not.

A model may call `torch.nn.functional.batch_norm` itself, or compute BatchNorm by hand. Types cannot
tell then, and names must not. A pass can: it shows which tensors `batch_norm` is given, which
buffers change in training mode, and whether the batch decides outputs in evaluation mode.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from fedbn.core.randomness import seeded
from fedbn.core.state import BY_BATCH, FUNCTIONAL, Kind, State, entries, unwrap
from fedbn.core.user_code import contained

# Where each function that normalises a batch takes its statistics and its affine.
_PLACES: dict[Callable[..., Any], dict[str, int]] = {
    functional.batch_norm: {"running_mean": 1, "running_var": 2, "weight": 3, "bias": 4},
    torch.batch_norm: {"weight": 1, "bias": 2, "running_mean": 3, "running_var": 4},
    torch.native_batch_norm: {"weight": 1, "bias": 2, "running_mean": 3, "running_var": 4},
}
_TRAINING = 5  # the place of `training` in all of them
_KINDS = {
    "running_mean": Kind.BN_STATISTIC,
    "running_var": Kind.BN_STATISTIC,
    "weight": Kind.BN_AFFINE,
    "bias": Kind.BN_AFFINE,
}


@dataclass(frozen=True)
class Traced:
    """What a pass showed.

    Attributes:
        batchnorm: The kind of each entry that a call of `batch_norm` was given.
        changed: The floating-point buffers that changed although no BatchNorm owns them.
        by_batch: True if a call of `batch_norm` normalises by the batch in evaluation, too.
    """

    batchnorm: Mapping[str, Kind] = field(default_factory=dict)
    changed: tuple[str, ...] = ()
    by_batch: bool = False


class _Calls(TorchFunctionMode):
    """Collects the tensors that calls of `batch_norm` are given, by their role."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds: dict[int, Kind] = {}
        self.by_batch = False  # whether a call normalised by the batch

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = kwargs or {}
        if func not in _PLACES:
            return func(*args, **given)
        for name, place in _PLACES[func].items():
            tensor = given.get(name, args[place] if len(args) > place else None)
            if isinstance(tensor, Tensor):
                self.kinds[id(tensor)] = _KINDS[name]
        training = given.get("training", args[_TRAINING] if len(args) > _TRAINING else False)
        self.by_batch = self.by_batch or bool(training)
        return func(*args, **given)


def traced(model: nn.Module, x: Tensor) -> Traced:
    """Watch a pass of a copy of a model, in training mode and then in evaluation mode.

    The model and all generators stay as they are. A pass that fails shows nothing: it fails again
    where the error is reported.

    Examples:
        >>> class Functional(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.register_buffer("a", torch.zeros(2))
        ...         self.register_buffer("b", torch.ones(2))
        ...
        ...     def forward(self, x):
        ...         return functional.batch_norm(x, self.a, self.b, training=self.training)
        >>> [*traced(Functional(), torch.rand(3, 2)).batchnorm.items()]
        [('a', <Kind.BN_STATISTIC: 'bn_statistic'>), ('b', <Kind.BN_STATISTIC: 'bn_statistic'>)]
    """
    origin = unwrap(model)
    if all(type(module).__module__.startswith("torch.nn.modules.") for module in origin.modules()):
        return Traced()  # no code of anybody else's
    calls, evaluation, before, after = _Calls(), _Calls(), State(), State()
    names: dict[int, list[str]] = {}  # several where entries are tied
    with suppress(Exception), contained(), seeded(0), torch.no_grad():
        probe = copy.deepcopy(origin).train()
        before = {name: value.clone() for name, value in probe.state_dict().items()}
        for name, value in probe.state_dict(keep_vars=True).items():
            names.setdefault(id(value), []).append(name)
        with calls:
            probe(x)
        after = dict(probe.state_dict())
        with evaluation:
            probe.eval()(x)
    owned = {entry.name: entry.kind for entry in entries(origin)}
    plain = (Kind.OTHER, Kind.WEIGHT)
    batchnorm = {
        name: kind
        for key, kind in calls.kinds.items()
        for name in names.get(key, ())
        if owned[name] in plain
    }
    changed = (
        name
        for name, value in after.items()
        if owned.get(name) is Kind.OTHER and name not in batchnorm and value.is_floating_point()
        if not torch.equal(value.nan_to_num(), before[name].nan_to_num())
    )
    return Traced(batchnorm, tuple(changed), evaluation.by_batch)


def mark(model: nn.Module, x: Tensor) -> Traced:
    """Trace a model, and note at the model what functions of `state` ask for later.

    These are the entries of functional BatchNorm, and whether it normalises by the batch.
    """
    found, root = traced(model, x), unwrap(model)
    with suppress(Exception):  # a scripted module takes no attribute
        if found.batchnorm:
            setattr(root, FUNCTIONAL, {name: str(kind) for name, kind in found.batchnorm.items()})
        if found.by_batch:
            setattr(root, BY_BATCH, True)
    return found
