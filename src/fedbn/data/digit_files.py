"""The five digit data sets: the forms in which they are passed around, and how each is read.

Looked for in `FEDBN_DATA/digits` and `digits/DOMAIN`, the first complete form wins: a `DOMAIN.npz`,
used as split, or the original files, whose train and test parts are pooled. A reader brings files
to images and labels; what must hold of these is checked once, in `DigitSource.parts`.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.io import loadmat
from scipy.io.matlab import MatReadError
from sklearn.datasets import load_svmlight_file

from fedbn.data.arrays import read_npz
from fedbn.data.images import opened, watched
from fedbn.errors import DataError

Digits = tuple[NDArray[np.uint8], NDArray[np.int64]]
"""Images (n, height, width) or (n, height, width, channels), and the digits they show."""
Unchecked = tuple[NDArray[Any], NDArray[Any]]
"""The same, not checked yet."""
_UNSIGNED_BYTES = 0x08


def read_idx(file: Path, dimensions: int) -> NDArray[np.uint8]:
    """Read an idx file of unsigned bytes, gzipped or not: 3 dimensions for images, 1 for labels."""
    try:
        content = file.read_bytes()
        content = gzip.decompress(content) if file.suffix == ".gz" else content
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{file}: unreadable, cut off or not a gzip file ({error})") from error
    expected = bytes([0, 0, _UNSIGNED_BYTES, dimensions])
    if content[:4] != expected:
        raise DataError(
            f"{file}: not an idx file of {dimensions}-dimensional bytes: it begins with "
            f"{content[:4].hex(' ') or 'nothing'}, expected {expected.hex(' ')}"
        )
    begin = 4 + 4 * dimensions
    if len(content) < begin:
        raise DataError(f"{file}: cut off within its header of {begin} bytes")
    shape = struct.unpack(f">{dimensions}I", content[4:begin])
    size = int(np.prod(shape, dtype=object))
    if len(content) - begin != size:
        raise DataError(
            f"{file}: its header promises {size} bytes for shape {shape}, "
            f"but {len(content) - begin} follow"
        )
    return np.frombuffer(content, np.uint8, offset=begin).reshape(shape)


def read_mat(file: Path) -> list[Unchecked]:
    """Read SVHN's or SynthDigits': `X` of (h, w, 3, n) and `y`, in which 10 is the digit 0."""
    try:
        content: dict[str, Any] = loadmat(file, variable_names=["X", "y"])
        if len([key for key in content if not key.startswith("__")]) < 2:
            content = loadmat(file)
    except NotImplementedError as error:
        raise DataError(
            f"{file}: a MATLAB 7.3 file, which is HDF5; expected version 5 (save it with '-v7')"
        ) from error
    except (OSError, ValueError, TypeError, MatReadError, zlib.error, EOFError) as error:
        raise DataError(f"{file}: damaged or not a MATLAB file ({error})") from error
    if lacking := [key for key in ("X", "y") if key not in content]:
        names = [key for key in content if not key.startswith("__")]
        raise DataError(f"{file}: no {' and '.join(lacking)}; it has {', '.join(names) or 'none'}")
    labels = content["y"].reshape(-1)
    return [(np.moveaxis(content["X"], -1, 0), np.where(labels == 10, 0, labels))]


_SIDE = 16


def read_libsvm(file: Path) -> list[Unchecked]:
    """Read `usps.bz2` or `usps.t.bz2`: labels 1 to 10 for the digits 0 to 9, pixels in [−1, 1]."""
    try:
        pixels, labels = load_svmlight_file(str(file), n_features=_SIDE**2, zero_based=False)
    except (OSError, EOFError, ValueError) as error:
        raise DataError(f"{file}: damaged or not libsvm text ({error})") from error
    if not np.isin(labels, range(1, 11)).all():
        raise DataError(f"{file}: labels from {labels.min()} to {labels.max()}; legal are 1 to 10")
    return [(_images((pixels.toarray() + 1) / 2, file), labels - 1)]


def read_hdf5(file: Path) -> list[Unchecked]:
    """Read `usps.h5`: `train` and `test`, each with `data` (n, 256) in [0, 1] and `target`."""
    try:
        import h5py
    except ImportError as error:
        raise DataError(
            f"{file}: reading HDF5 needs h5py: pip install fedbn[hdf5], "
            "or use usps.bz2 and usps.t.bz2"
        ) from error
    try:
        with h5py.File(file, "r") as content:
            parts = [
                (np.asarray(content[part]["data"]), np.asarray(content[part]["target"]))
                for part in ("train", "test")
            ]
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{file}: damaged, or without train/data, train/target, test/data, test/target "
            f"({error})"
        ) from error
    return [(_images(data, file), target) for data, target in parts]


def _images(pixels: NDArray[Any], file: Path) -> NDArray[np.uint8]:
    flat = pixels.reshape(len(pixels), -1)
    if flat.shape[1] != _SIDE**2:
        raise DataError(f"{file}: {flat.shape[1]} pixels an image; expected {_SIDE**2}")
    if not (flat.min() >= 0 and flat.max() <= 1):
        raise DataError(
            f"{file}: pixels outside their range; legal are [−1, 1] in libsvm text, [0, 1] in HDF5"
        )
    images: NDArray[np.uint8] = np.rint(flat * 255).astype(np.uint8)
    return images.reshape(-1, _SIDE, _SIDE)


def read_labelled_folder(folder: Path, table: Path) -> list[Unchecked]:
    """Read the images that a table of `NAME LABEL` lines names, all of one size, in its order."""
    rows = _rows(table)
    images = []
    for file in (folder / name for name, _ in rows):
        if not file.exists():
            raise DataError(f"{file}: named in {table.name}, but not there")
        with watched(), opened(file) as image:
            images.append(np.asarray(image.convert("RGB")))
    odd = next((i for i, image in enumerate(images) if image.shape != images[0].shape), None)
    if odd is not None:
        raise DataError(
            f"{folder / rows[odd][0]}: {images[odd].shape[1]}×{images[odd].shape[0]} pixels, but "
            f"{rows[0][0]} has {images[0].shape[1]}×{images[0].shape[0]}"
        )
    return [(np.stack(images), np.array([label for _, label in rows]))]


def _rows(table: Path) -> list[tuple[str, int]]:
    try:
        lines = [line.split() for line in table.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{table}: unreadable or not text ({error})") from error
    for number, words in enumerate(lines, start=1):
        if words and not (
            len(words) == 2 and words[1].isdecimal() and Path(words[0]).name == words[0]
        ):
            line = " ".join(words)
            raise DataError(f"{table}, line {number}: {line!r}; expected a file's name and a digit")
    if not (rows := [(words[0], int(words[1])) for words in lines if words]):
        raise DataError(f"{table}: no line; expected a file's name and a digit on each")
    return rows


def read_idx_pair(images: Path, labels: Path) -> list[Unchecked]:
    """Read MNIST's images and their labels."""
    return [(read_idx(images, 3), read_idx(labels, 1))]


