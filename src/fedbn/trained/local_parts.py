"""Local parts: how far sites lie apart, adapted sites on disk, and a bench to try parts out.

The distance of two sites is told from BatchNorm statistics alone: the root of the mean over layers
of a layer's d² (`layer_distance`). No site's data is needed: the known sites' statistics are in the
run.

Adapted sites on disk: what is a new site's own, beside the run it was made from.

```
RUN/adapted/METHOD/SETTING/seed-S/SITE/
  manifest.json             how it was made, from how much data, sha256 of the file below
  local-XXXXXXXX.safetensors
```

The manifest is replaced as a whole and names its file, so a kill leaves the old site or the new
one. A site belongs to one shared part: where the run has gone on since, it is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from fedbn import __version__
from fedbn.core.aggregation import mean_of
from fedbn.core.bn_statistics import CHUNK, estimate_statistics, tracked_norms
from fedbn.core.federation import AnySplit
from fedbn.core.findings import check_name
from fedbn.core.packing import StateLayout
from fedbn.core.replica import Replica
from fedbn.core.rounds import RunState
from fedbn.core.state import Kind, State, entries
from fedbn.errors import ConfigError, DamagedRun, DataError, ModelError
from fedbn.runs.checkpoints import FORMAT, digest, read_tensors
from fedbn.runs.folder import RunFolder, explained, sealed, unsealed, write_atomically

if TYPE_CHECKING:
    from fedbn.trained.trained_run import Trained

Statistics = tuple[Tensor, Tensor]
"""Mean and variance of what a layer is given, by channel."""
Layers = Sequence[Statistics]
"""Those of each layer that tracks them."""
_EPSILON = 1e-5
FAR = 1.5
FEW = 32


@dataclass(frozen=True)
class Distances:
    """Distances to known sites, the nearest first; the largest among those, where two are known."""

    to: Mapping[str, float]
    among: float | None

    @property
    def nearest(self) -> str:
        """The known site that is nearest."""
        return next(iter(self.to))

    @property
    def far(self) -> bool:
        """Whether even the nearest is farther than known sites are from each other, by half."""
        return self.among is not None and self.to[self.nearest] > FAR * self.among


def layers_of(model: nn.Module) -> list[tuple[Tensor, Tensor]]:
    """Copy the statistics of a model's BatchNorm layers."""
    states = (norm.state_dict() for norm in tracked_norms(model))
    return [(state["running_mean"].clone(), state["running_var"].clone()) for state in states]


def distance(one: Layers, other: Layers) -> float:
    """Compute the distance of two sites.

    Examples:
        >>> import torch
        >>> here = [(torch.tensor([0.0]), torch.tensor([1.0]))]
        >>> there = [(torch.tensor([2.0]), torch.tensor([1.0]))]
        >>> round(distance(here, there), 3), distance(here, here)
        (2.0, 0.0)
    """
    squares = [float(layer_distance(a, b)) ** 2 for a, b in zip(one, other, strict=True)]
    return math.sqrt(sum(squares) / len(squares)) if squares else 0.0


def distances(new: Layers, known: Mapping[str, Layers]) -> Distances:
    """Compute the distances of a new site to the known ones, and the largest among those."""
    to = sorted(((distance(new, layers), name) for name, layers in known.items()))
    pairs = [distance(a, b) for a, b in combinations(known.values(), 2)]
    return Distances({name: far for far, name in to}, max(pairs, default=None))


def layer_distance(one: Statistics, other: Statistics) -> Tensor:
    r"""Compute the distance of two sites in a layer; rows of statistics give a distance a row.

    The Fréchet distance of two Gaussians a channel, in units of their common deviation:

    \[ d^2 = \frac1C \sum_c \frac{(\mu_c - \mu'_c)^2 + (\sigma_c - \sigma'_c)^2}
                            {(\sigma_c^2 + \sigma_c'^2) / 2 + \epsilon} \]

    0 means alike; at 1 they differ by as much as their own values spread. As in BatchNorm itself,
    ε keeps a channel that is constant at both sites from counting.
    """
    (m, v), (n, w) = ([t.double() for t in statistics] for statistics in (one, other))
    apart = (m - n).square() + (v.clamp(min=0).sqrt() - w.clamp(min=0).sqrt()).square()
    return (apart / ((v + w) / 2 + _EPSILON)).mean(dim=-1).sqrt()


_OWN = (Kind.BN_AFFINE, Kind.BN_STATISTIC)


@dataclass(frozen=True)
class AdaptedSite:
    """A site that was adapted; its files are read, and verified, when it is used."""

    name: str
    folder: Path

    def manifest(self) -> dict[str, Any]:
        """Read how the site was made."""
        return unsealed(self.folder / "manifest.json", FORMAT)

    def read(self, state: RunState, like: Replica) -> State:
        """Read the site's own entries; it must have been made from this state's shared part."""
        manifest = self.manifest()
        if manifest.get("shared") != digest(state.shared.state):
            raise DamagedRun(
                f"{self.folder}: adapted to round {manifest.get('round')}, but round "
                f"{state.round} of the run is used now; adapt the site again"
            )
        ((name, known),) = manifest["files"].items()
        content = read_tensors(self.folder / Path(name).name, str(known))
        try:
            return own_layout(like).pack(content).state
        except ModelError as error:
            raise DamagedRun(f"{self.folder / name}: {error}") from error


