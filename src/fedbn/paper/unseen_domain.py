"""Clients of unseen domains (appendix "Transfer Learning and Testing on Unknown Domain Client").

Three states of a new client, for every method:

- `tested`: it takes what the federation has: the global model, with FedBN the mean of the clients'
  BatchNorm, affine and statistics;
- `own statistics`: the same, but mean and variance are computed on its own, unlabelled data;
- `joined`: from there it trains with the federation for some rounds; FedBN sends it the non-BN
  parameters and lets it learn its own BatchNorm.

The paper's table has FedBN with own statistics beside the global models of the other two.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from fedbn.core.federation import Client, Federation
from fedbn.core.rounds import initial_state
from fedbn.core.scoring import evaluate
from fedbn.experiments.configuration import checked
from fedbn.experiments.runner import Writer, run_plan
from fedbn.experiments.sources import load_federation
from fedbn.paper.items import Cell, Outcome, Request, Row, Table, options_of, refused
from fedbn.paper.numbers import trained_study
from fedbn.runs import checkpoints
from fedbn.runs.folder import folder_name
from fedbn.trained.joining import joining_plan, joining_state
from fedbn.trained.local_parts import Bench
from fedbn.trained.opening import jobs_of, open_run
from fedbn.trained.trained_run import Trained

TESTED, OWN, JOINED = "tested", "own statistics", "joined"
DEFAULTS: dict[str, Any] = {"join_rounds": 20, "new": {}}
Scores = dict[tuple[str, str], dict[str, list[float]]]
"""By state and method: accuracies in per cent of each new client, one a seed."""


def unseen_domain(request: Request) -> Outcome:
    """Train the federation, then bring the new clients."""
    options = options_of(request.options, DEFAULTS, counts=("join_rounds",))
    if not isinstance(new := options["new"], Mapping):
        raise refused("new", new, "legal is a table of options of morpho_mnist")
    raw = {"data": {"name": "morpho_mnist", **new}}
    newcomers = load_federation(checked(raw, "reproduce.options.new", request.held).data)
    request, study = trained_study(request)
    scores: Scores = defaultdict(lambda: defaultdict(list))
    for job in jobs_of(place := request.source or request.folder / "run"):
        trained = open_run(place, method=job.method, seed=job.seed, setting=job.setting)
        request.tell(f"{job.method} seed {job.seed}: testing on the new clients")
        for state, client, value in _scored(request, trained, newcomers, options["join_rounds"]):
            scores[state, job.method][client].append(value)
    tables = (_paper_table(request, scores), _whole_table(request, scores, options["join_rounds"]))
    return Outcome(tables, (), (*_remarks(scores), *newcomers.remarks, *study.remarks))


def join(trained: Trained, client: Client, rounds: int, place: Path, workers: int = 0) -> Trained:
    """Let a new client join a trained federation for some rounds, with checkpoints in a folder.

    Called again, it goes on from there.
    """
    plan = joining_plan(trained, client, rounds)
    place.mkdir(parents=True, exist_ok=True)
    known, _ = checkpoints.newest(place, initial_state(plan))
    start = known or joining_state(trained, client)
    state = run_plan(plan, Writer(place), start=start, workers=workers)
    return replace(trained, plan=plan, state=state, adapted={}, source=None, facts=None)


def _scored(
    request: Request, trained: Trained, newcomers: Federation, rounds: int
) -> Iterator[tuple[str, str, float]]:
    """Score every new client in every state."""
    bench, workers = Bench(trained), request.workers
    for client in newcomers.clients:
        bench.average()
        yield TESTED, client.name, _accuracy(bench.replica.model, client)
        bench.measure(client.train)
        yield OWN, client.name, _accuracy(bench.replica.model, client)
    for client in newcomers.clients:
        request.tell(f"{trained.plan.method.name}: {client.name} joins for {rounds} rounds")
        after = join(trained, client, rounds, _place(request, trained, client, rounds), workers)
        yield JOINED, client.name, _accuracy(after.model(client.name), client)


def _place(request: Request, trained: Trained, client: Client, rounds: int) -> Path:
    """A folder for a joining client; its rounds are in the name, so that others are not taken."""
    plan, first = trained.plan, trained.state.round + 1
    own = f"seed-{plan.seed}-rounds-{first}-{first + rounds - 1}"
    return request.folder / "joined" / folder_name(plan.method.name) / client.name / own


def _accuracy(model: nn.Module, client: Client) -> float:
    return 100 * evaluate(model, client.tests[client.domain]).metrics["accuracy"]


def _as_in_the_paper(method: str) -> str:
    """Which state of a new client the paper's table shows."""
    return OWN if method.partition("+")[0] in ("fedbn", "silobn") else TESTED


def _paper_table(request: Request, scores: Scores) -> Table:
    rows = [
        Row((method,), _cells(clients))
        for (state, method), clients in scores.items()
        if state == _as_in_the_paper(method)
    ]
    note = (
        "FedBN: averaged BN affine, own statistics; the others: the global model. Not compared "
        "with the paper's table (tab:ood): the new clients are made here, not Castro's files."
    )
    return _table(request, "", rows, note)


def _whole_table(request: Request, scores: Scores, rounds: int) -> Table:
    order = (TESTED, OWN, JOINED)
    found = sorted(scores.items(), key=lambda item: order.index(item[0][0]))
    rows = [Row(key, _cells(clients)) for key, clients in found]
    note = (
        "tested: the global model; with FedBN the mean of the clients' BN affine and statistics. "
        "own statistics: mean and variance from the new client's own data. joined: the new client "
        f"trains with the others for {rounds} more rounds, each new client on its own; the paper "
        "gives no number of rounds."
    )
    states = _table(request, ", in three states", rows, note)
    return replace(states, name=f"{request.name}-states", head=("state", "method"))


def _table(request: Request, more: str, rows: list[Row], note: str) -> Table:
    title = f"{request.name}: accuracy on new clients{more}, in per cent"
    columns = ("morpho-global", "morpho-local", "mean")
    return Table(request.name, title, columns, tuple(rows), f"{note} {request.label}.".strip())


def _cells(clients: Mapping[str, list[float]]) -> tuple[Cell, ...]:
    by_seed = [statistics.fmean(values) for values in zip(*clients.values(), strict=True)]
    return tuple(Cell.of(values) for values in (*clients.values(), by_seed))


def _remarks(scores: Scores) -> Iterator[str]:
    means = {key: _cells(clients)[-1].ours for key, clients in scores.items()}
    shown = {m: value for (s, m), value in means.items() if s == _as_in_the_paper(m)}
    ranked = sorted(shown.items(), key=lambda item: -item[1])
    yield "mean of both new clients, as the paper compares: " + ", ".join(
        f"{method} {value:.2f}" for method, value in ranked
    )
    for method in shown:
        gains = (means[state, method] - means[TESTED, method] for state in (OWN, JOINED))
        own, joined = (f"{gain:+.2f}" for gain in gains)
        yield f"{method}: own statistics change the mean by {own} points, joining by {joined}"
