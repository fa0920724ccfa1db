"""A method is a value: what is shared, by which rules clients train, how the server combines.

Every method of the paper (section 5) is one `Method`; every engine runs it from this value alone.
What is shared is said by selectors; a penalty is the rule that only adds a term to the loss.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from fedbn.core.aggregation import Aggregator, Mean, ServerOptimizer, Weighted
from fedbn.core.packing import Pack
from fedbn.core.rule import (
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
    entries_of,
    word_of,
)
from fedbn.core.state import Entry, Kind, State
from fedbn.errors import ConfigError, ModelError

BATCHNORM = frozenset({Kind.BN_AFFINE, Kind.BN_STATISTIC})


# The words a user may write for a group of kinds, as in `fedbn+local(instance)`.
_GROUPS: dict[str, frozenset[Kind]] = {
    "bn": BATCHNORM,
    "instance": frozenset({Kind.INSTANCE_AFFINE, Kind.INSTANCE_STATISTIC}),
    "norm": frozenset({Kind.NORM_AFFINE}),
    **{str(kind): frozenset({kind}) for kind in Kind if kind is not Kind.RULE},
}
LAST = "last"


@dataclass(frozen=True)
class Selector:
    """Shares every entry but those of some kinds and those that are named.

    A name is a shell pattern (`classifier.*`), the path of a module or entry (`layer4`), or the
    role `last`, which stands for a path once a model is known (`resolved`).

    Attributes:
        local_kinds: Kinds that stay with the client.
        local_names: Names that stay with the client; never needed to find BatchNorm.
        shared_names: Where there are any, all else stays with the client.
        words: The words of kinds that were written.
        remarks: What a user should hear of the names.

    Examples:
        >>> bias = Entry("fc.bias", Kind.WEIGHT, (2,), __import__("torch").float32, True)
        >>> all_but(Kind.BN_AFFINE)(bias), (all_but() | local("fc"))(bias)
        (True, False)
    """

    local_kinds: frozenset[Kind] = frozenset()
    local_names: tuple[str, ...] = ()
    shared_names: tuple[str, ...] = ()
    words: tuple[str, ...] = field(default=(), compare=False)
    remarks: tuple[str, ...] = field(default=(), compare=False)

    def __call__(self, entry: Entry) -> bool:
        """Tell whether the entry is shared."""
        names = (entry.name, entry.alias_of or entry.name)
        if entry.kind in self.local_kinds or any(_named(self.local_names, n) for n in names):
            return False
        return not self.shared_names or any(_named(self.shared_names, n) for n in names)

    def __or__(self, other: Selector) -> Selector:
        """Keep local what either of the two keeps local."""
        if self.shared_names and other.shared_names:
            raise ConfigError(f"{self.label} and {other.label} each say what alone is shared")
        names = dict.fromkeys(self.local_names + other.local_names)
        return Selector(
            self.local_kinds | other.local_kinds,
            tuple(names),
            self.shared_names or other.shared_names,
            self.words + other.words,
            self.remarks + other.remarks,
        )

    @property
    def label(self) -> str:
        """The selector as one writes it on the command line."""
        if self.shared_names:
            return f"only({', '.join(map(repr, self.shared_names))})"
        names = [repr(name) for name in self.local_names]
        return f"local({', '.join([*sorted(self.local_kinds), *names])})"

    @property
    def has_role(self) -> bool:
        """Whether a name stands for whatever module of the model is the last."""
        return LAST in self.local_names + self.shared_names

    def resolved(self, last: str, remarks: Iterable[str] = ()) -> Selector:
        """Put the path of the model's last module in the place of the role."""

        def at(names: tuple[str, ...]) -> tuple[str, ...]:
            return tuple((last or "*") if name == LAST else name for name in names)

        said = (*self.remarks, *remarks)
        return replace(
            self,
            local_names=at(self.local_names),
            shared_names=at(self.shared_names),
            words=(*self.words, LAST),
            remarks=said,
        )

    def check(self, entries: Sequence[Entry]) -> None:
        """Refuse a name that nothing in the model has."""
        paths = module_paths(entries)
        for name in self.local_names + self.shared_names:
            if not any(_named((name,), e.name) for e in entries):
                near = difflib.get_close_matches(name.rstrip(".*"), paths, n=1)
                hint = f"did you mean {near[0]!r}? " if near else ""
                top = ", ".join(path for path in paths if "." not in path)
                raise ModelError(
                    f"local({name!r}): the model has no module or entry of that name; {hint}"
                    f"its modules: {top or 'none with entries'}; kinds: {', '.join(_GROUPS)}"
                )

    def ambiguous(self, entries: Sequence[Entry]) -> list[str]:
        """Say where a word is also the name of a module."""
        paths = module_paths(entries)
        return [
            f"local({word}) means {'a role' if word == LAST else 'a kind of entry'}; the model "
            f"also has a module {word}: local('module:{word}') or local('{word}.*') names that"
            for word in dict.fromkeys(self.words)
            if word in paths
        ]


def _named(names: Iterable[str], entry: str) -> bool:
    return any(
        fnmatchcase(entry, name)
        if any(sign in name for sign in "*?[")
        else entry == name or entry.startswith(f"{name}.")
        for name in names
    )


