"""Scores with bootstrap confidence intervals: a task's metrics (`fedbn.tasks.metrics`).

Noise only adds to a calibration error, resampling too: its interval may lie above a small value.

An interval is the 2.5 % to 97.5 % percentiles over resamples with replacement. Samples of one
group (the windows of one subject) are drawn together. Every resample is a vector of weights, so
that all of them are computed at once, as products of matrices. Every client's model is scored on
every domain's test data: who may use whose model.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from fedbn.core.federation import AnySplit, Targets, all_targets
from fedbn.core.metric import Metric
from fedbn.core.statistics_kinds import RUNNING, StatisticsKind
from fedbn.core.task import CLASSIFICATION
from fedbn.errors import ConfigError, FedbnError, ModelError, reason
from fedbn.tasks.making import evaluated
from fedbn.text import csv_text, plain
from fedbn.trained.trained_run import Trained, predictions

Floats = NDArray[np.float64]
Value = tuple[float, float, float]
"""A score, and the ends of its interval."""
_LEVELS = (2.5, 97.5)
_BLOCK = 4_000_000
_NO_VALUE: Value = (math.nan, math.nan, math.nan)


@dataclass(frozen=True)
class Outcomes:
    """What a model said of samples whose targets are known, by some metrics.

    Of classes, `proba` has probabilities, (n, classes), and `labels` places, (n,). Samples that
    share a group, a whole number each, are drawn together.
    """

    proba: NDArray[Any]
    labels: NDArray[Any]
    groups: NDArray[np.int64] | None = None
    metrics: Sequence[Metric] = evaluated(CLASSIFICATION)

    @cached_property
    def predicted(self) -> NDArray[np.int64]:
        """The likeliest class of each sample."""
        return np.asarray(self.proba.argmax(axis=1))

    @cached_property
    def confusion(self) -> NDArray[np.int64]:
        """Counts by true class (rows) and predicted class (columns)."""
        classes = self.proba.shape[1]
        cells = self.labels * classes + self.predicted
        return np.bincount(cells, minlength=classes**2).reshape(classes, classes)


def scores(outcomes: Outcomes, resamples: int = 1000, seed: int = 0) -> dict[str, Value]:
    """Compute all metrics, each with its interval; NaN where a metric is not defined.

    Where all resamples agree, of one group or of samples all right, there is no interval: that they
    do is luck and not precision.

    Examples:
        >>> made = Outcomes(np.array([[0.9, 0.1], [0.2, 0.8]]), np.array([0, 0]))
        >>> scores(made)["accuracy"][0]
        0.5
    """
    drawn: dict[str, list[Floats]] = {metric.name: [] for metric in outcomes.metrics}
    for weights in (np.ones((1, len(outcomes.labels))), *_weights(outcomes, resamples, seed)):
        for metric in outcomes.metrics:
            assert metric.value is not None
            drawn[metric.name].append(metric.value(outcomes.proba, outcomes.labels, weights))
    found = {}
    for name, (own, *again) in drawn.items():
        values = np.concatenate(again) if again else np.empty(0)
        values = values[np.isfinite(values)]
        low, high = np.percentile(values, _LEVELS) if len(set(values)) > 1 else (math.nan, math.nan)
        found[name] = (float(own[0]), float(low), float(high))
    return found


def _weights(outcomes: Outcomes, resamples: int, seed: int) -> Iterator[Floats]:
    """Yield blocks of resamples: how often each sample is drawn, (resamples, n)."""
    n = len(outcomes.labels)
    draws = np.random.default_rng(seed)
    group = np.arange(n)
    if outcomes.groups is not None:
        group = np.unique(outcomes.groups, return_inverse=True)[1]
    count = int(group.max()) + 1
    step = max(1, _BLOCK // n)
    for begin in range(0, resamples, step):
        size = min(step, resamples - begin)
        drawn = draws.multinomial(count, np.full(count, 1 / count), size=size)
        yield drawn[:, group].astype(np.float64)


@dataclass(frozen=True)
class Matrix:
    """Scores of the clients' models, the rows, on the domains' test data, the columns.

    `values` has, by metric, client and domain, the score and the ends of its 95 % interval;
    `confusion` counts by true (rows) and predicted class (columns), where samples have a class.
    """

    clients: tuple[str, ...]
    domains: tuple[str, ...]
    classes: tuple[str, ...]
    samples: Mapping[str, int]
    values: Mapping[str, Mapping[str, Mapping[str, Value]]]
    confusion: Mapping[str, Mapping[str, NDArray[np.int64]]]
    metrics: tuple[Metric, ...] = evaluated(CLASSIFICATION)
    warnings: tuple[str, ...] = ()  # what the run warned of
    statistics: StatisticsKind = RUNNING  # the BatchNorm statistics of the models
    unscored: Mapping[str, str] = field(default_factory=dict)  # why clients have no score

    def to_json(self) -> bytes:
        """Render all numbers as JSON; what is not defined is null."""
        return to_json([self])

    def to_csv(self) -> bytes:
        """Render one row a metric, client and domain."""
        return to_csv([self])


_OF_THE_RUN = ("domains", "classes", "samples", "warnings")
_OF_STATISTICS = ("statistics", "clients", "values", "confusion", "unscored")


def to_json(found: Sequence[Matrix]) -> bytes:
    """Render scores with several kinds of statistics as JSON; the first stands at the top."""
    first, *others = found
    content = {name: getattr(first, name) for name in (*_OF_STATISTICS, *_OF_THE_RUN)}
    content["others"] = [{n: getattr(one, n) for n in _OF_STATISTICS} for one in others]
    text = json.dumps(plain(content), indent=2, ensure_ascii=False, allow_nan=False)
    return f"{text}\n".encode()


def to_csv(found: Sequence[Matrix]) -> bytes:
    """Render one row a metric, client, domain and kind of statistics."""
    lines = [["metric", "client", "domain", "samples", "value", "low", "high", "statistics"]]
    for matrix in found:
        for metric, rows in matrix.values.items():
            for client, row in rows.items():
                for domain, value in row.items():
                    numbers = ["" if v is None else f"{v:.6g}" for v in plain(value)]
                    about = [metric, client, domain, str(matrix.samples[domain])]
                    lines.append([*about, *numbers, matrix.statistics])
    return csv_text(lines).encode()


def evaluate_all(
    trained: Trained,
    tests: Mapping[str, AnySplit] | None = None,
    *,
    own: bool = False,
    resamples: int = 1000,
    without: Collection[str] = (),
    statistics: StatisticsKind = RUNNING,
) -> Matrix:
    """Score every client's model, adapted sites' too, on every domain's test data.

    Args:
        trained: The run.
        tests: The test data by domain; the run's own unless given.
        own: True to score each training client only on what it is tested on.
        resamples: Bootstrap resamples behind an interval.
        without: Clients that are left out.
        statistics: The BatchNorm statistics of the models. Adapted sites have running ones alone.

    Returns:
        The scores. A client whose statistics cannot be computed has none, and a reason.

    Raises:
        ConfigError: The run has no such statistics.
    """
    if statistics != RUNNING:
        without = {*without, *trained.adapted}
    domains = domain_tests(trained) if tests is None else tests
    tested = {client.name: client.tests for client in trained.federation.clients} if own else {}
    clients = tuple(n for n in (tested if own else trained.clients) if n not in without)
    classes = trained.plan.federation.classes
    metrics = evaluated(trained.plan.task)
    values: dict[str, Any] = {metric.name: {} for metric in metrics}
    confusion: dict[str, dict[str, NDArray[np.int64]]] = {}
    unscored: dict[str, str] = {}
    for client in clients:
        asked = {d: s for d, s in domains.items() if not own or d in tested[client]}
        try:
            model = trained.model(client, statistics)
        except Exception as error:
            asked_wrongly = isinstance(error, ConfigError) and not isinstance(error, ModelError)
            if statistics == RUNNING or asked_wrongly:
                raise
            # The model or the data of this client fails, which concerns its numbers only.
            unscored[client] = str(error) if isinstance(error, FedbnError) else reason(error)
            for name in values:
                values[name][client] = dict.fromkeys(asked, _NO_VALUE)
            continue
        made = {d: outcomes_of(trained, client, split, model) for d, split in asked.items()}
        found = {domain: scores(one, resamples) for domain, one in made.items()}
        for name in values:
            values[name][client] = {domain: one[name] for domain, one in found.items()}
        if trained.plan.task.targets is Targets.CLASS:
            confusion[client] = {domain: one.confusion for domain, one in made.items()}
    samples = {domain: len(split) for domain, split in domains.items()}
    names = tuple(domains)
    told = trained.warnings
    return Matrix(
        clients, names, classes, samples, values, confusion, metrics, told, statistics, unscored
    )


def domain_tests(trained: Trained) -> dict[str, AnySplit]:
    """The test data of each domain, once."""
    return {name: one.to("cpu") for name, one in trained.federation.domain_tests().items()}


def outcomes_of(
    trained: Trained, client: str, split: AnySplit, model: nn.Module | None = None
) -> Outcomes:
    """What a client's model says of a split, with its targets and its groups."""
    said = predictions(trained.plan.task, model or trained.model(client), split)
    groups = None if split.groups is None else split.groups.cpu().numpy()
    return Outcomes(said, all_targets(split).cpu().numpy(), groups, evaluated(trained.plan.task))
