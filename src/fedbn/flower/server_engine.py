"""An engine whose clients are sites: the core's `run_round`, with letters in place of threads.

Which answers count is decided here: all that could poison the model is refused, and says why.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from math import inf
from typing import Any

from flwr.app import RecordDict
from safetensors.torch import save as to_bytes

from fedbn.core import rounds
from fedbn.core.aggregation import mean_of
from fedbn.core.best_round import EarlyStop, validation
from fedbn.core.engine import Round, RoundCost
from fedbn.core.federation import Client
from fedbn.core.packing import Pack, StateLayout
from fedbn.core.plan import Plan
from fedbn.core.rounds import Outcome, Record, Rejection, RunState, Update
from fedbn.core.scoring import untrained_notes
from fedbn.core.state import Kind, entries, schema_hash
from fedbn.core.task import Task
from fedbn.errors import FedbnError, TooFewClients
from fedbn.experiments.jobs import Job
from fedbn.experiments.planner import plan_of
from fedbn.experiments.runner import Note
from fedbn.flower import messages
from fedbn.flower.membership import Attendance, Known
from fedbn.flower.messages import (
    Answer,
    Member,
    Order,
    Score,
    federation_of,
    from_record,
    to_record,
)
from fedbn.flower.messaging import Letter, Mail, cost_of

_RELEASED = "released-affine.safetensors"
_LARGEST_NUMBER = 1e15  # a loss or an error beyond it says nothing that a person could use


def read_update(
    content: RecordDict, order: Order, member: Member, before: Pack
) -> tuple[Outcome, Answer | None]:
    """Read a site's update; a refusal in its place where anything about it is wrong.

    `member` is what the site said it is at the start, `before` the shared part it was sent.
    """
    try:
        answer = messages.get(content, Answer, messages.SHARED)
        _check(answer, order, member)
        shared = from_record(content.array_records[messages.SHARED], before.layout)
    except FedbnError as error:
        return Rejection(member.name, str(error)), None
    loss = float("nan") if answer.loss is None else answer.loss
    outcome = rounds.examined(Update(member.name, shared, StateLayout(()).zeros(), loss, near=True))
    if isinstance(outcome, Update) and (fault := rounds.divergence_reason(shared, before)):
        outcome = Rejection(member.name, fault)
    return outcome, None if isinstance(outcome, Rejection) else answer


def _check(answer: Answer, order: Order, member: Member) -> None:
    fault = ""
    if answer.round != order.round:
        fault = f"answers for round {answer.round}, asked for round {order.round}"
    elif answer.schema_hash != order.schema_hash:
        fault = f"another model: {answer.schema_hash[:16]} there, {order.schema_hash[:16]} here"
    elif answer.examples != member.examples:
        fault = f"says it has {answer.examples:,} training samples, {member.examples:,} at first"
    elif order.since and answer.source == "fresh":
        fault = f"its BatchNorm is new, although round {order.since} was accepted: a silent reset"
    elif answer.loss is not None and abs(answer.loss) > _LARGEST_NUMBER:
        fault = f"its training loss is {answer.loss:.3g}, expected at most {_LARGEST_NUMBER:g}"
    if fault:
        raise messages.Unreadable(fault)


def score_fault(score: Score, task: Task) -> str | None:
    """Return what is impossible about a score that a site sent, or None if it is possible."""
    metrics = {metric.name: metric for metric in task.metrics}
    metrics |= {f"group_{task.metrics[0].name}": task.metrics[0]} if task.metrics else {}
    metric = metrics.get(score.metric)
    if metric is None and score.metric != "loss":
        return f"{score.metric!r} is not measured in this run"
    least, most = (metric.least, metric.most) if metric else (-inf, inf)
    least, most = max(least, -_LARGEST_NUMBER), min(most, _LARGEST_NUMBER)
    if score.value is None or least <= score.value <= most:
        return None
    return f"{score.metric} = {score.value:.3g}, expected {least:g} to {most:g}"


class FlowerEngine:
    """One job at the server; `order` is the part of every order that stays the same."""

    notes: Sequence[str] = ()
    repeatable = False  # sites keep their own rounds, and come and go

    def __init__(self, here: Attendance, job: Job, order: Order, note: Note):
        self._here, self._job, self._hello, self._note = here, job, order, note
        self._known = Known()
        self._cost: RoundCost | None = None
        self._scores: list[Record] = []
        self._affine: dict[str, Pack] = {}
        self._session = secrets.token_hex(8)  # a resume has another one; both logs name it
        self._seat()

    def _seat(self) -> None:
        """Make the plan for the sites that are here now."""
        members = self._here.members()
        first = next(iter(self._here.hellos.values()))
        federation = federation_of(members, first.classes, first.input_shape, first.target)
        self.plan: Plan = plan_of(self._job, federation, device="cpu")
        self.members: dict[str, Member] = {member.name: member for member in members}
        self._order = self._hello.model_copy(
            update={
                "classes": first.classes,
                "input_shape": first.input_shape,
                "target": first.target,
                "members": members,
                "schema_hash": schema_hash(entries(self.plan.initial_model)),
            }
        )

    def state_bytes(self) -> int:
        """Return how many bytes of states an answer may have: the shared one, and the affine."""
        plan = self.plan
        local = plan.method.local(entries(plan.initial_model))
        affine = StateLayout.of(entry for entry in local if entry.kind == Kind.BN_AFFINE)
        shared = rounds.initial_state(plan).shared.layout
        return messages.largest(shared) + messages.largest(affine)

    def resume(self, round: int, facts: Mapping[str, Any]) -> None:
        """Go on with what an earlier process knew of the sites."""
        self._known = Known.from_facts(facts)
        self._here.min_sites = {**self._known.min_sites, **self._here.min_sites}
        about = self._hello.model_dump(include={"run", "method", "seed"})
        self._here.log.write("resumed", **about, round=round, session=self._session)

    def initial(self) -> RunState:
        """The state before the first round; the server holds no local part."""
        return replace(rounds.initial_state(self.plan), local={}, untrained={})

    def round(self, state: RunState) -> Round:
        """Do one round: the sites that are here train, and score the state before it."""
        self._here.gather(self.plan.updates_needed)
        if self._here.hellos.keys() - self.members.keys():
            self._seat()
        self._known = self._known.with_newcomers([*self.members], state.round)
        self._known = replace(self._known, min_sites=dict(self._here.min_sites))
        self._scores = []
        result = rounds.run_round(self.plan, state, self._train)
        after = result.state
        self._known = self._known.accepted([*result.accepted], after.round)
        self._note_best(state.round)
        left_out = {name: one.reason for name, one in result.rejected.items()}
        own = rounds.round_records(self.plan, result)
        return Round(
            replace(after, local={}),
            [*self._scores, *own],
            [f"round {after.round}: {name} is left out: {why}" for name, why in left_out.items()],
            asdict(self._known),
            self._cost and replace(self._cost, left_out=left_out),
        )

    def finish(self, state: RunState, reported: RunState, early: EarlyStop | None = None) -> Round:
        """Have the last state scored by every site, and take what sites agreed to give away.

        Where patience ended, it did so by the scores of the round before: the last one, which was
        trained while they were on their way, is not scored.
        """
        self._scores = []
        orders = {
            name: self._addressed("score", name, state.round, early is None, last=True)
            for name in self.members
        }
        self._take_scores(self._ask(orders, state, f"score {state.round}"), orders)
        if early is None:
            self._tell_untrained(state.round)
            self._note_best(state.round)
        if self._known.best_scored[2]:
            self._tell_best(state.round)
        if not self._affine:
            return Round(state, self._scores)
        mean = mean_of(self._affine.values())
        said = f"{', '.join(self._affine)} released BatchNorm affine; the mean is {_RELEASED}"
        return Round(state, self._scores, [said], files={_RELEASED: to_bytes(mean.state)})

    def close(self) -> None:
        """The grid is its owner's."""

    def _note_best(self, round: int) -> None:
        """Remember the best round where that is the one to use."""
        if self._job.setting.experiment.evaluation.report == "best":
            metric = self.plan.task.metrics[0]
            scores = validation([asdict(record) for record in self._scores], metric)
            gains = [metric.gain(value, 0.0) for value in scores.get(round, [])]
            self._known = self._known.scored(gains, round)

    def _tell_best(self, round: int) -> None:
        """Let the sites know which round is the one to use, now that all are scored."""
        best = self._known.best_scored[2]
        letters = {
            name: Letter(node, "query", messages.put(self._addressed("end", name, round, False)))
            for name, node in self._here.nodes.items()
        }
        for name, why in self._here.ask(letters, "end").faults.items():
            self._note(f"{name} was not told that round {best} is the best: {why}")

    def _train(self, chosen: Sequence[Client], state: RunState) -> Iterator[Outcome]:
        scores = state.round > 0 and self.plan.evaluates(state.round)
        names = [client.name for client in chosen]
        others = [name for name in self.members if name not in names] if scores else []
        train = {n: self._addressed("train", n, state.round + 1, scores) for n in names}
        score = {n: self._addressed("score", n, state.round, True) for n in others}
        mail = self._ask({**train, **score}, state, f"round {state.round + 1}")
        self._take_scores(mail, score)
        answers: dict[str, Answer] = {}
        refused: list[str] = []
        for name, order in train.items():
            if name not in mail.contents:
                why = mail.faults.get(name, "not connected")
                refused.append(f"{name}: {why}")
                yield Rejection(name, why)
                continue
            content, member = mail.contents[name], self.members[name]
            outcome, answer = read_update(content, order, member, state.shared)
            if answer is not None:
                answers[name] = answer
                self._add_scores(name, answer, state.round)
            if isinstance(outcome, Rejection):
                refused.append(f"{name}: {outcome.reason}")
            yield outcome
        self._check_enough(state.round + 1, len(answers), refused)
        self._tell_untrained(state.round)
        self._cost = cost_of(state.round + 1, mail, answers)

    def _check_enough(self, round: int, accepted: int, refused: Sequence[str]) -> None:
        """Reject a round with fewer updates than a site's policy asks for, before it has a mean."""
        least, site = self._here.strictest()
        if self.plan.updates_needed <= accepted < least:
            raise TooFewClients(
                f"round {round}: {accepted} sites gave a usable update, and the policy of {site} "
                f"needs {least} (min_sites); {'; '.join(refused) or 'no other site was selected'}"
            )

    def _addressed(
        self, kind: str, name: str, round: int, scores: bool, last: bool = False
    ) -> Order:
        update = {
            "kind": kind,
            "round": round,
            "since": self._known.since.get(name, 0),
            "joined": self._known.joined.get(name, 0),
            "scores": scores,
            "last": last,
            "best": self._known.best_scored[2],
            "updates": self._known.updates(round - 1 if kind == "train" else round),
            "session": self._session,
            "log": self._here.log.newest,
        }
        return self._order.model_copy(update=update)

    def _ask(self, orders: Mapping[str, Order], state: RunState, group: str) -> Mail:
        """Send each site that is here its order and the shared part; hear the answers."""
        shared = {messages.SHARED: to_record(state.shared)}
        letters = {
            name: Letter(node, "train" if order.kind == "train" else "evaluate", content)
            for name, order in orders.items()
            if (node := self._here.nodes.get(name)) is not None
            and (content := messages.put(order, **shared))
        }
        mail = self._here.ask(letters, group)
        for text in mail.strangers:
            self._note(text)
        return mail

    def _take_scores(self, mail: Mail, orders: Mapping[str, Order]) -> None:
        for name, order in orders.items():
            if name not in mail.contents:
                self._note(f"{name} gave no scores: {mail.faults.get(name, 'not connected')}")
                continue
            content = mail.contents[name]
            extra = [messages.AFFINE] if messages.AFFINE in content and order.last else []
            try:
                answer = messages.get(content, Answer, *extra)
                _check(answer, order, self.members[name])
            except FedbnError as error:
                self._note(f"{name}'s scores are refused: {error}")
                continue
            self._add_scores(name, answer, order.round)
            if extra:  # BatchNorm affine that the site gives away, kept where it is usable
                local = self.plan.method.local(entries(self.plan.initial_model))
                layout = StateLayout.of(entry for entry in local if entry.kind == Kind.BN_AFFINE)
                with suppress(FedbnError):
                    pack = from_record(content.array_records[messages.AFFINE], layout)
                    if not pack.unusable():
                        self._affine[name] = pack

    def _add_scores(self, name: str, answer: Answer, round: int) -> None:
        plan = self.plan
        key = (plan.method.name, plan.setting, plan.seed, round, name)
        own = self.members[name].domain
        faults = [fault for s in answer.scores if (fault := score_fault(s, plan.task))]
        if faults:
            more = f" and {len(faults) - 1} more" if len(faults) > 1 else ""
            self._note(f"{name}'s scores of round {round} are left out: {faults[0]}{more}")
            return
        if answer.scores and plan.local_statistics and name not in self._known.since:
            self._scores.append(Record(*key, own, "train", "untrained", 1.0))
        # What is said twice counts once; validation data is of the site's own domain.
        counted = (s for s in answer.scores if s.split != "valid" or s.domain == own)
        values = {(s.domain, s.split, s.metric): s.value for s in counted}
        self._scores += [Record(*key, *about, value) for about, value in values.items()]

    def _tell_untrained(self, round: int) -> None:
        names = [record.client for record in self._scores if record.metric == "untrained"]
        for text in untrained_notes(self.plan, round, names):
            self._note(text)
