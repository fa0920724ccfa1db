"""Dependencies point one way, as docs/architecture.md draws them."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import fedbn

ROOT = Path(fedbn.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

# What the files of each room may import of this library, beside their own room.
_FACE = {"errors", "registry", "text", "__version__"}
_BELOW = _FACE | {"core", "data", "datasets", "methods", "models", "runs", "tasks"}
ALLOWED = {
    "core": {"errors", "text"},
    "fast": {"core", "errors"},
    "methods": {"core", "errors", "registry"},
    "models": {"core", "errors"},
    "tasks": {"core", "errors", "registry"},
    "data": {"core", "errors", "text"},
    "datasets": {"core", "data", "errors", "registry", "text"},
    "runs": {"core", "errors", "text"},
    "results": {"core", "errors", "text"},
    "tracking": {"core", "errors", "experiments", "registry", "runs", "text"},
    "experiments": _BELOW | {"fast"},
    "flower": _BELOW | {"experiments", "fast"},
    "trained": _BELOW | {"experiments"},
    "report": _BELOW | {"experiments", "results", "trained"},
    "paper": _BELOW | {"experiments", "report", "results", "trained"},
}
ALLOWED["cli"] = {*ALLOWED, *_FACE, "api", "exchange_audit"} - {"fast"}
# Packages of others that only some places may import.
ONLY_IN = {
    "flwr": ("flower/",),
    "matplotlib": ("results/", "paper/"),
    "mlflow": ("tracking/",),
    "onnxruntime": ("trained/",),
    "jinja2": ("report/", "trained/model_card.py"),
    "typer": ("cli/",),
    "click": (),  # newer typers do not bring it
    "rich": ("cli/",),
}


def part(dotted: str) -> str:
    """'fedbn.core.state.Kind' -> 'core'."""
    return dotted.split(".")[1]


def where(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


@cache
def nodes(file: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))


def modules(file: Path) -> Iterator[str]:
    """The dotted names that a file imports, also inside functions."""
    for node in nodes(file):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{'.' * node.level}{node.module}.{alias.name}" for alias in node.names)


def calls(file: Path) -> Iterator[tuple[str, int]]:
    """The dotted names that a file calls, with their lines."""
    for node in nodes(file):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node.lineno


def test_the_direction_of_dependencies():
    wrong = []
    for file in FILES:
        mine = part(".".join(["fedbn", *file.relative_to(ROOT).with_suffix("").parts]))
        ours = {part(name) for name in modules(file) if name.startswith("fedbn.")}
        if mine in ALLOWED and not ours <= (legal := ALLOWED[mine] | {mine}):
            wrong.append(f"{where(file)} imports {sorted(ours - legal)}")
    assert wrong == []


def test_the_paper_is_imported_by_the_command_line_only():
    users = [file for file in FILES if any(n.startswith("fedbn.paper") for n in modules(file))]
    assert {where(file).partition("/")[0] for file in users} <= {"cli", "paper"}


def test_imports_are_absolute():
    assert [where(f) for f in FILES if any(name.startswith(".") for name in modules(f))] == []


def test_the_core_needs_torch_and_nothing_else():
    legal = set(sys.stdlib_module_names) | {"torch", "fedbn"}
    core = [file for file in FILES if where(file).startswith("core/")]
    tops = {name.partition(".")[0] for file in core for name in modules(file)}
    assert core
    assert tops <= legal


def test_some_packages_are_imported_in_one_place_only():
    wrong = []
    for file in FILES:
        for name in modules(file):
            places = ONLY_IN.get(name.partition(".")[0])
            if places is not None and not where(file).startswith(places):
                wrong.append(f"{where(file)} imports {name}, legal below {places}")
    assert wrong == []


def public_names(file: Path) -> Iterator[str]:
    """What a file defines at its top for others, type variables and loggers aside."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found = [node.name]
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found = [n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)]
        else:
            continue
        yield from (n for n in found if len(n) > 1 and not n.startswith("_") and n != "log")


@pytest.mark.parametrize("room", ["core", "experiments", "report", "results"])
def test_a_public_name_has_one_meaning(room: str):
    homes: dict[str, list[str]] = {}
    for file in FILES:
        if where(file).startswith(f"{room}/"):
            for name in public_names(file):
                homes.setdefault(name, []).append(where(file))
    assert {name: files for name, files in homes.items() if len(set(files)) > 1} == {}


