"""Passes what a run tells on to the progress view and, with `--log`, to trackers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedbn.cli.progress import Progress
from fedbn.experiments.jobs import Event, Key
from fedbn.runs.folder import RunFolder
from fedbn.tracking import Make, Tracking


class Following:
    """A listener; trackers are made when the run begins, once its configuration is on disk."""

    def __init__(self, progress: Progress, make: Mapping[str, Make], folder: RunFolder):
        self._progress = progress
        self._make = make
        self._folder = folder
        self._tracking: Tracking | None = None
        self.jobs: Sequence[Key] = ()

    def __call__(self, event: Event) -> None:
        """Hear an event."""
        self._progress(event)
        if event.kind == "begin" and self._make:
            self._tracking = self._begun(event.job)
        elif self._tracking and event.kind == "round":
            self._tracking.round_done(event.job)
        elif self._tracking and event.kind == "done":
            self._tracking.job_done(event.job)

    def finish(self) -> None:
        """All jobs are done: tell trackers of those that were done before."""
        if self._tracking:
            self._tracking.finish()

    def close(self) -> None:
        """The run ended, one way or another."""
        if self._tracking:
            self._tracking.close()
        self._progress.close()

    def _begun(self, job: Key) -> Tracking:
        def tell(text: str) -> None:
            again = f"`fedbn resume {self._folder.path} --log ...` logs the whole run later"
            self._progress(Event("note", job, text=f"{text}; {again}", whole=True))

        config = self._folder.read_request()
        return Tracking(self._make, self._folder, config, self.jobs, tell)
