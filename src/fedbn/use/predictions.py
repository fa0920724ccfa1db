"""Predictions as a table: one row an input, safe to open in a spreadsheet."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedbn.data._unlabelled import Samples
from fedbn.use.inference import probabilities, samples_of
from fedbn.use.trained import Trained

# What a spreadsheet takes for the beginning of a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True)
class Predictions:
    """What a client's model makes of some inputs.

    Attributes:
        inputs: What each input is called.
        classes: The names of the classes, in the order of the columns of `proba`.
        proba: Their probabilities, (n, classes).
        labels: The true classes' places; None where they are not known.
    """

    inputs: tuple[str, ...]
    classes: tuple[str, ...]
    proba: NDArray[np.float64]
    labels: NDArray[np.int64] | None

    @property
    def places(self) -> NDArray[np.int64]:
        """The place of the likeliest class of each input."""
        found: NDArray[np.int64] = self.proba.argmax(axis=1)
        return found

    @property
    def accuracy(self) -> float | None:
        """The share of inputs predicted right; None without labels."""
        return None if self.labels is None else float((self.places == self.labels).mean())

    def header(self) -> list[str]:
        """The titles of the columns."""
        known = [] if self.labels is None else ["label"]
        return ["input", "predicted", *known, *(f"p({name})" for name in self.classes)]

    def rows(self) -> Iterator[list[str]]:
        """Yield one row an input."""
        for number, name in enumerate(self.inputs):
            known = [] if self.labels is None else [self.classes[self.labels[number]]]
            chances = [f"{chance:.6g}" for chance in self.proba[number]]
            yield [name, self.classes[self.places[number]], *known, *chances]

    def to_csv(self) -> bytes:
        """Render all rows as CSV, in UTF-8."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(harmless(self.header()))
        writer.writerows(harmless(row) for row in self.rows())
        return text.getvalue().encode()


def predict(trained: Trained, client: str, samples: Samples, chunk: int = 256) -> Predictions:
    """Predict samples with a client's model."""
    x = samples_of(samples.x, trained.inputs, "the data")
    proba = probabilities(trained.model(client), x, chunk)
    labels = None if samples.y is None else samples.y.numpy()
    return Predictions(samples.names, trained.plan.federation.classes, proba, labels)


def harmless(cells: Sequence[str]) -> list[str]:
    """Put an apostrophe before what a spreadsheet would run as a formula.

    Examples:
        >>> harmless(["=1+1", "-0.5", "-a", "b"])
        ["'=1+1", '-0.5', "'-a", 'b']
    """
    return [f"'{c}" if c.startswith(_FORMULA) and not _is_number(c) else c for c in cells]


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return cell == cell.strip()
