"""Names of code in experiment files: which modules are imported, and which need `--trust`."""

from __future__ import annotations

import importlib.util
import py_compile
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from pydantic import BaseModel

from commanding import Answer, Processes, call
from fedbn.experiments.configuration import placed
from fedbn.experiments.schema import Experiment, name_keys

KEYS = sorted(name_keys())
TABLES = ("", "quick.", "sweep.", "reproduce.without.originals.", "quick.sweep.")
LISTS = ("methods", "task.metrics", "evaluation.metrics")

# Keys that hold text but name no code. Before you add a key here, make sure that no code passes
# its value to an import. A key that names code is marked with `Named` in the schema.
PLAIN_TEXT = {
    "checkpoint.every", "data.contract.classes", "data.contract.columns.name",
    "data.contract.columns.unit", "data.contract.columns.values", "data.contract.dtype",
    "data.contract.label", "data.contract.missing", "data.contract.normalize", "data.contract.task",
    "data.partition", "data.path", "engine", "evaluation.clients", "evaluation.final_statistics",
    "evaluation.report", "evaluation.statistics", "model.args", "model.fresh", "model.transform",
    "model.weights", "quick", "reproduce.against", "reproduce.by", "reproduce.cost.paper",
    "reproduce.cost.quick", "reproduce.figures", "reproduce.needs", "reproduce.options",
    "reproduce.paper", "reproduce.place", "reproduce.without", "sweep", "task.class_weights",
    "training.amp", "training.batch_size", "training.device", "training.last_batch",
    "training.optimizer", "training.optimizer_args", "training.schedule", "training.schedule_args",
    "training.unequal", "training.weighting",
}  # fmt: skip

OWN = """
from os import system

from own_helper import width


def net(classes):
    from torch import nn

    first = nn.Linear(6, width())
    return nn.Sequential(first, nn.BatchNorm1d(width()), nn.Linear(width(), classes))


def method():
    from fedbn import fedbn

    return fedbn()


def zero_one(predictions, targets):
    return (predictions.argmax(1) == targets).double().mean()


zero_one.higher_is_better = True


def loss(outputs, targets):
    from torch.nn import functional

    return functional.cross_entropy(outputs, targets)


def task():
    from fedbn.tasks.standard import classification

    return classification()

"""
PAYLOAD = "from pathlib import Path\n\nPath({mark!r}).mkdir()\n\n\ndef call(*_, **__): ...\n"


class Place:
    """A folder with an experiment file and code next to it, and code elsewhere on the path."""

    def __init__(self, root: Path, sites: Path):
        self.folder, self.mark = root / "mine", root / "mark"
        self.elsewhere = root / "elsewhere"
        self.file = self.folder / "experiment.toml"
        for each in (self.folder, self.elsewhere):
            each.mkdir()
        (self.folder / "own_code.py").write_text(OWN)
        (self.folder / "own_helper.py").write_text("def width(): return 4\n")
        self.write_payload(self.elsewhere)
        self.raw: dict[str, Any] = {
            "methods": ["fedbn"],
            "seeds": [0],
            "training": {"rounds": 1},
            "data": {"path": str(sites)},
            "model": {"name": "mlp"},
        }

    def write_payload(self, folder: Path, name: str = "payload") -> Path:
        """Write a module that leaves a mark if it is imported."""
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{name}.py"
        file.write_text(PAYLOAD.format(mark=str(self.mark)))
        return file

    def write(self, **values: Any) -> Path:
        """Write the experiment file with some keys set; `__` is the dot."""
        raw = self.raw
        for key, value in values.items():
            raw = placed(raw, key.replace("__", "."), value)
        self.file.write_text(tomli_w.dumps(raw))
        return self.file

    def run(self, *more: object, **values: Any) -> Answer:
        """Run the experiment file for one round, from the folder above it."""
        out = self.folder.parent / "out"
        asked = ("run", self.write(**values), "--out", out, "--workers", 1)
        return call(*asked, *more, cwd=self.folder.parent)


