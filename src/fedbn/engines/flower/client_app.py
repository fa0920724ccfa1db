"""The site's side as Flower knows it: messages in, messages out, errors as one line."""

from __future__ import annotations

import logging
import os
from functools import cache
from pathlib import Path

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedbn.engines.flower import wire
from fedbn.engines.flower.site import Site, SiteOptions, one_thread
from fedbn.errors import ConfigError, FedbnError

log = logging.getLogger("fedbn")


def reply(site: Site, message: Message, state: RecordDict) -> Message:
    """Answer a message; what goes wrong is said, not raised, so that the server can name it."""
    try:
        content = site.answer(message.content, state)
    except FedbnError as error:
        content = wire.put(wire.Sorry(reason=str(error)[:2000]))
    except Exception as error:
        log.debug("site %s failed", site.options.name, exc_info=True)
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        content = wire.put(wire.Sorry(reason=reason[:2000]))
    return Message(content, reply_to=message)


def make_app() -> ClientApp:
    """Make the app that `flwr run` loads; the node's configuration says which site it is."""
    app = ClientApp()

    def handle(message: Message, context: Context) -> Message:
        one_thread()
        try:
            site = _site(_options(context))
        except FedbnError as error:
            return Message(wire.put(wire.Sorry(reason=str(error)[:2000])), reply_to=message)
        return reply(site, message, context.state)

    app.query()(handle)
    app.train()(handle)
    app.evaluate()(handle)
    return app


@cache
def _site(key: tuple[str, str, str]) -> Site:
    name, data, folder = key
    where = "path" if os.sep in data or Path(data).exists() else "name"
    return Site(SiteOptions(name, {where: data}, Path(folder) if folder else None))


def _options(context: Context) -> tuple[str, str, str]:
    """Read the node's configuration; in a simulation a partition is a client of the data.

    A simulation has one configuration for all nodes, so its state folder has one folder a site.
    """
    given, run = context.node_config, context.run_config
    data = str(given.get("data") or run.get("data") or "digits_mini")
    name = str(given.get("site") or "")
    if not name and "partition-id" in given:
        name = _partition(data, int(str(given["partition-id"])))
    if not name:
        raise ConfigError("node configuration: `site` is missing, as in --node-config 'site=\"a\"'")
    return name, data, str(given.get("state-dir") or run.get("state-dir") or "")


def _partition(data: str, number: int) -> str:
    """The client of a node of a simulation."""
    names = _client_names(data)
    if number >= len(names):
        raise ConfigError(
            f"node {number} of the simulation has no data: {data} has {len(names)} clients, so "
            f"num-supernodes may be at most {len(names)}"
        )
    return names[number]


@cache
def _client_names(data: str) -> list[str]:
    from fedbn.experiments.schema import DataSection
    from fedbn.experiments.sources import load_federation

    where = "path" if os.sep in data or Path(data).exists() else "name"
    section = DataSection.model_validate({where: data})
    return [client.name for client in load_federation(section).clients]
