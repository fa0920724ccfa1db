"""Which entries a method shares: the first of the three questions a method answers."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from fedbn.core.state import Entry, Kind
from fedbn.errors import ConfigError, unknown

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
