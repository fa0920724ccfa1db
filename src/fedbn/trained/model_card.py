"""A model card: what someone must know who is handed an exported model (`model_card.md`)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from jinja2 import Environment, StrictUndefined

from fedbn.core.federation import Targets
from fedbn.core.state import Entry, entries
from fedbn.errors import DamagedRun
from fedbn.runs.folder import RunFolder
from fedbn.runs.messages import RunWarning, grouped
from fedbn.text import harmless, table
from fedbn.trained.trained_run import Trained

Facts = Mapping[str, Any]
_OUTPUT = {
    Targets.CLASS: "n × {} scores, before softmax",
    Targets.LABELS: "n × {} scores, before the sigmoid",
    Targets.NUMBERS: "n × {} numbers",
    Targets.MASK: "n × {} × the size of the input: scores of each place, before softmax",
}
_NAMED = {Targets.NUMBERS: "targets", Targets.LABELS: "labels"}
_VERB = {Targets.NUMBERS: "Predict numbers of", Targets.MASK: "Segment"}


def model_card(trained: Trained, facts: Facts, agreement: Facts, file: str, size: int) -> str:
    """Write the card of an exported model: what its file tells, and how it was checked."""
    pages = Environment(
        autoescape=False, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        keep_trailing_newline=True,
    )  # fmt: skip
    pages.filters |= {"harmless": harmless, "size": _size}
    client, method, metric = facts["client"], trained.plan.method, trained.metric
    found = entries(trained.plan.initial_model)
    rows = [
        (name + (" (this model)" if name == client else ""), f"{metric.said(v)} {metric.unit}")
        for name, v in trained.scores().items()
    ]
    template = (resources.files(__package__) / "model_card.md").read_text(encoding="utf-8")
    return pages.from_string(template).render(
        client=client,
        facts=facts,
        identity=table(("", ""), _identity(trained, facts, file, size)),
        made=_made(trained, client) if client in trained.adapted else "",
        metric=metric,
        scored=trained.scored_round() if rows else None,
        scores=table(("client", metric.words), rows) if rows else "",
        shared=method.shared(found),
        local=method.local(found),
        verb=_VERB.get(trained.plan.task.targets, "Classify"),
        remarks=trained.plan.federation.remarks,
        warnings=grouped(map(RunWarning, _without_remarks(trained))),
        agreement=agreement,
        quoted=json.dumps(file, ensure_ascii=False),
    )


def _without_remarks(trained: Trained) -> list[str]:
    """Return the warnings of a run that its data's description does not have already."""
    return [text for text in trained.warnings if text not in trained.plan.federation.remarks]


def _identity(trained: Trained, facts: Facts, file: str, size: int) -> list[tuple[str, Any]]:
    config = RunFolder(trained.folder).read_request() if trained.folder else {}
    seeds = config.get("seeds", [facts["seed"]])
    shape = " × ".join(map(str, facts["input_shape"]))
    client, kind = facts["client"], trained.plan.task.targets
    found = [
        ("file", f"{file}, {size:,} bytes"),
        ("client", client + (", adapted after training" if client in trained.adapted else "")),
        ("data", "; ".join([facts["data"], *trained.plan.federation.remarks])),
        ("method", facts["method"]),
        ("rounds", facts["round"]),
        ("seed", f"{facts['seed']} (the run has {', '.join(map(str, seeds))})"),
        ("model", f"{facts['model']} {json.dumps(facts['model_args'])}"),
        ("input", f"n × {shape}; {facts['scaling']}"),
        ("task", facts["task"]),
        ("output", _OUTPUT[kind].format(len(facts["classes"]))),
        (_NAMED.get(kind, "classes"), ", ".join(facts["classes"])),
        ("made with", f"fedbn {facts['fedbn']}, torch {facts['torch']}"),
    ]
    if facts["preparation"]:
        found.append(("preparation of a sample", json.dumps(facts["preparation"])))
    if facts["setting"] != "default":
        found.append(("setting", facts["setting"]))
    return found


def _made(trained: Trained, client: str) -> str:
    try:
        manifest = trained.adapted[client].manifest()
    except DamagedRun:
        return "how is not known"
    known = {key: manifest[key] for key in ("how", "samples", "like") if manifest.get(key)}
    return ", ".join(f"{key}: {value}" for key, value in known.items())


def _size(some: Sequence[Entry]) -> str:
    return f"{len(some)} entries ({sum(entry.bytes for entry in some):,} bytes)"
