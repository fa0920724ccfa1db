"""Two runs, or the methods of one run: what differs, and which differences are shown.

Configurations and environments are compared key by key, scores by paired tests over seeds, or over
splits of the data where a run has several; the whole can be had as values, as cells of a table, and
as Markdown.
"""

from __future__ import annotations

import itertools
import json
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

from fedbn.core.metric import ACCURACY, Metric
from fedbn.core.statistics_kinds import RUNNING, STATISTICS_KINDS
from fedbn.errors import ConfigError, unknown
from fedbn.results import display_name, name_and_statistics, with_statistics
from fedbn.results.aggregate import MEAN, MEANS, Duel, Key, gains
from fedbn.results.paired_tests import FEWEST, LEVEL, Paired, half_width, paired
from fedbn.results.result_table import MOST, SCORED_WITH
from fedbn.results.run_files import RunFiles
from fedbn.results.sample_tests import PairedSamples
from fedbn.text import counted, flat, harmless, listed, table

Over = Literal["seeds", "samples"]
"""What a paired test is over: trainings with other seeds, or test samples."""


@dataclass(frozen=True)
class Change:
    """A key and its two values; None where one side does not have it."""

    key: str
    a: Any
    b: Any

    @property
    def words(self) -> tuple[str, str, str]:
        """The key and both values as one reads them; long hashes are cut."""
        return self.key, _word(self.a), _word(self.b)


