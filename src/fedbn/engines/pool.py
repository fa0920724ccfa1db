"""A few threads, each with something of its own to work with, that items pass through in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from queue import SimpleQueue
from typing import Generic, TypeVar

import torch

S = TypeVar("S")
T = TypeVar("T")
R = TypeVar("R")


class Pool(Generic[S]):
    """As many threads as there are tools; each task takes a tool and puts it back.

    Examples:
        >>> with Pool(["hammer", "saw"]) as pool:
        ...     list(pool.ordered(lambda tool, item: item * 2, [1, 2, 3]))
        [2, 4, 6]
    """

    def __init__(self, tools: Sequence[S]):
        self._tools: SimpleQueue[S] = SimpleQueue()
        for tool in tools:
            self._tools.put(tool)
        self._count = len(tools)
        self._threads = ThreadPoolExecutor(
            self._count, initializer=torch.set_num_threads, initargs=(1,)
        )

    def __enter__(self) -> Pool[S]:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(cancel_futures=True)

    def ordered(self, task: Callable[[S, T], R], items: Iterable[T]) -> Iterator[R]:
        """Do the task for all items, at most a few ahead, and yield the results in their order."""
        left = iter(items)
        # Two results a thread may wait for an earlier one; more would cost a model's memory each.
        waiting = deque(self._submit(task, item) for item in islice(left, 2 * self._count))
        while waiting:
            result = waiting.popleft().result()
            waiting.extend(self._submit(task, item) for item in islice(left, 1))
            yield result

    def _submit(self, task: Callable[[S, T], R], item: T) -> Future[R]:
        def work() -> R:
            tool = self._tools.get()
            try:
                return task(tool, item)
            finally:
                self._tools.put(tool)

        return self._threads.submit(work)
