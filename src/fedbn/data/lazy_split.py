"""Samples that are read when they are needed, from any map-style Dataset.

torch's, Hugging Face's, MONAI's and torchvision's have `len` and `[index]`, and give `(x, y)` or a
dict with both. A split is a list of addresses in such data sets; nothing holds more than a few
batches. What a transform draws from a global generator (Python's, NumPy's or torch's) is seeded a
sample by (seed, client, round, pass, index), so that bits do not depend on who reads it.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from itertools import count, islice
from multiprocessing.reduction import ForkingPickler
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from fedbn.core.federation import Augment, not_finite, scaled, widened
from fedbn.core.randomness import number
from fedbn.errors import DataError, reason
from fedbn.text import one_line

Workers = Annotated[int, Field(ge=0, le=256)]
START = "fork" if sys.platform == "linux" else "spawn"
"""How worker processes begin: forked ones need no copy of the data sets."""
_X = ("image", "img", "x", "pixel_values", "input", "inputs", "features")
_Y = ("label", "labels", "y", "target", "targets")
_COMPARED = 64
_WATCH_SECONDS = 0.5
_LEGAL = f"(x, y), or a dict with one of {', '.join(_X)} and one of {', '.join(_Y)}"
_CPU = torch.device("cpu")
_one_at_a_time = threading.Lock()
"""Global generators are seeded for one sample at a time."""


@dataclass(frozen=True)
class Source:
    """A Dataset and what is known of it.

    Attributes:
        dataset: Has `len` and `[index]`.
        where: Whose it is, for messages.
        classes: The names of the classes, or of several targets.
        length: How many samples it had when it was opened.
        shape: The shape of its first sample.
        dtype: `uint8`, or float32.
        target: The target of its first sample, (1, ...).
    """

    dataset: Any
    where: str
    classes: tuple[str, ...]
    length: int
    shape: tuple[int, ...] = ()
    dtype: torch.dtype = torch.float32
    target: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))

    @staticmethod
    def of(dataset: Any, where: str, classes: Sequence[str]) -> Source:
        """Look at the first sample of a Dataset."""
        bare = Source(dataset, where, tuple(classes), len(dataset))
        if not len(dataset):
            return bare
        x, y = Loader([bare]).first()
        return replace(bare, shape=tuple(x.shape[1:]), dtype=x.dtype, target=y)

    def sample(self, index: int) -> tuple[Tensor, Tensor]:
        """Read one sample; what is wrong with it is one line."""
        if len(self.dataset) != self.length:
            raise DataError(f"{self.length} samples when it was opened, {len(self.dataset)} now")
        x, y = parts_of(self.dataset[index])
        if self.shape and (x.shape, x.dtype) != (self.shape, self.dtype):
            raise DataError(
                f"{tuple(x.shape)} of {x.dtype}, but the first sample is {self.shape} of "
                f"{self.dtype}; all must be alike"
            )
        for text in not_finite(x[None]):
            raise DataError(text.partition(" in ")[0] + " in it")
        return x, self._target(y)

    def _target(self, y: Any) -> Tensor:
        """A target as a model takes it; a name or a truth value is a place among the classes."""
        if np.ndim(y) == 0 and isinstance(value := np.asarray(y).item(), str | bool):
            if str(value) not in self.classes:
                raise DataError(f"label {value!r}; legal are {', '.join(self.classes)}")
            return torch.tensor(self.classes.index(str(value)))
        target = torch.as_tensor(y)
        if target.is_floating_point():
            for text in not_finite(target.reshape(1, -1)):
                raise DataError(f"{text.partition(' in ')[0]} in its target")
            return target.float().reshape(-1)
        if target.dim() == 0 and not 0 <= int(target) < len(self.classes):
            raise DataError(f"label {int(target)}; legal are 0 to {len(self.classes) - 1}")
        return (
            target if target.dim() and target.dtype in (torch.bool, torch.uint8) else target.long()
        )


def label_key(columns: Mapping[str, Any]) -> str | None:
    """The column of targets, where there is one."""
    return next((key for key in _Y if key in columns), None)


def parts_of(sample: Any) -> tuple[Tensor, Any]:
    """Take a sample apart: x as a tensor, `uint8` or float32, and its target as it is."""
    if isinstance(sample, Mapping):
        found = [next((sample[k] for k in keys if k in sample), None) for keys in (_X, _Y)]
        if any(part is None for part in found):
            raise DataError(f"a dict with {', '.join(map(str, sample))}; expected {_LEGAL}")
        x, y = found
    elif isinstance(sample, tuple | list) and len(sample) == 2:
        x, y = sample
    else:
        raise DataError(f"a {type(sample).__name__}; expected {_LEGAL}")
    return _tensor(x), y


def _tensor(x: Any) -> Tensor:
    picture = hasattr(x, "getbands")  # Pillow's
    tensor = x.detach() if isinstance(x, Tensor) else torch.from_numpy(np.array(x))
    if tensor.is_complex():
        raise DataError("complex numbers; legal are real ones")
    if picture:
        tensor = tensor[None] if tensor.dim() == 2 else tensor.permute(2, 0, 1)
    return tensor if tensor.dtype == torch.uint8 else tensor.float()


def told(error: Exception) -> str:
    """What an error says of a sample: our own line, or whose it is and what it says."""
    return str(error) if isinstance(error, DataError) else reason(error)


Address = tuple[int, int]
Batch = tuple[NDArray[Any], NDArray[Any]]


@dataclass(frozen=True)
class Fault:
    """What is wrong with a sample."""

    address: Address
    text: str


def read_batch(
    sources: Sequence[Source], addresses: Sequence[Address], seed: int, round_pass: int
) -> Batch | Fault:
    """Read some samples, each under a seed of its own; global generators stay as they are."""
    found: list[tuple[Tensor, Tensor]] = []
    python, numpy, torchs = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        for which, index in addresses:
            own = number(seed, "sample", round_pass, f"{which}\0{index}")
            random.seed(own)
            np.random.seed(own % 2**32)
            torch.default_generator.manual_seed(own)
            try:
                found.append(sources[which].sample(index))
            except Exception as error:
                return Fault((which, index), told(error))
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(torchs)
    x, y = zip(*found, strict=True)
    if odd := next((i for i, one in enumerate(y) if one.shape != y[0].shape), None):
        return Fault(addresses[odd], f"a target of {tuple(y[odd].shape)}, not {tuple(y[0].shape)}")
    return torch.stack(x).numpy(), torch.stack(y).numpy()


_sources: Sequence[Source] = ()


def _begin_worker(sources: Sequence[Source], parent: int) -> None:
    """Let a worker know the data sets, leave signals to its parent, and end with it."""
    global _sources
    _sources = sources
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_WATCH_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _read_in_worker(*job: Any) -> Batch | Fault:
    return read_batch(_sources, *job)


class Loader:
    """Reads batches of all data sets of a federation, here or ahead in worker processes.

    Args:
        sources: The data sets; an address is a place in this list and an index.
        workers: Processes; 0 reads where a batch is needed.
    """

    def __init__(self, sources: Sequence[Source], workers: int = 0):
        self.sources = tuple(sources)
        self.workers = workers
        self._pool: ProcessPoolExecutor | None = None
        if workers:
            self._pool = self._begun()

    def first(self) -> tuple[Tensor, Tensor]:
        """The first sample of the first data set, as a batch."""
        return next(self.batches([torch.zeros(1, 2, dtype=torch.int64)]))

    def batches(
        self, orders: Iterable[Tensor], seed: int = 0, per_pass: int = 0
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Read batches of addresses in their order, a few ahead where there are workers.

        Args:
            orders: Addresses, (n, 2), a batch.
            seed: Decides what transforms draw.
            per_pass: Batches of a pass over the data; 0 where there is one pass.
        """
        jobs = (
            ([(a, b) for a, b in order.tolist()], seed, number // per_pass if per_pass else 0)
            for number, order in zip(count(), orders, strict=False)
        )
        if self._pool is None:
            for job in jobs:
                with _one_at_a_time:
                    found = read_batch(self.sources, *job)
                yield self._tensors(found)
            return
        try:
            ahead = deque(self._submitted(job) for job in islice(jobs, self.workers + 1))
            while ahead:
                found = ahead.popleft().result()
                ahead.extend(self._submitted(job) for job in islice(jobs, 1))
                yield self._tensors(found)
        except BrokenProcessPool as error:
            raise DataError(
                f"{self.sources[0].where}: a worker process that reads data died (out of memory, "
                "or ended by the system); fewer data.workers may help"
            ) from error

    def _submitted(self, job: Any) -> Any:
        assert self._pool is not None
        return self._pool.submit(_read_in_worker, *job)

    def _tensors(self, found: Batch | Fault) -> tuple[Tensor, Tensor]:
        if isinstance(found, Fault):
            which, index = found.address
            raise DataError(f"{self.sources[which].where}, sample {index}: {one_line(found.text)}")
        x, y = found
        return torch.from_numpy(x), torch.from_numpy(y)

    def _begun(self) -> ProcessPoolExecutor:
        """Start the processes now: later, threads would be running."""
        for source in self.sources if START != "fork" else ():
            try:
                ForkingPickler.dumps(source.dataset)
            except Exception as error:
                raise DataError(
                    f"{source.where}: the {type(source.dataset).__name__} cannot be copied to a "
                    f"worker process ({reason(error)}); set data.workers = 0"
                ) from error
        context = multiprocessing.get_context(START)
        begin = (self.sources, os.getpid())
        pool = ProcessPoolExecutor(self.workers, context, _begin_worker, begin)
        try:
            pool.submit(os.getpid)
        except (AssertionError, OSError) as error:  # a daemon's child, too many processes
            raise DataError(
                f"data.workers = {self.workers}: no process can be started here "
                f"({one_line(error)}); set it to 0"
            ) from error
        return pool


@dataclass(frozen=True)
class LazySplit:
    """Addresses of samples, read a batch at a time; see `fedbn.core.federation.AnySplit`.

    Attributes:
        loader: Who reads.
        rows: An address a sample, (n, 2): which data set, and the index there.
        y: All targets, where they are known without reading; None otherwise.
        augment: A change of each training batch.
        groups: A whole number a sample; equal ones belong together.
        device: Where batches go.
    """

    loader: Loader
    rows: Tensor
    y: Tensor | None = None
    augment: Augment | None = None
    groups: Tensor | None = None
    device: torch.device = _CPU

    @staticmethod
    def of(
        loader: Loader, which: int, y: Tensor | None = None, groups: Tensor | None = None
    ) -> LazySplit:
        """All samples of a data set."""
        index = torch.arange(loader.sources[which].length)
        return LazySplit(
            loader, torch.stack([torch.full_like(index, which), index], 1), y, None, groups
        )

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return f"LazySplit({len(self)} samples of {self.shape}, {self.dtype})"

    @property
    def _first(self) -> Source:
        return self.loader.sources[int(self.rows[0, 0]) if len(self.rows) else 0]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return self._first.shape

    @property
    def dtype(self) -> torch.dtype:
        """The type of samples before they are scaled."""
        return self._first.dtype

    @property
    def target(self) -> Tensor:
        """One target, whose type and shape all have."""
        return self._first.target

    @property
    def source(self) -> object:
        """Equal for splits of the same samples."""
        return self.rows

    def raw(self, index: Tensor | slice) -> tuple[Tensor, Tensor]:
        """Read some samples, `uint8` as it is."""
        return next(self.loader.batches([self._rows(index)]))

    def batch(self, index: Tensor | slice) -> tuple[Tensor, Tensor]:
        """Read some samples, ready for a model."""
        return next(self.stream([index]))

    def stream(
        self, order: Iterable[Tensor | slice], seed: int = 0, per_pass: int = 0
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Read batches in an order; all of it is drawn first, so no draw depends on workers."""
        rows = [self._rows(index) for index in order]
        for x, y in self.loader.batches(rows, seed, per_pass):
            yield scaled(x.to(self.device)), widened(y.to(self.device))

    def take(self, index: Tensor) -> LazySplit:
        """Keep some samples."""
        rows = self.rows[index]
        y, groups = (None if each is None else each[index] for each in (self.y, self.groups))
        return replace(self, rows=rows, y=y, groups=groups)

    def to(self, device: torch.device | str) -> LazySplit:
        """Let batches go to a device."""
        return replace(self, device=torch.device(device))

    def plain(self) -> LazySplit:
        """Without augmentation."""
        return replace(self, augment=None)

    def joined(self, others: Sequence[Any], groups: Tensor | None) -> LazySplit:
        """Add the samples of others behind these."""
        parts = [self, *others]
        known = [part.y for part in parts if part.y is not None]
        y = torch.cat(known) if len(known) == len(parts) else None
        return replace(self, rows=torch.cat([part.rows for part in parts]), y=y, groups=groups)

    def content(self) -> Iterator[bytes]:
        """What tells whether the data changed: length, a Dataset's own mark, 64 fixed samples."""
        yield f"{len(self)}{self.shape}{self.dtype}".encode()
        for which in self.rows[:, 0].unique().tolist():
            dataset = self.loader.sources[which].dataset
            for name in ("_fingerprint", "fingerprint", "version", "__version__"):
                if isinstance(mark := getattr(dataset, name, None), str | int):
                    yield f"{name}{mark}".encode()
        x, y = self.raw(self._sampled())
        yield from (part.numpy().tobytes() for part in (x, y))
        if self.groups is not None:
            yield self.groups.numpy().tobytes()

    def extent(self) -> tuple[float, float]:
        """The least and the largest value of 64 fixed samples."""
        x, _ = self.raw(self._sampled())
        return float(x.min()), float(x.max())

    def _sampled(self) -> Tensor:
        places = torch.arange(_COMPARED) * len(self) // _COMPARED
        return torch.tensor(sorted(set(places.tolist())))

    def _rows(self, index: Tensor | slice) -> Tensor:
        return self.rows[index if isinstance(index, slice) else index.cpu()]