def changes(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[Change, ...]:
    """List the keys whose values differ.

    Examples:
        >>> changes({"t": {"lr": 0.1, "rounds": 2}}, {"t": {"lr": 0.2, "rounds": 2}})
        (Change(key='t.lr', a=0.1, b=0.2),)
    """
    first, second = dict(flat(a)), dict(flat(b))
    keys = sorted(first.keys() | second.keys())
    found = (Change(key, first.get(key), second.get(key)) for key in keys)
    return tuple(change for change in found if change.a != change.b)


def _word(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, str):
        hashed = len(value) == 64 and set(value) <= set("0123456789abcdef")
        return f"{value[:12]}…" if hashed else value
    return json.dumps(value, ensure_ascii=False, default=str)


_ENVIRONMENT = ("data", "versions", "weights")
_SPLITS = ("split_seed", "fold")
"""Swept keys that repeat an experiment, as seeds do, on other parts of the same data."""
_TEST_SHARE = 0.2
_ENDS = 5


class Repetition(NamedTuple):
    """A split of the data, empty where there is one only, and a seed."""

    split: str
    seed: int


Repeated = dict[str, dict[Repetition, float]]
"""By column, `mean` among them: a value a repetition."""


def _splits(key: Key) -> list[str]:
    """Return the parts of a setting's name that only say which split of the data it is."""
    return [part for part in key.setting.split(",") if part.partition("=")[0] in _SPLITS]


def without_splits(key: Key) -> Key:
    """Return a method's key in all splits of the data, which are repetitions and no settings.

    Examples:
        >>> without_splits(Key("fedbn", "percent=10,split_seed=3"))
        Key(method='fedbn', setting='percent=10', statistics='running')
    """
    splits = _splits(key)
    parts = [part for part in key.setting.split(",") if part not in splits]
    return key._replace(setting=",".join(parts) or "default")


class Side(RunFiles):
    """A run to compare: its scores by repetition."""

    @cached_property
    def repeated(self) -> dict[Key, Repeated]:
        """Of each method and setting; splits of the data are repetitions, and no settings."""
        known, found = self.scores, dict[Key, Repeated]()
        for row in self.summary.rows:
            splits = _splits(row.key)
            own = found.setdefault(without_splits(row.key), {})
            for column, seeds in known[row.key].items():
                values = own.setdefault(column, {})
                values |= {Repetition(",".join(splits), seed): v for seed, v in seeds.items()}
        found = {key: own for key, own in found.items() if own}
        if not found:
            raise ConfigError(f"{self.path}: no test {self.metric.words} yet; nothing to compare")
        return found

    def duel(self, new: Key, old: Key) -> Duel | None:
        """Return what a method gains over another in every repetition."""
        numbers: dict[Repetition, int] = {}
        first, second = (
            {
                column: {numbers.setdefault(one, len(numbers)): v for one, v in values.items()}
                for column, values in self.repeated[key].items()
            }
            for key in (new, old)
        )
        known = gains(first, second, metric=self.metric)
        own = tuple(gain for name, gain in known.items() if name not in MEANS)
        return Duel(new.label, old.label, own, known.get(MEAN)) if own else None

    def overlap(self, client: str) -> float:
        """Test samples by training samples, of a client or of all: how far splits overlap."""
        inputs = self.environment.get("inputs", {})
        sizes: Mapping[str, tuple[int, int]] = next(
            (facts["sizes"] for facts in inputs.values() if facts.get("sizes")), {}
        )
        if sizes:
            own = [sizes[client]] if client in sizes else list(sizes.values())
            return float(sum(test for _, test in own) / sum(train for train, _ in own))
        share = self.settings.get("data.test_share", _TEST_SHARE)
        return float(share / (1 - share))


@dataclass(frozen=True)
class Line:
    """One client, or the mean of all, on both sides: means over seeds and the test."""

    client: str
    a: float
    b: float
    test: Paired
    verdict: str


@dataclass(frozen=True)
class Pair:
    """A method on both sides, or two methods."""

    a: str  # the one to start from
    b: str  # the one that is judged
    axis: str  # what was repeated: `seed` or `split`
    repetitions: tuple[str, ...]  # those that both have
    lines: tuple[Line, ...]  # a line a client, then the mean
    statistics: str = RUNNING  # what both are scored with; empty where they differ in that

    @property
    def methods(self) -> tuple[str, str]:
        """Both methods; with their statistics, where they differ in these."""
        if not self.statistics:
            return self.a, self.b
        return name_and_statistics(self.a)[0], name_and_statistics(self.b)[0]

    @property
    def title(self) -> str:
        """Both methods, and what both are scored with."""
        return with_statistics(arrow(self.methods), self.statistics or RUNNING)

    @property
    def mean(self) -> Line | None:
        """The line of the mean; None where a client has no score."""
        return next((line for line in self.lines if line.client == MEAN), None)


@dataclass(frozen=True)
class Comparison:
    """All that differs between A and B; the verdicts are about B.

    `family` says how many lines of clients, and how many means, every interval holds for at once.
    """

    a: str
    b: str
    configuration: tuple[Change, ...]
    environment: tuple[Change, ...]
    pairs: tuple[Pair, ...]
    family: tuple[int, int]
    remarks: tuple[str, ...]
    metric: Metric = ACCURACY
    warnings: tuple[str, ...] = ()  # what the runs warned of, with the run where they are two
    over: Over = "seeds"  # what the tests are over

    def to_dict(self) -> dict[str, Any]:
        """Give plain values, for JSON."""
        facts = {"metric": self.metric.facts(), "generalises": generalises(self.pairs, self.over)}
        return {**asdict(self), **facts}


@dataclass(frozen=True)
class Match:
    """Two rows to compare, and the columns and repetitions that both have."""

    a: Side
    b: Side
    key_a: Key
    key_b: Key

    @property
    def scores(self) -> tuple[Repeated, Repeated]:
        """The scores of both rows."""
        return self.a.repeated[self.key_a], self.b.repeated[self.key_b]

    def gaps(self, column: str) -> dict[str, list[tuple[float, float]]]:
        """Both values of every repetition; those of one split lie together."""
        first, second = (own[column] for own in self.scores)
        found: dict[str, list[tuple[float, float]]] = {}
        for one in (one for one in first if one in second):
            found.setdefault(one.split or str(one.seed), []).append((first[one], second[one]))
        return found

    def pair(self, axis: str, repetitions: Iterable[str], lines: Iterable[Line]) -> Pair:
        """Name what was compared."""
        a, b = self.key_a, self.key_b
        kind = a.statistics if a.statistics == b.statistics else ""
        return Pair(a.label, b.label, axis, tuple(repetitions), tuple(lines), kind)

    @cached_property
    def columns(self) -> list[str]:
        """The clients, then the mean, that have a repetition on both sides."""
        own, other = self.scores
        if not {column for column in own if column in other} - {*MEANS}:
            raise ConfigError(f"no client in common: {_both(self.a, self.b, own, other)}")
        found = [column for column in own if column in other and self.gaps(column)]
        if not found:
            seeds = [{r.seed for values in one.values() for r in values} for one in (own, other)]
            raise ConfigError(
                f"{self.key_a.label}: no seed in common: {_both(self.a, self.b, *seeds)}"
            )
        return found


def compare(a: Side, b: Side, methods: Sequence[str] = ()) -> Comparison:
    """Judge run B against run A; where both are one run, its methods, every pair of them.

    `methods` are all that there are unless given. Of two runs: one to look at, or A's and B's.
    """
    found = matches(a, b, methods)
    family = family_of(match.columns for match in found)
    return compared(a, b, [_pair(match, family) for match in found], family)


def matches(a: Side, b: Side, methods: Sequence[str]) -> list[Match]:
    """Find the rows to compare with one another."""
    if a.metric != b.metric:
        titles = f"{a.path} is judged by {a.metric.title}, {b.path} by {b.metric.title}"
        raise ConfigError(f"{titles}: nothing to compare")
    return _comparable(_within(a, methods) if a is b else _between(a, b, methods))


def family_of(columns: Iterable[Iterable[str]]) -> tuple[int, int]:
    """Count the lines of clients and those of means, of all pairs."""
    counts = Counter(column in MEANS for own in columns for column in own)
    return counts[False], counts[True]


def compared(
    a: Side, b: Side, pairs: Sequence[Pair], family: tuple[int, int], over: Over = "seeds"
) -> Comparison:
    """Put the tests of all pairs together with all else that differs between two runs."""
    return Comparison(
        a=a.path,
        b=b.path,
        configuration=changes(a.config, b.config),
        environment=changes(*({k: s.environment.get(k, {}) for k in _ENVIRONMENT} for s in (a, b))),
        pairs=tuple(pairs),
        family=family,
        remarks=tuple(dict.fromkeys([*_remarks(a, b), *_doubts(pairs)])),
        metric=a.metric,
        warnings=a.warnings if a is b else (*_named_warnings(a), *_named_warnings(b)),
        over=over,
    )


def _comparable(found: Sequence[Match]) -> list[Match]:
    """Leave out rows of other than running statistics that have no score in common."""
    kept, failures = [], list[ConfigError]()
    for match in found:
        try:
            kept += [match] if match.columns else []
        except ConfigError as error:
            if match.key_a.statistics == match.key_b.statistics == RUNNING:
                raise
            failures.append(error)
    if not kept:
        raise failures[0]
    return kept


def _named_warnings(side: Side) -> Iterator[str]:
    return (f"{side.path}: {text}" for text in side.warnings)


def _within(side: Side, methods: Sequence[str]) -> list[Match]:
    """Every pair of methods in one setting, and of rows that were named with their settings."""
    if len(set(methods)) == 1:
        raise ConfigError("one run: name two of its methods, as --methods fedavg,fedbn, or none")
    exactly = _state_statistics(methods)
    keys = [key for name in methods for key in _keys(side, name, exactly)] or list(side.repeated)
    pairs = itertools.combinations(dict.fromkeys(keys), 2)
    found = [
        Match(side, side, x, y)
        for x, y in pairs
        if (x.method != y.method and _meet(x, y, keys, keys)) or _both_named(x, y, methods)
    ]
    if not found:
        raise ConfigError(f"{side.path}: one method; nothing to compare it with")
    return _kinds_together(found)


def _between(a: Side, b: Side, methods: Sequence[str]) -> list[Match]:
    """Pair rows of one method and setting; a method with one setting a side needs no equal one."""
    if len(methods) > 2:
        raise ConfigError(f"--methods names {len(methods)}: legal are one, or two to compare")
    names = (methods[0], methods[-1]) if methods else (None, None)
    crossed = len(set(methods)) == 2
    exactly = _state_statistics(methods)
    rows_a, rows_b = (_keys(side, name, exactly) for side, name in zip((a, b), names, strict=True))
    found = [
        Match(a, b, x, y)
        for x, y in itertools.product(rows_a, rows_b)
        if ((crossed or x.method == y.method) and _meet(x, y, rows_a, rows_b))
        or (x.label, y.label) == names
    ]
    if not found:
        raise ConfigError(f"no method and setting in common: {_both(a, b, rows_a, rows_b)}")
    return _kinds_together(found)


def _meet(x: Key, y: Key, beside_x: Iterable[Key], beside_y: Iterable[Key]) -> bool:
    """Tell whether two rows have one kind of statistics, and one setting or no other setting."""
    alone = [
        sum((other.method, other.statistics) == (one.method, one.statistics) for other in beside)
        == 1
        for one, beside in ((x, beside_x), (y, beside_y))
    ]
    return x.statistics == y.statistics and (x.setting == y.setting or all(alone))


def _both_named(x: Key, y: Key, names: Sequence[str]) -> bool:
    """True if two rows were asked for, with their settings or with their statistics."""
    same = x.statistics == y.statistics
    return {x.label, y.label} <= {*names} or (same and {x.name, y.name} <= {*names})


def _kinds_together(found: Sequence[Match]) -> list[Match]:
    """Put the kinds of statistics that two methods are compared with after one another."""
    pairs = [(match.key_a.running, match.key_b.running) for match in found]
    order = sorted(range(len(found)), key=lambda place: pairs.index(pairs[place]))
    return [found[place] for place in order]


def _state_statistics(names: Sequence[str]) -> bool:
    """True if a row was asked for with its statistics; names without are of running ones then."""
    return any(name_and_statistics(name)[1] != RUNNING for name in names)


def _keys(side: Side, name: str | None, exactly: bool = False) -> list[Key]:
    """The rows of a run: all, or those of a method, of a method and setting, or the one named."""
    rows = side.repeated
    found = [key for key in rows if name in (None, key.method, key.name, key.label)]
    if exactly:
        found = [key for key in found if key.statistics == RUNNING or key.label == name]
    if not found:
        known = [key.label for key in rows]
        raise ConfigError(f"{side.path}: {unknown('method', str(name), known)}")
    return found


def _pair(match: Match, family: tuple[int, int]) -> Pair:
    scores, lines = match.a.repeated[match.key_a], []
    splits = any(one.split for own in scores.values() for one in own)
    for column in match.columns:
        # Of a split that has several seeds, their mean: they saw the same test samples.
        both = [
            (statistics.fmean(x for x, _ in values), statistics.fmean(y for _, y in values))
            for values in match.gaps(column).values()
        ]
        overlap = match.a.overlap(column) if splits else 0.0
        test = paired([y - x for x, y in both], family[column in MEANS], overlap)
        test = possible(test, match.a.metric)
        a, b = (statistics.fmean(values) for values in zip(*both, strict=True))
        turned = {} if match.a.metric.higher else {"better": "worse", "worse": "better"}
        lines.append(Line(column, a, b, test, turned.get(test.verdict, test.verdict)))
    most_first = sorted(map(match.gaps, match.columns), key=len, reverse=True)
    repetitions = dict.fromkeys(itertools.chain.from_iterable(most_first))
    axis = "split" if splits else "seed"
    return match.pair(axis, repetitions, lines)


def possible(test: Paired, metric: Metric) -> Paired:
    """Cut an interval to the differences that the metric can have at all."""
    if (most := metric.largest_difference) is None or test.low is None or test.high is None:
        return test
    detectable = test.detectable
    if detectable is not None and detectable > most:
        detectable = None
    low, high = max(test.low, -most), min(test.high, most)
    return replace(test, low=low, high=high, detectable=detectable)


def _remarks(a: Side, b: Side) -> Iterator[str]:
    data = [side.environment.get("data", {}) for side in (a, b)]
    if other := [c for c in data[0] if c in data[1] and data[0][c] != data[1][c]]:
        yield f"not the same data: {', '.join(other)}; a difference there may be the data's"
    if a is b:
        yield from a.summary.remarks
    else:
        said = [side.summary.remarks for side in (a, b)]
        shared = [text for text in said[0] if text in said[1]]
        for side, own in zip((a, b), said, strict=True):
            yield from (f"{side.path}: {text}" for text in own if text not in shared)
        yield from (f"both runs: {text}" for text in shared)
    tested = [{r["round"] for r in side.records if r["split"] == "test"} for side in (a, b)]
    last_a, last_b = (max(rounds, default=0) for rounds in tested)
    if last_a != last_b:
        yield f"A was scored after round {last_a}, B after round {last_b}"


def _doubts(pairs: Iterable[Pair]) -> Iterator[str]:
    for pair in pairs:
        for line in pair.lines:
            ranks = line.test.ranks or 0
            if line.verdict in ("better", "worse") and ranks >= LEVEL:
                yield f"{pair.b}, {line.client}: not shown by ranks (Wilcoxon p = {ranks:.2g})"


def _both(a: Side, b: Side, has_a: Iterable[Any], has_b: Iterable[Any]) -> str:
    words = [", ".join(str(getattr(x, "label", x)) for x in has) for has in (has_a, has_b)]
    return f"{a.path} has {words[0]}; {b.path} has {words[1]}"


def arrow(methods: tuple[str, str], named: bool = False) -> str:
    """Name what is compared; `named` as in a paper.

    Examples:
        >>> arrow(("fedavg", "fedbn"), named=True), arrow(("fedbn", "fedbn"))
        ('FedAvg → FedBN', 'fedbn')
    """
    a, b = map(display_name, methods) if named else methods
    return b if a == b else f"{a} → {b}"


def score_titles(metric: Metric, over: Over = "seeds") -> tuple[str, ...]:
    """The titles of the columns of `score_rows`."""
    sides = [f"{side}, {metric.unit}" if metric.unit else side for side in "AB"]
    about = {"seeds": "detectable", "samples": "samples"}[over]
    tests = ("B − A", "95 % interval", "p", about, "verdict on B")
    return ("method", "client", *sides, *tests)


def score_rows(
    pair: Pair, metric: Metric, named: bool = False, headed: bool = False
) -> Iterator[tuple[str, ...]]:
    """The cells of a pair's lines; the method is named once, as in a paper where `named`.

    The statistics are named too, unless the table is `headed` by them.
    """
    label = arrow(pair.methods, named)
    label = label if headed else with_statistics(label, pair.statistics or RUNNING)
    for line in pair.lines:
        yield (label, *_cells(line, metric.form))
        label = ""


def gain_titles(found: Comparison) -> tuple[str, ...]:
    """The titles of the columns of `gain_rows`."""
    return ("B − A in the mean", *(f"{kind} statistics" for kind in _kinds(found)))


def gain_rows(found: Comparison, named: bool = False) -> list[tuple[str, ...]]:
    """The difference in the mean of each pair of methods, with each kind of statistics.

    There is none where all pairs are compared with one kind. Intervals are those of the lines.
    """
    rows: dict[tuple[str, str], dict[str, Pair]] = {}
    for pair in found.pairs:
        if pair.statistics:
            rows.setdefault(pair.methods, {})[pair.statistics] = pair
    return [
        (arrow(methods, named), *(_mean_said(own.get(kind), found.metric) for kind in kinds))
        for kinds in [_kinds(found)]
        for methods, own in rows.items()
        if len(own) > 1
    ]


def by_statistics(found: Comparison) -> dict[str, tuple[Pair, ...]]:
    """The pairs by the heading of their table; of one kind of statistics there is no heading."""
    kinds = dict.fromkeys(pair.statistics for pair in found.pairs)
    headings = {kind: f"both {SCORED_WITH[kind]}" for kind in kinds if kind}
    if len(kinds) < 2:
        return {"": found.pairs}
    return {
        headings.get(kind, "scored with different statistics"): tuple(
            pair for pair in found.pairs if pair.statistics == kind
        )
        for kind in kinds
    }


def _kinds(found: Comparison) -> list[str]:
    known = {pair.statistics for pair in found.pairs}
    return [kind for kind in STATISTICS_KINDS if kind in known]


def _mean_said(pair: Pair | None, metric: Metric) -> str:
    if pair is None or pair.mean is None:
        return "–"
    _, _, _, difference, interval, *_, verdict = _cells(pair.mean, metric.form)
    return (
        f"{difference} ({verdict})" if interval == "–" else f"{difference} ({interval}), {verdict}"
    )


def with_ends_only(found: Comparison) -> Comparison:
    """Of many clients, those that lose most and those that gain most, the mean, and how many."""
    pairs, remarks = [], list(found.remarks)
    for pair in found.pairs:
        own = [line for line in pair.lines if line.client not in MEANS]
        if len(own) > MOST:
            ordered = sorted(own, key=lambda line: line.test.difference)
            kept = (*ordered[:_ENDS], *ordered[-_ENDS:], *pair.lines[len(own) :])
            counts = Counter(line.verdict for line in own)
            said = ", ".join(f"{verdict} {count:,}" for verdict, count in counts.most_common())
            remarks.append(
                f"{pair.b}: of {len(own):,} clients the {_ENDS} with the least and the {_ENDS} "
                f"with the largest B − A; of all: {said} (--format csv: every one)"
            )
            pair = replace(pair, lines=kept)
        pairs.append(pair)
    return replace(found, pairs=tuple(pairs), remarks=tuple(remarks))


def markdown(found: Comparison) -> str:
    """Write a comparison as Markdown."""
    parts = [f"# Comparison\n\nA: {harmless(found.a)}\n\nB: {harmless(found.b)}"]
    for title, some in (("Configuration", found.configuration), ("Environment", found.environment)):
        if some:
            words = table(("key", "A", "B"), (change.words for change in some))
            parts.append(f"## {title}\n\n{words}")
    parts.append(f"## Test {found.metric.words}")
    for heading, pairs in by_statistics(found).items():
        rows = [
            row
            for pair in pairs
            for row in score_rows(pair, found.metric, named=True, headed=bool(heading))
        ]
        parts += [f"{heading[:1].upper()}{heading[1:]}:"] if heading else []
        parts.append(table(score_titles(found.metric, found.over), rows))
    if gained := gain_rows(found, named=True):
        parts += ["## The mean, by statistics", table(gain_titles(found), gained)]
    parts.append(harmless(explanation(found)))
    parts += [f"- {harmless(text)}" for text in found.remarks]
    return "\n\n".join(parts) + "\n"


def explanation(found: Comparison) -> str:
    """Say how the numbers were made, and what so many repetitions could show at all."""
    axis, names = found.pairs[0].axis, found.pairs[0].repetitions
    lines, (clients, means) = [(p, line) for p in found.pairs for line in p.lines], found.family
    count = min(line.test.repetitions for _, line in lines)
    n = f"n = {counted(len(names), axis)} ({', '.join(names)})"
    if len({pair.repetitions for pair in found.pairs}) > 1:
        each = (f"{pair.title} {len(pair.repetitions)}" for pair in found.pairs)
        n = f"n differs ({', '.join(each)})"
    fewer = [
        f"{pair.title} {line.client} {line.test.repetitions}"
        for pair, line in lines
        if line.test.repetitions < len(pair.repetitions)
    ]
    n += f", fewer at {listed(fewer)}" if fewer else ""
    compared = counted(clients, "comparison of a client", "comparisons of clients")
    apart = f", and separately for {counted(means, 'mean')}" if means else ""
    adjusted = f"Intervals and p are adjusted for {compared}{apart} (Bonferroni)"
    if found.over == "samples":
        parts = [
            n,
            *_tests_over_samples(found),
            adjusted,
            "'better' and 'worse': the adjusted p is below 0.05",
            generalises(found.pairs, found.over),
            "Test samples count as independent: several of one patient make intervals too narrow",
        ]
        return ". ".join(parts) + "."
    tests = "Paired t-tests"
    if axis == "split":
        tests += ", corrected for overlapping splits (Nadeau and Bengio 2003)"
    parts = [
        n,
        tests,
        adjusted,
        "'better' and 'worse': the interval excludes 0",
        "'detectable': the difference that this many repetitions find in four of five cases",
        generalises(found.pairs, found.over),
    ]
    if count < FEWEST:
        alike = count == max(line.test.repetitions for _, line in lines)
        few = counted(count, axis) if alike else f"fewer than {counted(FEWEST, axis)}"
        parts.append(
            f"{few} cannot decide whether a difference is more than chance: at least {FEWEST} "
            "are needed"
        )
    if count > 1:
        bound = "at least " if axis == "split" else ""
        widths = [f"{half_width(count, clients):.1f} at a client"] if clients else []
        widths += [f"{half_width(count, means):.1f} in the mean"] if means else []
        parts.append(
            f"With n = {count} an interval reaches {bound}this many standard deviations of the "
            f"difference to each side: {', '.join(widths)}"
        )
    return ". ".join(parts) + "."


def generalises(pairs: Sequence[Pair], over: Over = "seeds") -> str:
    """Say what the tests of pairs generalise to."""
    said = "The test generalises to"
    if over == "seeds":
        if pairs[0].axis == "split":
            return f"{said} other splits of the same data, not to other sites"
        return (
            f"{said} another training on the same data and the same test samples, not to other "
            "sites or other splits"
        )
    reach = {line.test.repetitions >= FEWEST for pair in pairs for line in pair.lines}
    fixed = "other test samples from the same sites for these trained models"
    both = "another training on the same data and to other test samples from the same sites"
    neither = "not to other sites or other splits"
    if reach == {True, False}:
        said = f"With {FEWEST} seeds or more the test generalises to"
        return f"{said} {both}; with fewer, to {fixed}; {neither}"
    return f"{said} {both if True in reach else fixed}, {neither}"


def _tests_over_samples(found: Comparison) -> Iterator[str]:
    """Say which tests over test samples were made."""
    lines = [line for pair in found.pairs for line in pair.lines]
    tests = [line.test for line in lines if isinstance(line.test, PairedSamples)]
    if any(test.exact for test in tests):
        yield "A client with one seed: McNemar's exact test, and the interval of Tango (1998)"
    if any(not test.exact for test in tests):
        over = "test samples within each client"
        if all(test.over_seeds for test in tests if not test.exact):
            over += " and over seeds"
        elif any(test.over_seeds for test in tests):
            over += f", and over seeds from {FEWEST} on"
        others = "Else: paired t-tests" if any(t.exact for t in tests) else "Paired t-tests"
        yield f"{others} with the variance over {over}"


def _cells(line: Line, form: str) -> tuple[str, ...]:
    low, high = line.test.low, line.test.high
    interval = "–"
    if low is not None and high is not None:
        interval = f"{_signed(low, form)} to {_signed(high, form)}"
    p = line.test.p
    shown = "–" if p is None else f"{p:.2g}" if p >= 0.001 else "< 0.001"
    about = "–" if line.test.detectable is None else f"{line.test.detectable:{form}}"
    if isinstance(line.test, PairedSamples):
        about = f"{line.test.samples:,}"
    means = f"{line.a:{form}}", f"{line.b:{form}}", _signed(line.test.difference, form)
    return line.client, *means, interval, shown, about, line.verdict


def _signed(value: float, form: str) -> str:
    return f"{value:+{form}}".replace("-", "−")
