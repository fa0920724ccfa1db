"""A site has a say: what its policy forbids, and what no person there approved, is not trained."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr", reason="flwr is not installed")

from flower_bench import RAW, SITES, Bench, FakeGrid, few
from flwr.app import RecordDict
from safetensors.torch import load
from typer.testing import CliRunner

from fedbn.cli.main import app
from fedbn.errors import ConfigError, FedbnError, NotApproved, TooFewClients
from fedbn.experiments.configuration import checked
from fedbn.flower import messages, server_app
from fedbn.flower.approvals import Approvals
from fedbn.flower.membership import Expected
from fedbn.flower.messages import KEY, Order
from fedbn.flower.policy import OPEN, Forbidden, Policy, read_policy
from fedbn.runs.folder import RunFolder

STRICT = Policy(approval=False)
KEYS = {name.encode(): name for name in SITES}
ATTACK = {
    **RAW,
    "methods": ["fedavg"],
    "model": {"name": "mlp", "args": {"hidden": []}},
    "training": {"rounds": 1, "local_steps": 1, "batch_size": 1, "participation": 0.3},
}


def grid_with(bench: Bench, policy: Policy, **options: object) -> FakeGrid:
    return FakeGrid([bench.site(name, policy=policy, **options) for name in SITES])


def training(**values: object) -> dict:
    return {**ATTACK, "training": {**ATTACK["training"], **values}}


def undoing(**values: object) -> dict:
    """Enough samples, if each step did not undo the one before."""
    return training(batch_size=8, local_steps=8, participation=1.0, lr=2.0**-20, **values)


def stolen(grid: FakeGrid) -> tuple[str, torch.Tensor]:
    """What the operator computes of one message and its answer: the sample behind the update."""
    site, sent, answer = next(e for e in grid.log if messages.SHARED in e[2].content)
    before, after = (load(m.content[messages.SHARED][KEY].data) for m in (sent, answer))
    weight = after["1.weight"].double() - before["1.weight"].double()
    bias = after["1.bias"].double() - before["1.bias"].double()
    row = int(bias.abs().argmax())
    return site, weight[row] / bias[row]


def test_without_a_policy_a_server_takes_a_picture_out_of_a_site(bench: Bench) -> None:
    """That is the attack; the tests below show what stops it."""
    grid = bench.grid()
    bench.run(grid, ATTACK)
    site, found = stolen(grid)
    own = next(client for client in few().clients if client.name == site).train
    pictures = own.batch(slice(None))[0].double().flatten(1)
    assert (pictures - found).abs().amax(dim=1).min() < 1e-3


@pytest.mark.shows("H07")
@pytest.mark.parametrize(
    ("raw", "rule"),
    [
        (ATTACK, r"forbids 1 samples a batch \(min_batch = 8\)"),
        (training(batch_size=8), r"forbids 8 samples behind an update \(min_samples = 32\)"),
        (undoing(optimizer_args={"weight_decay": 2.0**20}), r"SGD with weight_decay = 1048576.0"),
        (undoing(optimizer_args={"dampening": 1.0, "momentum": 0.9}), r"SGD with dampening = 1.0"),
        ({**undoing(), "methods": ["fedprox(1048576)"]}, r"forbids steps that undo 1 of others"),
        (training(batch_size=8, local_steps=4), r"forbids 1 sites a round \(min_sites = 2\)"),
        ({**RAW, "training": {"rounds": 1001}}, r"1,001 rounds \(max_rounds = 1,000\)"),
        ({**RAW, "training": {"rounds": 1, "local_epochs": 500}}, r"2,000 batches a round \("),
    ],
)
def test_what_the_strict_policy_forbids_is_refused_and_named(bench: Bench, raw, rule) -> None:
    grid = grid_with(bench, STRICT)
    with pytest.raises(TooFewClients, match=rule):
        bench.run(grid, raw)
    assert not [answer for _, _, answer in grid.log if messages.SHARED in answer.content]


# An undone update of the published attacks: the last batch alone is left in it.
LAST_OF_TWO = {"batch_size": 31, "last_batch": "keep", "local_epochs": 1}
LAST_OF_EIGHT = {"batch_size": 8, "local_epochs": 1}
UNDOES = {"optimizer": "AdamW", "lr": 100.0, "optimizer_args": {"eps": 1e12, "betas": [0.0, 0.0]}}
AVERAGES = {"optimizer": "ASGD", "lr": 1e-9, "optimizer_args": {"lambd": 1e9, "alpha": 0.0}}
GROWS = {"schedule": "ExponentialLR", "schedule_args": {"gamma": 1e4}, "rounds": 2}


def published(**values: object) -> dict:
    return {**ATTACK, "training": {"rounds": 1, **values}}


@pytest.mark.shows("H07")
@pytest.mark.parametrize(
    ("raw", "rule"),
    [
        (
            published(**LAST_OF_TWO, **UNDOES),
            r"2 samples in the last batch of a pass \(min_batch = 8; training.last_batch = 'merge'",
        ),
        (published(**LAST_OF_EIGHT, **UNDOES), r"AdamW with betas = \(0.0, 0.0\) \(allowed: "),
        (published(**LAST_OF_EIGHT, **AVERAGES), r"optimizer ASGD \(optimizers = \['SGD', 'Adam'"),
        (
            published(**LAST_OF_EIGHT, **GROWS),
            r"a learning rate of 100 in round 2 \(allowed: 0 to 1",
        ),
        (
            {**published(**LAST_OF_EIGHT), "task": {"class_weights": [1.0] * 9 + [1e6]}},
            r"class weights of which one is more than 2 times another .*max_class_weight = 2",
        ),
        (
            {**published(**LAST_OF_EIGHT), "task": {"class_weights": [0.0] * 9 + [1.0]}},
            r"class weights of which one is more than 2 times another",
        ),
    ],
)
def test_published_attacks_are_refused_by_the_default_policy(bench: Bench, raw, rule) -> None:
    grid = grid_with(bench, STRICT)
    with pytest.raises(TooFewClients, match=rule):
        bench.run(grid, raw)
    assert not [answer for _, _, answer in grid.log if messages.SHARED in answer.content]


def test_a_method_that_trains_very_often_is_refused_at_once(bench: Bench) -> None:
    """Each of its pieces doubles the trainings of a round."""
    method = "+".join(["fedrep"] * 28)
    (order,) = server_app.orders(checked(RAW), "fed")
    raw = {**order.experiment, "methods": [method]}
    site = bench.site("plain", policy=STRICT)
    begun = time.monotonic()
    with pytest.raises(Forbidden, match=r"10,737,418,203 batches a round \(max_steps = 400\)"):
        site.answer(
            messages.put(order.model_copy(update={"method": method, "experiment": raw})),
            RecordDict(),
        )
    assert time.monotonic() - begun < 20


def test_a_run_of_very_many_rounds_is_refused_before_its_learning_rates_are_computed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("a million steps of a schedule")

    monkeypatch.setattr("fedbn.core.schedule.rates", never)
    schedule = {"rounds": 1_000_000, "schedule": "CosineAnnealingLR"}
    (order,) = server_app.orders(checked({**RAW, "training": schedule}), "fed")
    with pytest.raises(Forbidden, match=r"forbids 1,000,000 rounds \(max_rounds = 1,000\)"):
        bench.site("plain", policy=STRICT).answer(messages.put(order), RecordDict())


def test_a_method_of_very_many_pieces_is_refused_before_it_is_made(bench: Bench) -> None:
    method = "fedbn" + "+prox(0)" * 400_000
    (order,) = server_app.orders(checked(RAW), "fed")
    raw = {**order.experiment, "methods": ["fedbn", method]}
    site, begun = bench.site("plain", policy=STRICT), time.monotonic()
    for update in ({"method": method}, {"experiment": raw}):
        asked = messages.put(order.model_copy(update=update))
        with pytest.raises(FedbnError, match=r"at most 1,?000 characters"):
            site.answer(asked, RecordDict())
    assert time.monotonic() - begun < 20


def test_the_published_attack_works_where_updates_are_not_bounded(bench: Bench) -> None:
    """The default AdamW decays by 0.01: with lr = 100 each step undoes all before it."""
    grid = grid_with(bench, OPEN)
    bench.run(grid, published(**LAST_OF_TWO, **UNDOES))
    _, sent, answer = next(e for e in grid.log if messages.SHARED in e[2].content)
    before, after = (load(m.content[messages.SHARED][KEY].data) for m in (sent, answer))
    last = after["1.weight"].double() * 1e10  # the gradient of the last batch, at weights of zero
    assert last.abs().max() < 1.0 < 1e10 * before["1.weight"].abs().max()
    assert 1 <= torch.linalg.matrix_rank(last, rtol=1e-4) <= 2  # two samples and no third


@pytest.mark.shows("H08")
def test_methods_and_models_are_allowed_by_name_or_by_the_models_hash(bench: Bench) -> None:
    with pytest.raises(TooFewClients, match=r"forbids method fedavg \(methods = \['fedbn'\]\)"):
        bench.run(grid_with(bench, Policy(approval=False, methods=["fedbn"])), ATTACK)
    both = {**RAW, "methods": ["fedbn+fedrep('last', 2)"]}
    with pytest.raises(TooFewClients, match=r"forbids method fedrep \(methods = \['fedbn'\]\)"):
        bench.run(grid_with(bench, Policy(approval=False, methods=["fedbn"])), both)
    with pytest.raises(TooFewClients, match=r"forbids model small_cnn \([0-9a-f]{16}\)"):
        bench.run(grid_with(bench, Policy(approval=False, models=["mlp"])))
    question = server_app.orders(checked(RAW), "fed")[0]
    known = messages.get(
        bench.site("plain").answer(messages.put(question), RecordDict()), messages.Hello
    ).schema_hash[:16]
    bench.run(grid_with(bench, Policy(approval=False, models=[known])))


@pytest.mark.shows("H08")
def test_an_order_of_another_method_than_the_experiments_is_refused(bench: Bench) -> None:
    (order,) = server_app.orders(checked(RAW), "fed")
    changed = messages.put(order.model_copy(update={"method": "fedavg"}))
    with pytest.raises(Exception, match="method fedavg is not in the experiment's list"):
        bench.site("plain", policy=STRICT).answer(changed, RecordDict())


@pytest.mark.shows("H09")
def test_a_policy_says_how_many_runs_a_site_takes(bench: Bench) -> None:
    policy = Policy(approval=False, max_runs=1)
    bench.run(grid_with(bench, policy), name="one")
    with pytest.raises(TooFewClients, match=r"forbids 2 runs \(max_runs = 1\)"):
        bench.run(grid_with(bench, policy), name="two")


def test_numbers_that_the_policy_keeps_are_not_sent(bench: Bench) -> None:
    grid = grid_with(bench, Policy(approval=False, sends=[]))
    bench.run(grid)
    said = [a.content["answer"]["json"] for _, _, a in grid.log if "answer" in a.content]
    assert said
    for text in said:
        answer = json.loads(str(text))
        assert (answer["loss"], answer["scores"]) == (None, [])


@pytest.mark.shows("H10")
def test_an_experiment_waits_until_a_person_approves_it(bench: Bench, tmp_path: Path) -> None:
    def grid() -> FakeGrid:
        return FakeGrid([bench.site(name, policy=Policy(), home=tmp_path / name) for name in SITES])

    raw = {**RAW, "training": {**RAW["training"], "optimizer_args": {"momentum": 0.5}}}
    with pytest.raises(NotApproved, match=r"photo: waits for approval by a person at the site"):
        bench.run(grid(), raw)
    assert "photo waits for approval" in bench.notes()
    (asked,) = Approvals(tmp_path / "photo").all()
    said = CliRunner().invoke(app, ["federation", "approve", str(tmp_path / "photo")])
    assert asked.hash[:16] in said.output
    assert "waits" in said.output
    for row in ("training.last_batch merge", "training.optimizer_args.momentum 0.5"):
        assert row in " ".join(said.output.split())
    for name in SITES:
        line = ["federation", "approve", str(tmp_path / name), asked.hash[:8]]
        assert CliRunner().invoke(app, line).exit_code == 0
    folder = bench.run(grid(), raw, name="another-name")
    assert folder.metrics.exists()
    longer = {**raw, "training": {**raw["training"], "rounds": 3}}
    with pytest.raises(NotApproved):
        bench.run(grid(), longer, name="longer")
    line = ["federation", "approve", str(tmp_path / "photo"), asked.hash[:8], "--withdraw"]
    assert CliRunner().invoke(app, line).exit_code == 0
    with pytest.raises(NotApproved):
        bench.run(grid(), raw, name="withdrawn")


@pytest.mark.shows("H10")
def test_training_itself_needs_the_approval_and_not_only_the_first_question(
    bench: Bench, tmp_path: Path
) -> None:
    grid = bench.grid()
    bench.run(grid)
    order = next(m for s, m, a in grid.log if s == "photo" and messages.SHARED in a.content)
    site = bench.site("photo", policy=Policy(), home=tmp_path)
    with pytest.raises(messages.NotYet, match="waits for approval"):
        site.answer(order.content, RecordDict())


def test_approval_that_comes_while_the_run_waits_lets_it_begin(bench: Bench, tmp_path) -> None:
    grid = grid_with(bench, Policy(), home=tmp_path)
    bench.limits = type(bench.limits)(wait=60, round=5, grace=0, poll=0.01, look=0, again=0.01)
    tamper = grid.tamper

    def approve(site, answer):
        for asked in Approvals(tmp_path).all():
            Approvals(tmp_path).decide(asked.hash, True)
        return tamper(site, answer)

    grid.tamper = approve
    bench.run(grid)
    assert "plain waits for approval" in bench.notes()


@pytest.mark.shows("H11")
@pytest.mark.parametrize("path", ["/etc/hostname", "/no/such/file"])
def test_a_site_says_nothing_of_a_path_that_the_server_names(bench: Bench, path: str) -> None:
    order = server_app.orders(checked(RAW), "fed")[0]
    experiment = {**order.experiment, "model": {"name": "small_cnn", "weights": path}}
    asked = order.model_copy(update={"experiment": experiment, "weights": "0" * 64})
    with pytest.raises(ConfigError) as caught:
        bench.site("plain").answer(messages.put(asked), RecordDict())
    assert str(caught.value) == (
        "the model starts from weights: bring the server's file to this site and join with "
        "--weights FILE (its sha256: 0000000000000000)"
    )


@pytest.mark.shows("H12")
def test_a_site_refuses_the_steps_that_another_sites_count_asks_for(bench: Bench) -> None:
    raw = {**RAW, "training": {"rounds": 1, "unequal": "repeat"}}

    def boast(site, answer):
        record = answer.content.config_records.get("hello")
        if site == "photo" and record:
            said = json.loads(str(record["json"]))
            said["member"]["examples"] = 10**9
            record["json"] = json.dumps(said)
        return answer

    grid = grid_with(bench, STRICT)
    grid.tamper = boast
    with pytest.raises(TooFewClients, match="because photo says it has 1,000,000,000 samples"):
        bench.run(grid, raw)


@pytest.mark.parametrize(
    ("method", "steps"), [("fedrep('last', 500)", 2003), ("ditto", 6), ("fedbn+prox(0.1)", 3)]
)
def test_further_trainings_of_a_method_are_counted(bench: Bench, method: str, steps: int) -> None:
    """64 samples in batches of 16 are 4 steps a pass; the plan says 3 steps a training."""
    question = messages.put(server_app.orders(checked({**RAW, "methods": [method]}), "fed")[0])
    tight, wide = (
        bench.site("plain", policy=Policy(approval=False, max_steps=most))
        for most in (steps - 1, steps)
    )
    with pytest.raises(Forbidden, match=f"forbids {steps:,} batches a round"):
        tight.answer(question, RecordDict())
    assert "hello" in wide.answer(question, RecordDict())


@pytest.mark.shows("H13")
def test_a_count_far_from_the_one_agreed_is_refused(bench: Bench, tmp_path: Path) -> None:
    folder = server_app.make(tmp_path / "fed", SITES)
    assert folder.agree("photo", 10, "d") is None
    assert folder.agree("photo", 20, "d") is None
    assert "1,000 training samples, 10 were agreed" in (folder.agree("photo", 1000, "d") or "")
    assert folder.agreed() == {"photo": {"d": 10}}
    folder.samples.write_text("photo = 10\n")  # as earlier versions wrote it: for any data
    expected = Expected(SITES, KEYS, 2, folder.agree)
    with pytest.raises(TooFewClients, match=r"photo: says it has 64 training samples, 10 were"):
        bench.run(bench.grid(), expected=expected)


@pytest.mark.shows("H14")
@pytest.mark.parametrize("name", ["../up", "a/b", "", ".hidden", "a" * 101, "new\nline"])
@pytest.mark.parametrize("field", ["federation", "run"])
def test_no_name_of_an_order_leads_out_of_its_folder(bench: Bench, field: str, name: str) -> None:
    (order,) = server_app.orders(checked(RAW), "fed")
    content = messages.put(order)
    said = {**json.loads(str(content["order"]["json"])), field: name}
    content["order"]["json"] = json.dumps(said)
    with pytest.raises(messages.Unreadable, match=f"not a legal order: {field}"):
        bench.site("plain").answer(content, RecordDict())
    with pytest.raises(ConfigError, match="site"):
        bench.site(name, folder=None)


@pytest.mark.shows("H14")
def test_a_hash_that_is_none_is_refused(bench: Bench) -> None:
    (order,) = server_app.orders(checked(RAW), "fed")
    content = messages.put(order)
    said = {**json.loads(str(content["order"]["json"])), "schema_hash": "../../evil"}
    content["order"]["json"] = json.dumps(said)
    with pytest.raises(messages.Unreadable, match="schema_hash"):
        messages.get(content, Order)


@pytest.mark.shows("H15")
def test_a_policy_is_a_file_that_names_what_is_wrong_with_it(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(Policy().to_toml())
    assert read_policy(file) == Policy()
    assert "min_batch = 8  # samples in a batch, at least" in file.read_text()
    for text, reason in (
        ("min_batches = 4", "did you mean 'min_batch'"),
        ("min_batch = 0", "min_batch = 0"),
        ("approval = 'no'", "approval = 'no'"),
        ("optimizers = ['adamw']", "'adamw' is no class of torch.optim"),
        ("max_class_weight = 0.5", "max_class_weight = 0.5"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError, match=reason):
            read_policy(file)


def test_a_run_that_waited_in_vain_is_continued_by_the_same_command(tmp_path: Path) -> None:
    place = RunFolder(tmp_path / "run")

    def wait() -> None:
        place.metrics.write_bytes(b"")
        raise NotApproved("nobody approved it")

    with pytest.raises(NotApproved), server_app.begun(place, RAW):
        wait()
    with server_app.begun(place, RAW):
        assert place.request.exists()
