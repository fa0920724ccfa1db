"""What a client does in a round beside descending its loss, and what is remembered for it.

A rule wraps a client's round as middleware wraps a request. `declare` names further entries,
`round` is what the client does, `server` what the server does after the updates are combined. What
a rule declares travels, is saved and is checked like an entry of the model, because packs and
layouts are all that the rest of the library knows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from fedbn.core.state import Entry, Kind, State
from fedbn.errors import ConfigError, ModelError, unknown

Place = Literal["shared", "local", "server"]
Need = Literal["plain SGD", "uniform weights"]
Term = Callable[[nn.Module, tuple[Tensor, Tensor], Tensor], Tensor]
"""A term of the loss, of the model, a batch and the model's outputs for it."""
Change = Callable[[], None]
"""A change of the gradients (`.grad`) between the backward pass and the step."""

# Counts the rounds of a client, where a rule has local entries that begin with its first one.
ROUNDS = Entry("rule.rounds", Kind.RULE, (), torch.int64, trainable=False)


@dataclass(frozen=True)
class ModelParts:
    """A model's entries, as a method divides them; a tensor of several names appears once."""

    shared: tuple[Entry, ...]
    local: tuple[Entry, ...]

    @property
    def trained(self) -> tuple[Entry, ...]:
        """What is both shared and trained."""
        return tuple(entry for entry in self.shared if entry.trainable)

    def trained_for(self, rule: str) -> tuple[Entry, ...]:
        """The same, for a rule that makes no sense without any."""
        if not self.trained:
            raise ConfigError(f"{rule}: nothing that is shared is trained, so it would do nothing")
        return self.trained


@dataclass(frozen=True)
class Memory:
    """An entry that a rule declares.

    Attributes:
        name: What the rule calls it; one word for as many entries of the model as needed.
        like: The entry of the model whose shape and type it has.
        place: `shared` travels and is averaged, `local` stays with the client, `server` with the
            server.
        start: Zeros, or that entry: at the start of the run, and if local at the start of the
            client's first round.
    """

    name: str
    like: Entry
    place: Place
    start: Literal["zero", "entry"] = "zero"

    @property
    def begins_late(self) -> bool:
        """Whether it begins with the client's first round."""
        return self.place == "local" and self.start == "entry"


class Remembered(dict[str, Tensor]):
    """What a rule declared under a name, by the entry of the model; assigning copies a value in."""

    def __init__(self, name: str, views: Mapping[str, Tensor]):
        super().__init__(views)
        self._name = name

    def __missing__(self, entry: str) -> Tensor:
        raise ModelError(unknown(f"entry of {self._name}", entry, self))

    def __setitem__(self, entry: str, value: Tensor) -> None:
        view = self[entry]
        if value.shape != view.shape:
            shapes = f"{tuple(value.shape)} for {tuple(view.shape)}"
            raise ModelError(f"{self._name} of {entry}: a value of shape {shapes}")
        view.copy_(value.detach())


class Memories(dict[str, Remembered]):
    """All that a rule declared, by the names that it gave; its tensors are changed in place."""

    def __init__(self, rule: str, *states: Mapping[str, Tensor]):
        self._rule = rule
        found: dict[str, dict[str, Tensor]] = {}
        for full, view in (item for state in states for item in state.items()):
            if full.startswith(f"{rule}.") and "/" in full:
                name, _, entry = full.removeprefix(f"{rule}.").partition("/")
                found.setdefault(name, {})[entry] = view
        super().__init__({name: Remembered(f"{rule}.{name}", v) for name, v in found.items()})

    def __missing__(self, name: str) -> Remembered:
        raise ModelError(unknown(f"memory of {self._rule}", name, self))

    def __setitem__(self, name: str, value: object) -> None:
        self[name]
        raise ModelError(f"{self._rule}.{name} has an entry for each it is like: assign those")


@dataclass(frozen=True)
class Trained:
    """What a local training gave: the mean loss on the way, its steps and their learning rate."""

    loss: float
    steps: int
    lr: float


