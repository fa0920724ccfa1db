"""A listener that puts the messages of a run into its folder."""

from __future__ import annotations

from fedbn.experiments.jobs import Event
from fedbn.runs.folder import RunFolder
from fedbn.runs.messages import MessageStore


class RunLog:
    """Stores warnings in `warnings.jsonl`, and writes what happens to `run.log`.

    Nothing is written before the first event: the folder of a refused request stays empty.
    """

    def __init__(self, folder: RunFolder, checkpoint_every: int | str = 1):
        self._folder = folder
        self._every = checkpoint_every
        self._store: MessageStore | None = None

    def __call__(self, event: Event) -> None:
        """Write an event down; the numbers of rounds are in `metrics.jsonl`."""
        if event.kind in ("round", "earlier"):
            return
        if self._store is None:
            self._store = MessageStore(self._folder)
        method, setting, seed = event.job
        job = f"{method} seed {seed}" + ("" if setting == "default" else f" {setting}")
        if event.kind == "note":
            self._store.add(event.level, event.text, event.job, event.whole)
        elif event.kind == "begin":
            rounds = f"{event.round} of {event.rounds} rounds are done"
            self._store.log("info", f"{rounds}; {len(event.ahead)} jobs to run")
            every = self._every
            interval = "10 s or longer" if every == "auto" else f"{every} rounds"
            self._store.log("debug", f"checkpoint interval: {interval}")
        else:
            at = f"{event.kind} at round {event.round} of {event.rounds}"
            self._store.log("info", f"{job}: {at}{event.text and f': {event.text}'}")
