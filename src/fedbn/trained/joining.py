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
from fedbn.core.randomness import generator, stratified
from fedbn.core.rounds import RunState
from fedbn.data.new_samples import Samples, read_samples
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
    client = client_of(trained, site, Path(path), Path(test) if test else None)
    return with_client(trained.federation, client)


def client_of(trained: Trained, site: str, path: Path, test: Path | None = None) -> Client:
    """Read a new site's labelled data as a client.

    Its test data is `test`, else the test part of `path`, or a fifth of it.
    """
    samples = read_samples(path, trained.inputs, "train")
    whole = labelled(samples, path)
    held = own_test(trained, samples, path, test)
    if held is not None:
        return Client(site, site, whole, {site: held})
    rest, held_out = stratified(whole.y, _TEST_SHARE, generator(0, "test split", client=site))
    if not len(held_out) or len(rest) < 2:
        raise DataError(f"{path}: {len(whole)} samples; at least 3 are needed to train and test")
    return Client(site, site, whole.take(rest), {site: whole.take(held_out)})


def own_test(trained: Trained, samples: Samples, path: Path, test: Path | None) -> Split | None:
    """A site's test data: what is named, or the test part beside its training part, or none."""
    if test is not None:
        return labelled(read_samples(test, trained.inputs, "test"), test)
    if samples.part != "train":
        return None
    beside = read_samples(path, trained.inputs, "test")
    return labelled(beside, path) if beside.part == "test" and beside.y is not None else None


def labelled(samples: Samples, path: Path) -> Split:
    """Make a split of samples, which must have labels."""
    if samples.y is None:
        raise DataError(
            f"{path}: no labels, which this way needs; --how average and reestimate need none"
        )
    return Split(samples.x, samples.y)


def with_client(federation: Federation, client: Client) -> Federation:
    """Add a client; all samples become floats where the dtypes differ."""
    if client.train.dtype != federation.clients[0].train.dtype:
        client = client.change(in_floats)
    return replace(federation, clients=(*federation.clients, client))


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