@dataclass(frozen=True)
class ClientRound:
    """A client in a round, as its rules see it.

    Attributes:
        name: The client's.
        round: Which round, from 1.
        rounds: How many there are.
        model: The client's model: what was received, joined with its own part; changed in place.
        parts: What of it the method shares.
        tensors: The model's parameters and buffers by name.
        sent: The shared part as the server sent it; to be read only.
        memory: What the rule declared, shared and local.
    """

    name: str
    round: int
    rounds: int
    model: nn.Module
    parts: ModelParts
    tensors: Mapping[str, Tensor]
    sent: Mapping[str, Tensor]
    memory: Memories

    @property
    def trained(self) -> list[Tensor]:
        """The model's parameters that are shared."""
        return [self.tensors[entry.name] for entry in self.parts.trained]

    @property
    def anchor(self) -> list[Tensor]:
        """Their values as received; to be read only."""
        return [self.sent[e.name].to(self.tensors[e.name].device) for e in self.parts.trained]

    @cached_property
    def received(self) -> State:
        """A copy of what was received: the model's shared entries."""
        return {
            e.name: self.sent[e.name].to(self.tensors[e.name].device, copy=True)
            for e in self.parts.shared
        }


@dataclass(frozen=True)
class Asked:
    """What rules ask of one local training, together; see `LocalTraining`."""

    terms: tuple[Term, ...] = ()
    changes: tuple[Change, ...] = ()
    only: frozenset[str] | None = None
    on: Remembered | None = None
    epochs: int | None = None
    steps: int | None = None
    draws: str = ""

    def stepped(self, entries: Collection[str]) -> frozenset[str] | None:
        """Return the entries that a step may change; None for all.

        A training on other entries changes those alone, and of them those that `only` names.
        """
        if unheard := sorted((self.only or frozenset()).difference(entries)):
            raise ModelError(f"train(only=...): {unknown('entry', unheard[0], entries)}")
        sets = [frozenset(names) for names in (self.on, self.only) if names is not None]
        return frozenset.intersection(*sets) if sets else None

    def within(self, outer: Asked) -> Asked:
        """Add what a rule around this one asks: terms add, changes chain, entries intersect.

        What concerns the model's entries is not for a training on others.
        """
        if outer.on is not None or self.on is not None:
            return replace(outer if self.on is None else self, draws=outer.draws + self.draws)
        sets = [names for names in (outer.only, self.only) if names is not None]
        return Asked(
            outer.terms + self.terms,
            outer.changes + self.changes,
            frozenset.intersection(*sets) if sets else None,
            None,
            outer.epochs if self.epochs is None else self.epochs,
            outer.steps if self.steps is None else self.steps,
            outer.draws + self.draws,
        )


NOTHING = Asked()


@dataclass(frozen=True)
class LocalTraining:
    """The usual local training of a client; a rule calls it once, or several times."""

    _run: Callable[[Asked], Trained]
    _outer: Asked  # what the rules around this one ask

    def __call__(
        self,
        *,
        term: Term | None = None,
        change: Change | None = None,
        only: Iterable[str] | None = None,
        on: Remembered | None = None,
        epochs: int | None = None,
        steps: int | None = None,
        draws: str = "",
    ) -> Trained:
        """Train.

        Args:
            term: Added to the loss.
            change: Called between the backward pass and the step.
            only: The entries that are stepped at all; BatchNorm whose statistics are not among
                them is in evaluation mode.
            on: Entries that are trained in place of the model's; what other rules add is left out.
                With `only`, of these entries only the named ones change.
            epochs: Passes over the data, in place of what the plan says.
            steps: Batches, in place of both.
            draws: Names the generator that orders a further pass.
        """
        asked = Asked(
            () if term is None else (term,),
            () if change is None else (change,),
            None if only is None else frozenset(only),
            on,
            epochs,
            steps,
            draws,
        )
        return self._run(asked.within(self._outer))


