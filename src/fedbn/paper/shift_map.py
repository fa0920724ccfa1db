"""Where local BatchNorm helps: what FedBN gains over four others, by kind and strength of a shift.

The cells are jobs of ordinary runs below the item's folder, so a killed map goes on where it was.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedbn.core.statistics_kinds import RUNNING, STATISTICS_KINDS
from fedbn.experiments.configuration import Raw, changed
from fedbn.paper.items import Cell, Outcome, Request, Row, Table, options_of, refused
from fedbn.paper.paper_figures import draw_intervals
from fedbn.results import display_name, with_statistics
from fedbn.results.aggregate import MEAN, ScoreTable
from fedbn.results.figures import legend, looks, panels, saved, styled, titled
from fedbn.runs.folder import write_atomically
from fedbn.text import csv_text

DEFAULTS: dict[str, Any] = {"participation": [], "longer": []}
NEW, GROUPNORM = "fedbn", "groupnorm"
OTHERS = ("fedavg", "silobn", "singleset", GROUPNORM)
_TIMES = 4
Scores = dict[tuple[str, str], dict[str, dict[int, float]]]
"""By dial and strength, by method, by seed: accuracy in per cent, the mean over domains.

Accuracies with other than running statistics are those of `METHOD, exact statistics`.
"""
Gains = Mapping[tuple[str, str], Mapping[str, Cell]]
"""By dial and the method that FedBN is compared with, by strength."""


def shift_map(request: Request) -> Outcome:
    """Train all cells, then tabulate and draw what FedBN gains."""
    base, options = request.several(), options_of(request.options, DEFAULTS)
    scores: Scores = defaultdict(dict)
    for raw, home in _runs(base, options["participation"]):
        transformed = raw["model"].get("transform") == GROUPNORM
        table = ScoreTable.of(request.train(raw, Path(home)))
        for key, own in table.by_domain().scores().items():
            parts = dict(part.split("=") for part in key.setting.split(","))
            strength = parts.get("strength") or parts["participation"]
            cell = scores[parts.get("dial", "participation"), strength]
            name = GROUPNORM if transformed else key.method
            if MEAN in own:
                cell[with_statistics(name, key.statistics)] = dict(own[MEAN])
    lines = [["dial", "strength", "method", "seed", "accuracy"]]
    for place, methods in scores.items():
        for method, seeds in methods.items():
            lines += [[*place, method, str(seed), f"{v:.4f}"] for seed, v in seeds.items()]
    write_atomically(request.folder / f"{request.name}-scores.csv", csv_text(lines).encode())
    gains = {
        (dial, other): {
            strength: Cell.gained(own[NEW], own[other], family=len(scores))
            for (name, strength), own in scores.items()
            if name == dial
        }
        for dial in dict.fromkeys(dial for dial, _ in scores)
        for other in OTHERS
    }
    tables = [dials_table(request, scores), _gains(request, gains), _accuracies(request, scores)]
    if options["longer"]:
        tables.append(_longer(request, options["longer"], scores))
    for kind in (kind for kind in STATISTICS_KINDS if kind != RUNNING):
        if any(with_statistics(NEW, kind) in own for own in scores.values()):
            tables += [dials_table(request, scores, kind), _accuracies(request, scores, kind)]
    return Outcome(tuple(tables), _draw(request, gains))


def _runs(base: Raw, participation: list[float]) -> Iterator[tuple[Raw, str]]:
    """The configurations, and the folder of each."""
    parts = {"run": base}
    if participation:
        sweep = {"training": {"participation": participation}}
        data = {**base["data"], "dial": "participation"}
        parts["participation"] = {**base, "data": data, "sweep": sweep}
    for place, raw in parts.items():
        yield raw, place
        model = {**raw["model"], "transform": GROUPNORM}
        yield {**raw, "methods": ["fedavg"], "model": model}, f"{place}-{GROUPNORM}"


def dials_table(request: Request, scores: Scores, kind: str = RUNNING) -> Table:
    """What FedBN gains by each dial: the mean over its strengths, seed by seed.

    Both are scored with one kind of statistics, where the model of the other has BatchNorm.
    """
    dials = dict.fromkeys(dial for dial, _ in scores)
    new = _same_kind(NEW, kind)
    compared = {other: _same_kind(other, kind) for other in OTHERS}
    rows = []
    for dial in dials:
        own = [methods for (name, _), methods in scores.items() if name == dial]
        means = {
            m: {seed: sum(one[m][seed] for one in own) / len(own) for seed in own[0][m]}
            for m in (new, *compared.values())
            if all(m in one for one in own)
        }
        gains = [
            Cell.gained(means[new], means[label], family=len(dials))
            if {new, label} <= means.keys()
            else None
            for label in compared.values()
        ]
        rows.append(Row((dial,), tuple(gains)))
    note = f"Intervals hold for all {len(dials)} dials at once (paired t, Bonferroni)."
    title = f"what FedBN gains, the mean over strengths, in percentage points{_with(kind)}"
    columns = (f"over {_shown(other)}" for other in OTHERS)
    name = f"{request.name}-dials{_end(kind)}"
    return request.table(name, title, columns, rows, note, ("dial",))


def _same_kind(method: str, kind: str) -> str:
    """The label of a method with a kind of statistics; GroupNorm has no statistics to choose."""
    return method if method == GROUPNORM else with_statistics(method, kind)


def _gains(request: Request, gains: Gains) -> Table:
    count = sum(len(cells) for (_, other), cells in gains.items() if other == OTHERS[0])
    rows = [Row((dial, _shown(m)), tuple(cells.values())) for (dial, m), cells in gains.items()]
    note = (
        f"Intervals hold for all {count} cells of a comparison at once (paired t, Bonferroni). "
        "Of participation the levels are the shares of clients a round, 1.0 to 0.2."
    )
    columns = (f"level {n}" for n in range(1, 1 + max(len(row.cells) for row in rows)))
    title = "what FedBN gains at each level, in percentage points"
    return request.table(request.name, title, columns, rows, note, ("dial", "over"))


def _accuracies(request: Request, scores: Scores, kind: str = RUNNING) -> Table:
    methods = [_same_kind(method, kind) for method in (NEW, *OTHERS)]
    rows = [
        Row(
            (dial, strength), tuple(Cell.of(own[m].values()) if m in own else None for m in methods)
        )
        for (dial, strength), own in scores.items()
    ]
    columns = map(_shown, (NEW, *OTHERS))
    title = "test accuracy in per cent, the mean over domains (standard deviation)"
    name = f"{request.name}-accuracy{_end(kind)}"
    head = ("dial", "strength")
    return request.table(name, f"{title}{_with(kind)}", columns, rows, head=head)


def _with(kind: str) -> str:
    """What a title says of the statistics."""
    return "" if kind == RUNNING else f", with {kind} statistics"


def _end(kind: str) -> str:
    """What a file's name ends with."""
    return "" if kind == RUNNING else f"-{kind}"


