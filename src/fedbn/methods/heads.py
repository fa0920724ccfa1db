"""Methods that divide a model into a body and a head: one is shared, the other stays at home.

The head is the last module with parameters in a pass (`last`), or a module that is named.
"""

from dataclasses import dataclass

from fedbn.core.method import Method
from fedbn.core.rule import ClientRound, LocalTraining, Memory, ModelParts, Rule, Trained
from fedbn.core.selectors import local, only
from fedbn.core.state import Kind
from fedbn.errors import ConfigError

__all__ = ["fedper", "fedrep", "lgfedavg"]
ABOUT = {
    "fedper": ("everything but the head", "the head at the client"),
    "fedrep": ("everything but the head", "the head at the client"),
    "lgfedavg": ("the head alone", "all but the head at the client"),
}


@dataclass(frozen=True)
class HeadFirst(Rule):
    """First the client's own weights alone, for so many passes, then all others alone."""

    epochs: int
    several = True

    @property
    def label(self) -> str:
        """The rule's name and passes."""
        return f"head_first({self.epochs})"

    def declare(self, model: ModelParts) -> tuple[Memory, ...]:
        """Nothing is remembered but what the method keeps local anyway."""
        if not _head(model):
            raise ConfigError("fedrep: the method keeps no weight at the client to train first")
        return ()

    def round(self, client: ClientRound, train: LocalTraining) -> Trained:
        """Train the head, then the body."""
        head = _head(client.parts)
        train(only=head, epochs=self.epochs, draws="head")
        return train(only=client.tensors.keys() - head)


def _head(model: ModelParts) -> set[str]:
    return {e.name for e in model.local if e.trainable and e.kind is Kind.WEIGHT}


def fedper(head: str = "last") -> Method:
    """Share everything but the head, trained together (Arivazhagan et al. 2019)."""
    return Method(_called("fedper", head), share=local(head))


def fedrep(head: str = "last", head_epochs: int = 10) -> Method:
    """Share everything but the head, trained before the body each round (Collins et al. 2021)."""
    if not isinstance(head_epochs, int) or head_epochs < 1:
        raise ConfigError(f"head_epochs = {head_epochs!r} of fedrep: legal are whole numbers >= 1")
    name = "fedrep" if (head, head_epochs) == ("last", 10) else f"fedrep({head!r}, {head_epochs})"
    return Method(name, share=local(head), rules=(HeadFirst(head_epochs),))


def lgfedavg(head: str = "last") -> Method:
    """Share the head alone; each client has a body of its own (Liang et al. 2020)."""
    return Method(_called("lgfedavg", head), share=only(head))


def _called(word: str, head: str) -> str:
    return word if head == "last" else f"{word}({head!r})"
