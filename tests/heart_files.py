"""Files like those of the UCI heart disease data, for tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedbn.datasets.heart import SITES


def written(root: Path, people: int = 20) -> Path:
    """Four files of people; the first of each lacks its cholesterol, the second its thal alone."""
    folder = root / "heart"
    folder.mkdir(parents=True, exist_ok=True)
    draws = np.random.default_rng(0)
    for unit, name in enumerate(SITES.values(), start=1):
        rows = []
        for person in range(people + 1):
            plain = [f"{unit * value:.1f}" for value in draws.normal(50, 9, 10)]
            plain[0] = f"{float(plain[0]) / unit:.1f}"  # an age is one everywhere
            for bit, column in enumerate((1, 5, 8)):  # sex, fbs, exang: yes or no
                plain[column] = f"{person >> bit & 1}.0"
            plain[2], plain[6] = f"{1 + person % 4}.0", f"{person % 3}"
            rest = ["2.0", "0.0", "6.0", str(person % 5 * (person % 2))]
            rows.append([*plain, *rest])
        rows[0][4], rows[1][12] = "?", "NaN"
        text = "\n".join(",".join(row) for row in rows)
        (folder / f"processed.{name}.data").write_text(text + "\n")
    return folder
