"""The sections beyond the scores: what travels, how sites differ, what is confused, and origin."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import tomli_w
from markupsafe import Markup

from fedbn.experiments.configuration import IN_PYTHON
from fedbn.report import document, site_charts
from fedbn.report.charts import LOCAL, SHARED, exchange_bars
from fedbn.report.contents import Array, Facts, Layer, RunContents
from fedbn.report.document import Part, Section
from fedbn.report.svg import swatch, tag
from fedbn.results import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILION
from fedbn.text import bytes_said, counted, spread

_MOST_LAYERS, _MOST_IN_MATRIX = 8, 24
_CLIENT_COLOURS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, GREY, BLACK)


def statistics(run: RunContents) -> Section:
    """How different the sites are, layer by layer."""
    title = "How different the sites are"
    facts = run.facts
    if facts is None or not facts.layers:
        return missing("sites", title, run, "statistics")
    layers = spread(facts.layers, _MOST_LAYERS)
    matrices = [site_charts.distances(layer) for layer in layers]
    names = layers[0].clients
    chosen = spread(names, site_charts.MOST_LINES)
    colours = dict(zip(chosen, _CLIENT_COLOURS, strict=False))
    lead = (
        f"BatchNorm's running statistics of {_whose(facts)}: each client's own picture of its "
        "data. The distance of two clients is the Fréchet distance of their Gaussians, channel "
        "by channel, in units of their common deviation: 0 is the same, 1 is one deviation apart."
    )
    line = {"x1": 1, "x2": 21, "y1": 6, "y2": 6, "stroke_width": 3}
    lines = {name: tag("line", **line, stroke=colour) for name, colour in colours.items()}
    legend = tuple((swatch(drawn, width=22), name) for name, drawn in lines.items())
    panels = []
    places = spread(range(len(names)), _MOST_IN_MATRIX)
    some = [names[place] for place in places]
    for layer, far in zip(layers, matrices, strict=True):
        square = far[places][:, places]
        panels.append(site_charts.distance_matrix(square, some, f"{layer.title}: distances"))
        panels += [site_charts.profile(layer, colours, deviation=what) for what in (False, True)]
    bars = document.Figures((site_charts.layer_bars(layers, matrices),))
    beside = document.Beside((bars, _farthest(layers, matrices)))
    drawn = document.Figures(tuple(panels), legend)
    return Section("sites", title, lead, (beside, drawn, *_capped(facts, layers, chosen)))


def _farthest(layers: Sequence[Layer], matrices: Sequence[Array]) -> document.Table:
    rows = []
    for layer, far in zip(layers, matrices, strict=True):
        i, j = divmod(int(far.argmax()), len(far))
        pair = f"{layer.clients[i]} and {layer.clients[j]}"
        mean = far.sum() / (len(far) * (len(far) - 1))
        channels = str(layer.mean.shape[1])
        rows.append([layer.title, channels, f"{mean:.2f}", f"{far[i, j]:.2f}", pair])
    header = ["layer", "channels", "mean", "farthest", "which"]
    return document.table("Distance of two clients", header, rows)


def _capped(facts: Facts, layers: Sequence[Layer], chosen: Sequence[str]) -> list[Part]:
    found = []
    if len(layers) < len(facts.layers):
        found.append(f"{len(layers)} of {len(facts.layers)} layers are drawn, evenly spread.")
    count = len(facts.layers[0].clients)
    if count > len(chosen):
        squares = f"squares of {min(count, _MOST_IN_MATRIX)} clients are drawn, evenly spread"
        found.append(f"Lines of {len(chosen)} and {squares}; distances by layer are of {count}.")
    if facts.clients > count:
        found.append(f"{count} of {facts.clients:,} clients are measured, evenly spread.")
    return [*map(document.Text, found)]


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
    if few := len(facts.classes) <= site_charts.MOST_CLASSES:
        drawn = [site_charts.confusion_matrix(c, facts.classes) for c in facts.confusions]
        parts.append(document.Figures(tuple(drawn)))
    else:
        text = f"{len(facts.classes)} classes are too many to draw; these were confused most."
        parts.append(document.Text(text))
    rows = [
        [c.client, "; ".join(site_charts.mistakes(c, facts.classes)) or "none"]
        for c in facts.confusions
    ]
    header = ["client", "true → predicted (times)"]
    parts.append(document.table("Most frequent mistakes", header, rows, folded=few))
    if len(facts.confusions) < facts.clients:
        some = f"{len(facts.confusions)} of {facts.clients:,} clients are shown, evenly spread."
        parts.append(document.Text(some))
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
        own = gallery.client == gallery.domain
        name = gallery.domain + ("" if own else f", by the model of {gallery.client}")
        shown = map(site_charts.picture, (*gallery.drawn, *gallery.mistakes))
        parts.append(document.Pictures(name, tuple(shown)))
    return Section("examples", title, lead, tuple(parts))


def _whose(facts: Facts) -> str:
    setting = "" if facts.setting == "default" else f", {facts.setting}"
    return f"{facts.method}, seed {facts.seed}{setting}, round {facts.round}"


def missing(key: str, title: str, run: RunContents, part: str) -> Section:
    """Say in a section's place why it is not there."""
    reason = run.missing.get(part, "not collected")
    return Section(key, title, "", (document.Text(f"Not shown: {reason}.", kind="remark"),))


