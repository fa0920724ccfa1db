"""A site's machine: Flower's node, the work on its messages; and the app that `flwr run` loads."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedbn import registry
from fedbn.errors import ConfigError, FedbnError
from fedbn.experiments.configuration import looks_like_path, with_settings
from fedbn.experiments.schema import DataSection
from fedbn.experiments.sources import load_federation
from fedbn.flower import credentials, messages
from fedbn.flower.credentials import Bundle
from fedbn.flower.federation_folder import write_private
from fedbn.flower.internals_node import Child, free_port, last_words, quicken, work
from fedbn.flower.messages import Order
from fedbn.flower.policy import SIMULATED, Policy, read_policy
from fedbn.flower.preflight import is_admitted, reach
from fedbn.flower.site import Site, one_thread, reply
from fedbn.flower.site_job import SiteOptions
from fedbn.registry import TYPED, Held
from fedbn.runs.folder import check_name
from fedbn.runs.metrics import append

_ACCEPTED = "SuperNode ID"
_REFUSED = ("activat", "public key", "unauthorized")
# Longer than the server takes to see that a node which was killed is gone.
_PATIENCE = 30.0
_LONGEST_CUT = 3600.0
_OF_THE_RUN = Held("the configuration of the Flower run", foreign=True)
_ONE_MACHINE = "\0simulation"  # no path: a node of a simulation takes the simulation's policy


def join(
    bundle: Bundle,
    options: SiteOptions,
    home: Path,
    *,
    wait: float = 60.0,
    stop: Callable[[], bool] = lambda: False,
    say: Callable[[str], None] = lambda text: None,
) -> None:
    """Be a site until `stop` says so; its files are at `home`, `wait` is for the server."""
    one_thread()
    quicken()
    site = Site(options)
    site.check_data()  # before anything is said to the server
    reach(bundle, wait)
    say(f"site {bundle.site} works for {bundle.address}; data and BatchNorm stay here")
    begun = time.monotonic()
    while not stop():
        _use_next_key(bundle, options, home, say)
        node = _one_node(site, bundle, home, stop, say)
        if stop():
            return
        if _ACCEPTED in node.said():
            say(f"Flower's node ended ({last_words(node.said())}); starting it again")
            _wait_for_server(bundle, stop)
            begun = time.monotonic()
        elif time.monotonic() - begun > _PATIENCE:
            raise FedbnError(_why(node, bundle))
        time.sleep(1)


def _use_next_key(
    bundle: Bundle, options: SiteOptions, home: Path, say: Callable[[str], None]
) -> None:
    """Replace the site's key by the one that it requested, once the server has admitted that."""
    key_file, next_file = home / "site.key", credentials.next_key(home)
    if not next_file.exists():
        return
    new = credentials.read_key(next_file.read_bytes())
    found = credentials.fingerprint(credentials.public_bytes(new))
    if not is_admitted(bundle, new):
        say(f"the new key {found} is not admitted yet: going on with the key that is")
        return
    old = credentials.read_key(key_file.read_bytes())
    append(home / "earlier.pub", credentials.public_bytes(old))  # it signed earlier log lines
    next_file.replace(key_file)
    options.log.write("key replaced", key=found)
    say(f"the new key {found} is admitted and in use")


def _wait_for_server(bundle: Bundle, stop: Callable[[], bool]) -> None:
    """Wait for a server that was there: a network that is cut comes back by itself."""
    begun = time.monotonic()
    while not stop():
        try:
            reach(bundle, 0)
            return
        except FedbnError:
            if time.monotonic() - begun > _LONGEST_CUT:
                raise
            time.sleep(1)


def _one_node(
    site: Site, bundle: Bundle, home: Path, stop: Callable[[], bool], say: Callable[[str], None]
) -> Child:
    """Work with one node until it ends."""

    def answered(message: Message) -> None:
        with suppress(messages.Unreadable):
            say(_done(messages.get(message.content, Order, *message.content.array_records)))

    secret, port = secrets.token_bytes(32), free_port()
    node = _start_node(bundle, home, secret, port)
    try:
        # A node that has not got the port ends; until it has, another may listen there and ask.
        while node.status() is None and not stop() and _ACCEPTED not in node.said():
            time.sleep(0.05)
        work(
            partial(reply, site),
            f"127.0.0.1:{port}",
            secret,
            alive=lambda: node.status() is None and not stop(),
            answered=answered,
        )
    finally:
        node.end()
    return node


