"""Writes small files in the very formats in which the digit data sets are distributed."""

from __future__ import annotations

import bz2
import gzip
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.io import savemat

Pixels = NDArray[np.uint8]
Labels = NDArray[np.int64]

IDX_NAMES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


def images(count: int, side: int, channels: int = 0, seed: int = 0) -> Pixels:
    """Random images; grey where no channels are asked for."""
    shape = (count, side, side, channels) if channels else (count, side, side)
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def labels(count: int) -> Labels:
    """The digits 0 to 9 over and over."""
    return np.arange(count) % 10


def idx_bytes(array: NDArray[np.uint8]) -> bytes:
    """An idx file: two zeros, the type, the number of dimensions, the sizes, the bytes."""
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.tobytes()


def write_mnist(folder: Path, x: Pixels, y: Labels, test: int, zipped: bool = True) -> None:
    """MNIST: four idx files, the last `test` samples in the second pair."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = [x[:-test], y[:-test], x[-test:], y[-test:]]
    for name, part in zip(IDX_NAMES, parts, strict=True):
        content = idx_bytes(part.astype(np.uint8))
        if zipped:
            (folder / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / name).write_bytes(content)


def write_mat(file: Path, x: Pixels, y: Labels) -> None:
    """SVHN and SynthDigits: X of (32, 32, 3, n), y of (n, 1); MATLAB 5, compressed."""
    file.parent.mkdir(parents=True, exist_ok=True)
    content = {"X": np.moveaxis(x, 0, 3), "y": y[:, None].astype(np.uint8)}
    savemat(file, content, do_compression=True)


def write_mat73(file: Path) -> None:
    """A MATLAB 7.3 file: HDF5 behind a text header of 512 bytes."""
    import h5py

    with h5py.File(file, "w", userblock_size=512) as content:
        content["X"] = np.zeros((2, 3, 32, 32), np.uint8)
    header = b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(124) + b"\x00\x02IM"
    with file.open("r+b") as stream:
        stream.write(header)


def write_libsvm(file: Path, x: Pixels, y: Labels) -> None:
    """USPS: `LABEL 1:VALUE 2:VALUE ... ` with labels from 1 and values in [−1, 1], bz2."""
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = []
    for image, label in zip(x, y, strict=True):
        values = image.ravel() / 127.5 - 1
        pixels = "".join(f"{i}:{value:.6g} " for i, value in enumerate(values, start=1))
        lines.append(f"{label + 1} {pixels}\n")
    file.write_bytes(bz2.compress("".join(lines).encode()))


def write_usps_hdf5(file: Path, x: Pixels, y: Labels, test: int) -> None:
    """USPS: groups train and test with data (n, 256) in [0, 1] and target."""
    import h5py

    file.parent.mkdir(parents=True, exist_ok=True)
    flat = (x.reshape(len(x), -1) / 255).astype(np.float32)
    with h5py.File(file, "w") as content:
        for part, rows in (("train", slice(-test)), ("test", slice(-test, None))):
            content[f"{part}/data"] = flat[rows]
            content[f"{part}/target"] = y[rows].astype(np.int32)


def write_mnist_m(folder: Path, x: Pixels, y: Labels, test: int) -> None:
    """MNIST-M: folders of PNG files, and text files with a name and a digit a line."""
    for part, rows in (("train", slice(-test)), ("test", slice(-test, None))):
        inside = folder / f"mnist_m_{part}"
        inside.mkdir(parents=True)
        lines = []
        for number, (image, label) in enumerate(zip(x[rows], y[rows], strict=True)):
            name = f"{number:08d}.png"
            Image.fromarray(image).save(inside / name)
            lines.append(f"{name} {label}\n")
        (folder / f"mnist_m_{part}_labels.txt").write_text("".join(lines))


def write_npz(file: Path, train: tuple[Pixels, Labels], test: tuple[Pixels, Labels]) -> None:
    """A prepared domain, already divided."""
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez(
        file,
        train_images=train[0],
        train_labels=train[1],
        test_images=test[0],
        test_labels=test[1],
    )


def write_prepared(folder: Path, train: int = 60, test: int = 20) -> None:
    """The four domains that have files, as npz in their native shapes."""
    shapes = {"svhn": (28, 3), "usps": (16, 0), "mnist_m": (28, 3), "mnist": (28, 0)}
    for seed, (domain, (side, channels)) in enumerate(shapes.items()):
        parts = [
            (images(count, side, channels, seed=10 * seed + count), labels(count))
            for count in (train, test)
        ]
        write_npz(folder / f"{domain}.npz", parts[0], parts[1])
