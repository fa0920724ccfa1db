"""A method is a value: what is shared, by which rules clients train, how the server combines.

Every method of the paper (section 5) is one `Method`; every engine runs it from this value alone.
A penalty is the rule that only adds a term to the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from fedbn.core.aggregation import (
    Aggregation,
    Aggregator,
    ClientUpdate,
    Mean,
    ServerOptimizer,
)
from fedbn.core.packing import Pack
from fedbn.core.rule import (
    ROUNDS,
    ClientRound,
    LocalTraining,
    Memories,
    Memory,
    ModelParts,
    Place,
    Rule,
    ServerRound,
    Trained,
    declared,
    word_of,
)
from fedbn.core.selectors import BATCHNORM, Selector, everything, local
from fedbn.core.state import Entry, Kind, State
from fedbn.errors import ConfigError, ModelError


@runtime_checkable
class Penalty(Protocol):
    """A term of the local loss, over the shared trainable entries and their anchors.

    The anchor of an entry is the value received at the start of the round.
    """

    @property
    def label(self) -> str:
        """The penalty as one writes it on the command line."""

    def value(self, current: Sequence[Tensor], anchor: Sequence[Tensor]) -> Tensor:
        """The term itself; differentiable in `current`."""


@dataclass(frozen=True)
class PenaltyRule(Rule):
    """The rule that only adds a penalty to the loss."""

    penalty: Penalty

    @property
    def label(self) -> str:
        """As on the command line."""
        return self.penalty.label

    def round(self, client: ClientRound, train: LocalTraining) -> Trained:
        """Train with the term."""
        current, anchor = client.trained, client.anchor
        return train(term=lambda *_: self.penalty.value(current, anchor))


@dataclass(frozen=True)
class Proximal(Rule):
    r"""FedProx's term (Li et al. 2018): \(\frac{\mu}{2} \lVert w - w_{received} \rVert^2\).

    Examples:
        >>> w, received = torch.tensor([3.0, 1.0]), torch.tensor([1.0, 1.0])
        >>> Proximal(0.5).value([w], [received])
        tensor(1.)
    """

    mu: float
    word = "prox"

    def value(self, current: Sequence[Tensor], anchor: Sequence[Tensor]) -> Tensor:
        """The term itself."""
        terms = [(w - a).square().sum() for w, a in zip(current, anchor, strict=True)]
        return torch.stack(terms).sum() * (self.mu / 2)

    def round(self, client: ClientRound, train: LocalTraining) -> Trained:
        """Train towards what was received; the term's gradient needs no graph."""
        return train(change=ProximalGradient(self.mu, client.trained, client.anchor))


@dataclass(frozen=True)
class ProximalGradient:
    """The gradient of the proximal term, added to the gradients of the loss."""

    mu: float
    current: Sequence[Tensor]
    anchor: Sequence[Tensor]

    @torch.no_grad()
    def __call__(self) -> None:
        """Add mu (w − w_received) in two passes over the gradients."""
        for weight, received in zip(self.current, self.anchor, strict=True):
            if weight.grad is not None:
                weight.grad.add_(weight, alpha=self.mu).sub_(received, alpha=self.mu)


def proximal(mu: float = 0.01) -> Proximal:
    """Build FedProx's term; mu is 0.01 unless said, the paper's value for images."""
    if not 0 <= mu < float("inf"):
        raise ConfigError(f"mu = {mu!r} of the proximal term: legal are finite numbers >= 0")
    return Proximal(float(mu))


class Baseline(Protocol):
    """A model of another library that each client fits to its own data alone, without rounds."""

    def fit(self, x: Tensor, y: Tensor, outputs: int, seed: int) -> Callable[[Tensor], Tensor]:
        """Fit a client's training samples.

        Args:
            x: The samples, (n, columns).
            y: Their targets: classes, labels or numbers.
            outputs: The number of classes, labels or numbers.
            seed: Decides all that is random; smaller than 2**32.

        Returns:
            The function that gives the outputs of samples, as a network does.
        """


