r"""Metrics by name, each of predictions, targets and rows of weights (a bootstrap's resamples).

- Classes and labels, of probabilities: accuracy; balanced accuracy, the mean recall of the classes
  that are there; macro F1, over the classes that are there or are predicted; AUROC, each class (or
  label) against the rest, the mean over those that have both sides (a tie counts half): as
  scikit-learn defines them. Expected calibration error: 15 bins of equal width of the highest
  probability, the mean gap between it and the accuracy, weighted by the samples in a bin (Guo et
  al. 2017). Label accuracy: the share of labels that are right at 0.5.
- Numbers: R² (1 − squared error / variance, the mean over targets), mean absolute error, root mean
  square error.
- Masks: Dice 2 |A ∩ B| / (|A| + |B|) and IoU |A ∩ B| / |A ∪ B|, over all places of all samples, the
  mean over classes that are there or predicted, without the first, the background.

All resamples are computed at once, as products of matrices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbn.core.metric import ACCURACY, PERCENT, Metric

__all__: list[str] = []

Floats = NDArray[np.float64]
Array = NDArray[Any]
Counts = tuple[Floats, Floats, Floats]
_BINS = 15
_HALF = 0.5


def _indicators(said: Array, true: Array) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """What is predicted and what is true, (n, classes), of classes or of labels."""
    if true.dtype.kind == "f" or true.ndim > 2:
        raise ValueError("it is of classes or labels")
    if true.ndim == 2:
        return said > _HALF, true.astype(bool)
    hot = np.eye(said.shape[1], dtype=bool)
    return hot[said.argmax(axis=1)], hot[true]


def _counts(said: Array, true: Array, weights: Floats) -> Counts:
    """Weights of each class: right, true and predicted, (resamples, classes)."""
    predicted, there = _indicators(said, true)
    return weights @ (predicted & there), weights @ there, weights @ predicted


def _balanced_accuracy(said: Array, true: Array, weights: Floats) -> Floats:
    right, there, _ = _counts(said, true, weights)
    return _mean(right / np.maximum(there, 1e-300), there > 0)


def _macro_f1(said: Array, true: Array, weights: Floats) -> Floats:
    return _overlap(*_counts(said, true, weights))


def _label_accuracy(said: Array, true: Array, weights: Floats) -> Floats:
    predicted, there = _indicators(said, true)
    return _average((predicted == there).mean(axis=1), weights)


def _auroc(said: Array, true: Array, weights: Floats) -> Floats:
    _, there = _indicators(said, true)
    areas = [_area(said[:, c], there[:, c], weights) for c in range(said.shape[1])]
    found = np.stack(areas, axis=1)
    return _mean(np.nan_to_num(found), np.isfinite(found))


def _area(chances: Array, there: NDArray[np.bool_], weights: Floats) -> Floats:
    """The chance that a sample of the class scores above one of another; a tie counts half."""
    order = np.argsort(chances, kind="stable")
    begins = np.flatnonzero(np.r_[True, np.diff(chances[order]) > 0])
    mine = there[order].astype(np.float64)
    sorted_weights = weights[:, order]
    own = np.add.reduceat(sorted_weights * mine, begins, axis=1)
    other = np.add.reduceat(sorted_weights * (1 - mine), begins, axis=1)
    below = np.cumsum(other, axis=1) - other / 2
    pairs = own.sum(axis=1) * other.sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        area: Floats = np.where(pairs > 0, (own * below).sum(axis=1) / pairs, np.nan)
    return area


def _calibration_error(said: Array, true: Array, weights: Floats) -> Floats:
    sure = said.max(axis=1)
    gap = sure - (said.argmax(axis=1) == true)
    bins = np.minimum((sure * _BINS).astype(np.int64), _BINS - 1)
    by_bin = weights @ (np.eye(_BINS)[bins] * gap[:, None])
    return np.asarray(np.abs(by_bin).sum(axis=1) / weights.sum(axis=1))


def _r2(said: Array, true: Array, weights: Floats) -> Floats:
    """The mean over targets; one that does not vary has none."""
    y = true.astype(np.float64)
    error = weights @ np.square(said.astype(np.float64) - y)
    spread = np.stack([(w[:, None] * np.square(y - w @ y / w.sum())).sum(axis=0) for w in weights])
    varies = spread > 1e-20 * (weights @ np.square(y))  # more than rounding, in any unit
    return _mean(1 - error / np.where(varies, spread, 1.0), varies)


def _mae(said: Array, true: Array, weights: Floats) -> Floats:
    return _average(np.abs(said.astype(np.float64) - true).mean(axis=1), weights)


def _rmse(said: Array, true: Array, weights: Floats) -> Floats:
    error = np.square(said.astype(np.float64) - true).mean(axis=1)
    return np.sqrt(_average(error, weights))


def _places(said: Array, true: Array, weights: Floats) -> Counts:
    """Weights of each foreground class's places: right, true and predicted."""
    if said.dtype.kind == "f":
        raise ValueError("it is of masks")
    classes = range(1, int(max(said.max(initial=1), true.max(initial=1))) + 1)
    flat = [part.reshape(len(part), -1) for part in (said, true)]
    masks = [[part == label for label in classes] for part in flat]
    both = [a & b for a, b in zip(*masks, strict=True)]
    right, there, predicted = (
        weights @ np.stack([mask.sum(axis=1) for mask in some], axis=1)
        for some in (both, masks[1], masks[0])
    )
    return right, there, predicted


def _dice(said: Array, true: Array, weights: Floats) -> Floats:
    return _overlap(*_places(said, true, weights))


def _iou(said: Array, true: Array, weights: Floats) -> Floats:
    right, there, predicted = _places(said, true, weights)
    either = there + predicted - right
    return _mean(right / np.maximum(either, 1e-300), either > 0)


def _overlap(right: Floats, there: Floats, predicted: Floats) -> Floats:
    """2 |A ∩ B| / (|A| + |B|), the mean over classes that are there or predicted."""
    both = there + predicted
    return _mean(2 * right / np.maximum(both, 1e-300), both > 0)


def _average(values: Floats, weights: Floats) -> Floats:
    return np.asarray(weights @ values / weights.sum(axis=1))


def _mean(values: Floats, defined: NDArray[np.bool_]) -> Floats:
    """The mean of each row's defined values; NaN for a row that has none."""
    count = defined.sum(axis=1)
    total = np.where(defined, values, 0.0).sum(axis=1)
    with np.errstate(invalid="ignore"):
        found: Floats = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return found


def _share(
    name: str,
    value: Callable[[Array, Array, Floats], Floats],
    unit: str = PERCENT,
    *,
    higher: bool = True,
    by_class: bool = True,
) -> Metric:
    return Metric(name, higher, unit, value, least=0.0, most=1.0, by_class=by_class)


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        ACCURACY,
        _share("balanced_accuracy", _balanced_accuracy),
        _share("label_accuracy", _label_accuracy, by_class=False),
        _share("dice", _dice),
        _share("iou", _iou),
        _share("macro_f1", _macro_f1, ""),
        _share("auroc", _auroc, ""),
        _share("calibration_error", _calibration_error, "", higher=False, by_class=False),
        Metric("r2", higher=True, value=_r2, most=1.0),
        Metric("mae", higher=False, value=_mae, least=0.0),
        Metric("rmse", higher=False, value=_rmse, least=0.0),
    )
}
FURTHER = {"classification": ("balanced_accuracy", "macro_f1", "auroc", "calibration_error")}
"""What `evaluate` computes beside what a run measures every round."""
