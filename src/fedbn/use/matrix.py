"""Who may use whose model: every client's model on every domain's test data."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedbn.core.federation import Split
from fedbn.use.inference import probabilities
from fedbn.use.metrics import METRICS, Outcomes, Value, scores
from fedbn.use.predictions import harmless
from fedbn.use.trained import Trained


@dataclass(frozen=True)
class Matrix:
    """Scores of models on test data.

    Attributes:
        clients: Whose models, the rows.
        domains: Whose test data, the columns.
        classes: The names of the classes, the order of `confusion`.
        samples: Test samples of each domain.
        values: By metric, client and domain: the score and the ends of its 95 % interval.
        confusion: By client and domain: counts by true (rows) and predicted class (columns).
    """

    clients: tuple[str, ...]
    domains: tuple[str, ...]
    classes: tuple[str, ...]
    samples: Mapping[str, int]
    values: Mapping[str, Mapping[str, Mapping[str, Value]]]
    confusion: Mapping[str, Mapping[str, NDArray[np.int64]]]

    def to_json(self) -> bytes:
        """Render all numbers as JSON; what is not defined is null."""
        content = {
            "clients": self.clients,
            "domains": self.domains,
            "classes": self.classes,
            "samples": dict(self.samples),
            "values": {
                metric: {
                    client: {domain: _plain(value) for domain, value in row.items()}
                    for client, row in rows.items()
                }
                for metric, rows in self.values.items()
            },
            "confusion": {
                client: {domain: counts.tolist() for domain, counts in row.items()}
                for client, row in self.confusion.items()
            },
        }
        return (json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()

    def to_csv(self) -> bytes:
        """Render one row a metric, client and domain."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["metric", "client", "domain", "samples", "value", "low", "high"])
        for metric, rows in self.values.items():
            for client, row in rows.items():
                for domain, value in row.items():
                    numbers = ["" if v is None else f"{v:.6g}" for v in _plain(value)]
                    names = [metric, client, domain, str(self.samples[domain])]
                    writer.writerow(harmless([*names, *numbers]))
        return text.getvalue().encode()


def evaluate_all(
    trained: Trained,
    tests: Mapping[str, Split] | None = None,
    *,
    resamples: int = 1000,
    seed: int = 0,
    progress: Callable[[str], None] = lambda client: None,
) -> Matrix:
    """Score every client's model, adapted sites' too, on every domain's test data.

    Args:
        trained: The run.
        tests: Test data by domain; the run's own unless given.
        resamples: Bootstrap resamples behind each interval.
        seed: Decides them.
        progress: Hears each client before its model is scored.
    """
    domains = domain_tests(trained) if tests is None else tests
    classes = trained.plan.federation.classes
    values: dict[str, Any] = {metric: {} for metric in METRICS}
    confusion: dict[str, dict[str, NDArray[np.int64]]] = {}
    for client in trained.clients:
        progress(client)
        model = trained.model(client)
        made = {d: _outcomes(probabilities(model, s.x), s) for d, s in domains.items()}
        found = {domain: scores(one, resamples, seed) for domain, one in made.items()}
        for metric in METRICS:
            values[metric][client] = {domain: one[metric] for domain, one in found.items()}
        confusion[client] = {domain: one.confusion for domain, one in made.items()}
    samples = {domain: len(split) for domain, split in domains.items()}
    return Matrix(trained.clients, tuple(domains), classes, samples, values, confusion)


def domain_tests(trained: Trained) -> dict[str, Split]:
    """The test data of each domain, once: clients of one domain hold the same."""
    first = torch.zeros(1, dtype=torch.int64)  # pooling must not copy all training data
    light = [replace(c, train=c.train.take(first), valid=None) for c in trained.federation.clients]
    (pooled,) = replace(trained.federation, clients=tuple(light)).pooled().clients
    return {domain: split.to("cpu") for domain, split in pooled.tests.items()}


def _outcomes(proba: NDArray[np.float64], split: Split) -> Outcomes:
    groups = None if split.groups is None else split.groups.numpy()
    return Outcomes(proba, split.y.numpy(), groups)


def _plain(value: Value) -> list[float | None]:
    return [number if math.isfinite(number) else None for number in value]