def _longer(request: Request, cells: list[str], scores: Scores) -> Table:
    """Train some cells of FedBN and FedAvg four times as long, to see whether the sign stays."""
    base = {**request.several(), "methods": [NEW, "fedavg"], "sweep": {}}
    rounds, rows = base["training"]["rounds"], []
    for cell in cells:
        dial, _, strength = cell.partition(" ")
        if (dial, strength) not in scores:
            raise refused("longer", cell, f"legal are {', '.join(map(' '.join, scores))}")
        data, training = {"dial": dial, "strength": float(strength)}, {"rounds": _TIMES * rounds}
        raw = changed(base, {"data": data, "training": training})
        records = request.train(raw, Path(f"longer-{dial}-{strength}"))
        table = ScoreTable.of(records).only(RUNNING).by_domain()
        found = {key.method: own[MEAN] for key, own in table.scores().items()}
        both = (scores[dial, strength], found)
        rows.append(Row((cell,), tuple(Cell.gained(one[NEW], one["fedavg"]) for one in both)))
    columns = (f"after {rounds} rounds", f"after {_TIMES * rounds}")
    title = "what FedBN gains over FedAvg after more rounds, in percentage points"
    note = "Each interval holds for itself."
    return request.table(f"{request.name}-longer", title, columns, rows, note, ("cell",))


def _draw(request: Request, gains: Gains) -> tuple[Path, ...]:
    """Draw a panel a dial, a line a method that FedBN is compared with, intervals as bars."""
    dials = list(dict.fromkeys(dial for dial, _ in gains))
    with styled():
        figure, axes = panels(len(dials), "level", "FedBN gains (points)")
        known = looks((NEW, *OTHERS))
        for axis, dial in zip(axes, dials, strict=True):
            titled(axis, dial)
            for shift, other in enumerate(OTHERS):
                cells = [*gains[dial, other].values()]
                at = [level + 0.09 * (shift - 1.5) for level in range(1, 1 + len(cells))]
                draw_intervals(axis, at, cells, known[other])
        legend(figure, {_shown(other): known[other] for other in OTHERS})
        return saved(figure, request.folder / request.name, request.label)


def _shown(method: str) -> str:
    return "GroupNorm" if method == GROUPNORM else display_name(method)
