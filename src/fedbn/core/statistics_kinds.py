"""The kinds of BatchNorm statistics that a client's model is scored with.

The weights and the samples of a score are the same for every kind. Only the mean and the variance
that BatchNorm subtracts and divides by differ.
"""

from __future__ import annotations

from typing import Literal, get_args

from fedbn.errors import ConfigError, unknown

StatisticsKind = Literal["running", "local", "exact", "batch"]
"""One kind of statistics:

- `running`: the running statistics that the method leaves; also of a model without BatchNorm.
- `local`: the client's own running statistics, where the method shares statistics.
- `exact`: the client's exact statistics, computed from its own training data without labels.
- `batch`: cumulative averages of one pass in training mode over the client's training data.
"""
STATISTICS_KINDS: tuple[StatisticsKind, ...] = get_args(StatisticsKind)
RUNNING: StatisticsKind = "running"


def kind_of_statistics(name: str) -> StatisticsKind:
    """Return the kind of statistics of a name that a user gave.

    Examples:
        >>> kind_of_statistics("exact")
        'exact'
    """
    for kind in STATISTICS_KINDS:
        if kind == name:
            return kind
    raise ConfigError(unknown("statistics", name, STATISTICS_KINDS))
