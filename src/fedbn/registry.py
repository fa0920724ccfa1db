"""The folder is the registry: a name is a file of a package, holding a function of that name.

A user's own method, model or data set is `module:callable`, imported from the current directory or
PYTHONPATH.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from fedbn.errors import ConfigError, FedbnError, unknown


def names(package: ModuleType) -> list[str]:
    """List the names that a package registers.

    Examples:
        >>> import fedbn.methods
        >>> "fedbn" in names(fedbn.methods)
        True
    """
    found = [module.name for module in pkgutil.iter_modules(package.__path__)]
    return sorted(name for name in found if not name.startswith("_"))


def find(package: ModuleType, name: str, what: str) -> Callable[..., Any]:
    """Find the function for a registered name, or for `module:callable`.

    Args:
        package: Where registered names live.
        name: The name as the user wrote it.
        what: What it names, for the message ("model").
    """
    if ":" in name:
        return _own(name, what)
    known = names(package)
    if name not in known:
        raise ConfigError(unknown(what, name, [*known, "module:callable"]))
    module = importlib.import_module(f"{package.__name__}.{name}")
    found: Callable[..., Any] | None = getattr(module, name, None)
    if found is None:
        raise ConfigError(f"{what} {name!r}: its file holds no function {name}")
    return found


def _own(name: str, what: str) -> Callable[..., Any]:
    path, _, attribute = name.partition(":")
    module = _imported(path, what)
    found = getattr(module, attribute, None)
    if callable(found):
        own: Callable[..., Any] = found
        return own
    legal = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
    raise ConfigError(f"in module {path}: {unknown(what, attribute, legal)}")


def _imported(path: str, what: str) -> ModuleType:
    if not all(part.isidentifier() for part in path.split(".")):
        raise ConfigError(f"{what} {path!r}: not a module's name; expected module:callable")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(path)
    except FedbnError:
        raise
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{what}: no module {error.name!r} in the current directory or PYTHONPATH"
        ) from error
    except Exception as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise ConfigError(f"{what}: importing {path} failed: {reason}") from error
