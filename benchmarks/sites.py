"""Made-up clients as files, for whole commands and for peers; needs NumPy alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np

FEATURES, CLASSES, TRAIN, TEST, ROUNDS = 32, 10, 64, 16, 20


def site(number: int) -> dict[str, np.ndarray]:
    """One client's arrays; all classes are there."""
    draws = np.random.default_rng(number)
    made = {}
    for name, count in (("train", TRAIN), ("test", TEST)):
        labels = draws.integers(0, CLASSES, count)
        labels[:CLASSES] = range(CLASSES)
        made[f"{name}_x"] = draws.normal(size=(count, FEATURES)).astype("float32")
        made[f"{name}_y"] = labels
    return made


def write_sites(folder: Path, clients: int) -> Path:
    """Write one npz file a client."""
    folder.mkdir(parents=True)
    for number in range(clients):
        np.savez(folder / f"client-{number:05d}.npz", **site(number))
    return folder
