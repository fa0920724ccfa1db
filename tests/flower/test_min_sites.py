"""`min_sites` of a site's policy holds with an honest server, whoever leaves a run."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from flower_bench import RAW, SITES, Bench, FakeGrid
from flwr.app import ConfigRecord, Message, RecordDict

from fedbn.errors import Interrupted, TooFewClients
from fedbn.flower import messages
from fedbn.flower.membership import Expected, Known
from fedbn.flower.messages import SHARED, Order
from fedbn.flower.policy import OPEN, Forbidden, Policy

LONG = {**RAW, "training": {"rounds": 4, "local_steps": 2}}
THREE = (*SITES, "faded")


def asking_for(bench: Bench, *least: int) -> FakeGrid:
    """Sites that ask for so many updates in a state; the first of three names."""
    policies = [OPEN.model_copy(update={"min_sites": number}) for number in least]
    return FakeGrid(
        bench.site(name, policy=policy) for name, policy in zip(THREE, policies, strict=False)
    )


def of_three(least: int) -> Expected:
    return Expected(THREE, {name.encode(): name for name in THREE}, least)


def finished_rounds(bench: Bench) -> list[int]:
    return [event.round for event in bench.events if event.kind == "round"]


def leaving(grid: FakeGrid, name: str, after: int):
    """Let a site go away once a round is done."""

    def hear(cost) -> None:
        if cost.round == after:
            grid.away = {name}

    return hear


@pytest.mark.parametrize("leaver", SITES)
def test_a_round_without_enough_sites_is_not_completed(bench: Bench, leaver: str) -> None:
    """The site that asks for two may be the one that stays, or the one that left."""
    grid = asking_for(bench, 2, 1)
    reason = r"1 of 2 sites are connected .* a round needs 2 \(min_sites = 2 at plain\)"
    with pytest.raises(TooFewClients, match=f"{reason}; missing: {leaver}"):
        bench.run(grid, LONG, costs=leaving(grid, leaver, after=2))
    assert finished_rounds(bench) == [1, 2]


def test_without_such_a_policy_the_run_goes_on_with_one_site(bench: Bench) -> None:
    grid = asking_for(bench, 1, 1)
    bench.run(grid, LONG, costs=leaving(grid, "photo", after=2))
    assert finished_rounds(bench) == [1, 2, 3, 4]


def test_a_site_that_gives_no_answer_leaves_no_mean_of_too_few_updates(bench: Bench) -> None:
    """It is connected, so only its missing update tells."""
    grid = asking_for(bench, 2, 2)

    def swallow(site: str, answer: Message) -> Message | None:
        late = site == "photo" and SHARED in answer.content and finished_rounds(bench) == [1]
        return None if late else answer

    grid.tamper = swallow
    bench.limits = type(bench.limits)(wait=0.5, round=0.3, grace=0, poll=0.01, look=10)
    reason = r"round 2: 1 sites gave a usable update, and the policy of plain needs 2 \(min_sites\)"
    with pytest.raises(TooFewClients, match=f"{reason}; photo: no answer within"):
        bench.run(grid, LONG)
    assert finished_rounds(bench) == [1]
    states = [
        messages.get(m.content, Order, SHARED).round for _, m, _ in grid.log if SHARED in m.content
    ]
    assert max(states) == 2  # nobody got a state of one update


def test_a_resumed_run_remembers_what_an_absent_site_asked_for(bench: Bench) -> None:
    grid = asking_for(bench, 1, 1, 3)
    with pytest.raises(Interrupted):
        bench.run(grid, LONG, expected=of_three(3), stop_after=2)
    grid = asking_for(bench, 1, 1, 3)
    grid.away = {"faded"}
    with pytest.raises(TooFewClients, match=r"a round needs 3 \(min_sites = 3 at faded\)"):
        bench.run(grid, LONG, expected=of_three(2))
    bench.run(asking_for(bench, 1, 1, 3), LONG, expected=of_three(2))
    assert finished_rounds(bench) == [1, 2, 3, 4]


def test_a_revoked_site_has_no_say(bench: Bench) -> None:
    grid = asking_for(bench, 1, 1, 3)
    expected = [of_three(3)]

    def revoke(cost) -> None:
        keys = {name.encode(): name for name in SITES}
        expected[0] = Expected(SITES, keys, 2)

    bench.run(grid, LONG, expected=lambda: expected[0], costs=revoke)
    assert finished_rounds(bench) == [1, 2, 3, 4]


def test_a_site_that_joins_a_run_asks_from_then_on(bench: Bench) -> None:
    grid = asking_for(bench, 1, 1, 3)
    grid.away = {"faded"}

    def come(cost) -> None:
        grid.away = {"photo"} if cost.round == 3 else set()

    with pytest.raises(TooFewClients, match=r"2 of 3 sites .* needs 3 \(min_sites = 3 at faded\)"):
        bench.run(grid, LONG, expected=of_three(2), costs=come)
    assert finished_rounds(bench) == [1, 2, 3]
    assert "faded: the site's policy forbids a state of 2 updates" not in bench.notes()


def test_sites_that_are_not_selected_do_not_count(bench: Bench) -> None:
    raw = {**RAW, "training": {"rounds": 2, "local_steps": 2, "participation": 0.5}}
    with pytest.raises(TooFewClients, match=r"forbids 1 sites a round|needs 2") as caught:
        bench.run(asking_for(bench, 1, 2), raw)
    assert "min_sites" in str(caught.value)
    assert finished_rounds(bench) == []


def test_every_order_tells_how_many_updates_its_state_contains(bench: Bench) -> None:
    raw = {**RAW, "training": {"rounds": 3, "local_steps": 2, "participation": 0.5}}
    grid = asking_for(bench, 1, 1, 1)
    bench.run(grid, raw, expected=of_three(3))  # two of three train in a round
    orders = [messages.get(m.content, Order, SHARED) for _, m, _ in grid.log if SHARED in m.content]
    assert {order.updates for order in orders if order.kind == "train" and order.round == 1} == {0}
    later = [order for order in orders if (order.kind, order.round) != ("train", 1)]
    assert {order.updates for order in later} == {2}
    assert {order.kind for order in later} == {"train", "score"}


def test_a_site_stops_where_a_state_contains_too_few_updates(bench: Bench) -> None:
    """A server that says so and goes on all the same."""
    grid = bench.grid()
    bench.run(grid)
    policy = OPEN.model_copy(update={"min_sites": 3})
    site = bench.site("photo", policy=policy)
    content = next(
        m.content
        for s, m, _ in grid.log
        if s == "photo"
        and SHARED in m.content
        and messages.get(m.content, Order, SHARED).kind == "score"
    )
    order = messages.get(content, Order, SHARED)
    assert order.updates == 2
    members = order.members[0].model_copy(update={"name": "faded"})
    asked = order.model_copy(update={"members": (*order.members, members)})
    with pytest.raises(Forbidden, match=r"forbids a state of 2 updates \(min_sites = 3\)"):
        site.answer(messages.put(asked, **{SHARED: content[SHARED]}), RecordDict())


def test_the_policys_default_is_told_with_the_first_answer(bench: Bench) -> None:
    grid = FakeGrid([bench.site(name, policy=Policy(approval=False)) for name in SITES])
    bench.run(grid)
    said = [a.content["hello"]["json"] for _, _, a in grid.log if "hello" in a.content]
    assert [json.loads(str(text))["min_sites"] for text in said] == [2, 2]


@pytest.mark.parametrize("number", [0, -1, 10**7, 1.5, "2"])
def test_a_number_of_sites_that_is_none_is_refused(bench: Bench, number: object) -> None:
    def tamper(site: str, answer: Message) -> Message:
        record = answer.content.config_records.get("hello")
        if site == "photo" and record:
            text = json.dumps({**json.loads(str(record["json"])), "min_sites": number})
            answer.content["hello"] = ConfigRecord({"json": text})
        return answer

    with pytest.raises(TooFewClients, match="photo: not a legal hello: min_sites"):
        bench.run(bench.grid(tamper))


def test_a_checkpoint_from_before_is_read() -> None:
    known = Known.from_facts({"members": ["a"], "since": {"a": 3}})
    assert known.min_sites == {}
    assert (known.updates(3), known.updates(2), known.updates(0)) == (1, 0, 0)
