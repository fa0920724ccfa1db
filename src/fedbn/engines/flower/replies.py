"""Which answers count: everything that could poison the model is refused here, and says why."""

from __future__ import annotations

from flwr.app import RecordDict

from fedbn.core.packing import Layout, Pack
from fedbn.core.plausible import absurd
from fedbn.core.rounds import Outcome, Refusal, Update, examined
from fedbn.engines.flower import wire
from fedbn.engines.flower.codec import from_record
from fedbn.engines.flower.wire import Answer, Member, Order
from fedbn.errors import FedbnError


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
        answer = wire.get(content, Answer, wire.SHARED)
        _check(answer, order, member)
        shared = from_record(content.array_records[wire.SHARED], before.layout)
    except FedbnError as error:
        return Refusal(member.name, str(error)), None
    loss = float("nan") if answer.loss is None else answer.loss
    outcome = examined(Update(member.name, shared, Layout(()).zeros(), loss))
    if isinstance(outcome, Update) and (fault := absurd(shared, before)):
        outcome = Refusal(member.name, fault)
    return outcome, None if isinstance(outcome, Refusal) else answer


def read_scores(content: RecordDict, order: Order, member: Member) -> Answer | str:
    """Read a site's scores, or why they do not count."""
    extra = [wire.AFFINE] if wire.AFFINE in content and order.last else []
    try:
        answer = wire.get(content, Answer, *extra)
        _check(answer, order, member)
        return answer
    except FedbnError as error:
        return str(error)


def read_affine(content: RecordDict, layout: Layout) -> Pack | None:
    """Read the BatchNorm affine that a site gives away; None where it is not usable."""
    try:
        pack = from_record(content.array_records[wire.AFFINE], layout)
    except FedbnError:
        return None
    return None if pack.unusable() else pack


def _check(answer: Answer, order: Order, member: Member) -> None:
    if answer.round != order.round:
        raise wire.Unreadable(f"answers for round {answer.round}, asked for round {order.round}")
    if answer.schema_hash != order.schema_hash:
        raise wire.Unreadable(
            f"another model: {answer.schema_hash[:16]} there, {order.schema_hash[:16]} here"
        )
    if answer.examples != member.examples:
        raise wire.Unreadable(
            f"says it has {answer.examples:,} training samples, {member.examples:,} at the start"
        )
    if order.since and answer.source == "fresh":
        raise wire.Unreadable(
            f"its BatchNorm is new, although round {order.since} of it was accepted: a silent reset"
        )
