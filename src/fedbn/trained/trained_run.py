"""What a run gave: every client's model, ready to use in the manner of scikit-learn.

Inputs are checked against the run, models run in chunks, and predictions are a table, one row an
input, safe to open in a spreadsheet.
"""

from __future__ import annotations

import importlib.util
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedbn.core.best_round import never_accepted
from fedbn.core.bn_statistics import tracked_norms
from fedbn.core.federation import AnySplit, Client, Federation, Split, Targets
from fedbn.core.findings import Warned
from fedbn.core.metric import ACCURACY, UNEVEN, Metric
from fedbn.core.packing import Pack
from fedbn.core.plan import Plan, forward
from fedbn.core.randomness import with_validation
from fedbn.core.replica import Replica
from fedbn.core.rounds import Record, RunState
from fedbn.core.scoring import client_statistics, evaluation_batches
from fedbn.core.state import uses_batch_statistics
from fedbn.core.statistics_kinds import RUNNING, STATISTICS_KINDS, StatisticsKind
from fedbn.core.task import CLASSIFICATION, Task, measure
from fedbn.data.new_samples import Samples, given_samples
from fedbn.data.preparation import Preparation, SiteFit
from fedbn.errors import ConfigError, DamagedRun, DataError, ModelError, unknown
from fedbn.experiments.environment import facts_of
from fedbn.text import csv_text
from fedbn.trained.local_parts import Site

_LOG = logging.getLogger("fedbn")
_HALF = 0.5


def _log_warnings(samples: Samples, notes: Iterable[str]) -> None:
    for note in (each for each in notes if isinstance(each, Warned)):
        _LOG.warning(f"{samples.where}: {note}")


def outputs_of(model: nn.Module, x: Tensor | AnySplit, chunk: int = 256) -> Iterator[Tensor]:
    """Run a model over samples, in evaluation mode, some at a time.

    Where BatchNorm normalises by the batch, `chunk` is ignored: the batches are those of scoring.
    """
    if chunk < 1:
        raise ConfigError(f"chunk = {chunk}: legal are whole numbers from 1")
    data = Split(x, torch.zeros(len(x), dtype=torch.int64)) if isinstance(x, Tensor) else x
    model.eval()
    with torch.no_grad():
        for batch, _ in data.stream(evaluation_batches(model, 0, len(x), chunk)):
            try:
                outputs = forward(model, batch)
            except ModelError as error:
                if len(batch) == 1 and uses_batch_statistics(model):
                    raise DataError(
                        "one sample: BatchNorm of this model normalises by the batch "
                        "(track_running_stats=False), so it predicts for two samples or more"
                    ) from error
                raise
            yield outputs


def predictions(
    task: Task, model: nn.Module, x: Tensor | AnySplit, chunk: int = 256
) -> NDArray[Any]:
    """What a model predicts: probabilities (n, classes), numbers (n, k), or masks (n, ...)."""
    return torch.cat([task.keep(outputs) for outputs in outputs_of(model, x, chunk)]).numpy()


