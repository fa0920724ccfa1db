"""What the trained models of a run tell a report: statistics, confusions, examples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch.nn.modules.batchnorm import _BatchNorm

from fedbn.core.federation import Client, Split
from fedbn.core.randomness import generator
from fedbn.core.state import entries
from fedbn.data._view import drawable
from fedbn.errors import FedbnError, unforeseen
from fedbn.results.report.contents import (
    Array,
    Confusion,
    EntryFact,
    Example,
    Facts,
    Gallery,
    Layer,
)
from fedbn.results.report.words import spread
from fedbn.use.inference import probabilities
from fedbn.use.trained import Trained

_MOST_MEASURED, _MOST_SCORED = 64, 12
_DRAWN, _MISTAKES = 8, 4


def collect(trained: Trained) -> tuple[Facts, dict[str, str]]:
    """Collect what a report shows of one method, seed and setting.

    Returns:
        The facts; and of each part that is not among them, the reason.
    """
    plan, missing = trained.plan, dict[str, str]()
    layers = _layers(trained)
    if not layers:
        missing["statistics"] = _why_no_layers(trained)
    confusions, galleries = _scored(trained, missing)
    found = Facts(
        method=plan.method.name,
        setting=plan.setting,
        seed=plan.seed,
        round=trained.state.round,
        remarks=plan.federation.remarks,
        classes=plan.federation.classes,
        clients=len(plan.federation.clients),
        entries=_entries(trained),
        layers=layers,
        confusions=confusions,
        galleries=galleries,
    )
    return found, missing


def changed(trained: Trained, recorded: object) -> list[str]:
    """Say which clients' data is not what the run was trained on."""
    try:
        now = trained.federation.fingerprint()
    except Exception:
        return []  # said where the data is needed
    if not isinstance(recorded, Mapping) or recorded.keys() != now.keys():
        return []
    other = [client for client in now if now[client] != recorded[client]]
    if not other:
        return []
    some = ", ".join(other[:5]) + (" …" if len(other) > 5 else "")
    return [f"The data has changed since the run was begun: {some}"]


def reason(error: Exception) -> str:
    """Say in one line why something cannot be had."""
    text = str(error) if isinstance(error, FedbnError) else unforeseen(error)
    return text.rstrip(".")


def _entries(trained: Trained) -> tuple[EntryFact, ...]:
    found = entries(trained.plan.initial_model)
    shared = set(trained.plan.method.shared(found))
    return tuple(EntryFact(e.name, str(e.kind), e.shape, e.bytes, e in shared) for e in found)


def _layers(trained: Trained) -> tuple[Layer, ...]:
    """The running statistics that clients keep to themselves, layer by layer."""
    names = tuple(spread(list(trained.state.local), _MOST_MEASURED))
    found = []
    for name, module in trained.plan.initial_model.named_modules():
        keys = [f"{name}.{part}".lstrip(".") for part in ("running_mean", "running_var")]
        own = [trained.state.scored_with(client).state for client in names]
        if len(names) > 1 and isinstance(module, _BatchNorm) and keys[0] in own[0]:
            mean, variance = (np.stack([_flat(state[key]) for state in own]) for key in keys)
            found.append(Layer(name or "BatchNorm", names, mean, variance))
    return tuple(found)


def _flat(value: torch.Tensor) -> Array:
    array: Array = value.detach().cpu().double().flatten().numpy()
    return array


def _why_no_layers(trained: Trained) -> str:
    modules = trained.plan.initial_model.modules()
    method = trained.plan.method.name
    if not any(isinstance(m, _BatchNorm) and m.running_mean is not None for m in modules):
        return "the model has no BatchNorm layer that tracks statistics"
    if len(trained.state.local) < 2:
        return f"{method} trains one model, so there is nothing to compare"
    return f"under {method} all clients share the same BatchNorm statistics"


def _scored(
    trained: Trained, missing: dict[str, str]
) -> tuple[tuple[Confusion, ...], tuple[Gallery, ...]]:
    """Run each client's model over its own test data."""
    confusions, galleries, domains = [], [], set[str]()
    try:
        federation = trained.federation
        federation = federation.pooled() if trained.plan.method.pooled else federation
        pictures = len(federation.input_shape) == 3
        classes = federation.classes
        for client, domain, test in spread(list(_tests(federation.clients)), _MOST_SCORED):
            chances = probabilities(trained.model(client.name), test.x)
            confusions.append(_confusion(client.name, domain, test, chances))
            if pictures and domain not in domains:
                domains.add(domain)
                galleries.append(_gallery(client.name, domain, test, chances, classes))
    except Exception as error:
        why = f"the test data cannot be used here ({reason(error)})"
        return (), _without(missing, {"confusions": why, "examples": why})
    if not pictures:
        missing["examples"] = "the samples are no pictures"
    return tuple(confusions), tuple(galleries)


def _without(missing: dict[str, str], more: dict[str, str]) -> tuple[()]:
    missing.update(more)
    return ()


def _tests(clients: Sequence[Client]) -> Iterator[tuple[Client, str, Split]]:
    for client in clients:
        for domain, test in client.tests.items():
            yield client, domain, test


def _confusion(client: str, domain: str, test: Split, chances: Array) -> Confusion:
    count = chances.shape[1]
    counts = np.zeros((count, count), np.int64)
    np.add.at(counts, (test.y.cpu().numpy(), chances.argmax(axis=1)), 1)
    return Confusion(client, domain, counts)


def _gallery(
    client: str, domain: str, test: Split, chances: Array, classes: Sequence[str]
) -> Gallery:
    order = torch.randperm(len(test), generator=generator(0, "report", client=client)).tolist()
    drawn, truth = order[:_DRAWN], test.y.cpu().numpy()
    said = chances.argmax(axis=1)
    wrong = [i for i in np.argsort(-chances.max(axis=1), kind="stable") if said[i] != truth[i]]
    surest = [int(i) for i in wrong if i not in drawn][:_MISTAKES]

    def example(place: int) -> Example:
        pixels = drawable(test.x[place : place + 1].cpu())[0]
        true, guess = (classes[int(label[place])] for label in (truth, said))
        return Example(pixels, true, guess, float(chances[place].max()))

    return Gallery(client, domain, tuple(map(example, drawn)), tuple(map(example, surest)))
