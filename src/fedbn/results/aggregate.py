"""Every number that is made of records: means, sample deviations, curves and gains, each once.

A `ScoreTable` is built once from the lines of `metrics.jsonl`. The printed table, its JSON,
`curves.png`, the report, and the tables and figures of the paper all ask it, so they agree.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from fedbn.core.best_round import Validation, best_round, never_accepted, validation
from fedbn.core.metric import ACCURACY, Metric
from fedbn.core.statistics_kinds import RUNNING, STATISTICS_KINDS
from fedbn.results import with_statistics
from fedbn.text import listed

Records = Sequence[Mapping[str, Any]]
Report = Literal["last", "best"]
MEAN = "mean"
WEIGHTED = "weighted mean"  # every test sample counts as much; in `mean` every client does
MEANS = (MEAN, WEIGHTED)
POOLED = "all"  # the client that holds everybody's data


class Measure(NamedTuple):
    """What was measured, and on which data."""

    split: str
    metric: str


LOSS = Measure("train", "loss")
LOSS_SEEN = Measure("train", "training_loss")
EQUAL = 1e-9  # per cent; what rounding may leave of no difference


class Key(NamedTuple):
    """A method in one setting, scored with one kind of BatchNorm statistics."""

    method: str
    setting: str
    statistics: str = RUNNING

    @property
    def name(self) -> str:
        """The method, and the setting where there are several.

        Examples:
            >>> Key("fedbn", "default").name, Key("fedprox", "mu=0.1", "exact").name
            ('fedbn', 'fedprox (mu=0.1)')
        """
        return self.method if self.setting == "default" else f"{self.method} ({self.setting})"

    @property
    def label(self) -> str:
        """The name, and the statistics where they are not the running ones.

        Examples:
            >>> Key("fedbn", "default").label, Key("fedprox", "mu=0.1", "exact").label
            ('fedbn', 'fedprox (mu=0.1), exact statistics')
        """
        return with_statistics(self.name, self.statistics)

    @property
    def running(self) -> Key:
        """The same method and setting, scored with running statistics."""
        return self._replace(statistics=RUNNING)


@dataclass(frozen=True)
class Cell:
    """Mean and sample standard deviation over seeds; of one seed there is no deviation."""

    mean: float
    std: float | None
    seeds: int
    form: str = ".1f"

    @classmethod
    def of(cls, values: Collection[float], form: str = ".1f") -> Cell:
        """Take the mean and the sample deviation of one value a seed.

        Examples:
            >>> str(Cell.of([50.0, 70.0])), str(Cell.of([50.0]))
            ('60.0 ± 14.1', '50.0')
        """
        std = statistics.stdev(values) if len(values) > 1 else None
        return cls(statistics.fmean(values), std, len(values), form)

    @property
    def spread(self) -> float:
        """The deviation as it is drawn: 0 for one seed."""
        return self.std or 0.0

    def __str__(self) -> str:
        mean = f"{self.mean:{self.form}}"
        return mean if self.std is None else f"{mean} ± {self.std:{self.form}}"


Scores = Mapping[str, Mapping[int, float]]
"""By column, `mean` among them: a value a seed."""
ByRound = Mapping[int, Mapping[str, float]]
"""By round: what each column came to, and `mean` where none is missing."""


@dataclass(frozen=True)
class History:
    """One method, setting, kind of statistics and seed."""

    columns: Mapping[str, frozenset[str]]  # by split, those that have a value in a whole round
    numbers: Mapping[Measure, ByRound]  # what was measured, the run's own metric in its unit
    undefined: Mapping[int, Sequence[str]]  # by round, columns whose test score was no number
    validation: Validation  # what clients come to on validation data, which chooses the best round
    metric: Metric = ACCURACY  # what the run is judged by
    rejected: tuple[str, ...] = ()  # clients of which no update was ever accepted; unscored
    last: int | None = None  # the last round, where scores with running statistics decide it

    @classmethod
    def by_statistics(cls, records: Records, metric: Metric = ACCURACY) -> dict[str, History]:
        """Read the records of one job: a history for each kind of statistics, running first.

        All kinds are of the same clients, and of the same round: that of the running statistics.
        """
        clients = frozenset(r["client"] for r in records) - {POOLED}
        pooled: dict[str, set[str]] = defaultdict(set)
        by_kind: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
        for r in records:
            by_kind[r["statistics"]].append(r)
            if r["client"] == POOLED:
                pooled[r["split"]].add(r["domain"])
        columns = {split: clients | pooled[split] for split in {r["split"] for r in records}}
        chosen, rejected = validation(records, metric), never_accepted(records)
        whole = cls(columns, {}, {}, chosen, metric, rejected)
        found: dict[str, History] = {}
        for kind in (kind for kind in STATISTICS_KINDS if kind in by_kind):
            found[kind] = whole._with(by_kind[kind])
            if kind != RUNNING and RUNNING in found and (scored := found[RUNNING].scored):
                found[kind] = replace(found[kind], last=max(scored))
        return found

    def _with(self, records: Records) -> History:
        """The same job with the numbers of these records."""
        found: dict[Measure, dict[int, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
        undefined: dict[int, list[str]] = defaultdict(list)
        test = Measure("test", self.metric.name)
        for r in records:
            measure = Measure(r["split"], r["metric"])
            if r["client"] in self.rejected and measure == test:
                continue  # its model is not the run's result, and a mean without it is no mean
            if r["value"] is not None:
                found[measure][r["round"]][_column(r)] = r["value"]
            elif measure == test:
                undefined[r["round"]].append(_column(r))
        numbers = {}
        for measure, by_round in found.items():
            scale = self.metric.scale if measure.metric == self.metric.name else 1
            numbers[measure] = _averaged(by_round, _expected(measure, self.columns), scale)
        return replace(self, numbers=numbers, undefined=undefined)

    def by_domain(self, domains: Mapping[str, str]) -> History:
        """The same with a column a domain, the mean of its clients."""
        columns = {split: frozenset(domains[c] for c in own) for split, own in self.columns.items()}
        numbers = {}
        for measure, by_round in self.numbers.items():
            whole: dict[str, set[str]] = defaultdict(set)
            for column in _expected(measure, self.columns):
                whole[domains[column]].add(column)
            grouped = {n: _grouped(values, domains, whole) for n, values in by_round.items()}
            numbers[measure] = _averaged(grouped, _expected(measure, columns))
        return replace(self, columns=columns, numbers=numbers)

    def shown(self, report: Report) -> Mapping[str, float]:
        """The metric on test data at the round reported: the last, or the best by validation."""
        found = self.numbers.get(Measure("test", self.metric.name), {})
        return found.get(self.reported(report), {})

    def lacking(self, report: Report) -> Sequence[str]:
        """The columns that were scored in that round, and came to no number."""
        return self.undefined.get(self.reported(report), ())

    @property
    def scored(self) -> set[int]:
        """The rounds that have a score on test data, a number or not."""
        return {*self.numbers.get(Measure("test", self.metric.name), ()), *self.undefined}

    def reported(self, report: Report) -> int:
        """The round that is reported: the last one scored, or the best by validation."""
        if report == "best":
            return best_round(self.validation, metric=self.metric)
        return max(self.scored, default=0) if self.last is None else self.last

    def valid(self, report: Report) -> float:
        """Its mean on validation data at the best round, or at the last one that has it."""
        last = max(self.validation, default=0)
        round = self.reported(report) if report == "best" else last
        return statistics.fmean(self.validation.get(round, [0.0]))


@dataclass(frozen=True)
class ScoreTable:
    """The records of a run, as numbers."""

    # clients in the federation's order; or domains, where all data is pooled
    columns: tuple[str, ...]
    seeds: tuple[int, ...]  # in the order of the records
    rounds: int  # the last round that a record tells of
    domains: Mapping[str, str]  # of each column
    # by method, setting and statistics, those of a method one after another; then by seed
    histories: Mapping[Key, Mapping[int, History]]
    metric: Metric = ACCURACY  # what the run is judged by

    @classmethod
    def of(cls, records: Records, metric: Metric = ACCURACY) -> ScoreTable:
        """Read records once."""
        jobs: dict[Key, dict[int, list[Any]]] = defaultdict(lambda: defaultdict(list))
        for r in records:
            jobs[Key(r["method"], r["setting"])][r["seed"]].append(r)
        histories: dict[Key, dict[int, History]] = {}
        for key, seeds in jobs.items():
            found = {seed: History.by_statistics(own, metric) for seed, own in seeds.items()}
            for kind in STATISTICS_KINDS:
                of_kind = {seed: own[kind] for seed, own in found.items() if kind in own}
                histories |= {key._replace(statistics=kind): of_kind} if of_kind else {}
        tests = [r for r in records if r["split"] == "test"]
        clients = dict.fromkeys(r["client"] for r in tests if r["client"] == _column(r))
        return cls(
            columns=tuple(clients or dict.fromkeys(map(_column, tests))),
            seeds=tuple(dict.fromkeys(r["seed"] for r in records)),
            rounds=max((r["round"] for r in records), default=0),
            domains={_column(r): r["domain"] for r in [*records, *tests]},
            histories=histories,
            metric=metric,
        )

    def only(self, statistics: str) -> ScoreTable:
        """The same with the rows of one kind of statistics."""
        kept = {key: own for key, own in self.histories.items() if key.statistics == statistics}
        return replace(self, histories=kept)

    @property
    def drawn(self) -> list[Key]:
        """The rows that have a curve.

        A row of other than running statistics has one if more than one round was scored with them.
        """
        return [
            key
            for key, seeds in self.histories.items()
            if key.statistics == RUNNING or any(len(one.scored) > 1 for one in seeds.values())
        ]

    def by_domain(self) -> ScoreTable:
        """The same with a column a domain, the mean of its clients; the mean is over domains."""
        histories = {
            key: {seed: one.by_domain(self.domains) for seed, one in seeds.items()}
            for key, seeds in self.histories.items()
        }
        columns = tuple(dict.fromkeys(self.domains[column] for column in self.columns))
        return replace(self, columns=columns, histories=histories)

    def scores(self, report: Report = "last") -> dict[Key, Scores]:
        """The metric on test data, in its unit, of each method and setting."""
        found: dict[Key, Scores] = {}
        for key, seeds in self.histories.items():
            by_column: dict[str, dict[int, float]] = {column: {} for column in self.columns}
            for seed, history in seeds.items():
                for column, value in history.shown(report).items():
                    by_column.setdefault(column, {})[seed] = value
            found[key] = {column: values for column, values in by_column.items() if values}
        return found

    def curves(
        self, column: str, measure: Measure | None = None, keys: Iterable[Key] | None = None
    ) -> list[Curve]:
        """A number over rounds in one column, or in `mean`: a curve a row.

        It is the run's own metric on test data, and of all rows that are `drawn`, unless given.
        """
        measure = measure or self._own
        chosen = self.drawn if keys is None else keys
        found = {key: self._values(key, column, measure) for key in chosen}
        return [_curve(key.label, by_round) for key, by_round in found.items() if by_round]

    def quartiles(self) -> dict[str, list[tuple[int, float, float]]]:
        """How clients spread: by method, each round with the lower and the upper quartile.

        Of each client its mean over seeds; rounds in which fewer than two were scored are left out.
        """
        found: dict[str, list[tuple[int, float, float]]] = {}
        for key in self.drawn:
            seen: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
            for history in self.histories[key].values():
                for round, values in history.numbers.get(self._own, {}).items():
                    for name in values.keys() - {MEAN}:
                        seen[round][name].append(values[name])
            spreads = {r: [statistics.fmean(v) for v in seen[r].values()] for r in sorted(seen)}
            found[key.label] = []
            for round, means in spreads.items():
                if len(means) > 1:
                    low, _, high = statistics.quantiles(means, n=4, method="inclusive")
                    found[key.label].append((round, low, high))
        return found

    @property
    def _own(self) -> Measure:
        return Measure("test", self.metric.name)

    def _values(self, key: Key, column: str, measure: Measure) -> dict[int, list[float]]:
        found: dict[int, list[float]] = defaultdict(list)
        for history in self.histories.get(key, {}).values():
            for round, values in history.numbers.get(measure, {}).items():
                if column in values:
                    found[round].append(values[column])
        return found


def of_round(records: Records, measure: Measure, scale: float = 1) -> dict[str, float]:
    """What a measure came to, with running statistics, in the records of one round."""
    wanted = (*measure, RUNNING)
    return {
        _column(r): scale * r["value"]
        for r in records
        if (r["split"], r["metric"], r["statistics"]) == wanted and r["value"] is not None
    }


def scores_of_round(records: Records, metric: Metric) -> dict[str, float]:
    """What a run's metric came to on test data in the records of one round, in its unit."""
    return of_round(records, Measure("test", metric.name), metric.scale)