@dataclass(frozen=True)
class Trained:
    """A trained run: the shared part, and every client's local part.

    Attributes:
        plan: What was run. Of a run that was opened from its folder, `plan.federation` has the
            clients' names, the classes and the shape of a sample, but blank samples; the data
            itself is `federation`.
        state: The shared part and every training client's local part: after the last round, or
            after the best one on validation data where `evaluation.report` is `best`.
        records: All numbers, as in `metrics.jsonl`.
        folder: The run folder, where there is one.
        adapted: Sites that never trained and were adapted since, by name.
        source: Loads the data, where `plan.federation` does not hold it.
        facts: What is known of a sample without the data; made from it unless given.
        warnings: What the run warned of: all of it, or what concerns this job.
        held_out: The share of training data that the run held out for choosing, where
            `federation` has it among the training data.
    """

    plan: Plan
    state: RunState
    records: tuple[Record, ...]
    folder: Path | None
    adapted: Mapping[str, Site] = field(default_factory=dict)
    source: Callable[[], Federation] | None = field(default=None, repr=False)
    facts: Mapping[str, Any] | None = field(default=None, repr=False)
    warnings: tuple[str, ...] = field(default=(), repr=False)
    held_out: float = field(default=0.0, repr=False)

    def __repr__(self) -> str:
        what = f"{self.plan.method.name}, seed {self.plan.seed}, {self.state.round} rounds"
        scores, name = self.scores().values(), f"test {self.metric.words}"
        mean = f"mean {name} {np.mean(list(scores)):.3f}" if scores else f"no {name}"
        if self.is_uneven:
            sizes = self._test_sizes().values()
            ends = f"{min(sizes):,} to {max(sizes):,} a client"
            mean += f" ({self.weighted_mean():.3f} weighted by test samples, {ends})"
        where = f", {self.folder}" if self.folder else ""
        return f"<Result of {what}, {len(self.clients)} clients: {mean}{where}>"

    def _test_sizes(self) -> dict[str, int]:
        """Return the number of test samples of each score; empty where one is not known."""
        if self.facts is None:
            parts = {c.name: c.tests.values() for c in self.plan.federation.clients}
            known = {name: sum(map(len, tests)) for name, tests in parts.items()}
        else:
            known = {name: pair[1] for name, pair in self.facts.get("sizes", {}).items()}
        scores = self.scores()
        return {name: known[name] for name in scores} if scores.keys() <= known.keys() else {}

    @property
    def is_uneven(self) -> bool:
        """True if the numbers of test samples differ by more than a factor of ten."""
        sizes = self._test_sizes().values()
        return bool(sizes) and max(sizes) > UNEVEN * min(sizes)

    def weighted_mean(self) -> float:
        """Return the mean of the test scores in which every test sample counts the same.

        In a plain mean of `scores()` every client counts the same, be it with two test samples or
        with thousands. NaN where the numbers of test samples are not known.
        """
        sizes, scores = self._test_sizes(), self.scores()
        total = sum(sizes.values())
        return (
            sum(scores[name] * size for name, size in sizes.items()) / total if total else math.nan
        )

    @property
    def clients(self) -> tuple[str, ...]:
        """The names of all whose model can be had: training clients, then adapted sites."""
        return (*(client.name for client in self.plan.federation.clients), *self.adapted)

    @property
    def classes_(self) -> NDArray[Any]:
        """The labels that `predict` gives, in the order of `predict_proba`'s columns.

        Whole numbers where the classes have no other names than 0, 1, 2, ...; else their names; of
        numbers the names of the targets.
        """
        names = self.plan.federation.classes
        if names == tuple(map(str, range(len(names)))):
            return np.arange(len(names))
        return np.array(names)

    @cached_property
    def federation(self) -> Federation:
        """The data, loaded when it is first asked for."""
        return self.source() if self.source else self.plan.federation

    @cached_property
    def inputs(self) -> Mapping[str, Any]:
        """What a sample looks like: classes, shape, dtype, range and how it is prepared."""
        return self.facts or facts_of(self.plan.federation)

    @cached_property
    def preparation(self) -> Preparation:
        """How raw samples became those that the run was trained on."""
        return Preparation.read(self.inputs)

    def site_fit(self, site: str) -> SiteFit | None:
        """Return what the samples of a site are completed by; None of a site that is not known."""
        if site not in self.adapted:
            return self.preparation.site_fit(site)
        told = self.adapted[site].manifest().get("fit") if self.preparation.fits_sites else None
        if told is None:  # nothing is fitted, or an older fedbn adapted it
            return None
        try:
            return SiteFit(**told)
        except TypeError as error:
            raise DamagedRun(f"the manifest of the adapted site {site}: {error}") from error

    def completed(self, samples: Samples, site: str) -> tuple[Tensor, tuple[str, ...]]:
        """Return samples as a client's model takes them, and messages on how that was done.

        Args:
            samples: Encoded samples.
            site: Whose they are, a training client's or an adapted site's. Where a table names
                the site of a row, and the run knows it, that goes before.
        """
        known = self.preparation
        if site in self.adapted and (own := self.site_fit(site)) is not None:
            known = replace(known, sites={**known.sites, site: own})
        return samples.completed(known, site)

    def _given(self, x: Any, client: str) -> Tensor:
        """Return samples that were given in Python as a client's model takes them."""
        samples = given_samples(x, self.preparation, pooled=client == "all")
        completed, notes = self.completed(samples, client)
        _log_warnings(samples, notes)
        return completed

    @property
    def statistics(self) -> tuple[StatisticsKind, ...]:
        """The kinds of BatchNorm statistics that these models were scored with."""
        found = {RUNNING, *(r.statistics for r in self.records if r.round == self.state.round)}
        return tuple(kind for kind in STATISTICS_KINDS if kind in found)

    def check_network(self) -> None:
        """Raise if the method is a baseline, which has scores and no network to use."""
        if self.plan.method.baseline is not None:
            name = self.plan.method.name
            raise ConfigError(
                f"{name} is a baseline: a run keeps its scores and no model, so it cannot predict, "
                "adapt or be exported; choose another method of the run"
            )

    def model(self, client: str, statistics: StatisticsKind = RUNNING) -> nn.Module:
        """Make a client's model: the shared part joined with its own local part.

        Args:
            client: Whose model, a training client's or an adapted site's.
            statistics: The BatchNorm statistics of the model. `exact` and `batch` are computed from
                the client's training data, which is loaded for that.

        Raises:
            ConfigError: There is no such client, it has no such statistics, or a baseline has no
                model.
            DataError: The statistics of the training data cannot be computed.
        """
        self.check_network()
        if client not in self.clients:
            raise ConfigError(unknown("client", client, self.clients))
        replica = Replica(self.plan.initial_model, self.plan.method)
        if client in self.state.local:
            own = self._statistics(client, statistics, replica)
            replica.use(self.state.shared, self.state.scored_with(client))
            if own is not None:
                replica.set_statistics(own)
        elif statistics != RUNNING:
            raise ConfigError(
                f"{client} was adapted after training: expected running statistics, got "
                f"{statistics!r}"
            )
        else:
            part = self.adapted[client].read(self.state, replica)
            replica.load(self.state.shared, replica.local)
            for name, value in part.items():
                replica.tensors[name].data.copy_(value)
        return replica.model.eval()

    def _statistics(self, client: str, kind: StatisticsKind, replica: Replica) -> Pack | None:
        """Compute or look up the statistics of a training client; None for the running ones."""
        if kind == RUNNING or not tracked_norms(self.plan.initial_model):
            return None
        if kind == "local" and client not in self.state.own_statistics:
            raise ConfigError(
                f"{self.plan.method.name}: the run kept no local statistics next to the running "
                "ones; expected running, exact or batch"
            )
        return client_statistics(self.plan, replica, self._trained_on[client], self.state, kind)

    @cached_property
    def _trained_on(self) -> Mapping[str, Client]:
        """The clients with the data that they were trained on."""
        found = self.federation
        if self.held_out:
            found = with_validation(found, self.held_out, self.plan.seed)
        if self.plan.method.pooled and len(found.clients) > 1:
            found = found.pooled()
        return {one.name: replace(one, train=one.train.to("cpu")) for one in found.clients}

    @property
    def models(self) -> dict[str, nn.Module]:
        """Every client's model."""
        return {client: self.model(client) for client in self.clients}

    def predict(self, x: Any, client: str, *, chunk: int = 256) -> NDArray[Any]:
        """Predict the target of each sample with a client's model.

        Args:
            x: Samples (n, ...) of NumPy, torch or lists, as the run was trained on: `uint8`
                pictures are scaled to [−1, 1], floats are taken as they are.
            client: Whose model, a training client's or an adapted site's.
            chunk: Samples at a time; changes the memory needed and not the result.

        Returns:
            Elements of `classes_`, (n,); whether each label is there, (n, labels); numbers
            (n, targets); or the class of each place, (n, ...), as its place in `classes_`.
        """
        task = self.plan.task
        said = predictions(task, self.model(client), self._given(x, client), chunk)
        if task.targets is Targets.CLASS:
            said = self.classes_[said.argmax(axis=1)]
        return said > _HALF if task.targets is Targets.LABELS else said

    def predict_proba(self, x: Any, client: str, *, chunk: int = 256) -> NDArray[np.float64]:
        """Give the probability of each class or label, (n, classes, ...), ordered as `classes_`."""
        if (made := self.plan.task.probabilities) is None:
            raise ConfigError(f"the task is {self.plan.task.name}: no probabilities; `predict`")
        samples = self._given(x, client)
        parts = [made(outputs) for outputs in outputs_of(self.model(client), samples, chunk)]
        return torch.cat(parts).numpy()

    def score(self, x: Any, y: Any, client: str, *, chunk: int = 256) -> float:
        """Compute what the run is judged by, for a client's model: accuracy, of classes.

        Args:
            x: Samples, as for `predict`.
            y: Labels as the run learned them: names, or whole numbers, which are places from 0
                unless classes of a table are called by numbers; or what else it learned from.
            client: Whose model.
            chunk: Samples at a time.
        """
        model, samples = self.model(client), self._given(x, client)
        said = predictions(self.plan.task, model, samples, chunk)
        return measure(self.metric, torch.from_numpy(said), self.targets_of(y, len(said)))

    def targets_of(self, y: Any, n: int) -> Tensor:
        """Return the targets of n samples as the run learned them."""
        return self.preparation.targets(y, n)

    @property
    def metric(self) -> Metric:
        """What the run is judged by."""
        return self.plan.task.metrics[0]

    def adapt(
        self, x: Any, y: Any = None, *, site: str, store: bool = False, **options: Any
    ) -> Trained:
        """Give a site that never trained a local part of its own.

        Args:
            x: Its samples, as for `predict`.
            y: Their labels, as for `score`; needed for `how="finetune"` only.
            site: What to call it; from then on a client like the others.
            store: Write it beside the run, where `open_run` and the command line find it.
            **options: `how` (`average`, `reestimate` or `finetune`), `like` (a client), `epochs`
                and `chunk`, as `fedbn.trained.adaptation.Options` has them.

        Returns:
            The same run with one client more.
        """
        from fedbn.trained.adaptation import Options, new_site, with_site  # they stand above

        samples = given_samples(x, self.preparation)
        new = new_site(self, samples, y)
        _log_warnings(samples, new.notes)
        return with_site(self, site, new, Options(**options), store=store)[0]

    def accuracy(self, split: str = "test") -> dict[str, float]:
        """Accuracy by domain (by client, where several clients share a domain) of these models."""
        if ACCURACY not in self.plan.task.metrics:
            raise ConfigError(
                f"the task is {self.plan.task.name}, which has no accuracy; `scores()` gives its "
                f"{self.metric.words}"
            )
        return self.scores(split, ACCURACY.name)

    def scores(
        self, split: str = "test", metric: str | None = None, statistics: str = RUNNING
    ) -> dict[str, float]:
        """What these models come to, by domain (by client, where several share a domain).

        Args:
            split: `train`, `valid` or `test`.
            metric: Which of the task's metrics, or `loss`; the first unless given.
            statistics: The kind of BatchNorm statistics of the scores, as in `metrics.jsonl`.

        Returns:
            A number per client; NaN for a client of which no update was ever accepted.

        Raises:
            ConfigError: The task has no such metric, or no client was scored with such statistics.
        """
        known = [*(one.name for one in self.plan.task.metrics), "loss"]
        if metric is not None and metric not in known:
            raise ConfigError(unknown("metric", metric, known))
        name = metric or self.metric.name
        kinds = dict.fromkeys([RUNNING, *(r.statistics for r in self.records)])
        if statistics not in kinds:
            raise ConfigError(unknown("statistics", statistics, kinds))
        asked = (split, name, statistics)
        found = [r for r in self.records if (r.split, r.metric, r.statistics) == asked]
        scored = self.scored_round(split, statistics)
        pooled = [client.name for client in self.plan.federation.clients] == ["all"]
        return {
            (r.domain if pooled else r.client): math.nan if r.client in self.rejected else r.value
            for r in found
            if r.round == scored and r.value is not None
        }

    @cached_property
    def rejected(self) -> tuple[str, ...]:
        """The clients of which no update was ever accepted; their scores are NaN."""
        return never_accepted(map(vars, self.records))

    def frame(self) -> Any:
        """All numbers as a pandas DataFrame, one row a number, as in `metrics.jsonl`."""
        return frame_of(self.records)

    def scored_round(self, split: str = "test", statistics: str = RUNNING) -> int:
        """The last round that was scored up to these models' own; 0 where none was."""
        asked = (split, "loss", statistics)
        rounds = [r.round for r in self.records if (r.split, r.metric, r.statistics) == asked]
        return max((round for round in rounds if round <= self.state.round), default=0)


