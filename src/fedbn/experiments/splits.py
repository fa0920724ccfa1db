"""`splits.json.gz` of a run folder: which samples train, validate and test each client.

A part of a client is described by the files that it was read from, each once, or by the numbers of
its samples: rows of a table's file, or places in the original data, counted from 0. The original
data is what was given for the client or the part, or the files of a benchmark.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from fedbn.core.federation import AnySplit, Federation, Split
from fedbn.core.randomness import with_validation
from fedbn.data.lazy_split import LazySplit
from fedbn.data.own_pictures import Pictures
from fedbn.experiments.jobs import Job
from fedbn.experiments.planner import Planner
from fedbn.runs.folder import RunFolder, write_atomically

FORMAT = 1


def write_splits(folder: RunFolder, todo: Sequence[Job], planner: Planner) -> None:
    """Write the splits of all jobs into the run folder, unless they are there already."""
    content = {"format": FORMAT, "settings": splits_of_jobs(todo, planner)}
    data = gzip.compress(json.dumps(content, separators=(",", ":")).encode(), mtime=0)
    if not folder.splits.exists() or folder.splits.read_bytes() != data:
        write_atomically(folder.splits, data)


def splits_of_jobs(todo: Iterable[Job], planner: Planner) -> dict[str, Any]:
    """Describe the splits by setting and seed; only the validation part depends on the seed."""
    found: dict[str, dict[str, Any]] = {}
    for job in todo:
        experiment = job.setting.experiment
        share = experiment.evaluation.validation
        seed = f"seed {job.seed}" if share else "every seed"
        by_seed = found.setdefault(job.setting.name, {})
        if seed not in by_seed:
            federation = planner.federation(experiment)
            federation = with_validation(federation, share, job.seed) if share else federation
            by_seed[seed] = described(federation)
    return found


def described(federation: Federation) -> dict[str, dict[str, dict[str, Any]]]:
    """Describe every part of every client."""
    return {
        client.name: {name: part(split) for name, split in client.named_splits()}
        for client in federation.clients
    }


def part(split: AnySplit) -> dict[str, Any]:
    """Describe one part of a client: its number of samples, and which they are."""
    said: dict[str, Any] = {"samples": len(split)}
    if isinstance(split, LazySplit):
        sources = [split.loader.sources[which].dataset for which in split.rows[:, 0].unique()]
        if all(isinstance(source, Pictures) for source in sources):
            return said | {"files": list(picture_files(split))}
        return said | {"rows": ranges(split.rows[:, 1])}
    if isinstance(split, Split) and split.files:
        return said | {"files": [file for file, _ in groupby(split.files)]}  # windows of a scan
    known = split.origin.rows if isinstance(split, Split) and split.origin is not None else None
    return said | {"rows": ranges(torch.arange(len(split)) if known is None else known)}


def picture_files(split: LazySplit) -> Iterator[str]:
    """Yield the picture that each sample is read from when it is needed."""
    for which, index in split.rows.tolist():
        file = split.loader.sources[which].dataset.files[index]
        yield f"{file.parent.name}/{file.name}"


def ranges(numbers: Tensor) -> str:
    """Write whole numbers as ranges, in their order.

    Examples:
        >>> import torch
        >>> ranges(torch.tensor([0, 1, 2, 5, 7, 8]))
        '0-2,5,7-8'
    """
    found: list[list[int]] = []
    for number in numbers.tolist():
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in found)
