"""Where local BatchNorm helps: what FedBN gains over four others, by kind and strength of a shift.

The cells are jobs of ordinary runs below the item's folder, so a killed map goes on where it was.
"""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedbn.errors import ConfigError
from fedbn.experiments.configuration import changed
from fedbn.paper.items import Cell, Outcome, Request, Row, Table, options_of, refused
from fedbn.results import display_name
from fedbn.results.aggregate import MEAN, Records, ScoreTable
from fedbn.results.figures import legend, looks, panels, saved, styled, titled
from fedbn.runs.folder import write_atomically
from fedbn.text import counted

DEFAULTS: dict[str, Any] = {"participation": [], "longer": []}
NEW, GROUPNORM = "fedbn", "groupnorm"
OTHERS = ("fedavg", "silobn", "singleset", GROUPNORM)
_TIMES = 4
Scores = dict[tuple[str, str], dict[str, dict[int, float]]]
"""By dial and strength, by method, by seed: accuracy in per cent, the mean over domains."""


def shift_map(request: Request) -> Outcome:
    """Train all cells, then tabulate and draw what FedBN gains."""
    if request.source is not None:
        raise ConfigError(f"{request.name}: it is made of several runs; --from shows one")
    options = options_of(request.options, DEFAULTS)
    scores: Scores = defaultdict(dict)
    for raw, place in _runs(request, options["participation"]):
        transformed = raw["model"].get("transform") == GROUPNORM
        _gather(request.train(raw, Path(place)), scores, GROUPNORM if transformed else None)
    write_atomically(request.folder / f"{request.name}-scores.csv", _csv(scores))
    gains = {
        (dial, other): {
            strength: Cell.gained(own[NEW], own[other], family=len(scores))
            for (name, strength), own in scores.items()
            if name == dial
        }
        for dial in dict.fromkeys(dial for dial, _ in scores)
        for other in OTHERS
    }
    tables = (_dials(request, scores), _gains(request, gains), _accuracies(request, scores))
    remarks = [_longer(request, cell, scores) for cell in options["longer"]]
    return Outcome(tables, draw_gains(gains, request), tuple(remarks))


def _runs(request: Request, participation: list[float]) -> Iterator[tuple[dict[str, Any], str]]:
    """The configurations, and the folder of each."""
    base = {key: value for key, value in request.experiment.items() if key != "reproduce"}
    parts = {"run": base}
    if participation:
        sweep = {"training": {"participation": participation}}
        data = {**base["data"], "dial": "participation"}
        parts["participation"] = {**base, "data": data, "sweep": sweep}
    for place, raw in parts.items():
        yield raw, place
        model = {**raw["model"], "transform": GROUPNORM}
        yield {**raw, "methods": ["fedavg"], "model": model}, f"{place}-{GROUPNORM}"


def _gather(records: Records, scores: Scores, method: str | None = None) -> None:
    """Put a run's final accuracies in their places; `method` is what its one method is called."""
    for key, own in ScoreTable.of(records).by_domain().scores().items():
        parts = dict(part.split("=") for part in key.setting.split(","))
        dial = parts.get("dial", "participation")
        place = (dial, parts.get("strength") or parts["participation"])
        scores[place][method or key.method] = dict(own[MEAN])


def _dials(request: Request, scores: Scores) -> Table:
    """What FedBN gains by each dial: the mean over its strengths, seed by seed."""
    dials = dict.fromkeys(dial for dial, _ in scores)
    rows = []
    for dial in dials:
        own = [methods for (name, _), methods in scores.items() if name == dial]
        means = {
            m: {seed: sum(one[m][seed] for one in own) / len(own) for seed in own[0][m]}
            for m in (NEW, *OTHERS)
        }
        gains = [Cell.gained(means[NEW], means[other], family=len(dials)) for other in OTHERS]
        rows.append(Row((dial,), tuple(gains)))
    note = f"Intervals hold for all {len(dials)} dials at once (paired t, Bonferroni)."
    title = "what FedBN gains, the mean over strengths, in percentage points"
    columns = tuple(f"over {_shown(other)}" for other in OTHERS)
    return _table(request, "-dials", title, columns, rows, note, ("dial",))


def _gains(request: Request, gains: Mapping[tuple[str, str], Mapping[str, Cell]]) -> Table:
    count = sum(len(cells) for (_, other), cells in gains.items() if other == OTHERS[0])
    rows = [Row((dial, _shown(m)), tuple(cells.values())) for (dial, m), cells in gains.items()]
    note = (
        f"Intervals hold for all {count} cells of a comparison at once (paired t, Bonferroni). "
        "Of participation the levels are the shares of clients a round, 1.0 to 0.2."
    )
    columns = tuple(f"level {n}" for n in range(1, 1 + max(len(row.cells) for row in rows)))
    title = "what FedBN gains at each level, in percentage points"
    return _table(request, "", title, columns, rows, note, ("dial", "over"))


