"""Configurations: a TOML file, by path or by an experiment's name, flags and `--set`, then checked.

They hold plain values at a sane depth; a scale, a sweep or a change puts values into their place.
"""

from __future__ import annotations

import math
import re
import tomllib
import typing
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbn import registry
from fedbn.errors import ConfigError, DamagedRun, unknown
from fedbn.registry import TYPED, UNKNOWN, Held
from fedbn.runs.folder import RunFolder, check_format
from fedbn.text import flat

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic_core import ErrorDetails

    from fedbn.experiments.schema import Experiment


Raw = dict[str, Any]
SCALES = ("quick", "paper")
_PIECES = re.compile(r"\+(?![^(]*\))")  # what a method is made of, as `fedbn+prox(0.1)`
_REPLACES = {"training.epochs": "training.rounds", "training.rounds": "training.epochs"}


def placed(raw: Mapping[str, Any], key: str, value: Any) -> Raw:
    """Copy a configuration with one dotted key set; rounds and epochs replace each other."""
    head, _, rest = key.partition(".")
    if (other := _REPLACES.get(key)) and isinstance(raw.get(head), Mapping):
        raw = {**raw, head: {k: v for k, v in raw[head].items() if k != other.partition(".")[2]}}
    if not rest:
        return {**raw, head: value}
    below = raw.get(head, {})
    if not isinstance(below, Mapping):
        raise ConfigError(f"{key}: {head} = {below!r} is a value, not a section")
    return {**raw, head: placed(below, rest, value)}


def scaled(raw: Raw, scale: str) -> Raw:
    """Apply a file's `[quick]` table where that scale is asked for."""
    if scale not in SCALES:
        raise ConfigError(f"--scale: {unknown('scale', scale, SCALES)}")
    quick = raw.get("quick", {})
    if scale != "quick" or not isinstance(quick, Mapping):
        return raw
    return changed({key: value for key, value in raw.items() if key != "quick"}, quick)


def changed(raw: Raw, changes: Mapping[str, Any]) -> Raw:
    """Apply a table of changes, key by key.

    `sweep` is replaced as a whole; so is `[data]` or `[model]` where the change names another one,
    whose options are its own.

    Examples:
        >>> changed({"data": {"name": "digits", "percent": 1}}, {"data": {"name": "digits_mini"}})
        {'data': {'name': 'digits_mini'}}
    """
    for section, value in changes.items():
        if not isinstance(value, Mapping) or section == "sweep":
            raw = {**raw, section: value}
            continue
        below = raw.get(section, {})
        if section in ("data", "model") and "name" in value and isinstance(below, Mapping):
            raw = {**raw, section: {}}
        for key, each in flat(value, f"{section}."):
            raw = placed(raw, key, each)
    return raw


_DEPTH = 20
_DOTS = 200
_LIMIT = 2**63


