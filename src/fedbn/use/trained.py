"""What a run gave: every client's model, ready to use in the manner of scikit-learn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from fedbn.core.federation import Federation
from fedbn.core.plan import Plan
from fedbn.core.replica import Replica
from fedbn.core.rounds import Record, RunState
from fedbn.data._labels import labels_of
from fedbn.errors import ConfigError, unknown
from fedbn.experiments.facts import facts_of
from fedbn.use.adapted import Site
from fedbn.use.inference import probabilities, samples_of


@dataclass(frozen=True)
class Trained:
    """A trained run: the shared part, and every client's local part.

    Attributes:
        plan: What was run. Of a run that was opened from its folder, `plan.federation` has the
            clients' names, the classes and the shape of a sample, but blank samples; the data
            itself is `federation`.
        state: The shared part and every training client's local part: after the last round, or
            after the best one on validation data where `evaluation.report` is `best`.
        records: All numbers, as in `metrics.jsonl`.
        folder: The run folder, where there is one.
        adapted: Sites that never trained and were adapted since, by name.
        source: Loads the data, where `plan.federation` does not hold it.
        facts: What is known of a sample without the data; made from it unless given.
    """

    plan: Plan
    state: RunState
    records: tuple[Record, ...]
    folder: Path | None
    adapted: Mapping[str, Site] = field(default_factory=dict)
    source: Callable[[], Federation] | None = field(default=None, repr=False)
    facts: Mapping[str, Any] | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        what = f"{self.plan.method.name}, seed {self.plan.seed}, {self.state.round} rounds"
        scores = self.accuracy().values()
        mean = f"mean test accuracy {np.mean(list(scores)):.3f}" if scores else "no test accuracy"
        where = f", {self.folder}" if self.folder else ""
        return f"<Result of {what}, {len(self.clients)} clients: {mean}{where}>"

    @property
    def clients(self) -> tuple[str, ...]:
        """The names of all whose model can be had: training clients, then adapted sites."""
        trained = tuple(client.name for client in self.plan.federation.clients)
        return (*trained, *self.adapted)

    @property
    def classes_(self) -> NDArray[Any]:
        """The labels that `predict` gives, in the order of `predict_proba`'s columns.

        Whole numbers where the classes have no other names than 0, 1, 2, ...; else their names.
        """
        names = self.plan.federation.classes
        if names == tuple(map(str, range(len(names)))):
            return np.arange(len(names))
        return np.array(names)

    @cached_property
    def federation(self) -> Federation:
        """The data, loaded when it is first asked for."""
        return self.source() if self.source else self.plan.federation

    @cached_property
    def inputs(self) -> Mapping[str, Any]:
        """What a sample looks like: classes, shape, dtype, range and how it is prepared."""
        return self.facts or facts_of(self.plan.federation)

    def model(self, client: str) -> nn.Module:
        """Make a client's model: the shared part joined with its own local part."""
        if client not in self.clients:
            raise ConfigError(unknown("client", client, self.clients))
        replica = Replica(self.plan.initial_model, self.plan.method)
        if client in self.state.local:
            replica.load(self.state.shared, self.state.scored_with(client))
        else:
            own = self.adapted[client].read(self.state, replica)
            replica.load(self.state.shared, replica.local)
            for pack in (replica.shared, replica.local):
                for name, view in pack.state.items():
                    if name in own:
                        view.copy_(own[name])
        return replica.model.eval()

    @property
    def models(self) -> dict[str, nn.Module]:
        """Every client's model."""
        return {client: self.model(client) for client in self.clients}

    def predict(self, x: Any, client: str, *, chunk: int = 256) -> NDArray[Any]:
        """Predict the label of each sample with a client's model.

        Args:
            x: Samples (n, ...) of NumPy, torch or lists, as the run was trained on: `uint8`
                pictures are scaled to [−1, 1], floats are taken as they are.
            client: Whose model, a training client's or an adapted site's.
            chunk: Samples at a time; changes the memory needed and not the result.

        Returns:
            Elements of `classes_`.
        """
        chosen: NDArray[Any] = self.classes_[self.predict_proba(x, client, chunk=chunk).argmax(1)]
        return chosen

    def predict_proba(self, x: Any, client: str, *, chunk: int = 256) -> NDArray[np.float64]:
        """Give the probability of each class, (n, classes), in the order of `classes_`."""
        samples = samples_of(x, self.inputs)
        return probabilities(self.model(client), samples, chunk)

    def score(self, x: Any, y: Any, client: str, *, chunk: int = 256) -> float:
        """Compute the accuracy of a client's model.

        Args:
            x: Samples, as for `predict`.
            y: Labels: elements of `classes_`, or whole numbers, the classes' places from 0.
            client: Whose model.
            chunk: Samples at a time.
        """
        found = self.predict_proba(x, client, chunk=chunk).argmax(axis=1)
        labels = labels_of(y, len(found), self.plan.federation.classes)
        return float((found == labels).mean())

    def adapt(
        self, x: Any, y: Any = None, *, site: str, store: bool = False, **options: Any
    ) -> Trained:
        """Give a site that never trained a local part of its own.

        Args:
            x: Its samples, as for `predict`.
            y: Their labels, as for `score`; needed for `how="finetune"` only.
            site: What to call it; from then on a client like the others.
            store: Write it beside the run, where `open_run` and the command line find it.
            **options: `how` (`average`, `reestimate` or `finetune`), `like` (a client), `epochs`
                and `chunk`, as `fedbn.use.adapting.Options` has them.

        Returns:
            The same run with one client more.
        """
        from fedbn.use.adapting import options_of, split_of, with_site  # they stand above

        data, chosen = split_of(self, x, y), options_of(**options)
        return with_site(self, site, data, y is not None, chosen, store=store)[0]

    def accuracy(self, split: str = "test") -> dict[str, float]:
        """Accuracy by domain (by client, where several clients share a domain) of these models."""
        found = [r for r in self.records if r.split == split and r.metric == "accuracy"]
        scored = self.scored_round(split)
        pooled = [client.name for client in self.plan.federation.clients] == ["all"]
        return {
            (r.domain if pooled else r.client): r.value
            for r in found
            if r.round == scored and r.value is not None
        }

    def scored_round(self, split: str = "test") -> int:
        """The last round that was scored up to these models' own; 0 where none was."""
        rounds = [r.round for r in self.records if r.split == split and r.metric == "accuracy"]
        return max((round for round in rounds if round <= self.state.round), default=0)
