"""The server's machine: Flower's server with the sites' keys, and runs on it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedbn.engines.flower.control import Control, grid_of, set_environment
from fedbn.engines.flower.folder import FederationFolder
from fedbn.engines.flower.preflight import Finding
from fedbn.engines.flower.processes import Child, listens, wait_until
from fedbn.engines.flower.quick import quicken
from fedbn.engines.flower.roster import Expected
from fedbn.engines.flower.server_app import Service, serve
from fedbn.engines.flower.survey import ask_sites
from fedbn.engines.flower.wire import RUN_NAME, Order
from fedbn.errors import ConfigError, FedbnError
from fedbn.experiments.loading import checked
from fedbn.runs.folder import RunFolder

_START_SECONDS = 60.0


@contextmanager
def server(folder: FederationFolder, host: str = "0.0.0.0") -> Iterator[Child]:
    """Run Flower's server, with every site's key let in; it ends with the block."""
    info = folder.read()
    if listens("127.0.0.1", info.port):
        raise ConfigError(f"port {info.port} is in use: another server, or another federation's")
    set_environment(folder)
    module = "fedbn.engines.flower.link"
    child = Child(module, [str(folder.path), host], folder.home, folder.path / "server.log")
    try:
        with Control(folder) as control:
            wait_until(control.reachable, child, _START_SECONDS, "Flower's server")
            for key, site in folder.keys().items():
                control.register(key, site)
        yield child
    finally:
        child.end()


def watch(child: Child, stop: Callable[[], bool]) -> None:
    """Wait until the server is asked to stop."""
    while not stop():
        if child.status() is not None:
            raise FedbnError(f"Flower's server ended (status {child.status()}; see {child.log})")
        time.sleep(0.2)


def run(folder: FederationFolder, raw: dict[str, Any], service: Service, where: str) -> None:
    """Start or continue a run and see it to its end."""
    set_environment(folder)
    quicken()
    experiment = checked(raw, where)
    with service.folder.locked(), grid_of(folder) as grid:
        serve(grid, experiment, service)


def run_folder(folder: FederationFolder, name: str) -> RunFolder:
    """The folder of a run, by its name."""
    if not RUN_NAME.fullmatch(name):
        raise ConfigError(
            f"--name {name[:100]!r}: legal are 1 to 100 letters, digits and _ . - (not . - first)"
        )
    return RunFolder(folder.runs / name)


@contextmanager
def begun(place: RunFolder, raw: Mapping[str, Any]) -> Iterator[None]:
    """Make a run's folder where it is new; a run that is refused leaves nothing behind."""
    new = not (place.config.exists() or place.request.exists())
    made = place.begin(raw) if new else []
    try:
        yield
    except Exception:
        if new and not place.config.exists():
            place.abandon(made)
        raise


def expected_sites(folder: FederationFolder, least: int | None) -> Expected:
    """All sites of the federation; how many must be here is all of them unless said."""
    info = folder.read()
    if least is not None and not 1 <= least <= len(info.sites):
        raise ConfigError(f"--min-sites {least}: legal are 1 to {len(info.sites)}")
    return Expected(info.sites, folder.keys(), least or len(info.sites))


def survey_sites(folder: FederationFolder, questions: Sequence[Order]) -> list[Finding]:
    """Ask every site that is connected what it would bring; needs the server to be up."""
    set_environment(folder)
    quicken()
    expected = expected_sites(folder, None)
    with grid_of(folder) as grid:
        return list(ask_sites(grid, questions, expected))


def add_site(folder: FederationFolder, site: str) -> Path:
    """Add a site; a server that is up learns its key at once."""
    key = folder.add_site(site)
    with Control(folder) as control:
        if control.reachable():
            control.register(key, site)
    return folder.bundle(site)
