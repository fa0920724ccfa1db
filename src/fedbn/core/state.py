"""What a model's state is made of: the kind of every entry, by the type of the module owning it.

FedBN (section 3, Algorithm 1) treats "BatchNorm layers" apart from all others. Which entries of a
`state_dict` belong to such a layer is decided here, once, from the module tree: never from a name.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import is_lazy

from fedbn.errors import ModelError

State = dict[str, Tensor]


class Kind(StrEnum):
    """What an entry is, as far as federated methods care."""

    WEIGHT = "weight"
    BN_AFFINE = "bn_affine"
    BN_STATISTIC = "bn_statistic"
    INSTANCE_AFFINE = "instance_affine"
    INSTANCE_STATISTIC = "instance_statistic"
    NORM_AFFINE = "norm_affine"
    OTHER = "other"
    RULE = "rule"


# The attribute of a model that says which entries a pass gave to `functional.batch_norm`, and their
# kinds. Plain text, so that a model can still be saved by anybody.
FUNCTIONAL = "_fedbn_functional_batchnorm"
# The attribute of a model whose calls of `functional.batch_norm` normalise by the batch in
# evaluation, too.
BY_BATCH = "_fedbn_normalises_by_batch"
_batchnorm: list[type[nn.Module]] = [_BatchNorm]
# The first family that an owner, or anything the owner sits in, is an instance of decides:
# (types, kind of its parameters, kind of its buffers).
_FAMILIES: tuple[tuple[Sequence[type[nn.Module]], Kind, Kind], ...] = (
    (_batchnorm, Kind.BN_AFFINE, Kind.BN_STATISTIC),
    ((_InstanceNorm,), Kind.INSTANCE_AFFINE, Kind.INSTANCE_STATISTIC),
    ((nn.GroupNorm, nn.LayerNorm, nn.RMSNorm), Kind.NORM_AFFINE, Kind.OTHER),
)


@dataclass(frozen=True)
class Entry:
    """One entry of a `state_dict`; `trainable` is a parameter that asks for gradients.

    `alias_of` is the first key of the same tensor, when this key is a further one (tied weights,
    one module used in two places). Aliases are listed but never stored or sent twice.
    """

    name: str
    kind: Kind
    shape: tuple[int, ...]
    dtype: torch.dtype
    trainable: bool
    alias_of: str | None = None

    @property
    def bytes(self) -> int:
        """Bytes stored or sent for this entry; an alias costs nothing."""
        return 0 if self.alias_of else math.prod(self.shape) * self.dtype.itemsize


def register_batchnorm(layer: type[nn.Module]) -> type[nn.Module]:
    """Say that a class of one's own is BatchNorm; for this process, as a decorator or called.

    Its parameters and buffers are then what FedBN keeps at the client. Buffers `running_mean` and
    `running_var` can be measured for a new site too, if it normalises with them when evaluated.

    Examples:
        >>> class MyBN(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.register_buffer("running_mean", torch.zeros(2))
        >>> register_batchnorm(MyBN) is MyBN, kinds(MyBN())["running_mean"].value
        (True, 'bn_statistic')
    """
    if not (isinstance(layer, type) and issubclass(layer, nn.Module)):
        raise ModelError(f"register_batchnorm: {layer!r} is not a class of modules")
    if layer not in _batchnorm:
        _batchnorm.append(layer)
    return layer


def is_batchnorm(module: nn.Module) -> bool:
    """Tell whether a module is BatchNorm: torch's, or registered as such."""
    return isinstance(module, tuple(_batchnorm))


def uses_batch_statistics(model: nn.Module) -> bool:
    """Return True if the model normalises by the batch when it is evaluated too.

    Such BatchNorm tracks no statistics (`track_running_stats=False`), or is a call of
    `functional.batch_norm` without them, which `fedbn.core.pass_tracing.mark` noted.

    Examples:
        >>> uses_batch_statistics(nn.BatchNorm1d(2, track_running_stats=False))
        True
        >>> uses_batch_statistics(nn.BatchNorm1d(2))
        False
    """
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    untracked = any(norm.running_mean is None and norm.running_var is None for norm in norms)
    return untracked or bool(getattr(unwrap(model), BY_BATCH, False))


def unwrap(model: nn.Module) -> nn.Module:
    """Take off `DataParallel`, `DistributedDataParallel` and `torch.compile` wrappers.

    Examples:
        >>> type(unwrap(nn.DataParallel(nn.Linear(1, 1)))).__name__
        'Linear'
    """
    while True:
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model


def entries(model: nn.Module) -> tuple[Entry, ...]:
    """List every entry of the model's `state_dict`, in its order, with its kind.

    Examples:
        >>> model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
        >>> [(e.name, str(e.kind)) for e in entries(model)][:3]
        [('0.weight', 'weight'), ('0.bias', 'weight'), ('1.weight', 'bn_affine')]
    """
    model = unwrap(model)
    modules = dict(model.named_modules(remove_duplicate=False))
    functional: Mapping[str, str] = getattr(model, FUNCTIONAL, {})
    first: dict[int, Entry] = {}
    found = []
    for name, value in model.state_dict(keep_vars=True).items():
        _check_tensor(name, value)
        entry = Entry(
            name=name,
            kind=Kind(functional[name]) if name in functional else _kind(name, value, modules),
            shape=tuple(value.shape),
            dtype=value.dtype,
            trainable=isinstance(value, nn.Parameter) and value.requires_grad,
        )
        found.append(_tied(entry, first.setdefault(id(value), entry)))
    return tuple(found)


def kinds(model: nn.Module) -> dict[str, Kind]:
    """Map every key of the model's `state_dict` to its kind.

    Examples:
        >>> kinds(nn.Sequential(nn.BatchNorm1d(2, affine=False)))["0.running_mean"]
        <Kind.BN_STATISTIC: 'bn_statistic'>
    """
    return {entry.name: entry.kind for entry in entries(model)}


def split(state: Mapping[str, Tensor], shared: Callable[[str], bool]) -> tuple[State, State]:
    """Cut a state in two: what is shared and what stays local.

    Examples:
        >>> state = {"w": torch.zeros(1), "s": torch.ones(1)}
        >>> share, local = split(state, {"w"}.__contains__)
        >>> list(share), list(local)
        (['w'], ['s'])
    """
    chosen = {name: value for name, value in state.items() if shared(name)}
    return chosen, {name: value for name, value in state.items() if name not in chosen}


def join(shared: Mapping[str, Tensor], local: Mapping[str, Tensor]) -> State:
    """Put a state back together; the inverse of `split`, whatever the order of keys was.

    Examples:
        >>> sorted(join({"w": torch.zeros(1)}, {"s": torch.ones(1)}))
        ['s', 'w']
    """
    if both := sorted(shared.keys() & local.keys()):
        raise ModelError(f"entries both shared and local: {', '.join(both)}")
    return {**shared, **local}


def schema_hash(found: Iterable[Entry]) -> str:
    """Hash names, kinds, shapes and dtypes: equal for two models that may exchange states."""
    lines = sorted(f"{e.name} {e.kind} {e.shape} {e.dtype} {e.alias_of}" for e in found)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _kind(name: str, value: Tensor, modules: Mapping[str, nn.Module]) -> Kind:
    above = name.split(".")[:-1]  # exact module paths, so that `f.1` never matches `f.11`
    paths = (".".join(above[:depth]) for depth in range(len(above) + 1))
    owners = [modules[path] for path in paths if path in modules]
    parameter = isinstance(value, nn.Parameter)
    for types, affine, statistic in _FAMILIES:
        if any(isinstance(owner, tuple(types)) for owner in owners):
            return affine if parameter else statistic
    return Kind.WEIGHT if parameter else Kind.OTHER


def _tied(entry: Entry, first: Entry) -> Entry:
    if first is entry:
        return entry
    if first.kind != entry.kind:
        raise ModelError(
            f"{first.name} ({first.kind}) and {entry.name} ({entry.kind}) are one tensor: "
            "it cannot both be shared and stay local. Untie them."
        )
    return replace(entry, alias_of=first.name)


def _check_tensor(name: str, value: object) -> None:
    if not isinstance(value, Tensor):
        raise ModelError(f"entry {name} is a {type(value).__name__}, not a tensor: cannot share it")
    if is_lazy(value):
        raise ModelError(
            f"entry {name} is not initialised yet: run one batch through the lazy model first"
        )
    strange = value.dtype in (torch.uint16, torch.uint32, torch.uint64)
    strange |= value.is_floating_point() and value.dtype.itemsize == 1
    if strange or value.is_complex() or value.is_quantized or value.is_sparse:
        raise ModelError(
            f"entry {name} is {value.dtype}, {value.layout}: legal are dense tensors of real "
            "numbers in 16 bits or more, or of whole ones that have a sign or 8 bits"
        )