@dataclass(frozen=True)
class Method:
    """A federated method.

    Attributes:
        name: What it is called in tables and folders; parts added with `|` extend it.
        share: Which entries are exchanged.
        rules: What clients and the server do beside; the first wraps the second, and so on.
        aggregator: How the server combines what was shared.
        server: The server's optimiser, or None to take the combined value as it is.
        pooled: Whether all data is brought together and trained on as one client.
        baseline: What each client fits alone in place of a network; None for a federated method.

    Examples:
        >>> from fedbn.core.method import proximal
        >>> (Method("mine") | proximal(0.1)).name
        'mine+prox(0.1)'
    """

    name: str
    share: Selector = field(default_factory=everything)
    rules: tuple[Rule, ...] = ()
    aggregator: Aggregator = field(default_factory=Mean)
    server: ServerOptimizer | None = None
    pooled: bool = False
    baseline: Baseline | None = None

    def __or__(self, part: Part) -> Method:
        """Add a part: a rule, an aggregator, a server optimiser, a selector, or another method."""
        if isinstance(part, Method):
            return self._with(part)
        if not isinstance(part, Part):
            raise ConfigError(
                f"a {type(part).__name__} cannot be added to {self.name}: legal are penalties, "
                "rules, aggregators, server optimisers, selectors and methods, as in "
                "fedbn() | proximal(0.01)"
            )
        named = replace(self, name=f"{self.name}+{part.label}")
        self._check_no_baseline(named.name, self)
        if isinstance(part, Selector):
            return replace(named, share=self.share | part)
        if isinstance(part, ServerOptimizer):
            self._check_single(named.name, part, Mean())
            return replace(named, server=part)
        if isinstance(part, Aggregator):
            self._check_single(named.name, None, part)
            return replace(named, aggregator=part)
        rule = part if isinstance(part, Rule) else PenaltyRule(part)
        return replace(named, rules=(*self.rules, rule))

    def _with(self, other: Method) -> Method:
        """Keep local what either keeps, follow the rules of both."""
        name = f"{self.name}+{other.name}"
        self._check_no_baseline(name, self, other)
        if self.pooled or other.pooled:
            raise ConfigError(f"{name}: one of them brings all data together; use it alone")
        self._check_single(name, other.server, other.aggregator)
        return replace(
            self,
            name=name,
            share=self.share | other.share,
            rules=self.rules + other.rules,
            aggregator=self.aggregator if other.aggregator == Mean() else other.aggregator,
            server=self.server or other.server,
        )

    def _check_no_baseline(self, name: str, *parts: Method) -> None:
        if found := next((part.name for part in parts if part.baseline is not None), None):
            raise ConfigError(
                f"{name}: {found} is a baseline, which each client fits alone, so nothing can be "
                "added to it; use it as a method of its own"
            )

    def _check_single(
        self, name: str, server: ServerOptimizer | None, aggregator: Aggregator
    ) -> None:
        if self.server and server:
            raise ConfigError(f"{name}: each has an optimiser at the server; choose one")
        if Mean() not in (self.aggregator, aggregator):
            raise ConfigError(f"{name}: each combines updates in its own way; choose one")

    def parts(self, entries: Sequence[Entry]) -> ModelParts:
        """Divide a model's entries, tensors of several names once."""
        shared, local = (self._picked(entries, shared) for shared in (True, False))
        return ModelParts(*(tuple(e for e in p if e.alias_of is None) for p in (shared, local)))

    def memories(self, entries: Sequence[Entry]) -> dict[str, Memory]:
        """What the rules declare for a model, by the full names of the entries."""
        return declared(self.rules, self.parts(entries)) if self.rules else {}

    def used_memories(self, entries: Sequence[Entry]) -> dict[str, Memory]:
        """What clients are scored and used with in place of the joined model's entries."""
        names = tuple(f"{word_of(rule)}.{rule.used}/" for rule in self.rules if rule.used)
        found = self.memories(entries) if names else {}
        return {name: memory for name, memory in found.items() if name.startswith(names)}

    def remembered(self, entries: Sequence[Entry], place: Place) -> tuple[Entry, ...]:
        """The entries that rules declare in one place; if local and late, a count of rounds too."""
        chosen = {n: m for n, m in self.memories(entries).items() if m.place == place}
        own = [replace(m.like, name=n, kind=Kind.RULE, trainable=False) for n, m in chosen.items()]
        return (ROUNDS, *own) if any(m.begins_late for m in chosen.values()) else tuple(own)

    def shared(self, entries: Sequence[Entry]) -> tuple[Entry, ...]:
        """Pick the entries that are exchanged, those of rules last."""
        return (*self._picked(entries, shared=True), *self.remembered(entries, "shared"))

    def local(self, entries: Sequence[Entry]) -> tuple[Entry, ...]:
        """Pick the entries that stay with the client, those of rules last."""
        return (*self._picked(entries, shared=False), *self.remembered(entries, "local"))

    def _picked(self, entries: Sequence[Entry], shared: bool) -> tuple[Entry, ...]:
        """A tensor of several names stays local when one of its names does."""
        kept = {entry.alias_of or entry.name for entry in entries if not self.share(entry)}
        return tuple(e for e in entries if ((e.alias_of or e.name) not in kept) == shared)

    def check(self, entries: Sequence[Entry], allow_no_batchnorm: bool = False) -> None:
        """Refuse a model in which there is nothing of what this method keeps local.

        Without this, FedBN on a model without BatchNorm is FedAvg under another name.
        """
        if not entries:
            return
        self.share.check(entries)
        if self.share.local_names and not self._picked(entries, shared=True):
            raise ModelError(f"{self.name} keeps all of this model local: choose 'singleset'")
        if self.share.shared_names and not self._picked(entries, shared=False):
            raise ModelError(f"{self.name} shares all of this model: choose 'fedavg'")
        if allow_no_batchnorm or not (self.share.local_kinds or self.share.local_names):
            return
        if not self._picked(entries, shared=False):
            kept = ", ".join([*sorted(self.share.local_kinds), *self.share.local_names])
            norms = [w for w in ("norm", "instance") if not all(map(local(w), entries))]
            others = ", ".join([*norms, *map(repr, self._lookalikes(entries))])
            raise ModelError(
                f"{self.name} keeps {kept} local, but the model has no such entry, so it would "
                "silently be FedAvg. Add BatchNorm to the model, choose 'fedavg', "
                + (f"add +local({others}) for its other norms, " if others else "")
                + "or set method.allow_no_batchnorm = true"
            )

    def remarks(self, entries: Sequence[Entry]) -> list[str]:
        """Point out what looks like BatchNorm and is shared, and words that may mean two things."""
        said = [*self.share.remarks, *self.share.ambiguous(entries)]
        if not (patterns := self._lookalikes(entries)):
            return said
        decides = f"+local({', '.join(map(repr, patterns))})"
        return [
            *said,
            f"{', '.join(patterns)}: running statistics in a layer that is no BatchNorm of torch, "
            f"so {self.name} shares them; {self.name}{decides} keeps them at the client, and "
            "fedbn.register_batchnorm says that their class is BatchNorm",
        ]

    def _lookalikes(self, entries: Sequence[Entry]) -> list[str]:
        """Patterns of layers with running statistics that are shared although BatchNorm is not.

        Types decide what is BatchNorm; the names here only serve to point a layer out.
        """
        if not self.share.local_kinds & BATCHNORM:
            return []
        found = [e.name for e in self.shared(entries) if e.kind in (Kind.OTHER, Kind.WEIGHT)]
        layers = [name.removesuffix("mean") for name in found if name.endswith("running_mean")]
        layers = [layer for layer in layers if f"{layer}var" in found]
        return [
            f"{layer.removesuffix('running_')}*" if "." in layer else "running_*"
            for layer in layers
        ]

    def begin_round(
        self, before: Pack, server: ServerState, clients: int, generator: torch.Generator
    ) -> MethodAggregation:
        """Begin the server's part of a round.

        Args:
            before: The shared state that the updates start from.
            server: What the server remembers.
            clients: How many clients the federation has.
            generator: The source of random numbers.
        """
        aggregation = self.aggregator.begin(before, generator)
        return MethodAggregation(self, aggregation, before, server, clients)


