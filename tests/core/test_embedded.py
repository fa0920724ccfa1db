"""The default engine: the same bits however it is run, stopped and resumed."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from threading import Event as Signal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedbn.core.aggregation import server_adam
from fedbn.core.bn_statistics import estimate_statistics
from fedbn.core.engine import Pool
from fedbn.core.federation import Federation, Split
from fedbn.core.method import Method, ServerState
from fedbn.core.plan import Plan
from fedbn.core.replica import Replica
from fedbn.core.rounds import Record, RunState, initial_state, train_client
from fedbn.core.scoring import evaluate
from fedbn.core.user_code import habits
from fedbn.errors import Interrupted, TooFewClients
from fedbn.experiments.jobs import Event
from fedbn.experiments.runner import run_plan as run
from fedbn.fast import allocator
from fedbn.fast.weight_gradients import IdleCores
from fedbn.methods.paper import centralized, fedavg, fedbn, silobn, singleset
from tiny import bn_net, dropout_net, federation, plain_net, plan, same, same_runs


class Diary:
    """A listener that writes everything down."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.states: list[RunState] = []
        self.records: list[Record] = []

    def __call__(self, event: Event) -> None:
        if event.kind == "note":
            self.notes.append(event.text)
        elif event.kind == "round" and event.gave is not None:
            self.states.append(event.gave.state)
            self.records += event.gave.records


def written(made: Plan, **how: object) -> tuple[RunState, Diary]:
    diary = Diary()
    return run(made, diary, **how), diary


def from_disk(state: RunState) -> RunState:
    """The same state in other memory, as a checkpoint gives it back."""
    local = {name: part.clone() for name, part in state.local.items()}
    server = ServerState(
        {name: value.clone() for name, value in state.server.hooks.items()},
        {name: value.clone() for name, value in state.server.optimizer.items()},
    )
    untrained = {name: part.clone() for name, part in state.untrained.items()}
    return RunState(state.round, state.shared.clone(), local, server, untrained)


@pytest.mark.parametrize("after", [1, 2, 3])
@pytest.mark.parametrize(
    ("method", "model"),
    [
        (fedavg(), bn_net),
        (fedbn() | server_adam(), bn_net),
        (fedbn(), dropout_net),
        (singleset(), bn_net),
    ],
    ids=["fedavg", "fedbn+adam", "dropout", "singleset"],
)
def test_resumed_is_uninterrupted(
    after: int, method: Method, model: Callable[[], nn.Module], vectors: Federation
):
    def fresh() -> Plan:
        return plan(method, vectors, model, rounds=4, participation=0.6)

    whole, diary = written(fresh())
    end, rest = written(fresh(), start=from_disk(diary.states[after - 1]))
    assert same_runs(end, whole)
    assert rest.records == [r for r in diary.records if r.round > after]


def test_a_finished_run_is_left_as_it_is(vectors: Federation):
    made = plan(fedbn(), vectors)
    end = run(made)
    again, diary = written(made, start=end)
    assert again is end
    assert diary.states == []


@pytest.mark.parametrize("model", [bn_net, dropout_net])
def test_records_do_not_depend_on_the_workers(model: Callable[[], nn.Module]):
    data = federation(12, 7, 9)
    diaries = [written(plan(fedbn(), data, model), workers=w)[1] for w in (1, 2, 5)]
    assert diaries[0].records == diaries[1].records == diaries[2].records


def picture_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * 4 * 4, 32),
        nn.BatchNorm1d(32),
        nn.ReLU(),
        nn.Linear(32, 2),
    )


@pytest.mark.parametrize("model", [picture_net, lambda: picture_net().append(nn.Dropout(0.2))])
def test_gradients_left_to_idle_cores_change_no_bit(
    model: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch
):
    def pictures(split: Split) -> Split:
        x = torch.randn(len(split), 1, 8, 8, generator=torch.Generator().manual_seed(len(split)))
        return replace(split, x=x + split.x.mean(1)[:, None, None, None])

    clients = [
        replace(c, train=pictures(c.train), tests={d: pictures(t) for d, t in c.tests.items()})
        for c in federation(12, 9, 21).clients
    ]
    data = Federation("pictures", tuple(clients), ("0", "1"))
    monkeypatch.setattr("fedbn.fast.weight_gradients._WORTH_IT", 0)
    asked: list[object] = []
    submit = IdleCores.submit
    monkeypatch.setattr(IdleCores, "submit", lambda h, work: asked.append(work) or submit(h, work))
    alone = run(plan(fedbn(), data, model, rounds=3), workers=1)
    assert not asked
    for workers in (2, 3, 5):
        assert same_runs(run(plan(fedbn(), data, model, rounds=3), workers=workers), alone)
    assert asked
    asked.clear()
    run(plan(fedbn(), data, model, fast=False), workers=3)
    assert not asked


