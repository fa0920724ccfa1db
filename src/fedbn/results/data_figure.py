"""The picture of a federation's data: examples and histograms, counts, and distances."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from fedbn.results import BLUE, GREEN, VERMILION
from fedbn.results.figures import headed, plain, saved, styled
from fedbn.text import short

LINES: dict[str, tuple[str, Any]] = {
    "red": (VERMILION, "-"),
    "green": (GREEN, (0, (4, 1.2))),
    "blue": (BLUE, (0, (1, 1))),
}
"""A colour and a line style each, for whoever cannot tell the colours apart."""
_STYLE = {"axes.grid": False, "axes.linewidth": 0.6, "font.size": 7.5,
          "xtick.labelsize": 6.5, "ytick.labelsize": 7, "legend.fontsize": 6.5}  # fmt: skip
MOST_CLIENTS, MOST_CLASSES = 10, 20
LONGEST_LINE, FLAT_SIGNS = 110, 24
"""Signs of a line; names of so few signs together need no slant."""
WIDTH, ROW, CELL = 7.2, 0.5, 0.24
INCHES_A_SIGN = 0.056


def draw_data(survey: Mapping[str, Any], file: Path) -> Path:
    """Draw a survey (`fedbn.data.survey.survey`) as PNG or SVG, by the name of the file."""
    some = _some(survey)
    shown = len(some["clients"])
    heights = [shown * ROW + 0.75, shown * CELL + 1.0]
    with styled(_STYLE):
        figure = Figure(figsize=(WIDTH, sum(heights) + 0.25))
        figure.suptitle(_title(survey, shown), fontsize=8, x=0.01, ha="left")
        parts: Any = figure.subfigures(2, 1, height_ratios=heights)
        _draw_clients(parts[0], some)
        _draw_matrices(parts[1], some)
        return saved(figure, file, kinds=[file.suffix])[0]


def _some(survey: Mapping[str, Any]) -> dict[str, Any]:
    """Keep ten clients at most, evenly spread: neighbours are likely to be of one domain."""
    count = len(survey["clients"])
    shown = min(count, MOST_CLIENTS)
    chosen = [place * count // shown for place in range(shown)]
    lists = ("clients", "train", "test", "histograms", "examples")
    kept = {name: [survey[name][i] for i in chosen] for name in lists if survey[name]}
    apart = [[survey["distances"][i][j] for j in chosen] for i in chosen]
    return {**survey, **kept, "distances": apart}


def _title(survey: Mapping[str, Any], shown: int) -> str:
    clients, shape = len(survey["clients"]), "×".join(map(str, survey["shape"]))
    some = f" ({shown} shown)" if shown < clients else ""
    facts = f"{clients} clients{some}, {len(survey['classes'])} classes, samples of {shape}"
    lines = [f"{survey['name']}: {facts}", *survey["remarks"]]
    return plain("\n".join(textwrap.fill(line, LONGEST_LINE) for line in lines))


def _draw_clients(figure: SubFigure, survey: Mapping[str, Any]) -> None:
    """One row a client: its pictures to the left where it has some, its histogram to the right."""
    pictures, shown = survey["examples"], len(survey["clients"])
    columns = max((len(examples) for examples in pictures), default=0)
    widths = [columns, max(3.0, columns * 0.45)] if pictures else [1.0]
    grid = figure.subplots(
        shown, len(widths), squeeze=False, width_ratios=widths, gridspec_kw={"hspace": 0.04}
    )
    for row, name in enumerate(survey["clients"]):
        _draw_histogram(grid[row, -1], survey, row, last=row == shown - 1)
        if pictures:
            _draw_examples(grid[row, 0], pictures[row], columns)
        grid[row, 0].set_ylabel(plain(short(name)), rotation=0, ha="right", va="center")
    if pictures:
        headed(grid[0, 0], "a  Examples")
    values = "Pixel values" if len(survey["shape"]) == 3 else "Values"
    headed(grid[0, -1], f"{'b' if pictures else 'a'}  {values}")
    grid[-1, -1].set_xlabel(f"value, in up to {survey['samples']} samples\n(cube-root scale)")
    _legend(figure, survey["histograms"], right=0.62 if pictures else 0.99)


def _draw_examples(axes: Axes, examples: Any, columns: int) -> None:
    gap = max(1, examples.shape[2] // 16)
    height, width = examples.shape[1:3]
    strip = np.full((height, columns * (width + gap) - gap, 3), 255, np.uint8)
    for number, example in enumerate(examples):
        left = number * (width + gap)
        strip[:, left : left + width] = example
    axes.imshow(strip, interpolation="nearest" if height < 64 else "antialiased", aspect="equal")
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)


def _draw_histogram(axes: Axes, survey: Mapping[str, Any], row: int, *, last: bool) -> None:
    edges = np.asarray(survey["edges"])
    for name, shares in survey["histograms"][row].items():
        colour, style = LINES.get(name, ("#444444", "-"))
        if name == "values":
            axes.stairs(shares, edges, fill=True, color="#B5B5B5")
        axes.stairs(shares, edges, color=colour, linestyle=style, linewidth=0.9)
    top = max(max(shares) for shares in survey["histograms"][row].values())
    # A cube root shows what is rare beside the peak of a white or black ground.
    axes.set_yscale("function", functions=(np.cbrt, lambda root: root**3))
    axes.set(yticks=[], xlim=(edges[0], edges[-1]), ylim=(0, top))
    axes.spines[["top", "right", "left"]].set_visible(False)
    if not last:
        axes.set_xticklabels([])


def _legend(figure: SubFigure, histograms: Sequence[Mapping[str, Any]], right: float) -> None:
    names = [name for name in LINES if any(name in found for found in histograms)]
    keys: list[Any] = [
        Line2D([], [], color=LINES[name][0], linestyle=LINES[name][1], label=name) for name in names
    ]
    if keys and any("values" in found for found in histograms):
        keys.append(Patch(color="#B5B5B5", label="grey"))
    if keys:
        # Below the examples, or next to the axis label of the histograms, is room.
        place: Any = {"loc": "lower right", "bbox_to_anchor": (right, 0.02)}
        figure.legend(handles=keys, ncols=len(keys), **place)


def _draw_matrices(figure: SubFigure, survey: Mapping[str, Any]) -> None:
    classes = min(len(survey["classes"]), MOST_CLASSES)
    widths = [1.4 * max(classes, 4), max(len(survey["clients"]), 4)]
    counts, apart = figure.subplots(1, 2, width_ratios=widths)
    inches = [0.8 * WIDTH * width / sum(widths) for width in widths]
    letter = "cd" if survey["examples"] else "bc"
    names = survey["clients"]
    train, test = (np.asarray(survey[part])[:, :classes] for part in ("train", "test"))
    both = zip(train, test, strict=True)
    texts = [[f"{a}+{b}" for a, b in zip(*rows, strict=True)] for rows in both]
    _draw_matrix(counts, train, texts, inches[0])
    _name(counts, names, survey["classes"][:classes])
    some = "" if classes == len(survey["classes"]) else f" (first {classes} classes)"
    headed(counts, f"{letter[0]}  Training + test samples a class{some}")
    far = np.asarray(survey["distances"])
    _draw_matrix(apart, far, [[f"{d:.2f}" for d in row] for row in far], inches[1])
    _name(apart, names, names)
    headed(apart, f"{letter[1]}  Fréchet distance")
    apart.set_xlabel("diagonal: halves\nof one client")


def _name(axes: Axes, rows: Sequence[str], columns: Sequence[str]) -> None:
    """Name the rows and the columns of a matrix; long names above are slanted."""
    axes.set_yticks(range(len(rows)), [plain(short(name)) for name in rows])
    slanted: dict[str, Any] = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"}
    names = [plain(short(name)) for name in columns]
    flat = max(map(len, names)) * len(names) <= FLAT_SIGNS
    axes.set_xticks(range(len(names)), names, **({} if flat else slanted))


def _draw_matrix(axes: Axes, values: Any, texts: Sequence[Sequence[str]], inches: float) -> None:
    """Draw values as shades with texts on them, as small as the width of a cell demands."""
    top = float(np.nanmax(values, initial=0)) or 1.0
    axes.imshow(values, cmap="Blues", vmin=0, vmax=1.3 * top, aspect="auto")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    longest = max(len(text) for line in texts for text in line)
    size = min(5.8, 5.8 * inches / len(texts[0]) / (INCHES_A_SIGN * longest))
    for row, line in enumerate(texts):
        for column, text in enumerate(line):
            colour = "white" if values[row][column] > 0.75 * top else "black"
            axes.text(column, row, text, ha="center", va="center", fontsize=size, color=colour)
