"""Tables of a study: accuracy a method and domain, and what FedBN gains over FedAvg."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping

from fedbn.reproduction.item import Cell, Request, Row, Table
from fedbn.reproduction.study import Study

_DEFAULT, _MEAN = "default", "mean"
_BETTER, _BASE = "fedbn", "fedavg"
_GAIN = f"{_BETTER} − {_BASE}"


def tables(request: Request, study: Study) -> Iterator[Table]:
    """Make the table of accuracies and, where both were trained, that of gains."""
    domains = dict.fromkeys(d for own in study.scores.values() for d in own if d != _MEAN)
    columns, note = (*domains, _MEAN), _note(request, study)
    several = any(setting != _DEFAULT for _, setting in study.scores)
    head = ("setting", "method") if several else ("method",)
    rows = [
        _row(several, method, setting, [_cell(study, method, setting, c) for c in columns])
        for method, setting in _ordered(study)
    ]
    title = f"{request.name}: test accuracy in per cent, mean (standard deviation)"
    yield Table(request.name, title, columns, tuple(rows), note, head)
    gains = [
        _row(several, _GAIN, setting, [_gain(study, setting, c) for c in columns])
        for setting in dict.fromkeys(setting for _, setting in study.scores)
        if {(_BETTER, setting), (_BASE, setting)} <= study.scores.keys()
    ]
    if gains:
        title = f"{request.name}: what FedBN gains over FedAvg, in percentage points"
        yield Table(f"{request.name}-gain", title, columns, tuple(gains), note, head)


def _ordered(study: Study) -> list[tuple[str, str]]:
    """Setting by setting, so that methods stand beside each other."""
    named = list(dict.fromkeys(setting for _, setting in study.scores))
    return sorted(study.scores, key=lambda key: named.index(key[1]))


def _row(several: bool, method: str, setting: str, cells: list[Cell | None]) -> Row:
    return Row((setting, method) if several else (method,), tuple(cells))


def _cell(study: Study, method: str, setting: str, column: str) -> Cell | None:
    seeds = study.scores[method, setting].get(column)
    if not seeds:
        return None
    paper = study.paper(method, setting, column)
    return Cell(*_spread(list(seeds.values())), *(paper or ()))


def _gain(study: Study, setting: str, column: str) -> Cell | None:
    """The mean over seeds of what one gains over the other, seed by seed."""
    ours, base = (study.scores[m, setting].get(column, {}) for m in (_BETTER, _BASE))
    both = [ours[seed] - base[seed] for seed in ours if seed in base]
    if not both:
        return None
    papers = [study.paper(m, setting, column) for m in (_BETTER, _BASE)]
    theirs = papers[0].mean - papers[1].mean if papers[0] and papers[1] else None
    return Cell(*_spread(both), theirs)


def _spread(values: list[float]) -> tuple[float, float | None]:
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def _note(request: Request, study: Study) -> str:
    seeds = len(study.experiment.seeds)
    best = study.experiment.evaluation.report == "best"
    which = "Best round by validation" if best else "Last round"
    parts = [f"{request.label}.", f"{which}, {_counted(seeds, 'seed')}."]
    if study.papers and not any(paper_means(study, setting) for _, setting in study.scores):
        return " ".join([*parts, "No number of the paper's has these settings: no comparison."])
    for paper in study.papers:
        parts.append(f"Paper: {paper.label}" + (f" ({paper.note})." if paper.note else "."))
    if study.stand_ins and study.papers:
        parts.append(f"Stand-in data, not compared: {', '.join(study.stand_ins)}.")
    return " ".join(parts)


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def paper_means(study: Study, setting: str = _DEFAULT) -> Mapping[str, Mapping[str, float]]:
    """The paper's means that may be drawn beside ours, by method and domain."""
    found: dict[str, dict[str, float]] = {}
    for (method, own), domains in study.scores.items():
        for domain in domains:
            number = study.paper(method, own, domain) if own == setting else None
            if number:
                found.setdefault(method, {})[domain] = number.mean
    return found
