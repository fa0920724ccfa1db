"""Runs that grow and runs that are put together are the runs that they would have been."""

from __future__ import annotations

import json
import shutil
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from safetensors.torch import save_file

from commanding import bits, call, newest, records, write_sites
from fedbn.core.rule import Rule
from fedbn.experiments.configuration import held_experiment
from fedbn.experiments.jobs import jobs as jobs_of
from fedbn.models.networks import mlp
from fedbn.runs.folder import RunFolder

METHODS = ("--method", "fedavg", "--method", "fedbn")
FILES = ("config.toml", "environment.json", "metrics.jsonl")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, a run of two methods and two seeds, and its jobs as runs of their own."""
    home = tmp_path_factory.mktemp("merge")
    write_sites(home / "sites")
    ran(home, "whole", *METHODS, "--seed", 0, "--seed", 1)
    for method in ("fedavg", "fedbn"):
        for seed in (0, 1):
            ran(home, f"{method}-{seed}", "--method", method, "--seed", seed)
    return home


def ran(home: Path, name: str, *arguments: object, rounds: int = 3) -> Path:
    """A finished run in a folder of this name."""
    out = home / name
    common = ("--data", home / "sites", "--rounds", rounds, "--workers", 1, "--out", out)
    answer = call("run", *common, *arguments)
    assert answer.code == 0, answer.err
    return out


def jobs(home: Path) -> list[Path]:
    return [home / name for name in ("fedavg-0", "fedbn-0", "fedavg-1", "fedbn-1")]


def test_merged_jobs_are_the_run_that_had_them_all(home: Path, tmp_path: Path) -> None:
    out = tmp_path / "all"
    answer = call("merge", *jobs(home), "--out", out)
    assert answer.code == 0, answer.err
    assert "4 jobs of 4 runs" in answer.err
    assert bits(out) == bits(home / "whole")
    assert (out / "config.toml").read_text() == (home / "whole" / "config.toml").read_text()
    assert len(json.loads((out / "environment.json").read_text())["merged"]) == 4
    assert "finished already" in call("resume", out).err
    lines = call("compare", out, home / "whole").out.splitlines()
    verdicts = [line.rstrip().endswith(" same") for line in lines]
    assert sum(verdicts) == 5 * 3  # FedAvg with three kinds of statistics, FedBN with two
    assert call("predict", out, "--client", "a", "--data", home / "sites" / "a.npz").code == 0


def test_records_alone_are_merged_compared_and_shown(home: Path, tmp_path: Path) -> None:
    bare = []
    for job in jobs(home)[:3]:
        bare.append(tmp_path / job.name)
        bare[-1].mkdir()
        for name in FILES:
            shutil.copy(job / name, bare[-1] / name)
    old = json.loads((bare[0] / "environment.json").read_text())
    del old["inputs"], old["weights"]  # as before runs wrote them
    (bare[0] / "environment.json").write_text(json.dumps(old))
    out = tmp_path / "all"
    answer = call("merge", *bare, "--out", out)
    told = [call("report", run, "--out", tmp_path / "page.html").err for run in (bare[1], out)]
    assert ("not finished" in told[0], "no models to use" in told[0]) == (False, True)
    assert "3 of 4 jobs are done; fedbn seed 1" in told[1]
    assert answer.code == 0, answer.err
    assert "in none of them: fedbn seed 1" in answer.err
    kept = [
        r
        for r in records(home / "whole" / "metrics.jsonl")
        if (r["method"], r["seed"]) != ("fedbn", 1)
    ]
    assert records(out / "metrics.jsonl") == kept
    assert call("compare", out, "--methods", "fedavg,fedbn").code == 0
    refused = call("resume", bare[0])
    assert (refused.code, "records without checkpoints" in refused.line) == (3, True)
    assert "has no checkpoint to go on from" in call("resume", out, "--rounds", 9).line
    # What no run had is trained, and what came by its records stays as it is.
    assert call("resume", out, "--workers", 1).code == 0
    assert records(out / "metrics.jsonl") == records(home / "whole" / "metrics.jsonl")


def test_an_overlap_with_the_same_numbers_is_one_job(home: Path, tmp_path: Path) -> None:
    out = tmp_path / "all"
    assert call("merge", home / "whole", home / "fedbn-1", "--out", out).code == 0
    assert bits(out) == bits(home / "whole")


def swept(home: Path, name: str, *values: str, seed: int = 0) -> Path:
    """A run that sweeps over values of its data."""
    words = [word for value in values for word in ("--set", f"sweep.data.{value}")]
    asked = ("--method", "fedbn", "--seed", seed, "--set", "data.partition=iid", *words)
    return home / name if (home / name).exists() else ran(home, name, *asked, rounds=1)


@pytest.mark.parametrize("counts", [([2], [3]), ([2, 3], [4]), ([4], [3, 2]), ([2], [2, 3])])
def test_runs_that_differ_in_swept_data_are_merged(
    counts: tuple[list[int], list[int]], home: Path, tmp_path: Path
) -> None:
    runs = [swept(home, f"dealt-{own}", f"clients={own}") for own in counts]
    union = list(dict.fromkeys([*counts[0], *counts[1]]))
    whole, out = swept(home, f"dealt-{union}", f"clients={union}"), tmp_path / "all"
    answer = call("merge", *runs, "--out", out)
    assert answer.code == 0, answer.err
    assert bits(out) == bits(whole)
    found, expected = (json.loads((run / "environment.json").read_text()) for run in (out, whole))
    for name in ("config", "data", "inputs"):
        assert found[name] == expected[name]
    assert list(found["data"])[:1] == ["client-1 of data 1"]  # as runs always named them
    assert "finished already" in call("resume", out, "--workers", 1).err


def test_data_that_no_run_had_is_written_down_by_the_run_that_has_it(
    home: Path, tmp_path: Path
) -> None:
    """Two clients dealt one way, three the other: the merged run has both ways of both."""
    ways = ("'iid'", "'shards(1)'")
    runs = [
        swept(home, f"way-{n}", f"clients=[{n}]", f"partition=[{way}]")
        for n, way in zip((2, 3), ways, strict=True)
    ]
    both = (f"partition=[{', '.join(ways)}]",)
    whole, out = swept(home, "ways", "clients=[2, 3]", *both), tmp_path / "all"
    answer = call("merge", *runs, "--out", out)
    assert "clients=2,partition=shards(1) seed 0" in answer.err
    answer = call("resume", out, "--workers", 1)
    assert answer.code == 0, answer.err
    assert bits(out) == bits(whole)
    found, expected = (json.loads((run / "environment.json").read_text()) for run in (out, whole))
    assert found["data"] == expected["data"]
    found["data"]["client-1 of data 2"] = "0"
    (out / "environment.json").write_text(json.dumps(found))
    assert "data changed since the run began: client client-1 of data 2" in call("resume", out).line


@pytest.mark.shows("G01")
def test_the_same_setting_of_other_data_is_refused_whichever_run_has_it(
    home: Path, tmp_path: Path
) -> None:
    first, second = (swept(home, f"dealt-[{n}]", f"clients=[{n}]") for n in (2, 3))
    third = swept(home, "dealt-3-1", "clients=[3]", seed=1)
    other = changed(
        third, tmp_path / "other", "environment.json", '"client-2": "', '"client-2": "0'
    )
    answer = call("merge", first, second, other, "--out", tmp_path / "all")
    said = f"{second} and {other} were not trained on the same data: client client-2"
    assert (answer.code, said in answer.line) == (4, True), answer.err


def changed(run: Path, to: Path, file: str, old: str, new: str) -> Path:
    """A copy of a run with one text in one file replaced."""
    shutil.copytree(run, to)
    text = (to / file).read_text()
    assert old in text
    (to / file).write_text(text.replace(old, new, 1))
    return to


@pytest.mark.shows("G01", "G02")
@pytest.mark.parametrize(
    ("file", "old", "new", "code", "said"),
    [
        ("config.toml", "lr = 0.01", "lr = 0.5", 3, "are not one experiment: training.lr differ"),
        ("environment.json", '"a": "', '"a": "0', 4, "not trained on the same data: client a"),
        ("environment.json", '"weights": {}', '"weights": {"w": "0"}', 3, "model.weights"),
        ("metrics.jsonl", '"value":0.', '"value":0.9', 3, "with different numbers"),
        ("config.toml", "rounds = 3", "rounds = 4", 3, "differ"),
    ],
)  # fmt: skip
def test_what_does_not_belong_together_is_refused(
    home: Path, tmp_path: Path, file: str, old: str, new: str, code: int, said: str
) -> None:
    other = changed(home / "fedbn-1", tmp_path / "other", file, old, new)
    answer = call("merge", home / "whole", other, "--out", tmp_path / "all")
    assert (answer.code, said in answer.line) == (code, True), answer.err
    assert not (tmp_path / "all").exists()


def test_runs_that_sweep_over_other_keys_are_refused(home: Path, tmp_path: Path) -> None:
    asked = ("--method", "fedbn", "--seed", 0, "--set", "sweep.training.lr=[0.01]")
    runs = [home / "fedbn-0", ran(home, "rates", *asked)]
    for pair in (runs, runs[::-1]):
        answer = call("merge", *pair, "--out", tmp_path / "all")
        assert "are not one experiment: sweep.training.lr differ" in answer.line


def test_first_weights_may_lie_elsewhere_on_another_machine(home: Path, tmp_path: Path) -> None:
    runs, state = [], mlp(2, (6,)).state_dict()
    for seed in (0, 1):
        file = tmp_path / f"weights-{seed}.safetensors"
        save_file(state, file)
        asked = ("--model", "mlp", "--method", "fedbn", "--set", f"model.weights={file}")
        runs.append(ran(home, f"started-{seed}", *asked, "--seed", seed, rounds=1))
    assert call("merge", *runs, "--out", tmp_path / "all").code == 0
    assert "finished already" in call("resume", tmp_path / "all", "--workers", 1).err


@pytest.mark.shows("G03")
def test_an_unfinished_job_and_a_folder_that_is_its_own_output(home: Path, tmp_path: Path) -> None:
    half = tmp_path / "half"
    shutil.copytree(home / "fedbn-1", half)
    rows = [r for r in records(half / "metrics.jsonl") if r["round"] < 3]
    (half / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    answer = call("merge", home / "fedavg-1", half, "--out", tmp_path / "all")
    assert "not finished: fedbn seed 1, round 2 of 3" in answer.line
    compared = " ".join(call("compare", home / "fedbn-1", half).out.split())
    assert "not finished, and is compared as it is: fedbn seed 1, round 2 of 3" in compared
    assert "is one of the runs" in call("merge", half, home / "whole", "--out", half).line
    assert "not empty" in call("merge", home / "whole", "--out", home / "fedbn-0").line
    assert "no run here" in call("merge", tmp_path, home / "whole", "--out", tmp_path / "x").line


def test_many_clients_methods_are_merged_and_added_whichever_can_be_stacked(tmp_path: Path) -> None:
    write_sites(tmp_path / "sites", [f"c{i:02d}" for i in range(11)])
    names = ("fedbn", "centralized", "fedbn+scaffold")
    runs = [ran(tmp_path, name, "--method", name, rounds=1) for name in names]
    answer = call("merge", *runs, "--out", tmp_path / "all")
    assert answer.code == 0, answer.err
    for name in names[1:]:
        assert call("resume", runs[0], "--add-method", name, "--workers", 1).code == 0
    assert bits(runs[0]) == bits(tmp_path / "all")


def test_a_run_that_sweeps_over_its_length_does_not_grow(home: Path) -> None:
    run = ran(home, "lengths", "--method", "fedbn", "--set", "sweep.training.rounds=[1, 2]")
    assert "sweeps over its length" in call("resume", run, "--rounds", 6).line


def test_a_grown_run_has_the_bits_of_a_straight_one(home: Path, tmp_path: Path) -> None:
    """Scores of round 3 are those of its last round; a run of 6 that scores every 2 has none."""
    every = ("--set", "evaluation.every=2", "--method", "fedbn")
    straight = ran(home, "six", *every, "--seed", 0, rounds=6)
    short = Path(shutil.copytree(ran(home, "three", *every, "--seed", 0), tmp_path / "short"))
    answer = call("resume", short, "--rounds", 6, "--workers", 1)
    assert answer.code == 0, answer.err
    assert (short / "metrics.jsonl").read_bytes() == (straight / "metrics.jsonl").read_bytes()
    configs = [tomllib.loads((run / "config.toml").read_text()) for run in (short, straight)]
    assert configs[0] == configs[1]
    ends = [newest(run) / "state.safetensors" for run in (short, straight)]
    assert ends[0].read_bytes() == ends[1].read_bytes()
    assert "finished already" in call("resume", short).err


@pytest.mark.parametrize("asked", [("evaluation.clients='taking part'",), ()])
def test_who_was_scored_for_the_end_alone_is_not_in_a_grown_run(
    asked: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of five clients two take part: the others have scores where a round is the last."""
    monkeypatch.setattr("fedbn.experiments.planner._MANY", 4)
    write_sites(tmp_path / "sites", "abcde")
    words = [w for one in ("training.participation=0.4", *asked) for w in ("--set", one)]
    few = ("--method", "fedbn", "--seed", 0, *words)
    straight = ran(tmp_path, "two", *few, rounds=2)
    short = ran(tmp_path, "one", *few, rounds=1)
    answer = call("resume", short, "--rounds", 2, "--workers", 1)
    assert answer.code == 0, answer.err
    assert (short / "metrics.jsonl").read_bytes() == (straight / "metrics.jsonl").read_bytes()
    ends = [newest(run) / "state.safetensors" for run in (short, straight)]
    assert ends[0].read_bytes() == ends[1].read_bytes()


