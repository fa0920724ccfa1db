"""The folder is the registry: a name is a function that a public module of a package lists.

A module lists its functions in `__all__`; one without it registers the function of its own name.

A user's own method, model or data set is `module:callable`, imported from PYTHONPATH or, last, the
current directory.

Importing runs code, so it matters where the name comes from. `Held` says that for every name, and
`find` is the one gate. It imports

- a name that a person typed: a flag, `--set`, an argument in Python;
- a name in an experiment file that a person opened, if the module is a file below its folder
  (`own_modules`);
- every other name only if a person trusts the module with `--trust` or `trust=`, or typed the very
  same name in this process.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import pkgutil
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from fedbn import own_modules
from fedbn.errors import ConfigError, Untrusted, blamed, unknown
from fedbn.own_modules import NotOwn

# Modules that a person trusts, and single names (`module:callable`) that a person typed.
_trusted: set[str] = set()
_used: set[str] = set()  # modules whose names were found; whoever reads them later must trust them
_last_on_path: list[str] = []


@dataclass(frozen=True)
class Held:
    """Where names come from, and so which modules they may mean without `--trust`."""

    file: str  # the file that holds the names, for messages
    # Where the file says that modules lie. Called only when a module is about to be imported.
    directories: Callable[[], Sequence[Path]] = tuple
    typed: bool = False  # a person typed the names
    own: Path | None = None  # modules below this folder are the user's own code
    # Another party sent the names: names that a person here typed do not count, only `--trust`.
    foreign: bool = False
    announced: bool = False  # files that it names are opened, and the user is told so


TYPED = Held("the command line", typed=True)
UNKNOWN = Held("the configuration")
"""Of names whose source nobody stated: no module is imported without `--trust`."""


def trust(modules: str | Iterable[str]) -> None:
    """Let files name these modules, and those below them, for as long as this process lasts."""
    for module in [modules] if isinstance(modules, str) else modules:
        _check_module(module, "trust")
        _trusted.add(module)


def allow(names: Iterable[str]) -> None:
    """Let files hold these names (`module:callable`), because a person typed them too."""
    _trusted.update(name for name in names if ":" in name)


def to_trust() -> list[str]:
    """Return the modules that another process must trust to do what this one did."""
    return sorted({name for name in _trusted if ":" not in name} | _used)


def grants() -> str:
    """Return what this process may import, as JSON for a worker process."""
    facts = {
        "trusted": sorted(_trusted),
        "pins": own_modules.pins(),
        "folders": [str(folder) for folder in own_modules.folders()],
        "places": _last_on_path,
    }
    return json.dumps(facts)


def take_grants(text: str) -> None:
    """Import in this process what the process that wrote `grants` may import."""
    facts = json.loads(text)
    _trusted.update(facts["trusted"])
    pins = {name: (file, inside) for name, (file, inside) in facts["pins"].items()}
    own_modules.pin(pins, map(Path, facts["folders"]))
    _look_in(facts["places"])


def names(package: ModuleType) -> list[str]:
    """List the names that a package registers.

    Examples:
        >>> import fedbn.methods
        >>> "fedbn" in names(fedbn.methods)
        True
    """
    return sorted(_homes(package.__name__))


def facts(package: ModuleType, name: str, table: str) -> Any:
    """What a name's module says of it in a table by name; None where it says nothing."""
    module = importlib.import_module(f"{package.__name__}.{_homes(package.__name__)[name]}")
    return getattr(module, table, {}).get(name)


def find(package: ModuleType, name: str, what: str, held: Held = UNKNOWN) -> Callable[..., Any]:
    """Find the function for a registered name, or for `module:callable`.

    `ELSEWHERE` in the package maps further names to modules. `what` is what is named, for messages
    ("model"), `held` where the name comes from.
    """
    if ":" in name:
        return _own(name, what, held)
    homes = {n: f"{package.__name__}.{home}" for n, home in _homes(package.__name__).items()}
    elsewhere: dict[str, str] = getattr(package, "ELSEWHERE", {})
    if name not in (*homes, *elsewhere):
        raise ConfigError(unknown(what, name, [*sorted(homes), "module:callable"]))
    module = importlib.import_module({**homes, **elsewhere}[name])
    found: Callable[..., Any] | None = getattr(module, name, None)
    if found is None:
        raise ConfigError(f"{what} {name!r}: its file holds no function {name}")
    return found


def signature_of(build: Callable[..., Any], where: str) -> inspect.Signature:
    """What a function that was found takes; some of those that are written in C do not tell."""
    try:
        return inspect.signature(build)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: {error}; expected a function or class of Python") from error


def described(package: str) -> dict[str, str]:
    """What each name of a package is, in one line, without importing it: torch takes seconds.

    Examples:
        >>> described("fedbn.methods")["fedavg"]
        'Share everything, the running statistics of BatchNorm included.'
    """
    homes = _homes(package)
    return {name: first_lines(f"{package}.{homes[name]}")[name] for name in sorted(homes)}


def said(package: str, table: str) -> dict[str, Any]:
    """What the modules of a package say of their names in a literal table, without importing."""
    found: dict[str, Any] = {}
    for home in dict.fromkeys(_homes(package).values()):
        for node in source(f"{package}.{home}").body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == table:
                found |= ast.literal_eval(node.value)
    return found