@pytest.fixture
def place(tmp_path: Path, sites: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """An experiment's folder; the folder `elsewhere` is on the import path."""
    made = Place(tmp_path, sites)
    monkeypatch.setattr(sys, "path", [*sys.path, str(made.elsewhere)])
    return made


def holding(key: str, table: str, name: str) -> tuple[str, Any]:
    """The dotted key and the value that put a name into a table of an experiment file."""
    written = f"fedavg+{name}" if key == "methods" and "(" not in name else name
    value: Any = [written] if key in LISTS else written
    return f"{table}{key}", [value] if "sweep" in table else value


def commands(place: Place) -> dict[str, tuple[object, ...]]:
    """Every command that opens an experiment file for training, or for questions about it."""
    out = ("--out", place.folder.parent / "out")
    return {
        "run": ("run", place.file, *out),
        "dry run": ("run", place.file, "--dry-run"),
        "quick run": ("run", place.file, "--scale", "quick", *out),
        "reproduce": ("reproduce", place.file, *out),
        "reproduce at the paper's scale": ("reproduce", place.file, "--scale", "paper", *out),
    }


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("table", TABLES)
def test_no_key_of_an_experiment_file_imports_a_module_from_elsewhere(
    key: str, table: str, place: Place
) -> None:
    where, value = holding(key, table, "payload:call")
    raw = placed({**place.raw, "reproduce": {}}, where, value)
    place.file.write_text(tomli_w.dumps(raw))
    for name, command in commands(place).items():
        answer = call(*command, cwd=place.folder)
        assert (answer.code, place.mark.exists()) == (3, False), (name, answer.err)
        assert "module payload is imported only with --trust payload" in answer.line
        assert not (place.folder.parent / "out").exists(), name


@pytest.mark.parametrize("key", KEYS)
def test_no_key_of_an_experiment_file_calls_a_function_of_python(key: str, place: Place) -> None:
    name = f"os:mkdir('{place.mark}')" if key == "methods" else "os:mkdir"
    where, value = holding(key, "", name)
    raw = placed({**place.raw, "reproduce": {}}, where, value)
    raw = placed(raw, "model.args.path", str(place.mark))
    if key == "data.name":
        raw["data"] = {"name": name, "path": str(place.mark)}
    place.file.write_text(tomli_w.dumps(raw))
    for name, command in commands(place).items():
        answer = call(*command, cwd=place.folder)
        assert (answer.code, place.mark.exists()) == (3, False), (name, answer.err)
        assert "module os is imported only with --trust os" in answer.line


@pytest.mark.parametrize(
    "values",
    [
        {"quick": {"sweep": {"model": [{"name": "payload:call"}]}}},
        {"quick": {"sweep": {"evaluation": [[{"metrics": ["payload:call"]}]]}}},
        {"sweep": {"data": [{"name": "digits_mini"}, {"name": "payload:call"}]}},
        {"reproduce": {"without": {"x": {"sweep": {"model": [{"name": "payload:call"}]}}}}},
    ],
    ids=["quick", "list of lists", "sweep", "reproduce"],
)
def test_a_name_in_a_list_of_tables_is_found_before_anything_is_written(
    values: dict[str, Any], place: Place
) -> None:
    place.file.write_text(tomli_w.dumps({**place.raw, "reproduce": {}, **values}))
    for name, command in commands(place).items():
        answer = call(*command, cwd=place.folder)
        assert (answer.code, place.mark.exists()) == (3, False), (name, answer.err)
        assert "module payload is imported only with --trust payload" in answer.line
        assert not (place.folder.parent / "out").exists(), name


def text_keys(section: type[BaseModel] = Experiment, above: str = "") -> Iterator[str]:
    """Every key of the schema whose value can be or hold text, sections of sections included."""
    for key, field in section.model_fields.items():
        kinds = [field.annotation]
        for kind in kinds:
            kinds += typing.get_args(kind)
        sections = [k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel)]
        for below in sections:
            yield from text_keys(below, f"{above}{key}.")
        if not sections and any(isinstance(k, str) or k in (str, Any) for k in kinds):
            yield f"{above}{key}"