def _start_node(bundle: Bundle, home: Path, secret: bytes, port: int) -> Child:
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    files = {"ca": home / "ca.crt", "key": home / "site.key", "secret": home / "node.secret"}
    files["ca"].write_bytes(bundle.ca)
    if not files["key"].exists():  # `request --rotate` may have made it anew since `join` began
        write_private(files["key"], bundle.key)
    write_private(files["secret"], secret)
    flags = [
        *("--superlink", bundle.address),
        *("--root-certificates", str(files["ca"])),
        *("--auth-supernode-private-key", str(files["key"])),
        *("--isolation", "process"),
        *("--superexec-auth-secret-file", str(files["secret"])),
        *("--host", "127.0.0.1"),
        *("--port", str(port)),
    ]
    return Child("fedbn.flower.internals_node", flags, home / "flower", home / "node.log")


def _done(order: Order) -> str:
    if order.kind == "report":
        return "said what its data is, in counts and names"
    what = {"hello": "checked", "score": "scored", "end": "over"}
    done = what.get(order.kind, f"round {order.round} trained")
    return f"{order.method} seed {order.seed}: {done}"


def _why(node: Child, bundle: Bundle) -> str:
    said = node.said()
    if any(word in said.lower() for word in _REFUSED):
        what = f"the key of site {bundle.site}, or the site is connected already"
        return f"the server at {bundle.address} does not know {what}"
    return f"Flower's node ended: {last_words(said)} (all of it: {node.log})"


def make_app() -> ClientApp:
    """Make the app that `flwr run` loads; the node's configuration says which site it is."""
    app = ClientApp()

    def handle(message: Message, context: Context) -> Message:
        one_thread()
        try:
            registry.trust(trusted_in(context.node_config))
            site = _site(_options(context))
        except FedbnError as error:
            return Message(messages.put(messages.Sorry(reason=str(error)[:2000])), reply_to=message)
        return reply(site, message, context.state)

    app.query()(handle)
    app.train()(handle)
    app.evaluate()(handle)
    return app


def trusted_in(config: Mapping[str, Any]) -> list[str]:
    """Return the modules that one of Flower's configurations trusts, as in `trust="one,other"`."""
    return [name.strip() for name in str(config.get("trust") or "").split(",") if name.strip()]


@cache
def _site(key: tuple[str, str, str, str, Held]) -> Site:
    name, data, folder, rules, held = key
    place = Path(folder) / "flwr" / check_name(name, "site") if folder else None
    policy = SIMULATED if rules == _ONE_MACHINE else Policy(approval=False)
    if rules not in ("", _ONE_MACHINE):
        policy = read_policy(Path(rules))
    return Site(SiteOptions(name, data_section(data), place, policy=policy, held=held))


def _options(context: Context) -> tuple[str, str, str, str, Held]:
    """Read the node's configuration; in a simulation a partition is a client of the data.

    A simulation has one configuration for all nodes, so its state folder has one folder a site.
    """
    given, run = context.node_config, context.run_config
    data = str(given.get("data") or run.get("data") or "digits_mini")
    held = TYPED if given.get("data") else _OF_THE_RUN
    name, rules = str(given.get("site") or ""), str(given.get("policy") or "")
    if not name and "partition-id" in given:
        names, number = _client_names(data, held), int(str(given["partition-id"]))
        if number >= len(names):
            most = f"{data} has {len(names)} clients, so num-supernodes may be at most {len(names)}"
            raise ConfigError(f"node {number} of the simulation has no data: {most}")
        name, rules = names[number], rules or _ONE_MACHINE
    if not name:
        raise ConfigError("node configuration: `site` is missing, as in --node-config 'site=\"a\"'")
    return name, data, str(given.get("state-dir") or run.get("state-dir") or ""), rules, held


@cache
def _client_names(data: str, held: Held) -> list[str]:
    section = DataSection.model_validate(data_section(data), context=held)
    return [client.name for client in load_federation(section).clients]


def data_section(data: str, settings: Sequence[str] = ()) -> dict[str, Any]:
    """Understand a site's data: a path, or a data set's name, and its own `data.KEY=VALUE`."""
    named = {"path": str(Path(data).resolve())} if looks_like_path(data) else {"name": data}
    raw = with_settings({"data": named}, settings)
    if other := raw.keys() - {"data"}:
        legal = "only data.KEY=VALUE is a site's own; all else is the server's"
        raise ConfigError(f"--set {min(other)}: {legal}")
    return dict(raw["data"])