def read_divided(file: Path) -> list[Unchecked]:
    """Read an npz that holds a training and a test part."""
    content = read_npz(file)
    keys = [f"{part}_{kind}" for part in ("train", "test") for kind in ("images", "labels")]
    for key in keys:
        if key not in content:
            raise DataError(f"{file}: no {key}; it has {', '.join(content) or 'nothing'}")
    train, train_labels, test, test_labels = (content[key] for key in keys)
    return [(train, train_labels), (test, test_labels)]


@dataclass(frozen=True)
class FileForm:
    """One way in which a data set is passed around.

    `read` takes one file, or as many as go `together` for one part, and gives the parts in them.
    """

    files: tuple[str, ...]
    read: Callable[..., list[Unchecked]]
    together: int = 1


_IDX = tuple(
    f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
)
_MNIST_M = tuple(
    f"mnist_m_{part}{end}" for part in ("train", "test") for end in ("", "_labels.txt")
)
FORMS = {
    "svhn": (
        FileForm(("svhn.npz",), read_divided),
        FileForm(("train_32x32.mat", "test_32x32.mat"), read_mat),
    ),
    "usps": (
        FileForm(("usps.npz",), read_divided),
        FileForm(("usps.bz2", "usps.t.bz2"), read_libsvm),
        FileForm(("usps.h5",), read_hdf5),
    ),
    "synthdigits": (
        FileForm(("synthdigits.npz",), read_divided),
        FileForm(("synth_train_32x32.mat", "synth_test_32x32.mat"), read_mat),
    ),
    "mnist_m": (
        FileForm(("mnist_m.npz",), read_divided),
        FileForm(_MNIST_M, read_labelled_folder, 2),
    ),
    "mnist": (
        FileForm(("mnist.npz",), read_divided),
        FileForm(tuple(f"{name}.gz" for name in _IDX), read_idx_pair, 2),
        FileForm(_IDX, read_idx_pair, 2),
    ),
}
"""By domain, in the order in which they are looked for."""
DIGIT_DOMAINS = ("svhn", "usps", "synthdigits", "mnist_m", "mnist")
"""In the order of the paper's tables."""


