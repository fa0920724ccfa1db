"""What a run must remember of its data, so that its models can be used where the data is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fedbn.core.federation import Client, Federation, Split

_EVERY = "all settings"


def facts_of(federation: Federation) -> dict[str, Any]:
    """Collect plain values: names, shapes and how a sample is prepared, and no sample."""
    x = [client.train.x for client in federation.clients]
    return {
        "name": federation.name,
        "classes": list(federation.classes),
        "input_shape": list(federation.input_shape),
        "clients": [[client.name, client.domain] for client in federation.clients],
        "dtype": str(x[0].dtype).removeprefix("torch."),
        "range": [float(min(part.min() for part in x)), float(max(part.max() for part in x))],
        "remarks": list(federation.remarks),
        "stand_ins": list(federation.stand_ins),
        "preparation": dict(federation.preparation),
    }


def facts_by_setting(federations: Mapping[str, Federation]) -> dict[str, Any]:
    """Collect the facts of each setting's data; once where all settings have the same."""
    found = {id(federation): federation for federation in federations.values()}
    if len(found) == 1:
        return {_EVERY: facts_of(next(iter(found.values())))}
    return {setting: facts_of(federation) for setting, federation in federations.items()}


def facts_for(recorded: Mapping[str, dict[str, Any]], setting: str) -> dict[str, Any] | None:
    """Find the facts of a setting; None in a run that recorded none."""
    return recorded.get(setting, recorded.get(_EVERY))


def sketch(facts: Mapping[str, Any]) -> Federation:
    """Make a federation of the same clients, classes and shapes, with two blank samples each."""
    dtype = getattr(torch, facts["dtype"])
    blank = Split(
        torch.zeros((), dtype=dtype).expand(2, *facts["input_shape"]),
        torch.zeros(2, dtype=torch.int64),
    )
    clients = tuple(
        Client(name, domain, blank, {domain: blank}) for name, domain in _pairs(facts["clients"])
    )
    return Federation(
        facts["name"],
        clients,
        tuple(facts["classes"]),
        tuple(facts["remarks"]),
        preparation=dict(facts["preparation"]),
    )


def _pairs(clients: Sequence[Sequence[str]]) -> list[tuple[str, str]]:
    return [(str(name), str(domain)) for name, domain in clients]
