"""A site's local part, kept by the site: it survives kills, restarts and messages done twice.

Flower forgets a client's state when its node restarts and when a new run begins, so the site has
its own: one folder for federation, site, run, job and model, in it the local part after every
round that may still be asked for, written whole and with checksums.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Literal, Protocol

from flwr.app import ArrayRecord, RecordDict

from fedbn.core.packing import Layout, Pack
from fedbn.core.rounds import RunState
from fedbn.engines.flower.codec import from_record, to_record
from fedbn.engines.flower.wire import Order
from fedbn.errors import DamagedRun
from fedbn.runs import checkpoints
from fedbn.runs.folder import RunFolder

Source = Literal["fresh", "state", "disk"]


class Store(Protocol):
    """Where a site's local part lies between rounds."""

    source: Source

    def load(self, round: int, layout: Layout) -> Pack:
        """Read the local part after a round.

        Raises:
            DamagedRun: It is not there, or not whole.
        """

    def save(self, round: int, since: int, local: Pack) -> None:
        """Keep the local part after a round; `since` is the round that must stay beside it."""


class DiskStore:
    """The local part on the site's own disk."""

    source: Source = "disk"

    def __init__(self, root: Path, site: str, order: Order):
        run = RunFolder(root / order.federation / site / order.run)
        self._place = run.job(order.method, order.setting, order.seed) / order.schema_hash[:16]
        self._site = site

    def load(self, round: int, layout: Layout) -> Pack:
        """Read and verify one round."""
        known = dict(checkpoints.rounds(self._place))
        if round not in known:
            held = ", ".join(map(str, sorted(known))) or "none"
            raise DamagedRun(
                f"{self._site}: BatchNorm of round {round} is not in {self._place} "
                f"(rounds there: {held}); a silent new start would change the result. Bring the "
                "folder back, or let the server begin a new run"
            )
        like = RunState(round, _nothing(), {self._site: layout.zeros()})
        return checkpoints.load(known[round], like).local[self._site]

    def save(self, round: int, since: int, local: Pack) -> None:
        """Write the round; keep it, the accepted one, and the one before that."""
        self._place.mkdir(parents=True, exist_ok=True)
        state = RunState(round, _nothing(), {self._site: local})
        checkpoints.save(self._place, state, {"since": since}, keep=None)
        known = checkpoints.rounds(self._place)
        before = [number for number, _ in known if number < since][:1]
        for number, path in known:
            if number not in (round, since, *before):
                shutil.rmtree(path)


class StateStore:
    """The local part in Flower's own memory, for simulations: gone with the process."""

    source: Source = "state"

    def __init__(self, state: RecordDict, order: Order):
        self._state = state
        job = f"{order.run}/{order.method}/{order.setting}/{order.seed}/{order.schema_hash[:16]}"
        self._prefix = f"local/{job}/"

    def load(self, round: int, layout: Layout) -> Pack:
        """Read one round."""
        record = self._state.array_records.get(f"{self._prefix}{round}")
        if record is None:
            raise DamagedRun(
                f"BatchNorm of round {round} is not in Flower's memory: the node was restarted. "
                "Give the site a folder (`state-dir` in its node configuration) to survive that"
            )
        return from_record(record, layout)

    def save(self, round: int, since: int, local: Pack) -> None:
        """Keep the round and the accepted one."""
        kept: dict[str, ArrayRecord] = {f"{self._prefix}{round}": to_record(local)}
        if before := self._state.array_records.get(f"{self._prefix}{since}"):
            kept.setdefault(f"{self._prefix}{since}", before)
        for name in [n for n in self._state.array_records if n.startswith(self._prefix)]:
            del self._state[name]
        for name, record in kept.items():
            self._state[name] = record


def _nothing() -> Pack:
    return Layout(()).zeros()
