"""FixBN (Zhong et al. 2023): BatchNorm's statistics are learned, then fixed.

In the first rounds everything is trained and shared as by FedAvg. Then the statistics stay as they
are, and clients normalise with them while they train, as one does when a model is fine-tuned; all
parameters, BatchNorm's affine among them, go on being trained and shared.
"""

from dataclasses import dataclass

from fedbn.core.method import Method
from fedbn.core.rule import ClientRound, LocalTraining, Rule, Trained
from fedbn.core.state import Kind
from fedbn.errors import ConfigError

__all__ = ["fixbn"]
ABOUT = {"fixbn": ("everything", "nothing")}


@dataclass(frozen=True)
class FixedStatistics(Rule):
    """BatchNorm statistics stay as they are after a share of the rounds."""

    share: float
    depends_on_rounds = True

    @property
    def label(self) -> str:
        """As on the command line."""
        return f"fixbn({self.share:g})"

    def round(self, client: ClientRound, train: LocalTraining) -> Trained:
        """Train all, or all but the statistics."""
        if client.round <= self.share * client.rounds + 1e-9:
            return train()
        every = client.parts.shared + client.parts.local
        return train(only=[e.name for e in every if e.kind is not Kind.BN_STATISTIC])


def fixbn(share: float = 0.5) -> Method:
    """Fix BatchNorm's statistics after a share of the rounds (Zhong et al. 2023)."""
    if not 0 <= share <= 1:
        raise ConfigError(f"share = {share!r} of fixbn: legal are numbers from 0 to 1")
    rule = FixedStatistics(float(share))
    return Method("fixbn" if share == 0.5 else rule.label, rules=(rule,))