@pytest.mark.parametrize("asked", [("--rounds", 4), ("--add-seed", 1, "--add-method", "fedbn")])
def test_a_run_whose_growing_was_cut_off_grows_when_asked_again(
    asked: tuple[object, ...], home: Path, tmp_path: Path
) -> None:
    """A kill between both files of a run that grows: the environment is new, the rest is not."""
    whole, run = (Path(shutil.copytree(home / "fedavg-0", tmp_path / name)) for name in "ab")
    assert call("resume", whole, *asked, "--workers", 1).code == 0
    shutil.copy(whole / "environment.json", run)
    refused = call("resume", run)
    said = (
        "if growing was cut off, repeat that `fedbn resume --rounds` or `--add-...`; else undo that"
    )
    assert (refused.code, said in refused.line) == (3, True), refused.err
    assert call("resume", run, *asked, "--workers", 1).code == 0
    assert bits(run) == bits(whole)
    assert "finished already" in call("resume", run).err


def test_seeds_and_methods_are_added(home: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(home / "fedavg-0", tmp_path / "run"))
    answer = call("resume", run, "--add-seed", 1, "--add-method", "fedbn", "--workers", 1)
    assert answer.code == 0, answer.err
    assert bits(run) == bits(home / "whole")
    again = call(
        "resume", run, "--add-seed", 1, "--rounds", 3
    )  # as a batch job put into line again
    assert (again.code, "finished already" in again.err) == (0, True)
    assert bits(run) == bits(home / "whole")
    assert "the run has 3; legal are no fewer" in call("resume", run, "--rounds", 2).line
    before = (run / "config.toml").read_bytes()
    assert call("resume", run, "--add-method", "fedbm").code == 3
    assert (run / "config.toml").read_bytes() == before


