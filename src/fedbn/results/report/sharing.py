"""The section on what travels and what never does."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from fedbn.results.report.bars import LOCAL, SHARED, exchange_bars
from fedbn.results.report.contents import Exchange, Facts, RunContents
from fedbn.results.report.insides import missing
from fedbn.results.report.parts import Beside, Figures, Part, Section, Text, table
from fedbn.results.report.svg import tag
from fedbn.results.report.words import bytes_said, counted

_MOST_ENTRIES = 400
_HEADER = (
    "method",
    "shared entries",
    "shared bytes",
    "local entries",
    "local bytes",
    "bytes a round",
    "rounds",
    "bytes in all",
)


def exchange(run: RunContents) -> Section:
    """What is shared and what stays home."""
    if not run.exchanges:
        return missing("shared", "What is shared, and what stays home", run, "exchange")
    lead = (
        "Of one client's model: entries and bytes that travel to the server and back, and those "
        "that never leave the client. A round goes down and up for every client taking part."
    )
    legend = ((_square(SHARED), "shared"), (_square(LOCAL), "stays with the client"))
    rows = [_row(one) for one in run.exchanges]
    parts: list[Part] = [
        Beside((Figures((exchange_bars(run.exchanges),), legend),)),
        table("Of one client, and over the network for one seed", _HEADER, rows),
        *_pooled(run.exchanges),
        *_entries(run.facts),
    ]
    return Section("shared", "What is shared, and what stays home", lead, tuple(parts))


def _row(one: Exchange) -> list[str]:
    return [
        one.method,
        str(one.shared[0]),
        bytes_said(one.shared[1]),
        str(one.local[0]) if one.local else "at the sites",
        bytes_said(one.kept) if one.local else "–",
        bytes_said(one.per_round),
        str(one.rounds),
        bytes_said(one.per_round * one.rounds),
    ]


def _pooled(exchanges: Sequence[Exchange]) -> list[Part]:
    names = ", ".join(one.method for one in exchanges if one.pooled)
    return [Text(f"{names}: the data travels instead, all of it to one place.")] if names else []


def _entries(facts: Facts | None) -> list[Part]:
    if facts is None or not facts.entries:
        return []
    rows = [
        [
            e.name,
            e.kind.replace("_", " "),
            "×".join(map(str, e.shape)) or "1",
            f"{e.bytes:,}",
            "shared" if e.shared else "stays",
        ]
        for e in facts.entries[:_MOST_ENTRIES]
    ]
    header = ["entry", "kind", "shape", "bytes", facts.method]
    some = f", the first {_MOST_ENTRIES}" if len(facts.entries) > _MOST_ENTRIES else ""
    return [
        table(
            f"The model's {counted(len(facts.entries), 'entry', 'entries')}{some}",
            header,
            rows,
            folded=True,
        )
    ]


def _square(colour: str) -> Markup:
    box = tag("rect", width=12, height=12, rx=2, fill=colour)
    return tag("svg", box, viewBox="0 0 12 12", width=12, height=12, aria_hidden="true")