def test_every_key_that_holds_text_either_passes_the_gate_or_names_no_code() -> None:
    found = set(text_keys())
    assert found == PLAIN_TEXT | set(KEYS)
    assert not PLAIN_TEXT & set(KEYS)


@pytest.mark.parametrize("name", ["digits_mini", "synthetic"])
@pytest.mark.parametrize("nested", [{"source": {"name": "payload:call"}}, {"name": "payload:call"}])
def test_no_data_set_loads_another_one_by_the_name_of_a_module(
    name: str, nested: dict[str, Any], place: Place
) -> None:
    data = {"name": "at_site", "site": "a", "source": {"name": name, **nested}}
    place.file.write_text(tomli_w.dumps({**place.raw, "data": data}))
    answer = call("run", place.file, "--dry-run", cwd=place.folder)
    assert (answer.code, place.mark.exists()) == (3, False), answer.err


@pytest.mark.parametrize("by", ["data_view", "unseen_domain", "methods"])
def test_no_option_of_an_item_of_the_paper_imports_a_module_from_elsewhere(
    by: str, place: Place
) -> None:
    options = {
        "data_view": {"also": ["payload:call"]},
        "unseen_domain": {"new": {"name": "payload:call"}},
        "methods": {"also": {"x": {"data": {"name": "payload:call"}}}},
    }
    raw = {**place.raw, "data": {"name": "digits_mini"}}
    raw["reproduce"] = {"by": by, "options": options[by]}
    place.file.write_text(tomli_w.dumps(raw))
    answer = call("reproduce", place.file, "--out", place.folder / "out", cwd=place.folder)
    assert (answer.code, place.mark.exists()) == (3, False), answer.err
    assert "only with --trust payload" in answer.err


@pytest.mark.parametrize(
    "values",
    [
        {"model__name": "own_code:net"},
        {"methods": ["own_code:method"]},
        {"methods": ["fedavg + own_code:method"]},
        {"task__loss": "own_code:loss"},
        {"task__metrics": ["own_code:zero_one"]},
        {"evaluation__metrics": ["own_code:zero_one"]},
        {"task__name": "own_code:task"},
        {"sweep__model__name": ["own_code:net", "mlp"]},
    ],
    ids=lambda values: next(iter(values)),
)
def test_code_next_to_the_experiment_file_runs_without_trust(
    values: dict[str, Any], place: Place
) -> None:
    answer = place.run(**values)
    assert answer.code == 0, answer.err
    out = place.folder.parent / "out"
    assert f"`fedbn resume {out} --trust own_code" in answer.err.splitlines()[-1]
    assert call("resume", out).code == 3
    again = call("resume", out, "--trust", "own_code", "--trust", "fedbn")
    assert again.code == 0, again.err


def test_own_data_next_to_the_experiment_file_is_loaded(place: Place) -> None:
    (place.folder / "own_data.py").write_text(
        "def load(path: str):\n"
        "    from fedbn.datasets import own_files\n"
        "    return own_files.arrays(path)\n"
    )
    answer = place.run(data__name="own_data:load")
    assert answer.code == 0, answer.err


@pytest.mark.parametrize("module", ["package", "package.inner", "plain.inner"])
def test_packages_and_folders_below_the_experiment_file_are_own_code(
    module: str, place: Place
) -> None:
    for name in ("package", "plain"):
        (place.folder / name).mkdir()
        (place.folder / name / "inner.py").write_text(OWN)
    (place.folder / "package" / "__init__.py").write_text(OWN)
    answer = place.run(model__name=f"{module}:net")
    assert answer.code == 0, answer.err


def test_worker_processes_import_the_same_own_file(place: Place, processes: Processes) -> None:
    (place.folder.parent / "own_helper.py").write_text("raise SystemExit('another helper')\n")
    (place.folder.parent / "own_code.py").write_text("raise SystemExit('another module')\n")
    place.write(model__name="own_code:net", methods=["fedavg", "fedbn"])
    asked = ("run", place.file, "--out", "out", "--workers", 2)
    answer = processes.run(*asked, cwd=place.folder.parent)
    assert answer.code == 0, answer.err
    assert "2 side by side" in answer.err
    grown = ("resume", "out", "--trust", "own_code", "--rounds", 2)
    again = processes.run(*grown, cwd=place.folder.parent)
    assert again.code == 0, again.err


