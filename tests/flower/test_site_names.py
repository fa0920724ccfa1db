"""Names of code at a site: nothing is imported without `--trust`, and no answer shows a folder."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tomli_w

pytest.importorskip("flwr", reason="flwr is not installed")

from flower_bench import RAW, Bench
from flwr.app import Message, RecordDict

from commanding import Answer, call
from fedbn import registry
from fedbn.errors import FedbnError, Untrusted
from fedbn.experiments.configuration import checked, placed
from fedbn.experiments.schema import name_keys
from fedbn.flower import messages, server_app, site_app
from fedbn.flower.federation_folder import FederationFolder
from fedbn.flower.messages import Order, Sorry
from fedbn.flower.site import reply
from fedbn.runs.folder import RunFolder

KEYS = sorted(name_keys())
LISTS = ("methods", "task.metrics", "evaluation.metrics")
PAYLOAD = """
from pathlib import Path

Path({mark!r}).mkdir()


def call(*_, **__): ...
"""


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Exists once `payload` was imported, which lies at hand in the current directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    (tmp_path / "payload.py").write_text(PAYLOAD.format(mark=str(tmp_path / "mark")))
    return tmp_path / "mark"


@pytest.fixture
def fed(tmp_path: Path) -> FederationFolder:
    folder = FederationFolder(tmp_path / "fed")
    folder.create("fed", ["plain", "photo"], "127.0.0.1", 9092)
    return folder


def with_name(raw: dict[str, Any], key: str, name: str) -> dict[str, Any]:
    """Put a name under a key of an experiment."""
    written = f"fedbn+{name}" if key == "methods" else name
    return placed(raw, key, [written] if key in LISTS else written)


def order_with(key: str, name: str) -> Order:
    """An order of a hostile server, which checks nothing itself."""
    (known,) = server_app.orders(checked(RAW), "fed")
    raw = with_name(known.experiment, key, name)
    method = raw["methods"][0]
    return known.model_copy(update={"method": method, "experiment": raw})


def answered(site: Any, order: Order) -> str:
    """The reason that the answer to an order gives, after its way over the message layer."""
    message = Message(messages.put(order), dst_node_id=1, message_type="query")
    answer = reply(site, message, RecordDict())
    with pytest.raises(messages.Unreadable) as refused:
        messages.get(answer.content, messages.Hello)
    assert Sorry.__name__.lower() in answer.content.config_records
    return str(refused.value)


@pytest.mark.parametrize("name", ["os:mkdir", "payload:call"])
@pytest.mark.parametrize("key", [key for key in KEYS if key != "data.name"])
def test_no_key_of_an_order_imports_a_module_and_no_answer_shows_a_folder(
    key: str, name: str, bench: Bench, mark: Path
) -> None:
    site = bench.site("plain", home=mark.parent / "home")
    said = answered(site, order_with(key, name))
    assert not mark.exists()
    module = name.partition(":")[0]
    assert f"module {module}" in said
    assert f"only with --trust {module}" in said
    for hidden in (*mark.parents, Path.home(), Path(sys.prefix)):
        assert str(hidden) == "/" or str(hidden) not in said


def test_an_order_that_names_data_is_refused_before_its_module_is_imported(
    bench: Bench, mark: Path
) -> None:
    said = answered(bench.site("plain"), order_with("data.name", "payload:call"))
    assert not mark.exists()
    assert "an order names data.name" in said


def test_an_import_that_fails_at_a_site_shows_no_folder_to_the_server(
    bench: Bench, mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = mark.parent / "a folder"
    folder.mkdir()
    for place, name in ((mark.parent, "half"), (folder, "other")):
        (place / f"{name}.py").write_text(f"from {name}_empty import nothing\n")
        (place / f"{name}_empty.py").write_text("")
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder)])
    for name in ("half", "other"):
        registry.trust(name)
        said = answered(bench.site("plain"), order_with("methods", f"{name}:method"))
        assert f"importing {name} failed" in said
        assert "/" not in said


def test_a_name_that_a_site_types_for_its_data_is_no_name_for_the_server(
    bench: Bench, mark: Path
) -> None:
    registry.allow(["payload:call"])  # as `join --data payload:call` does
    said = answered(bench.site("plain"), order_with("model.name", "payload:call"))
    assert not mark.exists()
    assert "only with --trust payload" in said


def commands(fed: FederationFolder, file: Path) -> dict[str, tuple[object, ...]]:
    """Every command of a federation that opens an experiment file."""
    bundle = fed.bundle("plain")
    at_site = ("--data", "digits_mini", "--experiment", file)
    return {
        "check at a site": ("federation", "check", bundle, *at_site),
        "check at the server": ("federation", "check", fed.path, "--experiment", file),
        "run": ("federation", "run", fed.path, file),
    }


@pytest.mark.parametrize("table", ["", "quick.", "sweep."])
@pytest.mark.parametrize("key", KEYS)
def test_no_command_of_a_federation_imports_what_an_experiment_file_names(
    key: str, table: str, fed: FederationFolder, mark: Path
) -> None:
    written = "fedbn+payload:call" if key == "methods" else "payload:call"
    value: Any = [written] if key in LISTS else written
    raw = placed(RAW, f"{table}{key}", [value] if table == "sweep." else value)
    file = mark.parent / "e.toml"  # next to the module, which helps nothing here
    file.write_text(tomli_w.dumps(raw))
    before = contents(fed.path)
    for name, command in commands(fed, file).items():
        answer: Answer = call(*command, cwd=mark.parent)
        assert (answer.code, mark.exists()) == (3, False), (name, answer.err)
        assert "imported only with --trust payload" in answer.line
        assert contents(fed.path) == before, name


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize("method", ["os:system('mkdir {mark}')", "fedbn+os:mkdir('{mark}')"])
def test_a_method_that_calls_a_shell_is_not_run_by_the_check_of_a_bundle(
    method: str, fed: FederationFolder, mark: Path
) -> None:
    file = mark.parent / "e.toml"
    file.write_text(tomli_w.dumps({**RAW, "methods": [method.format(mark=mark)]}))
    for name, command in commands(fed, file).items():
        answer = call(*command, cwd=mark.parent)
        assert (answer.code, mark.exists()) == (3, False), name
        assert "imported only with --trust os" in answer.line


def test_trust_lets_a_site_check_a_method_of_its_own(fed: FederationFolder, mark: Path) -> None:
    (mark.parent / "site_parts.py").write_text(
        "from fedbn import proximal\n\n\ndef pull(): return proximal(0.1)\n"
    )
    file = mark.parent / "e.toml"
    file.write_text(tomli_w.dumps({**RAW, "methods": ["fedbn+site_parts:pull"]}))
    command = commands(fed, file)["check at a site"]
    answer = call(*command, "--trust", "site_parts", cwd=mark.parent)
    assert "--trust" not in answer.err
    assert "plain: model " in answer.out


def test_the_data_that_a_flower_run_names_is_no_code_of_the_site(mark: Path) -> None:
    context = SimpleNamespace(node_config={"site": "a"}, run_config={"data": "payload:call"})
    site = site_app._site(site_app._options(context))  # type: ignore[arg-type]
    with pytest.raises(FedbnError, match="only with --trust payload"):
        site.described()
    numbered = SimpleNamespace(node_config={"partition-id": 0}, run_config=context.run_config)
    with pytest.raises(Untrusted, match="only with --trust payload"):
        site_app._options(numbered)  # type: ignore[arg-type]
    assert not mark.exists()


def test_a_sites_run_folder_names_no_code_that_runs_without_trust(
    mark: Path, tmp_path: Path
) -> None:
    raw = {**RAW, "data": {"name": "at_site", "site": "a", "source": {"name": "payload:call"}}}
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    folder.request.write_text(tomli_w.dumps({"directory": str(tmp_path), "request": raw}))
    answer = call("resume", folder.path, cwd=tmp_path)
    assert (answer.code, mark.exists()) == (3, False)
    assert "imported only with --trust payload" in answer.line
