"""A data set as a configuration asks for it, and further samples as `fedbn predict` reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from fedbn.core.federation import Federation
from fedbn.data import new_samples
from fedbn.data.preparation import Preparation
from fedbn.experiments.schema import DataSection
from fedbn.experiments.sources import load_federation


def loaded(name: str, **options: object) -> Federation:
    """Load a data set, whose options are checked against its signature, prepared for training."""
    return load_federation(DataSection.model_validate({"name": name, **options}))


@dataclass(frozen=True)
class Read:
    """Further samples, as models take them."""

    x: Tensor
    y: Tensor | None
    names: tuple[str, ...]
    notes: tuple[str, ...]
    part: str
    groups: Tensor | None

    def __len__(self) -> int:
        return len(self.x)


def read_samples(
    path: Path, inputs: Mapping[str, Any], part: new_samples.Part = "test", client: str = ""
) -> Read:
    """Read further samples of a client by what a run remembers of its data."""
    known = Preparation.read(inputs)
    found = new_samples.read_samples(path, known, part, pooled=client == "all")
    x, notes = found.completed(known, client)
    return Read(x, found.y, found.names, (*found.notes, *notes), found.part, found.groups)
