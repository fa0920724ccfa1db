"""A new site joins: a run goes on as a new run with one client more (the paper's transfer).

"If a new center from another domain joins training, we can transfer the non-BN layer parameters
of the global model to this new center. This new center will compute its own mean and variance
statistics, and learn the corresponding local BN parameters." So the new client begins with the
shared part, the mean of the others' affine and its own statistics (the way `average`), and trains
with the others from there on; they keep their own local parts.

The new run counts its rounds on from the old one's and begins with its numbers. It is put
together in a hidden folder and renamed, so that it is there whole, with a state to resume from,
or not at all. Its data is `joined`: the old run's data and the new site's files.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedbn.core.federation import Client, Federation, Split, in_floats
from fedbn.core.plan import Plan
from fedbn.core.randomness import divided, generator
from fedbn.core.rounds import RunState
from fedbn.data.new_samples import Samples, read_samples
from fedbn.data.preparation import SiteFit, with_site_fits
from fedbn.errors import ConfigError, DataError
from fedbn.experiments.configuration import IN_PYTHON, placed
from fedbn.runs import checkpoints, metrics
from fedbn.runs.folder import RunFolder, explained
from fedbn.trained.local_parts import Bench, check_site
from fedbn.trained.opening import job_of, open_run
from fedbn.trained.trained_run import Trained

_TEST_SHARE = 0.2


def joined(
    path: str, run: str, site: str, method: str, setting: str, seed: int, test: str | None = None
) -> Federation:
    """The data of a run and of a site that joined it; what a joining run's `[data]` names."""
    trained = open_run(run, method=method, setting=setting, seed=seed)
    files = Path(path), Path(test) if test else None
    client, fit = _client_and_fit(trained, site, *files)
    return with_client(trained.federation, client, fit)


def client_of(trained: Trained, site: str, path: Path, test: Path | None = None) -> Client:
    """Read a new site's labelled data as a client.

    Its test data is `test`, else the test part of `path`, or a fifth of it. All samples are
    completed by the fit of those to train on.
    """
    return _client_and_fit(trained, site, path, test)[0]


def _client_and_fit(
    trained: Trained, site: str, path: Path, test: Path | None
) -> tuple[Client, SiteFit]:
    samples = read_samples(path, trained.preparation, "train")
    train = labelled(trained, samples, path)
    if (held := own_test(trained, samples, path, test)) is None:
        train, held = in_two(train, _TEST_SHARE, "test split", site)
    (train, held), fit = completed_by_first(trained, samples.where, train, held)
    return Client(site, site, train, {site: held}), fit


def completed_by_first(trained: Trained, where: str, *splits: Split) -> tuple[list[Split], SiteFit]:
    """Complete encoded samples of a new site by the fit of the first split, to train on."""
    known = trained.preparation
    fit = known.fit_site(splits[0].x, where)
    return [replace(one, x=known.apply(one.x, fit, where)) for one in splits], fit


def in_two(data: Split, share: float, purpose: str, site: str) -> tuple[Split, Split]:
    """Hold a share of a site's data out, class by class; a group stays on one side."""
    rest, held = divided(data, share, generator(0, purpose, client=site))
    if len(rest) < 2 or not len(held):
        whose = "" if data.groups is None else f" of {len(data.groups.unique())} groups"
        raise DataError(
            f"{site}: {len(data)} samples{whose}: too few to hold {share:.0%} out; give --test PATH"
        )
    return data.take(rest), data.take(held)


def own_test(trained: Trained, samples: Samples, path: Path, test: Path | None) -> Split | None:
    """A site's test data: what is named, or the test part beside its training part, or none."""
    if test is not None:
        return labelled(trained, read_samples(test, trained.preparation, "test"), test)
    if samples.part != "train":
        return None
    beside = read_samples(path, trained.preparation, "test")
    known = beside.part == "test" and beside.y is not None
    return labelled(trained, beside, path) if known else None


def labelled(trained: Trained, samples: Samples, path: Path) -> Split:
    """Make a split of encoded samples, which must have labels, and groups where the run's do."""
    if samples.y is None:
        raise DataError(f"{path}: no labels, which `predict` and `adapt --how average` do without")
    known = trained.preparation
    group = known.group if known.table is None else known.table.group
    if group is not None and samples.groups is None:
        raise DataError(f"{path}: not every row or file name has {group!r} (data.group)")
    return Split(samples.encoded, samples.y, groups=samples.groups)