def test_what_is_private_stays_in_its_package():
    wrong = []
    for file in FILES:
        own = ".".join(["fedbn", *file.relative_to(ROOT).parent.parts])
        for name in modules(file):
            parts = name.split(".")
            hidden = [i for i, p in enumerate(parts) if p.startswith("_") and not p.endswith("__")]
            if parts[0] == "fedbn" and hidden and not ".".join(parts[: hidden[0]]).startswith(own):
                wrong.append(f"{where(file)} imports {name}")
    assert wrong == []


def test_what_flower_does_not_promise_is_imported_in_two_files():
    public = ("flwr.app.", "flwr.clientapp.", "flwr.serverapp.")
    inner = {"flower/internals_node.py", "flower/internals_server.py"}
    found = {
        where(file)
        for file in FILES
        for name in modules(file)
        if name.partition(".")[0] == "flwr" and not name.startswith(public)
    }
    assert found == inner


def test_nothing_is_unpickled():
    """No pickle, no torch.load: safetensors, JSON and npz without objects."""
    picklers = {"pickle", "dill", "joblib", "shelve", "marshal", "cloudpickle"}
    wrong = []
    for file in FILES:
        wrong += [(where(file), n) for n in modules(file) if n.partition(".")[0] in picklers]
        wrong += [(where(file), line) for name, line in calls(file) if name == "torch.load"]
        allowed = [n for n in nodes(file) if isinstance(n, ast.keyword) and n.arg == "allow_pickle"]
        wrong += [(where(file), n.lineno) for n in allowed if ast.unparse(n.value) != "False"]
    assert wrong == []


def test_only_the_command_line_prints():
    printing = {"print", "sys.stdout.write", "sys.stderr.write"}
    files = [file for file in FILES if not where(file).startswith("cli/")]
    found = [(where(f), line) for f in files for name, line in calls(f) if name in printing]
    assert found == []


def loaded(statement: str) -> set[str]:
    """The modules a fresh Python has loaded after a statement."""
    code = f"{statement}\nimport sys\nsys.stdout.write(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("engine", ["plain", "batched"])
def test_training_does_not_wait_for_torchs_compiler(engine: str):
    data = "{name: (torch.randn(8, 3), torch.arange(8) % 2) for name in 'ab'}"
    found = loaded(f"import fedbn, torch\nfedbn.fit({data}, 'mlp', rounds=2, engine={engine!r})")
    assert "torch" in found
    assert "torch._dynamo" not in found


def test_importing_the_package_is_light():
    """`fedbn --help` need not wait for torch."""
    found = loaded("import fedbn; dir(fedbn); fedbn.__version__; import fedbn.cli.main")
    assert not found & {"torch", "numpy", "matplotlib", "sklearn", "pydantic", "flwr"}


def test_the_core_loads_no_more_than_it_needs():
    found = loaded("import fedbn.core.rounds")
    ours = {name for name in found if name.startswith("fedbn.")}
    assert all(name.startswith(("fedbn.core", "fedbn.errors", "fedbn.text")) for name in ours)


def test_every_public_name_can_be_imported():
    for name in fedbn.__all__:
        assert getattr(fedbn, name) is not None
    assert sorted(fedbn.__all__) == list(fedbn.__all__)
    assert dir(fedbn) == list(fedbn.__all__)
    with pytest.raises(AttributeError, match="no attribute 'fedbm'"):
        _ = fedbn.fedbm


def test_every_method_and_part_can_be_imported_from_the_package():
    from fedbn import methods, registry

    for name in registry.names(methods):
        function = registry.find(methods, name, "method")
        assert getattr(fedbn, name) is function
    for function in methods.PARTS.values():
        assert getattr(fedbn, function.__name__) is function


def test_a_name_that_needs_an_extra_is_not_exported_without_it():
    code = "import sys; sys.modules['flwr'] = None; from fedbn import *; import fedbn"
    check = "assert 'keep_local' not in fedbn.__all__; assert scaffold is fedbn.scaffold"
    without = subprocess.run(
        [sys.executable, "-c", f"{code}; {check}"], capture_output=True, text=True, check=False
    )
    assert without.returncode == 0, without.stderr


def test_the_base_package_is_not_held_back_by_an_extra() -> None:
    """Flower's upper bounds are the Flower extra's; the base goes beside today's releases."""
    project = tomllib.loads((ROOT.parents[1] / "pyproject.toml").read_text())["project"]
    base = [Requirement(text) for text in project["dependencies"]]
    bounds = {each.name: {one.operator for one in each.specifier} for each in base}
    assert all(operators == {">="} for operators in bounds.values()), bounds
    flower = {Requirement(text).name for text in project["optional-dependencies"]["flower"]}
    assert {"flwr", "rich", "typer"} <= flower
