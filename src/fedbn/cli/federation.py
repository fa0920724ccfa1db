"""`fedbn federation`: the same methods where sites are separate machines."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from fedbn.core.plan import Plan
    from fedbn.engines.flower.engine import RoundCost
    from fedbn.engines.flower.folder import FederationFolder
    from fedbn.engines.flower.roster import Expected
    from fedbn.experiments.events import Event

group = typer.Typer(
    name="federation",
    help="Sites on separate machines, over Flower: keys, TLS, runs that survive.",
    no_args_is_help=True,
    epilog="First: fedbn federation demo   ·   then: init, server, join at each site, run.",
)
Fed = Annotated[Path, typer.Argument(metavar="FED", help="The federation's folder.")]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.add_typer(group)


@group.command(epilog="Example: fedbn federation init FED --sites nyu,usm --host server.example")
def init(
    fed: Fed,
    sites: Annotated[str, typer.Option(help="The sites' names, as nyu,usm,um.")],
    host: Annotated[str, typer.Option(help="The server's name or address, as sites reach it.")],
    port: Annotated[int, typer.Option(min=1, max=65535, help="The server's port.")] = 9092,
) -> None:
    """Make a federation: authority, certificate, one key and one bundle a site."""
    folder = _folder(fed)
    names = [name.strip() for name in sites.split(",") if name.strip()]
    folder.create(fed.resolve().name, names, host, port)
    (fed / "README.md").write_text(_STEPS.format(fed=fed, port=port), encoding="utf-8")
    for site in names:
        print(f"{folder.bundle(site)}: hand this to {site}, then delete it here")
    _say(f"next: fedbn federation server {fed}")


@group.command(epilog="Example: fedbn federation server FED")
def server(
    fed: Fed,
    bind: Annotated[str, typer.Option(help="The address to listen at.")] = "0.0.0.0",
) -> None:
    """Run the server that sites connect to, until Ctrl-C."""
    folder = _folder(fed)
    from fedbn.cli.stopping import Stopper
    from fedbn.engines.flower import serving

    with Stopper() as stop, serving.server(folder, bind) as child:
        info = folder.read()
        _say(f"ready at port {info.port} for {', '.join(info.sites)}")
        serving.watch(child, stop)


@group.command(epilog="Example: fedbn federation join nyu.fedbn --data my_data/")
def join(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="This site's bundle.")],
    data: Annotated[str, typer.Option(help="A data set's name, or the path of the site's data.")],
    folder: Annotated[
        Path | None, typer.Option(help="Where the site keeps BatchNorm. [default: beside BUNDLE]")
    ] = None,
    wait: Annotated[float, typer.Option(min=0, help="Seconds to try to reach the server.")] = 60.0,
    trust: Annotated[
        list[str] | None,
        typer.Option(metavar="MODULE", help="A module of your own that the server may name."),
    ] = None,
    release_affine: Annotated[
        bool, typer.Option("--release-affine", help="Give BatchNorm's affine away at the end.")
    ] = False,
    parent: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Be a site, until Ctrl-C: train when the server asks; data and BatchNorm stay here."""
    _require()
    from fedbn.cli.stopping import Stopper
    from fedbn.engines.flower import joining, preflight
    from fedbn.engines.flower.bundle import read_bundle
    from fedbn.engines.flower.site import SiteOptions
    from fedbn.experiments.loading import looks_like_path

    given = read_bundle(bundle)
    fine, text = preflight.private(bundle)
    if not fine:
        _say(f"warning: {text}")
    home = (folder or bundle.resolve().with_suffix("")).resolve()
    section = {"path": str(Path(data).resolve())} if looks_like_path(data) else {"name": data}
    options = SiteOptions(
        given.site, section, home / "local", given.federation, tuple(trust or ()), release_affine
    )
    _follow(parent)
    with Stopper() as stop:
        joining.join(given, options, home, wait=wait, stop=stop, say=_say)


