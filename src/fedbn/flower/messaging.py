"""Questions to sites, and their answers before a deadline; late and foreign ones are named."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from google.protobuf.message import DecodeError

from fedbn.core.engine import RoundCost
from fedbn.flower import messages
from fedbn.flower.federation_folder import DOCUMENT_BYTES
from fedbn.flower.internals_node import MESSAGE_UNAVAILABLE, NODE_UNAVAILABLE
from fedbn.flower.messages import Answer
from fedbn.text import one_line

# What Flower raises of bytes that a site made up; not what it raises where its server is away.
_UNREADABLE = (DecodeError, ValueError, LookupError, TypeError, AttributeError, RecursionError)


@dataclass(frozen=True)
class Limits:
    """How long to wait for what, in seconds."""

    wait: float = 300.0  # for enough sites to be connected
    round: float = 3600.0  # for the answers of a round
    # for a site that was here and is gone, before it is left out: a restart of its machine or a
    # network that is cut for a minute takes that
    grace: float = 90.0
    poll: float = 0.05  # between two looks for answers
    look: float = 2.0  # between two looks at which nodes were restarted
    again: float = 2.0  # before a site that waits for approval is asked once more
    answer: int = DOCUMENT_BYTES  # bytes of an answer, at most


@dataclass(frozen=True)
class Letter:
    """What is sent to a site."""

    node: int
    kind: str
    content: RecordDict


@dataclass
class Mail:
    """What came back: contents by site, and why others gave none."""

    contents: dict[str, RecordDict] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)
    strangers: list[str] = field(default_factory=list)
    sent: int = 0
    received: int = 0
    seconds: float = 0.0


def ask(
    grid: Grid, letters: Mapping[str, Letter], group: str, seconds: float, limits: Limits
) -> Mail:
    """Send every site its letter and wait for the answers, no longer than `seconds`.

    A site whose node was restarted meanwhile is asked once more: it may have lost the letter, and
    doing a round twice gives the same result.
    """
    begun = time.monotonic()
    asked = _Asked(grid, group, seconds, letters, limits.answer)
    asked.send(letters)
    looked = sent = time.monotonic()
    while asked.waiting and time.monotonic() - sent < seconds:
        asked.pull()
        if asked.waiting and time.monotonic() - looked > limits.look:
            looked = time.monotonic()
            asked.send_again()
            asked.give_up(limits.grace)
        if asked.waiting:
            time.sleep(limits.poll)
    for site in asked.waiting:
        asked.mail.faults[site] = f"no answer within {seconds:g} s; a later one is discarded"
    asked.mail.seconds = time.monotonic() - begun
    return asked.mail


class _Asked:
    """Letters under way."""

    def __init__(
        self,
        grid: Grid,
        group: str,
        seconds: float,
        letters: Mapping[str, Letter],
        most: int = DOCUMENT_BYTES,
    ):
        self.mail = Mail()
        self._most = most
        self.ids: dict[str, str] = {}
        self.waiting: dict[str, Letter] = dict(letters)
        self._gone: dict[str, float] = {}
        self._grid, self._group, self._ttl = grid, group, seconds + 60
        self._activated = _activations(grid)

    def send(self, letters: Mapping[str, Letter]) -> None:
        outgoing = [
            Message(letter.content, letter.node, letter.kind, ttl=self._ttl, group_id=self._group)
            for letter in letters.values()
        ]
        numbers = self._grid.push_messages(outgoing) if outgoing else []
        for (site, letter), number in zip(letters.items(), numbers, strict=True):
            if number:
                self.ids[number] = site
                self.mail.sent += messages.length(letter.content)
            else:
                self._fault(site, "Flower took no message for it")

    def pull(self) -> None:
        """Look for each answer by itself: one that Flower cannot read would lose the others."""
        for number, site in [item for item in self.ids.items() if item[1] in self.waiting]:
            try:
                for message in self._grid.pull_messages([number]):
                    self._take(message)
            except _UNREADABLE as error:
                self._fault(site, f"its answer cannot be read ({type(error).__name__})")

    def send_again(self) -> None:
        now = _activations(self._grid)
        restarted = {
            site: letter
            for site, letter in self.waiting.items()
            if now.get(letter.node, "") not in ("", self._activated.get(letter.node))
        }
        self._activated |= now
        for site in restarted:
            self._gone.pop(site, None)
        self.send(restarted)

    def _take(self, message: Message) -> None:
        site = self.ids.get(message.metadata.reply_to_message_id)
        if site is None or site not in self.waiting:
            whose = site or f"node {message.metadata.src_node_id}"
            self.mail.strangers.append(f"{whose}: answered twice, or to nothing it was asked")
        elif message.has_error():
            self._failed(site, message)
        elif message.metadata.src_node_id != self.waiting[site].node:
            self._fault(site, f"answered by another node, {message.metadata.src_node_id}")
        elif message.metadata.group_id != self._group:
            self._fault(site, f"answered for {message.metadata.group_id!r}, not {self._group!r}")
        elif (found := messages.length(message.content)) > self._most:
            self._fault(site, f"its answer has {found:,} bytes, expected at most {self._most:,}")
        else:
            del self.waiting[site]
            self.mail.received += messages.length(message.content)
            self.mail.contents[site] = message.content

    def give_up(self, grace: float) -> None:
        for site, since in list(self._gone.items()):
            if site in self.waiting and time.monotonic() - since > grace:
                self._fault(site, "not connected any more")

    def _failed(self, site: str, message: Message) -> None:
        """Take an error; a node that is gone may come back within its grace."""
        if message.error.code == NODE_UNAVAILABLE:
            self.ids.pop(message.metadata.reply_to_message_id)
            self._gone.setdefault(site, time.monotonic())
        elif message.error.code == MESSAGE_UNAVAILABLE:
            why = f"it broke off, or had more than {self._most:,} bytes"
            self._fault(site, f"its answer did not arrive completely: {why}")
        else:
            text = one_line(message.error.reason or "no reason given")
            self._fault(site, f"Flower error {message.error.code}: {text[:300]}")

    def _fault(self, site: str, reason: str) -> None:
        self.waiting.pop(site, None)
        self.mail.faults[site] = reason


def _activations(grid: Grid) -> dict[int, str]:
    return {node.node_id: node.last_activated_at for node in grid.get_nodes()}


def cost_of(round: int, mail: Mail, answers: Mapping[str, Answer]) -> RoundCost:
    """Count a round: its letters, and the answers that were accepted."""
    longest = max((answer.seconds for answer in answers.values()), default=0.0)
    sources = {name: answer.source for name, answer in answers.items()}
    beyond = max(mail.seconds - longest, 0.0)
    return RoundCost(round, mail.seconds, beyond, mail.sent, mail.received, sources)
