"""The modules that belong to an experiment: Python files below the folder of its file.

`fedbn run FILE.toml` may import them without `--trust`, so `registry` asks here which file a
module name means. Nothing is imported to answer that. Afterwards `pin` makes sure that the import
takes exactly the file that was found. Only source is loaded from the folder: the bytecode in
`__pycache__` can be that of another source.
"""

from __future__ import annotations

import ast
import inspect
import pkgutil
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.abc import MetaPathFinder
from importlib.machinery import (
    BYTECODE_SUFFIXES,
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    ModuleSpec,
    PathFinder,
    SourceFileLoader,
    SourcelessFileLoader,
)
from importlib.util import resolve_name, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

_LOADERS: tuple[Any, ...] = (
    (ExtensionFileLoader, EXTENSION_SUFFIXES),
    (SourceFileLoader, SOURCE_SUFFIXES),
    (SourcelessFileLoader, BYTECODE_SUFFIXES),
)  # in the order in which Python tries them
_INSTALLED = ("site-packages", "dist-packages")
_ENVIRONMENT_MARKS = ("pyvenv.cfg", "conda-meta")

Pin = tuple[str | None, list[str] | None]
"""Where a module's source file lies, and where its submodules do; plain values, for a pipe."""


class NotOwn(Exception):  # noqa: N818 - the name says what was found
    """The reason why a module is not part of an experiment's folder."""


def locate(module: str, folder: Path, places: Iterable[str]) -> dict[str, Pin]:
    """Return the file of a module and of every package above it, without importing any of them.

    Args:
        module: The dotted name.
        folder: The folder of the experiment file.
        places: The import path, in order.

    Raises:
        NotOwn: If the name means something other than a `.py` file below the folder.
    """
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names or top in sys.builtin_module_names:
        raise NotOwn(f"{top} belongs to the standard library of Python")
    if top == __name__.partition(".")[0]:
        raise NotOwn(f"{top} is this package itself")
    found: dict[str, Pin] = {}
    search: Sequence[str] = [place or str(Path.cwd()) for place in places]
    for name in _with_parents(module):
        spec = _first_on(search, name)
        if spec is None:
            raise NotOwn(f"{name} is not a .py file below {folder}")
        if spec.loader is None:  # a folder without __init__.py runs no code itself
            search = list(spec.submodule_search_locations or ())
            found[name] = (None, [*search])
            continue
        _check_file(spec, name, folder)
        inside = spec.submodule_search_locations
        search = list(inside or ())
        found[name] = (str(spec.origin), None if inside is None else [*search])
    if found[module][0] is None:
        raise NotOwn(f"{module} is a folder without a file __init__.py")
    for name, pin in found.items():
        _check_not_loaded(name, pin, folder)
    return found


def admit(module: str, folder: Path, places: Iterable[str]) -> None:
    """Locate a module below a folder, and pin its file for every later import of the name.

    Raises:
        NotOwn: As `locate`.
    """
    if (module, folder) not in _PINNED.admitted:
        pin(locate(module, folder, places), [folder])
        _PINNED.admitted.add((module, folder))


def is_found(module: str, places: Iterable[str]) -> bool:
    """Tell whether a top-level module is loaded, is part of Python or lies in one of the places."""
    known = module in sys.modules or module in sys.stdlib_module_names
    return known or _first_on([place or str(Path.cwd()) for place in places], module) is not None


def pin(found: Mapping[str, Pin], folders: Iterable[Path]) -> None:
    """Let later imports of these modules take exactly these files.

    Other modules below the folders, which own code may import, are loaded from source too.
    """
    if _PINNED not in sys.meta_path:
        sys.meta_path.insert(0, _PINNED)
    _PINNED.pins.update(found)
    _PINNED.folders.update(folder.resolve() for folder in folders)


def imported_from(module: ModuleType, name: str) -> str | None:
    """Return the module from which another one's source imports a name; None if from none.

    Examples:
        >>> imported_from(sys.modules[__name__], "Path")
        'pathlib'
    """
    try:
        tree = ast.parse(inspect.getsource(module))
    except (OSError, TypeError, SyntaxError, ValueError):  # no module with a source in Python
        return None
    package = module.__spec__.parent if module.__spec__ else None
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and any(
            (a.asname or a.name) == name for a in node.names
        ):
            relative = "." * node.level + (node.module or "")
            return resolve_name(relative, package or None)
    return None


def pins() -> dict[str, Pin]:
    """Return the files that imports must take, by module."""
    return dict(_PINNED.pins)


def folders() -> list[Path]:
    """Return the folders from which only source is loaded."""
    return sorted(_PINNED.folders)


class _SourceLoader(SourceFileLoader):
    """Compiles a module's source, whatever bytecode lies next to it."""

    def get_code(self, fullname: str) -> CodeType | None:
        """Return the code of the source; bytecode is neither read nor written."""
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code


