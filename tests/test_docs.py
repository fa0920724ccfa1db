"""Every Python snippet of the documentation runs, and every `fedbn` command in it is a real one."""

from __future__ import annotations

import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from reliability import LINES

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[pytest.param]:
    """All code blocks of a language, with a name that says where they stand."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in _BLOCK.finditer(text):
            if match[1] == language:
                line = text[: match.start()].count("\n") + 1
                found.append(pytest.param(match[2], id=f"{page.relative_to(ROOT)}:{line}"))
    return found


def commands() -> list[pytest.param]:
    """All `fedbn ...` lines of shell blocks."""
    found = []
    for block in blocks("bash"):
        for line in block.values[0].splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["fedbn"]:
                found.append(pytest.param(words[1:], id=f"{block.id} {' '.join(words[1:4])}"))
    return found


@pytest.mark.parametrize("code", blocks("python"))
def test_a_python_snippet_runs(code, tmp_path, monkeypatch):
    if code.startswith(">>>"):
        pytest.skip("a session: tests/paper/theory/test_theory_docs.py runs its page as a whole")
    if re.match(r"# \w+\.py\n", code):
        pytest.skip("a file of the tutorial: tests/test_docs_output.py runs its page as a whole")
    for module in ("flwr", "pandas"):
        if module in code:
            pytest.importorskip(module, reason=f"{module} is not installed")
    file = tmp_path / "snippet.py"
    file.write_text(code, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(file), run_name="__main__")


def test_the_readme_s_example_prints_the_same_every_time(tmp_path, capsys):
    import torch

    code = next(b.values[0] for b in blocks("python") if b.id.startswith("README.md"))
    file = tmp_path / "snippet.py"
    file.write_text(code, encoding="utf-8")
    printed = []
    for seed in (1, 2):  # what else the process drew must not matter
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            runpy.run_path(str(file))
        printed.append(capsys.readouterr().out)
    assert printed[0].startswith("{'berlin': ")
    assert printed[0] == printed[1]


@pytest.mark.parametrize("words", commands())
def test_a_command_is_one_that_exists(words):
    """Parse the command line as the program does, without running it."""
    import typer

    from fedbn.cli.main import app

    command = typer.main.get_command(app)
    context = command.make_context("fedbn", [], resilient_parsing=True)
    while hasattr(command, "commands"):
        assert words[0] in command.commands, f"no command {words[0]}"
        name, command, words = command.resolve_command(context, list(words))
    command.make_context(name, list(words), parent=context)


@pytest.mark.parametrize("code", blocks("bash"))
def test_a_shell_block_can_be_read_by_a_shell(code):
    read = subprocess.run(["bash", "-n", "-c", code], capture_output=True, text=True, check=False)
    assert (read.returncode, read.stderr) == (0, "")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize("code", blocks("toml"))
def test_a_configuration_is_legal(code):
    import tomllib

    from fedbn.experiments.configuration import checked
    from fedbn.experiments.jobs import jobs

    assert jobs(checked(tomllib.loads(code)))


def test_the_page_of_commands_says_what_the_commands_say():
    """Where it does not, `python scripts/cli_page.py` writes it anew."""
    page = runpy.run_path(str(ROOT / "scripts/cli_page.py"))["page"]
    made = page()
    assert (ROOT / "docs/cli.md").read_text(encoding="utf-8") == made
    assert not re.findall(r"^\| `[^`]*` \|(?: \\\[required\])? *\|$", made, re.MULTILINE)


def test_help_is_laid_out_for_80_columns():
    """Lines of examples and of further paragraphs are shown as they are written."""
    import inspect

    import typer

    from fedbn.cli.main import app

    def all_of(command):
        yield command
        for below in getattr(command, "commands", {}).values():
            yield from all_of(below)

    for command in all_of(typer.main.get_command(app)):
        _, _, further = inspect.cleandoc(command.help or "").partition("\n\n")
        examples = (command.epilog or "").split("\n\n")[1:]
        wide = [
            line
            for line in [*further.splitlines(), *examples]
            if len(re.sub(r"\[/?bold\]", "", line)) > 78
        ]
        assert wide == [], command.name


def test_formulas_are_shown_as_formulas():
    import yaml
    from markdown import markdown

    listed = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    options = next(e for e in listed["markdown_extensions"] if "pymdownx.arithmatex" in e)
    (hook,) = listed["hooks"]
    shown = runpy.run_path(str(ROOT / hook))["on_page_content"]
    text = (ROOT / "docs/report.md").read_text(encoding="utf-8") + "\n\nAnd \\(\\mu < 1\\)."
    page = shown(markdown(text, extensions=list(options), extension_configs=options))
    assert page.count("<math") == 2
    assert 'display="block"' in page
    assert not re.search(r"\\[a-z(\[]|\$\$", page)


def test_the_citation_has_the_version():
    import fedbn

    cited = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.*)$", cited, re.MULTILINE) == [fedbn.__version__]


def test_the_changelog_begins_with_the_version():
    import fedbn

    log = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (\S+)", log, re.MULTILINE)[0] == fedbn.__version__


def methods_table():
    """What each method shares and remembers; methods of which both are the same stand together."""
    from fedbn import registry

    alike = {}
    for name, said in sorted(registry.said("fedbn.methods", "ABOUT").items()):
        alike.setdefault(said, []).append(f"`{name}`")
    rows = [f"| {', '.join(names)} | {' | '.join(said)} |" for said, names in alike.items()]
    return "\n".join(["| method | shared | remembered |", "|---|---|---|", *sorted(rows)])


def test_the_readme_says_of_each_method_what_it_shares_and_remembers():
    assert methods_table() + "\n\n" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_readme_is_short_and_its_headline_is_the_one_of_the_results():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    number = r"[+−][\d.]+"
    said = " ".join(text.split())
    gains = re.findall(rf"({number}) ?[(,] ?({number} to {number})[,)]", said)
    pages = [ROOT / "docs" / name for name in ("reproduction.md", "gain.md")]
    measured = " ".join(" ".join(page.read_text(encoding="utf-8").split()) for page in pages)
    assert len(gains) == 2 * 6 + 2
    for mean, interval in gains:  # with the interval behind the mean, or in the row below it
        assert f"{mean} ({interval}" in measured or interval in measured, (mean, interval)
    assert len(text.splitlines()) <= 150
    assert f"{len(LINES)} of them" in text


def test_the_reference_lists_exactly_the_public_names():
    import importlib

    import fedbn

    page = (ROOT / "docs/reference.md").read_text(encoding="utf-8")
    paths = re.findall(r"^::: (\S+)$", page, re.MULTILINE)
    names = [path.rpartition(".")[2] for path in paths]
    assert sorted(names) == sorted({*fedbn.__all__, "keep_local"} - {"__version__"})
    for path, name in zip(paths, names, strict=True):
        module, _, attribute = path.rpartition(".")
        if name in fedbn.__all__:
            assert getattr(fedbn, name) is getattr(importlib.import_module(module), attribute)


def test_every_page_can_be_reached():
    import yaml

    listed = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    found = re.findall(r"[a-z-]+\.md", str(listed))
    pages = {page.name for page in (ROOT / "docs").glob("*.md")}
    assert set(found) == pages


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_that_installs_fedbn_first_shows_the_cpu_version_of_torch(page):
    """Without it pip takes gigabytes of CUDA packages, and no GPU is needed."""
    text = page.read_text(encoding="utf-8")
    installs = re.search(r"^(pip install [.\"']|scripts/demo$)", text, re.MULTILINE)
    cpu = r"pip install torch\S* --index-url https://download.pytorch.org/whl/cpu"
    torch = re.search(cpu, text)
    assert installs is None or (torch is not None and torch.start() < installs.start())


def test_the_tutorial_installs_the_version_of_torch_that_the_demo_asks_for():
    pinned = re.search(r"^torch==.*$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned is not None
    assert f"pip install {pinned[0]} --index-url" in (ROOT / "docs/tutorial.md").read_text()


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_install_line_names_real_extras(page):
    import tomllib

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = (ROOT / page).read_text(encoding="utf-8")
    assert re.search(r"^pip install \.(\s|$)", text, re.MULTILINE)
    for named in re.findall(r'pip install "\.\[(.*?)\]"', text):
        assert set(named.split(",")) <= extras["optional-dependencies"].keys()


def test_the_aggregator_of_the_contributing_page_runs(tmp_path, monkeypatch):
    """Cut to nothing, updates leave the shared part where it began; a long cut is the mean."""
    import torch

    import fedbn

    code = next(b.values[0] for b in blocks("python") if "class Clipped" in b.values[0])
    (tmp_path / "my_rules.py").write_text(code, encoding="utf-8")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    sites = {name: ([[0.0], [1.0], [2.0], [3.0]] * 4, [0, 1, 0, 1] * 4) for name in "ab"}
    none, some, all_of_it, mean = (
        fedbn.fit(sites, "mlp", f"fedbn{rule}", rounds=1).state.shared.state
        for rule in [*(f"+my_rules:Clipped({radius})" for radius in (0, 0.01, 1e6)), ""]
    )
    start = fedbn.fit(sites, "mlp", "fedbn", rounds=1).plan.initial_model.state_dict()
    assert all(torch.equal(value, start[name]) for name, value in none.items())
    moved = sum(float((value - start[name]).square().sum()) for name, value in some.items())
    assert 0 < moved <= 0.0101**2
    assert all(torch.allclose(value, mean[name], atol=1e-6) for name, value in all_of_it.items())


def test_methods_of_the_contributing_page_run(tmp_path, monkeypatch):
    """The file shown there is a method as it stands."""
    code = next(b.values[0] for b in blocks("python") if "def fedentry" in b.values[0])
    (tmp_path / "my_methods.py").write_text(code, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    import fedbn

    sites = {"a": ([[0.0], [1.0], [2.0], [3.0]] * 4, [0, 1, 0, 1] * 4)}
    result = fedbn.fit(sites, "mlp", "my_methods:fedentry('6')", rounds=1)
    assert set(result.state.local["a"].state) == {"6.weight", "6.bias"}


def test_the_rule_of_the_contributing_page_runs(tmp_path, monkeypatch):
    """About thirty lines; with a share of nothing it is FedBN to the last bit, else it is not."""
    import torch

    import fedbn

    code = next(b.values[0] for b in blocks("python") if "class Carry" in b.values[0])
    assert len(code.splitlines()) <= 32
    (tmp_path / "my_carrying.py").write_text(code, encoding="utf-8")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    sites = {name: ([[0.0], [1.0], [2.0], [3.0]] * 4, [0, 1, 0, 1] * 4) for name in "ab"}
    none, some, plain = (
        fedbn.fit(sites, "mlp", f"fedbn{rule}", rounds=3).state
        for rule in ("+my_carrying:Carry(0)", "+my_carrying:Carry(0.5)", "")
    )
    assert all(torch.equal(v, none.shared.state[n]) for n, v in plain.shared.state.items())
    assert not all(torch.equal(v, some.shared.state[n]) for n, v in plain.shared.state.items())
    assert some.local["a"].state["carry.last/0.weight"].any()


def test_the_round_in_plain_torch_is_shown_as_it_is():
    page = (ROOT / "docs" / "architecture.md").read_text()
    assert (ROOT / "tests" / "independent_round.py").read_text() in page


def test_the_files_that_the_architecture_names_are_there():
    page = (ROOT / "docs" / "architecture.md").read_text()
    named = set(re.findall(r"`([a-z_]+/[a-z_/]+\.py)`", page))
    missing = [f for f in named if not any((ROOT / top / f).exists() for top in ("src/fedbn", "."))]
    assert len(named) > 10
    assert missing == []


def test_every_claim_of_the_security_page_names_a_test_that_is_there():
    text = (ROOT / "docs/security.md").read_text().partition("## What leaves")[0]
    rows = [row.split("|")[1:-1] for row in text.splitlines() if row.startswith("|")][2:]
    tests = {file.name: file.read_text() for file in (ROOT / "tests").rglob("test_*.py")}
    assert len(rows) > 20
    for _, claim, held in rows:
        assert "`" in held, claim
        home = ""
        for name in re.findall(r"`([^`]+)`", held):
            file, _, test = name.rpartition("/")[2].rpartition("::")
            home = file or (test if test.endswith(".py") else home)
            assert home in tests, name
            assert test.endswith(".py") or f"def {test}(" in tests[home], name


def test_the_loop_of_one_s_own_is_the_engine_s(tmp_path):
    import torch
    from torch import nn

    import fedbn
    from tiny import done, plan

    code = next(b.values[0] for b in blocks("python") if "fedbn.split(state" in b.values[0])
    loop = code[code.index("is_shared = ") :].strip().splitlines()
    assert len(loop) <= 15
    file = tmp_path / "loop.py"
    file.write_text(code, encoding="utf-8")
    found = runpy.run_path(str(file))

    def net():
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))

    with torch.random.fork_rng():
        torch.manual_seed(0)
        first = net()
    clients = [
        fedbn.Client(name, name, fedbn.Split(*given), {name: fedbn.Split(*given)})
        for name, given in found["sites"].items()
    ]
    sites = fedbn.Federation("two", tuple(clients), ("low", "high"))
    ended = done(plan(fedbn.fedbn(), sites, lambda: first, rounds=10, batch_size=None, lr=0.1))
    for name, value in found["shared"].items():
        torch.testing.assert_close(value, ended.shared.state[name], atol=1e-5, rtol=0)
    for site, kept in found["local"].items():
        for name, value in kept.items():
            torch.testing.assert_close(value, ended.local[site].state[name], atol=1e-4, rtol=1e-5)