@pytest.mark.parametrize(
    ("folder", "mark"),
    [
        (".venv/lib/python3.11/site-packages", ""),
        ("vendor/site-packages", ""),
        ("vendor/dist-packages", ""),
        ("env/tools", "env/pyvenv.cfg"),
        ("conda", "conda/conda-meta"),
        (".", "pyvenv.cfg"),
    ],
)
def test_modules_in_an_environment_below_the_folder_need_trust(
    folder: str, mark: str, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.write_payload(place.folder / folder, "installed")
    if mark:
        (place.folder / mark).mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [*sys.path, str(place.folder / folder)])
    answer = place.run(model__name="installed:call")
    assert (answer.code, place.mark.exists()) == (3, False)
    assert "module installed is imported only with --trust installed" in answer.line


def test_a_link_out_of_the_folder_is_no_own_code(place: Place) -> None:
    (place.folder / "linked.py").symlink_to(place.elsewhere / "payload.py")
    (place.folder / "linked_folder").symlink_to(place.elsewhere)
    for module in ("linked", "linked_folder.payload"):
        answer = place.run(model__name=f"{module}:call")
        assert (answer.code, place.mark.exists()) == (3, False)
        assert "which is not below" in answer.line


def test_a_package_whose_init_is_elsewhere_is_no_own_code(place: Place) -> None:
    package = place.folder / "half"
    package.mkdir()
    (package / "inner.py").write_text(OWN)
    (package / "__init__.py").symlink_to(place.elsewhere / "payload.py")
    answer = place.run(model__name="half.inner:net")
    assert (answer.code, place.mark.exists()) == (3, False)


@pytest.mark.parametrize("name", ["json", "os", "sys", "random", "fedbn"])
def test_a_file_named_like_a_module_of_python_or_fedbn_is_not_imported(
    name: str, place: Place
) -> None:
    place.write_payload(place.folder, name)
    answer = place.run(model__name=f"{name}:call")
    assert (answer.code, place.mark.exists()) == (3, False)
    assert f"imported only with --trust {name}" in answer.line


def test_a_module_of_the_same_name_that_is_loaded_already_is_not_taken(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = type(sys)("twice")
    loaded.__file__ = str(place.elsewhere / "twice.py")
    loaded.net = lambda classes: place.mark.mkdir()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "twice", loaded)
    (place.folder / "twice.py").write_text(OWN)
    answer = place.run(model__name="twice:net")
    assert (answer.code, place.mark.exists()) == (3, False)
    assert "was imported from elsewhere before" in answer.line


def test_a_module_earlier_on_the_path_hides_the_one_in_the_folder(place: Place) -> None:
    (place.folder / "payload.py").write_text(OWN)
    answer = place.run(model__name="payload:net")
    assert (answer.code, place.mark.exists()) == (3, False)


def test_a_compiled_module_is_no_own_code(place: Place) -> None:
    source = place.write_payload(place.elsewhere / "source", "compiled")
    py_compile.compile(str(source), cfile=str(place.folder / "compiled.pyc"))
    answer = place.run(model__name="compiled:call")
    assert (answer.code, place.mark.exists()) == (3, False)


@pytest.mark.parametrize("module", ["own_code", "own_helper"])
def test_bytecode_next_to_own_code_is_not_loaded(module: str, place: Place) -> None:
    """Bytecode can say that it need not be compared with its source."""
    other = place.folder.parent / "other.py"
    text = (place.folder / f"{module}.py").read_text()
    other.write_text(f"import os\n\nos.mkdir({str(place.mark)!r})\n{text}")
    cached = importlib.util.cache_from_source(str(place.folder / f"{module}.py"))
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(other), cfile=cached, invalidation_mode=unchecked)
    answer = place.run(model__name="own_code:net")
    assert (answer.code, place.mark.exists()) == (0, False), answer.err


