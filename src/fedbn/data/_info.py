"""What `fedbn data ls` tells of a data set, and where data lies on this machine."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from fedbn.errors import DataError


@dataclass(frozen=True)
class Info:
    """The facts about a data set; its module has one by its name in `INFO`.

    Attributes:
        title: One line for a person.
        clients: How many, and of what size ("5 of 743").
        classes: How many.
        shape: The shape of a sample ("3×28×28").
        source: Where it comes from.
        licence: As its owners state it.
        files: Patterns below the data root, all of which must match for the data to be there;
            empty for data that needs no file.
        module: What must be installed to read or make it, beside this library's own needs.
        extra: The part of this library that brings the module (`pip install fedbn[EXTRA]`).
    """

    title: str
    clients: str
    classes: int
    shape: str
    source: str
    licence: str
    files: tuple[str, ...] = ()
    module: str = ""
    extra: str = ""

    def is_installed(self) -> bool:
        """Tell whether the module it needs is there."""
        return not self.module or importlib.util.find_spec(self.module) is not None

    def is_there(self, root: Path | None = None) -> bool:
        """Tell whether the files it needs are below the data root."""
        folder = root or data_root()
        return all(any(folder.glob(pattern)) for pattern in self.files)

    def places(self, folder: Path) -> dict[Path, Path] | None:
        """Where below the data root the files of a folder go; None where none are taken over."""
        return None


def data_root() -> Path:
    """The folder for data: `FEDBN_DATA`, or a cache folder in the user's home."""
    return Path(os.environ.get("FEDBN_DATA") or home() / ".cache" / "fedbn")


def home() -> Path:
    """The user's home; a folder among the temporary ones for a container's user who has none.

    Raises:
        DataError: Where somebody else made that folder, who could put anything into it.
    """
    try:
        return Path.home()
    except RuntimeError:
        folder = Path(tempfile.gettempdir()) / f"fedbn-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.lstat().st_uid == os.getuid():
            return folder
        raise DataError(
            f"{folder}: belongs to somebody else, and this user has no home; "
            "let HOME or FEDBN_DATA name a folder"
        ) from None
