"""Sites whose features differ in scale, as arrays and as npz files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

NAMES = ("left", "right")


def site(scale: float, seed: int, n: int = 60) -> tuple[np.ndarray, np.ndarray]:
    """n vectors of three numbers; the sign of the first, before its scale, is the class."""
    x = np.random.default_rng(seed).normal(size=(n, 3)).astype("float32")
    return (scale * x + scale).astype("float32"), (x[:, 0] > 0).astype("int64")


def write(folder: Path, scales: dict[str, float]) -> Path:
    """Write one npz a site, with named classes."""
    folder.mkdir(parents=True)
    for number, (name, scale) in enumerate(scales.items()):
        x, y = site(scale, number)
        parts = {"train_x": x[:40], "train_y": y[:40], "test_x": x[40:], "test_y": y[40:]}
        np.savez(folder / f"{name}.npz", **parts, classes=np.array(NAMES))
    return folder