class _PinnedFinder(MetaPathFinder):
    """Finds pinned modules, and modules next to them, before any other finder looks for them."""

    def __init__(self) -> None:
        self.pins: dict[str, Pin] = {}
        self.folders: set[Path] = set()  # of own code, from which only source is loaded
        self.admitted: set[tuple[str, Path]] = set()  # modules, and the folder they lie below

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the file of a module that is own code; None leaves it to the other finders."""
        if name not in self.pins:
            return self._next_to_pinned(name, path, target)
        file, inside = self.pins[name]
        if file is not None:
            loader = _SourceLoader(name, file)
            return spec_from_file_location(
                name, file, loader=loader, submodule_search_locations=inside
            )
        spec = ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [*(inside or ())]
        return spec

    def _next_to_pinned(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        """Return a module below the folders of own code, to be loaded from its source."""
        spec = PathFinder.find_spec(name, path, target) if self.folders else None
        if spec is None or spec.origin is None or not self._is_below(Path(spec.origin)):
            return None
        if isinstance(spec.loader, SourcelessFileLoader):
            raise ImportError(
                f"{spec.origin}: bytecode without its source is not loaded", name=name
            )
        if isinstance(spec.loader, SourceFileLoader):
            spec.loader = _SourceLoader(name, spec.origin)
        return spec

    def _is_below(self, file: Path) -> bool:
        """Tell whether a file, or what it links to, lies in a folder of own code.

        The folder may contain the environment that runs this process. Its packages are installed.
        """
        real = file.resolve()
        if any(real.is_relative_to(place) for place in _of_python()):
            return False
        places = (file.absolute(), real)
        return any(place.is_relative_to(folder) for folder in self.folders for place in places)


_PINNED = _PinnedFinder()


def _with_parents(module: str) -> Iterator[str]:
    """Yield `a`, `a.b` and `a.b.c` for `a.b.c`."""
    parts = module.split(".")
    for count in range(1, len(parts) + 1):
        yield ".".join(parts[:count])


def _first_on(search: Iterable[str], name: str) -> ModuleSpec | None:
    """Return what Python would find on an import path; a plain folder only if nothing else is."""
    folders: list[str] = []
    for place in search:
        if Path(place).is_dir():
            spec = FileFinder(place, *_LOADERS).find_spec(name)
        else:  # an archive
            finder: Any = pkgutil.get_importer(place)
            spec = finder.find_spec(name) if hasattr(finder, "find_spec") else None
        if spec is not None and spec.loader is not None:
            return spec
        if spec is not None:
            folders += spec.submodule_search_locations or ()
    if not folders:
        return None
    spec = ModuleSpec(name, None, is_package=True)
    spec.submodule_search_locations = folders
    return spec


def _check_file(spec: ModuleSpec, name: str, folder: Path) -> None:
    """Raise unless a module is a source file below the folder and outside of any environment."""
    if not isinstance(spec.loader, SourceFileLoader) or spec.origin is None:
        raise NotOwn(f"{name} is not a .py file below {folder}")
    root = folder.resolve()
    try:
        file = Path(spec.origin).resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise NotOwn(f"{name} is not a .py file below {folder}") from error
    if not file.is_relative_to(root):
        raise NotOwn(f"{name} is {file}, which is not below {folder}")
    if any(part.lower() in _INSTALLED for part in file.parts):
        raise NotOwn(f"{name} is an installed package ({file})")
    if any(file.is_relative_to(place) for place in _of_python()):
        raise NotOwn(f"{name} is installed with Python ({file})")
    for above in file.parents:
        if any((above / mark).exists() for mark in _ENVIRONMENT_MARKS):
            raise NotOwn(f"{name} is in the virtual environment {above}")
        if above == root:
            break


@cache
def _of_python() -> list[Path]:
    """The folders of the standard library, of installed packages and of this package."""
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    paths = [Path(path).resolve() for name in names if (path := sysconfig.get_path(name))]
    return [*paths, Path(site.getusersitepackages()).resolve(), Path(__file__).resolve().parent]


def _check_not_loaded(name: str, pin: Pin, folder: Path) -> None:
    """Raise if a module of this name was imported from another place."""
    if name not in sys.modules or _PINNED.pins.get(name) == pin:
        return
    origin, file = getattr(sys.modules[name], "__file__", None), pin[0]
    same = origin is None if file is None else origin and _same_file(origin, file)
    if sys.modules[name] is None or not same:
        where = f" ({origin})" if origin else ""
        raise NotOwn(f"{name} was imported from elsewhere before{where}, not from below {folder}")


def _same_file(one: str, other: str) -> bool:
    return Path(one).resolve() == Path(other).resolve()
