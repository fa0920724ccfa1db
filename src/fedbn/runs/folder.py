"""A run's folder: made whole or not at all, and used by one process at a time.

Its files are written so that a crash leaves the old one or the new one, never half of either.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import tomli_w
from filelock import FileLock, Timeout

from fedbn.errors import ConfigError, DamagedRun, FedbnError


def write_atomically(path: Path, content: bytes, kind: type[FedbnError] = FedbnError) -> None:
    """Replace a file as a whole; `kind` is as for `explained`."""
    temporary = temporary_name(path)
    with explained(path, kind):
        write_through(temporary, content)
        temporary.replace(path)
        sync_folder(path.parent)


def temporary_name(path: Path) -> Path:
    """Where a file is written before it takes its place."""
    return path.with_name(f".{path.name}.tmp")


def write_through(path: Path, content: bytes) -> None:
    """Write a file and wait until it is on disk."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on disk."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def to_json(value: Any) -> bytes:
    """Render JSON the same way every time."""
    return (json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()


def sealed(value: Mapping[str, Any]) -> bytes:
    """Render a manifest: JSON with a checksum of all the rest in it, as `sha256`."""
    return to_json({**value, "sha256": hashlib.sha256(to_json(value)).hexdigest()})


def unsealed(file: Path, reads: int) -> dict[str, Any]:
    """Read what `sealed` rendered, whole to the last byte, and of the format that is read here."""
    try:
        content = file.read_bytes()
        value = {key: part for key, part in json.loads(content).items() if key != "sha256"}
        format, whole = value.get("format"), content == sealed(value)
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise DamagedRun(f"{file}: missing or damaged") from error
    before_seals = format == 1 and b'"sha256"' not in content
    if not (whole or before_seals) or not isinstance(format, int):
        raise DamagedRun(f"{file}: damaged (its sha256 is not its own)")
    check_format(file, format, reads)
    return value


def check_format(file: Path | str, format: int, reads: int) -> None:
    """Refuse a file that was written by a fedbn of another time."""
    if format != reads:
        other = "a newer" if format > reads else "an older"
        raise DamagedRun(f"{file}: format {format} is from {other} fedbn; this reads {reads}")


@contextmanager
def explained(path: Path, kind: type[FedbnError] = FedbnError) -> Iterator[None]:
    """Turn what the system refuses into one line that names the file.

    A path that the user chose is a wrong value (`kind`), and not a run that failed.
    """
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        reason = "the disk is full" if full else error.strerror or str(error)
        hint = "; saved rounds are there: make room, then `fedbn resume`" if full else ""
        error_kind = FedbnError if full else kind
        raise error_kind(f"cannot write {path}: {reason}{hint}") from error


STOPPED = "stopped.json"
"""In a job's folder: why it ended before its last round, and which round is its best."""

_ORPHANS = 3.0  # seconds; loading torch takes as long again before a run is resumed
T = TypeVar("T")


class RunFolder:
    """Paths of a run folder and what may be done to it.

    Until the configuration has been checked, a folder holds only `request.toml`, what the user
    asked for; so even a run that is killed at once can be resumed.
    """

    def __init__(self, path: Path | str):
        self.path = Path(path)
        self.config = self.path / "config.toml"
        self.request = self.path / "request.toml"
        self.environment = self.path / "environment.json"
        self.metrics = self.path / "metrics.jsonl"
        self.splits = self.path / "splits.json.gz"
        self.curves = self.path / "curves.png"
        self.warnings = self.path / "warnings.jsonl"
        self.log = self.path / "run.log"
        self.lock = self.path / "run.lock"
        self.held: int | None = None  # the lock's descriptor: who has a copy of it holds the lock

    def job(self, method: str, setting: str, seed: int) -> Path:
        """The folder of one job."""
        return self._of_job("checkpoints", method, setting, seed)

    def stopped(self, method: str, setting: str, seed: int) -> bool:
        """Whether a job's patience ended before its rounds did."""
        return (self.job(method, setting, seed) / STOPPED).exists()

    def adapted(self, method: str, setting: str, seed: int) -> Path:
        """The folder of the sites that were adapted to a job."""
        return self._of_job("adapted", method, setting, seed)

    def _of_job(self, kind: str, method: str, setting: str, seed: int) -> Path:
        return self.path / kind / folder_name(method) / folder_name(setting) / f"seed-{seed}"

    def begin(self, request: Mapping[str, Any], modules: Path | None = None) -> list[Path]:
        """Make the folder and put the request into it; returns the folders that were made.

        `modules` is the folder of the experiment file, if there is one.
        """
        with explained(self.path, ConfigError):
            self.check_empty()
            made = [path for path in (self.path, *self.path.parents) if not path.exists()]
            self.path.mkdir(parents=True, exist_ok=True)
        content: dict[str, Any] = {"directory": str(Path.cwd()), "request": request}
        if modules is not None:
            content["modules"] = str(modules)
        try:
            write_atomically(self.request, tomli_w.dumps(content).encode())
        except FedbnError:
            self.abandon(made)
            raise
        return made

    def check_empty(self) -> None:
        """Refuse a folder that is there already and has something in it."""
        if not self.path.exists():
            return
        left_over = temporary_name(self.request)  # by a kill between two instructions
        if not self.path.is_dir() or any(path != left_over for path in self.path.iterdir()):
            raise ConfigError(
                f"--out {self.path} is not empty; choose another folder, or continue it with "
                f"`fedbn resume {self.path}`"
            )

    def abandon(self, made: Sequence[Path]) -> None:
        """Undo `begin`: nothing is left of a request that was refused."""
        with suppress(FedbnError, OSError), self.locked():
            for file in (self.request, self.environment, self.config):
                file.unlink(missing_ok=True)
                temporary_name(file).unlink(missing_ok=True)
            self.lock.unlink(missing_ok=True)
            for folder in made:
                folder.rmdir()

    def commit(self, config: Mapping[str, Any], environment: Mapping[str, Any]) -> None:
        """Put the checked configuration in place of the request."""
        write_atomically(self.environment, to_json(environment))
        write_atomically(self.config, tomli_w.dumps(config).encode())
        self.request.unlink(missing_ok=True)

    def read_request(self) -> dict[str, Any]:
        """Read what was asked for: the configuration, or the request before it was checked."""
        if self.config.is_file():
            return _toml(self.config)
        if self.request.is_file():
            return dict(self._request("request", dict))
        raise ConfigError(f"{self.path}: no run here (no config.toml); start one with `fedbn run`")

    def directory(self) -> Path:
        """Where the run was started: a user's own modules are imported from there."""
        if self.request.is_file():
            return Path(self._request("directory", str))
        return Path(self.read_environment().get("directory", "."))

    def modules(self) -> Path | None:
        """Return the folder of the experiment file; None if the run was started without a file."""
        if self.request.is_file():
            found = _toml(self.request).get("modules")
        else:
            found = self.read_environment().get("modules")
        return Path(found) if isinstance(found, str) else None

    def module_places(self) -> list[Path]:
        """Return the folders in which the user's own modules lie."""
        places = [self.modules(), self.directory()]
        return [place for place in places if place is not None]

    def _request(self, key: str, kind: type[T]) -> T:
        value = _toml(self.request).get(key)
        if not isinstance(value, kind):
            raise DamagedRun(f"{self.request}: damaged (no {key})")
        return value

    def read_environment(self) -> dict[str, Any]:
        """Read what the run was begun with; empty where it was not begun yet."""
        if not self.environment.is_file():
            return {}
        from pydantic import TypeAdapter  # takes a fifth of a second, and a request needs none

        from fedbn.runs.metrics import Environment, read_as

        try:
            content = self.environment.read_bytes()
        except OSError as error:
            raise DamagedRun(f"{self.environment}: {error.strerror}") from error
        found = read_as(TypeAdapter(Environment), content, str(self.environment))
        return found.model_dump(mode="json", exclude_unset=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder; the system lets go of it when the process ends, however it ends.

        And its workers, which may still write when it was killed: that is waited for a little.
        """
        lock = FileLock(self.lock, timeout=_ORPHANS)
        with explained(self.path):
            try:
                lock.acquire()
            except Timeout as error:  # an OSError itself
                raise FedbnError(f"{self.path} is in use by another process") from error
        if os.name == "posix":
            self.held = getattr(getattr(lock, "_context", None), "lock_file_fd", None)
        try:
            yield
        finally:
            self.held = None
            lock.release()


RECORDS_ALONE = "records-alone"
"""The file in a job's folder that says: its numbers came into a merged run without checkpoints."""


def without_checkpoints(job: Path) -> bool:
    """Tell whether a job is finished and has its records alone."""
    return (job / RECORDS_ALONE).is_file()


PLAIN_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,99}"
"""A name that others give and that becomes a path here: of a federation, a site, a run."""


def check_name(name: str, what: str) -> str:
    """Refuse a name that could lead elsewhere than into its folder.

    Examples:
        >>> check_name("nyu", "site")
        'nyu'
    """
    if not re.fullmatch(PLAIN_NAME, name):
        raise ConfigError(
            f"{what} {name[:100]!r}: legal are 1 to 100 letters, digits and _ . - (not . - first)"
        )
    return name


def folder_name(text: str) -> str:
    """Make a folder's name of a method or setting as the user wrote it."""
    return re.sub(r"[^\w.=,+() \-]", "_", text).strip(". ") or "_"


def _toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise DamagedRun(f"{file}: damaged ({error})") from error
