"""The sections that records tell: results, learning curves, gains, convergence, several runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from fedbn.core.metric import PERCENT, Metric
from fedbn.core.statistics_kinds import RUNNING
from fedbn.report.charts import gain_bars, histogram, legend, looks, loss_axis, panel, score_axis
from fedbn.report.contents import MOST_LABELS, RunContents, gain_said
from fedbn.report.document import Beside, Figures, Part, Section, Text, Tile, Tiles, table
from fedbn.results import name_and_statistics
from fedbn.results.aggregate import (
    EQUAL,
    LOSS,
    LOSS_SEEN,
    MEAN,
    MEANS,
    Duel,
    Gain,
    Summary,
    reached,
)
from fedbn.results.comparison import Line, Pair, changes, generalises
from fedbn.results.result_table import SCORED_WITH, Grid, Shown, condensed, grid_of, tables_of
from fedbn.text import bytes_said, counted, listed, spread

_MOST_COLUMNS, _MOST_ROWS = 9, 40
_UNSCORED = Text("No round has been scored yet.", kind="remark")


def glance(run: RunContents) -> list[Part]:
    """The numbers to remember."""
    tiles = []
    running = [row for row in run.summary.rows if row.key.statistics == RUNNING]
    ranked = [row for row in running if MEAN in row.cells]
    if ranked:
        top = run.metric.best(row.cells[MEAN].mean for row in ranked)
        best = next(row for row in ranked if row.cells[MEAN].mean == top)
        detail = f"highest mean of {counted(len(ranked), 'method')}, over clients"
        if not run.metric.higher:
            detail = detail.replace("highest", "lowest")
        if len(running) < len(run.summary.rows):
            detail += ", with running statistics"
        value = f"{best.cells[MEAN]} {run.metric.unit}".rstrip()
        tiles.append(Tile(value, f"test {run.metric.words} of {best.key.label}", detail))
    fight = run.duel
    if fight and fight.mean and run.test:
        tiles += _difference(run, fight, run.test)
        tiles += _difference_of_weights(run, fight)
    tiles += _kept(run, fight.new if fight else None)
    return [Tiles(tuple(tiles))] if tiles else []


def _difference(run: RunContents, fight: Duel, pair: Pair) -> list[Tile]:
    """The difference in the mean with its interval, or that the repetitions cannot decide it."""
    line = next((line for line in pair.lines if line.client == MEAN), None)
    if line is None or fight.mean is None:
        return []
    label = f"{fight.new} over {fight.old}"
    gain = f"{gain_said(fight.mean.mean, run.metric)} {run.metric.points}"
    if line.verdict == "same":
        return [Tile("no difference", label, "equal in every repetition")]
    if line.verdict == "too few":
        count = counted(line.test.repetitions, pair.axis)
        detail = f"{gain} in the mean of {count}, which cannot decide"
        return [Tile("not decided", label, detail)]
    interval = interval_said(line, run.metric)
    if line.verdict == "not shown":
        return [Tile(gain, label, f"95 % interval {interval}: not statistically significant")]
    own = [one.verdict for one in pair.lines if one.client not in MEANS]
    kinds = [f"{own.count(word):,} {word}" for word in ("better", "worse") if word in own]
    undecided = len(own) - own.count("better") - own.count("worse")
    kinds += [f"{undecided:,} undecided"] if undecided else []
    detail = f"95 % interval {interval}; of {counted(len(own), 'client')}: {', '.join(kinds)}"
    speed = _speed(run, fight) if line.verdict == "better" else []
    return [Tile(gain, label, detail), *speed]


def _difference_of_weights(run: RunContents, fight: Duel) -> list[Tile]:
    """The difference in the mean where both methods are scored with the same statistics."""
    kind = next((kind for kind in ("exact", "batch") if kind in run.tests), None)
    line = run.tests[kind].mean if kind else None
    if line is None:
        return []
    value = f"{gain_said(_gain_of(line, run.metric), run.metric)} {run.metric.points}"
    interval = interval_said(line, run.metric)
    count = counted(line.test.repetitions, run.tests[kind or ""].axis)
    detail = {
        "same": "equal in every repetition",
        "too few": f"in the mean of {count}, which cannot decide",
        "not shown": f"95 % interval {interval}: not statistically significant",
    }.get(line.verdict, f"95 % interval {interval}")
    return [Tile(value, f"{fight.new} over {fight.old}, both with {kind} statistics", detail)]


def _gain_of(line: Line, metric: Metric) -> float:
    """The difference of a line as a gain, where more is better."""
    return metric.gain(line.test.difference, 0.0)


def interval_said(line: Line, metric: Metric) -> str:
    """Write the interval of a line as gains, where more is better; a dash where there is none."""
    low, high = line.test.low, line.test.high
    if low is None or high is None:
        return "–"
    ends = sorted(metric.gain(end, 0.0) for end in (low, high))
    return " to ".join(gain_said(end, metric) for end in ends)


def _speed(run: RunContents, fight: Duel) -> list[Tile]:
    curves = {curve.label: curve for curve in run.curves(MEAN)}
    if fight.old not in curves or fight.new not in curves:
        return []
    old = curves[fight.old]
    at = reached([curves[fight.new]], old.mean[-1], run.metric)[fight.new]
    if at is None or at > old.x[-1]:
        return []
    label = f"{fight.new} is where {fight.old} ends"
    return [Tile(f"round {at}", label, f"{fight.old} took {counted(old.x[-1], 'round')}")]


def _kept(run: RunContents, method: str | None) -> list[Tile]:
    for exchange in run.exchanges:
        if exchange.method == (method or "fedbn") and exchange.local and exchange.kept:
            share = 100 * exchange.kept / (exchange.kept + exchange.shared[1])
            detail = counted(exchange.local[0], "entry", "entries")
            detail = f"{bytes_said(exchange.kept)} in {detail}"
            return [Tile(f"{share:.2g} %", "of the model never leaves a client", detail)]
    return []


def results(run: RunContents) -> Section:
    """The summary table."""
    summary = run.summary
    seeds = ", ".join(map(str, summary.seeds[:20])) + (" …" if len(summary.seeds) > 20 else "")
    over = "mean ± standard deviation over seeds" if len(summary.seeds) > 1 else "seed"
    when = "the round best on validation data" if run.report == "best" else "the last round"
    if not any(row.cells for row in summary.rows):
        remark = Text("No client has been scored yet.", kind="remark")
        return Section("results", "Results", "", (remark,))
    unit = {PERCENT: " in per cent", "": ""}.get(summary.metric.unit, f" in {summary.metric.unit}")
    way = "" if summary.metric.higher else " (lower is better)"
    lead = (
        f"Test {summary.metric.words}{unit}{way} at {when}, {over} {seeds}. The best mean of each "
        "column is marked; the mark is no statistical test."
    )
    parts = [*glance(run), *_spread(run), *_tables(summary), *map(Text, summary.remarks)]
    return Section("results", "Results", lead, tuple(parts))


def _spread(run: RunContents) -> list[Part]:
    """How many clients' scores are spread, drawn."""
    values = {
        row.key.label: [cell.mean for name, cell in row.cells.items() if name not in MEANS]
        for row in run.summary.rows[:MOST_LABELS]
    }
    if len(run.summary.columns) <= _MOST_ROWS or not all(values.values()):
        return []
    look = looks([*values])
    return [Figures((histogram(values, look, run.metric),), legend(look))]