def parsed(text: str) -> dict[str, Any]:
    """Parse TOML; a ValueError says line and column, a RecursionError that it is too deep."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    # The parser's memory grows with the square of a dotted key's length.
    if any(part.count(".") > _DOTS for line in lines for part in re.split(r"[=,\[\]{}]", line)):
        raise RecursionError
    return tomllib.loads(text)


def check_values(value: Any, where: str, key: str = "", depth: int = 0) -> None:
    """Refuse what no key can hold: NaN, infinity, dates, text that no file can hold."""
    place = f"{where}: {key}"
    if depth > _DEPTH:
        raise ConfigError(f"{place[:200]} ...: nested too deeply")
    if isinstance(value, Mapping):
        for name, below in value.items():
            _check_text(str(name), f"{where}: key {name!r}")
            check_values(below, where, f"{key}.{name}" if key else str(name), depth + 1)
    elif isinstance(value, list | tuple):
        for below in value:
            check_values(below, where, key, depth + 1)
    elif isinstance(value, str):
        _check_text(value, f"{place} = {value[:60]!r}")
    elif isinstance(value, int):
        if not -_LIMIT <= value < _LIMIT:
            raise ConfigError(f"{place}: legal are whole numbers from -2**63 to 2**63 - 1")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise ConfigError(f"{place} = {value}: legal are finite numbers")
    elif value is not None:
        kind = type(value).__name__
        raise ConfigError(f"{place}: a {kind}; legal are numbers, text, true, false and lists")


def _check_text(text: str, place: str) -> None:
    if "\0" in text or any("\ud800" <= sign <= "\udfff" for sign in text):
        raise ConfigError(f"{place}: legal is text in UTF-8 without NUL")


_FORMAT = 1
_MAX_BYTES = 1_000_000
_MAX_DOTS = 20
PATHS = ("data.path", "model.weights")

# What stands in a run's configuration for an object that only Python has.
IN_PYTHON = "(given in Python)"


def parts_given_in_python(experiment: Experiment) -> list[str]:
    """Return the parts of a run that only Python has, for example `data` and `model`."""
    task = experiment.task
    named: dict[str, list[str | None]] = {
        "data": [experiment.data.name],
        "model": [experiment.model.name],
        "task": [task.name],
        "loss": [task.loss],
        "metrics": [*(task.metrics or ())],
    }
    return [part for part, names in named.items() if IN_PYTHON in names]


def read_toml(file: Path) -> Raw:
    """Read a TOML file, or say in one line what is wrong with it and where."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read ({error.strerror})") from error
    if len(content) > _MAX_BYTES:
        raise ConfigError(f"{file}: {len(content):,} bytes; a configuration has at most 1,000,000")
    try:
        return parsed(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: not UTF-8 (byte {error.start})") from error
    except ValueError as error:  # TOMLDecodeError, or a number of thousands of digits
        raise ConfigError(f"{file}: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{file}: nested too deeply") from error


def request(
    file: Path | None,
    flags: Mapping[str, Any],
    settings: Iterable[str],
    where: str,
    scale: str = "paper",
) -> Raw:
    """Merge what a user asks for: the file at a scale, then the flags, then `--set`."""
    return overridden(scaled(read_toml(file) if file else {}, scale), flags, settings, where)


def overridden(raw: Raw, flags: Mapping[str, Any], settings: Iterable[str], where: str) -> Raw:
    """Apply flags, then `--set`; make paths absolute."""
    given = {key: value for key, value in flags.items() if value is not None and value != []}
    if {"data.name", "data.path"} & given.keys() and isinstance(raw.get("data"), Mapping):
        kept = {key: value for key, value in raw["data"].items() if key not in ("name", "path")}
        raw = {**raw, "data": kept}
    for key, value in given.items():
        raw = placed(raw, key, value)
    raw = with_settings(raw, settings)
    check_values(raw, where)
    return with_absolute_paths(raw)


def with_settings(raw: Raw, settings: Iterable[str]) -> Raw:
    """Apply `key=value` settings; a value is TOML, or text where it is not.

    Examples:
        >>> with_settings({}, ["training.lr=0.1", "data.name=digits"])
        {'training': {'lr': 0.1}, 'data': {'name': 'digits'}}
    """
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set {setting!r}: expected key=value")
        if key.count(".") > _MAX_DOTS:
            raise ConfigError(f"--set {key[:60]!r} ...: nested too deeply")
        raw = placed(raw, key.strip(), _value(text.strip()))
    return raw


def looks_like_path(text: str) -> bool:
    """Tell a path from a name: it has a separator, or something lies there that is no data set.

    Examples:
        >>> looks_like_path("my/data"), looks_like_path("digits_mini"), looks_like_path("my:data")
        (True, False, False)
    """
    import fedbn.datasets

    if ":" in text or text in registry.names(fedbn.datasets):
        return False
    return "/" in text or "\\" in text or exists(Path(text))


def exists(path: Path) -> bool:
    """Tell whether something lies at a path that a user wrote, which may be no path at all."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def with_absolute_paths(raw: Raw) -> Raw:
    """Make paths absolute, so that a run can be resumed from any directory."""
    for key, value in flat(raw):
        if key.removeprefix("sweep.") in PATHS:
            raw = placed(raw, key, _absolute(value, key))
    return raw


def _absolute(value: Any, key: str) -> Any:
    if isinstance(value, list):
        return [_absolute(each, key) for each in value]
    try:
        return str(Path(value).resolve()) if isinstance(value, str) else value
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(f"{key} = {value!r}: {error}") from error


def held_by(folder: RunFolder) -> Held:
    """Name a run folder's file as the one that holds names."""
    file = folder.config if folder.config.is_file() else folder.request
    return Held(str(file), folder.module_places, announced=True)


def held_in(file: Path | None) -> Held:
    """Return the source of the names in an experiment file that a person opened.

    Python files below its folder are the person's own code. Without a file, all names were typed.
    """
    if file is None:
        return TYPED
    return Held(str(file), lambda: (folder_of(file),), own=folder_of(file))


def folder_of(file: Path) -> Path:
    """Return the folder in which an experiment file lies."""
    try:
        return file.parent.resolve()
    except (OSError, RuntimeError) as error:
        raise ConfigError(f"{file}: {error}") from error


def names_in(raw: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield every `module:callable` in a configuration, with what it names.

    The tables that change other keys are searched too: `sweep`, `quick` and those of `reproduce`.
    So are tables in lists, because a sweep may vary a whole section.

    Examples:
        >>> [*names_in({"sweep": {"model": {"name": ["mlp", "my:net"]}}})]
        [('model', 'my:net')]
        >>> [*names_in({"sweep": {"model": [{"name": "my:net"}]}})]
        [('model', 'my:net')]
    """
    from fedbn.experiments.schema import name_keys

    keys = name_keys()
    for key, value in _leaves(raw):
        for known, what in keys.items():
            if key == known or key.endswith(f".{known}"):
                pieces = (piece for text in _texts(value) for piece in _PIECES.split(text))
                names = (piece.partition("(")[0].strip() for piece in pieces)
                yield from ((what, name) for name in names if ":" in name)


def _leaves(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of tables by their dotted keys; a table in a list has the list's key."""
    for key, value in flat(tree, above):
        yield key, value
        for one in value if isinstance(value, list | tuple) else ():
            for table in _tables_in(one):
                yield from _leaves(table, f"{key}.")


def _tables_in(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield a table, or the tables in a list."""
    if isinstance(value, Mapping):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tables_in(one)


def check_names(raw: Mapping[str, Any], held: Held) -> None:
    """Raise if a configuration names a module that may not be imported; none is imported here."""
    for what, name in names_in(raw):
        registry.check(name, what, held)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _texts(one)


def allow_typed(flags: Mapping[str, Any], settings: Iterable[str], where: str) -> None:
    """Trust the names of code that a person typed as flags and with `--set`, and no others."""
    registry.allow(name for _, name in names_in(overridden({}, flags, settings, where)))


def held_experiment(folder: RunFolder) -> Experiment:
    """Read and check the configuration that a run folder holds.

    `config.toml` was checked when it was written: what is wrong now is damage, unlike in
    `request.toml`.
    """
    held, raw = held_by(folder), folder.read_request()
    if isinstance(raw.get("format"), int) and raw["format"] > _FORMAT:
        check_format(held.file, raw["format"], _FORMAT)
    try:
        return checked(raw, held.file, held)
    except ConfigError as error:
        if not folder.config.is_file():
            raise
        raise DamagedRun(f"{error} (damaged: it was right when it was written)") from error


def checked(
    raw: Mapping[str, Any], where: str = "configuration", held: Held = UNKNOWN
) -> Experiment:
    """Check a configuration; `held` says where its names come from.

    The changes of `[quick]` and of `[reproduce.without]` are checked too, each in its place. If the
    configuration is an experiment file, every module that it names must be the user's own code
    or trusted, also where this command does not need it.
    """
    if held.own is not None or held.foreign:
        check_values(raw, where)
        check_names(raw, held)
    found = _checked(raw, where, held)
    if found.quick:
        _checked(scaled(dict(raw), "quick"), f"{where} [quick]", held)
    if found.reproduce:
        for name, changes in found.reproduce.without.items():
            _checked(changed(dict(raw), changes), f"{where} [reproduce.without.{name}]", held)
    return found


def _checked(raw: Mapping[str, Any], where: str, held: Held) -> Experiment:
    from pydantic import ValidationError

    from fedbn.experiments.schema import Experiment

    check_values(raw, where)
    try:
        return Experiment.model_validate(dict(raw), context=held)
    except ValidationError as error:
        problems = error.errors(include_url=False)
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise ConfigError(f"{where}: {explained(problems[0], Experiment)}{more}") from error


# Names that other libraries use for keys of `[training]`.
_KNOWN_AS = {
    "learning_rate": "training.lr",
    "eta": "training.lr",
    "batch": "training.batch_size",
    "momentum": "training.optimizer_args",
    "weight_decay": "training.optimizer_args",
    "scheduler": "training.schedule",
    "lr_scheduler": "training.schedule",
}


def explained(problem: ErrorDetails, model: type[BaseModel]) -> str:
    """Say in one line what is wrong with one key."""
    key = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        legal = _keys_beside(problem["loc"], model)
        section, _, name = key.rpartition(".")
        known_as = _KNOWN_AS.get(name, "") if section in ("", "training") else ""
        return unknown("key", key, legal, known_as)
    text = problem["msg"].removeprefix("Value error, ")
    if not key:
        return text
    given = repr(problem["input"])
    given = given if len(given) <= 60 else f"{given[:57]}..."
    return f"{key} = {given}: {text[0].lower()}{text[1:]}"


def _keys_beside(loc: tuple[int | str, ...], model: type[BaseModel]) -> list[str]:
    path = []
    for part in loc[:-1]:
        path.append(str(part))
        if isinstance(part, int):  # a place in a list of sections
            continue
        section = model.model_fields[part].annotation
        # `ReproduceSection | None` is the section itself.
        named = section if isinstance(section, type) else typing.get_args(section)[0]
        assert isinstance(named, type)
        model = named
    return [".".join([*path, name]) for name in model.model_fields]


def _value(text: str) -> Any:
    try:
        found = parsed(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return found["value"] if len(found) == 1 else text


def folder() -> Path:
    """Where they lie: inside an installed package, or in the repository."""
    installed = Path(__file__).parent / "catalog"
    return installed if installed.is_dir() else Path(__file__).parents[3] / "experiments"


def experiments() -> dict[str, str]:
    """Map each name to the first line of its header."""
    return {file.stem: title(file) for file in sorted(folder().glob("*.toml"))}


def find(name: str) -> Path:
    """Find an experiment by name or path."""
    given = Path(name)
    if given.suffix == ".toml" or (exists(given) and not given.is_dir()):
        return given
    if name not in experiments():
        raise ConfigError(unknown("experiment", name, [*experiments(), "FILE.toml"]))
    return folder() / f"{name}.toml"


def title(file: Path) -> str:
    """The first line of a file's header."""
    return file.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
