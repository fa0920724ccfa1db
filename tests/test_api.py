"""`fedbn.fit`: the same run from Python, with one's own objects."""

from __future__ import annotations

import importlib.machinery
import itertools
import logging
import multiprocessing
import sys
import threading
import warnings
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import fedbn
from fedbn.core.federation import Federation
from fedbn.errors import ConfigError, DataError, ModelError
from fedbn.experiments.runner import run_plan as run
from fedbn.methods.paper import fedbn as fedbn_method
from tiny import bn_net, federation, plain_net, plan, same_runs


def site(scale: float = 1.0, n: int = 20) -> tuple[np.ndarray, np.ndarray]:
    draws = np.random.default_rng(0)
    x = draws.normal(size=(n, 3)).astype("float32")
    return scale * x, (x[:, 0] > 0).astype("int64")


SITES = {"a": site(), "b": site(50.0)}


def test_fit_is_the_engine_s_run(vectors: Federation):
    result = fedbn.fit(vectors, bn_net, "fedbn", rounds=2, training__batch_size=5, training__lr=0.1)
    assert same_runs(result.state, run(plan(fedbn_method(), vectors, last_batch="merge")))
    assert result.folder is None


def test_every_client_gets_its_own_model():
    result = fedbn.fit(SITES, "mlp", "fedbn", rounds=2)
    assert result.clients == ("a", "b")
    a, b = result.models["a"].state_dict(), result.model("b").state_dict()
    assert torch.equal(a["0.weight"], b["0.weight"])
    assert not torch.equal(a["1.running_mean"], b["1.running_mean"])
    assert not result.model("a").training
    assert result.model("a")(torch.zeros(4, 3)).shape == (4, 2)
    with pytest.raises(ConfigError, match="unknown client 'c'"):
        result.model("c")


def test_the_records_say_how_well_it_went():
    result = fedbn.fit(SITES, "mlp", "fedbn", rounds=3, evaluation__every=2)
    rounds = {r.round for r in result.records if (r.split, r.metric) == ("test", "accuracy")}
    assert rounds == {2, 3}
    assert result.accuracy().keys() == {"a", "b"}
    assert all(0 <= value <= 1 for value in result.accuracy("train").values())
    asked = (3, "accuracy", "running")
    records = [r for r in result.records if (r.round, r.metric, r.statistics) == asked]
    assert result.accuracy() == {r.client: r.value for r in records}


def test_centralized_is_scored_by_domain():
    result = fedbn.fit(SITES, "mlp", "centralized", rounds=1)
    assert result.clients == ("all",)
    assert result.accuracy().keys() == {"a", "b"}


def test_a_model_given_as_an_object_is_copied():
    net = bn_net()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    result = fedbn.fit(SITES, net, rounds=1)
    assert all(torch.equal(value, before[k]) for k, value in net.state_dict().items())
    start = result.plan.initial_model.state_dict()
    assert all(torch.equal(value, before[k]) for k, value in start.items())


@pytest.mark.parametrize("written", [False, True])
def test_a_model_given_as_an_object_is_pointed_out_once(written: bool, tmp_path: Path):
    heard: list[str] = []
    asked = {"rounds": 1, "notes": heard.append, "out": tmp_path / "out" if written else None}
    fedbn.fit(SITES, bn_net(), **asked)
    assert [text for text in heard if "whatever the seed" in text] == heard
    assert len(heard) == 1


def test_a_function_starts_from_the_seed_and_an_object_from_its_weights(
    caplog: pytest.LogCaptureFixture,
):
    with caplog.at_level(logging.WARNING, "fedbn"):
        made = [fedbn.fit(SITES, bn_net, rounds=1, seed=seed) for seed in (0, 0, 1)]
        assert caplog.messages == []
        net = bn_net()
        kept = [fedbn.fit(SITES, net, rounds=1, seed=seed) for seed in (0, 1)]
    first, again, other = [result.plan.initial_model.state_dict() for result in made]
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["0.weight"], other["0.weight"])
    weights = [result.plan.initial_model.state_dict()["0.weight"] for result in kept]
    assert torch.equal(*weights)
    assert len(caplog.messages) == 2  # heard without `notes`, once a call


