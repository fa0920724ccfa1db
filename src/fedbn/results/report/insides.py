"""The sections that look into the trained models: how sites differ, what is confused."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from fedbn.results.report.contents import Array, Facts, Layer, RunContents
from fedbn.results.report.matrices import (
    MOST_CLASSES,
    confusion_matrix,
    distance_matrix,
    mistakes,
)
from fedbn.results.report.parts import (
    Beside,
    Figures,
    Part,
    Pictures,
    Section,
    Table,
    Text,
    remark,
    table,
)
from fedbn.results.report.pictures import picture
from fedbn.results.report.sites import MOST_LINES, distances, layer_bars, profile
from fedbn.results.report.svg import tag
from fedbn.results.report.words import spread

_MOST_LAYERS, _MOST_IN_MATRIX = 8, 24
# Okabe and Ito's, for clients; methods have their own.
_CLIENT_COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#7F7F7F",
    "#000000",
)


def statistics(run: RunContents) -> Section:
    """How different the sites are, layer by layer."""
    title = "How different the sites are"
    facts = run.facts
    if facts is None or not facts.layers:
        return missing("sites", title, run, "statistics")
    layers = spread(facts.layers, _MOST_LAYERS)
    matrices = [distances(layer) for layer in layers]
    names = layers[0].clients
    chosen = spread(names, MOST_LINES)
    colours = dict(zip(chosen, _CLIENT_COLOURS, strict=False))
    lead = (
        f"BatchNorm's running statistics of {_whose(facts)}: each client's own picture of its "
        "data. The distance of two clients is the Fréchet distance of their Gaussians, channel "
        "by channel, in units of their common deviation: 0 is the same, 1 is one deviation apart."
    )
    legend = tuple((_line(colour), name) for name, colour in colours.items())
    panels = []
    for layer, far in zip(layers, matrices, strict=True):
        panels += [_distances(layer, far), profile(layer, colours, deviation=False)]
        panels.append(profile(layer, colours, deviation=True))
    numbers = _farthest(layers, matrices)
    parts: list[Part] = [
        Beside((Figures((layer_bars(layers, matrices),)), numbers)),
        Figures(tuple(panels), legend),
    ]
    parts += _capped(facts, layers, chosen)
    return Section("sites", title, lead, tuple(parts))


def _farthest(layers: Sequence[Layer], matrices: Sequence[Array]) -> Table:
    rows = []
    for layer, far in zip(layers, matrices, strict=True):
        i, j = divmod(int(far.argmax()), len(far))
        pair = f"{layer.clients[i]} and {layer.clients[j]}"
        mean = far.sum() / (len(far) * (len(far) - 1))
        channels = str(layer.mean.shape[1])
        rows.append([layer.title, channels, f"{mean:.2f}", f"{far[i, j]:.2f}", pair])
    header = ["layer", "channels", "mean", "farthest", "which"]
    return table("Distance of two clients", header, rows)


def _distances(layer: Layer, far: Array) -> Markup:
    places = spread(range(len(layer.clients)), _MOST_IN_MATRIX)
    names = [layer.clients[i] for i in places]
    return distance_matrix(far[places][:, places], names, f"{layer.title}: distances")


def _capped(facts: Facts, layers: Sequence[Layer], chosen: Sequence[str]) -> list[Part]:
    found: list[Part] = []
    if len(layers) < len(facts.layers):
        found.append(Text(f"{len(layers)} of {len(facts.layers)} layers are drawn, evenly spread."))
    count = len(facts.layers[0].clients)
    if count > len(chosen):
        text = (
            f"Lines of {len(chosen)} and squares of {min(count, _MOST_IN_MATRIX)} clients are drawn"
        )
        found.append(Text(f"{text}, evenly spread; distances by layer are of {count}."))
    if facts.clients > count:
        found.append(Text(f"{count} of {facts.clients:,} clients are measured, evenly spread."))
    return found


def confusions(run: RunContents) -> Section:
    """Which classes are taken for which."""
    title = "Confusion matrices"
    facts = run.facts
    if facts is None or not facts.confusions:
        return missing("confusion", title, run, "confusions")
    lead = (
        f"Each client's model on its own test data ({_whose(facts)}). Rows are the true classes, "
        "columns what the model said; blue is right, orange is wrong."
    )
    parts: list[Part] = []
    if len(facts.classes) <= MOST_CLASSES:
        drawn = [confusion_matrix(c, facts.classes) for c in facts.confusions]
        parts.append(Figures(tuple(drawn)))
    else:
        text = f"{len(facts.classes)} classes are too many to draw; these were confused most."
        parts.append(Text(text))
    rows = [[c.client, "; ".join(mistakes(c, facts.classes)) or "none"] for c in facts.confusions]
    folded = len(facts.classes) <= MOST_CLASSES
    header = ["client", "true → predicted (times)"]
    parts.append(table("Most frequent mistakes", header, rows, folded=folded))
    if len(facts.confusions) < facts.clients:
        some = f"{len(facts.confusions)} of {facts.clients:,} clients are shown, evenly spread."
        parts.append(Text(some))
    return Section("confusion", title, lead, tuple(parts))


def examples(run: RunContents) -> Section:
    """Pictures of each domain with predictions."""
    title = "Examples"
    facts = run.facts
    if facts is None or not facts.galleries:
        return missing("examples", title, run, "examples")
    lead = (
        f"Test pictures, with what the client's own model says ({_whose(facts)}): some drawn at "
        "random, then the mistakes it is surest of. ✓ right; ✗ true → said."
    )
    parts: list[Part] = []
    for gallery in facts.galleries:
        name = gallery.domain
        if gallery.client != gallery.domain:
            name = f"{gallery.domain}, by the model of {gallery.client}"
        shown = [picture(example) for example in (*gallery.drawn, *gallery.mistakes)]
        parts.append(Pictures(name, tuple(shown)))
    return Section("examples", title, lead, tuple(parts))


def _whose(facts: Facts) -> str:
    setting = "" if facts.setting == "default" else f", {facts.setting}"
    return f"{facts.method}, seed {facts.seed}{setting}, round {facts.round}"


def missing(key: str, title: str, run: RunContents, part: str) -> Section:
    """Say in a section's place why it is not there."""
    reason = run.missing.get(part, "not collected")
    return Section(key, title, "", (remark(f"Not shown: {reason}."),))


def _line(colour: str) -> Markup:
    line = tag("line", x1=1, x2=21, y1=6, y2=6, stroke=colour, stroke_width=3)
    return tag("svg", line, viewBox="0 0 22 12", width=22, height=12, aria_hidden="true")
