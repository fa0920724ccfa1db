"""`fedbn federation`: sites on separate machines; making a federation, and what serves it."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from json import dumps
from pathlib import Path
from typing import Annotated

import typer

from fedbn.cli import approval_view, console
from fedbn.cli.console import emit, say
from fedbn.cli.federation_keys import Fed, Fingerprint, known_authority
from fedbn.cli.progress import Stopper
from fedbn.errors import FedbnError, TooFewClients
from fedbn.flower import credentials, preflight, server_app, site_app
from fedbn.flower.approvals import Approvals, Asked
from fedbn.flower.audit_log import AuditLog, log_of
from fedbn.flower.federation_folder import FederationFolder, write_unit
from fedbn.flower.internals_node import follow
from fedbn.flower.internals_server import Control
from fedbn.flower.policy import Policy, read_policy
from fedbn.flower.site_job import SiteOptions
from fedbn.runs import checkpoints
from fedbn.runs.folder import write_atomically
from fedbn.text import shown

app = console.commands()

_STEPS = """# This federation, step by step

1. At each site: `fedbn federation request SITE` makes its key there and a file SITE.request. Here:
   `fedbn federation admit {fed} SITE.request` answers with `bundles/SITE.fedbn`. Compare the
   fingerprints that both print by telephone. (Bundles that `--sites` made hold a private key: for
   trying out. Hand them over by a way you trust, then delete them here.)
2. Here: `fedbn federation check {fed}`, then `fedbn federation server {fed}` (port {port}, TCP).
3. At each site: `pip install 'fedbn[flower]'`, then
   `fedbn federation check SITE.fedbn --data PATH`, then
   `fedbn federation join SITE.fedbn --data PATH`.
4. Here: `fedbn federation check {fed} --experiment EXPERIMENT.toml` asks every site that is
   connected for its model, classes and versions, and compares them.
5. Here: `fedbn federation run {fed} EXPERIMENT.toml`. The same command continues a run.

`ca.key`, `server.key`, `operator.secret` and the bundles are private; whoever has
`operator.secret` may start runs. Keep a copy of `ca.key` elsewhere: without it the server's
certificate cannot be renewed.
"""


@app.command(epilog="Example: fedbn federation init FED --sites nyu,usm --host server.example")
def init(
    fed: Fed,
    host: Annotated[str, typer.Option(help="The server's name or address, as sites reach it.")],
    sites: Annotated[
        str, typer.Option(help="For trying out: sites whose keys are made here, as nyu,usm.")
    ] = "",
    port: Annotated[int, typer.Option(min=1, max=65535, help="The server's port.")] = 9092,
) -> None:
    """Make a federation: authority, certificate, one key and one bundle a site."""
    folder = FederationFolder(fed.resolve())
    names = [name.strip() for name in sites.split(",") if name.strip()]
    folder.create(fed.resolve().name, names, host, port)
    (fed / "README.md").write_text(_STEPS.format(fed=fed, port=port), encoding="utf-8")
    words = ["federation", "server", str(folder.path)]
    unit = folder.path / "fedbn-server.service"
    write_unit(unit, f"fedbn federation {folder.path.name}", words, folder.path)
    server_app.note_made(folder, names)
    for site in names:
        emit(f"{folder.bundle(site)}: hand this to {site}, then delete it here")
    emit(f"the authority: {credentials.authority_fingerprint(folder.ca.read_bytes())}")
    say(f"next: fedbn federation server {fed}")


@app.command(epilog="Example: fedbn federation server FED")
def server(
    fed: Fed,
    bind: Annotated[str, typer.Option(help="0.0.0.0, or 127.0.0.1 for this machine.")] = "0.0.0.0",
) -> None:
    """Run the server that sites connect to, until Ctrl-C."""
    folder = FederationFolder(fed.resolve())
    for fine, text in preflight.check_dates(folder):
        if not fine or text.endswith("(soon)"):
            say(f"warning: {text}; `fedbn federation rotate {fed}` renews it")
    with Stopper() as stop, server_app.server(folder, bind) as child:
        info = folder.read()
        say(f"ready at port {info.port} for {', '.join(info.sites)}")
        server_app.watch(child, stop)


@app.command(epilog="Example: fedbn federation join nyu.fedbn --data my_data/")
def join(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="This site's bundle.")],
    data: Annotated[str, typer.Option(help="A data set's name, or the path of the site's data.")],
    folder: Annotated[
        Path | None, typer.Option(help="Where the site keeps BatchNorm. [default: beside BUNDLE]")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu or cuda, at this site. [default: as the experiment]")
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(help="This site's copy of the experiment's model.weights.")
    ] = None,
    wait: Annotated[float, typer.Option(min=0, help="Seconds to try to reach the server.")] = 60.0,
    policy: Annotated[
        Path | None, typer.Option(help="What the site allows. [default: policy.toml in the folder]")
    ] = None,
    settings: console.Settings = None,
    fingerprint: Fingerprint = None,
    address: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="The server's, where it moved.")
    ] = None,
    trust: console.Trust = None,
    release_affine: Annotated[
        bool, typer.Option("--release-affine", help="Give BatchNorm's affine away at the end.")
    ] = False,
    parent: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Be a site, until Ctrl-C: train when the server asks; data and BatchNorm stay here."""
    home, given = (folder or home_of(bundle)).resolve(), credentials.read_bundle(bundle)
    fine, text = preflight.private(bundle) if given.key else (True, "")
    if not fine:
        say(f"warning: {text}")
    given = known_authority(given, home, fingerprint)
    if address is not None:
        given = replace(given, address=address)
    key = credentials.read_key(given.key)
    options = SiteOptions(
        given.site,
        site_app.data_section(data, settings or ()),
        home / "runs",
        given.federation,
        release_affine=release_affine,
        device=device,
        weights=weights,
        policy=_policy(policy, home),
        home=home,
        log=AuditLog(home / "log.jsonl", key),
    )
    found = credentials.fingerprint(credentials.public_bytes(key))
    options.log.write("joined", key=found, address=given.address)
    if parent is not None:
        follow(parent)  # ends with the process that started this one
    else:
        unit = home / f"fedbn-site-{given.site}.service"
        write_unit(unit, f"fedbn site {given.site}", sys.argv[1:], Path.cwd())
        say(f"{unit}: for systemd, so that the site is here again after a restart")
    with Stopper() as stop:
        site_app.join(given, options, home, wait=wait, stop=stop, say=say)