def test_a_function_is_given_what_its_signature_names():
    seen = []

    def build(classes: int, input_shape: tuple[int, ...]) -> nn.Module:
        seen.append((classes, input_shape))
        return bn_net()

    fedbn.fit(SITES, build, rounds=1)
    assert set(seen) == {(2, (3,))}


def test_a_method_given_as_a_value():
    method = fedbn.fedbn() | fedbn.proximal(0.1) | fedbn.median()
    result = fedbn.fit(SITES, bn_net, method, rounds=1)
    assert result.plan.method == method
    assert {r.method for r in result.records} == {"fedbn+prox(0.1)+median"}


def test_a_fifth_is_held_out_for_testing_unless_a_test_is_given():
    x, y = site()
    result = fedbn.fit({"a": (x, y), "b": ((x, y), (x[:7], y[:7]))}, rounds=1)
    sizes = [(len(c.train), len(c.tests[c.name])) for c in result.plan.federation.clients]
    assert sizes == [(16, 4), (20, 7)]


def test_the_number_of_workers_and_a_second_call_change_nothing():
    runs = [fedbn.fit(SITES, "mlp", rounds=2, seed=3, workers=w) for w in (1, 2)]
    assert same_runs(runs[0].state, runs[1].state)
    assert runs[0].records == runs[1].records
    assert not same_runs(runs[0].state, fedbn.fit(SITES, "mlp", rounds=2, seed=4).state)


def test_a_run_folder_holds_the_same_run(tmp_path: Path):
    written = fedbn.fit(SITES, "mlp", rounds=2, out=tmp_path / "run")
    memory = fedbn.fit(SITES, "mlp", rounds=2)
    assert written.folder == tmp_path / "run"
    assert same_runs(written.state, memory.state)
    assert written.records == memory.records
    again = fedbn.fit(SITES, "mlp", rounds=2, out=tmp_path / "run", resume=True)
    assert same_runs(again.state, memory.state)
    with pytest.raises(fedbn.FedbnError):
        fedbn.fit(SITES, "mlp", rounds=2, out=tmp_path / "run")


def test_remarks_are_heard():
    heard: list[str] = []
    x, y = site(n=30)
    fedbn.fit({"a": ((x, 0 * y), (x, y)), "b": (x, y)}, rounds=1, notes=heard.append)
    assert "client a has no training sample of class 1" in heard


@pytest.mark.parametrize("written", [False, True])
def test_a_remark_is_heard_once(written: bool, tmp_path: Path):
    heard: list[str] = []
    x, y = site(n=30)
    sites = {"a": ((x, 0 * y), (x, y)), "b": (x, y)}
    out = tmp_path / "out" if written else None
    fedbn.fit(sites, rounds=1, notes=heard.append, out=out)
    assert heard.count("client a has no training sample of class 1") == 1


def test_a_result_is_shown_in_a_line(tmp_path: Path):
    result = fedbn.fit(SITES, bn_net, rounds=2, seed=3, out=tmp_path / "out")
    mean = sum(result.accuracy().values()) / 2
    shown = f"<Result of fedbn, seed 3, 2 rounds, 2 clients: mean test accuracy {mean:.3f}"
    assert repr(result) == f"{shown}, {tmp_path / 'out'}>"
    assert "Split(16 samples of (3,), torch.float32)" in repr(result.plan.federation)
    assert "tensor(" not in repr(result.plan)


def _as_in_the_parent(expected: fedbn.Result) -> None:
    again = fedbn.fit(SITES, bn_net, rounds=2)
    assert same_runs(again.state, expected.state)
    assert again.predict(np.zeros((100_000, 3), "float32"), client="a").shape == (100_000,)