def _tables(summary: Summary) -> list[Part]:
    head = f"Test {summary.metric.title}"
    if len(summary.columns) <= _MOST_COLUMNS:
        return [_table(head, "method", grid_of(summary))]
    clients = tuple(name for name in summary.columns if name not in MEANS)
    names = (*(name for name in MEANS if name in summary.columns), *clients)
    every = tables_of(replace(summary, columns=names), 0)
    if len(names) <= _MOST_ROWS:
        return [_table(head, "client", one) for one in every]
    all_of_them = f"{head}: all {len(clients):,} clients"
    whole = [_table(all_of_them, "client", one, folded=True) for one in every]
    return [*(_table(head, "", one) for one in tables_of(condensed(summary), 0)), *whole]


def _table(title: str, first: str, grid: Grid, folded: bool = False) -> Part:
    rows = [[Shown(name), *row] for name, row in zip(grid.rows, grid.cells, strict=True)]
    title = f"{title}, {grid.heading}" if grid.heading else title
    return table(title, [first, *grid.columns], rows, folded=folded)


_MOST_PANELS, _MOST_BARS = 11, 30


def learning(run: RunContents) -> Section:
    """Learning curves, a panel a client."""
    names = run.table.columns
    curves = {name: run.curves(name) for name in (MEAN, *spread(names, _MOST_PANELS))}
    curves = {name: found for name, found in curves.items() if found}
    axis = score_axis([curve for found in curves.values() for curve in found], run.metric)
    look = looks([row.key.label for row in run.rows])
    panels = tuple(
        panel("Mean of clients" if name == MEAN else name, found, look, axis)
        for name, found in curves.items()
    )
    parts: list[Part] = [Figures(panels, legend(look))] if panels else []
    if len(names) > _MOST_PANELS:
        parts.append(Text(f"{_MOST_PANELS} of {len(names):,} clients are drawn, evenly spread."))
    if len(run.drawable) > len(run.rows):
        parts.append(Text(f"The first {MOST_LABELS} of {len(run.drawable)} rows are drawn."))
    if once := [row for row in run.summary.rows if row not in run.drawable]:
        kinds = listed(list(dict.fromkeys(row.key.statistics for row in once)))
        parts.append(Text(f"Scored in one round alone, so without a curve: {kinds} statistics."))
    lead = (
        f"Test {run.metric.title} after every scored round: the mean over seeds, shaded ± one "
        "standard deviation. Point at a round for its numbers."
    )
    return Section("learning", "Learning curves", lead, tuple(parts) or (_UNSCORED,))


