"""What the server writes down of a job, and how it goes on from there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from safetensors.torch import save as to_bytes

from fedbn.core.aggregators import Mean, Weighted
from fedbn.core.packing import Pack
from fedbn.core.plan import Plan
from fedbn.core.rounds import Record, RunState
from fedbn.engines.flower.attendance import Known
from fedbn.engines.flower.cost import RoundCost
from fedbn.runs import checkpoints, metrics
from fedbn.runs.files import write_atomically

# The numbers that a round gives itself; its scores follow with the answers of the next one.
_OWN = ("training_loss", "refused")


class Journal:
    """The files of one job at the server."""

    def __init__(self, place: Path):
        self._place = place
        self._metrics = place / "metrics.jsonl"
        self._costs = place / "rounds.jsonl"

    def resume(self, like: RunState) -> tuple[RunState | None, Known, list[str]]:
        """Find the state to go on from, what it knows of sites, and what was damaged."""
        state, damaged = checkpoints.newest(self._place, like)
        if state is None:
            return None, Known(), damaged
        return state, Known.from_facts(state.round, self._facts(state.round)), damaged

    def finished(self, rounds: int) -> bool:
        """Tell whether all rounds are done and the last one is scored."""
        return checkpoints.whole_round(self._place) == rounds and self.scored(rounds)

    def round_done(
        self,
        plan: Plan,
        state: RunState,
        records: Sequence[Record],
        cost: RoundCost,
        known: Known,
    ) -> None:
        """Write a round down: its numbers first, then the state that makes it count."""
        self.add(records)
        metrics.append(self._costs, (json.dumps(asdict(cost)) + "\n").encode())
        facts = {
            "method": plan.method.name,
            "setting": plan.setting,
            "seed": plan.seed,
            **known.to_facts(),
        }
        checkpoints.save(self._place, state, facts)

    def add(self, records: Sequence[Record]) -> None:
        """Append numbers."""
        self._place.mkdir(parents=True, exist_ok=True)
        metrics.append(self._metrics, "".join(map(metrics.line, records)).encode())

    def scored(self, round: int) -> bool:
        """Tell whether the scores of a round are there."""
        found = metrics.read(self._metrics)
        return any(r["round"] == round and r["metric"] not in _OWN for r in found)

    def release(self, packs: Mapping[str, Pack]) -> Path:
        """Write the mean of the BatchNorm affine that sites gave away."""
        updates = (Weighted(pack, 1.0) for pack in packs.values())
        mean = Mean().combine(updates, next(iter(packs.values())))
        file = self._place / "released-affine.safetensors"
        write_atomically(file, to_bytes(mean.state))
        return file

    def _facts(self, round: int) -> dict[str, Any]:
        return checkpoints.read_manifest(dict(checkpoints.rounds(self._place))[round])

    def trim(self) -> None:
        """Drop numbers behind the checkpoint: they come again, the scores of its round too."""
        done = checkpoints.whole_round(self._place)
        metrics.keep_until(self._costs, done, TypeAdapter(RoundCost))
        metrics.keep_until(self._metrics, done)
        kept = [
            record
            for record in metrics.read(self._metrics)
            if record["round"] < done or record["metric"] in _OWN
        ]
        if self._metrics.exists():
            text = "".join(metrics.line(Record(**record)) for record in kept)
            write_atomically(self._metrics, text.encode())
