"""`fedbn export` and `fedbn compare` as one types them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from commanding import call, records, with_running_statistics, write_sites


def test_export_says_what_it_wrote_and_how_it_agrees(finished: Path) -> None:
    answer = call("export", finished, "--client", "a")
    assert answer.code == 0, answer.err
    file = finished / "exports" / "a-fedbn-seed-0.safetensors"
    assert answer.out.startswith(f"wrote {file} ({file.stat().st_size:,} bytes) and {file.name}.md")
    assert "on 8 test samples of a its outputs are within 0 of the model's" in answer.out
    card = Path(f"{file}.md").read_text()
    assert "| model | mlp {} |" in card
    assert "| seed | 0 (the run has 0) |" in card


def test_export_without_the_data_is_checked_on_random_samples(finished: Path) -> None:
    settings = finished / "config.toml"
    text = settings.read_text()
    line = next(line for line in text.splitlines() if line.startswith("path = "))
    settings.write_text(text.replace(line, 'path = "/gone"'))
    answer = call("export", finished, "--client", "b", "--method", "fedavg", "--json")
    assert answer.code == 0, answer.err
    found = json.loads(answer.out)
    assert found["agreement"]["inputs"] == "random samples"
    assert found["agreement"]["worst"] == 0
    assert Path(found["card"]).is_file()


def test_export_into_a_folder_that_is_made(finished: Path, tmp_path: Path) -> None:
    assert call("export", finished, "--client", "a", "--out", f"{tmp_path}/new/").code == 0
    names = sorted(file.name for file in (tmp_path / "new").iterdir())
    assert names == ["a-fedbn-seed-0.safetensors", "a-fedbn-seed-0.safetensors.md"]
    again = call("export", finished, "--client", "a", "--out", tmp_path / "new")
    assert again.code == 3
    assert "is there already" in again.line


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--client", "c"], "unknown client 'c'"),
        (["--client", "a", "--format", "onxx"], "--format"),
        (["--client", "a", "--method", "fedbm"], "did you mean 'fedbn'?"),
        (["--client", "a", "--seed", "5"], "unknown seed '5'"),
        (["--client", "a", "--setting", "x"], "unknown setting 'x'"),
        (["--client", "a", "--out", "/proc/nowhere/x"], "cannot write"),
    ],
)
def test_export_refuses(arguments: list[str], said: str, finished: Path) -> None:
    answer = call("export", finished, *arguments)
    assert (answer.code, answer.out) == (3, "")
    assert said in answer.err.splitlines()[-1]
    assert not (finished / "exports").exists()


def test_an_adapted_site_is_exported_like_a_client(finished: Path, tmp_path: Path) -> None:
    new = write_sites(tmp_path / "new", ["c"]) / "c.npz"
    assert call("adapt", finished, "--data", new, "--as", "c").code == 0
    answer = call("export", finished, "--client", "c")
    assert answer.code == 0, answer.err
    assert "random samples" in answer.out
    card = (finished / "exports" / "c-fedbn-seed-0.safetensors.md").read_text()
    assert "| client | c, adapted after training |" in card
    assert "c never trained; its BatchNorm was made since (how: average, samples: " in card
    assert "(this model)" not in card


def test_export_of_no_run(tmp_path: Path) -> None:
    answer = call("export", tmp_path, "--client", "a")
    assert answer.code == 3
    assert "no run here" in answer.line


def test_a_run_is_the_same_as_its_copy(finished: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(finished, tmp_path / "copy")
    answer = call("compare", finished, copy)
    assert answer.code == 0, answer.err
    rows = [line.split() for line in answer.out.splitlines()]
    verdicts = [row[-1] for row in rows if row[:1] in (["a"], ["b"], ["mean"])]
    assert len(verdicts) >= 4  # of each method and kind of statistics the second client and mean
    assert {*verdicts} == {"same"}
    assert "configuration" not in answer.out


def test_what_was_changed_is_listed(finished: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(finished, tmp_path / "copy"))
    settings = copy / "config.toml"
    settings.write_text(settings.read_text().replace("lr = 0.01", "lr = 0.5"))
    found = json.loads(call("compare", finished, copy, "--format", "json").out)
    assert found["configuration"] == [{"key": "training.lr", "a": 0.01, "b": 0.5}]
    assert found["environment"] == []
    assert call("compare", finished, copy, "--format", "csv").out.startswith("method,client,")
    assert r"\begin{tabular}" in call("compare", finished, copy, "--format", "latex").out
    text = call("compare", finished, copy, "--format", "md").out
    assert "| training.lr | 0.01 | 0.5 |" in text


def test_two_methods_of_one_run(finished: Path) -> None:
    answer = call("compare", finished, "--methods", "fedavg,fedbn")
    assert answer.code == 0, answer.err
    assert "fedavg → fedbn" in answer.out
    assert "better" not in answer.out.partition("\n\n")[0]
    assert "n = 1 seed (0)" in answer.out
    assert "fedavg → fedbn" in call("compare", finished).out  # every pair, where none is named


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["RUN", "--methods", "fedbn"], "one run: name two of its methods"),
        (["RUN", "RUN", "RUN"], "3 runs"),
        (["RUN", "nowhere"], "no run here"),
        (["RUN", "RUN", "--methods", "fedbm"], "did you mean 'fedbn'?"),
        (["RUN", "RUN", "--format", "xml"], "--format"),
    ],
)
def test_compare_refuses(arguments: list[str], said: str, finished: Path) -> None:
    answer = call("compare", *[finished if word == "RUN" else word for word in arguments])
    assert (answer.code, answer.out) == (3, "")
    assert said in answer.line


def test_a_run_is_compared_with_each_kind_of_statistics(finished: Path) -> None:
    for file in (finished / "metrics.jsonl", *finished.glob("checkpoints/*/*/*/metrics.jsonl")):
        running = with_running_statistics(records(file))
        exact = [r for r in running if (r["split"], r["round"]) == ("test", 3)]
        lines = [*running, *({**r, "value": 0.5, "statistics": "exact"} for r in exact)]
        file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    answer = call("compare", finished, "--methods", "fedavg,fedbn")
    assert answer.code == 0, answer.err
    running, exact, means, said = answer.out.split("\n\n")[:4]
    assert running.startswith("both scored with the running statistics that the method leaves\n")
    assert exact.startswith("both scored with the client's exact statistics\n")
    assert [line.split()[-1] for line in exact.splitlines()[2:]] == ["same"] * 3
    assert " ".join(means.splitlines()[1].split()) == "fedavg → fedbn +0.0 (same) +0.0 (same)"
    assert said.startswith("n = 1 seed (0)")
    named = call("compare", finished, "--methods", "fedavg, exact statistics,fedbn")
    assert named.code == 0, named.err
    assert "fedavg, exact statistics → fedbn" in named.out
    table = call("compare", finished, "--format", "csv").out
    assert '"FedAvg → FedBN, exact statistics",a,50.0,50.0' in table


def test_methods_are_cut_at_commas_outside_brackets() -> None:
    from fedbn.cli.compare import _split

    assert _split("fedavg, fedbn+adam(lr=0.1,eps=1)") == ["fedavg", "fedbn+adam(lr=0.1,eps=1)"]
    assert _split("") == []
