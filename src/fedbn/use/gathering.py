"""All that a run folder holds for a report; what is damaged or gone is said, not fatal."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedbn.errors import ConfigError, DamagedRun, FedbnError, unknown
from fedbn.results.report.contents import Exchange, Facts, RunContents
from fedbn.runs import checkpoints, metrics
from fedbn.runs.folder import RunFolder
from fedbn.runs.formats import read_as
from fedbn.use.facts import changed, collect, reason
from fedbn.use.opening import jobs_of, open_run

_LARGEST_HEADER = 100_000_000
Job = tuple[str, str, int]


def gather(
    path: Path, *, method: str | None = None, seed: int | None = None, setting: str | None = None
) -> RunContents:
    """Read a run folder for a report.

    Args:
        path: The folder.
        method: Whose models to look into; FedBN's if the run has them.
        seed: Of which seed; the first unless given.
        setting: Of which setting; the first unless given.

    Raises:
        ConfigError: No run is there, or it has no such method, seed or setting.
    """
    folder = RunFolder(path)
    config = folder.read_request()
    notes: list[str] = []
    records = _records(folder, notes)
    _check_choice(folder, records, {"method": method, "seed": seed, "setting": setting})
    notes += _unfinished(folder)
    environment = _environment(folder, notes)
    facts, missing = _facts(folder, method, seed, setting, notes)
    exchanges = _exchanges(folder, records)
    if not exchanges:
        missing["exchange"] = "no whole checkpoint tells what was shared"
    return RunContents(
        path=str(path),
        records=records,
        config=config,
        environment=environment,
        exchanges=exchanges,
        facts=facts,
        missing=missing,
        notes=tuple(notes),
        name=path.resolve().name,
    )


def _check_choice(
    folder: RunFolder, records: Iterable[Mapping[str, Any]], choice: Mapping[str, Any]
) -> None:
    for what, value in choice.items():
        legal = dict.fromkeys(record[what] for record in records)
        if value is not None and value not in legal:
            raise ConfigError(f"{folder.path}: {unknown(what, str(value), map(str, legal))}")


def _records(folder: RunFolder, notes: list[str]) -> list[dict[str, Any]]:
    """All whole records: of the run's file, and of jobs that are under way in their own files."""
    found: dict[Job, list[dict[str, Any]]] = {}
    files = [folder.metrics, *sorted(folder.path.glob("checkpoints/*/*/seed-*/metrics.jsonl"))]
    for file in files:
        jobs: dict[Job, list[dict[str, Any]]] = defaultdict(list)
        for record in _usable(file, notes):
            jobs[record["method"], record["setting"], record["seed"]].append(record)
        for job, records in jobs.items():
            if len(records) > len(found.get(job, [])):
                found[job] = records
    return [record for records in found.values() for record in records]


def _usable(file: Path, notes: list[str]) -> list[dict[str, Any]]:
    try:
        *lines, _cut_off = file.read_bytes().split(b"\n")
    except OSError:
        return []
    found = []
    for line in lines:
        with suppress(DamagedRun):
            found.append(vars(read_as(metrics.RECORD, line, str(file))))
    if bad := len(lines) - len(found):
        notes.append(f"{file}: {bad} of {len(lines)} lines are no records and were left out")
    return found


def _unfinished(folder: RunFolder) -> list[str]:
    try:
        jobs = jobs_of(folder.path)
    except Exception as error:
        return [f"Not known whether the run is finished: {reason(error)}"]
    open_ = [job for job in jobs if job.rounds_done < job.rounds]
    if not open_:
        return []
    said = [f"{j.method}, seed {j.seed}, at round {j.rounds_done} of {j.rounds}" for j in open_[:4]]
    more = f" and {len(open_) - 4} more" if len(open_) > 4 else ""
    count = f"{len(jobs) - len(open_)} of {len(jobs)} jobs are done"
    return [f"This run is not finished: {count}; {'; '.join(said)}{more}"]


def _facts(
    folder: RunFolder, method: str | None, seed: int | None, setting: str | None, notes: list[str]
) -> tuple[Facts | None, dict[str, str]]:
    try:
        opened = open_run(
            folder.path, method=method, seed=seed, setting=setting, notes=notes.append
        )
        notes += changed(opened, folder.read_environment().get("data"))
        return collect(opened)
    except Exception as error:
        why = reason(error)
        return None, dict.fromkeys(("statistics", "confusions", "examples"), why)


def _environment(folder: RunFolder, notes: list[str]) -> dict[str, Any]:
    try:
        return folder.read_environment()
    except FedbnError as error:
        notes.append(reason(error))
        return {}


def _exchanges(folder: RunFolder, records: Iterable[Mapping[str, Any]]) -> tuple[Exchange, ...]:
    """What each method shares, by the sizes of what its newest checkpoint holds."""
    trained: dict[Job, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    for r in records:
        if r["metric"] == "training_loss":
            trained[r["method"], r["setting"], r["seed"]][r["round"]].add(r["client"])
    found: dict[tuple[str, str], Exchange] = {}
    for (method, setting, seed), rounds in trained.items():
        sizes = _sizes(folder.job(method, setting, seed))
        if sizes is None or (method, setting) in found:
            continue
        label = method if setting == "default" else f"{method} ({setting})"
        clients = rounds[max(rounds)]
        pooled = clients == {"all"}
        found[method, setting] = Exchange(label, *sizes, len(clients), max(rounds), pooled)
    return tuple(found.values())


def _sizes(place: Path) -> tuple[tuple[int, int], tuple[int, int] | None] | None:
    """Entries and bytes of the shared part, and of a client's local part, of a checkpoint."""
    for _, path in checkpoints.rounds(place):
        try:
            files = checkpoints.read_manifest(path)["files"]
            local = [name for name in files if name.startswith("local/")]
            shared = _tensors(path / "shared.safetensors")
            return shared, (_tensors(path / local[0]) if local else None)
        except (FedbnError, OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
    return None


def _tensors(file: Path) -> tuple[int, int]:
    """Count the tensors of a file and their bytes, from its header."""
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if length > min(_LARGEST_HEADER, file.stat().st_size):
            raise ValueError(f"{file}: damaged")
        header = json.loads(stream.read(length))
    header.pop("__metadata__", None)
    ends = [entry["data_offsets"] for entry in header.values()]
    return len(header), sum(end - begin for begin, end in ends)