def home_of(site: Path) -> Path:
    """The folder of a site that is named by its bundle, or by the folder itself."""
    return site if site.is_dir() else site.resolve().with_suffix("")


def _policy(file: Path | None, home: Path) -> Policy:
    """Read what a site allows; one that has said nothing yet gets the strict policy, as a file."""
    place = file or home / "policy.toml"
    if file is None and not place.exists():
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(place, Policy().to_toml().encode())
        say(f"{place}: what this site allows, strict until you change it")
    return read_policy(place)


@app.command(epilog="Example: fedbn federation approve nyu.fedbn 3f2a91c4")
def approve(
    site: Annotated[Path, typer.Argument(metavar="SITE", help="The site's bundle or folder.")],
    experiment: Annotated[
        str | None, typer.Argument(help="The experiment, by the beginning of its hash.")
    ] = None,
    withdraw: Annotated[
        bool, typer.Option("--withdraw", help="Take the approval back; a run goes on without.")
    ] = False,
    full: Annotated[bool, typer.Option("--full", help="Show long values in full.")] = False,
) -> None:
    """Approve an experiment at a site, or show those that it was asked to take part in.

    Without EXPERIMENT every experiment that waits is shown in full, and nothing is approved.
    """
    home = home_of(site)
    approvals, policy = Approvals(home), home / "policy.toml"
    days = read_policy(policy).approval_days if policy.exists() else Policy().approval_days
    if experiment is not None:
        _show_asked(approvals, approvals.find(experiment), days, full)
        done = approvals.decide(experiment, not withdraw)
        what = "approved" if done.approved else "approved no more"
        log_of(home).write(what, experiment=done.hash)
        say(f"{done.hash[:16]}: {what}")
        return
    for one in approvals.all():
        if one.is_approved(days):
            emit(_headline(one, days))
        else:
            _show_asked(approvals, one, days, full)


def _headline(asked: Asked, days: int) -> str:
    end = asked.expires(days)
    if not asked.approved:
        state = f"waits, asked {asked.asked}"
    elif not asked.is_approved(days):
        state = f"waits: its approval expired on {end:%Y-%m-%d}"
    else:
        state = f"approved {shown(asked.approved)}" + (f" until {end:%Y-%m-%d}" if end else "")
    return f"{asked.hash[:16]}  {state}\n  run {shown(asked.run)[:70]}"


def _show_asked(approvals: Approvals, asked: Asked, days: int, full: bool) -> None:
    """Print all that an approval covers, and what changed since the last one."""
    emit(_headline(asked, days))
    emit()
    for line in approval_view.table(asked, full):
        emit(line)
    emit()
    for line in approval_view.differences(asked, approvals.last_approved(asked), full):
        emit(line)
    emit()


_STATUS = console.examples("fedbn federation status FED", "fedbn federation status FED --json")


@app.command(epilog=_STATUS)
def status(fed: Fed, json: console.Json = False) -> None:
    """Show which sites are connected, and how far each run is.

    Exit code 0: the server is up and all sites are connected. 1: the server is not up. 5: at least
    one site is not connected.
    """
    folder = FederationFolder(fed.resolve())
    info = folder.read()
    keys = folder.keys()
    with Control(folder) as control:
        up = control.reachable()
        nodes = control.nodes() if up else []
    connected = {keys.get(n.public_key) for n in nodes if n.online_until > time.time()}
    agreed = folder.agreed()
    runs = []
    for place in sorted(folder.runs.glob("*/checkpoints/*/*/seed-*")):
        name, _, method, setting, seed = place.relative_to(folder.runs).parts
        runs.append((name, method, setting, seed, checkpoints.whole_round(place)))
    if json:
        found = {
            "server": {"up": up, "port": info.port},
            "sites": {
                site: {"connected": site in connected, "samples": agreed.get(site, {})}
                for site in info.sites
            },
            "runs": [
                dict(zip(("name", "method", "setting", "seed", "rounds"), run, strict=True))
                for run in runs
            ],
        }
        emit(dumps(found, indent=2))
    else:
        emit(f"server: {'up' if up else 'not up'}, port {info.port}")
        for site in info.sites:
            counts = " and ".join(f"{count:,}" for count in agreed.get(site, {}).values())
            count = f", {counts} training samples agreed" if counts else ""
            emit(f"site {site}: {'connected' if site in connected else 'not connected'}{count}")
        for name, method, setting, seed, rounds in runs:
            emit(f"run {name}: {method} {setting} {seed}: {rounds} rounds")
    if not up:
        raise typer.Exit(FedbnError.exit_code)
    if not connected.issuperset(info.sites):
        raise typer.Exit(TooFewClients.exit_code)


@app.command("add-site", epilog="Example: fedbn federation add-site FED mgh")
def add_site(fed: Fed, site: Annotated[str, typer.Argument(help="The new site's name.")]) -> None:
    """Add a site whose key is made here, for trying out; a run under way takes it in."""
    folder = FederationFolder(fed.resolve())
    emit(f"{server_app.add_site(folder, site)}: hand this to {site}, then delete it here")