def test_augmentation_does_not_depend_on_the_workers(vectors: Federation):
    def shifted(x: Tensor, draws: torch.Generator) -> Tensor:
        return x + torch.randn(len(x), 1, generator=draws)

    clients = tuple(replace(c, train=replace(c.train, augment=shifted)) for c in vectors.clients)
    data = replace(vectors, clients=clients)
    one, two = (run(plan(fedbn(), data), workers=w) for w in (1, 2))
    assert same_runs(one, two)
    assert not same_runs(one, run(plan(fedbn(), vectors)))


@pytest.mark.parametrize("model", [bn_net, dropout_net])
def test_a_run_leaves_torch_as_it_was(model: Callable[[], nn.Module], vectors: Federation):
    torch.set_num_threads(2)
    before = torch.get_rng_state()
    run(plan(fedavg(), vectors, model))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == 2


def test_the_state_of_the_global_generator_does_not_matter(vectors: Federation):
    runs = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        runs.append(run(plan(fedbn(), vectors, dropout_net)))
    assert same_runs(*runs)


def test_the_largest_client_trains_first_and_no_bit_changes(monkeypatch):
    begun = []

    def train(plan, replica, client, state):
        begun.append(client.name)
        return train_client(plan, replica, client, state)

    monkeypatch.setattr("fedbn.core.rounds.train_client", train)
    made, found = plan(fedbn(), federation(8, 16, 12), rounds=1), []
    for most in (0, 1 << 26):
        monkeypatch.setattr("fedbn.core.engine._KEPT_BYTES", most)
        found.append(run(made, workers=1))
    assert begun == ["a", "b", "c", "b", "c", "a"]
    assert same_runs(*found)


def test_results_come_in_order_whoever_is_first():
    """The first task waits for the second, so the second always arrives before it."""
    second_done = Signal()

    def work(worker: str, item: int) -> int:
        if item == 0:
            assert second_done.wait(30)
        else:
            second_done.set()
        return item

    with closing(Pool(["one", "two"])) as pool:
        assert list(pool.ordered(work, range(7))) == list(range(7))


def test_stopping_saves_the_round_that_is_done(vectors: Federation):
    diary = Diary()
    with pytest.raises(Interrupted, match="stopped after round 1 of 3"):
        run(plan(fedbn(), vectors, rounds=3), diary, stop=lambda: True)
    assert [state.round for state in diary.states] == [1]


def test_stopping_in_the_last_round_is_finishing(vectors: Federation):
    assert run(plan(fedbn(), vectors, rounds=1), stop=lambda: True).round == 1


def test_what_is_scored_and_when():
    made = plan(fedbn(), federation(12, 12), rounds=3, evaluate_every=2)
    _, diary = written(made)
    scored = [(r.round, r.client, r.split, r.metric) for r in diary.records]
    trained = [(r, c, "train", "training_loss") for r in (1, 2, 3) for c in "ab"]
    full = [
        (r, c, s, m)
        for r in (2, 3)
        for c in "ab"
        for s in ("train", "test")
        for m in ("loss", "accuracy")
    ]
    assert sorted(scored) == sorted(trained + full)


def test_who_was_away_is_scored_but_has_no_training_loss(vectors: Federation):
    _, diary = written(plan(fedbn(), vectors, rounds=1, participation=1 / 3))
    trained = [r.client for r in diary.records if r.metric == "training_loss"]
    tested = [r.client for r in diary.records if (r.split, r.metric) == ("test", "accuracy")]
    assert len(trained) == 1
    assert tested == ["a", "b", "c"]


def test_centralized_is_scored_on_every_domain(vectors: Federation):
    _, diary = written(plan(centralized(), vectors.pooled(), rounds=1))
    tested = [(r.client, r.domain) for r in diary.records if r.split == "test"]
    assert tested[::2] == [("all", f"domain {name}") for name in "abc"]


