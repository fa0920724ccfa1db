"""Numbers and masks over Flower: the bits and the records of one process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr", reason="flwr is not installed")

from flower_bench import SITES, Bench, FakeGrid, in_one_process
from made_data import DATA

from fedbn import registry
from fedbn.core.federation import Federation
from fedbn.core.metric import first_metric
from fedbn.core.rounds import initial_state
from fedbn.experiments.configuration import checked
from fedbn.experiments.jobs import jobs
from fedbn.flower.site import Site
from fedbn.flower.site_job import SiteOptions
from fedbn.runs import checkpoints, metrics


def sites_of(name: str) -> Federation:
    """The made data, under the names of the bench's sites."""
    data = DATA[name]()
    clients = [
        replace(client, name=site, domain=site, tests={site: next(iter(client.tests.values()))})
        for site, client in zip(SITES, data.clients, strict=True)
    ]
    return replace(data, clients=tuple(clients))


def site(root: Path, federation: Federation, name: str) -> Site:
    made = Site(SiteOptions(name, {"name": "made"}, folder=root / name, federation="fed"))
    own = tuple(client for client in federation.clients if client.name == name)
    made.__dict__["_federation"] = replace(federation, clients=own)
    return made


@pytest.mark.parametrize("name", ["regression", "segmentation"])
def test_the_same_numbers_as_in_one_process(name: str, bench: Bench, tmp_path: Path):
    registry.trust("made_data")
    data = sites_of(name)
    raw = {
        "evaluation": {"final_statistics": []},  # sites score with running statistics alone
        "methods": ["fedbn"],
        "seeds": [0],
        "training": {"rounds": 2, "local_steps": 2, "lr": 0.1},
        "model": {"name": f"made_data:{name}_model"},
        "task": {"class_weights": "balanced"} if name == "segmentation" else {"loss": "huber"},
    }
    grid = FakeGrid([site(tmp_path / "sites", data, each) for each in SITES])
    folder = bench.run(grid, raw)
    plan, expected, records = in_one_process(raw, data)
    place = folder.job(*jobs(checked(raw))[0].key)
    found, _ = checkpoints.newest(place, replace(initial_state(plan), local={}))
    for entry, value in expected.shared.state.items():
        assert torch.equal(found.shared.state[entry], value), entry
    got = {
        (r["round"], r["client"], r["split"], r["metric"]): r["value"]
        for r in metrics.read(folder.metrics)
    }
    assert got == {(r.round, r.client, r.split, r.metric): r.value for r in records}
    assert first_metric(folder.read_environment()) == plan.task.metrics[0]
    judged = {event.judged_by.name for event in bench.events if event.kind == "round"}
    assert judged == {plan.task.metrics[0].name}


def test_a_site_with_other_targets_is_told_so(bench: Bench, tmp_path: Path):
    registry.trust("made_data")
    data = sites_of("regression")
    other = replace(
        data.clients[1], train=replace(data.clients[1].train, y=data.clients[1].train.y.double())
    )
    mixed = replace(data, clients=(data.clients[0], other))
    grid = FakeGrid([site(tmp_path / "sites", mixed, each) for each in SITES])
    raw = {"methods": ["fedbn"], "seeds": [0], "model": {"name": "made_data:regression_model"}}
    with pytest.raises(Exception, match="photo"):
        bench.run(grid, raw)
    assert "targets of" in bench.notes()
