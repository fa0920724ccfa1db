"""Where local parts are tried out: of one client or the mean of all, with any statistics."""

from __future__ import annotations

import torch
from torch import Tensor

from fedbn.core.packing import Pack
from fedbn.core.replica import Replica
from fedbn.core.state import Kind, State, entries
from fedbn.core.statistics import CHUNK, estimate_statistics
from fedbn.use.adapted import own_layout
from fedbn.use.distance import Distances, Layers, distances, layers_of
from fedbn.use.trained import Trained

GLOBAL = "the shared statistics"


class Bench:
    """One model in which local parts are tried out."""

    def __init__(self, trained: Trained, chunk: int = CHUNK):
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
        self.replica.load(self.state.shared, mean_of(list(self.state.local.values())))

    def become(self, client: str) -> None:
        """Take a client's local part."""
        self.replica.load(self.state.shared, self.state.scored_with(client))

    def measure(self, x: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Give BatchNorm the exact statistics of some data."""
        estimate_statistics(self.replica.model, x, self._chunk)
        return layers_of(self.replica.model)

    def known(self) -> dict[str, Layers]:
        """The statistics of every training client; of FedAvg the shared ones."""
        found: dict[str, Layers] = {}
        for client in self.state.local:
            self.become(client)
            found[client if self.local_statistics else GLOBAL] = layers_of(self.replica.model)
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


def mean_of(packs: list[Pack]) -> Pack:
    """Average local parts uniformly; of whole numbers the largest is taken."""
    first = packs[0].clone()
    for group, vector in first.vectors.items():
        stacked = torch.stack([pack.vectors[group] for pack in packs])
        mean = stacked.amax(dim=0) if group.integer else stacked.double().mean(dim=0)
        vector.copy_(mean)
    return first
