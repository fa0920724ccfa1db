"""Draw docs/images/problem.png: the demo's clients, and what FedAvg and FedBN reach at each.

The numbers are those of the table in docs/tutorial.md: `python scripts/problem_picture.py`.
"""

from __future__ import annotations

import re
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import numpy as np
from matplotlib import pyplot as plt

from fedbn.datasets.digits_mini import digits_mini

ROOT = Path(__file__).parent.parent
COLOURS = {"FedAvg": "#b0b4bd", "FedBN": "#3f51b5"}


def numbers(method: str) -> list[float]:
    """A row of the demo's table: five clients, in per cent."""
    text = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    row = re.search(rf"^\| {method} \|(.*)$", text, re.MULTILINE)
    assert row is not None
    return [float(cell) for cell in re.findall(r"([\d.]+) ±", row[1])[:5]]


def picture() -> None:
    """Samples above, bars below; one column a client."""
    clients = digits_mini().clients
    figure, axes = plt.subplots(
        2, len(clients), figsize=(7, 3), dpi=200, height_ratios=(1, 1.3), layout="constrained"
    )
    found = {method: numbers(method) for method in COLOURS}
    for column, client in enumerate(clients):
        chosen = [int(np.flatnonzero(client.train.y.numpy() == digit)[0]) for digit in (2, 5, 7)]
        shown = (client.train.x[chosen].numpy().transpose(0, 2, 3, 1) + 1) / 2
        above, below = axes[:, column]
        above.imshow(np.concatenate(list(shown), axis=1).clip(0, 1))
        above.set_title(client.name, fontsize=9)
        above.axis("off")
        for place, (method, colour) in enumerate(COLOURS.items()):
            value = found[method][column]
            below.bar(place, value, color=colour, width=0.9)
            below.text(place, value + 2, f"{value:.0f} %", ha="center", fontsize=7)
        below.set(ylim=(0, 115), xlim=(-0.7, 1.7), yticks=[])
        below.set_xticks([0, 1], COLOURS, fontsize=8)
        below.spines[["top", "left", "right"]].set_visible(False)
        below.tick_params(length=0)
    figure.savefig(ROOT / "docs" / "images" / "problem.png")


if __name__ == "__main__":
    picture()
