"""An engine whose clients are sites: the core's `run_round`, with letters in place of threads.

Which answers count is decided here: all that could poison the model is refused, and says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from flwr.app import RecordDict
from safetensors.torch import save as to_bytes

from fedbn.core.aggregation import Mean, Weighted
from fedbn.core.engine import Round, RoundCost
from fedbn.core.federation import Client
from fedbn.core.packing import Pack, StateLayout
from fedbn.core.plan import Plan
from fedbn.core.rounds import (
    Outcome,
    Record,
    Refusal,
    RunState,
    Update,
    absurd,
    examined,
    initial_state,
    round_records,
    run_round,
)
from fedbn.core.scoring import untrained_notes, untrained_record
from fedbn.core.state import Kind, entries, schema_hash
from fedbn.errors import FedbnError
from fedbn.experiments.jobs import Job
from fedbn.experiments.planner import plan_of
from fedbn.flower import messages
from fedbn.flower.membership import Attendance, Known
from fedbn.flower.messages import Answer, Member, Order, federation_of, from_record, to_record
from fedbn.flower.messaging import Letter, Mail, cost_of

_RELEASED = "released-affine.safetensors"


def read_update(
    content: RecordDict, order: Order, member: Member, before: Pack
) -> tuple[Outcome, Answer | None]:
    """Read a site's update; a refusal in its place where anything about it is wrong.

    Args:
        content: The answer.
        order: What the site was asked.
        member: What the site said it is before the first round.
        before: The shared part it was sent.
    """
    try:
        answer = messages.get(content, Answer, messages.SHARED)
        _check(answer, order, member)
        shared = from_record(content.array_records[messages.SHARED], before.layout)
    except FedbnError as error:
        return Refusal(member.name, str(error)), None
    loss = float("nan") if answer.loss is None else answer.loss
    outcome = examined(Update(member.name, shared, StateLayout(()).zeros(), loss))
    if isinstance(outcome, Update) and (fault := absurd(shared, before)):
        outcome = Refusal(member.name, fault)
    return outcome, None if isinstance(outcome, Refusal) else answer


def read_scores(content: RecordDict, order: Order, member: Member) -> Answer | str:
    """Read a site's scores, or why they do not count."""
    extra = [messages.AFFINE] if messages.AFFINE in content and order.last else []
    try:
        answer = messages.get(content, Answer, *extra)
        _check(answer, order, member)
        return answer
    except FedbnError as error:
        return str(error)


def read_affine(content: RecordDict, layout: StateLayout) -> Pack | None:
    """Read the BatchNorm affine that a site gives away; None where it is not usable."""
    try:
        pack = from_record(content.array_records[messages.AFFINE], layout)
    except FedbnError:
        return None
    return None if pack.unusable() else pack


def _check(answer: Answer, order: Order, member: Member) -> None:
    if answer.round != order.round:
        raise messages.Unreadable(
            f"answers for round {answer.round}, asked for round {order.round}"
        )
    if answer.schema_hash != order.schema_hash:
        raise messages.Unreadable(
            f"another model: {answer.schema_hash[:16]} there, {order.schema_hash[:16]} here"
        )
    if answer.examples != member.examples:
        raise messages.Unreadable(
            f"says it has {answer.examples:,} training samples, {member.examples:,} at the start"
        )
    if order.since and answer.source == "fresh":
        raise messages.Unreadable(
            f"its BatchNorm is new, although round {order.since} of it was accepted: a silent reset"
        )


