"""Checking npz files, one by one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fedbn.core.checks import check_name
from fedbn.data._files import shown
from fedbn.data._finding import Finding
from fedbn.data.arrays import common_classes, read_npz
from fedbn.errors import DataError


def examine_array_files(folder: Path) -> Iterator[Finding]:
    """Report files that cannot be read, hold pickled objects or have no labels."""
    for file in sorted(folder.glob("*.npz")):
        try:
            check_name(file.stem, "file name")
            common_classes({file: read_npz(file)})
        except DataError as error:
            text = str(error).removeprefix(f"{file}: ")
            yield Finding("error", shown(file.stem), shown(file), text)
