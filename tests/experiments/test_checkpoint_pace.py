"""How often finished rounds are put on disk, and what is there after an error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedbn.core.engine import EmbeddedEngine, OneByOne, Round
from fedbn.core.metric import ACCURACY
from fedbn.core.plan import Plan
from fedbn.core.rounds import ClientStates, RunState, initial_state, record
from fedbn.core.training import Training
from fedbn.errors import ConfigError, FedbnError
from fedbn.experiments.configuration import checked
from fedbn.experiments.jobs import Event
from fedbn.experiments.runner import Pace, Writer, rounds_of, run_plan
from fedbn.methods import parse_method
from fedbn.runs import checkpoints
from tiny import bn_net, federation

KEY = ("fedbn", "default", 0)
PLAN = Plan(parse_method("fedbn"), federation(8, 8, 8), bn_net, Training(rounds=4, batch_size=4))


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def rounds_on_disk(place: Path) -> list[int]:
    return sorted(number for number, _ in checkpoints.rounds(place))


def test_a_number_of_rounds_is_heeded() -> None:
    assert [round for round in range(1, 8) if Pace(3).due(round)] == [3, 6]


def test_ten_seconds_pass_between_quick_checkpoints_and_twenty_times_a_slow_one() -> None:
    clock = Clock()
    pace = Pace("auto", clock)
    clock.now = 9.9
    assert not pace.due(1)
    clock.now = 10.0
    assert pace.due(2)
    with pace.writing():
        clock.now += 0.4  # 20 times that is less than ten seconds
    clock.now += 9.9
    assert not pace.due(3)
    clock.now += 0.1
    assert pace.due(4)
    with pace.writing():
        clock.now += 3.0
    clock.now += 59.9
    assert not pace.due(5)
    clock.now += 0.2
    assert pace.due(6)


@pytest.mark.shows("G05")
@pytest.mark.parametrize("value", [0, -1, "often", True, 1.5])
def test_other_values_are_refused_with_the_legal_ones(value: object) -> None:
    with pytest.raises(ConfigError, match=r"checkpoint.every = .*whole numbers >= 1, or 'auto'"):
        checked({"checkpoint": {"every": value}})


class Failing(EmbeddedEngine):
    """An engine whose fourth round fails."""

    def round(self, state: RunState) -> Round:
        if state.round == 3:
            raise FedbnError("no round 4")
        return super().round(state)


def test_an_error_finds_the_last_finished_round_on_disk(tmp_path: Path) -> None:
    writer = Writer(tmp_path, pace=Pace("auto"))
    with closing(Failing(PLAN)) as engine:
        start, _ = writer.resume(engine)
        with pytest.raises(FedbnError, match="no round 4"):
            rounds_of(engine, KEY, start, writer, lambda: False)
    assert rounds_on_disk(tmp_path) == [3]
    with closing(EmbeddedEngine(PLAN)) as engine:
        start, _ = Writer(tmp_path).resume(engine)
        assert start.round == 3
        resumed = rounds_of(engine, KEY, start, Writer(tmp_path), lambda: False)
        whole = rounds_of(engine, KEY, engine.initial(), lambda event: None, lambda: False)
    assert all(torch.equal(resumed.shared.state[k], v) for k, v in whole.shared.state.items())


def test_what_cannot_be_repeated_is_saved_every_round(tmp_path: Path) -> None:
    class Unrepeatable(OneByOne):
        def __init__(self, plan: Plan) -> None:
            super().__init__(plan)
            self.repeatable = False

    writer = Writer(tmp_path, pace=Pace("auto"))
    with closing(EmbeddedEngine(PLAN, Unrepeatable)) as engine:
        start, _ = writer.resume(engine)
        rounds_of(engine, KEY, start, writer, lambda: False)
    assert rounds_on_disk(tmp_path) == [3, 4]  # the last two are kept


def scored(state: RunState, accuracy: float) -> Event:
    """A round of which all that counts is one validation accuracy."""
    plan = replace(PLAN, training=replace(PLAN.training, rounds=100))
    number = record(plan, state.round, plan.federation.clients[0], "valid", "accuracy", accuracy)
    gave = Round(state, [number])
    return Event("round", KEY, state.round, 100, records=[vars(number)], gave=gave)


def states() -> Iterator[RunState]:
    state = initial_state(PLAN)
    while True:
        state = replace(state, round=state.round + 1)
        yield state


def test_the_best_round_between_two_checkpoints_is_kept_in_memory_until_the_next(
    tmp_path: Path,
) -> None:
    clock, rounds = Clock(), states()
    writer = Writer(tmp_path, best_by=ACCURACY, pace=Pace("auto", clock))
    for accuracy in (0.5, 0.7, 0.9, 0.6):
        writer(scored(next(rounds), accuracy))
    assert rounds_on_disk(tmp_path) == []
    clock.now += 11
    writer(scored(next(rounds), 0.8))
    assert rounds_on_disk(tmp_path) == [3, 5]
    writer(scored(next(rounds), 0.4))
    clock.now += 11
    writer(scored(next(rounds), 0.3))
    assert rounds_on_disk(tmp_path) == [3, 5, 7]


def test_a_client_that_never_took_part_has_no_row(tmp_path: Path) -> None:
    plan = replace(PLAN, training=replace(PLAN.training, participation=0.3, rounds=1))
    writer = Writer(tmp_path)
    with closing(EmbeddedEngine(plan)) as engine:
        start, _ = writer.resume(engine)
        last = rounds_of(engine, KEY, start, writer, lambda: False)
        found = checkpoints.Checkpoint(checkpoints.place_of(tmp_path, 1))
        (trained,) = found.clients["local"]
        read = checkpoints.load(found.path, engine.initial())
    assert set(read.untrained) == set("abc") - {trained} == set(last.untrained)
    for client in "abc":
        for part, other in ((read.local, last.local), (read.untrained, last.untrained)):
            for name, value in part[client].state.items() if client in part else ():
                assert torch.equal(value, other[client].state[name])


@pytest.mark.parametrize("begun", [0, 3], ids=["from the start", "resumed"])
def test_parts_that_take_much_memory_are_read_from_the_checkpoint_to_the_same_bits(
    begun: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedbn.runs.checkpoints._HELD_BYTES", 0)
    plan = replace(PLAN, training=replace(PLAN.training, rounds=6, participation=0.6))
    straight, held = run_plan(plan), []

    def continued(state: RunState) -> RunState:
        state = writer.continued(state)
        assert isinstance(state.local, ClientStates)
        held.append(len(state.local.new))
        return state

    for rounds in [begun, 6] if begun else [6]:
        some = replace(plan, training=replace(plan.training, rounds=rounds))
        writer = Writer(tmp_path, pace=Pace(2))
        with closing(EmbeddedEngine(some, OneByOne)) as engine:
            start, _ = writer.resume(engine)
            last = rounds_of(engine, KEY, start, writer, lambda: False, continued=continued)

    # two of three clients train in a round; every second round is saved, and each part's last
    assert held == ([2, 0, 0, 0, 2, 0] if begun else [2, 0, 2, 0, 2, 0])
    assert list(last.local) == list(straight.local)
    for client, part in straight.local.items():
        assert all(v.equal(last.local[client].state[n]) for n, v in part.state.items())
    assert all(v.equal(last.shared.state[n]) for n, v in straight.shared.state.items())
