"""Splits that are read when they are needed, here or ahead in worker processes.

A split is a list of addresses in Datasets (`dataset_samples`); nothing holds more than a few
batches.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from itertools import islice
from multiprocessing.reduction import ForkingPickler
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from fedbn.core.federation import Augment, scaled, widened
from fedbn.data.dataset_samples import Batch, Source, read_batch
from fedbn.errors import DataError, reason
from fedbn.text import one_line

Workers = Annotated[int, Field(ge=0, le=256)]
START = "fork" if sys.platform == "linux" else "spawn"
"""How worker processes begin: forked ones need no copy of the data sets."""
_COMPARED = 64
_WATCH_SECONDS = 0.5
_CPU = torch.device("cpu")
_one_at_a_time = threading.Lock()
"""Global generators are seeded for one sample at a time."""
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


def _read_in_worker(*job: Any) -> Batch:
    return read_batch(_sources, *job)


class Loader:
    """Reads batches of all data sets of a federation, here or ahead in worker processes.

    An address is a place in `sources` and an index there.
    """

    def __init__(self, sources: Sequence[Source], workers: int = 0):
        self.sources = tuple(sources)
        self.workers = workers
        self._pool = self._begun() if workers else None

    def batches(
        self, orders: Iterable[Tensor], seed: int = 0, per_pass: int = 0
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Read batches of addresses, (n, 2), in their order, a few ahead where there are workers.

        The seed decides what transforms draw; `per_pass` says how many batches a pass over the
        data has, 0 where there is one pass.
        """
        jobs = (
            ([(a, b) for a, b in order.tolist()], seed, at // per_pass if per_pass else 0)
            for at, order in enumerate(orders)
        )
        for found in self._here(jobs) if self._pool is None else self._ahead(self._pool, jobs):
            yield torch.from_numpy(found[0]), torch.from_numpy(found[1])

    def _here(self, jobs: Iterator[Any]) -> Iterator[Batch]:
        for job in jobs:
            with _one_at_a_time:
                found = read_batch(self.sources, *job)
            yield found

    def _ahead(self, pool: ProcessPoolExecutor, jobs: Iterator[Any]) -> Iterator[Batch]:
        waiting: deque[Future[Batch]] = deque()
        try:
            for job in islice(jobs, self.workers + 1):
                waiting.append(pool.submit(_read_in_worker, *job))
            while waiting:
                found = waiting.popleft().result()
                waiting.extend(pool.submit(_read_in_worker, *job) for job in islice(jobs, 1))
                yield found
        except BrokenProcessPool as error:
            raise DataError(
                f"{self.sources[0].where}: a worker process that reads data died (out of memory, "
                "or ended by the system); fewer data.workers may help"
            ) from error

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

    `rows` has an address a sample, (n, 2): which data set, and the index there. `y` has all targets
    where they are known without reading.
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
        rows = torch.stack([torch.full_like(index, which), index], 1)
        return LazySplit(loader, rows, y, groups=groups)

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
        for x, y in self.loader.batches([self._rows(index) for index in order], seed, per_pass):
            yield scaled(x.to(self.device)), widened(y.to(self.device))

    def take(self, index: Tensor) -> LazySplit:
        """Keep some samples."""
        y, groups = (None if each is None else each[index] for each in (self.y, self.groups))
        return replace(self, rows=self.rows[index], y=y, groups=groups)

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
        places: Tensor = (torch.arange(_COMPARED) * len(self) // _COMPARED).unique()
        return places

    def _rows(self, index: Tensor | slice) -> Tensor:
        return self.rows[index if isinstance(index, slice) else index.cpu()]
