"""Sentences about the kinds of BatchNorm statistics that the rows of a table are scored with."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from fedbn.core.metric import Metric
from fedbn.core.statistics_kinds import RUNNING
from fedbn.results.aggregate import (
    EQUAL,
    LOSS_SEEN,
    MEAN,
    Duel,
    Key,
    Report,
    Scores,
    ScoreTable,
)
from fedbn.text import counted, listed

_MEANINGS: dict[str, str] = {
    RUNNING: "the running statistics that the method leaves",
    "local": "the client's own running statistics, never averaged",
    "exact": "those of the client's own training data, computed without labels",
    "batch": "the mean over batches of the client's own training data, computed without labels",
}
_MOST = 6  # rows that a sentence names


def meanings(kinds: Iterable[str]) -> Iterator[str]:
    """Say what each kind of statistics is, where a table has several."""
    known = list(dict.fromkeys(kinds))
    if known != [RUNNING] and known:
        said = "; ".join(f"{kind}: {_MEANINGS[kind]}" for kind in known)
        yield f"BatchNorm statistics of the rows (same weights, same test samples): {said}"


def gain(duels: Iterable[Duel], metric: Metric) -> Iterator[str]:
    """Return what FedBN gains over FedAvg with each kind of statistics, if there are several."""
    means = {one.statistics: one.mean.mean for one in duels if one.mean is not None}
    if len(means) < 2 or RUNNING not in means:
        return
    numbers = {kind: f"{value:+{metric.form}}".replace("-", "−") for kind, value in means.items()}
    said = ", ".join(f"{number} with {kind} statistics" for kind, number in numbers.items())
    yield (
        f"FedBN compared with FedAvg, mean over clients in {metric.points}: {said}. The weights "
        "are the same each time; only the BatchNorm statistics of the scored models differ"
    )


def same_training(table: ScoreTable, report: Report) -> Iterator[str]:
    """Say that FedAvg and SiloBN trained the same shared weights, where the records agree with it.

    The running statistics never enter training. So both methods train the same weights, unless
    something else depends on the statistics: rejected updates, or the round at which patience ends.
    The training losses show whether it did.
    """
    found: dict[bool, list[str]] = {True: [], False: []}
    asked = 0
    for key in table.histories:
        other = key._replace(method="silobn")
        fedavg = key.method == "fedavg" and key.statistics == RUNNING
        if not fedavg or other not in table.histories:
            continue
        pairs = [
            (one, table.histories[other][seed])
            for seed, one in table.histories[key].items()
            if seed in table.histories[other]
        ]
        asked += 1
        losses = [[one.numbers.get(LOSS_SEEN) for one in pair] for pair in pairs]
        if pairs and all(first and first == second for first, second in losses):
            rounds = [[one.reported(report) for one in pair] for pair in pairs]
            found[all(first == second for first, second in rounds)].append(key.setting)
    both = "FedAvg and SiloBN train the same shared weights (their training losses are equal)"
    ends = {
        True: "they differ only in the statistics that they are evaluated with",
        False: "their reported rounds differ, because each is chosen with other statistics",
    }
    for same, settings in found.items():
        if settings:
            where = "" if len(settings) == asked else f" (settings: {listed(settings)})"
            yield f"{both}; {ends[same]}{where}"


def differences(keys: Sequence[Key], scores: Mapping[Key, Scores], metric: Metric) -> Iterator[str]:
    """Say which means differ from those with running statistics by more than seeds do.

    That is by more than the larger of both standard deviations over seeds. One seed has none, and
    cannot decide.
    """
    apart: dict[str, list[int]] = {}
    single: list[str] = []
    for key in keys:
        own = scores[key].get(MEAN, {})
        running = scores.get(key.running, {}).get(MEAN, {})
        both = [(own[seed], running[seed]) for seed in own if seed in running]
        if key.statistics == RUNNING or not both:
            continue
        sides = [*zip(*both, strict=True)]
        gap = statistics.fmean(sides[0]) - statistics.fmean(sides[1])
        number = f"{gap:+{metric.form}}".replace("-", "−")
        said = f"{key.label} {number}"
        if len(both) == 1:
            single += [said] if abs(gap) > EQUAL else []
        elif abs(gap) > max(EQUAL, *map(statistics.stdev, sides)):
            apart.setdefault(said, []).append(len(both))
    if apart:
        counts = {count for own in apart.values() for count in own}
        over = counted(counts.pop(), "seed") if len(counts) == 1 else "seeds"
        yield (
            "the mean differs from that with running statistics by more than the standard "
            f"deviation over {over}: {listed([*apart], _MOST)}"
        )
    if single:
        yield (
            f"the mean differs from that with running statistics: {listed(single, _MOST)}; one "
            "seed (n = 1) cannot decide whether that is more than chance"
        )


def fewer_seeds(table: ScoreTable, keys: Sequence[Key]) -> Iterator[str]:
    """Say which rows have fewer seeds than the same method with running statistics."""
    for key in keys:
        all_seeds, own = table.histories.get(key.running, {}), table.histories[key]
        if len(own) < len(all_seeds):
            seeds = listed([str(seed) for seed in own], _MOST)
            yield f"{key.label}: of {counted(len(all_seeds), 'seed')} only {seeds}"


def reasons(table: ScoreTable, report: Report, warnings: Iterable[str]) -> Iterator[str]:
    """Say why clients have no score with other than running statistics, as the run warned.

    Such a warning begins with the kind and the client: "exact statistics of CLIENT: ".
    """
    starts = {
        f"{key.statistics} statistics of {client}: ": client
        for key, seeds in table.histories.items()
        if key.statistics != RUNNING
        for history in seeds.values()
        for client in history.lacking(report)
    }
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for text in warnings:
        for start, client in starts.items():
            if text.startswith(start):
                kind = start.removesuffix(f" of {client}: ")
                found[kind, text.removeprefix(start)].append(client)
    for (kind, reason), clients in found.items():
        yield f"{kind} of {listed(clients)}: {reason}"
