"""All that a run folder and its models hold for a report; what is damaged or gone is said."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedbn.core.bn_statistics import tracked_norms
from fedbn.core.federation import AnySplit, Targets
from fedbn.core.randomness import generator
from fedbn.core.state import State, entries, is_batchnorm
from fedbn.data.survey import drawable
from fedbn.datasets import PUBLIC_PICTURES
from fedbn.errors import (
    ConfigError,
    DamagedRun,
    FedbnError,
    GivenInPython,
    unforeseen,
    unknown,
)
from fedbn.experiments.jobs import Key as Job
from fedbn.report import contents
from fedbn.report.contents import RunContents
from fedbn.results.aggregate import Key
from fedbn.runs import checkpoints, metrics
from fedbn.runs.folder import RunFolder
from fedbn.runs.messages import RunWarning, grouped, read_warnings
from fedbn.text import flat, listed, spread
from fedbn.trained.evaluation import Outcomes, outcomes_of
from fedbn.trained.opening import jobs_of, open_run
from fedbn.trained.trained_run import Trained

_MOST_MEASURED, _MOST_SCORED = 64, 12
_DRAWN, _MISTAKES = 8, 4


def collect(trained: Trained, with_samples: bool) -> tuple[contents.Facts, dict[str, str]]:
    """Collect what a report shows of one job; and why, of each part that is not among it."""
    trained.check_network()
    plan, missing = trained.plan, dict[str, str]()
    layers = _layers(trained)
    if not layers:
        missing["statistics"] = _why_no_layers(trained)
    confusions, galleries = _scored(trained, missing, with_samples)
    every = entries(plan.initial_model)
    shared = set(plan.method.shared(every))
    found = contents.Facts(
        method=plan.method.name,
        setting=plan.setting,
        seed=plan.seed,
        round=trained.state.round,
        remarks=plan.federation.remarks,
        classes=plan.federation.classes,
        clients=len(plan.federation.clients),
        entries=tuple((entry, entry in shared) for entry in every),
        layers=layers,
        confusions=confusions,
        galleries=galleries,
    )
    return found, missing


def _why(error: Exception) -> str:
    """Say in one line why something cannot be had."""
    if isinstance(error, GivenInPython):
        return error.fact
    text = str(error) if isinstance(error, FedbnError) else unforeseen(error)
    return text.rstrip(".")


def _layers(trained: Trained) -> tuple[contents.Layer, ...]:
    """The running statistics that clients keep to themselves, layer by layer."""
    names = tuple(spread(list(trained.state.local), _MOST_MEASURED))
    own = [trained.state.scored_with(client).state for client in names]
    found = []
    for name, module in trained.plan.initial_model.named_modules():
        keys = [f"{name}.{part}".lstrip(".") for part in ("running_mean", "running_var")]
        if len(names) > 1 and is_batchnorm(module) and {*keys} <= own[0].keys():
            mean, variance = (
                torch.stack([state[key].detach().cpu().double().flatten() for state in own]).numpy()
                for key in keys
            )
            found.append(contents.Layer(name or "BatchNorm", names, mean, variance))
    return tuple(found)


def _why_no_layers(trained: Trained) -> str:
    method = trained.plan.method.name
    if not tracked_norms(trained.plan.initial_model):
        return "the model has no BatchNorm layer that tracks statistics"
    if len(trained.state.local) < 2:
        return f"{method} trains one model, so there is nothing to compare"
    return f"under {method} all clients share the same BatchNorm statistics"


def _scored(
    trained: Trained, missing: dict[str, str], with_samples: bool
) -> tuple[tuple[contents.Confusion, ...], tuple[contents.Gallery, ...]]:
    """Run each client's model over its own test data."""
    confusions, galleries, domains = [], [], set[str]()
    try:
        federation = trained.federation
        federation = federation.pooled() if trained.plan.method.pooled else federation
        if federation.targets is not Targets.CLASS:
            why = f"the task is {trained.plan.task.name}, where no class is taken for another"
            missing |= {"confusions": why, "examples": why}
            return (), ()
        pictures, classes = len(federation.input_shape) == 3, federation.classes
        tests = [(c, domain, test) for c in federation.clients for domain, test in c.tests.items()]
        for client, domain, test in spread(tests, _MOST_SCORED):
            made = outcomes_of(trained, client.name, test)
            confusions.append(contents.Confusion(client.name, domain, made.confusion))
            if pictures and with_samples and domain not in domains:
                domains.add(domain)
                drawn, mistakes = _examples(client.name, test, made, classes)
                galleries.append(contents.Gallery(client.name, domain, drawn, mistakes))
    except Exception as error:
        why = f"the test data cannot be used here ({_why(error)})"
        missing |= {"confusions": why, "examples": why}
        return (), ()
    if not pictures:
        missing["examples"] = "the samples are no pictures"
    elif not with_samples:
        missing["examples"] = "pictures of your own data may show persons (--with-samples)"
    return tuple(confusions), tuple(galleries)


