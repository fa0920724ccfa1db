"""What a person at a site approves: all of it is shown, and nothing else is trained."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from flower_bench import RAW, SITES, Bench, FakeGrid
from flwr.app import RecordDict
from typer.testing import CliRunner

from fedbn.cli.approval_view import columns, differences, table, values_of
from fedbn.cli.main import app
from fedbn.errors import ConfigError, NotApproved
from fedbn.experiments.configuration import checked
from fedbn.flower import messages, server_app
from fedbn.flower.approvals import Approvals, Asked
from fedbn.flower.policy import Forbidden, Policy

PROX = {
    **RAW,
    "methods": ["fedbn", "fedprox"],
    "training": {
        "rounds": 3,
        "local_epochs": 2,
        "batch_size": 32,
        "lr": 0.1,
        "schedule": "ExponentialLR",
        "schedule_args": {"gamma": 0.5},
    },
}


def asked_at(bench: Bench, raw: dict, home: Path) -> Asked:
    """Let the site `plain` hear of an experiment; gives what it was asked to approve."""
    site = bench.site("plain", policy=Policy(), home=home)
    before = {one.hash for one in Approvals(home).all()}
    with pytest.raises(messages.NotYet):
        site.answer(messages.put(server_app.orders(checked(raw), "fed")[0]), RecordDict())
    (new,) = (one for one in Approvals(home).all() if one.hash not in before)
    return new


def approve(home: Path, *words: str) -> str:
    done = CliRunner().invoke(app, ["federation", "approve", str(home), *words])
    assert done.exit_code == 0, done.output
    return done.stdout


def as_read(text: str) -> str:
    """Put lines that were wrapped on one again."""
    return " ".join(text.split())


@pytest.mark.shows("H10")
@pytest.mark.parametrize("waiting", [True, False])
def test_everything_that_is_approved_is_shown_in_80_columns(
    bench: Bench, tmp_path: Path, waiting: bool
) -> None:
    asked = asked_at(bench, PROX, tmp_path)
    text = approve(tmp_path) if waiting else approve(tmp_path, asked.hash[:8])
    assert all(columns(line) <= 80 for line in text.splitlines())
    said = as_read(text)
    for row in (
        'methods ["fedbn", "fedprox"]',
        'rules.fedprox ["prox(0.01)"]',
        "seeds [0]",
        "training.rounds 3",
        "training.local_epochs 2",
        "training.batch_size 32",
        "training.optimizer SGD",
        "training.optimizer_args.momentum 0",
        "training.optimizer_args.weight_decay 0",
        "training.lr of the first round 0.1",
        "training.lr of the last round 0.025",
        "training.schedule ExponentialLR",
        "training.schedule_args.gamma 0.5",
        "model.name small_cnn",
        "model.parameters 1",
        "model.initial weights random, by the seed",
        "data.number of classes 10",
        "task.class_weights none",
        "evaluation.validation 0.0",
    ):
        assert row in said
    assert f"model.hash{asked.experiment['model']['hash']}" in text.translate({10: "", 32: ""})
    for section, values in checked(PROX).model_dump(exclude={"data", "checkpoint"}).items():
        if isinstance(values, dict) and section not in ("sweep", "quick"):
            for key in values.keys() - {"device", "weights"}:
                assert f"{section}.{key}" in text


def test_the_contract_is_shown_column_by_column(tmp_path: Path) -> None:
    columns_of = [
        {"name": "age", "unit": "years", "range": [0, 120]},
        {"name": "smokes", "values": ["yes", "no"]},
    ]
    contract = {"classes": ["ill", "well"], "label": "outcome", "columns": columns_of}
    found = values_of(Asked({"contract": contract}, "run", "now"))
    assert found == {
        "contract.classes": '["ill", "well"]',
        "contract.columns (in order)": '["age", "smokes"]',
        "contract.columns.age.range": "[0, 120]",
        "contract.columns.age.unit": "years",
        "contract.columns.smokes.values": '["yes", "no"]',
        "contract.label": "outcome",
    }


def test_a_later_experiment_is_shown_as_what_changed(bench: Bench, tmp_path: Path) -> None:
    first = asked_at(bench, PROX, tmp_path)
    assert "all of it is new" in approve(tmp_path, first.hash[:8])
    changed = {
        **PROX,
        "seeds": [7],
        "training": {**PROX["training"], "lr": 0.2},
        "task": {"class_weights": [1.0] * 9 + [2.0]},
    }
    second = asked_at(bench, changed, tmp_path)
    text = approve(tmp_path)
    assert f"{first.hash[:16]}  approved" in text
    after = text[text.index("Changed since") :].splitlines()
    assert after[0].startswith(f"Changed since {first.hash[:16]}, approved ")
    lines = [line.strip() for line in after if line.startswith("  changed")]
    assert lines == [
        "changed  seeds: [0] → [7]",
        "changed  training.lr: 0.1 → 0.2",
        "changed  training.lr of the first round: 0.1 → 0.2",
        "changed  training.lr of the last round: 0.025 → 0.05",
        "changed  training.lowest lr: 0.025 → 0.05",
        "changed  training.highest lr: 0.1 → 0.2",
        "changed  task.class_weights",
    ]
    assert "    - none" in after
    assert f"{second.hash[:16]}  waits" in text


@pytest.mark.shows("H10")
def test_another_seed_needs_another_approval(bench: Bench, tmp_path: Path) -> None:
    both = {**RAW, "seeds": [0, 1]}

    def grid() -> FakeGrid:
        return FakeGrid([bench.site(name, policy=Policy(), home=tmp_path / name) for name in SITES])

    with pytest.raises(NotApproved):
        bench.run(grid(), both)
    for name in SITES:
        (one,) = Approvals(tmp_path / name).all()  # both seeds together
        approve(tmp_path / name, one.hash[:8])
    bench.run(grid(), both, name="again")
    with pytest.raises(NotApproved):
        bench.run(grid(), {**RAW, "seeds": [0, 1, 2]}, name="more")
    (order, *_) = server_app.orders(checked(both), "fed")
    secret = messages.put(order.model_copy(update={"seed": 7}))
    with pytest.raises(Forbidden, match="seed 7 is not in the experiment's list"):
        grid().sites["plain"].answer(secret, RecordDict())
    unlisted = {key: value for key, value in order.experiment.items() if key != "seeds"}
    secret = messages.put(order.model_copy(update={"seed": 7, "experiment": unlisted}))
    with pytest.raises(Forbidden, match="seed 7 is not in the experiment's list"):
        grid().sites["plain"].answer(secret, RecordDict())


@pytest.mark.shows("H10")
def test_what_an_order_leaves_out_is_approved_with_its_default(
    bench: Bench, tmp_path: Path
) -> None:
    whole = asked_at(bench, RAW, tmp_path)
    site = bench.site("plain", policy=Policy(), home=tmp_path)
    (order,) = server_app.orders(checked(RAW), "fed")
    short = {
        key: order.experiment[key]
        for key in ("methods", "seeds", "training", "model", "evaluation")
    }
    with pytest.raises(messages.NotYet, match=whole.hash[:16]):
        site.answer(messages.put(order.model_copy(update={"experiment": short})), RecordDict())
    assert values_of(whole)["training.last_batch"]


@pytest.mark.shows("H10")
@pytest.mark.parametrize(("days", "lasts"), [(30, False), (40, True), (0, True)])
def test_an_approval_expires(bench: Bench, tmp_path: Path, days: int, lasts: bool) -> None:
    asked = asked_at(bench, RAW, tmp_path)
    approve(tmp_path, asked.hash[:8])
    file = tmp_path / "experiments" / f"{asked.hash}.json"
    long_ago = Approvals(tmp_path).find(asked.hash).asked  # the same form
    then = datetime.datetime.fromisoformat(long_ago) - datetime.timedelta(days=35)
    facts = json.loads(file.read_bytes())
    file.write_text(json.dumps({**facts, "approved": f"{then.isoformat()} by anna"}))
    policy = Policy(approval_days=days)
    (tmp_path / "policy.toml").write_text(policy.to_toml())
    site = bench.site("plain", policy=policy, home=tmp_path)
    question = messages.put(server_app.orders(checked(RAW), "fed")[0])
    if lasts:
        assert "hello" in site.answer(question, RecordDict())
        assert "  approved " in approve(tmp_path)
        return
    with pytest.raises(messages.NotYet, match=r"expired on .* \(approval_days = 30\): .* renews"):
        site.answer(question, RecordDict())
    assert "waits: its approval expired on" in approve(tmp_path)
    approve(tmp_path, asked.hash[:8])
    assert "hello" in site.answer(question, RecordDict())


HOSTILE = [
    "\x1b[2J\x1b[1;31mapproved\x1b[0m",
    "a\r  changed  nothing",
    "x\n3f2a91c4  approved by anna",
    "\u202etnecorp\u2066",
    "漢字" * 60,
    "e" + "\u0301" * 500,
    "\ud800",
    "\x9b31m",
]


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("full", [True, False])
def test_hostile_text_is_escaped_and_fits(text: str, full: bool) -> None:
    before = Asked({"data": {"classes": ["a"]}, text: 1}, "run", "now", "2026-01-01 by anna")
    asked = Asked({"data": {"classes": [text]}, "model": {"args": {text: text}}}, "run", "now")
    lines = [*table(asked, full), *differences(asked, before, full)]
    for line in lines:
        assert columns(line) <= 80
        assert line.isprintable()


def test_no_value_hides_another_one() -> None:
    args = {"a": {"b": 1}, "a.b": 2, "c": "0.1", "d": 0.1, "e": "none", "f": None, "g": "null"}
    assert values_of(Asked({"args": args}, "run", "now")) == {
        "args.a.b": "1",
        'args."a.b"': "2",
        "args.c": '"0.1"',
        "args.d": "0.1",
        "args.e": '"none"',
        "args.f": "none",
        "args.g": '"null"',
    }


def test_a_change_deep_in_a_long_value_is_shown() -> None:
    names = [f"class {number}" for number in range(5000)]
    other = [*names[:4000], "CHANGED", *names[4001:]]
    before = Asked({"classes": names}, "run", "now", "2026-01-01 by anna")
    asked = Asked({"classes": other}, "run", "now")
    lines = "\n".join(differences(asked, before))
    assert "CHANGED" in lines.replace("\n      ", "")
    assert "--full shows all" in as_read(lines)
    assert len(lines) < 2500
    assert "class 4999" in "\n".join(table(asked, full=True)).replace("\n" + " " * 40, "")


def test_an_approval_whose_date_cannot_be_read_is_damaged(bench: Bench, tmp_path: Path) -> None:
    asked = asked_at(bench, RAW, tmp_path)
    file = tmp_path / "experiments" / f"{asked.hash}.json"
    facts = json.loads(file.read_bytes())
    for said in ("yesterday", " ", "2026-01-01", 5):
        file.write_text(json.dumps({**facts, "approved": said}))
        with pytest.raises(ConfigError, match="damaged"):
            Approvals(tmp_path).all()
