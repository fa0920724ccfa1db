"""Rounds over Flower give what the embedded engine gives, and nothing of BatchNorm travels."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("flwr", reason="flwr is not installed")

from flower_bench import RAW, Bench, in_one_process
from safetensors.torch import load

from fedbn.core.federation import Split
from fedbn.core.packing import Pack, StateLayout
from fedbn.core.rounds import RunState, initial_state
from fedbn.core.state import Kind, entries
from fedbn.experiments.configuration import checked
from fedbn.experiments.jobs import jobs
from fedbn.flower import messages
from fedbn.runs import checkpoints, metrics
from tiny import same


def shared_of(folder, raw, plan) -> RunState:
    place = folder.job(*jobs(checked(raw))[0].key)
    state, _ = checkpoints.newest(place, replace(initial_state(plan), local={}))
    return state


WITH_MEMORY = [
    *("scaffold", "fedbn+scaffold", "feddyn(0.1)", "ditto", "fedbn+ditto", "fixbn", "fedper"),
    *("lgfedavg", "fedrep(head_epochs=2)", "fedavgm", "fedadam", "fedyogi", "fedadagrad"),
]


@pytest.mark.parametrize(
    "method",
    ["fedbn", "fedavg", "fedprox", "silobn", "singleset", "fedbn+median+adam", *WITH_MEMORY],
)
def test_the_same_numbers_as_in_one_process(bench: Bench, method: str) -> None:
    raw = {**RAW, "methods": [method]}
    if method in WITH_MEMORY:  # who is drawn differs from round to round
        raw |= {"training": {"rounds": 3, "local_steps": 2, "participation": 0.5}, "seeds": [3]}
    folder = bench.run(bench.grid(), raw)
    plan, expected, records = in_one_process(raw)
    found = shared_of(folder, raw, plan)
    assert found.round == plan.training.rounds
    for name, value in expected.shared.state.items():
        assert torch.equal(found.shared.state[name], value), name
    assert same(found.server.hooks, expected.server.hooks)
    assert same(found.server.optimizer, expected.server.optimizer)
    for client, local in expected.local.items():
        assert same(at_home(bench, client, local), local), client

    def key(record):
        return (record["round"], record["client"], record["split"], record["metric"])

    got = {key(r): r["value"] for r in metrics.read(folder.metrics)}
    wanted = {key(vars(r)): r.value for r in records}
    assert got == wanted


def at_home(bench: Bench, client: str, like: Pack) -> Pack:
    """What a site has on its own disk; nothing where it never trained."""
    (*_, newest) = [like, *sorted((bench.root / "sites" / client).rglob("round-*"))]
    if newest is like:
        return like
    state = RunState(0, StateLayout(()).zeros(), {client: like})
    return checkpoints.load(newest, state).local[client]


def test_sites_measure_what_else_is_asked_for(bench: Bench) -> None:
    raw = {**RAW, "evaluation": {"metrics": ["auroc"], "final_statistics": []}}
    folder = bench.run(bench.grid(), raw)
    _, _, records = in_one_process(raw)

    def areas(found):
        wanted = (r for r in found if r["metric"] == "auroc")
        return {(r["round"], r["client"], r["split"]): r["value"] for r in wanted}

    assert areas(metrics.read(folder.metrics)) == areas(map(vars, records))
    assert len(areas(map(vars, records))) == 2 * 2 * 2


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("method", ["fedbn", "silobn", "fedavg"])
def test_a_site_that_has_not_trained_is_scored_as_in_one_process(
    bench: Bench, method: str, every: int
) -> None:
    training = {"rounds": 2, "local_steps": 2, "participation": 0.5}
    raw = {
        **RAW,
        "methods": [method],
        "training": training,
        "evaluation": {"every": every, "final_statistics": []},
    }
    # seed 0 draws the second site twice
    folder = bench.run(bench.grid(), raw)
    _, _, records = in_one_process(raw)

    def numbers(found):
        fields = ("round", "client", "domain", "split", "metric", "value")
        return sorted(tuple(r[field] for field in fields) for r in found)

    assert numbers(metrics.read(folder.metrics)) == numbers(map(vars, records))
    counted = [r.round for r in records if r.metric == "untrained"]
    assert counted == ([] if method == "fedavg" else list(range(every, 3, every)))
    said = "round 2: 1 of 2 clients have not trained yet"
    assert bench.notes().count(said) == (method != "fedavg")


@pytest.mark.parametrize(
    "basics",
    [
        {"schedule": "StepLR", "schedule_args": {"step_size": 1, "gamma": 0.1}},
        {"clip_norm": 0.01, "device": "auto"},
        {"amp": "bfloat16"},
    ],
)
def test_sites_train_with_the_basics_of_one_process(bench: Bench, basics: dict) -> None:
    raw = {**RAW, "training": {**RAW["training"], **basics}}
    folder = bench.run(bench.grid(), raw)
    plan, expected, _ = in_one_process(raw)
    found = shared_of(folder, raw, plan).shared.state
    assert all(torch.equal(found[n], value) for n, value in expected.shared.state.items())
    _, without, _ = in_one_process(RAW)
    assert not all(torch.equal(found[n], value) for n, value in without.shared.state.items())


def test_the_last_batch_is_dropped_at_the_sites_too(bench: Bench) -> None:
    training = {"rounds": 1, "batch_size": 30, "last_batch": "drop"}  # 64 leave 4
    raw = {**RAW, "training": training}
    folder = bench.run(bench.grid(), raw)
    plan, expected, _ = in_one_process(raw)
    found = shared_of(folder, raw, plan).shared.state
    assert all(torch.equal(found[n], value) for n, value in expected.shared.state.items())
    _, kept, _ = in_one_process({**raw, "training": {**training, "last_batch": "keep"}})
    assert not all(torch.equal(found[n], value) for n, value in kept.shared.state.items())


def test_a_site_moves_its_own_data_to_its_device_and_no_stand_in(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved: list[Split] = []
    to = Split.to
    monkeypatch.setattr(Split, "to", lambda s, device: moved.append(s) or to(s, device))
    bench.run(bench.grid(), {**RAW, "training": {"rounds": 1, "local_steps": 1}})
    assert moved
    assert not [split for split in moved if split.x.stride(0) == 0]  # one zero, seen many times


def test_no_byte_of_batchnorm_travels(bench: Bench) -> None:
    grid = bench.grid()
    bench.run(grid)
    plan, _, _ = in_one_process(RAW)
    kinds = {e.name: e.kind for e in entries(plan.initial_model)}
    counted = 0
    for _, sent, answer in grid.log:
        for content in (sent.content, answer.content):
            for record in content.array_records.values():
                for array in record.values():
                    state = load(array.data)
                    counted += len(state)
                    assert {kinds[name] for name in state} == {Kind.WEIGHT}
    assert counted > 0
    assert messages.length(grid.log[-1][1].content) > 0
