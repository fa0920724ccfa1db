"""A method is a value: what is shared, what is added to the loss, how the server combines.

Every method of the paper (section 5) is one `Method`; every engine runs it from this value alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

from fedbn.core.aggregators import Aggregator, Mean, Weighted
from fedbn.core.packing import Pack
from fedbn.core.penalties import Penalty
from fedbn.core.selectors import BATCHNORM, Selector, everything, local
from fedbn.core.server import ServerOptimizer
from fedbn.core.state import Entry, Kind, State
from fedbn.errors import ConfigError, ModelError

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
        >>> from fedbn.core.penalties import proximal
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
