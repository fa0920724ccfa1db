r"""Ditto (Li et al., ICML 2021, Algorithm 1): a model of one's own beside the joint one.

The joint model w is trained as FedAvg trains it. Beside it each client has a personal model
\(v_i\), which starts from what it received in its first round and is what it is used with:

\[ v_i \leftarrow v_i - \eta\,\bigl(\nabla F_i(v_i) + \lambda\,(v_i - w_{received})\bigr). \]

The personal model has all entries of the model, BatchNorm among them; the pull is on what is both
shared and trained.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from fedbn.core.method import Method
from fedbn.core.rule import ClientRound, LocalTraining, Memory, ModelParts, Rule, Trained
from fedbn.errors import ConfigError

__all__ = ["ditto"]
ABOUT = {"ditto": ("everything", "a personal model at the client, which it is used with")}


@dataclass(frozen=True)
class Ditto(Rule):
    """A second, personal model, pulled towards the joint one with strength lam."""

    lam: float
    used = "personal"
    several = True

    @property
    def label(self) -> str:
        """As on the command line."""
        return f"ditto({self.lam:g})"

    def declare(self, model: ModelParts) -> Iterator[Memory]:
        """All of the model once more."""
        for entry in model.shared + model.local:
            yield Memory("personal", entry, "local", start="entry")

    def round(self, client: ClientRound, train: LocalTraining) -> Trained:
        """Train the joint model, then the personal one."""
        done = train()

        @torch.no_grad()
        def pull() -> None:
            for weight, received in zip(client.trained, client.anchor, strict=True):
                if weight.grad is not None:
                    weight.grad.add_(weight - received, alpha=self.lam)

        train(change=pull, on=client.memory["personal"], draws="personal")
        return done


def ditto(lam: float = 0.1) -> Method:
    """Train a personal model beside the joint one, drawn towards it (Li et al. 2021)."""
    if not 0 <= lam < float("inf"):
        raise ConfigError(f"lam = {lam!r} of ditto: legal are finite numbers >= 0")
    rule = Ditto(float(lam))
    return Method("ditto" if lam == 0.1 else rule.label, rules=(rule,))