@dataclass(frozen=True)
class DigitSource:
    """The files or folders of a domain that were found, and how they are read."""

    domain: str
    files: tuple[Path, ...]
    form: FileForm

    @property
    def split(self) -> bool:
        """Whether the files are already divided into training and test part."""
        return self.files[0].suffix == ".npz"

    def parts(self) -> list[Digits]:
        """Read and check: the pooled samples, or training and test part."""
        parts: list[Digits] = []
        for begin in range(0, len(self.files), self.form.together):
            group = self.files[begin : begin + self.form.together]
            where = f"{self.domain} ({group[0]})"
            parts += [_checked(*part, where) for part in self.form.read(*group)]
        if self.split:
            return parts
        images, labels = zip(*parts, strict=True)
        return [(np.concatenate(images), np.concatenate(labels))]


def find_source(folder: Path, domain: str) -> DigitSource | None:
    """Find a domain's files below a folder, of one form whole; None where there are none."""
    gaps = []
    for form in FORMS[domain]:
        for place in (folder, folder / domain):
            files = tuple(place / name for name in form.files)
            there = [file.exists() for file in files]
            if all(there):
                return DigitSource(domain, files, form)
            if any(there):
                lacking = [f.name for f, is_there in zip(files, there, strict=True) if not is_there]
                gaps.append(f"{place}: {domain} is incomplete: no {', '.join(lacking)}")
    for gap in gaps:
        raise DataError(gap)
    for file in (f for place in (folder, folder / domain) for f in place.glob("*.pkl*")):
        if domain == "mnist_m" and "mnistm" in file.name.lower().replace("_", ""):
            legal = describe_forms(domain)
            raise DataError(f"{file}: a pickle, which can run code: refused; legal are {legal}")
    return None


def describe_forms(domain: str) -> str:
    """Name the files that would do, for a message."""
    return ", or ".join(" + ".join(form.files) for form in FORMS[domain])


def _checked(images: NDArray[Any], labels: NDArray[Any], where: str) -> Digits:
    if images.dtype != np.uint8 or not (images.ndim == 3 or images.shape[3:] in ((1,), (3,))):
        raise DataError(
            f"{where}: images of {images.dtype} {images.shape}; legal are uint8 of (n, height, "
            "width), (n, height, width, 1) or (n, height, width, 3)"
        )
    if labels.dtype.kind not in "iuf" or labels.ndim != 1:
        raise DataError(
            f"{where}: labels of {labels.dtype} {labels.shape}; legal are whole numbers, one each"
        )
    if len(images) != len(labels):
        raise DataError(f"{where}: {len(images)} images but {len(labels)} labels")
    if not len(labels):
        raise DataError(f"{where}: no images")
    if not np.isin(labels, range(10)).all():
        raise DataError(f"{where}: labels from {labels.min()} to {labels.max()}; legal are 0 to 9")
    return images, labels.astype(np.int64)
