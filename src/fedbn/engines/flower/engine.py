"""The rounds of one job over Flower: the core's `run_round`, with letters in place of threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fedbn.core.federation import Client
from fedbn.core.packing import Layout, Pack
from fedbn.core.plan import Plan
from fedbn.core.rounds import (
    Outcome,
    Record,
    Refusal,
    Report,
    RunState,
    initial_state,
    round_records,
    run_round,
)
from fedbn.core.state import Kind, entries, schema_hash
from fedbn.engines.flower import wire
from fedbn.engines.flower.codec import to_record
from fedbn.engines.flower.jobs import federation_of, plan_of
from fedbn.engines.flower.post import Grid, Letter, Limits, Mail, ask
from fedbn.engines.flower.replies import read_affine, read_scores, read_update
from fedbn.engines.flower.roster import Expected, Roster, greet
from fedbn.engines.flower.wire import Answer, Member, Order
from fedbn.errors import TooFewClients
from fedbn.experiments.settings import Job


@dataclass(frozen=True)
class RoundCost:
    """What a round took beside its result.

    Attributes:
        round: Its number.
        seconds: From the first letter to the last answer.
        beyond_training: Seconds in which no site trained or scored.
        bytes_down: Sent to the sites, letters and shared parts.
        bytes_up: Received from them.
        sources: Where each site's BatchNorm came from.
        left_out: Who was left out, and why.
    """

    round: int
    seconds: float
    beyond_training: float
    bytes_down: int
    bytes_up: int
    sources: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)


class Conductor:
    """One job at the server.

    Args:
        grid: Flower's grid.
        job: What is run.
        order: The part of every order that stays the same.
        expected: Which sites there are, asked again before each round: some may be new.
        roster: Which of them are here.
        limits: How long to wait.
        note: Hears remarks.
    """

    def __init__(
        self,
        grid: Grid,
        job: Job,
        order: Order,
        expected: Callable[[], Expected],
        roster: Roster,
        limits: Limits,
        note: Callable[[str], None],
    ):
        self._grid, self._job, self._limits, self._note = grid, job, limits, note
        self._sites, self._roster, self._hello = expected, roster, order
        self._gone: dict[str, float] = {}
        self.since: dict[str, int] = {}
        self.cost = RoundCost(0, 0, 0, 0, 0)
        self.scores: list[Record] = []
        self.affine: dict[str, Pack] = {}
        self._seat()

    def _seat(self) -> None:
        """Make the plan for the sites that are here now."""
        hellos = self._roster.hellos
        first = next(iter(hellos.values()))
        members = tuple(hellos[name].member for name in self._sites().ordered([*hellos]))
        federation = federation_of(members, first.classes, first.input_shape)
        self.plan: Plan = plan_of(self._job, federation)
        self.members: dict[str, Member] = {member.name: member for member in members}
        self._order = self._hello.model_copy(
            update={
                "classes": first.classes,
                "input_shape": first.input_shape,
                "members": members,
                "schema_hash": schema_hash(entries(self.plan.initial_model)),
            }
        )

    def initial(self) -> RunState:
        """The state before the first round; the server holds no local part."""
        return replace(initial_state(self.plan), local={})

    def round(self, state: RunState) -> tuple[RunState, list[Record]]:
        """Do one round: the sites that are here train, and score the state before it."""
        self._gather()
        self.scores = []
        after, report = run_round(self.plan, state, self._train)
        self.since |= dict.fromkeys(report.losses, after.round)
        self._tell(report, after.round)
        return replace(after, local={}), round_records(self.plan, after.round, report)

    def finish(self, state: RunState) -> list[Record]:
        """Have the last state scored by every site."""
        self.scores = []
        order = self._order.model_copy(update={"last": True})
        letters = {name: self._letter(order, "score", name, state, True) for name in self.members}
        mail = self._ask({n: x for n, x in letters.items() if x}, f"score {state.round}")
        self._take_scores(mail, state, [*self.members])
        return self.scores

    def _train(self, chosen: Sequence[Client], state: RunState) -> Iterator[Outcome]:
        scores = state.round > 0 and self.plan.evaluates(state.round)
        names = [client.name for client in chosen]
        others = [name for name in self.members if name not in names] if scores else []
        letters = {n: self._letter(self._order, "train", n, state, scores) for n in names}
        letters |= {n: self._letter(self._order, "score", n, state, True) for n in others}
        mail = self._ask({n: x for n, x in letters.items() if x}, f"round {state.round + 1}")
        self._take_scores(mail, state, others)
        answers: dict[str, Answer] = {}
        for name in names:
            outcome, answer = self._outcome(mail, name, state)
            if answer is not None:
                answers[name] = answer
                self._add_scores(name, answer, state.round)
            yield outcome
        self._account(state.round + 1, mail, answers)

    def _outcome(self, mail: Mail, name: str, state: RunState) -> tuple[Outcome, Answer | None]:
        if name not in mail.contents:
            return Refusal(name, mail.faults.get(name, "not connected")), None
        order = self._addressed(self._order, "train", name, state, False)
        return read_update(mail.contents[name], order, self.members[name], state.shared)

    def _letter(
        self, order: Order, kind: str, name: str, state: RunState, scores: bool
    ) -> Letter | None:
        node = self._roster.nodes.get(name)
        if node is None:
            return None
        said = self._addressed(order, kind, name, state, scores)
        content = wire.put(said, **{wire.SHARED: to_record(state.shared)})
        return Letter(node, "train" if kind == "train" else "evaluate", content)

    def _addressed(
        self, order: Order, kind: str, name: str, state: RunState, scores: bool
    ) -> Order:
        number = state.round + 1 if kind == "train" else state.round
        since = self.since.get(name, 0)
        update = {"kind": kind, "round": number, "since": since, "scores": scores}
        return order.model_copy(update=update)

    def _ask(self, letters: Mapping[str, Letter], group: str) -> Mail:
        mail = ask(self._grid, letters, group, self._limits.round, self._limits)
        for text in mail.strangers:
            self._note(text)
        return mail

    def _take_scores(self, mail: Mail, state: RunState, names: Sequence[str]) -> None:
        for name in names:
            if name not in mail.contents:
                self._note(f"{name} gave no scores: {mail.faults.get(name, 'not connected')}")
                continue
            content = mail.contents[name]
            order = self._addressed(self._order, "score", name, state, True)
            order = order.model_copy(update={"last": state.round == self.plan.training.rounds})
            answer = read_scores(content, order, self.members[name])
            if isinstance(answer, str):
                self._note(f"{name}'s scores are refused: {answer}")
                continue
            self._add_scores(name, answer, state.round)
            if wire.AFFINE in content and (pack := read_affine(content, self._affine_layout())):
                self.affine[name] = pack

    def _affine_layout(self) -> Layout:
        local = self.plan.method.local(entries(self.plan.initial_model))
        return Layout.of(entry for entry in local if entry.kind == Kind.BN_AFFINE)

    def _add_scores(self, name: str, answer: Answer, round: int) -> None:
        plan = self.plan
        for score in answer.scores:
            key = (plan.method.name, plan.setting, plan.seed, round, name)
            self.scores.append(Record(*key, score.domain, score.split, score.metric, score.value))

    def _account(self, round: int, mail: Mail, answers: Mapping[str, Answer]) -> None:
        longest = max((answer.seconds for answer in answers.values()), default=0.0)
        sources = {name: answer.source for name, answer in answers.items()}
        beyond = max(mail.seconds - longest, 0.0)
        self.cost = RoundCost(round, mail.seconds, beyond, mail.sent, mail.received, sources)

    def _tell(self, report: Report, round: int) -> None:
        left_out = {refusal.client: refusal.reason for refusal in report.refusals}
        self.cost = replace(self.cost, left_out=left_out)
        for name, reason in left_out.items():
            self._note(f"round {round}: {name} is left out: {reason}")

    def _gather(self) -> None:
        """Wait until enough members are connected; take in sites that are new."""
        begun = time.monotonic()
        least = max(self.plan.training.min_clients, 1)
        while True:
            here = self._look()
            if len(here) >= least and not self._coming_back(here):
                return
            if len(here) < least and time.monotonic() - begun > self._limits.wait:
                away = ", ".join(name for name in self.members if name not in here)
                raise TooFewClients(
                    f"{len(here)} of {len(self.members)} sites are connected after "
                    f"{self._limits.wait:g} s, training.min_clients = {least}; missing: {away}"
                )
            time.sleep(self._limits.poll)

    def _coming_back(self, here: Sequence[str]) -> bool:
        """Tell whether a member is gone for so short a time that it may just be restarting."""
        now = time.monotonic()
        self._gone = {n: self._gone.get(n, now) for n in self.members if n not in here}
        return any(now - since < self._limits.grace for since in self._gone.values())

    def _look(self) -> list[str]:
        connected = {node.node_id for node in self._grid.get_nodes()}
        gone = [name for name, node in self._roster.nodes.items() if node not in connected]
        hellos = self._roster.hellos
        nodes = {name: node for name, node in self._roster.nodes.items() if name not in gone}
        if connected - {*nodes.values()}:
            self._welcome(replace(self._roster, nodes=nodes))
        else:
            self._roster = replace(self._roster, nodes=nodes)
        if self._roster.hellos.keys() - hellos.keys():
            self._seat()
        return [name for name in self.members if name in self._roster.nodes]

    def _welcome(self, roster: Roster) -> None:
        """Ask new nodes what they are: a site that is new, or one that is back."""
        before = self._roster
        self._roster = greet(self._grid, self._sites(), self._hello, roster, self._limits)
        for name in self._roster.hellos.keys() - before.hellos.keys():
            self._note(f"{name} joins; it starts from the shared part and has its own BatchNorm")
        for name in self._roster.faults.keys() - before.faults.keys():
            self._note(f"{name} is refused: {self._roster.faults[name]}")
