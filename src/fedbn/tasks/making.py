"""From names to a task: a registered or one's own, with the loss and the metrics asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

import fedbn.tasks
from fedbn import registry
from fedbn.core.metric import Metric
from fedbn.core.task import Loss, Task, named_once
from fedbn.errors import ConfigError, unknown
from fedbn.registry import TYPED, Held
from fedbn.tasks.metrics import FURTHER, METRICS
from fedbn.tasks.standard import LOSSES

__all__: list[str] = []

T = TypeVar("T")
GivenMetric = str | Metric | Callable[[Tensor, Tensor], Any]


@dataclass(frozen=True)
class TaskChoice:
    """What was asked for, by name or as an object; None for the usual."""

    # A name, `module:callable`, a `Task` or a function that makes one.
    task: str | Task | Callable[..., Task] | None = None
    # A name, `module:callable`, or a function of outputs and targets.
    loss: str | Loss | None = None
    # Names, `module:callable`, `Metric`s, or functions of predictions and targets.
    metrics: Sequence[GivenMetric] | None = None
    class_weights: str | Sequence[float] | None = None  # `balanced`, or a number a class
    # Metrics beside those of the task, as `metrics`; they decide nothing.
    further: Sequence[GivenMetric] | None = None
    held: Held | None = None  # where the names come from; None: a person typed them

    def over(self, other: TaskChoice) -> TaskChoice:
        """Take what is given here in place of what is there."""
        given = {f.name: getattr(self, f.name) for f in fields(self)}
        return replace(other, **{key: value for key, value in given.items() if value is not None})

    def make(self) -> Task:
        """Make the task, or say what is wrong with what was asked for."""
        task = self._task()
        if self.loss is not None:
            if self.class_weights is not None:
                raise ConfigError(
                    "task.class_weights and task.loss exclude each other: a loss of your own "
                    "weighs classes itself"
                )
            loss = self.loss if callable(self.loss) else self._named(self.loss, LOSSES, "loss")
            task = replace(task, loss=loss, loss_for=None)
        if self.metrics is not None:
            if isinstance(self.metrics, str) or not self.metrics:
                raise ConfigError("task.metrics: legal is a list of one metric or more")
            task = replace(task, metrics=tuple(self._metric(one) for one in self.metrics))
        if not task.metrics:
            raise ConfigError(f"task {task.name} has no metrics; the first one decides")
        known = {one.name for one in task.metrics}
        more = [m for m in map(self._metric, self.further or ()) if m.name not in known]
        return replace(task, metrics=named_once([*task.metrics, *more]))

    def _task(self) -> Task:
        if isinstance(self.task, Task):
            return self.task
        build = self.task or "classification"
        if isinstance(build, str):
            build = registry.find(fedbn.tasks, build, "task", self.held or TYPED)
        signature = registry.signature_of(build, f"task {_called(self.task)}")
        weighs = "class_weights" in signature.parameters
        if self.class_weights is not None and not weighs:
            raise ConfigError(f"task {_called(self.task)} takes no class_weights")
        made = build(class_weights=self.class_weights) if weighs else build()
        if not isinstance(made, Task):
            raise ConfigError(
                f"task {_called(self.task)} gives a {type(made).__name__}, not a fedbn.Task"
            )
        return made

    def _named(self, asked: str, known: Mapping[str, T], what: str) -> T | Callable[..., Any]:
        if ":" in asked:
            return registry.find(fedbn.tasks, asked, what, self.held or TYPED)
        if asked not in known:
            raise ConfigError(unknown(what, asked, [*known, "module:callable"]))
        return known[asked]

    def _metric(self, asked: GivenMetric) -> Metric:
        found: Any = asked
        if isinstance(asked, str):
            found = self._named(asked, METRICS, "metric")
        return found if isinstance(found, Metric) else metric(found)


def _called(given: Any) -> str:
    return given if isinstance(given, str) else getattr(given, "__name__", type(given).__name__)


def metric(
    function: Callable[[Tensor, Tensor], Any],
    higher: bool | None = None,
    *,
    name: str | None = None,
    unit: str | None = None,
) -> Metric:
    """Make a metric of a function of predictions and targets of a whole split.

    Args:
        function: Gets probabilities (classification, several labels), numbers or the class of each
            place (segmentation), and the targets, as tensors; gives one number.
        higher: Whether more is better; else its attribute `higher_is_better` says so.
        name: What it is called; the function's own name unless given.
        unit: `%` for a share; else its attribute `unit`, or none.

    Examples:
        >>> def largest_error(predictions, targets):
        ...     return (predictions - targets).abs().max()
        >>> metric(largest_error, higher=False).title
        'largest error'
    """
    called = name or _called(function)
    better = getattr(function, "higher_is_better", None) if higher is None else higher
    if not isinstance(better, bool):
        raise ConfigError(
            f"metric {called}: nobody says which way is better; set {called}.higher_is_better = "
            "True or False below the function"
        )

    def value(said: Any, true: Any, weights: Any) -> Any:
        numbers = []
        for row in weights:
            place = np.repeat(np.arange(len(said)), row.astype(np.int64))
            found = function(torch.from_numpy(said[place]), torch.from_numpy(true[place]))
            if getattr(found, "shape", ()) not in ((), (1,)):
                raise ConfigError(
                    f"metric {called} gives shape {tuple(found.shape)}; legal is one number for "
                    "all samples"
                )
            numbers.append(float(found))
        return np.array(numbers)

    return Metric(called, better, str(unit or getattr(function, "unit", "")), value)


def evaluated(task: Task) -> tuple[Metric, ...]:
    """What an evaluation computes: what the run measures, and what else suits its targets."""
    known = {metric.name for metric in task.metrics}
    more = [METRICS[name] for name in FURTHER.get(task.name, ()) if name not in known]
    return (*task.metrics, *more)
