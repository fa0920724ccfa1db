"""Every error this library raises on purpose, and the exit code each one means.

```
FedbnError               1    the run failed
├── ConfigError          3    a wrong value from a flag, `--set` or TOML
│   ├── ModelError       3    a model that does not fit the method or the data
│   └── Untrusted        3    a module that a file names and nobody trusted
├── DataError            4    data that cannot be trained on
├── TooFewClients        5    fewer clients left than `training.min_clients`, or than the rule needs
│   └── NeverAccepted    5    a finished run in which no update of some client was ever accepted
├── DamagedRun           6    a run folder that cannot be trusted
├── NotApproved          7    sites where a person has not approved the experiment yet
└── Interrupted        130    stopped on request, the state saved
```

The parser's own refusals (unknown command or flag) end with 2, success with 0.
A message is one line: what is wrong, where, and the legal values.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from fedbn.text import one_line


class FedbnError(Exception):
    """The base of all errors a caller may want to catch."""

    exit_code = 1


class ConfigError(FedbnError):
    """A value that came from the user's configuration is wrong."""

    exit_code = 3


class ModelError(ConfigError):
    """The model does not fit the method or the data."""


class GivenInPython(ConfigError):  # noqa: N818
    """An object that a run was started with in Python, and that its folder cannot hold."""

    def __init__(self, fact: str, advice: str):
        super().__init__(f"{fact}; {advice}")
        self.fact = fact  # without the advice, which depends on who asks


class Untrusted(ConfigError):  # noqa: N818
    """A file names code that nobody said to trust."""

    def __init__(self, text: str, module: str):
        super().__init__(text)
        self.module = module


class DataError(FedbnError):
    """The data cannot be read, or cannot be trained on."""

    exit_code = 4


class Misfit(DataError):  # noqa: N818
    """Data that does not fit what all sites agreed on; `public` has no path, no row, no value."""

    def __init__(self, text: str, public: str):
        super().__init__(text)
        self.public = public  # what another may be told of it


class TooMuchData(DataError):  # noqa: N818
    """Samples that would take more memory than is allowed."""


class TooFewClients(FedbnError):  # noqa: N818 - the name says what happened
    """A round was left with fewer clients than `training.min_clients` or its aggregator needs."""

    exit_code = 5


class NeverAccepted(TooFewClients):
    """A run is finished and saved, but no update of some client was ever accepted."""


class DamagedRun(FedbnError):  # noqa: N818
    """Files of a run folder are missing, damaged or from a newer format."""

    exit_code = 6


class NotApproved(FedbnError):  # noqa: N818
    """Persons at sites of a federation have not approved an experiment yet."""

    exit_code = 7


class StopNow(KeyboardInterrupt):
    """A person asked twice: no code of a user's may hold it up."""


class Interrupted(FedbnError):  # noqa: N818
    """The run was asked to stop and did so with its state saved."""

    exit_code = 130


def unforeseen(error: BaseException) -> str:
    """Say in one line that an error came from elsewhere: a user's own code, or a bug.

    Examples:
        >>> unforeseen(ValueError("odd"))
        'not foreseen: ValueError: odd (--debug shows where)'
    """
    return f"not foreseen: {reason(error)} (--debug shows where)"


def reason(error: BaseException) -> str:
    """Say in one line what an error of somebody else's code was.

    Examples:
        >>> reason(ValueError("odd   number"))
        'ValueError: odd number'
    """
    return f"{type(error).__name__}: {one_line(error)}"


@contextmanager
def blamed(kind: type[FedbnError], what: str) -> Iterator[None]:
    """Let what somebody else's code raises be an error of ours that says what failed.

    Examples:
        >>> with blamed(DataError, "data mine"):
        ...     [][0]
        Traceback (most recent call last):
        fedbn.errors.DataError: data mine: IndexError: list index out of range
    """
    try:
        yield
    except FedbnError:
        raise
    except Exception as error:
        raise kind(f"{what}: {reason(error)}") from error


def unknown(what: str, given: str, legal: Iterable[str], meant: str = "") -> str:
    """Say that a name is not known: what was given, the nearest legal one first, then all.

    The caller may know what was `meant`, although it is spelled in another way.

    Examples:
        >>> unknown("method", "fedbm", ["fedavg", "fedbn"])
        "unknown method 'fedbm': did you mean 'fedbn'? Legal values: fedavg, fedbn"
    """
    names = sorted(legal)
    if not meant:
        # A section that all names share says nothing about which of them is near.
        section = given.rpartition(".")[0] + "."
        shared = len(section) if all(name.startswith(section) for name in names) else 0
        tails = [name[shared:] for name in names]
        near = difflib.get_close_matches(given[shared:], tails, n=1)
        meant = given[:shared] + near[0] if near else ""
    hint = f"did you mean {meant!r}? " if meant else ""
    return f"unknown {what} {given!r}: {hint}Legal values: {', '.join(names) or 'none'}"
