"""Who takes part: sites known by their keys, asked what they are, that go, come back or are new."""

from __future__ import annotations

import hashlib
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from math import inf
from typing import Any

from flwr.serverapp import Grid

from fedbn import __version__
from fedbn.errors import FedbnError, NotApproved, TooFewClients
from fedbn.flower import messages
from fedbn.flower.audit_log import AuditLog
from fedbn.flower.messages import Hello, Member, Order, digest
from fedbn.flower.messaging import Letter, Limits, Mail, ask

_HELLO_SECONDS = 120.0


@dataclass(frozen=True)
class Expected:
    """Which sites a run is for."""

    # the sites, in the order in which everything is summed; empty where any may come
    names: tuple[str, ...] = ()
    # the site of each public key; empty where sites are believed (no authentication)
    keys: Mapping[bytes, str] = field(default_factory=dict)
    least: int = 1  # how many must be here to begin
    # says why a site's number of samples is not what was agreed for some data; None where it is
    agree: Callable[[str, int, str], str | None] = lambda site, examples, data: None

    def site(self, node: int, key: bytes) -> str | None:
        """Name the site of a node, before it says anything; None where its key is not known."""
        return self.keys.get(key) if self.keys else f"node {node}"

    def ordered(self, sites: Sequence[str]) -> list[str]:
        """Put sites in their order: the federation's, those unknown to it by name behind."""
        place = {name: index for index, name in enumerate(self.names)}
        return sorted(sites, key=lambda name: (place.get(name, len(place)), name))


def differences(hello: Hello, first: Hello) -> str | None:
    """Say how a site differs from the first one in what all must have in common."""
    if hello.version != __version__:
        return f"another version: fedbn {hello.version} there, fedbn {__version__} here"
    if hello.classes != first.classes:
        hashes = f"{digest(hello.classes)} there, {digest(first.classes)} at {first.member.name}"
        pairs = enumerate(zip_longest(hello.classes, first.classes))
        unlike = next(f"class {i} is {a!r} there, {b!r} here" for i, (a, b) in pairs if a != b)
        return f"another class list: {hashes} ({unlike})"
    if hello.input_shape != first.input_shape:
        return f"samples of shape {hello.input_shape}, {first.input_shape} elsewhere"
    if hello.target != first.target:
        return f"targets of {hello.target}, {first.target} elsewhere"
    if hello.schema_hash != first.schema_hash:
        hashes = f"{hello.schema_hash[:16]} there, {first.schema_hash[:16]} at {first.member.name}"
        return f"another model: {hashes}"
    return None


@dataclass(frozen=True)
class Known:
    """What the server remembers of sites beside the shared part."""

    members: tuple[str, ...] = ()  # all sites that ever took part in the job
    # the last round of each that was accepted
    since: Mapping[str, int] = field(default_factory=dict)
    # rounds that were done when a site came; only sites that came later are in it
    joined: Mapping[str, int] = field(default_factory=dict)
    # the best round that was scored: by how many sites, their mean gain, and its number
    best_scored: tuple[int, float, int] = (0, 0.0, 0)
    # how many updates each site's policy asks for in a state, at least
    min_sites: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Known:
        """Read it from a checkpoint's facts, where `asdict` put it."""
        sites, mean, round = facts.get("best_scored", (0, 0.0, 0))
        joined = facts.get("joined", {})
        best, strict = (sites, mean, round), facts.get("min_sites", {})
        return cls(tuple(facts["members"]), facts["since"], joined, best, strict)

    def with_newcomers(self, names: Sequence[str], round: int) -> Known:
        """Note sites that are here and were not; before the first round nobody is late."""
        new = [name for name in names if name not in self.members]
        late = dict.fromkeys(new, round) if round else {}
        return replace(self, members=(*self.members, *new), joined={**self.joined, **late})

    def updates(self, round: int) -> int:
        """Return how many updates the state after a round contains."""
        return sum(accepted == round for accepted in self.since.values()) if round else 0

    def accepted(self, names: Sequence[str], round: int) -> Known:
        """Note whose updates of a round were accepted."""
        return replace(self, since={**self.since, **dict.fromkeys(names, round)})

    def scored(self, values: Sequence[float], round: int) -> Known:
        """Note a round's validation scores; `best_round` has the rule for all rounds at once."""
        if not values:
            return self
        found = len(values), statistics.fmean(values), round
        return replace(self, best_scored=found) if found[:2] > self.best_scored[:2] else self


