"""Warn where a dense network hardly sees the columns of a table that matter most.

The first layer of `mlp` adds all columns up before BatchNorm levels the sum. A column that varies a
hundred times more than the others hides them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor
from torch.nn import functional

from fedbn.core.federation import Client, Federation, Split, Targets, targets_of
from fedbn.text import listed

_HIDDEN = 10  # a column with a tenth of the largest deviation is hidden by it
_LEAST = 0.1  # share of a target's variance that one column must explain to matter
_BETTER = 1.5  # how much better than the best visible column a hidden one must be
_MUCH_BETTER = 3  # how much better than the visible columns alone all columns together must be
_MOST_COLUMNS = 256  # more take too long to look at together


def scale_warning(federation: Federation) -> str:
    """Return a warning about columns on very different scales, or an empty text.

    The warning is due where, at half of the clients or more, columns of small values tell the
    targets apart better than the columns of large values do: one of them, or all together.

    Args:
        federation: Clients whose samples are vectors; all others give no warning.
    """
    found = [pair for client in federation.clients if (pair := _hidden(client)) is not None]
    if not found or 2 * len(found) < len(federation.clients):
        return ""
    hidden = dict.fromkeys(place for places, _ in found for place in places)
    largest = dict.fromkeys(place for _, place in found)
    names = column_names(federation)
    return (
        f"columns of very different scale: {listed([names[at] for at in largest], 2)} varies more "
        f"than {_HIDDEN} times as much as {listed([names[at] for at in hidden], 4)}, which the "
        "model mlp then hardly sees; bring every column to mean 0 and standard deviation 1 first"
    )


def column_names(federation: Federation) -> list[str]:
    """Return a name for every feature of vectors: the column's, or its number."""
    table = federation.preparation.get("table") or {}
    names: list[str] = []
    for name, values in table.get("columns", ()):
        names += [str(name)] if values is None else [f"{name}={value}" for value in values]
    names = names or [str(name) for name in federation.preparation.get("frame", ())]
    width = federation.input_shape[0]
    return names if len(names) == width else [f"column {at}" for at in range(width)]


def _hidden(client: Client) -> tuple[Sequence[int], int] | None:
    """Return the hidden columns that matter, best first, and the column that hides them."""
    train = client.train
    if (
        not isinstance(train, Split)
        or train.x.dim() != 2
        or len(train) < 4
        or train.x.stride(0) == 0
    ):
        return None
    x, y = train.x.double(), _numbers(train.y)
    deviations = x.std(dim=0)
    visible = deviations * _HIDDEN >= deviations.max()
    if y is None or bool(visible.all()):
        return None
    explained = _explained(x, y)
    seen = float(explained[visible].max())
    order = explained.argsort(descending=True, stable=True).tolist()
    least = max(_LEAST, _BETTER * seen)
    hidden = [at for at in order if not visible[at]]
    better = [at for at in hidden if explained[at] >= least]
    if not better and len(deviations) <= _MOST_COLUMNS:
        seen, both = _explained_jointly(x[:, visible], y), _explained_jointly(x, y)
        better = hidden if both >= max(_LEAST, _MUCH_BETTER * seen) else []
    return (better, int(deviations.argmax())) if better else None


def _numbers(y: Tensor) -> Tensor | None:
    """Return targets as columns of numbers; None where they are masks."""
    kind = targets_of(y)
    if kind is Targets.CLASS:
        return functional.one_hot(y).double()
    return y.double() if kind in (Targets.LABELS, Targets.NUMBERS) else None


def _explained(x: Tensor, y: Tensor) -> Tensor:
    """Return the largest squared correlation of each column with a target."""
    both = [(one - one.mean(dim=0)) / one.std(dim=0).clamp(min=1e-12) for one in (x, y)]
    return ((both[0].T @ both[1]) / (len(x) - 1)).square().amax(dim=1)


def _explained_jointly(x: Tensor, y: Tensor) -> float:
    """Return the largest share of a target's variance that a linear model of all columns explains.

    The share is corrected for the number of columns, so that noise explains 0 in the mean.
    """
    samples, targets = ((one - one.mean(dim=0)).numpy() for one in (x, y))
    samples = samples / np.maximum(samples.std(axis=0), 1e-12)
    solution, _, rank, _ = np.linalg.lstsq(samples, targets, rcond=1e-8)
    if len(samples) <= rank + 1:
        return 0.0
    left = ((targets - samples @ solution) ** 2).sum(axis=0)
    left = left / np.maximum((targets**2).sum(axis=0), 1e-12)
    return float(max(1 - left * (len(samples) - 1) / (len(samples) - rank - 1)))