@group.command(epilog="Example: fedbn federation check nyu.fedbn --data my_data/")
def check(
    what: Annotated[Path, typer.Argument(metavar="FED|BUNDLE", help="What to examine.")],
    data: Annotated[str | None, typer.Option(help="With a BUNDLE: the site's data.")] = None,
) -> None:
    """Examine certificates, keys, the port and the way to the server, before anything runs."""
    _require()
    from fedbn.engines.flower import preflight
    from fedbn.engines.flower.bundle import read_bundle
    from fedbn.errors import FedbnError

    if what.is_dir():
        findings = list(preflight.check_folder(_folder(what)))
    else:
        given = read_bundle(what)
        findings = list(preflight.check_bundle(what, given))
        if data is not None:
            findings += _examined(given.site, data)
    for fine, text in findings:
        print(f"{'ok   ' if fine else 'WRONG'}  {text}")
    if not all(fine for fine, _ in findings):
        raise FedbnError(f"{sum(not fine for fine, _ in findings)} of these are wrong")


@group.command(epilog="Example: fedbn federation run FED my_experiment.toml")
def run(
    fed: Fed,
    experiment: Annotated[str, typer.Argument(help="FILE.toml, or a name from `fedbn ls`.")],
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any key of the configuration."),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="The run's name; the same again continues it.")
    ] = None,
    min_sites: Annotated[
        int | None, typer.Option(help="How many sites must be here to begin. [default: all]")
    ] = None,
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait for sites.")] = 300.0,
    deadline: Annotated[float, typer.Option(min=0.1, help="Seconds a round may take.")] = 3600.0,
    json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Start a run, or continue it after a stop or a crash."""
    folder = _folder(fed)
    from fedbn.engines.flower.post import Limits
    from fedbn.experiments import catalogue, loading

    file = catalogue.find(experiment)
    raw = loading.with_absolute_paths(loading.with_settings(loading.read_toml(file), set_ or []))
    limits = Limits(wait=wait, round=deadline)
    _run(folder, raw, name or file.stem, str(file), limits, min_sites, json)


@group.command(epilog="Example: fedbn federation status FED")
def status(fed: Fed) -> None:
    """Show which sites are connected, and how far each run is."""
    folder = _folder(fed)
    import time

    from fedbn.engines.flower.control import Control, set_environment
    from fedbn.runs import checkpoints

    set_environment(folder)
    info, keys = folder.read(), folder.keys()
    with Control(folder) as control:
        up = control.reachable()
        known = {keys.get(node.public_key): node for node in (control.nodes() if up else [])}
    print(f"server: {'up' if up else 'not up'}, port {info.port}")
    for site in info.sites:
        node = known.get(site)
        online = node is not None and node.online_until > time.time()
        print(f"site {site}: {'connected' if online else 'not connected'}")
    for place in sorted(folder.runs.glob("*/checkpoints/*/*/seed-*")):
        run_name, _, method, setting, seed = place.relative_to(folder.runs).parts
        print(f"run {run_name}: {method} {setting} {seed}: {checkpoints.whole_round(place)} rounds")


@group.command("add-site", epilog="Example: fedbn federation add-site FED mgh")
def add_site(fed: Fed, site: Annotated[str, typer.Argument(help="The new site's name.")]) -> None:
    """Add a site; a run that is under way takes it in at its next round."""
    folder = _folder(fed)
    from fedbn.engines.flower import serving
    from fedbn.engines.flower.control import set_environment

    set_environment(folder)
    print(f"{serving.add_site(folder, site)}: hand this to {site}, then delete it here")


@group.command(epilog="Example: fedbn federation demo")
def demo(
    out: Annotated[
        Path | None, typer.Option(help="Keep the federation's folder here. [default: thrown away]")
    ] = None,
) -> None:
    """Show all of it on this machine: server, two sites, TLS, keys, three rounds of FedBN."""
    _require()
    from fedbn.engines.flower import demo as example
    from fedbn.engines.flower.post import Limits

    with tempfile.TemporaryDirectory(prefix="fedbn-") as temporary:
        folder = example.make(out or Path(temporary) / "fed")
        _say(f"made a federation of {', '.join(example.SITES)} in {folder.path}")
        with example.running(folder):
            _say("server and sites are up: TLS, one key a site, loopback only")
            _run(folder, example.RAW, "demo", "demo", Limits(wait=120.0, round=300.0), None, False)


def _run(
    folder: FederationFolder,
    raw: dict[str, Any],
    name: str,
    where: str,
    limits: Any,
    least: int | None,
    as_json: bool,
) -> None:
    from fedbn.cli.launching import show
    from fedbn.cli.stopping import Stopper
    from fedbn.engines.flower import serving
    from fedbn.engines.flower.server_app import Service
    from fedbn.errors import Interrupted

    run_folder = serving.run_folder(folder, name, raw)

    def expected() -> Expected:
        return serving.expected_sites(folder, least)

    with Stopper() as stop:
        service = Service(folder.read().id, expected, run_folder, _tell, _tell_cost, limits, stop)
        try:
            serving.run(folder, raw, service, where)
        except Interrupted as error:
            raise Interrupted(f"{error}; the same command continues it") from error
    show(run_folder, as_json)


def _tell(event: Event) -> None:
    job = f"{event.job[0]} seed {event.job[2]}"
    if event.kind == "note":
        _say(f"{job}: {event.text}")
    elif event.kind == "begin" and event.round:
        _say(f"{job}: going on after round {event.round} of {event.rounds}")
    elif event.kind == "round":
        _say(f"{job}: round {event.round}/{event.rounds}  {_numbers(event)}")


def _tell_cost(plan: Plan, cost: RoundCost) -> None:
    sources = ", ".join(f"{site} {source}" for site, source in cost.sources.items())
    _say(
        f"  {cost.seconds:.2f} s, {cost.beyond_training:.2f} s of it beyond training; "
        f"{cost.bytes_down:,} bytes down, {cost.bytes_up:,} up; BatchNorm: {sources}"
    )


def _numbers(event: Event) -> str:
    parts = []
    for record in event.records:
        if record["metric"] == "training_loss" and record["value"] is not None:
            parts.append(f"{record['client']} loss {record['value']:.3f}")
    for record in event.records:
        if record["split"] == "test" and record["metric"] == "accuracy":
            share = f"{100 * record['value']:.1f} %"
            parts.append(f"{record['client']} {share} after round {record['round']}")
    return ", ".join(parts)


def _examined(site: str, data: str) -> list[tuple[bool, str]]:
    from fedbn.engines.flower.site import Site, SiteOptions
    from fedbn.errors import FedbnError
    from fedbn.experiments.loading import looks_like_path

    section = {"path": data} if looks_like_path(data) else {"name": data}
    try:
        return [(True, text) for text in Site(SiteOptions(site, section)).described()]
    except FedbnError as error:
        return [(False, str(error))]


def _folder(path: Path) -> FederationFolder:
    _require()
    from fedbn.engines.flower.folder import FederationFolder

    return FederationFolder(path.resolve())


def _require() -> None:
    from fedbn.engines.flower import require_flower

    require_flower()


def _follow(parent: int | None) -> None:
    """End with the process that started this one, however that one ends."""
    if parent is not None:
        from fedbn.engines.flower.processes import follow

        follow(parent)


def _say(text: str) -> None:
    from fedbn.cli.output import printable

    print(printable(text), file=sys.stderr, flush=True)


_STEPS = """# This federation, step by step

1. Hand each file of `bundles/` to its site, by a way you trust, then delete it here.
2. Here: `fedbn federation check {fed}`, then `fedbn federation server {fed}` (port {port}, TCP).
3. At each site: `pip install 'fedbn[flower]'`, then
   `fedbn federation check SITE.fedbn --data PATH`, then
   `fedbn federation join SITE.fedbn --data PATH`.
4. Here: `fedbn federation run {fed} EXPERIMENT.toml`. The same command continues a run.

`ca.key`, `server.key`, `operator.secret` and the bundles are private; whoever has
`operator.secret` may start runs. Keep a copy of `ca.key` elsewhere: without it the server's
certificate cannot be renewed.
"""
