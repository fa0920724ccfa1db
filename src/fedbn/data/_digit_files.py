"""Where the five digit data sets may lie below `FEDBN_DATA/digits`.

Looked for in `digits/` and `digits/DOMAIN/`, the first complete form wins: a `DOMAIN.npz`, used
as split, or the original files, whose train and test parts are pooled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedbn.data._digit_forms import FORMS, Samples
from fedbn.errors import DataError

DOMAINS = ("svhn", "usps", "synthdigits", "mnist_m", "mnist")
"""In the order of the paper's tables."""


@dataclass(frozen=True)
class Source:
    """The files of a domain that were found, and their reader.

    Attributes:
        domain: The domain.
        files: The files or folders, in the order of its form.
        read: Reads them.
    """

    domain: str
    files: tuple[Path, ...]
    read: Callable[[Sequence[Path]], list[Samples]]

    @property
    def split(self) -> bool:
        """Whether the files are already divided into training and test part."""
        return self.files[0].suffix == ".npz"

    def parts(self) -> list[Samples]:
        """Read and check: the pooled samples, or training and test part."""
        parts = self.read(self.files)
        for images, labels in parts:
            _check(images, labels, f"{self.domain} ({self.files[0]})")
        return parts


def find_source(folder: Path, domain: str) -> Source | None:
    """Find a domain's files below a folder; None where there are none.

    Raises:
        DataError: Where some files of a form are there and others lack, or only a pickle is.
    """
    gaps = []
    for form in FORMS[domain]:
        for place in (folder, folder / domain):
            files = tuple(place / name for name in form.files)
            there = [file.exists() for file in files]
            if all(there):
                return Source(domain, files, form.read)
            if any(there):
                lacking = [f.name for f, is_there in zip(files, there, strict=True) if not is_there]
                gaps.append(f"{place}: {domain} is incomplete: no {', '.join(lacking)}")
    for gap in gaps:
        raise DataError(gap)
    _refuse_pickle(folder, domain)
    return None


def describe_forms(domain: str) -> str:
    """Name the files that would do, for a message."""
    return ", or ".join(" + ".join(form.files) for form in FORMS[domain])


def _refuse_pickle(folder: Path, domain: str) -> None:
    for place in (folder, folder / domain):
        for file in place.glob("*.pkl*"):
            if domain == "mnist_m" and "mnistm" in file.name.lower().replace("_", ""):
                raise DataError(
                    f"{file}: a pickle, which can run code: refused; legal are "
                    f"{describe_forms(domain)}"
                )


def _check(images: NDArray[np.uint8], labels: NDArray[np.int64], where: str) -> None:
    if images.dtype != np.uint8 or not (images.ndim == 3 or images.shape[3:] in ((1,), (3,))):
        raise DataError(
            f"{where}: images of {images.dtype} {images.shape}; legal are uint8 of (n, height, "
            "width), (n, height, width, 1) or (n, height, width, 3)"
        )
    if len(images) != len(labels):
        raise DataError(f"{where}: {len(images)} images but {len(labels)} labels")
    if not len(labels):
        raise DataError(f"{where}: no images")
    if labels.min() < 0 or labels.max() > 9:
        raise DataError(f"{where}: labels from {labels.min()} to {labels.max()}; legal are 0 to 9")
