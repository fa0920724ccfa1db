"""The sections on how training went: learning curves, gains by client, convergence."""

from __future__ import annotations

from collections.abc import Sequence

from fedbn.results.report.bars import gain_bars
from fedbn.results.report.lines import accuracy_range, loss_span, panel
from fedbn.results.report.parts import Beside, Figures, Part, Section, Text, remark, table
from fedbn.results.report.scores import MOST_LABELS, Scores
from fedbn.results.report.series import Duel, Gain, loss_curves, reached
from fedbn.results.report.words import points_said, spread
from fedbn.results.summary import MEAN

_MOST_PANELS, _MOST_BARS = 11, 30


def learning(scores: Scores) -> Section:
    """Learning curves, a panel a client."""
    curves = scores.curves
    names = [name for name in curves if name != MEAN]
    shown = [MEAN, *spread(names, _MOST_PANELS)] if MEAN in curves else spread(names, _MOST_PANELS)
    span = accuracy_range([c for name in shown for c in curves[name]])
    panels = tuple(
        panel("Mean of clients" if name == MEAN else name, curves[name], scores.looks, span)
        for name in shown
    )
    parts: list[Part] = [Figures(panels, scores.legend)] if panels else []
    if len(names) > _MOST_PANELS:
        parts.append(Text(f"{_MOST_PANELS} of {len(names):,} clients are drawn, evenly spread."))
    if len(scores.summary.rows) > len(scores.rows):
        parts.append(Text(f"The first {MOST_LABELS} of {len(scores.summary.rows)} rows are drawn."))
    lead = (
        "Test accuracy (%) after every scored round: the mean over seeds, shaded ± one standard "
        "deviation. Point at a round for its numbers."
    )
    return Section("learning", "Learning curves", lead, tuple(parts) or (_unscored(),))


def gains(scores: Scores) -> Section:
    """What each client gains by FedBN."""
    fight = scores.duel
    if fight is None:
        text = "Needs FedBN and FedAvg, scored for the same seed; this run does not have both."
        return Section("gain", "Gain by client", "", (remark(text),))
    kept = _some_gains(fight.gains)
    seeds = len({seed for gain in fight.gains for seed in gain.by_seed})
    lead = f"Accuracy with {fight.new} minus accuracy with {fight.old}, client by client."
    if seeds > 1:
        lead += " A circle is one seed, the line ± one standard deviation over seeds."
    rows = [[g.client, points_said(g.mean), _std(g)] for g in [*kept, *_mean(fight)]]
    header = ["client", "gain, points", "std"]
    numbers = table("In numbers", header, rows)
    parts: list[Part] = [Beside((Figures((gain_bars(fight, kept),)), numbers))]
    if len(kept) < len(fight.gains):
        half = _MOST_BARS // 2
        text = f"Of {len(fight.gains):,} clients, the {half} that gain least and the {half} most."
        parts.append(Text(text))
    return Section("gain", f"What clients gain by {fight.new}", lead, tuple(parts))


def _some_gains(gains: Sequence[Gain]) -> list[Gain]:
    if len(gains) <= _MOST_BARS:
        return list(gains)
    ordered = sorted(gains, key=lambda gain: gain.mean)
    return [*ordered[: _MOST_BARS // 2], *ordered[-(_MOST_BARS // 2) :]]


def _mean(fight: Duel) -> list[Gain]:
    return [Gain("mean of clients", fight.mean.by_seed)] if fight.mean else []


def _std(gain: Gain) -> str:
    return f"{gain.std:.1f}" if len(gain.by_seed) > 1 else "–"


def convergence(scores: Scores) -> Section:
    """How fast methods learn: the training loss, and rounds until accuracies."""
    panels = []
    for metric, name in (("loss", "after the round"), ("training_loss", "while training")):
        if curves := loss_curves(scores.run.records, scores.rows, metric):
            span, log = loss_span(curves)
            title = f"Training loss, {name}" + (" (log)" if log else "")
            panels.append(panel(title, curves, scores.looks, span, "loss", log=log))
    parts: list[Part] = [Figures(tuple(panels), scores.legend)] if panels else []
    parts += _rounds_until(scores)
    lead = (
        "The loss on the clients' training data, mean over clients and seeds: of each client's "
        "joined model once the server has combined the updates, and as clients see it while they "
        "train, when BatchNorm uses the statistics of the batch."
    )
    return Section("convergence", "Convergence", lead, tuple(parts) or (_unscored(),))


def _rounds_until(scores: Scores) -> list[Part]:
    curves = scores.curves.get(MEAN, [])
    if not curves:
        return []
    top = max(max(curve.mean) for curve in curves)
    levels = [level for level in (50, 60, 70, 80, 85, 90, 95, 98, 99) if level <= top][-5:]
    if not levels:
        return []
    found = [reached(curves, level) for level in levels]
    rows = [[c.label, *(_or_dash(at[c.label]) for at in found)] for c in curves]
    header = ["method", *(f"{level} %" for level in levels)]
    return [table("First round at a mean test accuracy of", header, rows)]


def _or_dash(round: int | None) -> str:
    return "–" if round is None else str(round)


def _unscored() -> Text:
    return remark("No round has been scored yet.")