def module_paths(entries: Iterable[Entry]) -> list[str]:
    """The modules that hold entries, and those that these are in.

    Examples:
        >>> module_paths([Entry("a.b.weight", Kind.WEIGHT, (), torch.float32, True)])
        ['a', 'a.b']
    """
    found: dict[str, None] = {}
    for entry in entries:
        parts = entry.name.split(".")[:-1]
        found |= dict.fromkeys(".".join(parts[: i + 1]) for i in range(len(parts)))
    return list(found)


def everything() -> Selector:
    """Share all entries, the statistics of BatchNorm included."""
    return Selector()


def nothing() -> Selector:
    """Share no entry."""
    return Selector(local_kinds=frozenset(Kind))


def all_but(*kinds: Kind) -> Selector:
    """Share all entries but those of the kinds given."""
    return Selector(local_kinds=frozenset(kinds))


def local(*what: str) -> Selector:
    """Name further entries that stay local: by kind (`norm`), module path or pattern, or `last`.

    A word is a kind first; `module:norm` is the module of that name.

    Examples:
        >>> sorted(local("instance").local_kinds)
        [<Kind.INSTANCE_AFFINE: 'instance_affine'>, <Kind.INSTANCE_STATISTIC: 'instance_statistic'>]
        >>> local("layer4", "module:norm").local_names
        ('layer4', 'norm.*')
    """
    kinds: frozenset[Kind] = frozenset()
    words = [word for word in what if isinstance(word, str) and word in _GROUPS]
    for word in words:
        kinds |= _GROUPS[word]
    names = [_name(word) for word in what if word not in words]
    return Selector(kinds, tuple(names), words=tuple(words))


def only(*names: str) -> Selector:
    """Share nothing but what is named, by module path, pattern, or `last`."""
    return Selector(shared_names=tuple(map(_name, names)))


def _name(word: object) -> str:
    if not isinstance(word, str) or not word.removeprefix("module:"):
        raise ConfigError(
            f"{word!r}: legal are kinds ({', '.join(_GROUPS)}), paths of modules, patterns and last"
        )
    path = word.removeprefix("module:")
    return path if path == word or "*" in path else f"{path}.*"


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


@runtime_checkable
class DirectPenalty(Penalty, Protocol):
    """A penalty that can add its gradient without building a graph."""

    def add_gradient(self, current: Sequence[Tensor], anchor: Sequence[Tensor]) -> None:
        """Add the term's gradient to `.grad` of each tensor in `current`."""


@dataclass(frozen=True)
class PenaltyRule(Rule):
    """The rule that only adds a penalty to the loss."""

    penalty: Penalty

    @property
    def label(self) -> str:
        """As on the command line."""
        return self.penalty.label

    def round(self, client: ClientRound, train: LocalTraining) -> Trained:
        """Train with the term, or its gradient where the penalty can give it."""
        penalty, current, anchor = self.penalty, client.trained, client.anchor
        if isinstance(penalty, DirectPenalty):
            return train(change=partial(penalty.add_gradient, current, anchor))
        return train(term=lambda *_: penalty.value(current, anchor))


@dataclass(frozen=True)
class Proximal(Rule):
    r"""FedProx's term (Li et al. 2018): \(\frac{\mu}{2} \lVert w - w_{received} \rVert^2\).

    Examples:
        >>> w, received = torch.tensor([3.0, 1.0]), torch.tensor([1.0, 1.0])
        >>> Proximal(0.5).value([w], [received])
        tensor(1.)
    """

    mu: float

    @property
    def label(self) -> str:
        """As on the command line."""
        return f"prox({self.mu:g})"

    def value(self, current: Sequence[Tensor], anchor: Sequence[Tensor]) -> Tensor:
        """The term itself."""
        terms = [(w - a).square().sum() for w, a in zip(current, anchor, strict=True)]
        return torch.stack(terms).sum() * (self.mu / 2)

    def add_gradient(self, current: Sequence[Tensor], anchor: Sequence[Tensor]) -> None:
        """Add mu (w − w_received) in two passes over the gradients."""
        with torch.no_grad():
            for weight, received in zip(current, anchor, strict=True):
                if weight.grad is not None:
                    weight.grad.add_(weight, alpha=self.mu).sub_(received, alpha=self.mu)

    def round(self, client: ClientRound, train: LocalTraining) -> Trained:
        """Train towards what was received."""
        return PenaltyRule(self).round(client, train)


def proximal(mu: float = 0.01) -> Proximal:
    """Build FedProx's term; mu is 0.01 unless said, the paper's value for images."""
    if not 0 <= mu < float("inf"):
        raise ConfigError(f"mu = {mu!r} of the proximal term: legal are finite numbers >= 0")
    return Proximal(float(mu))


