"""Jobs side by side: a few worker processes, each running whole jobs on its share of the cores.

Two jobs on one core each finish sooner than one job on two cores, because nothing waits for the
slowest client of a round. The bits are the same either way. A worker reads a job a line from its
standard input and writes events, a line each; when its input ends, because the parent is gone, it
ends too.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from os import _exit
from pathlib import Path
from queue import Empty, SimpleQueue

from fedbn import registry
from fedbn.core.user_code import held_exits
from fedbn.data.own_pictures import free_memory
from fedbn.errors import FedbnError, Interrupted, unforeseen
from fedbn.experiments.configuration import held_experiment
from fedbn.experiments.jobs import Event, Job, Key, Listener, jobs
from fedbn.experiments.planner import Planner
from fedbn.fast.allocator import keep_freed_memory
from fedbn.runs.folder import RunFolder

STOP = "stop"
log = logging.getLogger("fedbn")


def hear_orders(stopping: threading.Event, save: Callable[[], None]) -> SimpleQueue[Key]:
    """Read what the parent says in a thread of its own; gives the jobs that it names.

    Where it is gone, or wants an end at once, the last rounds are saved and the process ends.
    """
    jobs: SimpleQueue[Key] = SimpleQueue()

    def read() -> None:
        for line in sys.stdin:
            if line.strip() == STOP:
                stopping.set()
            else:
                method, setting, seed = json.loads(line)
                jobs.put((method, setting, seed))
        with suppress(Exception):  # the disk may be full, and nobody hears it
            save()
        _exit(1)

    threading.Thread(target=read, daemon=True).start()
    return jobs


def affordable(count: int) -> int:
    """How many worker processes memory has room for: each takes what this one has for itself.

    Where the system does not tell, as many as were asked for; one where there is room for none.
    """
    try:
        _, resident, shared, *_ = map(int, Path("/proc/self/statm").read_text().split())
    except (OSError, ValueError):
        return count
    room = free_memory() / (os.sysconf("SC_PAGE_SIZE") * (resident - shared))
    return max(1, int(min(count, room)))


def main(path: str, threads: int, data: int, grants: str) -> None:
    """Serve until the parent ends; only what it may import is imported, whatever the folder says.

    `data` is where the data is that all workers share, below 0 where each reads its own.
    """
    from fedbn.experiments.runner import Run, embedded_job, execute

    registry.take_grants(grants)
    if "FEDBN_DEBUG" in os.environ:
        logging.basicConfig(level=logging.DEBUG)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    events = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)  # what a user's model prints must not mix with the events
    stopping = threading.Event()
    folder = RunFolder(path)
    known: dict[Key, Job] = {}

    def tell(event: Event) -> None:
        events.write(event.to_line())

    planner = Planner()
    maker = partial(embedded_job, planner=planner, workers=threads)
    run = Run(folder, maker, tell, stopping.is_set)
    orders = hear_orders(stopping, run.save)
    while True:
        key = orders.get()
        try:
            if not known:
                known = {job.key: job for job in jobs(held_experiment(folder))}
                if data >= 0:
                    planner.take(data, [*known.values()])
            with own_process():
                execute(known[key], run)
        except BaseException as error:
            if isinstance(error, FedbnError):
                tell(Event("failed", key, text=str(error), exit_code=error.exit_code))
            else:
                log.debug("not foreseen", exc_info=error)
                code = FedbnError.exit_code
                tell(Event("failed", key, text=unforeseen(error), exit_code=code))
            if not isinstance(error, Interrupted):
                _exit(1)  # not by the interpreter's end, which waits for who reads the orders


@contextmanager
def own_process() -> Iterator[None]:
    """Keep freed memory and hold what would end the process: only where it exists to train."""
    keep_freed_memory()
    with held_exits():
        yield


_SAVE_SECONDS = 60.0  # for a worker's last checkpoint
_LOOK_SECONDS = 0.2  # how often a request to stop is looked for while nothing happens


class Worker:
    """A worker process and the job it has in hand."""

    def __init__(
        self,
        folder: RunFolder,
        threads: int,
        data: int | None,
        inbox: SimpleQueue[tuple[Worker, Event | None]],
    ):
        self.job: Job | None = None
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "fedbn.experiments.process_pool", str(folder.path)),
                *(str(threads), str(-1 if data is None else data), registry.grants()),
            ],
            pass_fds=[shared for shared in (data, folder.held) if shared is not None],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,  # the terminal's Ctrl-C goes to the parent alone
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._orders, self._events = self._process.stdin, self._process.stdout
        self._listener = threading.Thread(target=self._listen, args=(inbox,), daemon=True)
        self._listener.start()

    def give(self, job: Job) -> None:
        """Hand over a job."""
        self.job = job
        self.say(json.dumps(job.key))

    def end(self) -> None:
        """End the process, which puts its last finished round on disk, whatever else it does."""
        with suppress(BrokenPipeError):
            self._orders.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_SAVE_SECONDS)
        self._process.kill()
        self._process.wait()
        self._listener.join()
        self._events.close()

    def status(self) -> int:
        """Wait for a process that closed its output, and give its exit status."""
        return self._process.wait()

    def say(self, line: str) -> None:
        """Tell the process something, if it still hears."""
        with suppress(BrokenPipeError):  # its end arrives in the inbox
            self._orders.write(line + "\n")
            self._orders.flush()

    def _listen(self, inbox: SimpleQueue[tuple[Worker, Event | None]]) -> None:
        for line in self._events:
            inbox.put((self, Event.from_line(line)))
        inbox.put((self, None))


def run_side_by_side(
    jobs: Sequence[Job],
    folder: RunFolder,
    listener: Listener,
    processes: Sequence[int],
    stop: Callable[[], bool],
    data: int | None = None,
) -> None:
    """Run jobs on worker processes of so many cores each; the first failure ends them all.

    `data` is the descriptor of the data that they share, if any.
    """
    inbox: SimpleQueue[tuple[Worker, Event | None]] = SimpleQueue()
    workers = [Worker(folder, cores, data, inbox) for cores in processes]
    waiting, stopping, stopped = list(jobs), False, ""
    try:
        for worker in workers:
            worker.give(waiting.pop(0))
        while any(worker.job for worker in workers):
            if stop() and not stopping:
                stopping = True
                for each in workers:
                    each.say(STOP)  # after the round in hand
            try:
                worker, event = inbox.get(timeout=_LOOK_SECONDS)
            except Empty:
                continue
            if event is None:
                if worker.job is None:
                    continue
                raise FedbnError(
                    f"the worker process of {' '.join(map(str, worker.job.key))} died "
                    f"(exit status {worker.status()}); saved rounds are there"
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
    finally:
        for worker in workers:
            worker.end()
    if stopped or waiting:
        raise Interrupted(stopped or "stopped between two jobs")


def _error(event: Event) -> FedbnError:
    # The general one last: some of its kinds have its code too.
    ordered: list[type[FedbnError]] = [*FedbnError.__subclasses__(), FedbnError]
    kinds = {kind.exit_code: kind for kind in ordered}
    return kinds.get(event.exit_code, FedbnError)(f"{' '.join(map(str, event.job))}: {event.text}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