class Attendance:
    """Looks who is connected, asks new nodes what they are, and waits where too few are here.

    `order` is what is asked of a node that is new, `sites` which sites there are, asked each time.
    """

    def __init__(
        self,
        grid: Grid,
        order: Order,
        sites: Callable[[], Expected],
        limits: Limits,
        note: Callable[[str], None] = lambda text: None,
        log: AuditLog | None = None,
    ):
        self.log = log or AuditLog()
        self._grid, self._order, self._sites = grid, order, sites
        self._limits, self._note = limits, note
        self._gone: dict[str, float] = {}
        self.hellos: dict[str, Hello] = {}  # what each site said that was ever accepted
        self.nodes: dict[str, int] = {}  # where those are that are here
        self.min_sites: dict[str, int] = {}  # what each site's policy asks for, by site
        # why others are not: they wait, are silent (both are asked again), or were refused
        self.absent: dict[str, tuple[str, str]] = {}
        self._ask_again: dict[str, float] = {}
        self.state_bytes = 0  # of the state in an answer, at most; 0 before the model is known

    def ask(self, letters: Mapping[str, Letter], group: str) -> Mail:
        """Send letters, wait for the answers, and log what was asked and what came."""
        limits = replace(self._limits, answer=self._limits.answer + self.state_bytes)
        mail = ask(self._grid, letters, group, limits.round, limits)
        for site, letter in letters.items():
            facts = {"site": site, **messages.about(letter.content)}
            self.log.write("asked", **facts, sent=messages.what_is_in(letter.content))
            if (came := mail.contents.get(site)) is not None:
                facts |= {"came": messages.what_is_in(came), "theirs": messages.their_log(came)}
                self.log.write("came", **facts)
            else:
                self.log.write("no answer", **facts, reason=mail.faults.get(site, "no answer"))
        return mail

    def members(self) -> tuple[Member, ...]:
        """All sites that were ever accepted, in the federation's order."""
        ordered = self._sites().ordered([*self.hellos])
        return tuple(self.hellos[name].member for name in ordered)

    def strictest(self) -> tuple[int, str]:
        """Return the largest `min_sites` of all sites that took part, and the site's name.

        A site that left keeps its say, until it is revoked.
        """
        names = self._sites().names or tuple(self.min_sites)
        said = {name: least for name, least in self.min_sites.items() if name in names}
        site = max(said, key=lambda name: said[name], default="")
        return said.get(site, 1), site

    def muster(self) -> None:
        """Wait until the expected sites have said what they are, or name who is missing and why."""
        begun, expected, limits = time.monotonic(), self._sites(), self._limits
        wanted = len(expected.names) or expected.least
        while len(self._connected()) < wanted and time.monotonic() - begun < limits.wait:
            time.sleep(limits.poll)
        while True:
            self.greet(max(limits.wait - (time.monotonic() - begun), 1.0))
            late = time.monotonic() - begun > limits.wait
            if late or len(self.hellos) + len(self._absent("refused")) >= wanted:
                break
            time.sleep(limits.poll)
        if len(self.hellos) < expected.least:
            kind = NotApproved if self._absent("waits for approval") else TooFewClients
            away = [name for name in expected.names if name not in self.hellos]
            reasons = {**dict.fromkeys(away, ("", "not connected")), **self.absent}
            missing = "; ".join(f"{name}: {reason}" for name, (_, reason) in reasons.items())
            raise kind(
                f"{len(self.hellos)} of {wanted} sites are here after "
                f"{time.monotonic() - begun:.0f} s, {expected.least} are needed; missing: "
                f"{missing or 'none'}"
            )

    def greet(self, seconds: float = _HELLO_SECONDS) -> None:
        """Ask nodes that have not said yet what they are; take in those that fit."""
        known, now = {*self.nodes.values()}, time.monotonic()
        new = {
            site: node
            for site, node in self._connected().items()
            if node not in known and self._ask_again.get(site, 0) <= now
        }
        seconds, group = min(seconds, self._limits.wait), f"hello {self._order.seed}"
        mail = ask(self._grid, self.letters(new), group, seconds, self._limits)
        for site in self._sites().ordered([*new]):  # the first sets what all must have in common
            came = mail.contents.get(site)
            about = {"site": site, "theirs": messages.their_log(came) if came else ""}
            try:
                hello = self._take_in(site, new[site], mail)
                about["site"] = hello.member.name  # without keys a node has no name before
                self.log.write("takes part", **about, experiment=hello.experiment)
            except FedbnError as error:
                silent = site in mail.faults  # perhaps at work, on one message at a time
                waits, again = isinstance(error, messages.NotYet), self._limits.again
                said = "waits for approval" if waits else "silent" if silent else "refused"
                if site not in self._absent(said):
                    self._note(f"{site} {error}" if waits else f"{site} is {said}: {error}")
                    self.log.write(said, **about, reason=str(error)[:500])
                self.absent[site] = said, str(error)
                if silent:  # one that stays so takes a third of a run's time at most
                    again = max(again, 2 * min(mail.seconds, _HELLO_SECONDS))
                self._ask_again[site] = time.monotonic() + (inf if said == "refused" else again)

    def letters(self, nodes: Mapping[str, int] | None = None) -> dict[str, Letter]:
        """The first question, for these nodes, or for all whose keys are known."""
        content = messages.put(self._order.model_copy(update={"log": self.log.newest}))
        asked = self._connected() if nodes is None else nodes
        return {site: Letter(node, "query", content) for site, node in asked.items()}

    def gather(self, least: int) -> None:
        """Wait until enough members are connected, or name who is missing; take in new sites."""
        begun = time.monotonic()
        while True:
            self._look()
            strict, site = self.strictest()
            needed = max(least, strict)
            if len(self.nodes) >= needed and not self._coming_back():
                return
            if len(self.nodes) < needed and time.monotonic() - begun > self._limits.wait:
                away = [name for name in self.hellos if name not in self.nodes]
                why = f" (min_sites = {strict} at {site})" if strict > least else ""
                raise TooFewClients(
                    f"{len(self.nodes)} of {len(self.hellos)} sites are connected after "
                    f"{self._limits.wait:g} s, a round needs {needed}{why}; missing: "
                    f"{', '.join(away) or 'no known site'}"
                )
            time.sleep(self._limits.poll)

    def _connected(self) -> dict[str, int]:
        """The nodes that are there and whose keys are known, by what they are called."""
        sites = self._sites()
        return {
            site: node.node_id
            for node in self._grid.get_nodes()
            if (site := sites.site(node.node_id, node.public_key)) is not None
        }

    def _absent(self, how: str) -> list[str]:
        return [site for site, (said, _) in self.absent.items() if said == how]

    def _take_in(self, site: str, node: int, mail: Mail) -> Hello:
        """Accept a site that says what it is, or raise why not."""
        if site in mail.faults:
            raise FedbnError(mail.faults[site])
        hello = messages.get(mail.contents[site], Hello)
        name = hello.member.name
        keys, before = self._sites().keys, self.hellos.get(name)
        first = next(iter(self.hellos.values()), hello)
        if keys and name != site:
            raise FedbnError(f"says it is {name!r}, but its key is that of {site!r}")
        if not keys and name in self.nodes:
            raise FedbnError(f"says it is {name!r}, and so does another node")
        if before and before.member != hello.member:
            raise FedbnError(f"its data changed: {before.member} before, {hello.member} now")
        fault = differences(hello, first)
        if fault := fault or self._sites().agree(name, hello.member.examples, self._data(hello)):
            raise FedbnError(fault)
        self.hellos[name], self.nodes[name] = hello, node
        self.min_sites[name] = hello.min_sites
        self.absent.pop(site, None)
        return hello

    def _data(self, hello: Hello) -> str:
        """Return the hash of what a site's data is: a site may take part with several data sets."""
        contract = self._order.experiment.get("data", {}).get("contract", {})
        facts = [contract, hello.classes, hello.input_shape, hello.target]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]

    def _coming_back(self) -> bool:
        """Tell whether a member is gone for so short a time that it may just be restarting."""
        now = time.monotonic()
        names = self._sites().names or self.hellos  # not the revoked
        away = [name for name in self.hellos if name not in self.nodes and name in names]
        self._gone = {name: self._gone.get(name, now) for name in away}
        return any(now - since < self._limits.grace for since in self._gone.values())

    def _look(self) -> None:
        """See who is here; nodes that are new are a site that is new, or one that is back."""
        connected = {*self._connected().values()}  # no site that was revoked
        self.nodes = {name: node for name, node in self.nodes.items() if node in connected}
        if not connected - {*self.nodes.values()}:
            return
        before = {*self.hellos}
        self.greet()
        for name in self.hellos.keys() - before:
            self._note(f"{name} joins; it starts from the shared part and has its own BatchNorm")
