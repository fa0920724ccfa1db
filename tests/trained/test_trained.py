"""Runs opened from their folder, and models used in the manner of scikit-learn."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import fedbn
from commanding import flip_row
from fedbn import registry
from fedbn.errors import ConfigError, DamagedRun, DataError, FedbnError
from fedbn.runs import checkpoints
from fedbn.runs.folder import sealed, unsealed
from fedbn.trained.trained_run import Trained
from tiny import bn_net, same_runs

X = np.random.default_rng(5).normal(size=(7, 3)).astype("float32")


def test_a_result_and_an_opened_run_are_of_one_class_and_agree(tmp_path: Path):
    sites = {"a": (np.repeat(X, 3, 0), np.arange(21) % 2)}
    result = fedbn.fit(sites, "mlp", rounds=2, out=tmp_path / "run")
    opened = fedbn.open_run(tmp_path / "run")
    assert type(result) is type(opened) is fedbn.Result is Trained
    assert same_runs(result.state, opened.state)
    assert result.records == opened.records
    assert np.array_equal(result.predict_proba(X, "a"), opened.predict_proba(X, "a"))
    assert result.accuracy() == opened.accuracy()


def test_what_is_delivered_for_a_client_that_never_trained_is_what_was_scored(tmp_path: Path):
    """Without its data, which the folder need not name; and through a stop."""
    draws = np.random.default_rng(0)
    x = {
        name: draws.normal(5 * i, 10.0**i, (60, 3)).astype("float32")
        for i, name in enumerate("abcd")
    }
    y = {name: (x[name][:, 0] > 5 * i).astype("int64") for i, name in enumerate("abcd")}
    sites = {n: ((x[n][:40], y[n][:40]), (x[n][40:], y[n][40:])) for n in x}
    asked = {"rounds": 3, "training__participation": 0.25, "evaluation__validation": 0.2}
    result = fedbn.fit(sites, "mlp", out=tmp_path / "run", **asked)
    never = [*result.state.untrained]
    assert never
    opened = fedbn.open_run(tmp_path / "run")
    assert same_runs(result.state, opened.state)
    scores = opened.accuracy()
    for name in never:
        assert opened.score(*sites[name][1], name) == scores[name]
        assert np.array_equal(result.predict_proba(X, name), opened.predict_proba(X, name))
    whole = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    shutil.rmtree(newest(tmp_path / "run"))
    again = fedbn.fit(sites, "mlp", out=tmp_path / "run", resume=True, **asked)
    assert same_runs(again.state, result.state)
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == whole


def test_probabilities_are_the_model_s_softmax_whatever_the_chunk(trained: Trained):
    with torch.no_grad():
        expected = trained.model("b")(torch.from_numpy(X)).double().softmax(1).numpy()
    for chunk in (1, 3, 100):
        found = trained.predict_proba(X, "b", chunk=chunk)
        np.testing.assert_allclose(found, expected, atol=1e-6)
    np.testing.assert_allclose(found.sum(axis=1), 1)
    assert np.array_equal(found, trained.predict_proba(torch.from_numpy(X), "b"))
    assert np.array_equal(found, trained.predict_proba(X.tolist(), "b"))


def test_predictions_are_names_where_classes_have_names(trained: Trained):
    places = trained.predict_proba(X, "a").argmax(axis=1)
    found = trained.predict(X, "a")
    assert found.tolist() == np.array(["left", "right"])[places].tolist()
    assert trained.classes_.tolist() == ["left", "right"]
    assert trained.score(X, found, "a") == trained.score(X, places, "a") == 1.0
    assert trained.score(X, 1 - places, "a") == 0.0


def test_predictions_are_numbers_where_classes_have_none():
    result = fedbn.fit({"a": (np.repeat(X, 3, 0), np.arange(21) % 2)}, "mlp", rounds=1)
    found = result.predict(X, "a")
    assert found.dtype == np.int64
    assert result.score(X, found, "a") == 1.0


@pytest.mark.parametrize(
    ("x", "text"),
    [
        (X[:, :2], r"shape \(7, 2\), so samples of shape \(2,\); the run was trained on \(3,\)"),
        (X[0], r"shape \(3,\)"),
        (X[:0], "no samples"),
        (X * np.nan, "NaN in sample 0"),
        ([["a"]], "not numbers"),
        (X + 1j, "complex"),
    ],
)
def test_inputs_that_do_not_fit_are_named(trained: Trained, x: object, text: str):
    with pytest.raises(DataError, match=text):
        trained.predict(x, "a")


@pytest.mark.parametrize(
    ("y", "text"),
    [
        (["left"], "for 7 samples"),
        (["left"] * 6 + ["lef"], "sample 6: unknown class 'lef': did you mean 'left'"),
        ([0] * 6 + [2], "label 2 of sample 6: the run knows 0 to 1"),
        ([0.5] * 7, "legal are names and whole numbers"),
    ],
)
def test_labels_that_do_not_fit_are_named(trained: Trained, y: object, text: str):
    with pytest.raises(DataError, match=text):
        trained.score(X, y, "a")


def test_floats_of_another_scale_than_the_training_pictures_are_refused():
    pictures = np.random.default_rng(0).integers(0, 256, (12, 3, 8, 8)).astype("uint8")
    result = fedbn.fit({"a": (pictures, np.arange(12) % 2)}, "small_cnn", rounds=1)
    scaled = pictures.astype("float32") / 127.5 - 1
    assert np.allclose(result.predict_proba(pictures, "a"), result.predict_proba(scaled, "a"))
    with pytest.raises(DataError, match="scaled to −1 to 1"):
        result.predict(pictures.astype("float32"), "a")


def test_an_unknown_client_is_named_with_the_nearest(tmp_path: Path):
    result = fedbn.fit({"clinic": (np.repeat(X, 3, 0), np.arange(21) % 2)}, "mlp", rounds=1)
    with pytest.raises(ConfigError, match="'clinik': did you mean 'clinic'"):
        result.predict(X, "clinik")


def test_the_data_is_read_only_when_it_is_asked_for(home: Path):
    (home / "data").unlink()
    (home / "data").mkdir()
    config = home / "fedbn" / "config.toml"
    config.write_text(config.read_text().replace("use0/data", "gone"), encoding="utf-8")
    opened = fedbn.open_run(home / "fedbn")
    assert opened.predict(X, "a").shape == (7,)
    assert opened.plan.federation.classes == ("left", "right")


def test_a_run_from_before_the_facts_were_kept_reads_its_data(home: Path):
    file = home / "fedbn" / "environment.json"
    old = {k: v for k, v in json.loads(file.read_text()).items() if k != "inputs"}
    expected = fedbn.open_run(home / "fedbn").predict_proba(X, "a")
    file.write_text(json.dumps(old))
    assert np.array_equal(fedbn.open_run(home / "fedbn").predict_proba(X, "a"), expected)


def test_the_federation_of_an_opened_run_is_the_real_one(trained: Trained):
    sizes = [len(client.train) for client in trained.federation.clients]
    assert sizes == [40, 40, 40]
    assert [len(client.train) for client in trained.plan.federation.clients] == [2, 2, 2]


def test_the_defaults_are_fedbn_the_first_seed_and_the_first_setting(tmp_path: Path, home: Path):
    from commanding import call

    answer = call(
        *("run", "--data", home / "data", "--model", "mlp", "--rounds", 1, "--workers", 1),
        *("--method", "fedavg", "--method", "fedbn", "--seed", 3, "--seed", 1),
        *("--set", "sweep.training.lr=[0.1,0.2]", "--out", tmp_path / "swept"),
    )
    assert answer.code == 0, answer.err
    plan = fedbn.open_run(tmp_path / "swept").plan
    assert (plan.method.name, plan.seed, plan.setting) == ("fedbn", 3, "lr=0.1")
    other = fedbn.open_run(tmp_path / "swept", method="fedavg", seed=1, setting="lr=0.2").plan
    assert (other.method.name, other.seed, other.training.lr) == ("fedavg", 1, 0.2)
    assert len(fedbn.jobs_of(tmp_path / "swept")) == 8
    for wrong, text in (
        ({"method": "fedbm"}, "unknown method 'fedbm': did you mean 'fedbn'"),
        ({"seed": 0}, "unknown seed '0'"),
        ({"setting": "lr=0.3"}, "unknown setting 'lr=0.3'"),
    ):
        with pytest.raises(ConfigError, match=text):
            fedbn.open_run(tmp_path / "swept", **wrong)


def test_a_run_on_python_objects_asks_for_what_it_lacks(tmp_path: Path):
    sites = {"a": (np.repeat(X, 3, 0), np.arange(21) % 2)}
    result = fedbn.fit(sites, bn_net, rounds=1, out=tmp_path / "run")
    with pytest.raises(ConfigError, match=r"open_run\(\.\.\., model="):
        fedbn.open_run(tmp_path / "run")
    opened = fedbn.open_run(tmp_path / "run", model=bn_net)
    assert np.array_equal(opened.predict_proba(X, "a"), result.predict_proba(X, "a"))
    with pytest.raises(ConfigError, match=r"open_run\(\.\.\., data="):
        _ = opened.federation
    whole = fedbn.open_run(tmp_path / "run", model=bn_net(), data=sites)
    assert len(whole.federation.clients[0].train) == 17


def newest(run: Path) -> Path:
    return max((run / "checkpoints").glob("*/*/*/round-*"))


def test_a_damaged_checkpoint_gives_way_to_the_one_before_and_says_so(home: Path):
    file = newest(home / "fedbn") / "state.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    heard: list[str] = []
    opened = fedbn.open_run(home / "fedbn", notes=heard.append)
    assert opened.state.round == 3
    assert "state.safetensors: damaged" in heard[0]
    shutil.rmtree(newest(home / "fedbn"))
    (newest(home / "fedbn") / "state.safetensors").write_bytes(b"")
    with pytest.raises(DamagedRun, match="no whole checkpoint is left"):
        fedbn.open_run(home / "fedbn")


def test_a_damaged_part_is_named_by_its_client_and_the_others_still_work(home: Path):
    flip_row(newest(home / "fedbn"), "b")
    opened = fedbn.open_run(home / "fedbn")
    assert not opened.model("a").training
    with pytest.raises(DamagedRun, match="the local part of b: damaged"):
        opened.model("b")


def test_folders_that_cannot_be_opened_say_why(home: Path, tmp_path: Path):
    with pytest.raises(ConfigError, match="no run here"):
        fedbn.open_run(tmp_path / "nothing")
    config = home / "fedavg" / "config.toml"
    config.write_text(config.read_text().replace("format = 1", "format = 2"))
    with pytest.raises(DamagedRun, match="format 2 is from a newer fedbn"):
        fedbn.open_run(home / "fedavg")
    manifest = newest(home / "silobn") / "manifest.json"
    manifest.write_bytes(sealed({**unsealed(manifest, checkpoints.FORMAT), "format": 9}))
    shutil.rmtree(min(manifest.parents[1].glob("round-*")))
    with pytest.raises(DamagedRun, match="format 9 is from a newer fedbn"):
        fedbn.open_run(home / "silobn")
    shutil.rmtree(home / "fedbn" / "checkpoints")
    with pytest.raises(ConfigError, match="records without checkpoints: no models to use"):
        fedbn.open_run(home / "fedbn")
    (home / "fedbn" / "metrics.jsonl").unlink()
    with pytest.raises(ConfigError, match="no round of fedbn, setting default, seed 0"):
        fedbn.open_run(home / "fedbn")
    assert [job.rounds_done for job in fedbn.jobs_of(home / "fedbn")] == [0]


def test_a_run_of_a_federation_says_where_the_local_parts_are(home: Path):
    path = newest(home / "fedbn")
    manifest = checkpoints.read_manifest(path)
    del manifest["rows"]["local"]
    (path / "manifest.json").write_bytes(sealed(manifest))
    with pytest.raises(FedbnError, match="lie at the sites"):
        fedbn.open_run(home / "fedbn")


def test_a_user_s_own_model_is_found_where_the_run_was_started(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "nets_of_this_test.py").write_text("from tiny import bn_net as net\n")
    monkeypatch.chdir(tmp_path)
    model = "nets_of_this_test:net"
    made = fedbn.fit(home / "data", model, rounds=1, out=tmp_path / "own")
    monkeypatch.chdir(home)
    monkeypatch.delitem(sys.modules, "nets_of_this_test")
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p != str(tmp_path)])
    # In one process nothing is asked: the name was typed here.
    assert np.array_equal(
        fedbn.open_run(tmp_path / "own").predict_proba(X, "a"), made.predict_proba(X, "a")
    )


def test_jobs_with_own_methods_are_listed_anywhere_and_opened_with_trust(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "methods_of_this_test.py").write_text("from fedbn import fedbn as mine\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    fedbn.fit(home / "data", "mlp", "methods_of_this_test:mine", rounds=1, out=tmp_path / "own")
    monkeypatch.chdir(home / "data")
    monkeypatch.delitem(sys.modules, "methods_of_this_test")
    monkeypatch.setattr(registry, "_trusted", set())
    sys.path[:] = [p for p in sys.path if p != str(tmp_path)]
    (job,) = fedbn.jobs_of(tmp_path / "own")
    assert (job.method, job.rounds_done) == ("methods_of_this_test:mine", 1)
    with pytest.raises(FedbnError, match=r"config.toml: .* only with --trust methods_of_this_test"):
        fedbn.open_run(tmp_path / "own")
    assert "methods_of_this_test" not in sys.modules
    trust = ("methods_of_this_test", "fedbn.methods.paper")
    assert fedbn.open_run(tmp_path / "own", trust=trust).clients == ("a", "b", "c")
