"""A worker process: runs jobs of a run folder, one thread each, as its parent names them.

Started by `fedbn.experiments.crew`; reads a job a line from its standard input and writes events,
a line each. When its input ends, because the parent is gone, it ends too.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from os import _exit  # the real one, whatever stands in its place while a job runs
from queue import SimpleQueue
from typing import TextIO

from fedbn import registry
from fedbn.core.foreign import held_exits
from fedbn.engines.memory import keep_freed_memory
from fedbn.errors import FedbnError, Interrupted, unforeseen
from fedbn.experiments.events import Event, Key
from fedbn.experiments.loading import held_experiment
from fedbn.experiments.plans import Planner
from fedbn.experiments.settings import Job, jobs
from fedbn.runs.folder import RunFolder

STOP = "stop"
log = logging.getLogger("fedbn")


class Orders:
    """What the parent says, read in a thread of its own."""

    def __init__(self, source: TextIO):
        self.jobs: SimpleQueue[Key] = SimpleQueue()
        self.stopping = threading.Event()
        self._source = source
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self._source:
            if line.strip() == STOP:
                self.stopping.set()
            else:
                method, setting, seed = json.loads(line)
                self.jobs.put((method, setting, seed))
        _exit(1)  # the parent is gone; every finished round is on disk


def main(path: str, trust: Sequence[str]) -> None:
    """Serve until the parent ends.

    Args:
        path: The run folder.
        trust: The modules that the parent trusts; what the folder says of that does not count.
    """
    from fedbn.experiments.jobs import execute

    registry.trust(trust)
    if "FEDBN_DEBUG" in os.environ:
        logging.basicConfig(level=logging.DEBUG)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    events = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)  # what a user's model prints must not mix with the events
    keep_freed_memory()
    orders = Orders(sys.stdin)
    folder, planner = RunFolder(path), Planner()
    known: dict[Key, Job] = {}

    def tell(event: Event) -> None:
        events.write(event.to_line())

    while True:
        key = orders.jobs.get()
        try:
            known = known or _jobs(folder)
            with held_exits():
                execute(known[key], planner, folder, tell, workers=1, stop=orders.stopping.is_set)
        except BaseException as error:
            tell(_failure(key, error))
            if not isinstance(error, Interrupted):
                _exit(1)  # not by the interpreter's end, which waits for who reads the orders


def _jobs(folder: RunFolder) -> dict[Key, Job]:
    return {job.key: job for job in jobs(held_experiment(folder))}


def _failure(key: Key, error: BaseException) -> Event:
    if isinstance(error, FedbnError):
        return Event("failed", key, text=str(error), exit_code=error.exit_code)
    log.debug("not foreseen", exc_info=error)
    return Event("failed", key, text=unforeseen(error), exit_code=FedbnError.exit_code)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