_MEAN_NAME = "mean of clients"
_VERDICTS = {"not shown": "not significant", "too few": "not decided"}


def intervals_of(lines: Iterable[Line], metric: Metric) -> dict[str, tuple[float, float]]:
    """Return the interval of each client's gain, where its repetitions can decide something."""
    found = {}
    for line in lines:
        low, high = line.test.low, line.test.high
        if low is None or high is None or line.verdict == "too few":
            continue
        first, last = sorted(metric.gain(end, 0.0) for end in (low, high))
        found[_MEAN_NAME if line.client == MEAN else line.client] = first, last
    return found


def gains(run: RunContents) -> Section:
    """What each client gains by FedBN."""
    fight = run.duel
    if fight is None:
        text = "Needs FedBN and FedAvg, scored for the same seed; this run does not have both."
        return Section("gain", "Gain by client", "", (Text(text, kind="remark"),))
    seeds = len({seed for gain in fight.gains for seed in gain.by_seed})
    metric = run.metric
    lines = [line for pair in run.tests.values() for line in pair.lines]
    first, second = (fight.new, fight.old) if metric.higher else (fight.old, fight.new)
    words = metric.words
    lead = f"{words.capitalize()} with {first} minus {words} with {second}, client by client."
    if seeds > 1:
        lead += " A circle is one seed."
    if intervals_of(lines, metric):
        lead += " The line is the 95 % interval, which holds for all clients at once."
        lead += f" {generalises([*run.tests.values()])}."
    if run.test and any(line.verdict == "too few" for line in lines):
        few = counted(min(line.test.repetitions for line in lines), run.test.axis)
        lead += f" {few} cannot decide whether a difference is more than chance."
    parts: list[Part] = []
    if len(run.duels) > 1:
        parts.append(_gains_in_the_mean(run))
    for kind, one in run.duels.items():
        parts += _gain_by_client(run, one, kind)
    return Section("gain", f"What clients gain by {fight.new}", lead, tuple(parts))


