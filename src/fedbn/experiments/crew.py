"""Jobs side by side: a few worker processes, each running whole jobs on one core.

Two jobs on one core each finish sooner than one job on two cores, because nothing waits for the
slowest client of a round. The bits are the same either way.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue

from fedbn import registry
from fedbn.errors import FedbnError, Interrupted
from fedbn.experiments.events import Event, Listener
from fedbn.experiments.settings import Job
from fedbn.experiments.worker import STOP
from fedbn.runs.folder import RunFolder

_LOOK_SECONDS = 0.2  # how often a request to stop is looked for while nothing happens


class Worker:
    """A worker process and the job it has in hand."""

    def __init__(self, folder: RunFolder, inbox: SimpleQueue[tuple[Worker, Event | None]]):
        self.job: Job | None = None
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "fedbn.experiments.worker", str(folder.path)),
                *registry.trusted(),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,  # the terminal's Ctrl-C goes to the parent alone
        )
        self._listener = threading.Thread(target=self._listen, args=(inbox,), daemon=True)
        self._listener.start()

    def give(self, job: Job) -> None:
        """Hand over a job."""
        self.job = job
        self._say(json.dumps(job.key))

    def ask_to_stop(self) -> None:
        """Ask for an end after the round in hand."""
        self._say(STOP)

    def end(self) -> None:
        """End the process at once, whatever it does."""
        self._process.kill()
        self._process.wait()
        self._listener.join()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()

    def status(self) -> int:
        """Wait for a process that closed its output, and give its exit status."""
        return self._process.wait()

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # its end arrives in the inbox

    def _listen(self, inbox: SimpleQueue[tuple[Worker, Event | None]]) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            inbox.put((self, Event.from_line(line)))
        inbox.put((self, None))


def run_side_by_side(
    jobs: Sequence[Job],
    folder: RunFolder,
    listener: Listener,
    count: int,
    stop: Callable[[], bool],
) -> None:
    """Run jobs on `count` worker processes; the first failure ends them all.

    Raises:
        FedbnError: What a job failed with, or that a worker process died.
        Interrupted: The stop was asked for; every worker has saved its round.
    """
    inbox: SimpleQueue[tuple[Worker, Event | None]] = SimpleQueue()
    workers = [Worker(folder, inbox) for _ in range(min(count, len(jobs)))]
    waiting = list(jobs)
    try:
        for worker in workers:
            worker.give(waiting.pop(0))
        _serve(workers, waiting, inbox, listener, stop)
    finally:
        for worker in workers:
            worker.end()


def _serve(
    workers: Sequence[Worker],
    waiting: list[Job],
    inbox: SimpleQueue[tuple[Worker, Event | None]],
    listener: Listener,
    stop: Callable[[], bool],
) -> None:
    stopping = False
    stopped = ""
    while any(worker.job for worker in workers):
        if stop() and not stopping:
            stopping = True
            for each in workers:
                each.ask_to_stop()
        try:
            worker, event = inbox.get(timeout=_LOOK_SECONDS)
        except Empty:
            continue
        if event is None:
            if worker.job is None:
                continue
            raise FedbnError(
                f"the worker process of {' '.join(map(str, worker.job.key))} died "
                f"(exit status {worker.status()}); finished rounds are saved"
            )
        if event.kind == "failed":
            if event.exit_code != Interrupted.exit_code:
                raise _error(event)
            stopped, worker.job = event.text, None
        else:
            listener(event)
        if event.kind == "done":
            worker.job = None
            if waiting and not stopping and not stop():
                worker.give(waiting.pop(0))
    if stopped or waiting:
        raise Interrupted(stopped or "stopped between two jobs")


def _error(event: Event) -> FedbnError:
    kinds = {kind.exit_code: kind for kind in _below(FedbnError)}
    name = " ".join(str(part) for part in event.job)
    return kinds.get(event.exit_code, FedbnError)(f"{name}: {event.text}")


def _below(kind: type[FedbnError]) -> list[type[FedbnError]]:
    """All error classes, the general after the special, so that the general one wins."""
    return [c for sub in kind.__subclasses__() for c in _below(sub)] + [kind]