@pytest.mark.shows("F62")
def test_a_forked_child_trains_as_its_parent():
    """It lacks the parent's OpenMP threads: an operation that waits for one never ends."""
    expected = fedbn.fit(SITES, bn_net, rounds=2)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        torch.ones(1_000_000).sum()  # the parent has threads
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Python 3.12, about forks beside threads
            child = multiprocessing.get_context("fork").Process(
                target=_as_in_the_parent, args=(expected,)
            )
            child.start()
        child.join(30)
        child.kill()
        child.join()
    finally:
        torch.set_num_threads(before)
    assert child.exitcode == 0


class Locked(nn.Module):
    """Holds what cannot be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.body = bn_net()
        self.body[0].once = threading.Lock()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


@pytest.mark.parametrize("model", [Locked, Locked()], ids=["function", "object"])
def test_a_model_that_cannot_be_copied_is_refused(model: object):
    with pytest.raises(ModelError, match=r"cannot be copied .* its body\.0\.once .*_thread\.lock"):
        fedbn.fit(SITES, model, rounds=1)


class Endless(Dataset):
    """A data set that never says that it ended, as many do."""

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, index: int) -> np.ndarray:
        return X[index % len(X)]


def test_a_model_without_batchnorm_is_refused_unless_allowed():
    with pytest.raises(ModelError, match=r"fedbn keeps bn_affine, bn_statistic local"):
        fedbn.fit(SITES, plain_net, "fedbn", rounds=1)
    allowed = {"rounds": 1, "method__allow_no_batchnorm": True}
    result = fedbn.fit(SITES, plain_net, "fedbn", **allowed)
    assert same_runs(result.state, fedbn.fit(SITES, plain_net, "fedavg", rounds=1).state)


X, Y = site()


@pytest.mark.parametrize(
    ("data", "error", "text"),
    [
        ({}, DataError, "no clients"),
        ({"a": 3}, DataError, r"client a: expected \(x, y\).*got a int"),
        (Endless(), DataError, "data is a Endless; expected a mapping"),
        ({"a": Endless()}, DataError, r"client a, sample 0: a ndarray; expected \(x, y\)"),
        ({"a": (Endless(), Y)}, DataError, "client a, test: a ndarray; expected"),
        ({"a": ([Endless()], Y)}, DataError, "client a, x: a Endless; expected arrays"),
        ({"a": ((X, Y), (Endless(), Y))}, DataError, "client a, test, x: a Endless"),
        (
            {"a": (DataLoader(Endless()), Y)},
            DataError,
            "client a, x: not numbers .*DataLoader.*; expected arrays",
        ),
        ({"a": (X, Y, Y[:3])}, DataError, r"client a, groups: shape \(3,\) for 20 samples"),
        ({"a": (X[:2], Y[:2])}, DataError, "client a: 2 samples; at least 3"),
        ({"a": (X, X[:, 0])}, ConfigError, "arrays has 1 target"),
        ({"a": ((X, Y - 1), (X, Y))}, DataError, "label -1 of sample"),
        ({"a": ((X, Y[:5]), (X, Y))}, DataError, "20 samples but 5 labels"),
        ({"a": ((X[:0], Y[:0]), (X, Y))}, DataError, "client a, train: no samples"),
        (
            {"a": ((X * np.nan, Y), (X, Y))},
            DataError,
            "client a, train: NaN in sample 0 and 19 more samples",
        ),
        ({"a/b": (X, Y)}, DataError, "client name 'a/b'"),
        ({"a": (X, Y), "b": (X[:, :2], Y)}, DataError, r"client b, train: samples of shape \(2,\)"),
        (
            "digits_minni",
            ConfigError,
            r"unknown data set 'digits_minni': did you mean 'digits_mini'",
        ),
    ],
)
def test_bad_data_is_named(data: object, error: type[Exception], text: str):
    with pytest.raises(error, match=text):
        fedbn.fit(data, bn_net, rounds=1)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"training__lrr": 1}, r"unknown key 'training\.lrr': did you mean 'training\.lr'"),
        ({"rounds": 0}, r"training\.rounds = 0"),
        ({"seed": -1}, r"seeds\.0 = -1"),
        ({"model": "mlpp"}, "unknown model 'mlpp': did you mean 'mlp'"),
        ({"method": "fedbm"}, "unknown method 'fedbm': did you mean 'fedbn'"),
        ({"training__optimizer": "Adm"}, "unknown optimizer 'Adm'"),
        ({"training__min_clients": 3}, "min_clients = 3: .* has 2 clients"),
        ({"method": 3}, "fit: method = 3: legal are a name and a Method"),
        ({"seed": range(3)}, r"fit: seed = range\(0, 3\): legal is one; several are `seeds`"),
        ({"data__percent": 0.1}, "data: unknown option 'data.percent'"),
        ({"model__name": "mlp"}, "fit: model.name = 'mlp': the argument `model` decides that"),
        ({"method": fedbn.fedprox(0.1), "method__mu": 1}, "method.mu = 1: `method` is a value"),
        ({"model": lambda: 3}, "gives a int, not an nn.Module"),
        ({"model": nn.Linear(3, 9), "method": "fedavg"}, r"gives \(2, 9\) for 2 samples"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, object], text: str):
    with pytest.raises(ConfigError, match=text):
        fedbn.fit(SITES, **{"model": "mlp", "rounds": 1, **settings})


def test_a_section_as_a_table_leaves_the_other_keys_alone():
    result = fedbn.fit(SITES, bn_net, rounds=2, training={"lr": 0.5})
    assert (result.plan.training.rounds, result.plan.training.lr) == (2, 0.5)


def test_errors_of_the_library_have_one_base():
    with pytest.raises(fedbn.FedbnError):
        fedbn.fit({}, rounds=1)
    assert isinstance(federation(4), fedbn.Federation)


def test_the_usual_settings_are_plain_keywords():
    result = fedbn.fit(SITES, bn_net, rounds=1, lr=0.5, batch_size="full", local_epochs=3)
    training = result.plan.training
    assert (training.lr, training.batch_size, training.local_epochs) == (0.5, None, 3)
    with pytest.raises(ConfigError, match=r"fit: training.lr = 0.1: given twice, as `lr` too"):
        fedbn.fit(SITES, bn_net, rounds=1, lr=0.5, training__lr=0.1)


@pytest.mark.parametrize("written", [False, True])
def test_several_methods_and_seeds_are_each_what_they_are_alone(written: bool, tmp_path: Path):
    out = tmp_path / "out" if written else None
    methods = ["fedavg", fedbn.fedbn() | fedbn.proximal(0.1)]
    found = fedbn.fit(SITES, bn_net, methods=methods, seeds=[3, 1], rounds=2, out=out)
    assert list(found.runs) == [
        (method, seed) for seed in (3, 1) for method in ("fedavg", "fedbn+prox(0.1)")
    ]
    for method, seed in itertools.product(methods, (3, 1)):
        alone = fedbn.fit(SITES, bn_net, method, rounds=2, seed=seed)
        one = found.runs[alone.plan.method.name, seed]
        assert same_runs(one.state, alone.state)
        assert one.records == alone.records
    if out:
        again = fedbn.fit(
            SITES, bn_net, methods=methods, seeds=[3, 1], rounds=2, out=out, resume=True
        )
        assert [r.records for r in again.runs.values()] == [r.records for r in found.runs.values()]


def test_one_seed_in_a_list_gives_results():
    found = fedbn.fit(SITES, bn_net, seeds=[4], rounds=1)
    assert isinstance(found, fedbn.Results)
    assert list(found.runs) == [("fedbn", 4)]


def test_results_are_shown_in_a_line():
    found = fedbn.fit(SITES, bn_net, methods=["fedavg", "fedbn"], seeds=[0, 1], rounds=1)
    means = [
        np.mean([np.mean(list(found.runs[m, s].accuracy().values())) for s in (0, 1)])
        for m in ("fedavg", "fedbn")
    ]
    shown = f"fedavg {means[0]:.3f}, fedbn {means[1]:.3f}"
    assert repr(found) == f"<Results of seeds [0, 1], mean test accuracy: {shown}>"


def test_numbers_come_as_a_frame(monkeypatch: pytest.MonkeyPatch):
    class Pandas:
        """What is asked of pandas, which need not be installed."""

        __spec__ = importlib.machinery.ModuleSpec("pandas", None)

        @staticmethod
        def DataFrame(rows, columns):  # noqa: N802
            return [[row[column] for column in columns] for row in rows]

    monkeypatch.setitem(sys.modules, "pandas", Pandas)
    found = fedbn.fit(SITES, bn_net, seeds=[0, 1], rounds=1)
    one = found.runs["fedbn", 1]
    assert {row[-1] for row in one.frame()} == {"running", "batch"}
    assert one.frame() == [list(asdict(record).values()) for record in one.records]
    assert found.frame() == found.runs["fedbn", 0].frame() + one.frame()


def test_a_frame_without_pandas_is_one_line(monkeypatch: pytest.MonkeyPatch):
    result = fedbn.fit(SITES, bn_net, rounds=1)
    monkeypatch.setitem(sys.modules, "pandas", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"frame\(\) needs pandas: `pip install pandas`"):
        result.frame()


def test_a_callback_hears_every_round():
    heard: list[fedbn.RoundDone] = []
    result = fedbn.fit(SITES, bn_net, rounds=3, evaluation__every=2, callback=heard.append)
    assert [(one.method, one.seed, one.round, one.rounds) for one in heard] == [
        ("fedbn", 0, i, 3) for i in (1, 2, 3)
    ]
    during = [record for record in result.records if record.statistics == "running"]
    assert [record for one in heard for record in one.records] == during
    assert heard[0].mean() is None
    assert heard[2].mean() == heard[2].mean("accuracy", "test")
    assert heard[2].mean("accuracy") == np.mean(list(result.accuracy().values()))


def test_scores_are_of_running_statistics_unless_others_are_named():
    result = fedbn.fit(SITES, bn_net, rounds=2, evaluation__final_statistics=["running"])
    exact = [
        replace(r, value=0.125, statistics="exact")
        for r in result.records
        if (r.round, r.split) == (2, "test")
    ]
    earlier = [replace(r, round=1, value=0.25) for r in exact]
    both = replace(result, records=(*result.records, *exact, *earlier))
    assert both.scores() == result.scores()
    assert both.accuracy() == result.accuracy()
    assert both.scores("train", "loss") == result.scores("train", "loss")
    assert both.scores(statistics="exact") == dict.fromkeys(result.scores(), 0.125)
    with pytest.raises(ConfigError, match=r"unknown statistics 'batch': .*: exact, running"):
        both.scores(statistics="batch")
    heard = fedbn.RoundDone("fedbn", 0, 2, 2, both.records, "accuracy")
    assert heard.mean() == replace(heard, records=result.records).mean()


class Pruned(Exception):  # noqa: N818
    """As Optuna's: what a callback raises to end a trial."""


@pytest.mark.shows("S15")
def test_a_callback_that_raises_ends_the_run_with_the_round_saved(tmp_path: Path):
    def prune(done: fedbn.RoundDone) -> None:
        if done.round == 2:
            raise Pruned

    with pytest.raises(Pruned):
        fedbn.fit(SITES, bn_net, rounds=4, out=tmp_path / "out", callback=prune)
    heard: list[int] = []
    went_on = fedbn.fit(
        SITES,
        bn_net,
        rounds=4,
        out=tmp_path / "out",
        resume=True,
        callback=lambda done: heard.append(done.round),
    )
    assert heard == [3, 4], "the round in which the callback raised was saved"
    whole = fedbn.fit(SITES, bn_net, rounds=4)
    assert same_runs(went_on.state, whole.state)
    assert went_on.records == whole.records
