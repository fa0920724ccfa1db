"""Draw docs/images/problem.png: the demo's clients, and the accuracy at each of them.

FedAvg is shown with both evaluations: with its averaged BatchNorm statistics, and the same weights
with each client's own running statistics.

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
# Of each bar: the row of the table, its label and its colour.
BARS = (
    ("FedAvg", "FedAvg", "#b0b4bd"),
    ("FedAvg, local statistics", "FedAvg, own\nstatistics", "#7d8dc9"),
    ("FedBN", "FedBN", "#3f51b5"),
)


def numbers(method: str) -> list[float]:
    """Return a row of the demo's table: five clients, in per cent."""
    text = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    row = re.search(rf"^\| {method} \|(.*)$", text, re.MULTILINE)
    assert row is not None
    return [float(cell) for cell in re.findall(r"([\d.]+) ±", row[1])[:5]]


def picture() -> None:
    """Draw samples above and bars below; one column per client."""
    clients = digits_mini().clients
    figure, axes = plt.subplots(
        2, len(clients), figsize=(7, 3), dpi=200, height_ratios=(1, 1.3), layout="constrained"
    )
    found = {method: numbers(method) for method, *_ in BARS}
    for column, client in enumerate(clients):
        chosen = [int(np.flatnonzero(client.train.y.numpy() == digit)[0]) for digit in (2, 5, 7)]
        shown = (client.train.x[chosen].numpy().transpose(0, 2, 3, 1) + 1) / 2
        above, below = axes[:, column]
        above.imshow(np.concatenate(list(shown), axis=1).clip(0, 1))
        above.set_title(client.name, fontsize=9)
        above.axis("off")
        for place, (method, _, colour) in enumerate(BARS):
            value = found[method][column]
            below.bar(place, value, color=colour, width=0.9)
            below.text(place, value + 2, f"{value:.0f} %", ha="center", fontsize=6)
        below.set(ylim=(0, 115), xlim=(-0.7, len(BARS) - 0.3), yticks=[])
        below.set_xticks(range(len(BARS)), [label for _, label, _ in BARS], fontsize=5.5)
        below.spines[["top", "left", "right"]].set_visible(False)
        below.tick_params(length=0)
    figure.savefig(ROOT / "docs" / "images" / "problem.png")


if __name__ == "__main__":
    picture()
