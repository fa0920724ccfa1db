"""The data of one site of a federation: one client, whatever else lies beside it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from fedbn.core.federation import Federation
from fedbn.errors import Misfit, unknown
from fedbn.experiments.data_contract import own_classes
from fedbn.experiments.schema import DataSection
from fedbn.experiments.sources import load_federation
from fedbn.registry import Held


def at_site(site: str, source: dict[str, Any]) -> Federation:
    """The data of one site, by the `[data]` that it joined with and the contract it was read by."""
    held = Held("the configuration of a site's run")
    return alone(DataSection.model_validate(source, context=held), site)


def alone(section: DataSection, site: str) -> Federation:
    """Load a site's data as a federation of one: the client of its name, or the only one."""
    found = load_federation(own_section(section), site)
    for client in found.clients:
        if client.name == site or len(found.clients) == 1:
            return replace(found, clients=(replace(client, name=site),))
    names = [client.name for client in found.clients]
    text = f"data {found.name}: {unknown('site', site, names)}"
    raise Misfit(text, f"its data has several clients, and unknown site {site!r}")


def own_section(section: DataSection) -> DataSection:
    """Recognise a site's own class folders, PATH/CLASS/*.png, beside what is anybody's."""
    if section.name is None and section.path and own_classes(Path(section.path)):
        return section.model_copy(update={"name": "folders"})
    return section
