"""Rules: what they declare, how they wrap each other, and what a wrong one gets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import nn

from fedbn.core.method import Method, Proximal, ProximalGradient
from fedbn.core.plan import Plan
from fedbn.core.rounds import Rejection, initial_state, run_round
from fedbn.core.rule import Memory, Rule
from fedbn.core.selectors import local
from fedbn.core.state import Kind, entries
from fedbn.errors import ConfigError, DamagedRun, FedbnError, TooFewClients
from fedbn.methods import parse_method
from fedbn.methods.paper import fedavg, fedbn
from fedbn.runs import checkpoints
from tiny import Trainer, bn_net, done, federation, plan, same


@dataclass(frozen=True)
class Mine(Rule):
    """A rule that does what a test asks of it."""

    label = "mine"
    then: Callable = lambda client, train: train()
    declares: Callable = lambda model: [
        Memory("c", e, place) for e in model.trained for place in ("shared",)
    ]
    at_server: Callable = lambda server: None

    def declare(self, model):
        return self.declares(model)

    def round(self, client, train):
        return self.then(client, train)

    def server(self, server):
        return self.at_server(server)


def refused(rule: Rule, base: Method | None = None) -> str:
    made = plan((base or fedbn()) | rule, federation(8, 6))
    outcome = Trainer(made)(made.federation.clients[:1], initial_state(made))[0]
    assert isinstance(outcome, Rejection), outcome
    assert "\n" not in outcome.reason
    return outcome.reason


def test_what_a_rule_declares_is_an_entry_of_its_own_kind_that_no_selector_sees() -> None:
    method, found = fedbn() | Mine() | local("0"), entries(bn_net())
    names = {e.name: e.kind for e in method.shared(found)}
    assert names == {
        "3.weight": Kind.WEIGHT,
        "3.bias": Kind.WEIGHT,
        "mine.c/3.weight": Kind.RULE,
        "mine.c/3.bias": Kind.RULE,
    }
    assert {e.name for e in method.parts(found).local} == {e.name for e in method.local(found)}


def test_rules_wrap_each_other_in_the_order_in_which_they_are_written() -> None:
    heard: list[str] = []

    @dataclass(frozen=True)
    class Named(Rule):
        word: str

        @property
        def label(self):
            return self.word

        def round(self, client, train):
            heard.append(f"{self.label} begins")
            found = train(change=lambda: heard.append(self.label), steps=1)
            heard.append(f"{self.label} ends")
            return found

    made = plan(fedavg() | Named("one") | Named("two"), federation(8))
    Trainer(made)(made.federation.clients, initial_state(made))
    assert heard == ["one begins", "two begins", "one", "two", "two ends", "one ends"]


def test_what_is_not_stepped_does_not_move_under_momentum_and_weight_decay() -> None:
    def head_only(client, train):
        return train(only=["3.weight"])

    options = {"optimizer_args": {"momentum": 0.9, "weight_decay": 0.1}}
    made = plan(fedavg() | Mine(head_only, lambda model: []), federation(8, 9), **options)
    start, end = initial_state(made).shared.state, done(made).shared.state
    assert [n for n in start if not torch.equal(start[n], end[n])] == ["3.weight"]


def test_a_training_on_other_entries_leaves_the_models_as_they_are() -> None:
    def copy_only(client, train):
        before = {n: t.detach().clone() for n, t in client.tensors.items()}
        found = train(on=client.memory["copy"])
        assert all(torch.equal(before[n], t) for n, t in client.tensors.items())
        return found

    def declares(model):
        return [Memory("copy", e, "local", "entry") for e in model.shared]

    made = plan(fedavg() | Mine(copy_only, declares), federation(8, 9))
    state = done(made)
    start = initial_state(made)
    assert same(state.shared, start.shared)
    moved = state.local["a"].state
    assert int(moved["rule.rounds"]) == 2
    assert not torch.equal(moved["mine.copy/0.weight"], start.shared.state["0.weight"])


def test_a_penalty_is_the_rule_that_only_adds_a_term() -> None:
    def pull(client, train):
        return train(change=ProximalGradient(0.3, client.trained, client.anchor))

    one, other = fedbn() | Proximal(0.3), fedbn() | Mine(pull, lambda model: [])
    assert same(
        done(plan(one, federation(8, 9))).shared, done(plan(other, federation(8, 9))).shared
    )


@pytest.mark.shows("R02")
@pytest.mark.parametrize(
    ("declares", "said"),
    [
        (lambda m: [Memory("c", m.shared[0], "shared")] * 2, "mine declares c of 0.weight twice"),
        (lambda m: [Memory("c", m.local[0], "shared")], "mine would give c of 1.weight away"),
        (lambda m: [Memory("a b", m.shared[0], "local")], "mine declares 'a b': legal is one word"),
        (
            lambda m: [Memory("c", replace(m.shared[0], name="5.weight"), "local")],
            "mine: unknown entry '5.weight': did you mean '3.weight'?",
        ),
    ],
    ids=["twice", "what stays local", "no word", "no entry"],
)
def test_a_wrong_declaration_is_refused_before_anything_runs(declares: Callable, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plan(fedbn() | Mine(declares=declares), federation(8, 6)).check()
    assert said in str(caught.value)


@pytest.mark.shows("R02")
def test_the_same_rule_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"scaffold declares c of 0\.weight twice"):
        plan(parse_method("scaffold+scaffold"), federation(8, 6)).check()


@pytest.mark.shows("R01", "R05")
@pytest.mark.parametrize(
    ("then", "said"),
    [
        (lambda c, t: c.memory["d"], "unknown memory of mine 'd': Legal values: c"),
        (lambda c, t: c.memory["c"]["9.w"], "unknown entry of mine.c '9.w'"),
        (
            lambda c, t: c.memory["c"].__setitem__("0.weight", torch.zeros(2)),
            "mine.c of 0.weight: a value of shape (2,) for (4, 3)",
        ),
        (lambda c, t: c.memory.__setitem__("c", 0), "mine.c has an entry for each it is like"),
        (lambda c, t: 0.5, "mine gives a float, not what `train` gave"),
        (lambda c, t: t(only=["9.w"]), "'9.w'"),
        (lambda c, t: 1 / 0, "ZeroDivisionError"),
        (lambda c, t: t(tern=0), "unexpected keyword argument 'tern'"),
    ],
)
def test_a_rule_that_errs_is_a_refusal_that_names_it(then: Callable, said: str) -> None:
    assert said in refused(Mine(then))


@pytest.mark.shows("R04")
@pytest.mark.parametrize(
    "declares",
    [
        lambda m: [Memory("c", m.shared[0], "shared")],
        lambda m: [Memory("c", m.shared[0], "local")],
    ],
)
def test_nan_in_what_a_rule_remembers_is_refused_and_named(declares: Callable) -> None:
    def spoil(client, train):
        client.memory["c"]["0.weight"].fill_(float("nan"))
        return train()

    assert refused(Mine(spoil, declares)) == "its update has NaN or infinity in mine.c/0.weight"
    made = plan(fedbn() | Mine(spoil, declares), federation(8, 6))
    with pytest.raises(TooFewClients, match=r"round 1: 0 of 2 .*mine.c/0.weight"):
        run_round(made, initial_state(made), Trainer(made))


@pytest.mark.shows("R04")
def test_nan_at_the_server_ends_the_round_and_names_the_entry() -> None:
    def spoil(server):
        server.memory["h"]["0.weight"] = torch.full((4, 3), float("inf"))

    rule = Mine(declares=lambda m: [Memory("h", m.shared[0], "server")], at_server=spoil)
    made = plan(fedbn() | rule, federation(8, 6))
    state = initial_state(made)
    with pytest.raises(FedbnError, match=r"overflowed in mine.h/0.weight; nothing was taken over"):
        run_round(made, state, Trainer(made))
    assert not state.server.hooks["mine.h/0.weight"].any()


@pytest.mark.shows("R03")
@pytest.mark.parametrize("place", ["shared", "local", "server"])
def test_a_rule_that_declares_something_else_than_last_time_cannot_go_on(
    place: str, tmp_path: Path
) -> None:
    def made(entry: str) -> Plan:
        def declares(model):
            return [Memory("c", e, place) for e in model.shared if e.name == entry]

        return plan(fedbn() | Mine(declares=declares), federation(8, 6))

    checkpoints.save(tmp_path, done(made("0.weight")), {})
    with pytest.raises(DamagedRun, match=r"mine.c/.*was the rule another when the run began"):
        checkpoints.newest(tmp_path, initial_state(made("3.weight")))


def test_what_was_received_is_a_copy_and_what_was_sent_stays() -> None:
    def overwrite(client, train):
        for value in client.received.values():
            value.zero_()
        return train()

    one, other = Mine(overwrite, lambda model: []), Mine(declares=lambda model: [])
    ends = [done(plan(fedavg() | rule, federation(8, 6))) for rule in (one, other)]
    assert same(ends[0].shared, ends[1].shared)


@pytest.mark.shows("R06")
@pytest.mark.parametrize(
    ("method", "training", "said"),
    [
        ("scaffold+median", {}, "median is a choice among updates of the model"),
        ("feddyn+adam", {}, "feddyn(0.01) moves the model at the server itself, so adam"),
        ("fedadam+feddyn", {}, "feddyn(0.01) moves the model at the server itself"),
        (
            "scaffold",
            {"optimizer": "Adam"},
            "scaffold is defined for steps of plain SGD, not for Adam",
        ),
        (
            "fedbn+scaffold",
            {"optimizer_args": {"momentum": 0.9}},
            "scaffold is defined for steps of plain SGD, not for SGD, momentum",
        ),
        ("scaffold", {"clip_norm": 1.0}, "scaffold is defined for steps of plain SGD, not for SGD"),
        (
            "scaffold",
            {"weighting": "examples"},
            "scaffold is defined for clients that count the same",
        ),
        ("feddyn", {"weighting": "examples"}, "feddyn(0.01) is defined for clients that count"),
        (
            "ditto+scaffold",
            {},
            "ditto(0.1) trains in parts or on entries of its own, and what scaffold",
        ),
        ("scaffold+fedrep", {}, "head_first(10) trains in parts"),
        ("fedavg+fedadam+fedyogi", {}, "each has an optimiser at the server"),
        ("singleset+scaffold", {}, "nothing that is shared is trained"),
    ],
)
def test_what_does_not_go_together_says_why(method: str, training: dict, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plan(parse_method(method), federation(8, 6), **training).check()
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


class Pair(nn.Module):
    """Its head is called before its body is registered; the last layer in a pass is `head`."""

    def __init__(self, last: nn.Module | None = None):
        super().__init__()
        self.head = nn.Linear(4, 2)
        self.body = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        self.after = last or nn.Identity()

    def forward(self, x):
        return self.after(self.head(self.body(x)))


def test_the_last_module_is_that_of_a_pass() -> None:
    made = plan(parse_method("fedbn+local(last)"), federation(8, 6), Pair)
    made.check()
    found = entries(made.initial_model)
    kept = {e.name for e in made.method.parts(found).local if e.kind is Kind.WEIGHT}
    assert kept == {"head.weight", "head.bias"}
    assert made.method.name == "fedbn+local(last)"
    assert made.method.remarks(found) == []


@pytest.mark.shows("R08")
def test_a_last_module_that_is_not_the_head_is_pointed_out() -> None:
    made = plan(parse_method("fedper"), federation(8, 6), lambda: Pair(nn.BatchNorm1d(2)))
    (said,) = made.method.remarks(entries(made.initial_model))
    assert said.startswith("last is after (BatchNorm1d), and its outputs are not the model's")


def test_a_client_is_used_with_its_personal_model_from_its_first_round_on() -> None:
    made = plan(parse_method("ditto"), federation(8, 9, 7), participation=0.3, rounds=1)
    state = done(made)
    trainer = Trainer(made)
    (here,) = [n for n in state.local if state.local[n].state["rule.rounds"]]
    for name in state.local:
        trainer.replica.use(state.shared, state.local[name])
        own = state.local[name].state["ditto.personal/0.weight"]
        joint = state.shared.state["0.weight"]
        expected = own if name == here else joint
        assert torch.equal(trainer.replica.model.state_dict()["0.weight"], expected)
    assert not torch.equal(
        state.local[here].state["ditto.personal/0.weight"], state.shared.state["0.weight"]
    )


@dataclass(frozen=True)
class Pulled(Rule):
    """A rule that says nothing of how it is called."""

    towards: str = "start"
    share: float = 0.10
    how: Callable = min  # no word of a name: it would be another in another process


def test_a_rule_is_called_by_its_class_and_its_fields_unless_it_says_otherwise() -> None:
    found = [Pulled().label, Pulled("end", 1234567).label]
    assert found == ["pulled(start, 0.1)", "pulled(end, 1234567)"]
    assert Proximal(0.5).label == "prox(0.5)"


@dataclass(frozen=True)
class PersonalBody(Rule):
    """FedBABU with a personal model: of the joint and of the personal model the body is trained."""

    word = "personalbody"
    used = "personal"
    several = True

    def declare(self, model):
        return [Memory("personal", e, "local", start="entry") for e in model.shared + model.local]

    def round(self, client, train):
        body = [name for name in client.tensors if not name.startswith("3.")]
        done = train(only=body)
        train(on=client.memory["personal"], only=body, draws="personal")
        return done


@pytest.mark.parametrize("training", [{}, {"optimizer_args": {"momentum": 0.9}}])
def test_training_of_a_personal_model_moves_no_entry_outside_only(training: dict) -> None:
    made = plan(Method("babu", rules=(PersonalBody(),)), federation(8, 9), **training)
    before = initial_state(made)
    state = done(made)
    names = [e.name for e in entries(made.initial_model)]
    head = ["3.weight", "3.bias"]
    for client in "ab":
        personal = {n: state.local[client].state[f"personalbody.personal/{n}"] for n in names}
        unmoved = [n for n in names if torch.equal(personal[n], before.shared.state[n])]
        assert [n for n in unmoved if n != "0.bias"] == head  # BatchNorm cancels that bias
    assert all(torch.equal(state.shared.state[n], before.shared.state[n]) for n in head)


@dataclass(frozen=True)
class FrozenStatistics(Rule):
    """A personal model whose weights alone are trained, of memory that holds statistics too."""

    word = "frozenstatistics"
    several = True

    def declare(self, model):
        return [Memory("personal", e, "local", start="entry") for e in model.shared + model.local]

    def round(self, client, train):
        done = train()
        train(on=client.memory["personal"], only=["0.weight"])
        return done


def test_statistics_outside_only_stay_as_they_were_in_a_personal_model() -> None:
    made = plan(Method("frozen", rules=(FrozenStatistics(),)), federation(8), rounds=2)
    state, trainer = initial_state(made), Trainer(made)
    state = run_round(made, state, trainer).state
    first = {n: v.clone() for n, v in state.local["a"].state.items()}
    state = run_round(made, state, trainer).state
    moved = [n for n, v in state.local["a"].state.items() if not torch.equal(v, first[n])]
    assert moved == ["rule.rounds", "frozenstatistics.personal/0.weight"]


@dataclass(frozen=True)
class Misspelt(Rule):
    """A rule that names an entry that the model does not have."""

    def round(self, client, train):
        return train(only=["0.wieght"])


def test_only_refuses_an_entry_that_the_model_does_not_have() -> None:
    made = plan(Method("misspelt", rules=(Misspelt(),)), federation(8))
    with pytest.raises(TooFewClients, match=r"unknown entry '0.wieght': did you mean '0.weight'"):
        done(made)
