r"""Scores of a classifier with bootstrap confidence intervals, as plain NumPy.

- accuracy; balanced accuracy, the mean recall of the classes that are there; macro F1, over the
  classes that are there or are predicted; AUROC, each class against the rest, the mean over
  classes that have both sides (a tie counts half): as scikit-learn defines them.
- expected calibration error: 15 bins of equal width of the highest probability, the mean gap
  between it and the accuracy, weighted by the samples in a bin (Guo et al. 2017). Noise only adds
  to it, resampling too: its interval may lie above a small value.

An interval is the 2.5 % to 97.5 % percentiles over resamples with replacement. Samples of one
group (the windows of one subject) are drawn together. Every resample is a vector of weights, so
that all of them are computed at once, as products of matrices.

Who may use whose model: every client's model on every domain's test data.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedbn.core.federation import AnySplit, all_targets
from fedbn.text import no_formula
from fedbn.trained.trained_run import Trained, probabilities

Floats = NDArray[np.float64]
Value = tuple[float, float, float]
"""A score, and the ends of its interval."""
_BINS = 15
_LEVELS = (2.5, 97.5)
_BLOCK = 4_000_000


@dataclass(frozen=True)
class Outcomes:
    """What a model said of samples whose labels are known.

    Attributes:
        proba: Probabilities, (n, classes).
        labels: Places of the true classes, (n,).
        groups: A whole number a sample; those that share it are drawn together. None: alone.
    """

    proba: Floats
    labels: NDArray[np.int64]
    groups: NDArray[np.int64] | None = None

    @cached_property
    def predicted(self) -> NDArray[np.int64]:
        """The likeliest class of each sample."""
        found: NDArray[np.int64] = self.proba.argmax(axis=1)
        return found

    @cached_property
    def confusion(self) -> NDArray[np.int64]:
        """Counts by true class (rows) and predicted class (columns)."""
        classes = self.proba.shape[1]
        cells = self.labels * classes + self.predicted
        return np.bincount(cells, minlength=classes**2).reshape(classes, classes)


def scores(outcomes: Outcomes, resamples: int = 1000, seed: int = 0) -> dict[str, Value]:
    """Compute all metrics, each with its interval; NaN where a metric is not defined.

    Examples:
        >>> made = Outcomes(np.array([[0.9, 0.1], [0.2, 0.8]]), np.array([0, 0]))
        >>> scores(made)["accuracy"][0]
        0.5
    """
    alone = np.ones((1, len(outcomes.labels)))
    points = {name: float(metric(outcomes, alone)[0]) for name, metric in METRICS.items()}
    drawn: dict[str, list[Floats]] = {name: [] for name in METRICS}
    for weights in _weights(outcomes, resamples, seed):
        for name, metric in METRICS.items():
            drawn[name].append(metric(outcomes, weights))
    return {name: (point, *_interval(drawn[name])) for name, point in points.items()}


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


def _interval(drawn: list[Floats]) -> tuple[float, float]:
    values = np.concatenate(drawn) if drawn else np.empty(0)
    values = values[np.isfinite(values)]
    if not len(values):
        return float("nan"), float("nan")
    low, high = np.percentile(values, _LEVELS)
    return float(low), float(high)


def _accuracy(outcomes: Outcomes, weights: Floats) -> Floats:
    found: Floats = weights @ (outcomes.predicted == outcomes.labels) / weights.sum(axis=1)
    return found


def _counts(outcomes: Outcomes, weights: Floats) -> tuple[Floats, Floats, Floats]:
    """Weights of each class: right, true and predicted, (resamples, classes)."""
    classes = np.eye(outcomes.proba.shape[1])
    true, predicted = classes[outcomes.labels], classes[outcomes.predicted]
    return weights @ (true * predicted), weights @ true, weights @ predicted


def _balanced_accuracy(outcomes: Outcomes, weights: Floats) -> Floats:
    right, true, _ = _counts(outcomes, weights)
    return _mean(right / np.maximum(true, 1e-300), true > 0)


def _macro_f1(outcomes: Outcomes, weights: Floats) -> Floats:
    right, true, predicted = _counts(outcomes, weights)
    either = true + predicted
    return _mean(2 * right / np.maximum(either, 1e-300), either > 0)


def _auroc(outcomes: Outcomes, weights: Floats) -> Floats:
    areas = [_area(outcomes, c, weights) for c in range(outcomes.proba.shape[1])]
    found = np.stack(areas, axis=1)
    return _mean(np.nan_to_num(found), np.isfinite(found))


def _area(outcomes: Outcomes, label: int, weights: Floats) -> Floats:
    """The chance that a sample of the class scores above one of another; a tie counts half."""
    chances = outcomes.proba[:, label]
    order = np.argsort(chances, kind="stable")
    begins = np.flatnonzero(np.r_[True, np.diff(chances[order]) > 0])
    mine = (outcomes.labels[order] == label).astype(np.float64)
    sorted_weights = weights[:, order]
    own = np.add.reduceat(sorted_weights * mine, begins, axis=1)
    other = np.add.reduceat(sorted_weights * (1 - mine), begins, axis=1)
    below = np.cumsum(other, axis=1) - other / 2
    pairs = own.sum(axis=1) * other.sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        area: Floats = np.where(pairs > 0, (own * below).sum(axis=1) / pairs, np.nan)
    return area


def _calibration_error(outcomes: Outcomes, weights: Floats) -> Floats:
    sure = outcomes.proba.max(axis=1)
    gap = sure - (outcomes.predicted == outcomes.labels)
    bins = np.minimum((sure * _BINS).astype(np.int64), _BINS - 1)
    by_bin = weights @ (np.eye(_BINS)[bins] * gap[:, None])
    found: Floats = np.abs(by_bin).sum(axis=1) / weights.sum(axis=1)
    return found


def _mean(values: Floats, defined: NDArray[np.bool_]) -> Floats:
    """The mean of each row's defined values; NaN for a row that has none."""
    count = defined.sum(axis=1)
    total = np.where(defined, values, 0.0).sum(axis=1)
    with np.errstate(invalid="ignore"):
        found: Floats = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return found