@dataclass(frozen=True)
class Stages(Rule):
    """A rule whose second half begins at half of all rounds."""

    depends_on_rounds = True

    @property
    def label(self) -> str:
        return "stages"


@pytest.mark.shows("G04")
def test_what_depends_on_the_number_of_rounds_cannot_grow(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Path(shutil.copytree(home / "fedbn-0", tmp_path / "run"))
    staged = [
        replace(job, method=job.method | Stages())
        for job in jobs_of(held_experiment(RunFolder(run)))
    ]
    monkeypatch.setattr("fedbn.experiments.merging.jobs", lambda experiment: staged)
    answer = call("resume", run, "--rounds", 9)
    assert (answer.code, "stages depends on the number of rounds" in answer.line) == (3, True)
    assert bits(run) == bits(home / "fedbn-0")


@pytest.mark.shows("G04")
@pytest.mark.parametrize(
    ("schedule", "args", "grows"),
    [
        ("CosineAnnealingLR", "{}", False),
        ("CosineAnnealingLR", "{T_max = 50}", True),
        ("StepLR", "{step_size = 2}", True),
    ],
)
def test_a_schedule_as_long_as_the_run_cannot_grow(
    home: Path, schedule: str, args: str, grows: bool
) -> None:
    run = ran(
        home, f"{schedule}{grows}", "--method", "fedbn", "--seed", 0,
        "--set", f"training.schedule={schedule}", "--set", f"training.schedule_args={args}",
    )  # fmt: skip
    answer = call("resume", run, "--rounds", 4, "--workers", 1)
    assert answer.code == (0 if grows else 3), answer.err
    assert grows or f"training.schedule {schedule} depends on the number" in answer.line


def test_a_run_grown_from_epochs_goes_with_one_that_had_them_all(
    home: Path, tmp_path: Path
) -> None:
    def begun(name: str, seed: int, *epochs: int) -> Path:
        lengths = [f"training.epochs={n}" for n in epochs] + ["training.local_epochs=2"]
        flags = [flag for text in lengths for flag in ("--set", text)]
        common = ("--data", home / "sites", "--method", "fedbn", "--seed", seed, "--workers", 1)
        assert call("run", *common, *flags, "--out", tmp_path / name).code == 0
        return tmp_path / name

    grown, straight = begun("grown", 0, 2), begun("straight", 1, 6)
    short = call("merge", grown, straight, "--out", tmp_path / "all")
    assert (short.code, "training.epochs differ" in short.line) == (3, True)
    assert call("resume", grown, "--rounds", 3, "--workers", 1).code == 0
    for order in ((grown, straight), (straight, grown)):
        out = tmp_path / order[0].name[:1]
        answer = call("merge", *order, "--out", out)
        assert answer.code == 0, answer.err
        assert "finished already" in call("resume", out).err


def test_what_is_said_of_data_is_said_of_all_runs(home: Path, tmp_path: Path) -> None:
    runs = []
    for count in (2, 3):
        dealt = swept(home, f"dealt-[{count}]", f"clients=[{count}]")
        runs.append(Path(shutil.copytree(dealt, tmp_path / str(count))))
        told = json.loads((runs[-1] / "environment.json").read_text())
        for facts in told["inputs"].values():
            facts["remarks"] = [f"twins of {count}"]
        (runs[-1] / "environment.json").write_text(json.dumps(told))
    answer = call("reproduce", "digits-methods", "--from", *runs, "--out", tmp_path / "t")
    assert answer.code == 0, answer.err
    assert "twins of 2; twins of 3" in (tmp_path / "t" / "README.md").read_text()


def test_a_table_of_the_paper_from_many_runs(home: Path, tmp_path: Path) -> None:
    answer = call("reproduce", "digits-methods", "--from", *jobs(home), "--out", tmp_path / "t")
    assert answer.code == 0, answer.err
    result = json.loads((tmp_path / "t" / "result.json").read_text())
    labels = [row["label"] for row in result["tables"][0]["rows"]]
    assert [label for label in labels if "statistics" not in label[0]] == [["fedavg"], ["fedbn"]]
    assert ["fedavg, local statistics"] in labels
    assert all(cell["seeds"] == 2 for cell in result["tables"][0]["rows"][0]["cells"])
    assert "one item at a time" in call("reproduce", "office", home / "whole").line
