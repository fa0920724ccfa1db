"""Runs for reports, made up: any number of clients of any names, without training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from fedbn.core.state import Entry, Kind
from fedbn.report.contents import (
    Confusion,
    Example,
    Exchange,
    Facts,
    Gallery,
    Layer,
    RunContents,
)

HOSTILE = (
    "<script>alert(1)</script>",
    "\"><img src=x onerror='alert(2)'>",
    "line\nbreak\ttab",
    "مستشفى ‮abc",
    "{{ 7 * 7 }} ${x} |pipe| `tick`",
    "long " * 60,
)
"""Names that are markup, break lines, turn the direction of writing, or never end."""


def records(
    clients: Sequence[str],
    methods: Sequence[str] = ("fedavg", "fedbn"),
    seeds: Sequence[int] = (0, 1),
    rounds: int = 3,
) -> list[dict[str, Any]]:
    """Records whose accuracy is 0.5, plus 0.1 a round, plus 0.2 for FedBN, plus 0.01 a seed."""
    found = []
    for seed in seeds:
        for method in methods:
            for round in range(1, rounds + 1):
                accuracy = 0.4 + 0.1 * min(round, 3) + 0.2 * (method == "fedbn") + 0.01 * seed
                values = {
                    ("train", "training_loss"): 2.0 / round,
                    ("train", "loss"): 1.5 / round,
                    ("test", "accuracy"): accuracy,
                }
                for client in clients:
                    job = {"method": method, "setting": "default", "seed": seed, "round": round}
                    where = {**job, "client": client, "domain": client, "statistics": "running"}
                    found += [
                        {**where, "split": split, "metric": metric, "value": value}
                        for (split, metric), value in values.items()
                    ]
    return found


def facts(clients: Sequence[str], classes: Sequence[str] = ("cat", "dog")) -> Facts:
    """Statistics that differ from client to client, a confusion and two pictures each."""
    count, channels = len(clients), 4
    mean = np.arange(count * channels, dtype=float).reshape(count, channels)
    pixels = np.zeros((8, 8, 3), np.uint8)
    right = Example(pixels, classes[0], classes[0], 0.9)
    wrong = Example(pixels, classes[0], classes[1], 0.8)
    square = np.full((len(classes), len(classes)), 3)
    return Facts(
        method="fedbn",
        setting="default",
        seed=0,
        round=3,
        classes=tuple(classes),
        clients=count,
        entries=((Entry("conv.weight", Kind.WEIGHT, (4, 3), torch.float32, True), True),),
        layers=(Layer("bn1", tuple(clients), mean, np.ones((count, channels))),),
        confusions=tuple(Confusion(c, c, square) for c in clients[:12]),
        galleries=tuple(Gallery(c, c, (right,), (wrong,)) for c in clients[:12]),
    )


def contents(clients: Sequence[str] = ("a", "b"), **changes: Any) -> RunContents:
    """A whole run of FedAvg and FedBN."""
    values: dict[str, Any] = {
        "path": "runs/first",
        "name": "first",
        "records": records(clients),
        "config": {"data": {"name": "made_up"}, "model": {"name": "net"}, "seeds": [0, 1]},
        "environment": {"versions": {"fedbn": "1"}, "data": dict.fromkeys(clients, "f" * 64)},
        "exchanges": (
            Exchange("fedavg", (6, 600), (0, 0), len(clients), 3),
            Exchange("fedbn", (2, 500), (4, 100), len(clients), 3),
        ),
        "facts": facts(clients),
    }
    return RunContents(**{**values, **changes})