def test_own_code_imports_no_bytecode_that_has_no_source(place: Place) -> None:
    helper = place.folder / "own_helper.py"
    py_compile.compile(str(helper), cfile=str(helper.with_suffix(".pyc")))
    helper.unlink()
    answer = place.run(model__name="own_code:net")
    assert answer.code == 3
    assert "own_helper.pyc: bytecode without its source is not loaded" in answer.line


def test_own_code_lends_nothing_that_it_imported(place: Place) -> None:
    values = {"model__name": "own_code:system", "model__args__command": f"mkdir {place.mark}"}
    answer = place.run(**values)
    assert (answer.code, place.mark.exists()) == (3, False)
    assert "module posix is imported only with --trust posix" in answer.line


@pytest.mark.parametrize(
    "line",
    ["from payload import ready", "from payload import ready as other", "from . import ready"],
)
def test_own_code_lends_no_object_that_it_imported(line: str, place: Place) -> None:
    """An object such as a `partial` does not know in which module it was made."""
    package = place.folder / "lender"
    package.mkdir()
    (package / "__init__.py").write_text("")
    maker = f"import functools, os\n\nready = functools.partial(os.mkdir, {str(place.mark)!r})\n"
    (place.elsewhere / "payload.py").write_text(maker)
    (package / "inner.py").write_text(f"{line}\n")
    attribute = line.split()[-1]
    answer = place.run(model__name=f"lender.inner:{attribute}")
    assert (answer.code, place.mark.exists()) == (3, False)
    if "payload" in line:
        assert "module payload is imported only with --trust payload" in answer.line


@pytest.mark.parametrize(
    "attribute", ["__class__", "__setattr__", "__builtins__", "__loader__", "net.__globals__", ""]
)
def test_attributes_that_python_keeps_in_a_module_are_no_code_of_it(
    attribute: str, place: Place
) -> None:
    answer = place.run(model__name=f"own_code:{attribute}")
    assert answer.code == 3
    assert "own_code" in answer.line


@pytest.mark.parametrize(
    "name", [" payload:call", "payload :call", ".payload:call", "payload.:call", "-m payload:call"]
)
def test_another_spelling_of_a_module_is_no_way_around(name: str, place: Place) -> None:
    answer = place.run(model__name=name)
    assert (answer.code, place.mark.exists()) == (3, False)


def test_a_module_that_is_trusted_is_imported_from_anywhere(place: Place) -> None:
    (place.elsewhere / "trusted_nets.py").write_text(OWN.replace("own_helper", "trusted_helper"))
    (place.elsewhere / "trusted_helper.py").write_text("def width(): return 4\n")
    assert place.run(model__name="trusted_nets:net").code == 3
    answer = place.run("--trust", "trusted_nets", model__name="trusted_nets:net")
    assert answer.code == 0, answer.err


@pytest.mark.parametrize(
    "typed",
    [
        ("--model", "typed_nets:net"),
        ("--set", "model.name=typed_nets:net"),
        ("--method", "typed_nets:method"),
        ("--method", "fedavg+typed_nets:method()"),
    ],
)
def test_a_name_that_a_person_types_needs_no_trust(typed: tuple[str, str], place: Place) -> None:
    (place.elsewhere / "typed_nets.py").write_text(OWN.replace("own_helper", "typed_helper"))
    (place.elsewhere / "typed_helper.py").write_text("def width(): return 4\n")
    answer = place.run(*typed)
    assert answer.code == 0, answer.err


def test_a_name_that_a_person_types_allows_no_other_name_of_its_module(place: Place) -> None:
    (place.elsewhere / "typed_nets.py").write_text(OWN.replace("own_helper", "typed_helper"))
    (place.elsewhere / "typed_helper.py").write_text("def width(): return 4\n")
    answer = place.run("--model", "typed_nets:net", methods=["typed_nets:method"])
    assert answer.code == 3
    assert "imported only with --trust typed_nets" in answer.line


def test_a_method_that_is_typed_to_grow_a_run_needs_no_trust(place: Place) -> None:
    assert place.run().code == 0
    out = place.folder.parent / "out"
    grown = call("resume", out, "--add-method", "own_code:method", cwd=place.folder)
    assert grown.code == 0, grown.err
