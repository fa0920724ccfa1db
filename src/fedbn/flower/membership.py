"""Who takes part: sites known by their keys, asked what they are, that go, come back or are new."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

from fedbn import __version__
from fedbn.errors import FedbnError, TooFewClients
from fedbn.flower import messages
from fedbn.flower.messages import Hello, Member, Order
from fedbn.flower.messaging import Grid, Letter, Limits, Mail, Node, ask

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

    def site(self, node: Node) -> str | None:
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
    letters = {site: Letter(node, "query", messages.put(order)) for site, node in new.items()}
    mail = ask(grid, letters, f"hello {order.seed}", min(_HELLO_SECONDS, limits.wait), limits)
    for site in expected.ordered([*new]):  # the first of them sets what all must have in common
        heard = _heard(mail.contents, mail.faults, site)
        roster = _with(roster, expected, site, new[site], heard)
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
        return messages.get(contents[site], Hello)  # type: ignore[arg-type]
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


@dataclass(frozen=True)
class Known:
    """What the server remembers of sites beside the shared part.

    Attributes:
        round: Rounds done.
        members: All sites that ever took part in the job.
        since: The last round of each that was accepted.
        joined: Rounds that were done when a site came; only sites that came later are in it.
    """

    round: int = 0
    members: tuple[str, ...] = ()
    since: Mapping[str, int] = field(default_factory=dict)
    joined: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def from_facts(cls, round: int, facts: Mapping[str, Any]) -> Known:
        """Read it from a checkpoint's facts."""
        joined = dict(facts.get("joined", {}))
        return cls(round, tuple(facts["members"]), dict(facts["since"]), joined)

    def to_facts(self) -> dict[str, Any]:
        """Put it into a checkpoint's facts."""
        members, since, joined = list(self.members), dict(self.since), dict(self.joined)
        return {"members": members, "since": since, "joined": joined}

    def with_newcomers(self, names: Sequence[str]) -> Known:
        """Note sites that are here and were not; before the first round nobody is late."""
        new = [name for name in names if name not in self.members]
        late = dict.fromkeys(new, self.round) if self.round else {}
        return replace(self, members=(*self.members, *new), joined={**self.joined, **late})

    def accepted(self, names: Sequence[str], round: int) -> Known:
        """Note whose updates of a round were accepted."""
        since = {**self.since, **dict.fromkeys(names, round)}
        return replace(self, round=round, since=since)


class Attendance:
    """Looks who is connected, asks new nodes what they are, and waits where too few are here.

    Args:
        grid: Flower's grid.
        order: What is asked of a node that is new.
        sites: Which sites there are, asked again each time: some may be new.
        roster: Who was here at the beginning.
        limits: How long to wait.
        note: Hears remarks.
    """

    def __init__(
        self,
        grid: Grid,
        order: Order,
        sites: Callable[[], Expected],
        roster: Roster,
        limits: Limits,
        note: Callable[[str], None],
    ):
        self._grid, self._order, self._sites = grid, order, sites
        self._limits, self._note = limits, note
        self._gone: dict[str, float] = {}
        self.roster = roster

    def ask(self, letters: Mapping[str, Letter], group: str) -> Mail:
        """Send letters for a round, and wait for the answers."""
        return ask(self._grid, letters, group, self._limits.round, self._limits)

    def members(self) -> tuple[Member, ...]:
        """All sites that were ever accepted, in the federation's order."""
        hellos = self.roster.hellos
        return tuple(hellos[name].member for name in self._sites().ordered([*hellos]))

    def gather(self, least: int) -> None:
        """Wait until enough members are connected; take in sites that are new.

        Raises:
            TooFewClients: Naming who is missing when the waiting time is over.
        """
        begun = time.monotonic()
        while True:
            here = self._look()
            if len(here) >= least and not self._coming_back(here):
                return
            if len(here) < least and time.monotonic() - begun > self._limits.wait:
                names = [*self.roster.hellos]
                away = ", ".join(name for name in names if name not in here) or "no known site"
                raise TooFewClients(
                    f"{len(here)} of {len(names)} sites are connected after "
                    f"{self._limits.wait:g} s, a round needs {least}; missing: {away}"
                )
            time.sleep(self._limits.poll)

    def _coming_back(self, here: Sequence[str]) -> bool:
        """Tell whether a member is gone for so short a time that it may just be restarting."""
        now = time.monotonic()
        away = [name for name in self.roster.hellos if name not in here]
        self._gone = {name: self._gone.get(name, now) for name in away}
        return any(now - since < self._limits.grace for since in self._gone.values())

    def _look(self) -> list[str]:
        connected = {node.node_id for node in self._grid.get_nodes()}
        here = {name: node for name, node in self.roster.nodes.items() if node in connected}
        roster = replace(self.roster, nodes=here)
        if connected - {*here.values()}:
            self._welcome(roster)
        else:
            self.roster = roster
        return [name for name in self.roster.hellos if name in self.roster.nodes]

    def _welcome(self, roster: Roster) -> None:
        """Ask new nodes what they are: a site that is new, or one that is back."""
        before = self.roster
        self.roster = greet(self._grid, self._sites(), self._order, roster, self._limits)
        for name in self.roster.hellos.keys() - before.hellos.keys():
            self._note(f"{name} joins; it starts from the shared part and has its own BatchNorm")
        for name in self.roster.faults.keys() - before.faults.keys():
            self._note(f"{name} is refused: {self.roster.faults[name]}")