def drawn_one_at_a_time(method: Method) -> Plan:
    """Of six clients one a round: after f, e and a, three have not trained."""
    return plan(method, federation(*[30] * 6), seed=1, rounds=3, participation=0.1)


@pytest.mark.parametrize("engine", ["plain", "batched"])
@pytest.mark.parametrize("method", [fedbn(), silobn(), singleset()], ids=lambda m: m.name)
def test_a_client_that_has_not_trained_is_scored_with_statistics_of_its_data(
    method: Method, engine: str
):
    made = replace(drawn_one_at_a_time(method), engine=engine)
    state, diary = written(made)
    trained = {r.client for r in diary.records if r.metric == "training_loss"}
    assert [*state.untrained] == [n for n in "abcdef" if n not in trained]
    last = {(r.client, r.split, r.metric): r.value for r in diary.records if r.round == 3}
    assert [key[0] for key in last if key[2] == "untrained"] == [*state.untrained]
    for client in made.federation.clients:
        if client.name in trained:
            assert state.scored_with(client.name) is state.local[client.name]
            continue
        replica = Replica(made.initial_model, method)
        replica.load(state.shared, state.local[client.name])
        estimate_statistics(replica.model, client.train.x)
        score = evaluate(replica.model, client.tests[client.domain])
        assert last[client.name, "test", "loss"] == pytest.approx(score.loss, abs=1e-5)
        assert same(state.scored_with(client.name), replica.local)
        # what it will train from is what it would have trained from
        assert same(state.local[client.name], initial_state(made).local[client.name])
    said = [text for text in diary.notes if "have not trained yet" in text]
    assert [text.partition(" clients")[0] for text in said] == [
        "round 1: 5 of 6",
        "round 3: 3 of 6",
    ]


def test_scoring_clients_that_have_not_trained_changes_no_bit_of_training():
    often, seldom = (
        written(replace(drawn_one_at_a_time(fedbn()), evaluate_every=every))[0] for every in (1, 3)
    )
    assert same_runs(often, seldom)
    one, diary = written(drawn_one_at_a_time(fedbn()), workers=1)
    three, other = written(drawn_one_at_a_time(fedbn()), workers=3)
    assert same_runs(one, three)
    assert diary.records == other.records


def test_shared_statistics_are_never_replaced():
    state, diary = written(drawn_one_at_a_time(fedavg()))
    assert not state.untrained
    assert not [r for r in diary.records if r.metric == "untrained"]


def test_a_client_whose_statistics_cannot_be_computed_is_named_and_the_others_scored():
    class Picky(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            scoring = self.training or torch.is_inference_mode_enabled()
            if not scoring and 100 < float(x.abs().max()) < 300:
                raise RuntimeError("not for d")
            return super().forward(x)

    made = replace(drawn_one_at_a_time(fedbn()), model=lambda: Picky(*bn_net()))
    state, diary = written(made)
    said = [text for text in diary.notes if text.startswith("round 3: d: ")]
    assert said == [
        "round 3: d: cannot be scored: ModelError: the model fails: RuntimeError: not for d"
    ]
    last = {r.client for r in diary.records if (r.round, r.metric) == (3, "accuracy")}
    assert last == set("abcef")
    assert same(state.scored_with("d"), state.local["d"])


@pytest.mark.shows("D03", "D04")
def test_a_remainder_of_one_is_never_a_crash():
    # 11 = 5 + 5 + 1 and 6 = 5 + 1; 12 leaves two, and 4 is less than a batch
    state, _ = written(plan(fedbn(), federation(11, 12, 6, 4), rounds=2))
    counts = [int(state.local[c].state["1.num_batches_tracked"]) for c in "abcd"]
    assert counts == [4, 6, 2, 2]


@pytest.mark.parametrize(
    ("training", "counts"),
    [
        ({"batch_size": None}, [1, 1]),
        ({"batch_size": 100}, [1, 1]),
        ({"local_steps": 7}, [7, 7]),
        ({"local_epochs": 3}, [9, 3]),
        ({"unequal": "repeat"}, [3, 3]),
    ],
)
def test_how_long_clients_of_12_and_4_train(training: dict[str, object], counts: list[int]):
    state = run(plan(fedbn(), federation(12, 4), rounds=1, **training))
    assert [int(state.local[c].state["1.num_batches_tracked"]) for c in "ab"] == counts


def test_dropout_is_noticed_and_said(vectors: Federation):
    _, diary = written(plan(fedbn(), vectors, dropout_net))
    assert any("dropout" in text for text in diary.notes)
    _, diary = written(plan(fedbn(), vectors))
    assert diary.notes == []


class Odd(nn.Sequential):
    """A net that does more in its forward pass than torch can see."""

    def __init__(self) -> None:
        super().__init__(*bn_net())
        self.calls, self.seen = 0, [0.0]
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.changed(x) if self.training else x)


