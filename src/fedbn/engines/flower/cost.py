"""What a round took beside its result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fedbn.engines.flower.post import Mail
from fedbn.engines.flower.wire import Answer


@dataclass(frozen=True)
class RoundCost:
    """What a round took.

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


def cost_of(round: int, mail: Mail, answers: Mapping[str, Answer]) -> RoundCost:
    """Count a round: its letters, and the answers that were accepted."""
    longest = max((answer.seconds for answer in answers.values()), default=0.0)
    sources = {name: answer.source for name, answer in answers.items()}
    beyond = max(mail.seconds - longest, 0.0)
    return RoundCost(round, mail.seconds, beyond, mail.sent, mail.received, sources)
