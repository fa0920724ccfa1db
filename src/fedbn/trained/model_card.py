"""A model card: what someone must know who is handed an exported model, as Markdown."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from fedbn.core.federation import Targets
from fedbn.core.state import Entry, entries
from fedbn.errors import DamagedRun
from fedbn.runs.folder import RunFolder
from fedbn.text import harmless, table
from fedbn.trained.trained_run import Trained

Facts = Mapping[str, Any]
_LISTED = 20
_OUTPUT = {
    Targets.CLASS: "n × {} scores, before softmax",
    Targets.LABELS: "n × {} scores, before the sigmoid",
    Targets.NUMBERS: "n × {} numbers",
    Targets.MASK: "n × {} × the size of the input: scores of each place, before softmax",
}
_NAMED = {Targets.NUMBERS: "targets", Targets.LABELS: "labels"}
_VERB = {Targets.NUMBERS: "Predict numbers of", Targets.MASK: "Segment"}


def model_card(
    trained: Trained, client: str, facts: Facts, agreement: Facts, file: str, size: int
) -> str:
    """Write the card of an exported model.

    Args:
        trained: The run.
        client: Whose model it is.
        facts: What the file itself tells.
        agreement: How it was checked.
        file: Its name.
        size: Its bytes.
    """
    name = harmless(client)
    parts = [
        f"# The model of {name}: {harmless(facts['method'])} on {harmless(facts['data'])}",
        _table(_identity(trained, client, facts, file, size)),
        f"## Scores\n\n{_scores(trained, client)}",
        f"## What stayed local\n\n{_local(trained, client)}",
        f"## Intended use\n\n{_use(name, _VERB.get(trained.plan.task.targets, 'Classify'))}",
        f"## Limits\n\n{_limits(trained, name)}",
        f"## How it was checked\n\n{_checked(agreement, facts)}",
        f"## How to load it without fedbn\n\n{_loading(facts, file)}",
    ]
    return "\n\n".join(parts) + "\n"


def _identity(
    trained: Trained, client: str, facts: Facts, file: str, size: int
) -> list[tuple[str, Any]]:
    config = RunFolder(trained.folder).read_request() if trained.folder else {}
    seeds = config.get("seeds", [facts["seed"]])
    shape = " × ".join(map(str, facts["input_shape"]))
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
        ("output", _OUTPUT[trained.plan.task.targets].format(len(facts["classes"]))),
        (_NAMED.get(trained.plan.task.targets, "classes"), ", ".join(facts["classes"])),
        ("made with", f"fedbn {facts['fedbn']}, torch {facts['torch']}"),
    ]
    if facts["preparation"]:
        found.append(("preparation of a sample", json.dumps(facts["preparation"])))
    if facts["setting"] != "default":
        found.append(("setting", facts["setting"]))
    return found


def _scores(trained: Trained, client: str) -> str:
    metric = trained.metric
    rows = [
        (name + (" (this model)" if name == client else ""), f"{metric.said(v)} {metric.unit}")
        for name, v in trained.scores().items()
    ]
    said = f"Test {metric.words} of every client's own model on its own domain, after round "
    said += f"{trained.scored_round()}{'' if metric.higher else '; lower is better'}."
    if client in trained.adapted:
        how = _made(trained, client)
        said = f"{harmless(client)} never trained; its BatchNorm was made since ({how}). {said}"
    return f"{said}\n\n{table(('client', metric.words), rows)}" if rows else "None were recorded."


def _made(trained: Trained, client: str) -> str:
    try:
        manifest = trained.adapted[client].manifest()
    except DamagedRun:
        return "how is not known"
    known = {key: manifest[key] for key in ("how", "samples", "like") if manifest.get(key)}
    return harmless(", ".join(f"{key}: {value}" for key, value in known.items()))


def _local(trained: Trained, client: str) -> str:
    method, found = trained.plan.method, entries(trained.plan.initial_model)
    shared, local = method.shared(found), method.local(found)
    name = harmless(client)
    sentences = [
        f"Each round a client sent {_counted(shared)} and kept {_counted(local)}.",
        f"This file holds the shared part and the part of {name} alone; it holds nothing of what "
        "another client keeps.",
    ]
    if local:
        names = ", ".join(f"`{entry.name}`" for entry in local[:_LISTED])
        more = f" and {len(local) - _LISTED} more" if len(local) > _LISTED else ""
        sentences.append(f"Kept: {names}{more}.")
    return " ".join(sentences)


def _counted(some: Sequence[Entry]) -> str:
    return f"{len(some)} entries ({sum(entry.bytes for entry in some):,} bytes)"


def _use(name: str, verb: str) -> str:
    return (
        f"{verb} samples that come from where {name}'s training data came from, made ready in "
        "the same way. For another site take that site's model, or adapt one to it "
        "(`fedbn adapt`): BatchNorm normalises with the statistics of the site it belongs to."
    )


def _limits(trained: Trained, name: str) -> str:
    lines = [
        "- The scores come from one seed and the test data at hand; other data may score lower.",
        f"- Where the data of {name} changes (another device, another protocol), its BatchNorm "
        "statistics no longer fit, and nothing in the file notices.",
        "- Scores are not calibrated probabilities.",
        f"- BatchNorm statistics are means and variances over the data of {name}: hand the file on "
        "as you would hand on such figures.",
        "- It was not examined for use on patients; it is no medical device.",
    ]
    lines += [f"- Of the data: {harmless(text)}" for text in trained.plan.federation.remarks]
    return "\n".join(lines)


def _checked(agreement: Facts, facts: Facts) -> str:
    said = (
        f"The file was loaded back and run on {agreement['samples']} "
        f"{harmless(agreement['inputs'])}, as one batch and one alone: its outputs differ from the "
        "trained model's by at most "
        f"{agreement['worst']:.2g}, where outputs reach {agreement['largest']:.3g}."
    )
    if facts["folded"]:
        pairs = "; ".join(f"`{norm}` into `{layer}`" for norm, layer in facts["folded"].items())
        said += f" BatchNorm is folded: {pairs}."
    elif facts["format"] == "onnx":
        said += " The ONNX exporter may fold BatchNorm into the layer before it."
    return said


def _loading(facts: Facts, file: str) -> str:
    quoted = json.dumps(file, ensure_ascii=False)
    lines = {
        "safetensors": _safetensors(facts, quoted),
        "onnx": [
            "import onnxruntime",
            f"session = onnxruntime.InferenceSession({quoted})",
            'scores = session.run(None, {"x": x})[0]  # x: a float32 NumPy array',
        ],
        "torch-export": [
            "import torch",
            f"model = torch.export.load({quoted}).module()",
            "scores = model(x)  # x: a float32 tensor",
        ],
    }[facts["format"]]
    return "```python\n" + "\n".join(lines) + "\n```"


def _safetensors(facts: Facts, quoted: str) -> list[str]:
    lines = ["from safetensors.torch import load_file", "from torch import nn"]
    made = "model = make_model()  # the architecture is code, and not in the file"
    if not facts["folded"]:
        return [lines[0], made, f"model.load_state_dict(load_file({quoted}))", "model.eval()"]
    norms = list(facts["folded"])
    return [
        *lines,
        f"{made}; layers have a bias",
        f"for norm in {norms}:",
        "    model.set_submodule(norm, nn.Identity())",
        f"model.load_state_dict(load_file({quoted}))",
        "model.eval()",
    ]


def _table(rows: Sequence[tuple[str, Any]]) -> str:
    return table(("", ""), rows)
