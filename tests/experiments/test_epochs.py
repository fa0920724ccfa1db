"""`training.epochs`, the paper's T: ⌈T/E⌉ rounds, in place of rounds; and tables of changes."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from commanding import call, newest
from fedbn.errors import ConfigError
from fedbn.experiments.configuration import changed, checked, request, scaled
from fedbn.experiments.jobs import jobs


def test_a_sweep_of_local_epochs_gives_each_setting_its_rounds() -> None:
    raw = {"training": {"epochs": 300}, "sweep": {"training": {"local_epochs": [1, 4, 8, 16]}}}
    found = {j.setting.name: j.setting.experiment.training.total_rounds for j in jobs(checked(raw))}
    assert list(found.values()) == [300, 75, 38, 19]


@pytest.mark.parametrize("other", ["rounds", "local_steps"])
def test_epochs_exclude_rounds_and_steps(other: str) -> None:
    with pytest.raises(ConfigError, match=f"epochs and {other} exclude each other"):
        checked({"training": {"epochs": 3, other: 2}})


def test_the_saved_configuration_states_epochs_and_resumes(sites: Path, tmp_path: Path) -> None:
    asked = ("--set", "training.epochs=5", "--set", "training.local_epochs=2", "--seed", 0)
    asked += ("--method", "fedbn", "--model", "mlp", "--out", tmp_path / "out")
    assert call("run", "--data", sites, *asked).code == 0
    assert newest(tmp_path / "out").name == "round-000003"
    saved = tomllib.loads((tmp_path / "out/config.toml").read_text(encoding="utf-8"))
    assert saved["training"]["epochs"] == 5
    assert "rounds" not in saved["training"]
    assert call("resume", tmp_path / "out").code == 0


def test_the_flag_for_rounds_takes_the_place_of_the_files_epochs(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text("[training]\nepochs = 300\n[quick]\ntraining.epochs = 3\n", encoding="utf-8")
    assert request(file, {"training.rounds": 2}, [], "own")["training"] == {"rounds": 2}
    assert request(file, {}, [], "own", "quick")["training"] == {"epochs": 3}
    assert request(file, {}, [], "own")["training"] == {"epochs": 300}


def test_a_change_of_data_brings_its_own_options() -> None:
    raw = {"data": {"name": "digits", "percent": 1}, "model": {"name": "a", "args": {"width": 2}}}
    changes = {"data": {"name": "digits_mini", "sizes": [1]}, "model": {"args": {"width": 4}}}
    assert changed(raw, changes) == {
        "data": {"name": "digits_mini", "sizes": [1]},
        "model": {"name": "a", "args": {"width": 4}},
    }


@pytest.mark.parametrize(
    ("table", "part"),
    [
        ({"quick": {"training": {"lrr": 1}}}, "own [quick]: unknown key 'training.lrr'"),
        ({"quick": {"training": {"epochs": 0}}}, "own [quick]: training.epochs = 0"),
        ({"reproduce": {"figure": ["loss"]}}, "did you mean 'reproduce.figures'"),
        (
            {"reproduce": {"without": {"digits": {"seeds": []}}}},
            "own [reproduce.without.digits]: seeds = []",
        ),
    ],
)
def test_a_wrong_change_is_named_with_its_table(table: dict[str, object], part: str) -> None:
    with pytest.raises(ConfigError) as caught:
        checked(table, "own")
    assert part in str(caught.value)


def test_an_unknown_scale_is_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'quick'"):
        scaled({}, "quik")
