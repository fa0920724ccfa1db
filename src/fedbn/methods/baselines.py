"""Baselines for tables: models of scikit-learn that each site fits to its own data alone.

They show what a site reaches without a federation and without a network. Their arguments are those
of scikit-learn, so that nothing is tuned on test data. Boosting never stops early: early stopping
would hold samples out, and a site may have too few.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from fedbn.core.federation import Targets, targets_of
from fedbn.core.method import Method

__all__ = ["local_boosting", "local_linear"]
ABOUT = {
    "local_boosting": ("nothing", "nothing: a baseline, fitted once at each site"),
    "local_linear": ("nothing", "nothing: a baseline, fitted once at each site"),
}
_ITERATIONS = 1000  # of logistic regression; scikit-learn's 100 can be too few
# How far the output of a class that a site never saw lies below the smallest of the others. Its
# probability is zero, and the loss of a sample of it stays a number.
_NEVER_SEEN = 100.0


def local_linear() -> Method:
    """Fit a linear model at each site: logistic regression for classes, ridge for numbers."""
    return Method("local_linear", baseline=ScikitLearn("linear"))


def local_boosting() -> Method:
    """Fit gradient-boosted trees at each site (scikit-learn's HistGradientBoosting)."""
    return Method("local_boosting", baseline=ScikitLearn("boosting"))


@dataclass(frozen=True)
class ScikitLearn:
    """One estimator for all classes, or one for each label or number.

    The linear models get columns that are standardised by the mean and the deviation of the
    samples that they are fitted to.
    """

    family: Literal["linear", "boosting"]

    def classifier(self, seed: int) -> Any:
        """Make the estimator for classes and labels."""
        # scikit-learn takes a second to import
        from sklearn.ensemble import HistGradientBoostingClassifier
        from sklearn.linear_model import LogisticRegression

        if self.family == "boosting":
            return HistGradientBoostingClassifier(early_stopping=False, random_state=seed)
        return _standardised(LogisticRegression(max_iter=_ITERATIONS, random_state=seed))

    def regressor(self, seed: int) -> Any:
        """Make the estimator for numbers."""
        from sklearn.ensemble import HistGradientBoostingRegressor
        from sklearn.linear_model import Ridge

        if self.family == "boosting":
            return HistGradientBoostingRegressor(early_stopping=False, random_state=seed)
        return _standardised(Ridge(random_state=seed))

    def fit(self, x: Tensor, y: Tensor, outputs: int, seed: int) -> Callable[[Tensor], Tensor]:
        """Fit samples; the outputs are logits of classes or labels, or numbers."""
        rows, kind = x.double().numpy(), targets_of(y)
        with _one_thread():
            if kind is Targets.CLASS:
                columns = [_decisions(self.classifier(seed), rows, y.numpy(), outputs)]
            elif kind is Targets.LABELS:
                columns = [_logit(self.classifier(seed), rows, one) for one in y.long().numpy().T]
            else:
                columns = [
                    self.regressor(seed).fit(rows, one).predict for one in y.double().numpy().T
                ]

        def predict(x: Tensor) -> Tensor:
            with _one_thread():
                found = [torch.from_numpy(column(x.double().numpy())) for column in columns]
            return found[0] if kind is Targets.CLASS else torch.stack(found, dim=1)

        return predict


def _standardised(estimator: Any) -> Any:
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), estimator)


def _decisions(estimator: Any, rows: Any, labels: Any, classes: int) -> Callable[[Any], Any]:
    """Fit a classifier; return the function that gives the logits of all classes.

    scikit-learn refuses samples of a single class. Such a site always predicts this class.
    """
    import numpy as np

    seen = np.unique(labels)
    if len(seen) > 1:
        estimator.fit(rows, labels)

    def logits(rows: Any) -> Any:
        found = np.zeros((len(rows), len(seen)))
        if len(seen) == 2:  # one number: the logit of the second class
            found[:, 1] = estimator.decision_function(rows)
        elif len(seen) > 2:
            found = estimator.decision_function(rows)
        every = np.tile(found.min(axis=1, keepdims=True) - _NEVER_SEEN, classes)
        every[:, seen] = found
        return every

    return logits


def _logit(estimator: Any, rows: Any, label: Any) -> Callable[[Any], Any]:
    """Fit a classifier of one label; return the function that gives the label's logit."""
    decide = _decisions(estimator, rows, label, classes=2)

    def logit(rows: Any) -> Any:
        absent, present = decide(rows).T
        return present - absent

    return logit


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute in one thread, because sums depend on how threads divide them.

    A linear model that has not converged is used as it is, so its warning is left out.
    """
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    with threadpool_limits(limits=1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield
