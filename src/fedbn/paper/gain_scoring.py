"""Scores of the same weights with different BatchNorm statistics, for one seed of one data set.

FedAvg and FedBN are trained once. BatchNorm in training mode normalises with the batch, so running
statistics never enter the training. One training therefore gives the running averages of every
window, averaged over the clients or kept at each of them.

A score belongs to weights and statistics. These are the words for them, in records and tables:

| weights | |
|---|---|
| fedavg, fedbn | the model that the method delivers |
| fedavg, tuned affine | FedAvg's, with the affine part of BatchNorm trained on at each client |
| fedbn, mean affine | FedBN's, with the mean of the clients' affine parts |
| fedavg, before averaging; fedbn, before averaging | each client's model as it is sent |

| statistics | |
|---|---|
| running | the running averages that the method leaves |
| running, variance between added | the same, with the variance between the clients' means |
| averaged window M | running averages of momentum M, averaged each round, as FedAvg does |
| local window M | the same, kept at the client; M = all: every batch counts the same |
| local | local window of the model's own momentum, as SiloBN keeps it |
| exact | of the client's own training data, layer by layer, without labels |
| pooled | the same, of the training data of all clients together |
| averaged exact | the mean over clients of their exact statistics |
| averaged exact, variance between added | the same, with the variance between the clients' means |
| batches of B | one pass over the client's data in batches of B, all counted equally (PreciseBN) |
| collected again | running averages over the client's data, the weights no longer moving |
| another client | exact statistics of each other client's data, the mean of their scores |
| N samples | exact statistics of N of the client's samples, the mean over a few choices of them |
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from fedbn.core.bn_statistics import average_statistics, estimate_statistics, tracked_norms
from fedbn.core.engine import Pool, one_torch_thread
from fedbn.core.federation import AnySplit, Client, concatenated
from fedbn.core.local_training import ClientWork, batches, local_train
from fedbn.core.packing import Pack
from fedbn.core.plan import Plan
from fedbn.core.randomness import generator
from fedbn.core.replica import Replica
from fedbn.core.rounds import (
    Outcome,
    RunState,
    Update,
    initial_state,
    run_round,
    train_client,
)
from fedbn.core.scoring import Score, evaluate_part, parts, scored
from fedbn.core.state import Kind, State, kinds
from fedbn.errors import FedbnError
from fedbn.trained.local_parts import Layers, layers_of

RUNNING, LOCAL, EXACT, POOLED = "running", "local", "exact", "pooled"
AVERAGED, BETWEEN = "averaged exact", ", variance between added"
AGAIN, OTHER = "collected again", "another client"
TUNED, MEAN_AFFINE, BEFORE = ", tuned affine", ", mean affine", ", before averaging"
FEDAVG, FEDBN = "fedavg", "fedbn"
WINDOWS: dict[str, float | None] = {"0.01": 0.01, "0.1": 0.1, "0.5": 0.5, "all": None}
"""Momenta; None counts all batches since the start equally."""
BATCHES, DOSES = (8, 32, 128), (8, 32, 128)
_CHUNK = 4096  # samples in one go: all of them, so that exact statistics take one pass
_CHOICES = 3  # of N samples
_AGAIN = 50  # batches, after which half a per cent of where a window of 0.1 began is left


@dataclass
class Found:
    """What one seed came to.

    `scores` are in the metric's unit, by weights and statistics; `losses` are training losses by
    method, statistics and round. Both have one number per client.
    """

    scores: dict[str, dict[str, list[float]]]
    losses: dict[str, dict[str, dict[int, list[float]]]]


class BatchMoments:
    """Mean and variance of each batch that a model's BatchNorm layers see in training mode."""

    def __init__(self, model: nn.Module):
        self._seen: list[list[Tensor]] = []
        for number, layer in enumerate(tracked_norms(model)):
            self._seen.append([])
            layer.register_forward_pre_hook(partial(self._see, number))

    def _see(self, number: int, layer: nn.Module, given: tuple[Any, ...]) -> None:
        if layer.training:
            x = given[0].detach()
            var, mean = torch.var_mean(x, [d for d in range(x.dim()) if d != 1])
            self._seen[number].append(torch.stack([mean, var]))

    def take(self) -> list[Tensor]:
        """Take what was seen since the last time, one (batches, 2, channels) per layer."""
        taken = [torch.stack(seen).double() for seen in self._seen]
        for seen in self._seen:
            seen.clear()
        return taken


@dataclass(frozen=True)
class Track:
    """Running averages of every layer, (2, channels) each, after so many batches."""

    layers: Sequence[Tensor]
    count: int = 0

    def after(self, seen: Sequence[Tensor], momentum: float | None) -> Track:
        """Move on by some batches, as BatchNorm of that momentum does.

        Examples:
            >>> start = Track([torch.tensor([[0.0], [1.0]])])
            >>> seen = [torch.tensor([[[4.0], [1.0]], [[8.0], [3.0]]])]
            >>> start.after(seen, 0.5).layers[0].flatten().tolist()
            [5.0, 2.0]
            >>> start.after(seen, None).layers[0].flatten().tolist()
            [6.0, 2.0]
        """
        steps = len(seen[0])
        whole = self.count + steps
        if momentum is None:
            kept, weights = self.count / whole, torch.full((steps,), 1 / whole)
        else:
            kept = (1 - momentum) ** steps
            weights = momentum * (1 - momentum) ** torch.arange(steps - 1, -1, -1)
        moved = [
            kept * old + torch.tensordot(weights.to(new.dtype), new, dims=1)
            for old, new in zip(self.layers, seen, strict=True)
        ]
        return Track(moved, whole)

    def statistics(self) -> Layers:
        """Mean and variance of each layer."""
        return [(layer[0].float(), layer[1].float()) for layer in self.layers]


def mean_track(tracks: Sequence[Track], weights: Sequence[float]) -> Track:
    """Average over clients, as FedAvg averages running statistics."""
    layers = zip(*(track.layers for track in tracks), strict=True)
    averaged = [weighted([*each], weights) for each in layers]
    return Track(averaged, max(track.count for track in tracks))


