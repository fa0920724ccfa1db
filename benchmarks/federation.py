"""What a round over Flower costs beyond training: seconds, and bytes on the wire a method.

A federation of real processes on the loopback, TLS and keys, as `fedbn federation demo`. The bytes
that `fedbn inspect` counts stand beside those that were sent: `python -m benchmarks.federation`.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load

from fedbn.core.plan import Plan
from fedbn.core.state import entries
from fedbn.experiments.configuration import checked
from fedbn.flower import server_app
from fedbn.flower.federation_folder import FederationFolder
from fedbn.flower.internals_server import grid_of
from fedbn.flower.messaging import Limits, RoundCost
from fedbn.flower.server_app import Service, serve

METHODS = ("fedbn", "silobn", "fedavg", "fedprox", "singleset")
TITLES = (
    "method",
    "`fedbn inspect`, bytes",
    "down, bytes",
    "up, bytes",
    "BatchNorm, bytes",
    "s a round",
    "beyond training",
)
ROUNDS = 6
RAW: dict[str, Any] = {
    "seeds": [0],
    "training": {"rounds": ROUNDS, "local_epochs": 1},
    "data": {"name": "digits_mini"},
    "model": {"name": "small_cnn"},
}


class Tapped:
    """A grid that keeps every message's content."""

    def __init__(self, grid: Any):
        self._grid = grid
        self.contents: list[Any] = []

    def get_nodes(self) -> Any:
        """List the nodes."""
        return self._grid.get_nodes()

    def push_messages(self, messages: Iterable[Any]) -> Any:
        """Send, and keep a copy."""
        sent = list(messages)
        self.contents += [message.content for message in sent]
        return self._grid.push_messages(sent)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Any]:
        """Receive, and keep a copy."""
        found = list(self._grid.pull_messages(message_ids))
        self.contents += [message.content for message in found if message.has_content()]
        return found


def batchnorm_bytes(contents: Iterable[Any], plan: Plan) -> int:
    """Read the messages themselves and count what is BatchNorm's."""
    kinds = {entry.name: entry.kind for entry in entries(plan.initial_model)}
    states = (
        load(array.data)
        for content in contents
        for record in content.array_records.values()
        for array in record.values()
    )
    return sum(
        value.numel() * value.element_size()
        for state in states
        for name, value in state.items()
        if kinds[name].startswith("bn_")
    )


def row(folder: FederationFolder, method: str) -> str:
    """Run one method and say what its rounds cost; the first one makes models and is left out."""
    raw = {**RAW, "methods": [method]}
    costs: list[tuple[Plan, RoundCost]] = []
    place = server_app.run_folder(folder, method)
    service = Service(
        folder.read().id,
        lambda: server_app.expected_sites(folder, None),
        place,
        costs=lambda plan, cost: costs.append((plan, cost)),
        limits=Limits(wait=120, round=300),
    )
    with server_app.begun(place, raw), grid_of(folder) as grid:
        tapped = Tapped(grid)
        serve(tapped, checked(raw), service)
    plan, later = costs[0][0], [cost for _, cost in costs[1:]]
    counted = sum(entry.bytes for entry in plan.method.shared(entries(plan.initial_model)))
    cells: Mapping[str, str] = {
        "counted": f"{counted:,}",
        "down": f"{statistics.median(c.bytes_down for c in later) // len(server_app.SITES):,.0f}",
        "up": f"{statistics.median(c.bytes_up for c in later) // len(server_app.SITES):,.0f}",
        "BatchNorm": f"{batchnorm_bytes(tapped.contents, plan):,}",
        "seconds": f"{statistics.median(c.seconds for c in later):.2f}",
        "beyond": f"{statistics.median(c.beyond_training for c in later):.2f}",
    }
    return f"| {method} | " + " | ".join(cells.values()) + " |"


def main() -> None:
    print(f"| {' | '.join(TITLES)} |\n|---{'|---:' * (len(TITLES) - 1)}|", flush=True)
    with tempfile.TemporaryDirectory(prefix="fedbn-") as place:
        folder = server_app.make(Path(place) / "fed")
        with server_app.running(folder):
            for method in METHODS:
                print(row(folder, method), flush=True)


if __name__ == "__main__":
    main()