def frame_of(records: Iterable[Record]) -> Any:
    """Make a pandas DataFrame of numbers."""
    if importlib.util.find_spec("pandas") is None:
        raise ConfigError(
            "frame() needs pandas: `pip install pandas`; without it `records` has the same numbers"
        )
    columns = [column.name for column in fields(Record)]
    return importlib.import_module("pandas").DataFrame(map(asdict, records), columns=columns)


@dataclass(frozen=True)
class Predictions:
    """What a client's model makes of inputs: a row each, columns in the order of `classes`."""

    inputs: tuple[str, ...]
    classes: tuple[str, ...]
    proba: NDArray[Any]
    labels: NDArray[Any] | None
    task: Task = CLASSIFICATION
    seen: tuple[str, ...] = ()  # by sample, where the model saw it before; empty if it is new
    notes: tuple[str, ...] = ()  # how samples were completed

    @property
    def new(self) -> list[int]:
        """The places of the samples that the model has not seen before."""
        return [at for at in range(len(self.inputs)) if not (self.seen and self.seen[at])]

    @property
    def score(self) -> float | None:
        """The score of new samples by the run's own metric; None without labels or new samples."""
        if self.labels is None or not self.new:
            return None
        said, true = torch.from_numpy(self.proba), torch.from_numpy(self.labels)
        return measure(self.task.metrics[0], said[self.new], true[self.new])

    def header(self) -> list[str]:
        """The titles of the columns: what is predicted, what is true, and numbers."""
        known = [] if self.labels is None else ["label"]
        known += ["seen in"] if any(self.seen) else []
        first = {Targets.NUMBERS: "", Targets.MASK: "share of {}"}.get(self.task.targets, "p({})")
        return ["input", "predicted", *known, *((first or "{}").format(c) for c in self.classes)]

    def rows(self) -> Iterator[list[str]]:
        """Yield one row an input."""
        for number, name in enumerate(self.inputs):
            said = self.proba[number]
            known = [] if self.labels is None else [self._words(self.labels[number], true=True)]
            known += [self.seen[number]] if any(self.seen) else []
            yield [name, self._words(said), *known, *(f"{n:.6g}" for n in self._numbers(said))]

    def _words(self, one: Any, true: bool = False) -> str:
        """What is predicted of one input, or true of it, in words."""
        kind = self.task.targets
        if kind is Targets.CLASS:
            return str(self.classes[one if true else one.argmax()])
        if kind is Targets.LABELS:
            return "; ".join(c for c, p in zip(self.classes, one, strict=True) if p > _HALF)
        return "; ".join(f"{number:.6g}" for number in self._numbers(one))

    def _numbers(self, one: Any) -> NDArray[Any]:
        """A number a class: its probability, its value, or its share of the places."""
        if self.task.targets is not Targets.MASK:
            return np.asarray(one)
        return np.asarray(np.bincount(one.reshape(-1), minlength=len(self.classes)) / one.size)

    def to_csv(self) -> bytes:
        """Render all rows as CSV, in UTF-8."""
        return csv_text([self.header(), *self.rows()]).encode()


def predict(trained: Trained, client: str, samples: Samples, chunk: int = 256) -> Predictions:
    """Predict samples with a client's model."""
    model, task = trained.model(client), trained.plan.task
    x, notes = trained.completed(samples, client)
    said = predictions(task, model, x, chunk)
    labels = None if samples.y is None else samples.y.numpy()
    classes = trained.plan.federation.classes
    return Predictions(samples.names, classes, said, labels, task, notes=notes)
