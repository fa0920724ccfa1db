"""The folder is the registry: a name is a function that a public module of a package lists.

A module lists its functions in `__all__`; one without it registers the function of its own name.

A user's own method, model or data set is `module:callable`, imported from PYTHONPATH or, last, the
current directory.

Importing runs code, so it matters who says the name. What a person typed (a flag, a file they
named, an argument in Python) is imported. What a file of somebody's holds (a run folder, a server's
message) is imported only where a person trusts the module: said so with `--trust` or `trust=`, or
typed a name of it in the same process.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from fedbn.errors import ConfigError, Untrusted, blamed, unknown

_trusted: set[str] = set()
_last_on_path: list[str] = []


@dataclass(frozen=True)
class Held:
    """A file that holds names which nobody typed."""

    file: str  # which, for messages
    # where it says that modules lie; asked only once a module is trusted
    directory: Callable[[], Path] = Path.cwd


def trust(modules: str | Iterable[str]) -> None:
    """Let files name these modules, and those below them, for as long as this process lasts."""
    for module in [modules] if isinstance(modules, str) else modules:
        _check_module(module, "trust")
        _trusted.add(module)


def trusted() -> list[str]:
    """The modules that a person trusts: said so, or typed a name of."""
    return sorted(_trusted)


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


def find(package: ModuleType, name: str, what: str, held: Held | None = None) -> Callable[..., Any]:
    """Find the function for a registered name, or for `module:callable`.

    `ELSEWHERE` in the package maps further names to modules. `what` is what is named, for messages
    ("model"), `held` the file that holds the name; None where a person typed it.
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


def _own(name: str, what: str, held: Held | None) -> Callable[..., Any]:
    path, _, attribute = name.partition(":")
    _check_module(path, what)
    if held is not None:
        _check_trust(path, f"{what} {name!r}", held)
    module = _imported(path, what, held)
    found: Callable[..., Any] | None = getattr(module, attribute, None)
    if not callable(found):
        legal = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        raise ConfigError(f"in module {path}: {unknown(what, attribute, legal)}")
    # A module that is trusted may have imported `os.system` under a name of its own.
    plain = inspect.isroutine(found) or inspect.isclass(found)
    origin = str(found.__module__ or path) if plain else path
    if held is not None:
        _check_trust(origin, f"{what} {name!r}", held)
    else:
        _trusted.update((path, origin))
    return found


def _check_module(path: str, what: str) -> None:
    if not all(part.isidentifier() for part in path.split(".")):
        raise ConfigError(f"{what} {path!r}: not a module's name; expected module:callable")


def _check_trust(module: str, name: str, held: Held) -> None:
    if any(f"{module}.".startswith(f"{known}.") for known in _trusted):
        return
    raise Untrusted(
        f"{held.file}: {name} is not code of fedbn: module {module} is imported only with "
        f"--trust {module} (in Python trust={module!r}), from PYTHONPATH or {held.directory()}",
        module,
    )


def _imported(path: str, what: str, held: Held | None) -> ModuleType:
    here = [str(Path.cwd())]
    _look_in([str(held.directory()), *here] if held else here)
    with blamed(ConfigError, f"{what}: importing {path} failed"):
        try:
            return importlib.import_module(path)
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"{what}: no module {error.name!r} in the current directory or PYTHONPATH"
            ) from error


def _look_in(places: Iterable[str]) -> None:
    """Put places last on the import path: a file `json.py` in them must not be Python's `json`."""
    others = [entry for entry in sys.path if entry not in _last_on_path]
    kept = dict.fromkeys([*places, *_last_on_path])
    _last_on_path[:] = [place for place in kept if place not in others]
    sys.path[:] = [*others, *_last_on_path]