def _gains_in_the_mean(run: RunContents) -> Part:
    """The gain in the mean with each kind of statistics that both methods are scored with."""
    rows = []
    for kind in run.duels:
        line = run.tests[kind].mean if kind in run.tests else None
        cells = ["–", "–", "–"]
        if line:
            gain = gain_said(_gain_of(line, run.metric), run.metric)
            decided = line.verdict != "too few"
            interval = interval_said(line, run.metric) if decided else "–"
            cells = [gain, interval, _VERDICTS.get(line.verdict, line.verdict)]
        rows.append([f"{kind} statistics", *cells])
    header = ["both scored with", f"gain, {run.metric.points}", "95 % interval", "result"]
    return table("Gain in the mean of clients", header, rows)


def _gain_by_client(run: RunContents, fight: Duel, kind: str) -> list[Part]:
    """The gain of each client with one kind of statistics, drawn and in numbers."""
    half, kept, metric = _MOST_BARS // 2, list(fight.gains), run.metric
    if len(kept) > _MOST_BARS:
        kept.sort(key=lambda gain: gain.mean)
        kept = [*kept[:half], *kept[-half:]]
    lines = {line.client: line for line in run.tests[kind].lines} if kind in run.tests else {}
    intervals = intervals_of(lines.values(), metric)
    every = [*kept, *([Gain(_MEAN_NAME, fight.mean.by_seed)] if fight.mean else [])]
    stds = [f"{g.std:{metric.form}}" if len(g.by_seed) > 1 else "–" for g in every]
    rows = []
    for gain, std in zip(every, stds, strict=True):
        line = lines.get(MEAN if gain.client == _MEAN_NAME else gain.client)
        interval = interval_said(line, metric) if gain.client in intervals and line else "–"
        told = _VERDICTS.get(line.verdict, line.verdict) if line else "–"
        rows.append([gain.client, gain_said(gain.mean, metric), std, interval, told])
    header = ["client", f"gain, {metric.points}", "std", "95 % interval", "result"]
    heading = f"both {SCORED_WITH[kind]}" if len(run.duels) > 1 else ""
    numbers = table("In numbers", header, rows)
    named = replace(fight, new=_name(fight.new), old=_name(fight.old))
    several = kind if len(run.duels) > 1 else ""
    picture = gain_bars(named, kept, metric, intervals, _ends_of_gains(run), several)
    drawn = Figures((picture,))
    parts: list[Part] = [Text(f"{heading[:1].upper()}{heading[1:]}:")] if heading else []
    parts.append(Beside((drawn, numbers)))
    if len(kept) < len(fight.gains):
        text = f"Of {len(fight.gains):,} clients, the {half} that gain least and the {half} most."
        parts.append(Text(text))
    return parts


def _ends_of_gains(run: RunContents) -> list[float]:
    """All numbers that the drawings of gains show, because they share their axis."""
    if len(run.duels) < 2:
        return []
    gains = [gain for fight in run.duels.values() for gain in (*fight.gains, fight.mean) if gain]
    found = [value for gain in gains for value in gain.by_seed.values()]
    for pair in run.tests.values():
        found += [end for ends in intervals_of(pair.lines, run.metric).values() for end in ends]
    return found


def _name(label: str) -> str:
    return name_and_statistics(label)[0]


def convergence(run: RunContents) -> Section:
    """How fast methods learn: the training loss, and rounds until a score is reached."""
    panels, look = [], looks([row.key.label for row in run.rows])
    for number, name in ((LOSS, "after the round"), (LOSS_SEEN, "while training")):
        if curves := run.curves(MEAN, number):
            axis = loss_axis(curves)
            title = f"Training loss, {name}" + (" (log)" if axis.log else "")
            panels.append(panel(title, curves, look, axis))
    parts: list[Part] = [Figures(tuple(panels), legend(look))] if panels else []
    parts += _rounds_until(run)
    lead = (
        "The loss on the clients' training data, mean over clients and seeds: of each client's "
        "joined model once the server has combined the updates, and as clients see it while they "
        "train, when BatchNorm uses the statistics of the batch."
    )
    return Section("convergence", "Convergence", lead, tuple(parts) or (_UNSCORED,))