def with_client(federation: Federation, client: Client, fit: SiteFit | None = None) -> Federation:
    """Add a client; all samples become floats where the dtypes differ."""
    if client.train.dtype != federation.clients[0].train.dtype:
        client = client.change(in_floats)
    if fit is not None:
        federation = with_site_fits(federation, {client.name: fit})
    return replace(federation, clients=(*federation.clients, client), settled={})


def joining_state(trained: Trained, client: Client) -> RunState:
    """The state that a joining run begins with: the run's, and the new client's local part."""
    bench = Bench(trained)
    if not bench.shares:
        raise ConfigError(
            f"{trained.plan.method.name} shares nothing, so there is nothing to join; train the "
            "site alone, or choose another --method"
        )
    if trained.plan.method.pooled:
        return trained.state
    bench.average()
    if bench.normalises:
        bench.measure(client.train)
    own = {client.name: bench.replica.local.clone()}
    local, untrained = {**trained.state.local, **own}, trained.state.untrained
    if bench.local_statistics:
        untrained = {**untrained, **own}
    return replace(trained.state, local=local, untrained=untrained)


def joining_plan(trained: Trained, client: Client, rounds: int) -> Plan:
    """The plan of a joining run in this process, for so many rounds more."""
    pooled = trained.plan.method.pooled
    federation = with_client(trained.federation, client)
    training = replace(trained.plan.training, rounds=trained.state.round + rounds)
    return replace(
        trained.plan,
        federation=federation.pooled() if pooled else federation,
        training=training,
        evaluate_every=training.rounds,
    )


def prepare_join(
    trained: Trained, site: str, path: Path, out: Path, rounds: int, test: Path | None = None
) -> RunFolder:
    """Make the folder of a joining run, ready for `fedbn resume`."""
    check_site(site, tuple(client.name for client in trained.plan.federation.clients))
    if out.exists():
        raise ConfigError(f"--out {out} is there already; choose another folder")
    request = _request(trained, site, path, rounds, test)
    client = client_of(trained, site, path, test)
    state = joining_state(trained, client)
    hidden = out.with_name(f".{out.name}.tmp")
    with explained(out, ConfigError):
        shutil.rmtree(hidden, ignore_errors=True)
        out.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder = RunFolder(hidden)
        folder.begin(request)
        method, seed = trained.plan.method.name, trained.plan.seed
        place = folder.job(method, "default", seed)
        place.mkdir(parents=True)
        lines = [metrics.line(replace(record, setting="default")) for record in trained.records]
        metrics.append(place / "metrics.jsonl", "".join(lines).encode())
        checkpoints.save(place, state, {"method": method, "setting": "default", "seed": seed})
        with explained(out, ConfigError):
            hidden.rename(out)
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
    return RunFolder(out)


def _request(
    trained: Trained, site: str, path: Path, rounds: int, test: Path | None
) -> dict[str, Any]:
    """The configuration of the joining run: the job's own, with other data and more rounds."""
    assert trained.folder is not None
    plan = trained.plan
    job = job_of(RunFolder(trained.folder), plan.method.name, plan.seed, plan.setting)
    experiment = job.setting.experiment
    if experiment.data.name == IN_PYTHON or experiment.model.name == IN_PYTHON:
        raise ConfigError(
            f"{trained.folder}: its data or model was given in Python, which a run folder cannot "
            "name; join in Python: fedbn.trained.joining"
        )
    raw = experiment.model_dump(exclude_unset=True, exclude_none=True, exclude={"sweep"})
    raw["methods"], raw["seeds"] = [plan.method.name], [plan.seed]
    raw["data"] = {
        "name": "joined",
        "path": str(path.resolve()),
        "run": str(trained.folder.resolve()),
        "site": site,
        "method": plan.method.name,
        "setting": plan.setting,
        "seed": plan.seed,
        **({"test": str(test.resolve())} if test else {}),
    }
    return placed(raw, "training.rounds", trained.state.round + rounds)