METRICS: dict[str, Callable[[Outcomes, Floats], Floats]] = {
    "accuracy": _accuracy,
    "balanced_accuracy": _balanced_accuracy,
    "macro_f1": _macro_f1,
    "auroc": _auroc,
    "calibration_error": _calibration_error,
}


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
                    writer.writerow(map(no_formula, [*names, *numbers]))
        return text.getvalue().encode()


def evaluate_all(
    trained: Trained,
    tests: Mapping[str, AnySplit] | None = None,
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
        made = {d: outcomes_of(probabilities(model, s), s) for d, s in domains.items()}
        found = {domain: scores(one, resamples, seed) for domain, one in made.items()}
        for metric in METRICS:
            values[metric][client] = {domain: one[metric] for domain, one in found.items()}
        confusion[client] = {domain: one.confusion for domain, one in made.items()}
    samples = {domain: len(split) for domain, split in domains.items()}
    return Matrix(trained.clients, tuple(domains), classes, samples, values, confusion)


def domain_tests(trained: Trained) -> dict[str, AnySplit]:
    """The test data of each domain, once: clients of one domain hold the same."""
    first = torch.zeros(1, dtype=torch.int64)  # pooling must not copy all training data
    light = [replace(c, train=c.train.take(first), valid=None) for c in trained.federation.clients]
    (pooled,) = replace(trained.federation, clients=tuple(light)).pooled().clients
    return {domain: split.to("cpu") for domain, split in pooled.tests.items()}


def outcomes_of(proba: NDArray[np.float64], split: AnySplit) -> Outcomes:
    """What a model said of a split, with its labels and its groups."""
    groups = None if split.groups is None else split.groups.numpy()
    return Outcomes(proba, all_targets(split).numpy(), groups)


def _plain(value: Value) -> list[float | None]:
    return [number if math.isfinite(number) else None for number in value]
