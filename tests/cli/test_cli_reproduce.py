"""`fedbn reproduce`: run, run again, go on, refuse, skip, and show a run that is there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from commanding import bits, call, newest
from fedbn.paper.items import Entry

MINE: dict[str, Any] = {
    "methods": ["fedavg", "fedbn"],
    "seeds": [0],
    "training": {"epochs": 6, "local_epochs": 2},
    "model": {"name": "mlp"},
    "quick": {"training": {"epochs": 5}},
    "reproduce": {"place": "nowhere", "figures": ["bars"]},
}


@pytest.fixture(scope="module")
def _made(tmp_path_factory: pytest.TempPathFactory, sites: Path) -> Path:
    folder = tmp_path_factory.mktemp("mine")
    raw = {**MINE, "data": {"path": str(sites)}}
    (folder / "mine.toml").write_text("# Mine\n" + tomli_w.dumps(raw), encoding="utf-8")
    answer = call("reproduce", "mine.toml", "--workers", 1, cwd=folder)
    assert answer.code == 0, answer.err
    return folder


@pytest.fixture
def made(_made: Path, tmp_path: Path) -> Path:
    """The file and what came out at quick scale, to be changed at will."""
    return Path(shutil.copytree(_made, tmp_path / "mine"))


@pytest.fixture
def no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("FEDBN_DATA", str(tmp_path / "none"))
    return tmp_path


def result(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "result.json").read_bytes())
    return found


def test_quick_is_the_default_and_everything_is_stated(made: Path) -> None:
    out = made / "runs/reproduce/mine-quick"
    found = result(out)
    assert found["scale"] == "quick"
    assert found["command"] == "fedbn reproduce mine.toml --workers 1"
    assert found["changes"] == ["settings of mine.toml, not the paper's", "5 of 6 epochs"]
    assert found["seconds"] > 0
    page = (out / "README.md").read_text(encoding="utf-8")
    assert "![mine-bars](mine-bars.png)" in page
    assert "5 of 6 epochs" in page
    config = (out / "run" / "config.toml").read_text(encoding="utf-8")
    assert "epochs = 5" in config
    assert "rounds" not in config
    assert newest(out / "run").name == "round-000003"  # ⌈5/2⌉ rounds


def test_an_interrupted_item_goes_on_and_ends_the_same(made: Path) -> None:
    out = made / "runs/reproduce/mine-quick"
    whole, before = bits(out / "run"), result(out)
    shutil.rmtree(newest(out / "run"))
    (out / "result.json").unlink()
    answer = call("reproduce", "mine.toml", "--workers", 1, cwd=made)
    assert answer.code == 0, answer.err
    assert bits(out / "run") == whole
    assert result(out)["tables"] == before["tables"]
    assert result(out)["seconds"] > before["seconds"]


def test_a_finished_item_is_only_shown_again(made: Path) -> None:
    before = result(made / "runs/reproduce/mine-quick")
    assert call("reproduce", "mine.toml", "--workers", 1, cwd=made).code == 0
    assert result(made / "runs/reproduce/mine-quick") == before


def test_other_settings_in_the_same_folder_are_refused(made: Path) -> None:
    answer = call("reproduce", "mine.toml", "--set", "training.lr=0.5", cwd=made)
    assert answer.code == 3
    last = answer.err.strip().splitlines()[-1]
    assert "training.lr" in last
    assert "mine-quick/run" in last
    assert "--out" in last


def test_an_override_is_stated(made: Path) -> None:
    asked = ("--set", "training.lr=0.5", "--seed", 1, "--seed", 2, "--out", "other")
    assert call("reproduce", "mine.toml", *asked, "--workers", 1, cwd=made).code == 0
    assert result(made / "other")["changes"][2:] == [
        "2 seeds (paper scale: 1)",
        "lr 0.5 (paper scale: 0.01)",
    ]


def test_a_run_that_is_there_is_shown_without_training(made: Path) -> None:
    run = made / "runs/reproduce/mine-quick/run"
    before = bits(run)
    answer = call("reproduce", "mine.toml", "--from", run, "--out", "shown", cwd=made)
    assert answer.code == 0, answer.err
    assert result(made / "shown")["scale"] == "as the run shown"
    assert bits(run) == before
    ours, theirs = result(made / "shown"), result(made / "runs/reproduce/mine-quick")
    assert [t["rows"] for t in ours["tables"]] == [t["rows"] for t in theirs["tables"]]
    assert ours["run"] == str(run)


def test_a_shown_run_without_figures_has_its_tables(made: Path) -> None:
    raw = tomli_w.dumps({**MINE, "reproduce": {"place": "nowhere"}})
    (made / "plain.toml").write_text(f"# Plain\n{raw}", encoding="utf-8")
    run = made / "runs/reproduce/mine-quick/run"
    answer = call("reproduce", "plain.toml", "--from", run, "--out", "new/shown", cwd=made)
    assert answer.code == 0, answer.err
    assert (made / "new/shown/plain.csv").is_file()
    assert result(made / "new/shown")["figures"] == []


def test_jobs_of_a_shown_run_that_have_not_ended_are_left_out(made: Path) -> None:
    run = made / "runs/reproduce/mine-quick/run"
    lines = run.joinpath("metrics.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [line for line in lines if '"fedbn"' not in line or '"round":3' not in line]
    run.joinpath("metrics.jsonl").write_text("".join(kept), encoding="utf-8")
    answer = call("reproduce", "mine.toml", "--from", run, "--out", "shown", cwd=made)
    assert answer.code == 0, answer.err
    assert "left out, not finished: fedbn default seed 0, round 2 of 3" in answer.out
    assert [row["label"] for row in result(made / "shown")["tables"][0]["rows"]] == [
        *(["fedavg"], ["fedavg, local statistics"], ["fedavg, batch statistics"])
    ]


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        (("digits-method",), 3, "did you mean 'digits-methods'"),
        ((), 3, "--list"),
        (("office", "--scale", "big"), 3, "legal are quick, paper"),
        (("office", "--from", "nowhere"), 3, "no run here"),
        (("all", "--from", "nowhere"), 3, "name one item"),
        (("office", "--from", "x", "--seed", "1"), 3, "--seed and --set change nothing"),
        (("toy-surface", "--from", "x"), 3, "not made from one run"),
        (("office",), 4, "needs office_caltech10, which is not there"),
        (("digits-methods", "--scale", "paper"), 4, "needs digits, which is not there"),
        (("digits-methods", "--set", "training.lrr=1"), 3, "did you mean 'training.lr'"),
        (("digits-methods", "--set", "data.percent=0"), 3, "data.percent = 0"),
        (("digits-methods", "--set", "reproduce.by='x'"), 3, "reproduce.by: belongs to the item's"),
        (("digits-methods", "--set", "quick.seeds=[1]"), 3, "quick.seeds: belongs to the item's"),
        (("nothing.toml",), 3, "cannot be read"),
    ],
)
def test_what_cannot_be_is_one_line_and_leaves_nothing(
    words: tuple[str, ...], code: int, part: str, no_data: Path
) -> None:
    answer = call("reproduce", *words, "--out", no_data / "out", cwd=no_data)
    assert answer.code == code
    assert part in answer.err.strip().splitlines()[-1]
    assert "Traceback" not in answer.err
    assert not (no_data / "out").exists()


def test_an_experiment_without_the_table_is_not_an_item(no_data: Path) -> None:
    (no_data / "own.toml").write_text("seeds = [0]\n", encoding="utf-8")
    assert "no table [reproduce]" in call("reproduce", "own.toml", cwd=no_data).line


@pytest.mark.parametrize("by", ["asking", "os", "fedbn.paper.trained_items"])
def test_an_item_is_made_by_what_is_registered(by: str, no_data: Path) -> None:
    (no_data / "own.toml").write_text(f"[reproduce]\nby = '{by}'\n", encoding="utf-8")
    answer = call("reproduce", "own.toml", "--out", no_data / "out", cwd=no_data)
    assert answer.code == 3
    assert f"reproduce.by: unknown item '{by}'" in answer.err
    assert not (no_data / "out").exists()


def test_all_skips_what_lacks_its_data(
    made: Path, no_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedbn.experiments.configuration import read_toml
    from fedbn.paper import items

    office = items.find("office")[0]
    raw = read_toml(made / "mine.toml")
    both = [office, Entry("mine", "Mine", made / "mine.toml", raw, raw)]
    monkeypatch.setattr("fedbn.paper.items.entries", lambda: both)
    answer = call("reproduce", "all", "--workers", 1, cwd=made)
    assert answer.code == 0, answer.err
    skipped, done = answer.out.strip().splitlines()[-2:]
    assert skipped.startswith("office: skipped: office at quick scale needs office_caltech10")
    assert done.startswith("mine: done in ")


def test_the_list_names_every_item_with_its_cost() -> None:
    answer = call("reproduce", "--list")
    assert answer.code == 0
    for name in ("toy-surface", "digits-methods", "office", "domainnet", "abide", "synthetic"):
        assert f"\n{name}\n" in f"\n{answer.out}"
    assert answer.out.count("on 2 cores: quick") == answer.out.count("needs: ")
