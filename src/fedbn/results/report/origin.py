"""Where a run comes from and how to repeat it: configuration, environment, commands."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

import tomli_w

from fedbn.results.report.contents import RunContents
from fedbn.results.report.parts import Code, Part, Section, Text, table

_MOST_PRINTS = 50


def again(run: RunContents) -> Section:
    """Everything that is needed to run it again."""
    folder = shlex.quote(run.path)
    commands = "\n".join(
        [
            f"fedbn run {shlex.quote(f'{run.path}/config.toml')} --out again",
            f"fedbn resume {folder}",
            f"fedbn report {folder}",
        ]
    )
    lead = (
        "The same configuration, seeds, data and versions give the same numbers to the last bit "
        "on the same kind of machine."
    )
    parts: list[Part] = [
        Code("Run it again, go on with it, make this report", commands, "bash"),
        Text("Without the folder: save the configuration as experiment.toml, then fedbn run it."),
        Code("Configuration, every key written out", _toml(run.config), "toml", folded=True),
        *_environment(run.environment),
    ]
    return Section("again", "Configuration and how to run it again", lead, tuple(parts))


def _toml(config: Mapping[str, Any]) -> str:
    try:
        return tomli_w.dumps(config)
    except (TypeError, ValueError):
        return json.dumps(config, indent=2, default=str, ensure_ascii=False)


def _environment(environment: Mapping[str, Any]) -> list[Part]:
    versions = [[str(k), str(v)] for k, v in _mapping(environment, "versions").items()]
    threads = [[f"threads: {k}", str(v)] for k, v in _mapping(environment, "threads").items()]
    where = [["started in", str(environment["directory"])]] if "directory" in environment else []
    found: list[Part] = []
    if rows := [*versions, *threads, *where]:
        found.append(table("Environment", ["what", "value"], rows, folded=True))
    prints = list(_mapping(environment, "data").items())
    if prints:
        some = f" (the first {_MOST_PRINTS} of {len(prints)})" if len(prints) > _MOST_PRINTS else ""
        rows = [[str(k), f"{str(v)[:16]}…"] for k, v in prints[:_MOST_PRINTS]]
        found.append(
            table(f"Fingerprints of the data{some}", ["client", "sha256"], rows, folded=True)
        )
    return found


def _mapping(environment: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = environment.get(key)
    return value if isinstance(value, Mapping) else {}
