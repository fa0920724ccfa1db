"""`fedbn report` from the command line: where it writes, and what it refuses."""

from __future__ import annotations

import pytest

from commanding import call


def test_the_report_lies_in_the_first_run_unless_told(finished, sites):
    answer = call("report", finished)
    assert answer.code == 0
    assert answer.out.startswith(f"{finished / 'report.html'} (")
    read = f"read {sites}, which {finished / 'config.toml'} names"
    assert answer.err.splitlines() == [
        f"{finished}: {read}",
        f"{finished}: without examples: the samples are no pictures",
    ]
    text = (finished / "report.html").read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    assert not list(finished.glob(".*.tmp"))


def test_a_report_is_replaced_as_a_whole(finished):
    call("report", finished)
    first = (finished / "report.html").read_bytes()
    assert call("report", finished).code == 0
    assert (finished / "report.html").read_bytes() == first


@pytest.mark.parametrize(
    ("arguments", "name"),
    [(["--format", "md"], "report.md"), (["--out", "deep/er/x.md"], "deep/er/x.md")],
)
def test_markdown_by_format_or_by_name(finished, arguments, name):
    assert call("report", ".", *arguments, cwd=finished).code == 0
    assert "\n## Results\n" in (finished / name).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "name", "begin"),
    [
        (["--format", "latex"], "report.tex", r"% needs \usepackage{booktabs}"),
        (["--out", "x.csv"], "x.csv", '"test accuracy, %"'),
    ],
)
def test_the_table_alone_as_latex_or_csv(finished, arguments, name, begin):
    assert call("report", ".", *arguments, cwd=finished).code == 0
    text = (finished / name).read_text(encoding="utf-8")
    assert text.startswith(begin)
    assert "\nFedBN" in text


def test_several_runs_in_one_file(finished, tmp_path):
    answer = call("report", finished, finished, "--out", tmp_path / "both.md")
    assert answer.code == 0
    assert "\n## Comparison\n" in (tmp_path / "both.md").read_text(encoding="utf-8")


def test_a_damaged_run_still_gives_a_report_and_says_once_what_it_lacks(finished):
    for file in finished.rglob("*.safetensors"):
        file.write_bytes(b"")
    answer = call("report", finished)
    assert answer.code == 0
    first, second = answer.err.splitlines()
    assert first.startswith(f"{finished}: without statistics, confusions, examples: ")
    assert second.endswith(": without exchange: no whole checkpoint tells what was shared")
    assert "Learning curves" in (finished / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["nowhere"], "nowhere: no run here (no config.toml); start one with `fedbn run`"),
        ([".", "--out", "checkpoints"], "--out checkpoints: a folder; give a file"),
        (
            [".", "--out", "config.toml/x.html"],
            "--out config.toml/x.html: no such folder config.toml",
        ),
        ([".", "--method", "fedbm"], "unknown method 'fedbm': did you mean 'fedbn'?"),
        ([".", "--seed", "3"], "unknown seed '3': Legal values: 0"),
        ([".", "--format", "pdf"], "Invalid value for '--format'"),
        ([".", "nowhere\nelse"], "nowhere\\nelse: no run here"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(finished, arguments, line):
    before = sorted(finished.rglob("*"))
    answer = call("report", *arguments, cwd=finished)
    assert answer.code == 3
    assert line in answer.line
    assert sorted(finished.rglob("*")) == before
