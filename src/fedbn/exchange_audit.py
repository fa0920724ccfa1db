"""`fedbn.audit`: which method does a project really run, by the two functions it exchanges with?

Names lie: `'bn' in name` misses the `downsample.1` of a ResNet. So nobody's names are read here:
two models get different numbers, what one gives is set into the other, and every entry shows what
became of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import fedbn.methods
from fedbn import registry
from fedbn.core.method import Method
from fedbn.core.pass_tracing import mark
from fedbn.core.randomness import seeded
from fedbn.core.selectors import BATCHNORM
from fedbn.core.state import Entry, Kind, State, entries, unwrap
from fedbn.errors import ConfigError, blamed

_KEEP_STATISTICS = ("fedbn", "silobn")
_FIRST = ("fedavg", "silobn", "fedbn")  # of methods that keep the same, the one that is named


@dataclass(frozen=True)
class AuditedEntry:
    """What becomes of one entry."""

    name: str  # its key in the `state_dict`
    kind: Kind  # what it is, by the type of its module
    leaves: bool  # whether anything of it is in what a client sends
    overwritten: bool  # whether what a client receives changes it


@dataclass(frozen=True, repr=False)
class Audit:
    """What a project's exchange does, entry by entry; one that has several names is listed once.

    `method` keeps exactly what is kept here, or is `none`; `nearest` differs in the fewest entries.
    It is `none` too where statistics of a home-made BatchNorm leave (`doubtful`).
    """

    entries: tuple[AuditedEntry, ...]
    method: str
    nearest: str
    doubtful: tuple[str, ...] = ()  # shared buffers that are statistics, or may be

    @property
    def missed(self) -> tuple[str, ...]:
        """The BatchNorm entries that leave."""
        return tuple(e.name for e in self.entries if e.kind in BATCHNORM and e.leaves)

    @property
    def extra(self) -> tuple[str, ...]:
        """The entries beside BatchNorm that are kept."""
        return tuple(e.name for e in self.entries if e.kind not in BATCHNORM and not e.overwritten)

    def __repr__(self) -> str:
        """Say in two sentences what was found."""
        norm = [e for e in self.entries if e.kind in BATCHNORM]
        kept = sum(not e.overwritten for e in norm)
        near = f" (nearest: {self.nearest})" if self.method == "none" else ""
        others = len(self.entries) - len(norm)
        return (
            f"method: {self.method}{near}. Of {len(norm)} BatchNorm entries {kept} are kept and "
            f"{len(self.missed)} leave; of {others} others {len(self.extra)} are kept."
            + (
                f" Shared buffers that are or may be statistics of a home-made BatchNorm: "
                f"{', '.join(self.doubtful)}."
                if self.doubtful
                else ""
            )
        )


def audit(
    make_model: Callable[[], nn.Module],
    get: Callable[[nn.Module], Any],
    set: Callable[[nn.Module, Any], Any],
    inputs: Tensor | None = None,
) -> Audit:
    """Find out which method a project runs, from the two functions that every such project has.

    Args:
        make_model: Makes the model; called twice.
        get: Gives what leaves the client, of a model: a mapping or a list of arrays.
        set: Takes into a model what `get` gave.
        inputs: A few samples, for one pass of the model. It shows BatchNorm that the types of
            modules do not: calls of `torch.nn.functional.batch_norm`, and buffers that change.
            Without it no project with other shared buffers is called `fedbn`.

    Examples:
        >>> def model():
        ...     return nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        >>> def get(model):  # looks for "bn" in names, and finds none
        ...     return {n: v for n, v in model.state_dict().items() if "bn" not in n}
        >>> found = audit(model, get, lambda model, sent: model.load_state_dict(sent, strict=False))
        >>> found.method, len(found.missed)
        ('fedavg', 5)
    """
    with seeded(0):
        sender, receiver = unwrap(make_model()), unwrap(make_model())
    changed = () if inputs is None else mark(sender, inputs).changed
    found = entries(sender)
    listed = [entry for entry in found if entry.alias_of is None]
    numbers = [_numbers(listed, seed) for seed in (1, 2)]
    for model, values in zip((sender, receiver), numbers, strict=True):
        _fill(model, values)
    returned = _called("set", set, receiver, _called("get", get, sender))
    after = unwrap(returned if isinstance(returned, nn.Module) else receiver).state_dict()
    overwritten = {
        e.name for e in listed if not torch.equal(after[e.name].cpu(), numbers[1][e.name])
    }
    rest = [e.name for e in listed if e.name not in overwritten]
    leaving = overwritten | _leaving(rest, sender, partial(_called, "get", get), numbers)
    audited = [
        AuditedEntry(e.name, e.kind, e.name in leaving, e.name in overwritten) for e in listed
    ]
    if inputs is None:
        floats = {entry.name for entry in listed if entry.dtype.is_floating_point}
        changed = tuple(e.name for e in audited if e.kind is Kind.OTHER and e.name in floats)
    doubtful = tuple(name for name in changed if name in overwritten)
    method, nearest = _named(found, {e.name for e in listed} - overwritten)
    if doubtful and method in _KEEP_STATISTICS:
        method = "none"
    return Audit(tuple(audited), method, nearest, doubtful)


def _leaving(
    names: list[str], model: nn.Module, get: Callable[[nn.Module], Any], numbers: Sequence[State]
) -> set[str]:
    """Find which entries are in what `get` gives: those by which it changes."""
    usual, other = numbers
    before = _arrays(get(model))
    if not _same(before, _arrays(get(model))):
        raise ConfigError("audit: get gives something else each time for one model")

    def among(names: list[str]) -> set[str]:
        """Halve the names until each half leaves as a whole or not at all."""
        if not names:
            return set()
        _fill(model, {name: other[name] for name in names})
        now = _arrays(get(model))
        _fill(model, usual)
        if _same(before, now):
            return set()
        pairs = zip(before, now, strict=False)
        changed = [a.shape for a, b in pairs if a.shape != b.shape or not torch.equal(a, b)]
        if len(names) == 1 or sorted(changed) == sorted(usual[n].shape for n in names):
            return set(names)
        half = len(names) // 2
        return among(names[:half]) | among(names[half:])

    return among(names)


def _numbers(listed: Iterable[Entry], seed: int) -> State:
    """Numbers for every entry, others for another seed; positive, as a variance must be."""
    draws = torch.Generator().manual_seed(seed)
    made = {}
    for place, entry in enumerate(listed):
        if entry.dtype is torch.bool:
            value = torch.full(entry.shape, seed == 1)
        elif entry.dtype.is_floating_point:
            value = 0.5 * seed + torch.rand(entry.shape, generator=draws) / 4
        else:
            value = torch.full(entry.shape, 2 * place + seed - 1)
        made[entry.name] = value.to(entry.dtype)
    return made


def _fill(model: nn.Module, values: State) -> None:
    with torch.no_grad():
        state = model.state_dict()
        for name, value in values.items():
            state[name].copy_(value)


def _called(word: str, function: Callable[..., Any], *given: Any) -> Any:
    with blamed(ConfigError, f"audit: {word} failed"):
        return function(*given)


def _arrays(sent: Any) -> list[Tensor]:
    """Copies of what leaves, in the order it is given; names say nothing."""
    if isinstance(sent, Mapping):
        sent = list(sent.values())
    if isinstance(sent, Tensor | np.ndarray):
        sent = [sent]
    if not isinstance(sent, Iterable):
        raise ConfigError(
            f"audit: get gives a {type(sent).__name__}; legal: a mapping or a list of arrays"
        )
    return [_tensor(value) for value in sent]


def _tensor(value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach().cpu().clone()
    array = value.numpy() if hasattr(value, "numpy") else value  # Flower's Array
    try:
        return torch.from_numpy(np.array(array))
    except TypeError as error:
        raise ConfigError(f"audit: get gives a {type(value).__name__} among its arrays") from error


def _same(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


def _named(found: Sequence[Entry], kept: set[str]) -> tuple[str, str]:
    """The method that keeps exactly these entries, or none, and the nearest one."""
    names = dict.fromkeys([*_FIRST, *registry.names(fedbn.methods)])
    methods: dict[str, Method] = {n: registry.find(fedbn.methods, n, "method")() for n in names}
    # Without data, whose pass would tell, the last layer is the last one that is written down.
    last = [entry.name.rpartition(".")[0] for entry in found if entry.kind is Kind.WEIGHT][-1:]
    local = {}
    for name, method in methods.items():
        share = method.share.resolved(*last) if last else method.share
        local[name] = {entry.name for entry in replace(method, share=share).parts(found).local}
    nearest = min(local, key=lambda name: len(local[name] ^ kept))
    return (nearest if local[nearest] == kept else "none"), nearest
