"""One real federation: Flower's server, two sites in processes of their own, TLS and keys."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("flwr", reason="flwr is not installed")

from flower_bench import SITES, digits, in_one_process
from safetensors.torch import load

from fedbn.core.rounds import initial_state
from fedbn.core.state import entries
from fedbn.experiments.configuration import checked
from fedbn.experiments.jobs import jobs
from fedbn.flower import server_app
from fedbn.flower.internals_server import grid_of
from fedbn.flower.messaging import Limits
from fedbn.flower.server_app import Service, serve
from fedbn.runs import checkpoints, metrics

pytestmark = [
    pytest.mark.federation,
    pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning"),
]
METHODS = ["fedbn", "fedavg", "fedprox", "silobn", "fedbn+scaffold"]
RAW = {
    "evaluation": {"final_statistics": []},  # sites score with running statistics alone
    "methods": METHODS,
    "seeds": [0],
    "training": {"rounds": 2, "local_steps": 3},
    "data": {"name": "digits_mini"},
    "model": {"name": "small_cnn"},
}


class Tapped:
    """A grid that keeps a copy of every message."""

    def __init__(self, grid):
        self._grid, self.contents = grid, []

    def get_nodes(self):
        return self._grid.get_nodes()

    def push_messages(self, messages):
        messages = list(messages)
        self.contents += [message.content for message in messages]
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids):
        found = list(self._grid.pull_messages(message_ids))
        self.contents += [message.content for message in found if message.has_content()]
        return found


def sites_of(folder):
    return lambda: server_app.expected_sites(folder, None)


def batchnorm_bytes(contents, plan) -> int:
    kinds = {entry.name: entry.kind for entry in entries(plan.initial_model)}
    states = [
        load(array.data)
        for content in contents
        for record in content.array_records.values()
        for array in record.values()
    ]
    assert states
    return sum(
        value.numel() * value.element_size()
        for state in states
        for name, value in state.items()
        if kinds[name.rpartition("/")[2]].startswith("bn_")  # a rule's by what it is like
    )


def test_two_real_sites_give_the_same_bits(tmp_path) -> None:
    folder = server_app.make(tmp_path / "fed")
    tapped = {}
    with server_app.running(folder, SITES):
        for method in METHODS:
            raw = {**RAW, "methods": [method]}
            run = server_app.run_folder(folder, method.replace("+", "-"))
            limits = Limits(wait=300, round=300)
            service = Service(folder.read().id, sites_of(folder), run, limits=limits)
            with server_app.begun(run, raw), grid_of(folder) as grid:
                tapped[method] = Tapped(grid)
                serve(tapped[method], checked(raw), service)
    for method in METHODS:
        raw = {**RAW, "methods": [method]}
        plan, wanted, records = in_one_process(raw, digits())
        run = server_app.run_folder(folder, method.replace("+", "-"))
        place = run.job(*jobs(checked(raw))[0].key)
        found, _ = checkpoints.newest(place, replace(initial_state(plan), local={}))
        for name, value in wanted.shared.state.items():
            assert torch.equal(found.shared.state[name], value), (method, name)
        assert len(metrics.read(run.metrics)) == len(records)
        travelled = batchnorm_bytes(tapped[method].contents, plan)
        assert (travelled == 0) == method.startswith("fedbn"), (method, travelled)
