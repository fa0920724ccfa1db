"""Damaged files of a run folder: every command gives an error of ours, with file, line or key."""

from __future__ import annotations

import copy
import json
import random
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from commanding import Answer, call

WRONG = ["delete", "rename", None, True, -1, 10**12, 1e300, "x", "\0", [], {}, [1], {"a": 1}]
COMMANDS = ("resume", "predict", "evaluate", "export", "compare", "report")
ENDS = (0, 3, 4, 6)  # 0: a key that only explains, or a report that says what it lacks


def answered(command: str, run: Path, sites: Path) -> Answer:
    further: dict[str, tuple[object, ...]] = {
        "predict": ("--client", "a", "--data", sites / "a.npz"),
        "evaluate": ("--resamples", 2),
        "export": ("--client", "b", "--force"),
        "compare": ("--methods", "fedavg,fedbn"),
    }
    return call(command, run, *further.get(command, ()))


def keys(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    parts = value.items() if isinstance(value, dict) else enumerate(value)
    for key, below in parts:
        yield (*above, key)
        if isinstance(below, dict | list):
            yield from keys(below, (*above, key))


def changed(value: Any, path: tuple[Any, ...], wrong: Any) -> Any:
    whole = copy.deepcopy(value)
    part = whole
    for key in path[:-1]:
        part = part[key]
    if wrong == "delete":
        del part[path[-1]]
    elif wrong == "rename":
        part |= {"other": part.pop(path[-1])} if isinstance(part, dict) else {}
    else:
        part[path[-1]] = wrong
    return whole


def one_damage(draws: random.Random, run: Path) -> str:
    """Change one key of one file; says which."""
    name = draws.choice(["environment.json", "config.toml", "metrics.jsonl"])
    file, wrong = run / name, draws.choice(WRONG)
    lines = file.read_text().splitlines()
    if name == "metrics.jsonl":
        number = draws.randrange(len(lines))
        record = json.loads(lines[number])
        path = draws.choice(list(keys(record)))
        job = run / "checkpoints" / record["method"] / "default/seed-0/metrics.jsonl"
        line = json.dumps(changed(record, path, wrong))
        for each in (file, job):
            each.write_text(each.read_text().replace(lines[number], line))
    else:
        read, written = (
            (json.loads, json.dumps) if "json" in name else (tomllib.loads, tomli_w.dumps)
        )
        content = read(file.read_text())
        paths = [p for p in keys(content) if isinstance(p[-1], str) or wrong != "rename"]
        path = draws.choice(paths)
        if "toml" in name and (wrong is None or (wrong == 10**12 and "rounds" in path)):
            wrong = "x"
        file.write_text(written(changed(content, path, wrong)))
    return f"{name} {path} {wrong!r}"


def test_whatever_key_is_damaged_the_error_is_ours(
    finished: Path, sites: Path, tmp_path: Path
) -> None:
    draws = random.Random(12)
    for number in range(36):
        run = Path(shutil.copytree(finished, tmp_path / str(number)))
        what = one_damage(draws, run)
        command = COMMANDS[number % len(COMMANDS)]
        answer = answered(command, run, sites)
        assert answer.code in ENDS, (what, command, answer.err)
        assert "not foreseen" not in answer.err, (what, command, answer.err)
        assert "Traceback" not in answer.err, (what, command, answer.err)
        shutil.rmtree(run)


@pytest.mark.parametrize("command", [c for c in COMMANDS if c != "report"])
def test_a_damaged_environment_is_named_with_its_key(
    command: str, finished: Path, sites: Path
) -> None:
    """A sample of 10^12 numbers kept `predict` busy for minutes."""
    file = finished / "environment.json"
    content = json.loads(file.read_text())
    content["inputs"]["all settings"]["input_shape"] = [10**12]
    file.write_text(json.dumps(content))
    answer = answered(command, finished, sites)
    assert answer.code == 6
    assert f"{file}: damaged (inputs.all settings.input_shape = [1000000000000]: " in answer.line


@pytest.mark.parametrize("command", [c for c in COMMANDS if c != "report"])
def test_a_damaged_configuration_is_named_with_its_key(
    command: str, finished: Path, sites: Path
) -> None:
    file = finished / "config.toml"
    file.write_text(tomli_w.dumps({**tomllib.loads(file.read_text()), "method": 3}))
    answer = answered(command, finished, sites)
    assert answer.code == 6
    assert f"{file}: method = 3: " in answer.line


@pytest.mark.parametrize("key", ["value", "seed", "extra"])
@pytest.mark.parametrize("command", [c for c in COMMANDS if c != "report"])
def test_a_damaged_record_is_named_with_its_line(
    key: str, command: str, finished: Path, sites: Path
) -> None:
    jobs = sorted(finished.glob("checkpoints/*/*/*/metrics.jsonl"))
    for file in (finished / "metrics.jsonl", *jobs):
        lines = file.read_text().splitlines()
        lines[4] = json.dumps({**json.loads(lines[4]), key: [1]})
        file.write_text("\n".join(lines) + "\n")
    answer = answered(command, finished, sites)
    assert answer.code == 6
    assert f"metrics.jsonl, line 5: damaged ({key} = [1]: " in answer.err.splitlines()[-1]


@pytest.mark.parametrize("command", ["resume", "evaluate", "compare", "report"])
def test_an_accuracy_that_is_null_is_none(command: str, finished: Path, sites: Path) -> None:
    for file in finished.rglob("metrics.jsonl"):
        records = [json.loads(line) for line in file.read_text().splitlines()]
        lost = [{**r, "value": None} if r["metric"] == "accuracy" else r for r in records]
        file.write_text("".join(f"{json.dumps(record)}\n" for record in lost))
    answer = answered(command, finished, sites)
    assert answer.code == (3 if command == "compare" else 0), answer.err
    assert "not foreseen" not in answer.err