def _rounds_until(run: RunContents) -> list[Part]:
    curves = run.curves(MEAN)
    if not curves or run.metric.unit != PERCENT:
        return []
    top = max(max(curve.mean) for curve in curves)
    levels = [level for level in (50, 60, 70, 80, 85, 90, 95, 98, 99) if level <= top][-5:]
    if not levels:
        return []
    found = [reached(curves, level) for level in levels]
    rows = [
        [c.label, *("–" if (at := one[c.label]) is None else str(at) for one in found)]
        for c in curves
    ]
    header = ["method", *(f"{level} %" for level in levels)]
    return [table(f"First round at a mean test {run.metric.words} of", header, rows)]


_MOST_KEYS, _MOST_COMPARED = 60, 12


def comparison(names: Sequence[str], runs: Sequence[RunContents]) -> Section:
    """Compare runs: mean scores by method, their curves, and the settings that differ."""
    labels = list(dict.fromkeys(row.key.label for run in runs for row in run.summary.rows))
    metrics = list(dict.fromkeys(run.metric for run in runs))
    parts: list[Part] = []
    for metric in metrics:  # what is judged by different metrics stands in different tables
        own = [(n, r) for n, r in zip(names, runs, strict=True) if r.metric == metric]
        parts.append(_means(own, labels))
        parts += _curves(own)
    parts += _differences(names, runs)
    titles = " and ".join(metric.title for metric in metrics)
    lead = (
        f"Mean test {titles} of the clients. Whether a difference is more than noise, "
        "fedbn compare tells, two runs at a time."
    )
    return Section("comparison", "The runs side by side", lead, tuple(parts))


def _means(runs: Sequence[tuple[str, RunContents]], labels: Sequence[str]) -> Part:
    metric = runs[0][1].metric
    means = [{row.key.label: row.cells.get(MEAN) for row in run.summary.rows} for _, run in runs]
    rows = []
    for (name, run), found in zip(runs, means, strict=True):
        cells: list[Shown | str] = [name, str(len(run.summary.seeds)), str(run.table.rounds)]
        for label in labels:
            cell = found.get(label)
            known = [m[label].mean for m in means if m.get(label)]  # type: ignore[union-attr]
            best = len(runs) > 1 and cell and abs(cell.mean - metric.best(known)) < EQUAL
            cells.append(Shown("–" if cell is None else str(cell), bool(best)))
        rows.append(cells)
    return table(f"Mean test {metric.title}", ["run", "seeds", "rounds", *labels], rows)


def _curves(runs: Sequence[tuple[str, RunContents]]) -> list[Part]:
    means = ((name, run.curves(MEAN)) for name, run in runs)
    drawn = [(name, curves) for name, curves in means if curves][:_MOST_COMPARED]
    if not drawn:
        return []
    look = looks(list(dict.fromkeys(curve.label for _, curves in drawn for curve in curves)))
    axis = score_axis([curve for _, curves in drawn for curve in curves], runs[0][1].metric)
    panels = tuple(panel(name, curves, look, axis) for name, curves in drawn)
    return [Figures(panels, legend(look))]


def _differences(names: Sequence[str], runs: Sequence[RunContents]) -> list[Part]:
    found: dict[str, list[str]] = {}
    for place, run in enumerate(runs[1:], 1):
        for change in changes(runs[0].config, run.config):
            key, a, b = change.words
            found.setdefault(key, [a] * len(runs))[place] = b
    if not found:
        return [Text("Their configurations are the same.")]
    rows = [[key, *values] for key, values in sorted(found.items())[:_MOST_KEYS]]
    return [table("Where their configurations differ", ["key", *names], rows)]
