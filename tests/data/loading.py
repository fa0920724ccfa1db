"""A data set as a configuration asks for it: its options are checked against its signature."""

from __future__ import annotations

from fedbn.core.federation import Federation
from fedbn.experiments.schema import DataSection
from fedbn.experiments.sources import load_federation


def loaded(name: str, **options: object) -> Federation:
    return load_federation(DataSection.model_validate({"name": name, **options}))
