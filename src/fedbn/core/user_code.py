"""Code that is not ours, a user's model or loss: it may fail, and it must not end the process.

What a pass does beside computing: draw from the process's generators, keep things in Python.

Neither is in a `state_dict`. Both are noticed by comparing what was there before and after a pass,
so that the seed decides a client's result, and not who trained before it or beside it.
"""

from __future__ import annotations

import copy
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from fedbn.core.federation import AnySplit, Client
from fedbn.core.randomness import drawn
from fedbn.core.state import unwrap
from fedbn.errors import StopNow


@contextmanager
def contained() -> Iterator[None]:
    """Turn what would end the process (`sys.exit`, any `BaseException`) into an error of the code.

    Examples:
        >>> with contained():
        ...     raise SystemExit(0)
        Traceback (most recent call last):
        RuntimeError: it asks for the end of the process: SystemExit(0)
    """
    try:
        yield
    except Exception:
        raise
    except BaseException as error:
        # Ctrl-C raises in the main thread alone, and where nobody else hears it.
        main = threading.current_thread() is threading.main_thread()
        ours = main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if isinstance(error, StopNow) or (isinstance(error, KeyboardInterrupt) and ours):
            raise
        raise RuntimeError(f"it asks for the end of the process: {error!r}") from error


@contextmanager
def held_exits() -> Iterator[None]:
    """Let `os._exit` raise as `sys.exit` does, in this process; for processes that are our own."""
    end, process = os._exit, os.getpid()

    def held(status: int) -> NoReturn:
        if os.getpid() != process:  # a forked child has to end itself so
            end(status)
        raise SystemExit(status)

    os._exit = held
    try:
        yield
    finally:
        os._exit = end


_SAMPLES = 8
_TORCHS = frozenset(vars(nn.Module()))
_PLAIN = (bool, int, float, str, bytes, type(None))
_ABSENT = object()


@dataclass(frozen=True)
class Habits:
    """What was noticed."""

    draws: tuple[str, ...] = ()  # whose generators are drawn from: torch's, Python's, NumPy's
    # the Python attributes of modules that a pass changes, by their path
    keeps: tuple[str, ...] = ()
    scoring: bool = False  # whether a pass in evaluation mode draws or changes anything
    repeats: bool = True  # whether two passes from one seed give the same

    @property
    def notes(self) -> list[str]:
        """What a user should hear."""
        said = {
            f"random numbers come from {', '.join(self.draws)} global generator (as dropout's do): "
            "one client after another, each from a seed of its own": self.draws,
            f"the model changes its Python attributes {', '.join(self.keeps)}: each client begins "
            "each round with their first values; only a buffer would be kept": self.keeps,
            "two passes from one seed differ: the model or the augmentation draws from or counts "
            "in something of its own, so this run cannot be repeated": not self.repeats,
        }
        return [text for text, noticed in said.items() if noticed]


NONE = Habits()


def habits(model: nn.Module, clients: Sequence[Client]) -> Habits:
    """Watch a pass of a model in each mode, and the clients' augmentation, on a few samples.

    Examples:
        >>> from fedbn.core.federation import Split
        >>> data = Split(torch.zeros(2, 2), torch.zeros(2, dtype=torch.int64))
        >>> habits(nn.Dropout(), [Client("a", "a", data, {})]).draws
        ("torch's",)
    """
    augmented = {id(c.train.augment): c.train for c in clients if c.train.augment}
    training, scoring = (_watched(unwrap(model), clients[0].train, mode) for mode in (True, False))
    every = (training, scoring, *(_compared(partial(_batch, data)) for data in augmented.values()))
    return Habits(
        tuple(dict.fromkeys(name for one in every for name in one.draws)),
        tuple(dict.fromkeys((*training.keeps, *scoring.keeps))),
        scoring=scoring.scoring or bool(scoring.draws or scoring.keeps),
        repeats=all(one.repeats for one in every),
    )


class Attributes:
    """Python attributes of a model's modules, to be put back as they are now.

    Plain values are, and what a pass was seen to change.
    """

    def __init__(self, model: nn.Module, changing: Iterable[str] = ()):
        plain = (name for name, value in _attributes(model).items() if type(value) in _PLAIN)
        self._known = _known(model)
        self._kept = []
        for path in dict.fromkeys((*plain, *changing)):
            module, _, name = path.rpartition(".")
            owner = vars(model.get_submodule(module))
            self._kept.append((owner, name, owner.get(name, _ABSENT)))
        self.restore()

    def restore(self) -> None:
        """Put them back; what refers to the model's own modules and tensors goes on doing so."""
        memo = dict(self._known)
        for owner, name, value in self._kept:
            if value is not _ABSENT:
                owner[name] = copy.deepcopy(value, memo)
            else:
                owner.pop(name, None)


def _watched(origin: nn.Module, data: AnySplit, training: bool) -> Habits:
    """Watch passes of fresh copies of a model."""
    probe, before = origin, {}

    def run() -> Tensor:
        nonlocal probe, before
        probe = copy.deepcopy(origin).train(training)
        before = _contents(probe)
        outputs: Tensor = probe(_batch(data.plain()))
        return outputs

    found, after = _compared(run), _contents(probe)
    keeps = [name for name in before | after if before.get(name) != after.get(name)]
    old, new = origin.state_dict(), probe.state_dict()
    moved = not training and any(not _equal(old[name], new.get(name)) for name in old)
    return replace(found, keeps=tuple(keeps), scoring=moved)


def _compared(run: Callable[[], Tensor]) -> Habits:
    try:
        with contained(), torch.no_grad():
            (first, draws), (second, _) = drawn(run), drawn(run)
    except Exception:
        return NONE  # it will fail again in training, where the client is named
    return Habits(draws, repeats=_equal(first, second))


def _batch(data: AnySplit) -> Tensor:
    x = data.batch(torch.arange(min(_SAMPLES, len(data))))[0].cpu()
    return data.augment(x, torch.Generator().manual_seed(0)) if data.augment else x


def _equal(a: object, b: object) -> bool:
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return type(a) is type(b)
    return torch.equal(a.nan_to_num(), b.nan_to_num())


def _attributes(model: nn.Module) -> dict[str, Any]:
    """What modules hold beside what torch keeps for them, by path."""
    return {
        f"{path}.{name}" if path else name: value
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if name not in _TORCHS
    }


def _known(model: nn.Module) -> dict[int, Any]:
    return {id(o): o for o in (*model.modules(), *model.parameters(), *model.buffers())}


def _contents(model: nn.Module) -> dict[str, object]:
    """All attributes in a form that can be compared; what cannot be taken apart is left out."""
    known, found = _known(model), {}
    for name, value in _attributes(model).items():
        with suppress(Exception):
            found[name] = _content(value, dict(known))
    return found


def _content(value: Any, seen: dict[int, Any]) -> object:
    """Take a value apart, as copying does, down to plain ones; what was seen before is a number."""
    if type(value) in _PLAIN:
        return value
    if hasattr(value, "__qualname__"):  # functions and classes
        return value.__qualname__
    if id(value) in seen:
        return [*seen].index(id(value))
    seen[id(value)] = value
    if isinstance(value, Tensor):
        return value.detach().reshape(-1).view(torch.uint8).numpy().tobytes()
    if isinstance(value, Mapping):
        parts: Iterable[Any] = [part for item in value.items() for part in item]
    else:
        parts = value if isinstance(value, Sequence | Set) else value.__reduce_ex__(4)
    return [_content(part, seen) for part in parts]