class DrawsPython(Odd):
    def changed(self, x: Tensor) -> Tensor:
        return x * (1 + random.random())


class DrawsNumpy(Odd):
    def changed(self, x: Tensor) -> Tensor:
        return x * (1 + np.random.rand())


class Counts(Odd):
    def changed(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * (1 + self.calls)


class Collects(Odd):
    def changed(self, x: Tensor) -> Tensor:
        self.seen.append(float(x.abs().mean()))
        return x / (1 + sum(self.seen))


class Adds(Odd):
    def changed(self, x: Tensor) -> Tensor:
        self.last = getattr(self, "last", 1.0) * 1.1
        return x * self.last


class Rebinds(Odd):
    def changed(self, x: Tensor) -> Tensor:
        self.scale = 0.9 * self.scale + 0.1 * x.abs().mean()
        return x / self.scale


class Fills(Odd):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("first", None)

    def changed(self, x: Tensor) -> Tensor:
        self.first = x.abs().mean() if self.first is None else self.first
        return x / self.first


class RebindsData(Odd):
    def changed(self, x: Tensor) -> Tensor:
        self[0].weight.data = 0.9 * self[0].weight.data
        return x


class DrawsWhenScored(Odd):
    def forward(self, x: Tensor) -> Tensor:
        return nn.Sequential.forward(self, x if self.training else x * (1 + random.random()))


ODD = {
    DrawsPython: "come from Python's global generator",
    DrawsNumpy: "come from NumPy's global generator",
    DrawsWhenScored: "come from Python's global generator",
    Counts: "changes its Python attributes calls:",
    Collects: "changes its Python attributes seen:",
    Adds: "changes its Python attributes last:",
    Rebinds: "",
    Fills: "",
    RebindsData: "",
}


@pytest.mark.parametrize("model", ODD, ids=lambda model: model.__name__)
def test_the_seed_decides_whatever_a_model_does_in_its_pass(model: type[Odd], vectors: Federation):
    made = plan(fedbn(), vectors, model, rounds=3)
    random.seed(1)
    whole, diary = written(made, workers=1)
    random.seed(2)
    before = random.getstate(), str(np.random.get_state())
    other, again = written(plan(fedbn(), vectors, model, rounds=3), workers=2)
    assert (random.getstate(), str(np.random.get_state())) == before
    assert same_runs(whole, other)
    assert diary.records == again.records
    resumed, rest = written(made, start=from_disk(diary.states[0]), workers=2)
    assert same_runs(whole, resumed)
    assert rest.records == [r for r in diary.records if r.round > 1]
    assert [text for text in diary.notes if "folding" not in text] == [
        text for text in diary.notes if ODD[model] and ODD[model] in text
    ]
    assert bool(diary.notes) == bool(ODD[model])


def test_what_takes_the_place_of_a_buffer_is_the_buffer(vectors: Federation):
    class InPlace(Odd):
        def changed(self, x: Tensor) -> Tensor:
            self.scale.copy_(0.9 * self.scale + 0.1 * x.abs().mean())
            return x / self.scale.clone()

    rebound, in_place = (run(plan(fedavg(), vectors, m)) for m in (Rebinds, InPlace))
    assert rebound.shared.state["scale"] != 1
    assert same_runs(rebound, in_place)


def test_an_entry_that_is_no_longer_what_it_was_refuses_the_client(vectors: Federation):
    class Grows(Odd):
        def changed(self, x: Tensor) -> Tensor:
            self.scale = torch.ones(len(self.scale.flatten()) + 1)
            return x

    with pytest.raises(
        TooFewClients, match=r"put torch.float32 \(4,\) in the place of scale, torch.float32 \(\)"
    ):
        run(plan(fedbn(), vectors, Grows))


@pytest.mark.parametrize("draw", [random.random, lambda: np.random.rand()], ids=["python", "numpy"])
def test_augmentation_that_draws_from_a_global_generator_is_seeded_and_said(
    draw: Callable[[], float], vectors: Federation
):
    def shifted(x: Tensor, draws: torch.Generator) -> Tensor:
        return x + draw()

    clients = tuple(replace(c, train=replace(c.train, augment=shifted)) for c in vectors.clients)
    data = replace(vectors, clients=clients)
    (one, diary), (two, _) = (written(plan(fedbn(), data), workers=w) for w in (1, 2))
    assert same_runs(one, two)
    assert [text for text in diary.notes if "global generator" in text]


def test_a_model_made_with_any_generator_is_made_by_the_seed(vectors: Federation):
    def made() -> nn.Module:
        net = bn_net()
        net[0].weight.data *= random.random() + np.random.rand()
        return net

    one, two = (run(plan(fedbn(), vectors, made, rounds=1)) for _ in range(2))
    assert same_runs(one, two)


def test_what_no_seed_decides_is_said(vectors: Federation):
    own = random.Random()

    class Own(Odd):
        def changed(self, x: Tensor) -> Tensor:
            return x * own.random()

    _, diary = written(plan(fedbn(), vectors, Own, rounds=1))
    assert [text for text in diary.notes if "cannot be repeated" in text]


@pytest.mark.parametrize(
    ("layer", "random"),
    [
        (nn.Dropout(0.1), True),
        (nn.RReLU(), True),
        (nn.AlphaDropout(0.1), True),
        (nn.BatchNorm1d(3), False),
        (nn.Softmax(dim=1), False),
    ],
)
def test_which_models_draw_random_numbers(layer: nn.Module, random: bool):
    model = nn.Sequential(nn.Linear(3, 3), layer).eval()
    found = habits(model, federation(2).clients)
    assert found.draws == (("torch's",) if random else ())
    assert (found.scoring, found.repeats) == (False, True)
    assert not model.training


class RaisesFor(nn.Sequential):
    """Fails in training on samples beyond 1000."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training and bool((x > 1000).any()):
            raise RuntimeError("boom")
        return super().forward(x)


@pytest.mark.parametrize("bad", [0, 1, 2])
@pytest.mark.parametrize("value", [3e38, 2000.0], ids=["overflows", "raises"])
def test_a_client_that_fails_is_named_and_the_run_goes_on(
    bad: int, value: float, vectors: Federation
):
    clients = list(vectors.clients)
    x = torch.full_like(clients[bad].train.x, value)
    clients[bad] = replace(clients[bad], train=replace(clients[bad].train, x=x))
    model = (lambda: RaisesFor(*bn_net())) if value == 2000 else bn_net
    made = plan(fedbn(), replace(vectors, clients=tuple(clients)), model)
    state, diary = written(made)
    name = clients[bad].name
    refused = [text for text in diary.notes if f": {name}: " in text and "scored" not in text]
    assert [text.partition(":")[0] for text in refused] == ["round 1", "round 2"]
    assert (state.round, state.shared.unusable()) == (2, None)
    marks = [(r.round, r.client, r.value) for r in diary.records if r.metric == "refused"]
    assert marks == [(1, name, 1.0), (2, name, 1.0)]


class CLibrary:
    """Stands for one that takes no mmap threshold above `most`; keeps what it was asked."""

    def __init__(self, most: int):
        self.most = most
        self.asked: list[tuple[int, int]] = []

    def mallopt(self, option: int, value: int) -> int:
        self.asked.append((option, value))
        return int(option != -3 or value <= self.most)


@pytest.fixture(params=[1 << 30, 1 << 25, 0])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> CLibrary:
    made = CLibrary(request.param)
    monkeypatch.setattr(allocator, "_mallopt", lambda: made.mallopt)
    monkeypatch.setattr(allocator, "_granted", {})
    return made


def test_freed_memory_is_kept_or_nothing_is_changed(library: CLibrary):
    allocator.keep_freed_memory()
    if library.most:
        kept = {"mmap_threshold": library.most, "trim_threshold": 2**31 - 1, "arenas": 1}
        assert allocator.granted() == kept
    else:  # with the trim threshold set, the other one would stay at 128 KiB for ever
        assert allocator.granted() == {}
        assert {option for option, _ in library.asked} == {-3}


def test_a_run_in_somebodys_process_leaves_its_allocator_alone(
    library: CLibrary, vectors: Federation
):
    run(plan(fedbn(), vectors))
    assert library.asked == []


def test_models_without_batchnorm_run_too(vectors: Federation):
    assert run(plan(fedavg(), vectors, plain_net)).round == 2
