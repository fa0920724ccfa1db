"""One run's folder: made whole or not at all, and used by one process at a time."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tomli_w
from filelock import FileLock, Timeout

from fedbn.errors import ConfigError, DamagedRun, FedbnError
from fedbn.runs.files import explained, to_json, write_atomically


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
        self.curves = self.path / "curves.png"

    def job(self, method: str, setting: str, seed: int) -> Path:
        """The folder of one job."""
        return self.path / "checkpoints" / _file_name(method) / _file_name(setting) / f"seed-{seed}"

    def begin(self, request: Mapping[str, Any]) -> bool:
        """Make the folder and put the request into it; False where the folder was there, empty."""
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise ConfigError(
                f"--out {self.path} is not empty; choose another folder, or continue it with "
                f"`fedbn resume {self.path}`"
            )
        made = not self.path.exists()
        with explained(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        content = {"directory": str(Path.cwd()), "request": request}
        write_atomically(self.request, tomli_w.dumps(content).encode())
        return made

    def abandon(self, made: bool) -> None:
        """Undo `begin`: nothing is left of a request that was refused."""
        self.request.unlink(missing_ok=True)
        self.path.joinpath("run.lock").unlink(missing_ok=True)
        if made:
            self.path.rmdir()

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
            return dict(_toml(self.request)["request"])
        raise ConfigError(f"{self.path}: no run here (no config.toml); start one with `fedbn run`")

    def directory(self) -> Path:
        """Where the run was started: a user's own modules are imported from there."""
        if self.request.is_file():
            return Path(_toml(self.request)["directory"])
        return Path(self.read_environment().get("directory", "."))

    def read_environment(self) -> dict[str, Any]:
        """Read what the run was begun with; empty where it was not begun yet."""
        if not self.environment.is_file():
            return {}
        try:
            found: dict[str, Any] = json.loads(self.environment.read_bytes())
            return found
        except ValueError as error:
            raise DamagedRun(f"{self.environment}: damaged") from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder; the system lets go of it when the process ends, however it ends."""
        lock = FileLock(self.path / "run.lock", timeout=0)
        try:
            with explained(self.path):
                lock.acquire()
        except Timeout as error:
            raise FedbnError(f"{self.path} is in use by another process") from error
        try:
            yield
        finally:
            lock.release()


def _file_name(text: str) -> str:
    """Make a folder's name of a method or setting as the user wrote it."""
    return re.sub(r"[^\w.=,+() \-]", "_", text).strip(". ") or "_"


def _toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise DamagedRun(f"{file}: damaged ({error})") from error
