"""Which entries a method shares: the first of the three questions a method answers.

What a method adds to the local loss: the second of the three questions.

A method is a value: what is shared, what is added to the loss, how the server combines.

Every method of the paper (section 5) is one `Method`; every engine runs it from this value alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from fedbn.core.aggregation import Aggregator, Mean, ServerOptimizer, Weighted
from fedbn.core.packing import Pack
from fedbn.core.state import Entry, Kind, State
from fedbn.errors import ConfigError, ModelError, unknown

BATCHNORM = frozenset({Kind.BN_AFFINE, Kind.BN_STATISTIC})


# The words a user may write for a group of kinds, as in `fedbn+local(instance)`.
_GROUPS: dict[str, frozenset[Kind]] = {
    "bn": BATCHNORM,
    "instance": frozenset({Kind.INSTANCE_AFFINE, Kind.INSTANCE_STATISTIC}),
    "norm": frozenset({Kind.NORM_AFFINE}),
    **{str(kind): frozenset({kind}) for kind in Kind},
}


@dataclass(frozen=True)
class Selector:
    """Shares every entry but those of some kinds and those whose name matches a pattern.

    Attributes:
        local_kinds: Kinds that stay with the client.
        local_names: Shell patterns (`classifier.*`) of names that stay with the client; for
            methods that keep a head or an encoder, never needed to find BatchNorm.

    Examples:
        >>> bias = Entry("fc.bias", Kind.WEIGHT, (2,), __import__("torch").float32, True)
        >>> all_but(Kind.BN_AFFINE)(bias), (all_but() | local("fc.*"))(bias)
        (True, False)
    """

    local_kinds: frozenset[Kind] = frozenset()
    local_names: tuple[str, ...] = ()

    def __call__(self, entry: Entry) -> bool:
        """Tell whether the entry is shared."""
        names = (entry.name, entry.alias_of or entry.name)
        return entry.kind not in self.local_kinds and not any(
            fnmatchcase(name, pattern) for pattern in self.local_names for name in names
        )

    def __or__(self, other: Selector) -> Selector:
        """Keep local what either of the two keeps local."""
        names = dict.fromkeys(self.local_names + other.local_names)
        return Selector(self.local_kinds | other.local_kinds, tuple(names))

    @property
    def label(self) -> str:
        """The selector as one writes it on the command line."""
        names = [repr(name) for name in self.local_names]
        return f"local({', '.join([*sorted(self.local_kinds), *names])})"


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
    """Name further entries that stay local: groups or kinds by word, or patterns of names.

    Examples:
        >>> sorted(local("instance").local_kinds)
        [<Kind.INSTANCE_AFFINE: 'instance_affine'>, <Kind.INSTANCE_STATISTIC: 'instance_statistic'>]
    """
    kinds: frozenset[Kind] = frozenset()
    names: list[str] = []
    for word in what:
        if word in _GROUPS:
            kinds |= _GROUPS[word]
        elif isinstance(word, str) and any(sign in word for sign in ".*?["):
            names.append(word)
        else:
            raise ConfigError(unknown("kind of entry", str(word), _GROUPS))
    return Selector(kinds, tuple(names))


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
class Proximal:
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


def proximal(mu: float = 0.01) -> Proximal:
    """Build FedProx's term; mu is 0.01 unless said, the paper's value for images."""
    if not 0 <= mu < float("inf"):
        raise ConfigError(f"mu = {mu!r} of the proximal term: legal are finite numbers >= 0")
    return Proximal(float(mu))


Weighting = Literal["uniform", "examples"]
Part = Penalty | Aggregator | ServerOptimizer | Selector


@dataclass(frozen=True)
class Method:
    """A federated method.

    Attributes:
        name: What it is called in tables and folders; parts added with `|` extend it.
        share: Which entries are exchanged.
        penalties: Terms added to the local loss.
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
    penalties: tuple[Penalty, ...] = ()
    aggregator: Aggregator = field(default_factory=Mean)
    server: ServerOptimizer | None = None
    pooled: bool = False

    def __or__(self, part: Part) -> Method:
        """Add a part: a penalty, an aggregator, a server optimiser, or more that stays local."""
        if not isinstance(part, Part):
            raise ConfigError(
                f"a {type(part).__name__} cannot be added to {self.name}: legal are penalties, "
                "aggregators, server optimisers and selectors, as in fedbn() | proximal(0.01)"
            )
        named = replace(self, name=f"{self.name}+{part.label}")
        if isinstance(part, Selector):
            return replace(named, share=self.share | part)
        if isinstance(part, ServerOptimizer):
            return replace(named, server=part)
        if isinstance(part, Aggregator):
            return replace(named, aggregator=part)
        return replace(named, penalties=(*self.penalties, part))

    def shared(self, entries: Iterable[Entry]) -> tuple[Entry, ...]:
        """Pick the entries that are exchanged."""
        return self._picked(tuple(entries), shared=True)

    def local(self, entries: Iterable[Entry]) -> tuple[Entry, ...]:
        """Pick the entries that stay with the client."""
        return self._picked(tuple(entries), shared=False)

    def _picked(self, entries: tuple[Entry, ...], shared: bool) -> tuple[Entry, ...]:
        """A tensor of several names stays local when one of its names does."""
        kept = {entry.alias_of or entry.name for entry in entries if not self.share(entry)}
        return tuple(e for e in entries if ((e.alias_of or e.name) not in kept) == shared)

    def check(self, entries: Iterable[Entry], allow_no_batchnorm: bool = False) -> None:
        """Refuse a model in which there is nothing of what this method keeps local.

        Without this, FedBN on a model without BatchNorm is FedAvg under another name.
        """
        entries = tuple(entries)
        if (
            allow_no_batchnorm
            or not entries
            or not (self.share.local_kinds or self.share.local_names)
        ):
            return
        if not self.local(entries):
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
        """Point out what looks like BatchNorm and is shared, where BatchNorm itself is not."""
        patterns = self._lookalikes(tuple(entries))
        if not patterns:
            return []
        decides = f"+local({', '.join(map(repr, patterns))})"
        return [
            f"{', '.join(patterns)}: running statistics in a layer that is no BatchNorm of torch, "
            f"so {self.name} shares them; {self.name}{decides} keeps them at the client"
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
        self, updates: Iterable[Weighted], before: Pack, memory: State
    ) -> tuple[Pack, State]:
        """Make the next shared part and the server's memory from the updates of a round."""
        combined = self.aggregator.combine(updates, before)
        if self.server is None:
            return combined, memory
        return self.server.step(before, combined, memory)