def first_lines(module: str) -> dict[str, str]:
    """The first docstring line of each function of a module that is not imported.

    One that another function makes says what it is as the last argument there.
    """
    found: dict[str, str] = {}
    for node in source(module).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = (ast.get_docstring(node) or "").partition("\n")[0]
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            texts = [each.value for each in node.value.args if isinstance(each, ast.Constant)]
            found |= {ast.unparse(node.targets[0]): str(text) for text in texts}
    return found


@cache
def source(module: str) -> ast.Module:
    """The statements of a module of ours, read and not run; not to be changed."""
    path = _path(module)
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8"))


def _path(module: str) -> Path:
    return Path(__file__).parent.joinpath(*module.split(".")[1:])


@cache
def _homes(package: str) -> dict[str, str]:
    """The module of each name; read without importing, because torch takes seconds."""
    modules = [module.name for module in pkgutil.iter_modules([str(_path(package))])]
    return {
        name: module
        for module in modules
        if not module.startswith("_")
        for name in _listed(f"{package}.{module}")
    }


def _listed(module: str) -> list[str]:
    for node in source(module).body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "__all__":
            return []  # `__all__: list[str] = []`: parts that names are made of
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return [module.rpartition(".")[2]]


def check(name: str, what: str, held: Held) -> None:
    """Raise unless the module of a name may be imported; nothing is imported for that.

    Raises:
        Untrusted: If it may not.
        ConfigError: If the name has no module in it.
    """
    if ":" in name:
        path = name.partition(":")[0]
        _check_module(path, what)
        _check_source(path, name, what, held)


def _own(name: str, what: str, held: Held) -> Callable[..., Any]:
    path, _, attribute = name.partition(":")
    check(name, what, held)
    if attribute.startswith("__"):  # what Python keeps in every module is no model or method
        raise ConfigError(f"{what} {name!r}: expected module:callable, got a name of Python's own")
    module = _imported(path, what, _places(name, held))
    found: Callable[..., Any] | None = getattr(module, attribute, None)
    if not callable(found):
        legal = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        raise ConfigError(f"in module {path}: {unknown(what, attribute, legal)}")
    # A module may have imported `os.system` under a name of its own. The module that defines a
    # function or class must be the user's own or trusted too, as must one that lends an object.
    plain = inspect.isroutine(found) or inspect.isclass(found)
    named = getattr(found, "__module__", None) if plain else None
    origin = str(named or own_modules.imported_from(module, attribute) or path)
    if not _is_typed(name, held):
        _check_source(origin, name, what, held)
    if held.typed or held.own is not None:
        allow([name])  # its run folder, which a worker process reads, holds the same name
    _used.update((path, origin))
    return found


def _check_module(path: str, what: str) -> None:
    if not all(part.isidentifier() for part in path.split(".")):
        raise ConfigError(f"{what} {path!r}: not a module's name; expected module:callable")


def _is_typed(name: str, held: Held) -> bool:
    """Tell whether a person at this process typed exactly this name."""
    return held.typed or (name in _trusted and not held.foreign)


def _is_trusted(module: str) -> bool:
    return any(f"{module}.".startswith(f"{known}.") for known in _trusted)


def _check_source(module: str, name: str, what: str, held: Held) -> None:
    """Raise unless a person typed a name, trusts its module or has the module as own code."""
    if _is_typed(name, held) or _is_trusted(module):
        return
    ours, hint = "fedbn", f" (in Python trust={module!r})"
    if directories := " or ".join(str(place) for place in held.directories()):
        hint += f", from PYTHONPATH or {directories}"
    if held.own is not None:
        try:
            own_modules.admit(module, held.own, _path_with([held.own]))
            return
        except NotOwn as reason:
            ours, hint = f"fedbn or of the experiment's folder ({reason})", ""
    raise Untrusted(
        f"{held.file}: {what} {name!r} is not code of {ours}: module {module} is imported only "
        f"with --trust {module}{hint}",
        module,
    )


def _places(name: str, held: Held) -> list[str]:
    """Return the folders to search last; for a name that a person typed, the current one first."""
    path = name.partition(":")[0]
    here, own, top = str(Path.cwd()), path in own_modules.pins(), path.partition(".")[0]
    there = [] if held.typed else [str(place) for place in held.directories()]
    if not own:
        # A folder on the import path also provides modules that others import only if they are
        # installed. A folder that a file names is used for the modules that only it has.
        elsewhere = own_modules.is_found(top, _path_with([]))
        there = [p for p in there if not elsewhere and own_modules.is_found(top, [p])]
    return [here, *there] if _is_typed(name, held) and not own else [*there, here]


def _imported(path: str, what: str, places: Iterable[str]) -> ModuleType:
    _look_in(places)
    with blamed(ConfigError, f"{what}: importing {path} failed"):
        try:
            return importlib.import_module(path)
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"{what}: no module {error.name!r} in the current directory or PYTHONPATH"
            ) from error


def _path_with(places: Iterable[Path]) -> list[str]:
    """Return the import path as it is with these places last on it."""
    return [*(entry for entry in sys.path if entry not in _last_on_path), *map(str, places)]


def _look_in(places: Iterable[str]) -> None:
    """Put places last on the import path: a file `json.py` in them must not be Python's `json`."""
    others = [entry for entry in sys.path if entry not in _last_on_path]
    kept = dict.fromkeys([*places, *_last_on_path])
    _last_on_path[:] = [place for place in kept if place not in others]
    sys.path[:] = [*others, *_last_on_path]
