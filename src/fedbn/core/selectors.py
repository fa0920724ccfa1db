"""Which entries a method shares: by their kind, by the module they belong to, by name, by role.

A kind comes from the type of the module that owns the entry, never from a name; names are for heads
and bodies, and for what is BatchNorm to nobody but its author.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from fedbn.core.state import Entry, Kind
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
    role `last`, which stands for a path once a model is known (`resolved`). It is never needed to
    find BatchNorm. Where there are `shared_names`, all else stays with the client. `words` are
    those of kinds, as they were written; `remarks` are for the user.

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
        return Selector(
            self.local_kinds | other.local_kinds,
            tuple(dict.fromkeys(self.local_names + other.local_names)),
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

        return replace(
            self,
            local_names=at(self.local_names),
            shared_names=at(self.shared_names),
            words=(*self.words, LAST),
            remarks=(*self.remarks, *remarks),
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
        >>> import torch
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