def _examples(
    client: str, test: AnySplit, made: Outcomes, classes: Sequence[str]
) -> tuple[tuple[contents.Example, ...], tuple[contents.Example, ...]]:
    """Draw some test samples at random, and then the surest mistakes."""
    order = torch.randperm(len(test), generator=generator(0, "report", client=client)).tolist()
    drawn, sure = order[:_DRAWN], made.proba.max(axis=1)
    wrong = made.predicted != made.labels
    mistakes = [i for i in np.argsort(-sure, kind="stable").tolist() if wrong[i] and i not in drawn]

    def example(place: int) -> contents.Example:
        pixels = drawable(test.raw(slice(place, place + 1))[0].cpu())[0]
        true, guess = (classes[int(label[place])] for label in (made.labels, made.predicted))
        return contents.Example(pixels, true, guess, float(sure[place]))

    return tuple(map(example, drawn)), tuple(map(example, mistakes[:_MISTAKES]))


def gather(
    path: Path,
    *,
    method: str | None = None,
    seed: int | None = None,
    setting: str | None = None,
    with_samples: bool = False,
) -> RunContents:
    """Read a run folder for a report.

    Args:
        path: The run folder.
        method: The method whose models are looked into.
        seed: Their seed.
        setting: Their setting.
        with_samples: Collect pictures of samples of private data, too. Those of our public data
            sets always are.
    """
    folder = RunFolder(path)
    config = folder.read_request()
    notes: list[str] = []
    records = _records(folder, notes)
    choice = {"method": method, "seed": seed, "setting": setting}
    for what, value in choice.items():
        legal = dict.fromkeys(record[what] for record in records)
        if value is not None and value not in legal:
            raise ConfigError(f"{folder.path}: {unknown(what, str(value), map(str, legal))}")
    notes += _unfinished(folder)
    try:
        environment = folder.read_environment()
    except FedbnError as error:
        notes.append(_why(error))
        environment = {}
    drawn = with_samples or has_public_pictures(config)
    facts, missing = _facts(folder, choice, notes, drawn)
    known = _exchanges(folder, records)
    exchanges = tuple(one for one in known if one.shared[0] or one.local)  # no baselines
    if not exchanges:
        none = "the baselines of this run exchange nothing"
        missing["exchange"] = none if known else "no whole checkpoint tells what was shared"
    return RunContents(
        path=str(path),
        records=records,
        config=config,
        environment=environment,
        exchanges=exchanges,
        facts=facts,
        missing=missing,
        notes=tuple(notes),
        warnings=grouped(_warnings(folder, notes)),
        name=path.resolve().name,
    )