_MOST_ENTRIES = 400


def exchange(run: RunContents) -> Section:
    """What is shared and what stays home."""
    if not run.exchanges:
        return missing("shared", "What is shared, and what stays home", run, "exchange")
    lead = (
        "Of one client's model: entries and bytes that travel to the server and back, and those "
        "that never leave the client. A round goes down and up for every client taking part."
    )
    legend = ((_square(SHARED), "shared"), (_square(LOCAL), "stays with the client"))
    rows = [
        {
            "method": one.method,
            "shared entries": str(one.shared[0]),
            "shared bytes": bytes_said(one.shared[1]),
            "local entries": str(one.local[0]) if one.local else "at the sites",
            "local bytes": bytes_said(one.kept) if one.local else "–",
            "bytes a round": bytes_said(one.per_round),
            "rounds": str(one.rounds),
            "bytes in all": bytes_said(one.per_round * one.rounds),
        }
        for one in run.exchanges
    ]
    caption = "Of one client, and over the network for one seed"
    parts: list[Part] = [
        document.Beside((document.Figures((exchange_bars(run.exchanges),), legend),)),
        document.table(caption, [*rows[0]], [[*row.values()] for row in rows]),
    ]
    if names := ", ".join(one.method for one in run.exchanges if one.pooled):
        parts.append(document.Text(f"{names}: the data travels instead, all of it to one place."))
    parts += _entries(run.facts)
    return Section("shared", "What is shared, and what stays home", lead, tuple(parts))


def _entries(facts: Facts | None) -> list[Part]:
    if facts is None or not facts.entries:
        return []
    rows = []
    for e, shared in facts.entries[:_MOST_ENTRIES]:
        kind, shape = e.kind.replace("_", " "), "×".join(map(str, e.shape)) or "1"
        rows.append([e.name, kind, shape, f"{e.bytes:,}", "shared" if shared else "stays"])
    header = ["entry", "kind", "shape", "bytes", facts.method]
    some = f", the first {_MOST_ENTRIES}" if len(facts.entries) > _MOST_ENTRIES else ""
    caption = f"The model's {counted(len(facts.entries), 'entry', 'entries')}{some}"
    return [document.table(caption, header, rows, folded=True)]


def _square(colour: str) -> Markup:
    return swatch(tag("rect", width=12, height=12, rx=2, fill=colour), width=12)


_MOST_PRINTS = 50


def again(run: RunContents) -> Section:
    """Everything that is needed to run it again."""
    folder = shlex.quote(run.path)
    begin = f"fedbn run {shlex.quote(f'{run.path}/config.toml')} --out again"
    commands = f"{begin}\nfedbn resume {folder}\nfedbn report {folder}"
    hint = "Without the folder: save the configuration as experiment.toml, then fedbn run it."
    if given := [key for key, value in run.settings.items() if IN_PYTHON in (value, *_all(value))]:
        commands = f"fedbn report {folder}"
        hint = f"{', '.join(given)}: given in Python, so only Python can run it again (fedbn.fit)."
    caption = "Make this report" if given else "Run it again, go on with it, make this report"
    lead = (
        "The same configuration, seeds, data and versions give the same numbers to the last bit "
        "on the same kind of machine."
    )
    parts: list[Part] = [
        document.Code(caption, commands, "bash"),
        document.Text(hint),
        document.Code(
            "Configuration, every key written out", tomli_w.dumps(run.config), "toml", folded=True
        ),
        *_environment(run.environment),
    ]
    if run.warnings:
        rows = [[text] for text in run.warnings]
        parts.append(document.table("Warnings of the run", ["warning"], rows, folded=True))
    return Section("again", "Configuration and how to run it again", lead, tuple(parts))


def _all(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _environment(environment: Mapping[str, Any]) -> list[Part]:
    versions = [[k, v] for k, v in environment.get("versions", {}).items()]
    threads = [[f"threads: {k}", str(v)] for k, v in environment.get("threads", {}).items()]
    where = [["started in", environment["directory"]]] if "directory" in environment else []
    found: list[Part] = []
    if rows := [*versions, *threads, *where]:
        found.append(document.table("Environment", ["what", "value"], rows, folded=True))
    if prints := list(environment.get("data", {}).items()):
        some = f" (the first {_MOST_PRINTS} of {len(prints)})" if len(prints) > _MOST_PRINTS else ""
        rows = [[k, f"{str(v)[:16]}…"] for k, v in prints[:_MOST_PRINTS]]
        caption = f"Fingerprints of the data{some}"
        found.append(document.table(caption, ["client", "sha256"], rows, folded=True))
    return found
