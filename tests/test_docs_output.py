"""Pages run as they are printed, and show what their commands print."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
docs_output: dict[str, Any] = runpy.run_path(str(ROOT / "scripts" / "docs_output.py"))
check, same, steps = (docs_output[name] for name in ("check", "same", "steps"))
PageError = docs_output["PageError"]


def fenced(language: str, body: str) -> str:
    """Return a code block."""
    return f"```{language}\n{body}\n```\n\n"


def page(tmp_path: Path, *blocks: str) -> Path:
    """Write a page of these blocks."""
    file = tmp_path / "page.md"
    file.write_text("# A page\n\n" + "".join(blocks), encoding="utf-8")
    return file


@pytest.mark.parametrize("name", docs_output["COVERED"])
def test_a_page_runs_as_printed_and_prints_what_it_shows(name: str) -> None:
    assert [str(each) for each in check(ROOT / name)] == []


def test_every_page_that_shows_an_output_is_covered() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    showing = {
        file.relative_to(ROOT).as_posix()
        for file in pages
        if any(step.outputs for step in steps(file.read_text(encoding="utf-8")))
    }
    assert showing == set(docs_output["COVERED"])


def test_the_tutorial_activates_the_environment_before_it_uses_it() -> None:
    found = steps((ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8"))
    commands = [step.code.strip() for step in found if not step.file]
    activated = commands.index("source .venv/bin/activate")
    first = next(n for n, command in enumerate(commands) if command.startswith("fedbn "))
    assert commands.index("scripts/demo") < activated < first
    assert sum(not step.skipped for step in found) >= 15
    assert sum(bool(step.outputs) for step in found) >= 11


def test_a_page_that_uses_fedbn_before_it_activates_the_environment_fails(tmp_path: Path) -> None:
    activate = fenced("bash", "source .venv/bin/activate")
    use = fenced("bash", "fedbn --version")
    assert check(page(tmp_path, activate, use)) == []
    with pytest.raises(PageError, match=r"page\.md:3: expected exit code 0, got 127"):
        check(page(tmp_path, use, activate))


def test_a_file_that_no_command_runs_does_not_run(tmp_path: Path) -> None:
    write = fenced("python", "# make.py\nopen('made', 'w').close()")
    read = fenced("bash", "ls made")
    assert check(page(tmp_path, write, fenced("bash", "python make.py"), read)) == []
    with pytest.raises(PageError, match="No such file"):
        check(page(tmp_path, write, read))


def test_blocks_share_one_shell_and_one_folder(tmp_path: Path) -> None:
    text = page(
        tmp_path,
        fenced("bash", "mkdir below && cd below\nname=value"),
        fenced("python", "# seven.py\nNUMBER = 7"),
        fenced("bash", 'cat seven.py\necho "$name"'),
        fenced("text", "# seven.py\nNUMBER = 7\nvalue"),
        fenced("python", "from seven import NUMBER\nprint(NUMBER)"),
        fenced("text", "7"),
        fenced("console", "$ basename $PWD\nbelow\n$ true\n$ echo a \\\n  b\na b"),
    )
    assert check(text) == []


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("echo one; echo two", "one"),
        ("echo one", "one\ntwo"),
        ("echo accuracy 88.1", "accuracy 90.1"),
        ("echo 20,584 bytes", "20,496 bytes"),
        ("echo detectable", "detected"),
        ("echo 11.3", "10.0"),
        ("echo one; echo two; echo three", "...\none"),
        ("true", "one"),
        ("echo one >&2", "one"),
    ],
)
def test_an_output_that_is_stale_is_found_and_rewritten(command, shown, tmp_path: Path) -> None:
    text = page(tmp_path, fenced("bash", command), fenced("text", shown), fenced("bash", "true"))
    (difference,) = check(text)
    assert str(difference).startswith(("page.md:8:", "page.md:9:"))
    check(text, write=True)
    assert check(text) == []
    assert text.read_text().endswith(fenced("bash", "true"))


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("fedbn  93.1 ± 3.4", "fedbn   93.9 ± 3.5"),
        ("−15.7 to +103.8", "−15.8 to +103.1"),
        ("p 0.059", "p 0.060"),
        ("1 file, 12.5 s", "1 file, 1.1 s"),
        ("3:07 left", "0:02 left"),
        ("**91.8 ± 1.1**", "91.8 ± 1.1"),
    ],
)
def test_numbers_agree_within_the_tolerance(shown: str, printed: str) -> None:
    assert same(shown, printed)


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("93.1", "95.1"),
        ("+0.5", "−0.5"),
        ("142 rows", "143 rows"),
        ("seed-0", "seed-1"),
        ("p 0.059", "p 0.09"),
        ("fedbn 1", "fedavg 1"),
        ("1.0 2.0", "1.0"),
    ],
)
def test_numbers_outside_the_tolerance_differ(shown: str, printed: str) -> None:
    assert not same(shown, printed)


def test_lines_that_are_left_out_stay_left_out(tmp_path: Path) -> None:
    text = page(
        tmp_path,
        fenced("bash", "seq 1 9 | sed 's/^/line /'; echo total 45.2"),
        fenced("text", "line 1\n...\ntotal 40.1"),
    )
    check(text, write=True)
    assert fenced("text", "line 1\n...\ntotal 45.2") in text.read_text()
    assert check(text) == []


def test_a_rewrite_leaves_a_page_alone_whose_durations_alone_changed(tmp_path: Path) -> None:
    text = page(tmp_path, fenced("bash", "echo done in 2.5 s"), fenced("text", "done in 9.1 s"))
    before = text.read_bytes()
    check(text, write=True)
    assert text.read_bytes() == before


def test_directives_change_what_the_next_block_does(tmp_path: Path) -> None:
    text = page(
        tmp_path,
        "<!-- setup\ntouch there\n-->\n",
        "<!-- run: no, it would fail -->\n" + fenced("bash", "exit 9"),
        fenced("text", "what it would print"),
        "<!-- run: slow -->\n" + fenced("bash", "echo slow"),
        fenced("text", "fast"),
        "<!-- exit: 4 -->\n" + fenced("bash", "ls there\n(exit 4)"),
        fenced("text", "there"),
        fenced("bash", "echo error >&2\necho result"),
        "<!-- output: all -->\n" + fenced("text", "error\nresult"),
        "<!-- output: no -->\n" + fenced("text", "an example of a file"),
        fenced("bash", "printf '| a |\\n|---|\\n| 1.5 |\\n'"),
        "| no | output |\n\nand then\n\n",
        "<!-- output: table -->\n| a |\n|---|\n| 1.5 |\n",
    )
    assert check(text) == []
    (slow,) = check(text, slow=True)
    assert slow.shown == "fast"


def test_an_unexpected_exit_code_names_the_block_and_shows_what_it_printed(tmp_path: Path) -> None:
    text = page(tmp_path, fenced("bash", "true"), fenced("bash", "echo why >&2\nfalse\ntrue"))
    with pytest.raises(PageError, match=r"(?s)page\.md:7: expected exit code 0, got 1:.*why"):
        check(text)
    text = page(tmp_path, "<!-- exit: 4 -->\n" + fenced("bash", "true"))
    with pytest.raises(PageError, match="expected exit code 4, got 0"):
        check(text)


def test_the_demo_says_how_to_go_on_as_its_last_lines(tmp_path: Path) -> None:
    """The script itself, in a clone whose environment holds a stand-in for `fedbn`."""
    (tmp_path / "scripts").mkdir()
    for name in ("demo", "_venv"):
        shutil.copy(ROOT / "scripts" / name, tmp_path / "scripts")
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name, does in (("python", "true"), ("fedbn", 'echo ran "$@"; exit ${CODE:-0}')):
        (programs / name).write_text(f"#!/bin/sh\n{does}\n")
        (programs / name).chmod(0o755)

    def demo(**environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(tmp_path / "scripts" / "demo")],
            env={"PATH": os.environ["PATH"], **environment},
            capture_output=True,
            text=True,
            check=False,
        )

    ended = demo()
    assert ended.returncode == 0
    assert ended.stdout == "ran run --method fedavg --method fedbn\n"
    assert "source .venv/bin/activate" in ended.stderr.splitlines()[-2]
    assert "docs/tutorial.md" in ended.stderr.splitlines()[-1]
    assert "activate" not in demo(VIRTUAL_ENV=str(tmp_path / ".venv")).stderr
    assert demo(CODE="4").returncode == 4
