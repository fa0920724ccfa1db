"""Metrics are scikit-learn's; intervals come from seeded resamples."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn import metrics as theirs

from fedbn.trained.evaluation import Outcomes, scores


def outcomes(n: int = 200, classes: int = 4, seed: int = 0, digits: int = 8) -> Outcomes:
    """Probabilities that lean to the right class; few digits make ties."""
    draws = np.random.default_rng(seed)
    labels = draws.integers(classes, size=n)
    raw = draws.random((n, classes)) + 0.8 * np.eye(classes)[labels]
    return Outcomes(np.round(raw / raw.sum(axis=1, keepdims=True), digits), labels)


@pytest.mark.parametrize("digits", [8, 1])
@pytest.mark.parametrize("classes", [2, 4])
def test_the_values_are_scikit_learn_s(classes: int, digits: int):
    made = outcomes(classes=classes, digits=digits)
    found = {name: value[0] for name, value in scores(made, resamples=5).items()}
    y, guess = made.labels, made.predicted
    hot = np.eye(classes)[y]
    assert found["accuracy"] == pytest.approx(theirs.accuracy_score(y, guess))
    assert found["balanced_accuracy"] == pytest.approx(theirs.balanced_accuracy_score(y, guess))
    assert found["macro_f1"] == pytest.approx(theirs.f1_score(y, guess, average="macro"))
    areas = [theirs.roc_auc_score(hot[:, c], made.proba[:, c]) for c in range(classes)]
    assert found["auroc"] == pytest.approx(np.mean(areas))
    assert np.array_equal(made.confusion, theirs.confusion_matrix(y, guess))


def test_the_calibration_error_by_hand():
    """Two at 0.95, one right: gap 0.45 over 2 of 3. One at 0.6, right: gap 0.4 over 1 of 3."""
    made = Outcomes(np.array([[0.95, 0.05], [0.95, 0.05], [0.4, 0.6]]), np.array([0, 1, 1]))
    expected = 0.45 * 2 / 3 + 0.4 / 3
    assert scores(made, resamples=1)["calibration_error"][0] == pytest.approx(expected)


def test_intervals_hold_the_value_are_seeded_and_shrink_with_more_samples():
    small, large = scores(outcomes(60), seed=1), scores(outcomes(3000), seed=1)
    for name in small:
        point, low, high = small[name]
        assert low < high
        assert name == "calibration_error" or low <= point <= high
        assert large[name][2] - large[name][1] < (high - low) / 2
    assert small == scores(outcomes(60), seed=1)
    assert small != scores(outcomes(60), seed=2)


def test_the_interval_of_an_accuracy_is_binomial():
    made = outcomes(400)
    p, low, high = scores(made, resamples=4000)["accuracy"]
    wide = 2 * 1.96 * math.sqrt(p * (1 - p) / 400)
    assert high - low == pytest.approx(wide, rel=0.1)


def test_samples_of_one_group_are_drawn_together():
    """Ten copies of each sample tell no more than one."""
    once = outcomes(50)
    copies = Outcomes(np.repeat(once.proba, 10, 0), np.repeat(once.labels, 10))
    grouped = Outcomes(copies.proba, copies.labels, np.repeat(np.arange(50), 10))
    widths = [s[2] - s[1] for s in (scores(m)["accuracy"] for m in (once, copies, grouped))]
    assert widths[2] == pytest.approx(widths[0], abs=1e-9)
    assert widths[1] < widths[0] / 2


def test_where_all_resamples_agree_there_is_no_interval():
    sure, labels = np.array([[0.9, 0.1]] * 16), np.zeros(16, dtype=int)
    for made in (
        Outcomes(sure, labels),
        Outcomes(sure, np.arange(16) % 2, np.zeros(16, dtype=int)),
    ):
        value, *ends = scores(made)["accuracy"]
        assert value in (1.0, 0.5)
        assert np.isnan(ends).all()


def test_what_is_not_defined_is_nan_and_nothing_else_suffers():
    one_class = Outcomes(np.array([[0.7, 0.3], [0.6, 0.4]]), np.array([0, 0]))
    found = scores(one_class, resamples=20)
    assert all(math.isnan(number) for number in found["auroc"])
    assert found["accuracy"][0] == found["balanced_accuracy"][0] == 1.0
