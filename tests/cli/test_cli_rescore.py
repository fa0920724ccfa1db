"""`fedbn rescore`: the second evaluation of a finished run, from its checkpoints."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from commanding import bits, call, records
from fedbn.runs import outcomes
from fedbn.runs.folder import to_json


def test_rescoring_a_finished_run_gives_the_same_files(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, again := tmp_path / "again")
    answer = call("rescore", again)
    assert answer.code == 0, answer.err
    assert bits(again) == bits(finished)


def without_second_evaluation(run: Path) -> None:
    """Make a run folder as an older version wrote it."""
    for job in (run / "checkpoints").glob("*/*/seed-*"):
        outcomes.forget(job)
    for file in (run / "metrics.jsonl", *run.glob("checkpoints/*/*/*/metrics.jsonl")):
        kept = [r for r in records(file) if r.pop("statistics") == "running"]
        file.write_text("".join(json.dumps(r, separators=(",", ":")) + "\n" for r in kept))
    config = (run / "config.toml").read_text()
    (run / "config.toml").write_text(config.replace('final_statistics = "auto"\n', ""))
    environment = json.loads((run / "environment.json").read_text())
    del environment["config"]["evaluation"]["final_statistics"]
    (run / "environment.json").write_bytes(to_json(environment))


def test_a_run_of_an_older_version_gets_the_scores_that_a_new_one_has(
    finished: Path, tmp_path: Path
) -> None:
    shutil.copytree(finished, old := tmp_path / "old")
    without_second_evaluation(old)
    assert call("resume", old).err.endswith("was finished already; nothing to do\n")
    assert all(r["statistics"] == "running" for r in records(old / "metrics.jsonl"))
    answer = call("rescore", old)
    assert answer.code == 0, answer.err
    assert records(old / "metrics.jsonl") == records(finished / "metrics.jsonl")


def test_statistics_can_be_chosen(finished: Path) -> None:
    answer = call("rescore", finished, "--statistics", "exact", "--statistics", "running")
    assert answer.code == 0, answer.err
    assert {r["statistics"] for r in records(finished / "metrics.jsonl")} == {"running", "exact"}
    for job in (finished / "checkpoints").glob("*/*/seed-*"):
        evaluated = outcomes.evaluated(job)
        assert evaluated is not None
        assert (evaluated.round, evaluated.statistics) == (3, ["exact", "running"])
        hits = outcomes.read(job)
        assert {kind for kind, *_ in hits} == {"exact", "running"}
        for record in records(job / "metrics.jsonl"):
            key = (record["statistics"], record["client"], record["domain"])
            if (record["round"], record["split"], record["metric"]) == (3, "test", "accuracy"):
                assert float(hits[key].double().mean()) == record["value"]


def test_an_unknown_kind_is_one_line(finished: Path) -> None:
    before = bits(finished)
    answer = call("rescore", finished, "--statistics", "exakt")
    assert answer.code == 3
    assert "unknown statistics 'exakt': did you mean 'exact'?" in answer.err
    assert bits(finished) == before


def test_an_unfinished_run_is_refused(finished: Path) -> None:
    job = finished / "checkpoints" / "fedbn" / "default" / "seed-0"
    shutil.rmtree(job / "round-000003")
    answer = call("rescore", finished)
    assert answer.code == 3
    assert "round 2 of 3; finish the run first: fedbn resume" in answer.err


def test_changed_data_is_refused(finished: Path, sites: Path) -> None:
    before = bits(finished)
    content = (sites / "b.npz").read_bytes()
    shutil.copy(sites / "a.npz", sites / "b.npz")
    try:
        answer = call("rescore", finished)
    finally:
        (sites / "b.npz").write_bytes(content)
    assert answer.code == 4
    assert "the data has changed since the run was trained (client b)" in answer.err
    assert bits(finished) == before


def test_a_kill_before_the_evaluation_is_made_good_by_resume(
    finished: Path, tmp_path: Path
) -> None:
    """The last round is saved, half of the evaluation's records too: it is done again, once."""
    shutil.copytree(finished, killed := tmp_path / "killed")
    job = killed / "checkpoints" / "fedbn" / "default" / "seed-0"
    outcomes.forget(job)
    lines = (job / "metrics.jsonl").read_text().splitlines(keepends=True)
    (job / "metrics.jsonl").write_text("".join(lines[:-2]))
    answer = call("resume", killed)
    assert answer.code == 0, answer.err
    assert bits(killed) == bits(finished)


def test_a_run_that_grows_loses_the_evaluation_of_its_old_end(
    finished: Path, tmp_path: Path
) -> None:
    answer = call("resume", finished, "--rounds", 5)
    assert answer.code == 0, answer.err
    others = [r for r in records(finished / "metrics.jsonl") if r["statistics"] != "running"]
    assert {r["round"] for r in others} == {5}


def test_a_run_without_the_statistics_that_it_asks_for_is_finished(
    sites: Path, tmp_path: Path
) -> None:
    """FedBN's statistics are the client's own already: there are no other local ones."""
    asked = ("--method", "fedbn", "--set", 'evaluation.final_statistics=["local"]')
    out = tmp_path / "out"
    answer = call("run", "--data", sites, *asked, "--rounds", 2, "--seed", 0, "--out", out)
    assert answer.code == 0, answer.err
    assert {r["statistics"] for r in records(out / "metrics.jsonl")} == {"running"}
    assert call("resume", out).err.endswith("was finished already; nothing to do\n")
