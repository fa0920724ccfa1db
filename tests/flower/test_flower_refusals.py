"""Answers that could poison the model are refused and named; the round goes on without them."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr", reason="flwr is not installed")

from flower_bench import RAW, SITES, Bench, FakeGrid, digits
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from google.protobuf.message import DecodeError
from safetensors.torch import load, save

from fedbn import registry
from fedbn.cli.training import check_contributions
from fedbn.core.engine import RoundCost
from fedbn.errors import ConfigError, NeverAccepted, TooFewClients
from fedbn.experiments.jobs import Event
from fedbn.flower import messages
from fedbn.flower.audit_log import AuditLog, read
from fedbn.flower.credentials import make_key
from fedbn.flower.membership import Expected
from fedbn.flower.messages import KEY
from fedbn.runs.folder import RunFolder


def record_of(state) -> ArrayRecord:
    data = save(state)
    return ArrayRecord({KEY: Array("uint8", (len(data),), "safetensors", data)})


def changed(change):
    """Tamper with the state that `photo` sends back."""

    def tamper(site: str, answer: Message) -> Message:
        if site == "photo" and messages.SHARED in answer.content:
            state = load(answer.content.array_records[messages.SHARED][KEY].data)
            answer.content[messages.SHARED] = record_of(change(dict(state)))
        return answer

    return tamper


def said(**values):
    """Tamper with what `photo` says with its update."""

    def tamper(site: str, answer: Message) -> Message:
        record = answer.content.config_records.get("answer")
        if site == "photo" and record and messages.SHARED in answer.content:
            text = json.dumps({**json.loads(record["json"]), **values})
            answer.content["answer"] = ConfigRecord({"json": text})
        return answer

    return tamper


def first(state, value):
    # By name: safetensors gives a file's tensors in no fixed order.
    name = min(n for n, v in state.items() if v.is_floating_point())
    return {**state, name: value(state[name])}


def spoiled(number):
    def spoil(tensor):
        copy = tensor.clone()
        copy.flatten()[0] = number
        return copy

    return lambda state: first(state, spoil)


def extra_record(site: str, answer: Message) -> Message:
    if site == "photo" and messages.SHARED in answer.content:
        answer.content["more"] = record_of({"bn1.weight": torch.ones(3)})
    return answer


def not_safetensors(site: str, answer: Message) -> Message:
    if site == "photo" and messages.SHARED in answer.content:
        data = (10**14).to_bytes(8, "little") + b"{}"
        answer.content[messages.SHARED] = ArrayRecord(
            {KEY: Array("uint8", (10,), "safetensors", data)}
        )
    return answer


HOSTILE = {
    "NaN": (changed(spoiled(float("nan"))), "NaN or infinity in"),
    "infinity": (changed(spoiled(float("inf"))), "NaN or infinity in"),
    "a norm a million times too large": (
        changed(lambda s: {n: v * 1e6 if v.is_floating_point() else v for n, v in s.items()}),
        "moves the model by",
    ),
    "a (1,) tensor": (changed(lambda s: first(s, lambda t: t.flatten()[:1])), "has shape (1,)"),
    "a tensor missing": (changed(lambda s: dict(sorted(s.items())[1:])), "missing"),
    "BatchNorm smuggled in": (
        changed(lambda s: {**s, "1.running_mean": torch.zeros(16)}),
        "not expected 1.running_mean",
    ),
    "another dtype": (changed(lambda s: first(s, torch.Tensor.double)), "is torch.float64"),
    "a record too many": (extra_record, "nothing else may travel"),
    "a header that claims 100 TB": (not_safetensors, "not a whole safetensors file"),
    "far too many bytes": (
        changed(lambda s: {**s, "x": torch.zeros(10**6)}),
        "bytes, where at most",
    ),
    "zero examples": (said(examples=0), "says it has 0 training samples"),
    "negative examples": (said(examples=-5), "says it has -5 training samples"),
    "enormous examples": (said(examples=10**15), "training samples"),
    "NaN examples": (said(examples=float("nan")), "NaN is not a number"),
    "an old round": (said(round=0), "answers for round 0, asked for round"),
    "another model": (said(schema_hash="0" * 64), "another model: 0000000000000000 there"),
    "oversized scores": (
        said(scores=[{"domain": "d", "split": "test", "metric": "m", "value": 1.0}] * 2000),
        "not a legal answer: scores",
    ),
    "a key nobody knows": (said(surprise=1), "surprise"),
    "a key that is no text": (said(**{"\ud800": 1}), r"'\ud800': input should be a valid string"),
    "a key of two lines": (said(**{"a\nb": 1}), r"not a legal answer: a\nb = '1'"),
    "a document over the limit": (
        said(schema_hash="0" * 4_001_000),
        "not a document of at most 4,000,000 characters",
    ),
    "an answer over the limit": (
        said(schema_hash="0" * 5_000_000),
        "bytes, expected at most 4,4",
    ),
}


@pytest.mark.shows(
    "F24", "F26", "F27", "F28", "F30", "F31", "F32", "F33", "F34", "W10", "W02", "H25"
)
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_answer_is_left_out_and_named(bench: Bench, name: str) -> None:
    tamper, reason = HOSTILE[name]
    grid = bench.grid(tamper)
    found = trained(bench, grid, "run")
    last = [a for s, _, a in grid.log if s == "plain" and messages.SHARED in a.content][-1]
    for entry, value in load(last.content[messages.SHARED][KEY].data).items():
        assert torch.equal(found[f"shared/{entry}"], value)  # the mean of one
    assert "round 1: photo is left out: " in bench.notes()
    assert reason in bench.notes()
    finished = [event for event in bench.events if event.kind == "round"]
    assert [event.round for event in finished] == [1, 2]
    values = [r["value"] for r in finished[-1].records if r["metric"] == "training_loss"]
    assert len(values) == 1
    assert values[0] == values[0]


def test_a_federation_with_a_site_rejected_in_every_round_is_no_success(bench: Bench) -> None:
    tamper, _ = HOSTILE["NaN"]
    folder = bench.run(bench.grid(tamper))
    with pytest.raises(NeverAccepted, match=r"saved, but every update of photo was rejected"):
        check_contributions(folder)
    assert bench.run(bench.grid(), name="good").metrics.exists()
    check_contributions(RunFolder(bench.root / "runs" / "good"))


def test_a_silent_reset_of_batchnorm_is_refused(bench: Bench) -> None:
    bench.run(bench.grid(said(source="fresh")))
    assert "round 2: photo is left out: its BatchNorm is new" in bench.notes()
    assert "round 1: photo is left out" not in bench.notes()


@pytest.mark.shows("F21", "F22")
def test_a_straggler_is_left_out_and_named(bench: Bench) -> None:
    bench.limits = type(bench.limits)(wait=0.5, round=0.3, grace=0, poll=0.01, look=10)
    bench.run(bench.grid(lambda s, a: None if s == "photo" and messages.SHARED in a.content else a))
    assert "round 1: photo is left out: no answer within 0.3 s; a later one is discarded" in (
        bench.notes()
    )


@pytest.mark.shows("F21")
def test_a_site_that_is_at_work_when_it_is_asked_joins_later(bench: Bench) -> None:
    """A site does one message at a time: who trains for an earlier run says nothing meanwhile."""
    bench.limits = type(bench.limits)(wait=0.2, round=5, grace=0, poll=0.01, look=10, again=0.01)
    asked: list[str] = []

    def busy(site: str, answer: Message) -> Message | None:
        first = site == "photo" and "hello" in answer.content and not asked
        asked.extend([site] * first)
        return None if first else answer

    def pause(cost: RoundCost) -> None:
        time.sleep(0.5)

    keys = {name.encode(): name for name in SITES}
    bench.run(bench.grid(busy), expected=Expected(SITES, keys, 1), costs=pause)
    assert "photo is silent: no answer within 0.2 s" in bench.notes()
    assert "photo joins; it starts from the shared part" in bench.notes()


def test_who_never_answers_is_named_with_the_reason(bench: Bench) -> None:
    bench.limits = type(bench.limits)(wait=0.2, round=5, grace=0, poll=0.01, look=10, again=0.01)
    with pytest.raises(TooFewClients, match=r"1 of 2 sites .* missing: photo: no answer within"):
        bench.run(bench.grid(lambda site, answer: None if site == "photo" else answer))


def test_a_node_that_restarts_is_asked_again_and_the_result_is_the_same(bench: Bench) -> None:
    undisturbed = bench.run(bench.grid(), name="undisturbed").metrics.read_text()
    lost = []

    def tamper(site: str, answer: Message) -> Message | None:
        if site == "photo" and messages.SHARED in answer.content and not lost:
            lost.append(answer)
            grid.activated["photo"] = "second"
            return None
        return answer

    grid = bench.grid(tamper)
    found = bench.run(grid, name="disturbed").metrics.read_text()
    assert lost
    assert found == undisturbed


@pytest.mark.shows("F25")
def test_an_answer_by_another_node_is_refused(bench: Bench) -> None:
    def tamper(site: str, answer: Message) -> Message:
        if site == "photo" and messages.SHARED in answer.content:
            answer.metadata.__dict__["_src_node_id"] = 999
        return answer

    bench.run(bench.grid(tamper))
    assert "photo is left out: answered by another node, 999" in bench.notes()


@pytest.mark.shows("F25", "F47")
def test_a_node_whose_key_is_not_known_is_never_asked(bench: Bench) -> None:
    grid = bench.grid()
    only = Expected(("plain",), {b"plain": "plain"}, 1)
    bench.run(grid, expected=only)
    assert {site for site, _, _ in grid.log} == {"plain"}


def test_too_few_sites_end_with_who_is_missing(bench: Bench) -> None:
    grid = bench.grid()
    grid.away = {"photo"}
    with pytest.raises(TooFewClients, match=r"1 of 2 sites are here .* missing: photo: not conn"):
        bench.run(grid)
    assert TooFewClients.exit_code == 5


def mismatched(change, name: str = "photo"):
    def tamper(site: str, answer: Message) -> Message:
        record = answer.content.config_records.get("hello")
        if site == name and record:
            text = json.dumps({**json.loads(record["json"]), **change})
            answer.content["hello"] = ConfigRecord({"json": text})
        return answer

    return tamper


SWAPPED = ["1", "0", *[str(digit) for digit in range(2, 10)]]


def test_a_rule_waits_for_as_many_sites_as_it_needs(bench: Bench) -> None:
    with pytest.raises(TooFewClients, match=r"2 of 2 sites are connected .* a round needs 3"):
        bench.run(bench.grid(), {**RAW, "methods": ["fedavg+krum"]})


@pytest.mark.shows("F52", "F53")
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"version": "0.0.1"}, "another version: fedbn 0.0.1 there"),
        ({"classes": SWAPPED}, "another class list: .* there, .* at plain .class 0 is '1' there"),
        ({"schema_hash": "f" * 64}, "another model: ffffffffffffffff there, [0-9a-f]{16} at plain"),
        ({"input_shape": [1, 28, 28]}, "samples of shape"),
        ({"input_shape": [10**30]}, "not a legal hello: input_shape = .* samples of at most"),
        ({"input_shape": [3, 10**6, 10**6]}, "not a legal hello: input_shape = .* at most"),
        ({"input_shape": [-1]}, "not a legal hello: input_shape.0 = '-1'"),
        ({"input_shape": [1] * 9}, "not a legal hello: input_shape"),
        ({"target": ["int64", [10**6, 10**6]]}, "not a legal hello: target.1 = .* at most"),
        (
            {"member": {"name": "plain", "domain": "x", "examples": 9}},
            "says it is 'plain', but its",
        ),
        ({"member": {"name": "photo", "domain": "x", "examples": 0}}, "member.examples = '0'"),
        ({"member": {"name": "photo", "domain": "x", "examples": 2.5}}, "member.examples = '2.5'"),
    ],
)
def test_a_site_that_does_not_fit_is_refused_before_round_1(bench, change, reason) -> None:
    with pytest.raises(TooFewClients, match=reason):
        bench.run(bench.grid(mismatched(change)))
    assert not [event for event in bench.events if event.kind == "round"]


def test_no_key_that_a_site_makes_up_breaks_the_servers_log(tmp_path: Path) -> None:
    data = json.dumps({"\ud800": 1}).encode()
    header = len(data).to_bytes(8, "little") + data
    state = ArrayRecord({KEY: Array("uint8", (len(header),), "safetensors", header)})
    content = RecordDict({"answer": ConfigRecord({"json": data.decode()}), "shared": state})
    log = AuditLog(tmp_path / "log.jsonl", make_key())
    log.write("came", came=messages.what_is_in(content))
    (line,) = read(tmp_path / "log.jsonl")
    assert line["came"]["fields"] == {"answer": [r"\ud800"]}
    assert line["came"]["arrays"]["shared"]["entries"] == [r"\ud800"]


def test_whose_node_is_seen_first_does_not_decide_who_is_refused(bench: Bench) -> None:
    grid = bench.grid(mismatched({"classes": SWAPPED}))
    nodes = grid.get_nodes
    grid.get_nodes = lambda: nodes()[::-1]
    with pytest.raises(TooFewClients, match=r"missing: photo: another class list: .* at plain"):
        bench.run(grid)


def test_the_server_cannot_make_a_site_run_code_of_its_choice(bench: Bench) -> None:
    raw = {**RAW, "model": {"name": "os:system", "args": {"command": "true"}}}
    with pytest.raises(TooFewClients, match="only with --trust os"):
        bench.run(bench.grid(), raw)


def test_a_site_takes_a_part_whose_module_it_trusts_however_it_is_written(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sites_own_parts.py").write_text(
        "from fedbn import proximal\n\ndef l1(): return proximal(0.1)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    grid = bench.grid()
    bench.run(grid)
    known = messages.get(grid.log[0][1].content, messages.Order)
    experiment = {**known.experiment, "methods": ["fedbn + sites_own_parts:l1"]}
    order = known.model_copy(update={"method": experiment["methods"][0], "experiment": experiment})
    site = bench.site("plain")
    with pytest.raises(ConfigError, match="only with --trust sites_own_parts"):
        site.answer(messages.put(order), RecordDict())
    assert "sites_own_parts" not in sys.modules
    registry.trust("sites_own_parts")
    assert (
        messages.get(site.answer(messages.put(order), RecordDict()), messages.Hello).member.name
        == "plain"
    )


@pytest.mark.shows("F54")
def test_a_site_refuses_another_version_and_another_federation(bench: Bench) -> None:
    grid = bench.grid()
    bench.run(grid)
    order = messages.get(grid.log[0][1].content, messages.Order)
    site = bench.site("plain")
    for change, reason in (
        ({"version": "9"}, "fedbn 9 at the"),
        ({"federation": "x"}, "another fed"),
    ):
        with pytest.raises(Exception, match=reason):
            site.answer(messages.put(order.model_copy(update=change)), RecordDict())


def test_a_robust_aggregator_bounds_a_sign_flip(bench: Bench) -> None:
    assert len(SITES) < len(digits().clients)
    flip = changed(lambda s: {n: -v if v.is_floating_point() else v for n, v in s.items()})
    bench.run(bench.grid(flip), {**RAW, "methods": ["fedbn+median"]})
    assert isinstance(bench.events[-1], Event)
    assert "left out" not in bench.notes()


class Repeating(FakeGrid):
    """Brings the first answer of `photo` a second time, or only in the round after."""

    def __init__(self, sites, late: bool) -> None:
        super().__init__(sites)
        self.late, self.kept, self.brought = late, None, []

    def pull_messages(self, message_ids):
        asked = list(message_ids)
        found = super().pull_messages(asked)
        if self.kept is None:
            its = (m for m in found if m.metadata.src_node_id == PHOTO)
            self.kept = next((m for m in its if messages.SHARED in m.content), None)
            return [m for m in found if m is not self.kept] if self.late else found
        if self.kept.metadata.reply_to_message_id in asked or self.kept in self.brought:
            return found
        self.brought.append(self.kept)
        return [*found, self.kept]


PHOTO = 101


class Garbling(FakeGrid):
    """Cannot read what `photo` sends with its updates, as Flower cannot where bytes are made up."""

    def pull_messages(self, message_ids):
        found = super().pull_messages(message_ids)
        if any(m.metadata.src_node_id == PHOTO and messages.SHARED in m.content for m in found):
            raise DecodeError("Error parsing message")
        return found


def trained(bench: Bench, grid: FakeGrid, name: str) -> dict[str, torch.Tensor]:
    folder = bench.run(grid, name=name)
    file = max(folder.path.rglob("state.safetensors"))
    return load(file.read_bytes())


def test_an_answer_that_flower_cannot_read_is_its_sites_fault_alone(bench: Bench) -> None:
    bench.run(Garbling([bench.site(name) for name in SITES]))
    assert "round 1: photo is left out: its answer cannot be read (DecodeError)" in bench.notes()
    assert "plain is left out" not in bench.notes()
    assert [event.round for event in bench.events if event.kind == "round"] == [1, 2]


@pytest.mark.parametrize("classes", [[], ["\ud800", "b"], ["a" * 201]])
def test_a_first_site_whose_classes_are_none_is_refused_and_named(bench: Bench, classes) -> None:
    keys = {name.encode(): name for name in SITES}
    grid = bench.grid(mismatched({"classes": classes}, "plain"))
    bench.run(grid, expected=Expected(SITES, keys, 1))
    assert "plain is refused: not a legal hello: classes" in bench.notes()
    assert [event.round for event in bench.events if event.kind == "round"] == [1, 2]


@pytest.mark.shows("F23")
def test_an_answer_that_comes_twice_counts_once(bench: Bench) -> None:
    grid = Repeating([bench.site(name) for name in SITES], late=False)
    found = trained(bench, grid, "twice")
    assert len(grid.brought) == 1
    bench.root = bench.root / "plain"
    expected = trained(bench, bench.grid(), "once")
    assert all(torch.equal(value, expected[name]) for name, value in found.items())


@pytest.mark.shows("F22")
def test_nothing_of_a_late_answer_is_used(bench: Bench) -> None:
    bench.limits = type(bench.limits)(wait=0.5, round=0.5, grace=0, poll=0.01, look=10)
    grid = Repeating([bench.site(name) for name in SITES], late=True)
    found = trained(bench, grid, "late")
    assert len(grid.brought) == 1
    assert "round 1: photo is left out: no answer within 0.5 s" in bench.notes()
    bench.root = bench.root / "never"
    seen: list[str] = []

    def swallow(site: str, answer: Message) -> Message | None:
        first = site == "photo" and messages.SHARED in answer.content and not seen
        seen.extend([site] * first)
        return None if first else answer

    expected = trained(bench, bench.grid(swallow), "never")
    assert all(torch.equal(value, expected[name]) for name, value in found.items())
