"""A worker process: runs jobs of a run folder, one thread each, as its parent names them.

Started by `fedbn.experiments.crew`; reads a job a line from its standard input and writes events,
a line each. When its input ends, because the parent is gone, it ends too.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from queue import SimpleQueue
from typing import TextIO

from fedbn.errors import FedbnError, Interrupted
from fedbn.experiments.events import Event, Key
from fedbn.experiments.jobs import execute
from fedbn.experiments.loading import checked
from fedbn.experiments.plans import Planner
from fedbn.experiments.settings import jobs
from fedbn.runs.folder import RunFolder

STOP = "stop"


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
        os._exit(1)  # the parent is gone; every finished round is on disk


def main(path: str) -> None:
    """Serve until the parent ends."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    events = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)  # what a user's model prints must not mix with the events
    orders = Orders(sys.stdin)
    folder = RunFolder(path)
    known = {job.key: job for job in jobs(checked(folder.read_request(), str(folder.config)))}
    planner = Planner()

    def tell(event: Event) -> None:
        events.write(event.to_line())

    while True:
        key = orders.jobs.get()
        try:
            execute(known[key], planner, folder, tell, workers=1, stop=orders.stopping.is_set)
        except FedbnError as error:
            tell(Event("failed", key, text=str(error), exit_code=error.exit_code))
            if not isinstance(error, Interrupted):
                return


if __name__ == "__main__":
    sys.path.insert(0, str(Path.cwd()))
    main(sys.argv[1])