Weighting = Literal["uniform", "examples"]


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
        if isinstance(part, Selector):
            return replace(named, share=self.share | part)
        if isinstance(part, ServerOptimizer):
            return replace(named, server=part)
        if isinstance(part, Aggregator):
            return replace(named, aggregator=part)
        rule = part if isinstance(part, Rule) else PenaltyRule(part)
        return replace(named, rules=(*self.rules, rule))

    def _with(self, other: Method) -> Method:
        """Keep local what either keeps, follow the rules of both."""
        name = f"{self.name}+{other.name}"
        if self.pooled or other.pooled:
            raise ConfigError(f"{name}: one of them brings all data together; use it alone")
        if self.server and other.server:
            raise ConfigError(f"{name}: each has an optimiser at the server; choose one")
        return replace(
            self,
            name=name,
            share=self.share | other.share,
            rules=self.rules + other.rules,
            aggregator=self.aggregator if other.aggregator == Mean() else other.aggregator,
            server=self.server or other.server,
        )

    @property
    def penalties(self) -> tuple[Penalty, ...]:
        """The rules that only add a term to the loss."""
        bare = (rule.penalty if isinstance(rule, PenaltyRule) else rule for rule in self.rules)
        return tuple(one for one in bare if isinstance(one, Penalty))

    def parts(self, entries: Iterable[Entry]) -> ModelParts:
        """Divide a model's entries, tensors of several names once."""
        found = tuple(entries)
        shared, local = (self._picked(found, shared) for shared in (True, False))
        return ModelParts(*(tuple(e for e in p if e.alias_of is None) for p in (shared, local)))

    def memories(self, entries: Iterable[Entry]) -> dict[str, Memory]:
        """What the rules declare for a model, by the full names of the entries."""
        return declared(self.rules, self.parts(entries)) if self.rules else {}

    def used_memories(self, entries: Iterable[Entry]) -> dict[str, Memory]:
        """What clients are scored and used with in place of the joined model's entries."""
        names = tuple(f"{word_of(rule)}.{rule.used}/" for rule in self.rules if rule.used)
        found = self.memories(entries) if names else {}
        return {name: memory for name, memory in found.items() if name.startswith(names)}

    def remembered(self, entries: Iterable[Entry], place: Place) -> tuple[Entry, ...]:
        """The entries that the rules declare in one place."""
        return entries_of(self.memories(entries), place)

    def shared(self, entries: Iterable[Entry]) -> tuple[Entry, ...]:
        """Pick the entries that are exchanged, those of rules last."""
        found = tuple(entries)
        return (*self._picked(found, shared=True), *self.remembered(found, "shared"))

    def local(self, entries: Iterable[Entry]) -> tuple[Entry, ...]:
        """Pick the entries that stay with the client, those of rules last."""
        found = tuple(entries)
        return (*self._picked(found, shared=False), *self.remembered(found, "local"))

    def _picked(self, entries: tuple[Entry, ...], shared: bool) -> tuple[Entry, ...]:
        """A tensor of several names stays local when one of its names does."""
        kept = {entry.alias_of or entry.name for entry in entries if not self.share(entry)}
        return tuple(e for e in entries if ((e.alias_of or e.name) not in kept) == shared)

    def check(self, entries: Iterable[Entry], allow_no_batchnorm: bool = False) -> None:
        """Refuse a model in which there is nothing of what this method keeps local.

        Without this, FedBN on a model without BatchNorm is FedAvg under another name.
        """
        entries = tuple(entries)
        if not entries:
            return
        self.share.check(entries)
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

    def remarks(self, entries: Iterable[Entry]) -> list[str]:
        """Point out what looks like BatchNorm and is shared, and words that may mean two things."""
        entries = tuple(entries)
        said = [*self.share.remarks, *self.share.ambiguous(entries)]
        patterns = self._lookalikes(entries)
        if not patterns:
            return said
        decides = f"+local({', '.join(map(repr, patterns))})"
        return [
            *said,
            f"{', '.join(patterns)}: running statistics in a layer that is no BatchNorm of torch, "
            f"so {self.name} shares them; {self.name}{decides} keeps them at the client, and "
            "fedbn.register_batchnorm says that their class is BatchNorm",
        ]

    def _lookalikes(self, entries: tuple[Entry, ...]) -> list[str]:
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

    def aggregate(
        self, updates: Iterable[Weighted], before: Pack, memory: State, clients: int = 0
    ) -> tuple[Pack, State]:
        """Make the next shared part and the server's memory from the updates of a round.

        Args:
            updates: What clients sent.
            before: The shared part that they started from.
            memory: What the server remembers.
            clients: How many clients there are, of whom some took part.
        """
        accepted = 0

        def counted() -> Iterator[Weighted]:
            nonlocal accepted
            for update in updates:
                accepted += 1
                yield update

        combined = self.aggregator.combine(counted(), before)
        if not accepted:
            return combined, memory
        kept = {name: value.clone() for name, value in memory.items() if "/" in name}
        for rule in self.rules:
            word = word_of(rule)
            earlier, now = Memories(word, before.state), Memories(word, combined.state, kept)
            rule.server(ServerRound(before.state, combined.state, earlier, now, accepted, clients))
        if self.server is None:
            return combined, kept
        stepped, moments = self.server.step(before, combined, memory)
        return stepped, {**kept, **moments}


Part = Rule | Penalty | Aggregator | ServerOptimizer | Selector | Method