def _accuracies(request: Request, scores: Scores) -> Table:
    rows = [
        Row((dial, strength), tuple(Cell.of(own[m].values()) for m in (NEW, *OTHERS)))
        for (dial, strength), own in scores.items()
    ]
    columns = tuple(_shown(method) for method in (NEW, *OTHERS))
    title = "test accuracy in per cent, the mean over domains (standard deviation)"
    return _table(request, "-accuracy", title, columns, rows, "", ("dial", "strength"))


def _table(
    request: Request,
    end: str,
    title: str,
    columns: tuple[str, ...],
    rows: list[Row],
    note: str,
    head: tuple[str, ...],
) -> Table:
    seeds = counted(len(request.experiment["seeds"]), "seed") + "."
    said = " ".join(filter(None, [seeds, note, request.label and f"{request.label}."]))
    return Table(f"{request.name}{end}", f"{request.name}: {title}", columns, tuple(rows), said,
                 head, digits=1)  # fmt: skip


def _longer(request: Request, cell: str, scores: Scores) -> str:
    """Train a cell of FedBN and FedAvg four times as long, and say whether the sign is the same."""
    dial, _, strength = cell.partition(" ")
    if (dial, strength) not in scores:
        raise refused("longer", cell, f"legal are {', '.join(map(' '.join, scores))}")
    base = {key: v for key, v in request.experiment.items() if key != "reproduce"}
    base = {**base, "methods": [NEW, "fedavg"], "sweep": {}}
    rounds = base["training"]["rounds"]
    changes = {"data": {"dial": dial, "strength": float(strength)}}
    raw = changed(base, {**changes, "training": {"rounds": _TIMES * rounds}})
    records = request.train(raw, Path(f"longer-{dial}-{strength}"))
    found = {k.method: v[MEAN] for k, v in ScoreTable.of(records).by_domain().scores().items()}
    own = scores[dial, strength]
    before, after = (Cell.gained(m[NEW], m["fedavg"]) for m in (own, found))
    same = "the same sign" if before.ours * after.ours > 0 else "ANOTHER SIGN"
    return (
        f"{cell}: FedBN gains {_words(before)} over FedAvg after {rounds} rounds, {_words(after)} "
        f"after {_TIMES * rounds}: {same}"
    )


def _words(cell: Cell) -> str:
    if cell.interval is None:
        return f"{cell.ours:+.1f}"
    return f"{cell.ours:+.1f} ({cell.interval[0]:+.1f} to {cell.interval[1]:+.1f})"


def draw_gains(
    gains: Mapping[tuple[str, str], Mapping[str, Cell]], request: Request
) -> tuple[Path, ...]:
    """Draw a panel a dial, a line a method that FedBN is compared with, intervals as bars."""
    dials = list(dict.fromkeys(dial for dial, _ in gains))
    with styled():
        figure, axes = panels(len(dials), "level", "FedBN gains (points)")
        known = looks((NEW, *OTHERS))
        for axis, dial in zip(axes, dials, strict=True):
            titled(axis, dial)
            axis.axhline(0, color="black", lw=0.8)
            for shift, other in enumerate(OTHERS):
                cells = [*gains[dial, other].values()]
                ends = [cell.interval or (cell.ours, cell.ours) for cell in cells]
                axis.errorbar(
                    [level + 0.09 * (shift - 1.5) for level in range(1, 1 + len(cells))],
                    [cell.ours for cell in cells],
                    [
                        [cell.ours - low for cell, (low, _) in zip(cells, ends, strict=True)],
                        [high - cell.ours for cell, (_, high) in zip(cells, ends, strict=True)],
                    ],
                    markersize=3, capsize=1.5, elinewidth=0.7, lw=1, **known[other],
                )  # fmt: skip
        legend(figure, {_shown(other): known[other] for other in OTHERS})
        return saved(figure, request.folder / request.name, request.label)


def _shown(method: str) -> str:
    return "GroupNorm" if method == GROUPNORM else display_name(method)


def _csv(scores: Scores) -> bytes:
    """Every accuracy: one line a job."""
    content = io.StringIO()
    writer = csv.writer(content, lineterminator="\n")
    writer.writerow(["dial", "strength", "method", "seed", "accuracy"])
    for place, methods in scores.items():
        for method, seeds in methods.items():
            writer.writerows([*place, method, seed, f"{v:.4f}"] for seed, v in seeds.items())
    return content.getvalue().encode()
