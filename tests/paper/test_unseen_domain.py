"""New clients as an item: tested, with own statistics, and joining; on Gaussians, not digits."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedbn.core.federation import Client, Federation
from fedbn.datasets.synthetic import gaussians
from fedbn.errors import ConfigError
from fedbn.paper import unseen_domain
from fedbn.trained.joining import joining_state
from fedbn.trained.opening import open_run
from fedbn.trained.trained_run import Trained
from reproducing import numbers, request

SMALL = (
    "training.rounds=2",
    "reproduce.options.join_rounds=2",
)
BASE = {
    "methods": ["fedbn", "fedavg"],
    "seeds": [0],
    "training": {"rounds": 2, "batch_size": 16, "lr": 0.1},
    "data": {"name": "gaussians", "train": 40, "test": 20},
    "model": {"name": "two_layer", "args": {"width": 8, "alpha": 1.0}},
}


def newcomers(factor: float = 5.0) -> Federation:
    """Two clients that measure in other units."""
    drawn = gaussians(train=30, test=20, seed=7)
    names = ("morpho-global", "morpho-local")
    clients = tuple(_scaled(c, n, factor) for c, n in zip(drawn.clients, names, strict=True))
    return replace(drawn, clients=clients, remarks=("not their files",))


def _scaled(client: Client, name: str, factor: float) -> Client:
    train = replace(client.train, x=factor * client.train.x + 3)
    test = client.tests[client.domain]
    return Client(name, name, train, {name: replace(test, x=factor * test.x + 3)})


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The item on data that is drawn in a moment."""
    monkeypatch.setattr(unseen_domain, "load_federation", lambda section: newcomers())
    made = request("unseen-domain", tmp_path, *SMALL)
    how = made.experiment["reproduce"]
    return replace(made, experiment={**BASE, "reproduce": how})


def trained(asked, method: str) -> Trained:
    asked.train(BASE, Path("run"))
    return open_run(asked.folder / "run", method=method)


def test_the_tables_have_every_state_and_the_papers_choice_of_them(asked):
    outcome = unseen_domain.unseen_domain(asked)
    papers, states = map(numbers, outcome.tables)
    assert set(papers) == {("fedbn",), ("fedavg",)}
    assert papers["fedbn",] == states["own statistics", "fedbn"]
    assert papers["fedavg",] == states["tested", "fedavg"]
    assert list(states) == [
        (state, method)
        for state in ("tested", "own statistics", "joined")
        for method in ("fedbn", "fedavg")
    ]
    for one, other, mean in states.values():
        assert mean == (one + other) / 2
    assert "not their files" in outcome.remarks


def test_a_second_time_nothing_is_trained(asked):
    first = unseen_domain.unseen_domain(asked)
    files = {f: f.stat().st_mtime_ns for f in asked.folder.rglob("*.safetensors")}
    assert files
    assert unseen_domain.unseen_domain(asked) == first
    assert {f: f.stat().st_mtime_ns for f in asked.folder.rglob("*.safetensors")} == files


def test_with_fedbn_a_centre_that_joins_learns_its_own_batchnorm(asked, tmp_path: Path):
    before, new = trained(asked, "fedbn"), newcomers().clients[1]
    after = unseen_domain.join(before, new, 2, tmp_path / "joined", workers=1)
    assert after.state.round == before.state.round + 2
    assert set(after.state.local) == {"diagonal", "mixed", "morpho-local"}
    start = joining_state(before, new).local["morpho-local"].state
    own = after.state.local["morpho-local"].state
    assert not torch.equal(own["1.weight"], start["1.weight"])
    one, other = (after.model(name).state_dict() for name in ("diagonal", "morpho-local"))
    assert all(torch.equal(one[key], other[key]) for key in ("0.weight", "0.bias", "3.weight"))
    # Its inputs are five times as large, and so are the statistics that it learnt.
    assert own["1.running_var"].median() > 10 * one["1.running_var"].median()


def test_with_fedavg_all_have_one_model_after_joining(asked, tmp_path: Path):
    before = trained(asked, "fedavg")
    new = newcomers().clients[1]
    after = unseen_domain.join(before, new, 1, tmp_path / "joined", workers=1)
    one, other = (after.model(name).state_dict() for name in ("diagonal", "morpho-local"))
    assert all(torch.equal(one[key], other[key]) for key in one)


def test_a_join_that_was_cut_off_goes_on_to_the_same_end(asked, tmp_path: Path):
    before, new = trained(asked, "fedbn"), newcomers().clients[0]
    whole = unseen_domain.join(before, new, 3, tmp_path / "whole", workers=1)
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    shutil.rmtree(tmp_path / "cut" / f"round-{whole.state.round:06}")
    again = unseen_domain.join(before, new, 3, tmp_path / "cut", workers=1)
    one, other = (run.model("morpho-global").state_dict() for run in (whole, again))
    assert all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("join_rounds=0", "join_rounds = 0: legal are whole numbers from 1"),
        ("joinrounds=3", "reproduce.options.joinrounds.*did you mean"),
        ("new=3", "reproduce.options.new = 3: legal is a table"),
        ("new={trian=3}", "data.trian"),
    ],
)
def test_a_wrong_option_is_named(setting: str, text: str, tmp_path: Path):
    with pytest.raises(ConfigError, match=text):
        unseen_domain.unseen_domain(
            request("unseen-domain", tmp_path, f"reproduce.options.{setting}")
        )