def weighted(values: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Take the weighted mean of tensors."""
    total = torch.stack([w * value for w, value in zip(weights, values, strict=True)]).sum(dim=0)
    return total / sum(weights)


def averaged(found: Sequence[Layers], weights: Sequence[float], between: bool = False) -> Layers:
    """Average the statistics of several clients layer by layer.

    The mean of the variances leaves out the variance `between` the clients' means; with it, the
    result is the variance of the clients' mixture.

    Examples:
        >>> a, b = ([(torch.tensor([mean]), torch.tensor([1.0]))] for mean in (0.0, 4.0))
        >>> [float(averaged([a, b], [1, 1], between)[0][1]) for between in (False, True)]
        [1.0, 5.0]
    """
    layers: list[tuple[Tensor, Tensor]] = []
    for each in zip(*found, strict=True):
        mean = weighted([mean for mean, _ in each], weights)
        var = weighted([var for _, var in each], weights)
        if between:
            var = var + weighted([(own - mean).square() for own, _ in each], weights)
        layers.append((mean, var))
    return layers


def put(model: nn.Module, layers: Layers) -> None:
    """Give a model's BatchNorm layers these statistics."""
    for norm, values in zip(tracked_norms(model), layers, strict=True):
        state = norm.state_dict()
        for name, value in zip(("running_mean", "running_var"), values, strict=True):
            state[name].copy_(value)


@dataclass
class Tracks:
    """The running averages of every window, while a method trains."""

    clients: Sequence[str]
    weights: Sequence[float]
    averaged: dict[str, Track] = field(default_factory=dict)
    local: dict[str, dict[str, Track]] = field(default_factory=dict)  # by window, by client

    def begin(self, model: nn.Module) -> None:
        """Begin every window where the model begins."""
        start = Track([torch.stack(each).double() for each in layers_of(model)])
        for name in WINDOWS:
            self.averaged[name] = start
            self.local[name] = dict.fromkeys(self.clients, start)

    def advance(self, seen: Mapping[str, Sequence[Tensor]]) -> None:
        """Take over what the batches of one round were."""
        for name, momentum in WINDOWS.items():
            own, common = self.local[name], self.averaged[name]
            ends = [common.after(seen[client], momentum) for client in self.clients]
            self.averaged[name] = mean_track(ends, self.weights)
            self.local[name] = {c: own[c].after(seen[c], momentum) for c in self.clients}


@dataclass
class Trained:
    """A method's training: the state at its end, and what led there."""

    plan: Plan
    replica: Replica
    moments: BatchMoments
    tracks: Tracks
    state: RunState
    sent: dict[str, Update] = field(default_factory=dict)  # in the last round
    losses: dict[str, dict[int, list[float]]] = field(default_factory=lambda: defaultdict(dict))


def train(plan: Plan, points: int) -> Trained:
    """Train a method, and look at the training loss of the averaged models at some rounds."""
    clients = plan.federation.clients
    replica = Replica(plan.initial_model, plan.method)
    tracks = Tracks([client.name for client in clients], plan.weights(clients))
    tracks.begin(replica.model)
    run = Trained(plan, replica, BatchMoments(replica.model), tracks, initial_state(plan))
    rounds = plan.training.rounds
    looked_at = {round(rounds * point / points) for point in range(1, points + 1)} - {0}
    # In a thread of its own a client's training does not see Ctrl-C, which ends the command.
    with closing(Pool([replica])) as pool:
        for number in range(1, rounds + 1):
            seen: dict[str, list[Tensor]] = {}
            result = run_round(plan, run.state, partial(_train_clients, run, seen, pool))
            run.state = result.state
            if result.rejected:
                first = next(iter(result.rejected.values()))
                raise FedbnError(f"round {number}: the update of {first.client}: {first.reason}")
            tracks.advance(seen)
            if number in looked_at:
                run.losses["seen"][number] = [
                    result.accepted[client.name].loss for client in clients
                ]
                bench = Bench(run)
                for statistics in (RUNNING, EXACT, POOLED):
                    run.losses[statistics][number] = bench.training_losses(statistics)
    return run


def _train_clients(
    run: Trained,
    seen: dict[str, list[Tensor]],
    pool: Pool[Replica],
    chosen: Sequence[Client],
    state: RunState,
) -> Iterator[Outcome]:
    def train_one(replica: Replica, client: Client) -> Outcome:
        outcome = train_client(run.plan, replica, client, state)
        seen[client.name] = run.moments.take()
        if isinstance(outcome, Update):
            run.sent[client.name] = outcome
        return outcome

    return pool.ordered(train_one, chosen)


class Bench:
    """A trained method's model, in which weights and statistics are put together and scored."""

    def __init__(self, run: Trained):
        self.run, self.plan, self.model = run, run.plan, run.replica.model
        self.clients = run.plan.federation.clients
        self.method = run.plan.method.name
        self.weights = run.plan.weights(self.clients)
        self._pooled: AnySplit = concatenated([client.train for client in self.clients])
        self._kept: dict[tuple[str, str, str], Layers] = {}
        self._affine: dict[str, dict[str, State]] = {}

    def become(self, weights: str, client: Client) -> None:
        """Give the model a client's weights; its statistics are those that come with them."""
        state, sent = self.run.state, self.run.sent.get(client.name)
        if weights.endswith(BEFORE) and sent is not None:
            self.run.replica.load(sent.shared, sent.local)
            return
        self.run.replica.load(state.shared, state.local[client.name])
        for name, value in self._affine_of(weights).get(client.name, {}).items():
            self.run.replica.tensors[name].data.copy_(value)

    def _affine_of(self, weights: str) -> Mapping[str, State]:
        if weights.endswith(MEAN_AFFINE) and weights not in self._affine:
            packs: list[Pack] = [self.run.state.local[c.name] for c in self.clients]
            names = [n for n in self._names(Kind.BN_AFFINE) if n in packs[0].state]
            mean = {n: torch.stack([p.state[n] for p in packs]).mean(dim=0) for n in names}
            self._affine[weights] = {client.name: mean for client in self.clients}
        return self._affine.get(weights, {})

    def _names(self, *wanted: Kind) -> list[str]:
        return [name for name, kind in kinds(self.model).items() if kind in wanted]

    def tune(self) -> None:
        """Train the affine part of BatchNorm alone at each client, for as long as the run was."""
        weights, plan = self.method + TUNED, self.plan
        changed = self._names(Kind.BN_AFFINE, Kind.BN_STATISTIC)
        found: dict[str, State] = {}
        for client in self.clients:
            self.become(self.method, client)
            tensors = self.run.replica.tensors
            work = ClientWork(
                self.model,
                client.train,
                plan.training.in_round(plan.training.rounds),
                plan.training.rounds * plan.steps(client),
                generator(plan.seed, "order affine", client=client.name),
                only={id(tensors[name]) for name in changed},
                loss=plan.loss(client),
            )
            local_train(work)
            affine = self._names(Kind.BN_AFFINE)
            found[client.name] = {name: tensors[name].detach().clone() for name in affine}
        self.run.moments.take()
        self._affine[weights] = found

    def exact(self, weights: str, client: Client, source: str) -> Layers:
        """The exact statistics of a client's data, or of all (`POOLED`), for a client's weights."""
        alike = weights in (FEDAVG, FEDBN + MEAN_AFFINE)  # every client has the same weights
        key = (weights, "" if alike else client.name, source)
        if key not in self._kept:
            self.become(weights, client)
            self._kept[key] = self._estimated(self._data(source))
        return self._kept[key]

    def _data(self, source: str) -> AnySplit:
        return next((c.train for c in self.clients if c.name == source), self._pooled)

    def _estimated(self, data: AnySplit) -> Layers:
        estimate_statistics(self.model, data, chunk=_CHUNK)
        return layers_of(self.model)

    def collected(self, data: AnySplit, order: Sequence[Tensor]) -> list[Tensor]:
        """Pass batches in training mode through the model, whose weights do not move."""
        self.model.eval()
        for norm in tracked_norms(self.model):
            norm.train()
        with torch.no_grad():
            for x, _ in data.stream(order):
                self.model(x)
        self.model.eval()
        return self.run.moments.take()

    def scored(self, weights: str, client: Client, statistics: Layers | None) -> float:
        """Score a client's test data; the statistics are those of the weights unless given."""
        metric = self.plan.task.metrics[0]
        score = self._score(weights, client, statistics, client.tests[client.domain])
        return metric.scale * score.metrics[metric.name]

    def training_losses(self, statistics: str) -> list[float]:
        """The mean loss on each client's training data."""
        losses = []
        for client in self.clients:
            source = POOLED if statistics == POOLED else client.name
            layers = None
            if statistics != RUNNING:
                layers = self.exact(self.method, client, source)
            losses.append(self._score(self.method, client, layers, client.train).loss)
        return losses

    def _score(
        self, weights: str, client: Client, statistics: Layers | None, data: AnySplit
    ) -> Score:
        self.become(weights, client)
        if statistics is not None:
            put(self.model, statistics)
        task, loss = self.plan.task, self.plan.loss(client)
        found = [evaluate_part(self.model, data, part, task, loss) for part in parts(data)]
        return scored(task, data, found)


Way = Callable[[Client], float]
"""How a client is scored with certain weights and statistics."""


def _ways(bench: Bench) -> Iterator[tuple[str, str, Way]]:
    """All weights and statistics that a method's run is scored with."""
    method, before = bench.method, bench.method + BEFORE
    tracks, seed = bench.run.tracks, bench.plan.seed

    def exact(weights: str, client: Client, source: str = "") -> float:
        layers = bench.exact(weights, client, source or client.name)
        return bench.scored(weights, client, layers)

    def local(weights: str, window: str, client: Client) -> float:
        return bench.scored(weights, client, tracks.local[window][client.name].statistics())

    def common(layers: Layers, client: Client) -> float:
        return bench.scored(method, client, layers)

    def in_batches(size: int, client: Client) -> float:
        draws = generator(seed, f"batches of {size}", client=client.name)
        order = torch.randperm(len(client.train), generator=draws)
        bench.become(method, client)
        average_statistics(bench.model, client.train.plain().take(order), size)
        bench.run.moments.take()
        return bench.scored(method, client, layers_of(bench.model))

    def again(client: Client) -> float:
        draws = generator(seed, AGAIN, client=client.name)
        sizes = bench.plan.training.sizes(len(client.train))
        steps = max(_AGAIN, bench.plan.steps(client))
        bench.become(method, client)
        order = [*batches(len(client.train), sizes, steps, draws)]
        seen = bench.collected(client.train, order)
        moved = tracks.local[_OWN][client.name].after(seen, WINDOWS[_OWN])
        return bench.scored(method, client, moved.statistics())

    def other(client: Client) -> float:
        names = [one.name for one in bench.clients if one is not client]
        return fmean(exact(method, client, name) for name in names)

    def dose(samples: int, client: Client) -> float:
        if samples >= len(client.train):
            return exact(method, client)
        found = []
        for choice in range(_CHOICES):
            draws = generator(seed, f"{samples} samples", choice, client.name)
            some = torch.randperm(len(client.train), generator=draws)[:samples]
            bench.become(method, client)
            layers = bench._estimated(client.train.take(some))
            found.append(bench.scored(method, client, layers))
        return fmean(found)

    yield method, RUNNING, lambda client: bench.scored(method, client, None)
    yield method, EXACT, partial(exact, method)
    yield method, POOLED, lambda client: exact(method, client, POOLED)
    for window in WINDOWS:
        yield method, f"local window {window}", partial(local, method, window)
    yield method, LOCAL, partial(local, method, _OWN)
    for size in BATCHES:
        yield method, f"batches of {size}", partial(in_batches, size)
    yield method, AGAIN, again
    yield before, LOCAL, partial(local, before, _OWN)
    yield before, EXACT, partial(exact, before)
    yield method, OTHER, other
    for samples in DOSES:
        yield method, f"{samples} samples", partial(dose, samples)
    affine = method + (TUNED if method == FEDAVG else MEAN_AFFINE)
    yield affine, EXACT, partial(exact, affine)
    yield affine, POOLED, lambda client: exact(affine, client, POOLED)
    if method == FEDAVG:
        for window, track in tracks.averaged.items():
            yield method, f"averaged window {window}", partial(common, track.statistics())
        received = []
        for client in bench.clients:
            bench.become(before, client)
            received.append(layers_of(bench.model))
        own = [bench.exact(method, client, client.name) for client in bench.clients]
        yield method, RUNNING + BETWEEN, partial(common, averaged(received, bench.weights, True))
        yield method, AVERAGED, partial(common, averaged(own, bench.weights))
        yield method, AVERAGED + BETWEEN, partial(common, averaged(own, bench.weights, True))


_OWN = "0.1"  # the momentum of torch's BatchNorm, which every shipped model has


@one_torch_thread()
def measure(plans: Sequence[Plan], loss_points: int) -> Found:
    """Train FedAvg and FedBN, and score both with all statistics."""
    found = Found(defaultdict(dict), {})
    for plan in plans:
        run = train(plan, loss_points)
        bench = Bench(run)
        if bench.method == FEDAVG:
            bench.tune()
        for weights, statistics, way in _ways(bench):
            found.scores[weights][statistics] = [way(client) for client in bench.clients]
        found.losses[bench.method] = dict(run.losses)
    return found
