"""BatchNorm lives on the site's disk; runs go on where they stopped, bit for bit."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
import torch

pytest.importorskip("flwr", reason="flwr is not installed")

from flower_bench import RAW, Bench, FakeGrid
from flwr.app import Message, RecordDict
from safetensors.torch import load

from fedbn.errors import ConfigError, DataError, Interrupted
from fedbn.experiments.configuration import checked
from fedbn.experiments.jobs import jobs
from fedbn.flower import messages
from fedbn.flower.membership import Expected
from fedbn.flower.messages import KEY
from fedbn.runs import checkpoints, metrics

LONG = {**RAW, "training": {"rounds": 4, "local_steps": 2}}


def test_a_stopped_run_goes_on_bit_for_bit(bench: Bench) -> None:
    whole = bench.run(bench.grid(), LONG, "whole").metrics.read_text()
    with pytest.raises(Interrupted, match="after round 2 of 4"):
        bench.run(bench.grid(), LONG, "halved", stop_after=2)
    again = bench.run(bench.grid(), LONG, "halved").metrics.read_text()
    assert again == whole


@pytest.mark.shows("F40")
def test_a_killed_server_forgets_half_a_round_and_does_it_again(bench: Bench) -> None:
    whole = bench.run(bench.grid(), LONG, "whole").metrics.read_text()

    class KilledError(Exception):
        pass

    def kill(site, answer):
        order = "answer" in answer.content.config_records
        if site == "photo" and order and '"round":3' in str(answer.content["answer"]["json"]):
            raise KilledError
        return answer

    with pytest.raises(KilledError):
        bench.run(bench.grid(kill), LONG, "killed")
    assert bench.run(bench.grid(), LONG, "killed").metrics.read_text() == whole
    sources = [e for e in bench.events if e.kind == "begin"]
    assert sources[-1].round == 2


def test_a_finished_run_has_nothing_left_to_do(bench: Bench) -> None:
    first = bench.run(bench.grid()).metrics.read_text()
    grid = bench.grid()
    assert bench.run(grid).metrics.read_text() == first
    assert grid.log == []


def test_a_changed_configuration_is_refused(bench: Bench) -> None:
    with pytest.raises(Interrupted):
        bench.run(bench.grid(), LONG, stop_after=1)
    other = {**LONG, "training": {"rounds": 4, "local_steps": 3}}
    with pytest.raises(ConfigError, match=r"changed since the run began: training\.local_steps"):
        bench.run(bench.grid(), other)


@pytest.mark.shows("D35")
def test_changed_data_at_a_site_is_refused(bench: Bench) -> None:
    with pytest.raises(Interrupted):
        bench.run(bench.grid(), LONG, stop_after=1)
    grid = bench.grid()
    federation = grid.sites["photo"]._federation
    client = federation.clients[0]
    fewer = client.train.take(torch.arange(50))
    site = grid.sites["photo"]
    smaller = type(client)(client.name, client.domain, fewer, client.tests)
    site.__dict__["_federation"] = type(federation)(federation.name, (smaller,), federation.classes)
    with pytest.raises(DataError, match="the data changed since the run began"):
        bench.run(grid, LONG)


@pytest.mark.shows("D35")
@pytest.mark.parametrize("what", ["a pixel", "a label", "a test sample"])
def test_a_site_sees_that_one_value_of_its_data_changed(what: str, bench: Bench) -> None:
    """As many samples as before: only the site itself can tell, and it trains no further."""
    with pytest.raises(Interrupted):
        bench.run(bench.grid(), LONG, stop_after=1)
    grid = bench.grid()
    federation = grid.sites["photo"]._federation
    client = federation.clients[0]
    x, y = client.train.x.clone(), client.train.y.clone()
    tests = client.tests
    if what == "a pixel":
        x[3, 0, 0, 0] += 1
    elif what == "a label":
        y[3] = (y[3] + 1) % 10
    else:
        tests = {name: replace(split, x=split.x.flip(0)) for name, split in tests.items()}
    changed = replace(client, train=replace(client.train, x=x, y=y), tests=tests)
    grid.sites["photo"].__dict__["_federation"] = replace(federation, clients=(changed,))
    bench.run(grid, LONG)
    said = "photo is left out: its data does not fit: it changed since the run began"
    assert [f"round {number}: {said}" in bench.notes() for number in (2, 3, 4)] == [True] * 3
    assert not [a for s, _, a in grid.log if s == "photo" and messages.SHARED in a.content]


@pytest.mark.shows("F23")
def test_a_message_done_twice_gives_the_same_bytes(bench: Bench) -> None:
    again: list[tuple[Message, RecordDict]] = []

    def twice(name: str, answer: Message) -> Message:
        if name == "photo" and messages.SHARED in answer.content:
            message = grid.log[-1][1]
            again.append((answer, bench.site("photo").answer(message.content, RecordDict())))
        return answer

    grid = bench.grid(twice)
    bench.run(grid)
    assert len(again) == 2
    for answer, repeated in again:
        for name, value in load(answer.content[messages.SHARED][KEY].data).items():
            assert torch.equal(load(repeated[messages.SHARED][KEY].data)[name], value)


def test_lost_batchnorm_stops_the_site_and_says_so(bench: Bench) -> None:
    grid = bench.grid()
    with pytest.raises(Interrupted):
        bench.run(grid, LONG, stop_after=1)
    shutil.rmtree(bench.root / "sites" / "photo")
    bench.run(bench.grid(), LONG)
    assert "photo is left out: photo: BatchNorm of round 1 is not in …/run/local" in bench.notes()
    assert "a silent new start would change the result" in bench.notes()
    assert str(bench.root) not in bench.notes()


def test_damaged_batchnorm_is_named(bench: Bench) -> None:
    with pytest.raises(Interrupted):
        bench.run(bench.grid(), LONG, stop_after=1)
    file = next((bench.root / "sites" / "photo").rglob("state.safetensors"))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    bench.run(bench.grid(), LONG)
    assert "the local part of photo: damaged" in bench.notes()


@pytest.mark.shows("F35")
def test_a_site_that_was_away_comes_back_with_its_own_batchnorm(bench: Bench) -> None:
    grid = bench.grid()
    costs = []

    def cost(one):
        costs.append(one)
        grid.away = {"photo"} if one.round in (1, 2) else set()

    bench.run(grid, LONG, costs=cost)
    assert [sorted(one.sources) for one in costs] == [
        ["photo", "plain"],
        ["plain"],
        ["plain"],
        ["photo", "plain"],
    ]
    assert costs[3].sources["photo"] == "disk"
    back = [m for s, m, a in grid.log if s == "photo" and messages.SHARED in a.content][-1]
    assert messages.get(back.content, messages.Order, messages.SHARED).since == 1


@pytest.mark.shows("F37")
def test_a_site_that_leaves_for_good_ends_neither_the_run_nor_its_own_batchnorm(
    bench: Bench,
) -> None:
    grid = bench.grid()
    costs = []

    def cost(one):
        costs.append(one)
        grid.away = {"photo"}

    folder = bench.run(grid, LONG, costs=cost)
    assert [sorted(one.sources) for one in costs] == [["photo", "plain"], *[["plain"]] * 3]
    assert "photo is left out: not connected" in bench.notes()
    told = [(r["client"], r["round"], r["metric"]) for r in metrics.read(folder.metrics)]
    assert {round for client, round, _ in told if client == "plain"} == {1, 2, 3, 4}
    later = [(round, metric) for client, round, metric in told if client == "photo" and round > 1]
    assert later == [(2, "refused"), (3, "refused"), (4, "refused")]
    _, newest = checkpoints.rounds(folder.job(*jobs(checked(LONG))[0].key))[0]
    shared = checkpoints.Checkpoint(newest).section("shared")
    last = [a for s, _, a in grid.log if s == "plain" and messages.SHARED in a.content][-1]
    for name, value in load(last.content[messages.SHARED][KEY].data).items():
        assert torch.equal(shared[name], value)  # the mean of one
    assert list((bench.root / "sites" / "photo").rglob("state.safetensors"))


@pytest.mark.shows("F36")
def test_a_new_site_joins_a_run_under_way(bench: Bench) -> None:
    grid = FakeGrid([bench.site("plain"), bench.site("photo"), bench.site("faded")])
    grid.away = {"faded"}
    names = ("plain", "photo", "faded")
    expected = Expected(names, {name.encode(): name for name in names}, 2)
    costs = []

    def cost(one):
        costs.append(one)
        grid.away = set()

    folder = bench.run(grid, LONG, expected=expected, costs=cost)
    assert "faded joins" in bench.notes()
    assert [one.sources.get("faded") for one in costs] == [None, "fresh", "disk", "disk"]
    assert_newcomer(grid, bench.site("faded"), folder)


def assert_newcomer(grid: FakeGrid, again, folder) -> None:
    """It starts from the shared part that the server sends, and the statistics of its own data."""
    sent = next(m for s, m, a in grid.log if s == "faded" and messages.SHARED in a.content)
    order = messages.get(sent.content, messages.Order, messages.SHARED)
    assert (order.round, order.since, order.joined) == (2, 0, 1)
    others = [m for s, m, _ in grid.log if s == "plain" and messages.SHARED in m.content]
    shared = load(sent.content[messages.SHARED][KEY].data)
    theirs = load(others[1].content[messages.SHARED][KEY].data)
    assert all(torch.equal(shared[name], value) for name, value in theirs.items())
    desk = again._desk(order, messages.job_of(order))
    pack = desk._initial.shared.layout.pack(shared)
    local, source = desk._local(order, desk._run, pack)
    with torch.no_grad():
        inputs = desk._replica.model[0](desk._client.train.batch(slice(None))[0])
    mean = inputs.mean((0, 2, 3))
    torch.testing.assert_close(local.state["1.running_mean"], mean)
    assert source == "fresh"
    facts = checkpoints.read_manifest(
        checkpoints.rounds(folder.job(*jobs(checked(LONG))[0].key))[0][1]
    )
    assert facts["joined"] == {"faded": 1}


def test_a_run_that_stopped_remembers_who_came_late(bench: Bench) -> None:
    names = ("plain", "photo", "faded")
    expected = Expected(names, {name.encode(): name for name in names}, 2)

    def grid(*away: str) -> FakeGrid:
        made = FakeGrid([bench.site(name) for name in names])
        made.away = set(away)
        return made

    with pytest.raises(Interrupted):
        bench.run(grid("faded"), LONG, expected=expected, stop_after=1)
    late = grid()
    bench.run(late, LONG, expected=expected)
    sent = next(m for s, m, a in late.log if s == "faded" and messages.SHARED in a.content)
    assert messages.get(sent.content, messages.Order, messages.SHARED).joined == 1


def test_without_a_folder_batchnorm_is_in_flowers_memory(bench: Bench) -> None:
    grid = FakeGrid([bench.site(name, folder=None) for name in ("plain", "photo")])
    costs = []
    bench.run(grid, costs=costs.append)
    assert [one.sources["plain"] for one in costs] == ["fresh", "state"]
    grid = FakeGrid([bench.site(name, folder=None) for name in ("plain", "photo")])
    kept = bench.run(bench.grid(), name="disk").metrics.read_text()
    assert bench.run(grid, name="memory").metrics.read_text() == kept


def test_affine_is_released_only_by_sites_that_agreed(bench: Bench) -> None:
    grid = FakeGrid([bench.site("plain", release_affine=True), bench.site("photo")])
    folder = bench.run(grid)
    released = next(folder.path.rglob("released-affine.safetensors"))
    names = load(released.read_bytes())
    assert names
    assert not [name for name in names if "running" in name or "num_batches" in name]
    given = {s for s, _, answer in grid.log if messages.AFFINE in answer.content}
    assert given == {"plain"}


def test_participation_scores_the_sites_that_rest_too(bench: Bench) -> None:
    raw = {**LONG, "training": {"rounds": 4, "local_steps": 2, "participation": 0.5}}
    from flower_bench import in_one_process

    from fedbn.runs import metrics

    folder = bench.run(bench.grid(), raw)
    _, _, records = in_one_process(raw)

    def key(record):
        return (record["round"], record["client"], record["split"], record["metric"])

    got = {key(r): r["value"] for r in metrics.read(folder.metrics)}
    assert got == {key(vars(r)): r.value for r in records}