class FlowerEngine:
    """One job at the server.

    Args:
        here: Who takes part: which sites are here, asked again before each round.
        job: What is run.
        order: The part of every order that stays the same.
        note: Hears remarks as they come up: a round may wait for sites for long.
    """

    notes: Sequence[str] = ()

    def __init__(self, here: Attendance, job: Job, order: Order, note: Callable[[str], None]):
        self._here, self._job, self._hello, self._note = here, job, order, note
        self._known = Known()
        self._cost = RoundCost(0, 0, 0, 0, 0)
        self._scores: list[Record] = []
        self._affine: dict[str, Pack] = {}
        self._seat()

    def _seat(self) -> None:
        """Make the plan for the sites that are here now."""
        members = self._here.members()
        first = next(iter(self._here.roster.hellos.values()))
        federation = federation_of(members, first.classes, first.input_shape)
        self.plan: Plan = plan_of(self._job, federation, device="cpu")
        self.members: dict[str, Member] = {member.name: member for member in members}
        self._order = self._hello.model_copy(
            update={
                "classes": first.classes,
                "input_shape": first.input_shape,
                "members": members,
                "schema_hash": schema_hash(entries(self.plan.initial_model)),
            }
        )

    def resume(self, round: int, facts: Mapping[str, Any]) -> None:
        """Go on with what an earlier process knew of the sites."""
        self._known = Known.from_facts(round, facts)

    def initial(self) -> RunState:
        """The state before the first round; the server holds no local part."""
        return replace(initial_state(self.plan), local={}, untrained={})

    def round(self, state: RunState) -> Round:
        """Do one round: the sites that are here train, and score the state before it."""
        self._here.gather(self.plan.updates_needed)
        if self._here.roster.hellos.keys() - self.members.keys():
            self._seat()
        self._known = self._known.with_newcomers([*self.members])
        self._scores = []
        after, report = run_round(self.plan, state, self._train)
        self._known = self._known.accepted([*report.losses], after.round)
        left_out = {refusal.client: refusal.reason for refusal in report.refusals}
        own = round_records(self.plan, after.round, report)
        return Round(
            replace(after, local={}),
            [*self._scores, *own],
            [f"round {after.round}: {name} is left out: {why}" for name, why in left_out.items()],
            self._known.to_facts(),
            replace(self._cost, left_out=left_out),
        )

    def finish(self, state: RunState) -> Round:
        """Have the last state scored by every site, and take what sites agreed to give away."""
        self._scores = []
        order = self._order.model_copy(update={"last": True})
        letters = {name: self._letter(order, "score", name, state, True) for name in self.members}
        mail = self._ask(letters, f"score {state.round}")
        self._take_scores(mail, state, [*self.members])
        self._tell_untrained(state.round)
        if not self._affine:
            return Round(state, self._scores)
        updates = (Weighted(pack, 1.0) for pack in self._affine.values())
        mean = Mean().combine(updates, next(iter(self._affine.values())))
        said = f"{', '.join(self._affine)} released BatchNorm affine; the mean is {_RELEASED}"
        return Round(state, self._scores, [said], files={_RELEASED: to_bytes(mean.state)})

    def close(self) -> None:
        """The grid is its owner's."""

    def _train(self, chosen: Sequence[Client], state: RunState) -> Iterator[Outcome]:
        scores = state.round > 0 and self.plan.evaluates(state.round)
        names = [client.name for client in chosen]
        others = [name for name in self.members if name not in names] if scores else []
        letters = {n: self._letter(self._order, "train", n, state, scores) for n in names}
        letters |= {n: self._letter(self._order, "score", n, state, True) for n in others}
        mail = self._ask(letters, f"round {state.round + 1}")
        self._take_scores(mail, state, others)
        answers: dict[str, Answer] = {}
        for name in names:
            outcome, answer = self._outcome(mail, name, state)
            if answer is not None:
                answers[name] = answer
                self._add_scores(name, answer, state.round)
            yield outcome
        self._tell_untrained(state.round)
        self._cost = cost_of(state.round + 1, mail, answers)

    def _outcome(self, mail: Mail, name: str, state: RunState) -> tuple[Outcome, Answer | None]:
        if name not in mail.contents:
            return Refusal(name, mail.faults.get(name, "not connected")), None
        order = self._addressed(self._order, "train", name, state, False)
        return read_update(mail.contents[name], order, self.members[name], state.shared)

    def _letter(
        self, order: Order, kind: str, name: str, state: RunState, scores: bool
    ) -> Letter | None:
        node = self._here.roster.nodes.get(name)
        if node is None:
            return None
        said = self._addressed(order, kind, name, state, scores)
        content = messages.put(said, **{messages.SHARED: to_record(state.shared)})
        return Letter(node, "train" if kind == "train" else "evaluate", content)

    def _addressed(
        self, order: Order, kind: str, name: str, state: RunState, scores: bool
    ) -> Order:
        number = state.round + 1 if kind == "train" else state.round
        update = {
            "kind": kind,
            "round": number,
            "since": self._known.since.get(name, 0),
            "joined": self._known.joined.get(name, 0),
            "scores": scores,
        }
        return order.model_copy(update=update)

    def _ask(self, letters: Mapping[str, Letter | None], group: str) -> Mail:
        mail = self._here.ask({name: one for name, one in letters.items() if one}, group)
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
            if messages.AFFINE in content and (pack := read_affine(content, self._affine_layout())):
                self._affine[name] = pack

    def _affine_layout(self) -> StateLayout:
        local = self.plan.method.local(entries(self.plan.initial_model))
        return StateLayout.of(entry for entry in local if entry.kind == Kind.BN_AFFINE)

    def _add_scores(self, name: str, answer: Answer, round: int) -> None:
        plan = self.plan
        if answer.scores and plan.local_statistics and name not in self._known.since:
            domain = self.members[name].domain
            self._scores.append(untrained_record(plan, round, name, domain))
        for score in answer.scores:
            key = (plan.method.name, plan.setting, plan.seed, round, name)
            self._scores.append(Record(*key, score.domain, score.split, score.metric, score.value))

    def _tell_untrained(self, round: int) -> None:
        names = [record.client for record in self._scores if record.metric == "untrained"]
        for text in untrained_notes(self.plan, round, names):
            self._note(text)