@dataclass(frozen=True)
class ServerState:
    """State that the server carries from one round to the next.

    Attributes:
        hooks: The entries that hooks keep at the server.
        optimizer: The moments of the server optimizer.
    """

    hooks: State = field(default_factory=dict)
    optimizer: State = field(default_factory=dict)


@dataclass
class MethodAggregation:
    """The server's part of one round: the aggregator, then the hooks, then the server optimizer."""

    method: Method
    aggregation: Aggregation
    before: Pack
    server: ServerState
    clients: int
    accepted: int = 0

    def add(self, update: ClientUpdate) -> None:
        """Take the next accepted update, in the order of the federation."""
        self.accepted += 1
        self.aggregation.add(update)

    def finish(self) -> tuple[Pack, ServerState]:
        """Return the new shared state and what the server remembers."""
        combined = self.aggregation.finish()
        hooks = {name: value.clone() for name, value in self.server.hooks.items()}
        for rule in self.method.rules:
            word = word_of(rule)
            earlier = Memories(word, self.before.state)
            now = Memories(word, combined.state, hooks)
            counts = (self.accepted, self.clients)
            rule.server(ServerRound(self.before.state, combined.state, earlier, now, *counts))
        optimizer = self.method.server
        if optimizer is None:
            return combined, ServerState(hooks, self.server.optimizer)
        stepped, moments = optimizer.step(self.before, combined, self.server.optimizer)
        return stepped, ServerState(hooks, moments)


Part = Rule | Penalty | Aggregator | ServerOptimizer | Selector | Method
