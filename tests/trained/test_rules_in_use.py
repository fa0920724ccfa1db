"""A run whose method remembers, in use: its models, a new site, one that joins, and resuming."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from use_sites import site, write

import fedbn
from commanding import call
from fedbn.errors import ConfigError
from fedbn.runs import checkpoints
from fedbn.runs.folder import RunFolder
from fedbn.trained.joining import client_of, joining_state
from fedbn.trained.trained_run import Trained

ASKED = {"training__lr": 0.1, "checkpoint__every": 1, "workers": 1}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("rules") / "data", {"a": 1.0, "b": 5.0, "c": 20.0})


@pytest.fixture(scope="module")
def personal(data: Path) -> Trained:
    out = data.parent / "ditto"
    fedbn.fit(data, "mlp", "fedbn+ditto(0.5)", rounds=3, out=out, **ASKED)
    return fedbn.open_run(out)


def test_a_client_is_used_and_scored_with_its_personal_model(personal: Trained) -> None:
    own = personal.state.local["b"].state
    model = personal.model("b").state_dict()
    assert all(torch.equal(value, own[f"ditto.personal/{n}"]) for n, value in model.items())
    x, y = site(5.0, 1)
    assert personal.score(x[40:], np.array(["left", "right"])[y[40:]], "b") == pytest.approx(
        personal.accuracy()["b"]
    )


def test_its_export_is_the_personal_model(personal: Trained, tmp_path: Path) -> None:
    folder = personal.folder
    answer = call("export", folder, "--client", "b", "--out", tmp_path / "b.safetensors")
    assert answer.code == 0, answer.err
    found, own = load_file(tmp_path / "b.safetensors"), personal.state.local["b"].state
    assert all(torch.equal(value, own[f"ditto.personal/{n}"]) for n, value in found.items())
    assert call("report", folder, "--out", tmp_path / "report.html").code == 0


def test_a_new_site_begins_with_the_joint_model_and_no_memory(personal: Trained) -> None:
    x, y = site(8.0, 7)
    adapted = personal.adapt(x, site="new", how="reestimate")
    shared = personal.state.shared.state
    model = adapted.model("new").state_dict()
    assert torch.equal(model["0.weight"], shared["0.weight"])
    assert adapted.score(x, np.array(["left", "right"])[y], "new") > 0.5


def test_a_joining_client_has_no_memory_yet(personal: Trained, tmp_path: Path) -> None:
    more = write(tmp_path / "more", {"new": 8.0}) / "new.npz"
    state = joining_state(personal, client_of(personal, "new", more))
    new = state.local["new"].state
    assert int(new["rule.rounds"]) == 0
    assert not any(value.any() for name, value in new.items() if "/" in name)
    assert int(state.local["a"].state["rule.rounds"]) == 3


@pytest.mark.parametrize(
    "method", ["fedbn+scaffold", "feddyn(0.1)", "ditto", "fedrep(head_epochs=2)"]
)
def test_a_run_of_the_command_is_resumed_to_the_same_bits(
    method: str, data: Path, tmp_path: Path
) -> None:
    out, asked = tmp_path / "out", ("--rounds", 3, "--seed", 0, "--set", "checkpoint.every=1")
    given = ("--data", data, "--model", "mlp", "--method", method, *asked, "--out", out)
    assert call("run", *given).code == 0
    place = RunFolder(out).job(method, "default", 0)
    last = checkpoints.place_of(place, 3)
    whole = (last / "state.safetensors").read_bytes()
    numbers = (out / "metrics.jsonl").read_bytes()
    for file in last.iterdir():
        file.unlink()
    last.rmdir()
    assert call("resume", out).code == 0
    assert (last / "state.safetensors").read_bytes() == whole
    assert (out / "metrics.jsonl").read_bytes() == numbers


def test_no_batchnorm_at_all_is_a_row_of_a_sweep(data: Path, tmp_path: Path) -> None:
    file = tmp_path / "norms.toml"
    file.write_text(
        'methods = ["fedavg"]\nseeds = [0]\n[training]\nrounds = 2\n[model]\nname = "mlp"\n'
        f'[data]\npath = "{data}"\n[sweep]\nmodel.transform = ["none", "groupnorm"]\n'
    )
    assert call("run", file, "--workers", 1, "--out", tmp_path / "out").code == 0
    kept = {
        setting: set(fedbn.open_run(tmp_path / "out", setting=setting).model("a").state_dict())
        for setting in ("transform=none", "transform=groupnorm")
    }
    assert kept["transform=none"] - kept["transform=groupnorm"] == {
        f"{i}.{n}" for i in (1, 4) for n in ("running_mean", "running_var", "num_batches_tracked")
    }


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            ("--method", "fedbn+scaffold", "--set", "training.optimizer=Adam"),
            "plain SGD, not for Adam",
        ),
        (("--method", "fedbn+local(heed)"), "local('heed'): the model has no module or entry"),
        (("--method", "fedbn", "--set", "model.transform=layernorm"), "model.transform"),
        (("--method", "fedbn", "--set", "model.transform=groupnorm"), "fedbn keeps"),
    ],
)
def test_what_is_refused_is_one_line_and_leaves_nothing(
    asked: tuple[str, ...], said: str, data: Path, tmp_path: Path
) -> None:
    given = ("--data", data, "--model", "mlp", "--rounds", 1, *asked, "--out", tmp_path / "out")
    answer = call("run", *given)
    assert answer.code == ConfigError.exit_code
    assert said in answer.err
    assert "Traceback" not in answer.err
    assert not (tmp_path / "out").exists()


@pytest.mark.shows("R05")
def test_a_rule_that_errs_names_itself_and_every_client(
    data: Path, tmp_path: Path, monkeypatch
) -> None:
    (tmp_path / "wrong_rule.py").write_text(
        "from fedbn import Rule\n"
        "class Wrong(Rule):\n"
        "    label = 'wrong'\n"
        "    def round(self, client, train):\n"
        "        client.memory['c']\n"
    )
    monkeypatch.chdir(tmp_path)
    given = ("--data", data, "--model", "mlp", "--rounds", 2, "--seed", 0, "--out", "out")
    answer = call("run", *given, "--method", "fedbn+wrong_rule:Wrong")
    assert answer.code == 5
    said = "unknown memory of wrong 'c'"
    assert all(f"{client}: ModelError: {said}" in answer.err for client in "abc")
    assert "Traceback" not in answer.err
