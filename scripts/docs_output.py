"""Run pages of the documentation and compare, or rewrite, the output that they show.

    python scripts/docs_output.py                      check all covered pages
    python scripts/docs_output.py docs/tutorial.md     check one page
    python scripts/docs_output.py --write              run the pages and rewrite their outputs
    python scripts/docs_output.py --write --slow       the same, with the blocks marked as slow

A page is executed as it is printed: all its code blocks in order, in one shell, in one new folder.

- A `bash` block runs in that shell. A `console` block runs its lines that begin with `$ `.
- A `python` block whose first line is `# name.py` becomes that file. Any other one is executed.
- A `text` block shows what the block before it printed on stdout. In a `console` block the lines
  below a command do. A line `...` stands for lines that are left out.

HTML comments, which readers do not see, change this for the block that follows:

- `<!-- run: no, REASON -->`: do not run this block. `<!-- run: slow -->`: only with `--slow`.
- `<!-- exit: 4 -->`: this block ends with exit code 4.
- `<!-- output: all -->`: this text block shows stderr too. `<!-- output: no -->`: it is no output.
- `<!-- output: table -->`: the Markdown table that follows is the output.
- `<!-- setup` ... `-->`: commands that run, and that the page does not show.

Text must match exactly, apart from the width of columns. A number that is written as a whole number
must be equal. Other numbers may differ by 2 % or by two units of their last digit, whichever is
more, because processors round differently. Durations are not compared.

The shell finds `fedbn` from the start, unless a block that runs activates `.venv`: then only after
that block.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
COVERED = ("README.md", "docs/data.md", "docs/tutorial.md")
ELIDED = "..."
TOLERANCE = 0.02
ACTIVATE = "source .venv/bin/activate"

_FENCE = re.compile(
    r"^```(?P<language>[\w-]*)[^\n]*\n(?P<body>.*?)^```$"
    r"|^<!-- setup\n(?P<setup>.*?)^-->$"
    r"|^<!-- (?P<key>run|exit|output): (?P<value>[^\n]*?) -->$"
    r"|(?P<table>(?:^\|[^\n]*\|\n)+)",
    re.MULTILINE | re.DOTALL,
)
_FILE = re.compile(r"# ([\w-]+\.py)\n")
_NUMBER = re.compile(r"(?<![\w.])[+−-]?\d[\d,]*(?:\.\d+)?(?:e[+−-]?\d+)?")
_DURATION = re.compile(r"\b\d+:\d\d(:\d\d)?\b|\b[\d.]+ (s|ms|min|h|seconds|minutes)\b")


@dataclass(frozen=True)
class Shown:
    """An output that a page shows: its text, where it stands, and which streams it has."""

    text: str
    start: int
    end: int
    streams: str = "out"


@dataclass
class Step:
    """A block that is executed, or a file that is written, with the outputs shown for it."""

    line: int
    code: str
    file: str = ""  # the file that `code` becomes; empty for commands
    python: bool = False
    code_of_exit: int = 0
    skipped: bool = False
    outputs: list[Shown] = field(default_factory=list)

    @property
    def shows_all(self) -> bool:
        """True if the page shows stderr of this block too."""
        return any(shown.streams == "all" for shown in self.outputs)


@dataclass(frozen=True)
class Difference:
    """An output that a page shows and that its commands do not print."""

    page: str
    line: int
    shown: str
    printed: str

    def __str__(self) -> str:
        return (
            f"{self.page}:{self.line}: the page shows\n    {self.shown}\n"
            f"but the command printed\n    {self.printed}\n"
            f"`python scripts/docs_output.py --write {self.page}` rewrites it"
        )


class PageError(Exception):
    """A block of a page ended with another exit code than expected."""


def steps(text: str, slow: bool = False) -> list[Step]:
    """Return what a page executes, in order, with the outputs that it shows."""
    found: list[Step] = []
    options: dict[str, str] = {}
    for match in _FENCE.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        if match["key"]:
            options[match["key"]] = match["value"]
            continue
        if match["table"]:
            if options.get("output") == "table" and found:
                found[-1].outputs.append(Shown(match["table"], *match.span("table")))
        elif match["setup"] is not None:
            found.append(Step(line, match["setup"]))
        elif match["language"] == "text":
            if options.get("output") != "no" and found:
                streams = "all" if options.get("output") == "all" else "out"
                found[-1].outputs.append(Shown(match["body"], *match.span("body"), streams))
        else:
            found += _executed(match, line, options, slow)
        options = {}
    return found


def _executed(
    match: re.Match[str], line: int, options: Mapping[str, str], slow: bool
) -> list[Step]:
    language, body = match["language"], match["body"]
    run = options.get("run", "")
    skipped = run.startswith("no") or (run == "slow" and not slow)
    code_of_exit = int(options.get("exit", "0"))
    if language == "bash":
        return [Step(line, body, code_of_exit=code_of_exit, skipped=skipped)]
    if language == "console":
        return list(_session(match, line, options, skipped))
    if language == "python":
        named = _FILE.match(body)
        return [Step(line, body, named[1] if named else "", not named, code_of_exit, skipped)]
    return []


def _session(
    match: re.Match[str], line: int, options: Mapping[str, str], skipped: bool
) -> Iterator[Step]:
    """Return one step for each `$ ` line of a session; the lines below it are its output."""
    streams = "all" if options.get("output") == "all" else "out"
    for command in re.finditer(r"^\$ ((?:.*\\\n)*.*\n)((?:(?!\$ ).*\n)*)", match["body"], re.M):
        at, start = match.start("body"), command.start()
        step = Step(line + 1 + match["body"].count("\n", 0, start), command[1], skipped=skipped)
        step.code_of_exit = int(options.get("exit", "0"))
        if command[2]:
            step.outputs.append(
                Shown(command[2], at + command.start(2), at + command.end(2), streams)
            )
        yield step


def run(page: list[Step], folder: Path, name: str = "page") -> list[str]:
    """Execute the steps of a page in a new folder; return what each printed.

    Raises:
        PageError: A block ended with another exit code than expected. Names it and what it
            printed.
    """
    work, outputs = folder / "work", folder / "outputs"
    work.mkdir(parents=True)
    outputs.mkdir()
    _make_environment(work)
    script = ["set -e -o pipefail", f"cd {shlex.quote(str(work))}"]
    for number, step in enumerate(page):
        if not step.skipped:
            script += _lines(step, outputs / str(number))
    activates = any(ACTIVATE in step.code for step in page if not step.skipped)
    environment = _environment(work, activates)
    process = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    printed = [_printed(outputs / str(number), work) for number in range(len(page))]
    if process.returncode != 0:
        number = max((int(file.stem) for file in outputs.glob("*.out")), default=0)
        said, code = _text(outputs / f"{number}.err"), _text(outputs / f"{number}.exit")
        tail = "\n".join(f"{printed[number]}{said}{process.stderr}".splitlines()[-20:])
        raise PageError(
            f"{name}:{page[number].line}: expected exit code {page[number].code_of_exit}, got "
            f"{code.strip() or process.returncode}:\n{page[number].code}\n{tail}"
        )
    return printed


def _lines(step: Step, output: Path) -> Iterator[str]:
    """Return the lines of shell that execute a step; its streams are written to files."""
    source = output.with_suffix(".code")
    source.write_text(step.code, encoding="utf-8")
    if step.file:
        yield f"cp {shlex.quote(str(source))} {shlex.quote(step.file)}"
        return
    out, err = (shlex.quote(str(output.with_suffix(f".{each}"))) for each in ("out", "err"))
    yield f"exec 8>&1 9>&2 1> {out} 2> {'&1' if step.shows_all else err}".replace("> &", ">&")
    code = f"python - < {shlex.quote(str(source))}" if step.python else step.code
    if step.code_of_exit:
        yield f"set +e\n{code}\ncode=$?\nset -e"
        code_file = shlex.quote(str(output.with_suffix(".exit")))
        yield f"test $code = {step.code_of_exit} || {{ echo $code > {code_file}; exit 1; }}"
    else:
        yield code
    yield "exec 1>&8 2>&9"


def _make_environment(work: Path) -> None:
    """Put `fedbn` and `python` of this process into `.venv`, as a clone has it after an install."""
    programs = work / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name, arguments in (("python", ""), ("fedbn", " -m fedbn")):
        file = programs / name
        file.write_text(f'#!/bin/sh\nexec "{sys.executable}"{arguments} "$@"\n')
        file.chmod(0o755)
    (programs / "activate").write_text(f'PATH="{programs}:$PATH"\n')


def _environment(work: Path, activates: bool) -> dict[str, str]:
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "PYTHONUNBUFFERED": "1"}
    environment["PYTHONPATH"] = str(ROOT / "src")
    places = [] if activates else [str(work / ".venv" / "bin")]
    others = [
        place
        for place in os.environ.get("PATH", "").split(os.pathsep)
        if not (Path(place) / "fedbn").exists()
    ]
    environment["PATH"] = os.pathsep.join([*places, *others])
    environment.pop("VIRTUAL_ENV", None)
    return environment


def _printed(output: Path, work: Path) -> str:
    """Read what a step printed, with the folder that it ran in written as `...`."""
    text = _text(output.with_suffix(".out"))
    lines = text.replace(str(work), ELIDED).strip("\n").splitlines()
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _text(file: Path) -> str:
    """Read a file of output; one that was never written is empty."""
    return file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""


def differences(page: list[Step], printed: list[str], text: str, name: str) -> list[Difference]:
    """Return the outputs of a page that its commands did not print."""
    found = []
    for step, output in zip(page, printed, strict=True):
        for shown in [] if step.skipped else step.outputs:
            pair = first_difference(shown.text, output)
            if pair is not None:
                line = text.count("\n", 0, shown.start) + 1 + pair[0]
                found.append(Difference(name, line, pair[1], pair[2]))
    return found


def first_difference(shown: str, printed: str) -> tuple[int, str, str] | None:
    """Return the first line of an output that differs: its place, and it as shown and printed."""
    pairs = _aligned(shown.splitlines(), printed.splitlines())
    for place, (one, other) in enumerate(pairs):
        if one != ELIDED and not same(one, other):
            return place, one, other
    return None


def _aligned(shown: list[str], printed: list[str]) -> list[tuple[str, str]]:
    """Put lines that are shown next to lines that were printed; `...` takes any number of them."""
    pairs: list[tuple[str, str]] = []
    at = 0
    for place, line in enumerate(shown):
        if line != ELIDED:
            pairs.append((line, printed[at] if at < len(printed) else "(nothing)"))
            at += 1
            continue
        pairs.append((line, ""))
        rest = shown[place + 1 :]
        if not rest:
            return pairs
        if ELIDED not in rest:  # what follows is the end
            at = max(at, len(printed) - len(rest))
        else:
            alike = (n for n in range(at, len(printed)) if _shape(printed[n]) == _shape(rest[0]))
            at = next(alike, at)
    pairs += [("(nothing more)", line) for line in printed[at:]]
    return pairs


def same(shown: str, printed: str) -> bool:
    """Return True if two lines are equal up to the tolerance of numbers and to column widths.

    Examples:
        >>> same("fedbn   93.1 ± 3.4", "fedbn  93.2 ± 3.5")
        True
        >>> same("20,496 bytes", "20,584 bytes")
        False
        >>> same("done in 3.1 s", "done in 12.0 s")
        True
    """
    shown, printed = (_DURATION.sub("TIME", line) for line in (shown, printed))
    if _shape(shown) != _shape(printed):
        return False
    pairs = zip(_NUMBER.findall(shown), _NUMBER.findall(printed), strict=True)
    return all(_close(one, other) for one, other in pairs)


def _shape(line: str) -> str:
    """Return a line without its numbers, its column widths and its emphasis."""
    line = _NUMBER.sub("0", line.replace("**", ""))
    return " ".join(line.split())


def _close(shown: str, printed: str) -> bool:
    if _is_whole(shown) and _is_whole(printed):
        return _value(shown) == _value(printed)
    unit = max(10.0 ** -_decimals(shown), 10.0 ** -_decimals(printed))
    tolerance = max(TOLERANCE * abs(_value(shown)), 2.001 * unit)
    return abs(_value(shown) - _value(printed)) <= tolerance


def _is_whole(number: str) -> bool:
    return number.lstrip("+−-").replace(",", "").isdigit()


def _value(number: str) -> float:
    return float(number.replace(",", "").replace("−", "-"))


def _decimals(number: str) -> int:
    mantissa, _, exponent = number.replace("−", "-").partition("e")
    return len(mantissa.partition(".")[2]) - int(exponent or 0)


def rewritten(text: str, page: list[Step], printed: list[str]) -> str:
    """Return a page with the outputs that its commands printed.

    Lines that a page leaves out with `...` stay left out. An output in which nothing but a
    duration changed stays as it is.
    """
    pairs = [
        (shown, output)
        for step, output in zip(page, printed, strict=True)
        for shown in ([] if step.skipped else step.outputs)
    ]
    for shown, new in sorted(pairs, key=lambda pair: pair[0].start, reverse=True):
        old = shown.text
        if ELIDED in old.splitlines():
            lines = _aligned(old.splitlines(), new.splitlines())
            new = "".join(f"{one if one == ELIDED else other}\n" for one, other in lines)
        if _timeless(old) != _timeless(new):
            text = text[: shown.start] + new + text[shown.end :]
    return text


def _timeless(output: str) -> list[str]:
    return [_DURATION.sub("TIME", line).rstrip() for line in output.splitlines()]


def check(page: Path, write: bool = False, slow: bool = False) -> list[Difference]:
    """Run one page; return what it shows and does not print, or rewrite that."""
    text = page.read_text(encoding="utf-8")
    name = page.resolve().relative_to(ROOT).as_posix() if page.is_relative_to(ROOT) else page.name
    found = steps(text, slow)
    with tempfile.TemporaryDirectory() as folder:
        printed = run(found, Path(folder).resolve() / "page", name)
    if not write:
        return differences(found, printed, text, name)
    new = rewritten(text, found, printed)
    if new != text:
        page.write_text(new, encoding="utf-8")
        print(f"rewrote {name}", file=sys.stderr)
    return []


def main() -> int:
    """Check or rewrite the pages that are named, or all covered pages."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("pages", nargs="*", type=Path, metavar="PAGE")
    parser.add_argument("--write", action="store_true", help="rewrite the outputs")
    parser.add_argument("--slow", action="store_true", help="run the blocks marked as slow too")
    given = parser.parse_args()
    stale = False
    for page in given.pages or [ROOT / name for name in COVERED]:
        try:
            for difference in check(page.resolve(), given.write, given.slow):
                stale = True
                print(difference)
        except PageError as error:
            stale = True
            print(error)
    return int(stale)


if __name__ == "__main__":
    sys.exit(main())