def _column(record: Mapping[str, Any]) -> str:
    """Where a record belongs: to its client, or to its domain for pooled data."""
    return str(record["domain"] if record["client"] == POOLED else record["client"])


def _expected(measure: Measure, columns: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """Who must be there for a mean; the loss seen in training is of those who took part."""
    return frozenset() if measure == LOSS_SEEN else columns[measure.split]


def _averaged(by_round: ByRound, whole: frozenset[str], scale: float = 1) -> ByRound:
    """Add the mean to whole rounds: that of some clients is not comparable with that of all."""
    found: dict[int, dict[str, float]] = {}
    for round, values in by_round.items():
        found[round] = {column: scale * value for column, value in values.items()}
        if values and whole <= values.keys():
            found[round][MEAN] = scale * statistics.fmean(values.values())
    return found


def _grouped(
    values: Mapping[str, float], domains: Mapping[str, str], whole: Mapping[str, set[str]]
) -> dict[str, float]:
    parts: dict[str, list[float]] = defaultdict(list)
    for column, value in values.items():
        if column != MEAN and whole.get(domains[column], set()) <= values.keys():
            parts[domains[column]].append(value)
    return {domain: statistics.fmean(own) for domain, own in parts.items()}


@dataclass(frozen=True)
class Row:
    """One line of the table: a method in one setting, scored with one kind of statistics."""

    key: Key
    cells: dict[str, Cell]


@dataclass(frozen=True)
class Summary:
    """The table of a run: a row a method, a column a client, and the mean."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    seeds: tuple[int, ...]
    remarks: tuple[str, ...] = ()
    metric: Metric = ACCURACY

    @property
    def best(self) -> dict[str, float]:
        """The best mean of each column that has one."""
        means: dict[str, list[float]] = defaultdict(list)
        for name, cell in (item for row in self.rows for item in row.cells.items()):
            means[name].append(cell.mean)
        return {name: self.metric.best(values) for name, values in means.items()}


def summarize(table: ScoreTable, report: Report = "last", choose_setting: bool = False) -> Summary:
    """Summarise what methods come to on test data, at the last round or the best by validation.

    `choose_setting` keeps, of each method, the setting best on validation data (a mu by grid).
    """
    scores, remarks = table.scores(report), lacking(table, report)
    kept = [key for key in table.histories if _is_row(table, key, report)]
    if choose_setting:
        kept, chosen = _choose(table, kept, report)
        remarks += chosen
    form = table.metric.form
    rows = tuple(
        Row(key, {name: Cell.of(seeds.values(), form) for name, seeds in scores[key].items()})
        for key in kept
    )
    return Summary((*table.columns, MEAN), rows, table.seeds, tuple(remarks), table.metric)


def _is_row(table: ScoreTable, key: Key, report: Report) -> bool:
    """True if a row has scores; of other than running statistics, in the round that is reported."""
    own = table.histories[key].values()
    if key.statistics == RUNNING:
        return any(one.scored for one in own)
    return any(one.shown(report) or one.lacking(report) for one in own)


def weighted_by_size(scores: Scores, sizes: Mapping[str, int]) -> dict[int, float]:
    """Return, by seed, the mean over clients weighted by their numbers of test samples.

    Seeds without a plain mean are left out: a client has no score there.

    Examples:
        >>> scores = {"a": {0: 90.0, 1: 92.0}, "b": {0: 50.0}, "mean": {0: 70.0}}
        >>> weighted_by_size(scores, {"a": 30, "b": 10})
        {0: 80.0}
    """
    columns = [name for name in scores if name not in MEANS]
    if not columns or not {*columns} <= sizes.keys():
        return {}
    total = sum(sizes[name] for name in columns)
    return {
        seed: sum(sizes[name] * scores[name][seed] for name in columns) / total
        for seed in scores.get(MEAN, ())
        if all(seed in scores[name] for name in columns)
    }


def lacking(table: ScoreTable, report: Report) -> list[str]:
    """Say which scores are no numbers, and so are in no mean: of a model that diverged, mostly."""
    found: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for key, seeds in table.histories.items():
        for seed, history in seeds.items():
            if names := history.lacking(report):
                found[tuple(names)].append(f"{key.label} seed {seed}")
    said = f"no number, and in no mean: test {table.metric.words} of"
    undefined = [f"{said} {listed(names)} ({listed(jobs)})" for names, jobs in found.items()]
    return [*(rejection(*item) for item in rejected_clients(table).items()), *undefined]


def rejected_clients(table: ScoreTable) -> dict[tuple[str, ...], list[str]]:
    """Map clients of which no update was ever accepted to the jobs in which that was so."""
    found: dict[tuple[str, ...], dict[str, None]] = defaultdict(dict)
    for key, seeds in table.histories.items():
        for seed, history in seeds.items():
            if history.rejected:
                found[history.rejected][f"{key.name} seed {seed}"] = None
    return {clients: [*jobs] for clients, jobs in found.items()}


def rejection(clients: Sequence[str], jobs: Sequence[str]) -> str:
    """Return the warning about clients of which no update was ever accepted.

    Examples:
        >>> rejection(["a"], ["fedbn seed 0"])
        'every update of a was rejected (fedbn seed 0): it has no score, so there is no mean'
    """
    its = "it has" if len(clients) == 1 else "they have"
    return (
        f"every update of {listed(clients)} was rejected ({listed(jobs)}): {its} no score, so "
        "there is no mean"
    )


def _choose(table: ScoreTable, keys: Sequence[Key], report: Report) -> tuple[list[Key], list[str]]:
    """Of each method, the setting that is best on validation data over all seeds."""
    scores = {
        key.running: statistics.fmean(one.valid(report) for one in table.histories[key].values())
        for key in reversed(keys)  # running statistics, which come first, decide
    }
    kept, remarks = [], []
    for method in dict.fromkeys(key.method for key in keys):
        own = list(dict.fromkeys(key.running for key in keys if key.method == method))
        best = max(own, key=lambda key: table.metric.gain(scores[key], 0.0))
        kept += [key for key in keys if key.running == best]
        if len(own) > 1:
            settings = ", ".join(key.setting for key in own)
            remarks.append(f"{method}: {best.setting} chosen on validation data from {settings}")
    return kept, remarks


@dataclass(frozen=True)
class Curve:
    """A number over rounds (or epochs): its mean over seeds and their deviation, 0 for one seed."""

    label: str
    x: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def over(self, epochs: int, label: str) -> Curve:
        """The same over epochs, so many a round, under another name."""
        return replace(self, label=label, x=tuple(round * epochs for round in self.x))

    @property
    def band(self) -> tuple[list[float], list[float]]:
        """One deviation below the mean, and one above."""
        pairs = list(zip(self.mean, self.std, strict=True))
        return [m - s for m, s in pairs], [m + s for m, s in pairs]


def _curve(label: str, by_round: Mapping[int, Sequence[float]]) -> Curve:
    rounds = sorted(by_round)
    cells = [Cell.of(by_round[round]) for round in rounds]
    return Curve(label, tuple(rounds), tuple(c.mean for c in cells), tuple(c.spread for c in cells))


def reached(
    curves: Iterable[Curve], target: float, metric: Metric = ACCURACY
) -> dict[str, int | None]:
    """The first round at which each curve is at a target, or better; None where it never is.

    Examples:
        >>> reached([Curve("fedbn", (1, 2), (50.0, 90.0), (0, 0))], 80)
        {'fedbn': 2}
    """
    return {
        c.label: next(
            (r for r, m in zip(c.x, c.mean, strict=True) if metric.gain(m, target) >= 0), None
        )
        for c in curves
    }


@dataclass(frozen=True)
class Gain:
    """How much better a client fares with one method than with another, seed by seed."""

    client: str
    by_seed: Mapping[int, float]

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return Cell.of(self.by_seed.values()).mean

    @property
    def std(self) -> float:
        """The sample standard deviation over seeds; 0 for one seed."""
        return Cell.of(self.by_seed.values()).spread


@dataclass(frozen=True)
class Duel:
    """A method against another: who, and the gain of every client."""

    new: str
    old: str
    gains: tuple[Gain, ...]
    mean: Gain | None
    statistics: str = RUNNING


def gains(new: Scores, old: Scores, *, metric: Metric = ACCURACY) -> dict[str, Gain]:
    """What one method gains over another in each column, for the seeds that both have."""
    found = {}
    for name in (name for name in new if name in old):
        if both := [seed for seed in new[name] if seed in old[name]]:
            by_seed = {seed: metric.gain(new[name][seed], old[name][seed]) for seed in both}
            found[name] = Gain(name, by_seed)
    return found


def duel(
    table: ScoreTable, summary: Summary, report: Report = "last", statistics: str = RUNNING
) -> Duel | None:
    """Compare FedBN with FedAvg, or what comes nearest to both; None where one is not there.

    Both are scored with one kind of statistics.
    """
    new, old = (_nearest(summary, name, statistics) for name in ("fedbn", "fedavg"))
    if new is None or old is None:
        return None
    scores = table.scores(report)
    known = gains(scores[new.key], scores[old.key], metric=table.metric)
    found = tuple(known[name] for name in summary.columns if name in known and name != MEAN)
    if not found:
        return None
    return Duel(new.key.label, old.key.label, found, known.get(MEAN), statistics)


def _nearest(summary: Summary, name: str, statistics: str) -> Row | None:
    rows = (row for row in summary.rows if row.key.statistics == statistics)
    near = [row for row in rows if row.key.method.partition("+")[0] == name]
    return min(near, key=lambda row: row.key.method != name, default=None)