@dataclass(frozen=True)
class HeldSite:
    """A site that was adapted and is held in memory."""

    name: str
    own: State
    facts: Mapping[str, Any]

    def manifest(self) -> dict[str, Any]:
        """Say how the site was made."""
        return {**self.facts, "name": self.name}

    def read(self, state: RunState, like: Replica) -> State:
        """Give the site's own entries."""
        return self.own


Site = AdaptedSite | HeldSite


def own_layout(replica: Replica) -> StateLayout:
    """What an adapted site has of its own: what its method keeps local, and all of BatchNorm."""
    local = {entry.name for entry in replica.local.layout.entries}
    return StateLayout.of(e for e in entries(replica.model) if e.name in local or e.kind in _OWN)


def find(folder: RunFolder, method: str, setting: str, seed: int) -> dict[str, AdaptedSite]:
    """List the adapted sites of a job, by name."""
    place = folder.adapted(method, setting, seed)
    homes = sorted(path for path in place.glob("*") if (path / "manifest.json").is_file())
    return {home.name: AdaptedSite(home.name, home) for home in homes}


def check_site(name: str, trained: tuple[str, ...]) -> None:
    """Refuse a name that is a training client's, or that cannot be a folder's."""
    try:
        check_name(name, "the new site")
    except DataError as error:
        raise ConfigError(str(error)) from error
    if name.startswith(".") or name != name.strip():
        raise ConfigError(f"the new site: {name!r}: no dot at the beginning, no space at the ends")
    if name in trained:
        raise ConfigError(
            f"the new site: {name!r} is a training client of the run; choose a name other than "
            f"{', '.join(trained)}"
        )


def write(place: Path, name: str, own: State, facts: Mapping[str, Any]) -> AdaptedSite:
    """Write a site, in place of an earlier one of its name; whole or not at all."""
    home = place / name
    known = digest(own)
    file = home / f"local-{known[:8]}.safetensors"
    made = {"format": FORMAT, "name": name, "files": {file.name: known}, "fedbn": __version__}
    with explained(home):
        home.mkdir(parents=True, exist_ok=True)
    write_atomically(file, to_bytes({key: value.contiguous() for key, value in own.items()}))
    write_atomically(home / "manifest.json", sealed({**facts, **made}))
    for old in home.glob("local-*.safetensors"):
        if old != file:
            old.unlink()
    return AdaptedSite(name, home)


GLOBAL = "the shared statistics"


class Bench:
    """One model in which local parts are tried out."""

    def __init__(self, trained: Trained, chunk: int = CHUNK):
        trained.check_network()
        self.trained = trained
        self.state = trained.state
        self.replica = Replica(trained.plan.initial_model, trained.plan.method)
        self._chunk = chunk
        found = entries(self.replica.model)
        self.normalises = any(e.kind is Kind.BN_STATISTIC for e in found)
        local = {e.name for e in self.replica.local.layout.entries}
        self.local_statistics = any(e.kind is Kind.BN_STATISTIC and e.name in local for e in found)
        self.local_weights = any(e.kind is Kind.WEIGHT and e.name in local for e in found)
        self.shares = bool(self.replica.shared.layout.entries)

    def average(self) -> None:
        """Take the mean of the clients' local parts; of whole numbers the largest."""
        packs = list(self.state.local.values())
        mean = mean_of(packs)
        self.replica.load(self.state.shared, mean)
        self.replica.forget()

    def become(self, client: str) -> None:
        """Take a client's local part."""
        self.replica.load(self.state.shared, self.state.scored_with(client))

    def measure(self, x: Tensor | AnySplit) -> list[tuple[Tensor, Tensor]]:
        """Give BatchNorm the exact statistics of some data."""
        estimate_statistics(self.replica.model, x, self._chunk)
        return layers_of(self.replica.model)

    def known(self) -> dict[str, Layers]:
        """The statistics of every training client; of FedAvg the shared ones."""
        found: dict[str, Layers] = {}
        for client in self.state.local:
            self.become(client)
            own = self.local_statistics or self.local_weights
            found[client if own else GLOBAL] = layers_of(self.replica.model)
        return found

    def distances(self, x: Tensor) -> Distances:
        """Tell how far the data lies from each client."""
        known = self.known()
        if not self.local_weights:
            self.average()
            return distances(self.measure(x), known)
        # Statistics behind different weights cannot be compared: each client's own are used.
        to: dict[str, float] = {}
        for client, layers in known.items():
            self.become(client)
            to |= distances(self.measure(x), {client: layers}).to
        return Distances(dict(sorted(to.items(), key=lambda item: item[1])), None)

    def own(self) -> State:
        """Copy what is the site's own."""
        tensors = self.replica.model.state_dict()
        names = [entry.name for entry in own_layout(self.replica).entries]
        return {name: tensors[name].detach().clone() for name in names}