def has_public_pictures(config: Mapping[str, Any]) -> bool:
    """True if all data of a run, swept values included, is a public data set of this package."""
    settings = dict(flat(config))
    named = [settings.get(f"{above}data.name") for above in ("", "sweep.")]
    paths = [settings.get(f"{above}data.path") for above in ("", "sweep.")]
    names = [one for value in named for one in (value if isinstance(value, list) else [value])]
    known = [one for one in names if one is not None]
    return not any(paths) and all(one in PUBLIC_PICTURES for one in known)


def _records(folder: RunFolder, notes: list[str]) -> list[dict[str, Any]]:
    """All whole records: of the run's file, and of jobs that are under way in their own files."""
    found: dict[Job, list[dict[str, Any]]] = {}
    files = [folder.metrics, *sorted(folder.path.glob("checkpoints/*/*/seed-*/metrics.jsonl"))]
    for file in files:
        try:
            usable, bad = metrics.salvage(file)
        except OSError:
            continue
        if bad:
            lines = len(usable) + bad
            notes.append(f"{file}: {bad} of {lines} lines are no records and were left out")
        jobs: dict[Job, list[dict[str, Any]]] = defaultdict(list)
        for record in usable:
            jobs[record["method"], record["setting"], record["seed"]].append(record)
        for job, records in jobs.items():
            if len(records) > len(found.get(job, [])):
                found[job] = records
    return [record for records in found.values() for record in records]


def _warnings(folder: RunFolder, notes: list[str]) -> list[RunWarning]:
    """Return the warnings of a run; a file that cannot be read is noted."""
    try:
        return read_warnings(folder)
    except OSError as error:
        notes.append(f"{folder.warnings}: {error.strerror}")
        return []


def _unfinished(folder: RunFolder) -> list[str]:
    try:
        jobs = jobs_of(folder.path)
    except Exception as error:
        return [f"Not known whether the run is finished: {_why(error)}"]
    open_ = [job for job in jobs if job.rounds_done < job.rounds]
    if not open_:
        return []
    said = [f"{j.method} seed {j.seed} at round {j.rounds_done} of {j.rounds}" for j in open_]
    count = f"{len(jobs) - len(open_)} of {len(jobs)} jobs are done"
    return [f"This run is not finished: {count}; {listed(said)}"]


def _facts(
    folder: RunFolder, choice: Mapping[str, Any], notes: list[str], with_samples: bool
) -> tuple[contents.Facts | None, dict[str, str]]:
    try:
        return collect(open_run(folder.path, **choice, notes=notes.append), with_samples)
    except Exception as error:
        return None, dict.fromkeys(("statistics", "confusions", "examples"), _why(error))


def _exchanges(
    folder: RunFolder, records: Iterable[Mapping[str, Any]]
) -> tuple[contents.Exchange, ...]:
    """What each method shares, by the sizes of what its newest checkpoint holds."""
    trained: dict[Job, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    for r in records:
        if r["metric"] == "training_loss":
            trained[r["method"], r["setting"], r["seed"]][r["round"]].add(r["client"])
    found: dict[tuple[str, str], contents.Exchange] = {}
    for (method, setting, seed), rounds in trained.items():
        sizes = _sizes(folder.job(method, setting, seed))
        if sizes is None or (method, setting) in found:
            continue
        clients, name = rounds[max(rounds)], Key(method, setting).label
        facts = (*sizes, len(clients), max(rounds), clients == {"all"})
        found[method, setting] = contents.Exchange(name, *facts)
    return tuple(found.values())


def _sizes(place: Path) -> tuple[tuple[int, int], tuple[int, int] | None] | None:
    """Entries and bytes of the shared part, and of a client's local part, of a checkpoint."""
    for _, path in checkpoints.rounds(place):
        try:
            found = checkpoints.Checkpoint(path)
            clients = found.clients.get("local", {})
            local = [_size(found.row("local", client)) for client in list(clients)[:1]]
            return _size(found.section("shared")), (local[0] if local else None)
        except DamagedRun:
            continue
    return None


def _size(state: State) -> tuple[int, int]:
    """Count tensors and their bytes."""
    return len(state), sum(value.nbytes for value in state.values())
