"""One item from its configuration to a folder of tables, figures and what must be known of them."""

from __future__ import annotations

import importlib
import json
import platform
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedbn._version import __version__
from fedbn.errors import ConfigError, unknown
from fedbn.markdown import harmless
from fedbn.reproduction import writing
from fedbn.reproduction.entries import Entry
from fedbn.reproduction.item import Outcome, Request
from fedbn.runs.files import explained, to_json, write_atomically

RESULT, TIME, README = "result.json", "seconds.json", "README.md"
ITEMS = {
    "data_view": "fedbn.reproduction.data_view",
    "synthetic": "fedbn.reproduction.synthetic",
    "toy_surface": "fedbn.reproduction.toy_surface",
    "trained": "fedbn.reproduction.trained",
    "unseen_domain": "fedbn.reproduction.unseen_domain",
}
"""The items that `reproduce.by` can name, each a function of its module."""


def produce(entry: Entry, request: Request, command: str) -> Outcome:
    """Reproduce an item and write its folder.

    An interrupted item leaves its run folders, from which the same command goes on, and the
    seconds spent so far.
    """
    made = [path for path in (request.folder, *request.folder.parents) if not path.exists()]
    with explained(request.folder, ConfigError):
        request.folder.mkdir(parents=True, exist_ok=True)
    begun, finished = time.monotonic(), (request.folder / RESULT).exists()
    before = _seconds(request.folder)
    outcome: Outcome | None = None
    try:
        with explained(request.folder):
            outcome = _item(entry)(request)
    finally:
        spent = before if finished else before + time.monotonic() - begun
        if outcome or any(request.folder.iterdir()):
            write_atomically(request.folder / TIME, to_json({"seconds": round(spent, 1)}))
        else:
            _remove(made)
    _write_tables(request, outcome)
    facts = _facts(entry, request, outcome, command, spent)
    write_atomically(request.folder / README, _readme(entry, facts, outcome).encode())
    write_atomically(request.folder / RESULT, to_json(facts))
    return outcome


def _remove(made: list[Path]) -> None:
    """Leave nothing of an item that failed before it wrote anything."""
    with suppress(OSError):
        for path in made:
            path.rmdir()


def _item(entry: Entry) -> Callable[[Request], Outcome]:
    if entry.by not in ITEMS:
        raise ConfigError(f"{entry.file}: reproduce.by: {unknown('item', entry.by, ITEMS)}")
    found: Callable[[Request], Outcome] = getattr(
        importlib.import_module(ITEMS[entry.by]), entry.by
    )
    return found


def _write_tables(request: Request, outcome: Outcome) -> None:
    for table in outcome.tables:
        for suffix, content in (
            ("csv", writing.to_csv(table)),
            ("md", writing.to_markdown(table)),
            ("tex", writing.to_latex(table)),
        ):
            write_atomically(request.folder / f"{table.name}.{suffix}", content.encode())


def _facts(
    entry: Entry, request: Request, outcome: Outcome, command: str, seconds: float
) -> dict[str, Any]:
    return {
        "name": entry.name,
        "title": entry.title,
        "place": entry.how.get("place", ""),
        "scale": request.scale,
        "command": command,
        "run": None if request.source is None else str(request.source),
        "settings": json.loads(json.dumps(_without_how(request.experiment))),
        "changes": list(request.changes),
        "remarks": list(outcome.remarks),
        "seconds": round(seconds, 1),
        "versions": {"fedbn": __version__, "python": platform.python_version()},
        "tables": [asdict(table) for table in outcome.tables],
        "figures": [figure.name for figure in outcome.figures],
    }


def _without_how(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in raw.items() if key not in ("reproduce", "quick")}


def _readme(entry: Entry, facts: Mapping[str, Any], outcome: Outcome) -> str:
    """A page that a person reads first."""
    changes = "; ".join(facts["changes"]) or "none"
    parts = [
        f"# {entry.name}",
        harmless(entry.title),
        f"In the paper: {harmless(facts['place'])}.",
        f"```bash\n{facts['command']}\n```",
        f"- scale: {facts['scale']}; seconds: {facts['seconds']:.0f}\n"
        f"- changes against the paper's settings: {harmless(changes)}",
        *(f"- {harmless(remark)}" for remark in outcome.remarks),
        *(writing.to_markdown(table) for table in outcome.tables),
        *(f"![{f.stem}]({f.name})" for f in outcome.figures if f.suffix == ".png"),
    ]
    return "\n\n".join(parts) + "\n"


def _seconds(folder: Path) -> float:
    try:
        return float(json.loads((folder / TIME).read_bytes())["seconds"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0.0