@dataclass(frozen=True)
class ServerRound:
    """The server in a round, as a rule sees it, after the updates are combined.

    Attributes:
        before: The model's shared entries before the round; to be read only.
        combined: The same, combined of the updates; changed in place.
        earlier: What the rule declared as shared, before the round; to be read only.
        memory: What it declared as shared, combined, and as the server's; changed in place.
        accepted: How many updates there were.
        clients: How many clients there are.
    """

    before: Mapping[str, Tensor]
    combined: Mapping[str, Tensor]
    earlier: Memories
    memory: Memories
    accepted: int
    clients: int


@runtime_checkable
class Rule(Protocol):
    """What a client and the server do beside training and combining; a subclass says what differs.

    Attributes:
        word: What it is called on the command line, before its numbers; else its class's name.
        needs: What the formula assumes of training; anything else is refused.
        used: The local memory that a client is scored and used with, in place of the joined model.
        moves: Whether `server` changes the model's own entries.
        several: Whether `round` trains twice, in parts, or on other entries: first for `epochs`
            where the rule has such a number.
        depends_on_rounds: Whether its first rounds depend on how many there will be: such a run
            cannot grow.
    """

    word: ClassVar[str] = ""
    needs: ClassVar[frozenset[Need]] = frozenset()
    used: ClassVar[str] = ""
    moves: ClassVar[bool] = False
    several: ClassVar[bool] = False
    depends_on_rounds: ClassVar[bool] = False

    @property
    def label(self) -> str:
        """The rule as one writes it on the command line: its word and its numbers, the fields."""
        own = [getattr(self, name) for name in getattr(self, "__dataclass_fields__", ())]
        plain = (value for value in own if isinstance(value, int | float | str))
        said = ", ".join(f"{v:g}" if isinstance(v, float) else str(v) for v in plain)
        word = self.word or type(self).__name__.lower()
        return f"{word}({said})" if said else word

    def declare(self, model: ModelParts) -> Iterable[Memory]:
        """Name further entries."""
        return ()

    def round(self, client: ClientRound, train: LocalTraining) -> Trained:
        """Do the client's round; gives what `train` gave."""
        return train()

    def server(self, server: ServerRound) -> None:
        """Do what is left to do after the updates are combined."""
        return


def word_of(rule: Rule) -> str:
    """What a rule's entries begin with: its label without arguments."""
    return rule.label.partition("(")[0].rpartition(":")[2].replace(".", "_").replace("/", "_")


def declared(rules: Sequence[Rule], parts: ModelParts) -> dict[str, Memory]:
    """What rules declare for a model, by the full names of the entries, if that is legal."""
    found: dict[str, Memory] = {}
    shared, local = ({e.name for e in some} for some in (parts.shared, parts.local))
    for rule in rules:
        for memory in rule.declare(parts):
            name, like = f"{word_of(rule)}.{memory.name}/{memory.like.name}", memory.like.name
            if not memory.name.isidentifier():
                raise ConfigError(f"{rule.label} declares {memory.name!r}: legal is one word")
            if name in found:
                raise ConfigError(f"{rule.label} declares {memory.name} of {like} twice")
            if like not in shared | local:
                raise ConfigError(f"{rule.label}: {unknown('entry', like, shared | local)}")
            if memory.place != "local" and like not in shared:
                raise ConfigError(
                    f"{rule.label} would give {memory.name} of {like} away, but {like} stays with "
                    "the client; declare it as local, or for shared entries only"
                )
            found[name] = memory
    return found


def wrapped(
    rules: Sequence[tuple[Rule, ClientRound]],
    train: Callable[[Asked], Trained],
    outer: Asked = NOTHING,
) -> Trained:
    """Do a client's round: the first rule wraps the second, and so on, the last one training."""
    if not rules:
        return train(outer)
    (rule, client), *rest = rules
    found = rule.round(client, LocalTraining(lambda asked: wrapped(rest, train, asked), outer))
    if not isinstance(found, Trained):
        raise ModelError(f"{rule.label} gives a {type(found).__name__}, not what `train` gave")
    return found
