"""One model in memory that becomes any client's by two copies.

A client costs only its local part beside its data: the whole models are as many as there are
workers, not clients. What may be done with such a model for speed alone comes in from outside.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from fedbn.core.bn_folding import FoldedModel
from fedbn.core.local_training import Passes
from fedbn.core.method import Method
from fedbn.core.own_statistics import statistics_of
from fedbn.core.packing import Pack, StateLayout
from fedbn.core.randomness import seeded
from fedbn.core.rule import ROUNDS, Remembered
from fedbn.core.state import Kind, entries, unwrap
from fedbn.core.user_code import NONE, Attributes, Habits
from fedbn.errors import ModelError


@dataclass(frozen=True)
class Speedups:
    """What is done for speed alone; by default nothing."""

    passes: Callable[[], Passes] = Passes  # gives a model the passes it is trained with
    # gives a model the one that is scored in its place; None for itself
    scoring: Callable[[nn.Module], FoldedModel | None] = lambda model: None
    # what was chosen, in words for a run's records
    chosen: Mapping[str, str] = field(default_factory=dict)
    close: Callable[[], None] = lambda: None  # ends the threads of it


PLAIN = Speedups()


class Replica:
    """A model whose entries live in two packs: what the method shares and what stays local."""

    def __init__(
        self,
        model: nn.Module,
        method: Method,
        device: torch.device | str = "cpu",
        habits: Habits = NONE,
        speedups: Speedups = PLAIN,
    ):
        self.habits = habits
        self.model = unwrap(copy.deepcopy(model)).to(device)
        found = entries(self.model)
        self.parts = method.parts(found)
        self.shared = StateLayout.of(method.shared(found)).zeros(device)
        self.local = StateLayout.of(method.local(found)).zeros(device)
        tensors = self.model.state_dict(keep_vars=True)
        state = {**self.shared.state, **self.local.state}
        self.tensors = {e.name: tensors[e.name] for e in self.parts.shared + self.parts.local}
        for name, tensor in self.tensors.items():
            state[name].copy_(tensor.detach())
            tensor.data = state[name]
        self._views = {tensor: state[name] for name, tensor in self.tensors.items()}
        memories, used = method.memories(found), method.used_memories(found)
        self._late = [
            (self.tensors[m.like.name], state[n]) for n, m in memories.items() if m.begins_late
        ]
        self._used = [(self.tensors[m.like.name], state[n]) for n, m in used.items()]
        self._holders: list[tuple[dict[str, Any], dict[str, Any]]] = [
            (holder, dict(holder))
            for module in self.model.modules()
            for holder in (module._parameters, module._buffers)
            if isinstance(holder, dict)  # a scripted module's cannot be changed
        ]
        self._attributes = Attributes(self.model, habits.keeps)
        self._scoring: tuple[Pack, Pack, Pack | None] | None = None
        # What is in no state_dict must not pass from one client to the next.
        self._passing = [
            (module._buffers, name, copy.deepcopy(module._buffers[name]))
            for module in self.model.modules()
            for name in module._non_persistent_buffers_set
        ]
        self.folded = None if habits.scoring else speedups.scoring(self.model)
        self.passes = speedups.passes()

    def load(self, shared: Pack, local: Pack) -> None:
        """Become the client with this local part."""
        self._scoring = None
        self._put_back()
        self._attributes.restore()
        self.shared.copy_(shared)
        self.local.copy_(local)
        for buffers, name, value in self._passing:
            buffers[name] = copy.deepcopy(value)

    def use(self, shared: Pack, local: Pack) -> None:
        """Become the client as it is scored and used: with what a rule trained for that."""
        self.load(shared, local)
        if self._used and self.local.state[ROUNDS.name]:
            for tensor, value in self._used:
                tensor.data.copy_(value)

    @property
    def statistics(self) -> Pack:
        """A copy of the BatchNorm statistics that the model has now."""
        return statistics_of(self.model)

    def set_statistics(self, statistics: Pack) -> None:
        """Replace the BatchNorm statistics of the model until a client is loaded again."""
        for name, value in statistics.state.items():
            self.tensors[name].data.copy_(value)

    def forget(self) -> None:
        """Become a client whose rules remember nothing yet."""
        for entry in self.local.layout.entries:
            if entry.kind is Kind.RULE:
                self.local.state[entry.name].zero_()

    def begin_round(self) -> None:
        """Count a round; let rules' entries begin from the model's with the client's first."""
        rounds = self.local.state.get(ROUNDS.name)
        if rounds is not None:
            for tensor, value in [] if rounds else self._late:
                value.copy_(tensor.detach())
            rounds += 1

    @contextmanager
    def trained_on(self, others: Remembered | None) -> Iterator[None]:
        """Let other entries stand in the place of the model's for a while."""
        others = others or Remembered("nothing", {})
        kept = {name: self.tensors[name].detach().clone() for name in others}
        for name in kept:
            self.tensors[name].data.copy_(others[name])
        try:
            yield
            self.collect()
            for name in kept:
                others[name] = self.tensors[name]
        finally:
            for name, value in kept.items():
                self.tensors[name].data.copy_(value)

    def collect(self) -> None:
        """Take over what the model put in the place of an entry, as `self.mean = new` does."""
        for holder, name, view in (
            (holder, name, self._views[tensor])
            for holder, held in self._holders
            for name, tensor in held.items()
            if tensor in self._views
        ):
            now = holder.get(name)
            if now is None or now.shape != view.shape or now.dtype != view.dtype:
                what = "nothing" if now is None else f"{now.dtype} {tuple(now.shape)}"
                was = f"{view.dtype} {tuple(view.shape)}"
                raise ModelError(f"training put {what} in the place of {name}, {was}")
            if now.data_ptr() != view.data_ptr():
                view.copy_(now.detach())
        self._put_back()

    def seeds(self, seed: int) -> AbstractContextManager[None]:
        """Seed the generators of the process, where passes draw from them."""
        return seeded(seed) if self.habits.draws else nullcontext()

    def _put_back(self) -> None:
        for holder, held in self._holders:
            holder.clear()
            holder.update(held)
        for tensor, view in self._views.items():
            if tensor.data_ptr() != view.data_ptr():
                tensor.data = view

    def scoring_model(self, shared: Pack, local: Pack, statistics: Pack | None = None) -> nn.Module:
        """Become this client, to be scored: folded where that is possible.

        `statistics` take the place of the model's BatchNorm statistics. A client is scored in
        pieces; from the second one on there is nothing to load.
        """
        held, asked = self._scoring, (shared, local, statistics)
        same = held is not None and all(a is b for a, b in zip(held, asked, strict=True))
        if not same or self.habits.scoring:
            self.use(shared, local)
            if statistics is not None:
                self.set_statistics(statistics)
            if self.folded is not None:
                self.folded.refresh()
            self._scoring = asked
        return self.model if self.folded is None else self.folded
