"""Who takes part: sites known by their keys, asked what they are before the first round."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from flwr.proto.node_pb2 import NodeInfo

from fedbn._version import __version__
from fedbn.engines.flower import wire
from fedbn.engines.flower.post import Grid, Letter, Limits, ask
from fedbn.engines.flower.wire import Hello, Order
from fedbn.errors import FedbnError, TooFewClients

_HELLO_SECONDS = 120.0


@dataclass(frozen=True)
class Expected:
    """Which sites a run is for.

    Attributes:
        names: The sites, in the order in which everything is summed; empty where any may come.
        keys: The site of each public key; empty where sites are believed (no authentication).
        least: How many must be here to begin.
    """

    names: tuple[str, ...] = ()
    keys: Mapping[bytes, str] = field(default_factory=dict)
    least: int = 1

    def site(self, node: NodeInfo) -> str | None:
        """Name the site of a node, before it says anything; None where its key is not known."""
        return self.keys.get(node.public_key) if self.keys else f"node {node.node_id}"

    def ordered(self, sites: Sequence[str]) -> list[str]:
        """Put sites in their order: the federation's, those unknown to it by name behind."""
        place = {name: index for index, name in enumerate(self.names)}
        return sorted(sites, key=lambda name: (place.get(name, len(place)), name))


@dataclass(frozen=True)
class Roster:
    """The sites that were accepted, where they are, and why others were not."""

    hellos: Mapping[str, Hello] = field(default_factory=dict)
    nodes: Mapping[str, int] = field(default_factory=dict)
    faults: Mapping[str, str] = field(default_factory=dict)

    def missing(self, expected: Expected) -> str:
        """Say who is not here, and why."""
        away = [name for name in expected.names if name not in self.hellos]
        reasons = dict.fromkeys(away, "not connected") | dict(self.faults)
        return "; ".join(f"{name}: {reason}" for name, reason in reasons.items()) or "none"


def muster(
    grid: Grid, expected: Expected, order: Order, limits: Limits, note: Callable[[str], None]
) -> Roster:
    """Wait until the expected sites have said what they are, or the deadline has passed.

    Raises:
        TooFewClients: Naming who is missing, or refused and why.
    """
    roster = Roster()
    begun = time.monotonic()
    wanted = len(expected.names) or expected.least
    while len(_connected(grid, expected)) < wanted and time.monotonic() - begun < limits.wait:
        time.sleep(limits.poll)
    while True:
        before = roster
        roster = greet(grid, expected, order, roster, limits)
        for name in roster.faults.keys() - before.faults.keys():
            note(f"{name} is refused: {roster.faults[name]}")
        late = time.monotonic() - begun > limits.wait
        if late or len(roster.hellos) + len(roster.faults) >= wanted:
            break
        time.sleep(limits.poll)
    if len(roster.hellos) < expected.least:
        raise TooFewClients(
            f"{len(roster.hellos)} of {wanted} sites are here after "
            f"{time.monotonic() - begun:.0f} s, {expected.least} are needed; missing: "
            f"{roster.missing(expected)}"
        )
    return roster


def greet(grid: Grid, expected: Expected, order: Order, roster: Roster, limits: Limits) -> Roster:
    """Ask nodes that have not said yet what they are; take in those that fit."""
    known = {*roster.nodes.values()}
    new = {
        site: node
        for site, node in _connected(grid, expected).items()
        if node not in known and site not in roster.faults
    }
    letters = {site: Letter(node, "query", wire.put(order)) for site, node in new.items()}
    mail = ask(grid, letters, f"hello {order.seed}", min(_HELLO_SECONDS, limits.wait), limits)
    for site, node in new.items():
        roster = _with(roster, expected, site, node, _heard(mail.contents, mail.faults, site))
    return roster


def _connected(grid: Grid, expected: Expected) -> dict[str, int]:
    """The nodes that are there and whose keys are known, by what they are called."""
    nodes = {expected.site(node): node.node_id for node in grid.get_nodes()}
    return {site: node for site, node in nodes.items() if site is not None}


def differences(hello: Hello, first: Hello) -> str | None:
    """Say how a site differs from the first one in what all must have in common."""
    if hello.version != __version__:
        return f"another version: fedbn {hello.version} there, fedbn {__version__} here"
    if hello.classes != first.classes:
        return (
            f"another class list: {digest(hello.classes)} there, {digest(first.classes)} at "
            f"{first.member.name} ({_unlike(hello.classes, first.classes)})"
        )
    if hello.input_shape != first.input_shape:
        return f"samples of shape {hello.input_shape}, {first.input_shape} elsewhere"
    if hello.schema_hash != first.schema_hash:
        return (
            f"another model: {hello.schema_hash[:16]} there, {first.schema_hash[:16]} at "
            f"{first.member.name}"
        )
    return None


def digest(classes: Sequence[str]) -> str:
    """Hash a class list, order included."""
    return hashlib.sha256(json.dumps(list(classes)).encode()).hexdigest()[:16]


def _unlike(there: Sequence[str], here: Sequence[str]) -> str:
    """Show the first place where two class lists differ."""
    for index, (one, other) in enumerate(zip_longest(there, here)):
        if one != other:
            return f"class {index} is {one!r} there, {other!r} here"
    return "alike"


def _heard(contents: Mapping[str, object], faults: Mapping[str, str], site: str) -> Hello | str:
    if site in faults:
        return faults[site]
    try:
        return wire.get(contents[site], Hello)  # type: ignore[arg-type]
    except FedbnError as error:
        return str(error)


def _with(roster: Roster, expected: Expected, site: str, node: int, heard: Hello | str) -> Roster:
    """Take a site into the roster, or note why not."""
    if isinstance(heard, Hello):
        name = heard.member.name
        if expected.keys and name != site:
            heard = f"says it is {name!r}, but its key is that of {site!r}"
        elif not expected.keys and name in roster.nodes:
            heard = f"says it is {name!r}, and so does another node"
        elif name in roster.hellos and roster.hellos[name].member != heard.member:
            heard = f"its data changed: {roster.hellos[name].member} before, {heard.member} now"
        elif fault := differences(heard, next(iter(roster.hellos.values()), heard)):
            heard = fault
        else:
            return replace(
                roster,
                hellos={**roster.hellos, name: heard},
                nodes={**roster.nodes, name: node},
            )
    return replace(roster, faults={**roster.faults, site: heard})
