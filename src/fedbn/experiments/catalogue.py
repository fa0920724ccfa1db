"""The experiments that come with the package, by name."""

from __future__ import annotations

from pathlib import Path

from fedbn.errors import ConfigError, unknown
from fedbn.experiments.loading import exists


def folder() -> Path:
    """Where they lie: inside an installed package, or in the repository."""
    installed = Path(__file__).parent / "catalog"
    return installed if installed.is_dir() else Path(__file__).parents[3] / "experiments"


def experiments() -> dict[str, str]:
    """Map each name to the first line of its header."""
    files = sorted(folder().glob("*.toml"))
    return {file.stem: title(file) for file in files}


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
