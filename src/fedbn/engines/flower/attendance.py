"""Who is here from round to round: sites that go and come back, and sites that are new."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fedbn.engines.flower.post import Grid, Limits
from fedbn.engines.flower.roster import Expected, Roster, greet
from fedbn.engines.flower.wire import Member, Order
from fedbn.errors import TooFewClients


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
