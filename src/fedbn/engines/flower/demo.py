"""A whole federation on this machine: server, two sites, TLS and keys, on the loopback only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from fedbn.engines.flower.folder import FederationFolder
from fedbn.engines.flower.processes import Child, free_port
from fedbn.engines.flower.serving import server

SITES = ("plain", "photo")
RAW: dict[str, Any] = {
    "methods": ["fedbn"],
    "seeds": [0],
    "training": {"rounds": 3, "local_epochs": 2},
    "data": {"name": "digits_mini"},
}


def make(path: Path, sites: Sequence[str] = SITES) -> FederationFolder:
    """Make a federation for the loopback, on a port that is free."""
    folder = FederationFolder(path)
    folder.create("demo", sites, "127.0.0.1", free_port())
    return folder


def start_site(folder: FederationFolder, site: str, data: str = "digits_mini") -> Child:
    """Start a site of the federation, as `fedbn federation join` does on its own machine."""
    home = folder.path / "demo-sites" / site
    arguments = ["federation", "join", str(folder.bundle(site)), "--data", data]
    arguments += ["--folder", str(home), "--parent"]
    return Child("fedbn", arguments, home / "flower", home / "join.log")


@contextmanager
def running(folder: FederationFolder, sites: Sequence[str] = SITES) -> Iterator[dict[str, Child]]:
    """Run the server and the sites; all of them end with the block."""
    with ExitStack() as stack:
        stack.enter_context(server(folder, "127.0.0.1"))
        children: dict[str, Child] = {}
        stack.callback(end_all, children)
        for site in sites:
            children[site] = start_site(folder, site)
        yield children


def end_all(children: Mapping[str, Child]) -> None:
    """End processes side by side."""
    for child in children.values():
        child.ask_to_end()
    for child in children.values():
        child.end()
