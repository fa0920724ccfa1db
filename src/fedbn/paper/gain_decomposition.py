"""What FedBN's gain over FedAvg is made of, on several data sets.

Each seed of each data set and division is one part. It is trained, scored in all ways of
`gain_scoring` and stored as one line of `parts/NAME.jsonl` in the item's folder. A part that is
stored is not trained again, and its data need not be there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from fedbn.core.federation import Client, Federation, concatenated
from fedbn.core.randomness import divided, generator
from fedbn.data.storage import data_root
from fedbn.errors import ConfigError, unknown
from fedbn.experiments.configuration import Raw, changed, checked
from fedbn.experiments.jobs import jobs
from fedbn.experiments.planner import Planner
from fedbn.experiments.sources import load_federation, named_task
from fedbn.paper import gain_parts, gain_tables
from fedbn.paper.configurations import is_there
from fedbn.paper.gain_parts import Part
from fedbn.paper.gain_scoring import measure
from fedbn.paper.items import Outcome, Request, options_of, refused
from fedbn.text import flat

DEFAULTS: dict[str, Any] = {
    "only": [],
    "most_rounds": 1000,
    "most_splits": 3,
    "loss_points": 8,
    "parts": {},
}
PARTS = "parts"  # the folder of what is stored
_KEYS = {"title", "splits", "folder", "change"}
_SETTINGS = ("training", "data", "model", "task")


def gain_decomposition(request: Request) -> Outcome:
    """Train and score what is not stored yet, then tabulate and draw everything."""
    base, options = request.several(), _checked_options(request)
    studies, remarks = [], []
    for name, chosen in options["parts"].items():
        if options["only"] and name not in options["only"]:
            continue
        data = _DataSet(name, chosen, base, options, request)
        if parts := data.complete(data.parts()):
            studies.append(gain_tables.Study(name, data.title, parts))
        if len(parts) < data.count:
            why = f"{len(parts)} of {data.count} parts" if parts else "left out"
            remarks.append(f"{data.title}: {why}, its files are not there")
    if not studies:
        raise ConfigError(f"{request.name}: no data set has a seed that is finished: no table")
    tables = tuple(gain_tables.tables(request, studies))
    return Outcome(tables, gain_tables.draw(request, studies), tuple(remarks))


def _checked_options(request: Request) -> dict[str, Any]:
    counts = ("most_rounds", "most_splits", "loss_points")
    options = options_of(request.options, DEFAULTS, counts=counts)
    for name, chosen in options["parts"].items():
        for key in chosen:
            if key not in _KEYS:
                where = f"reproduce.options.parts.{name}"
                legal = [f"{where}.{one}" for one in sorted(_KEYS)]
                raise ConfigError(unknown("key", f"{where}.{key}", legal))
    for name in options["only"]:
        if name not in options["parts"]:
            raise refused("only", name, unknown("data set", name, options["parts"]))
    return options


class _DataSet:
    """One data set: its settings, and its parts as they are stored."""

    def __init__(
        self,
        name: str,
        chosen: Mapping[str, Any],
        base: Raw,
        options: Mapping[str, Any],
        request: Request,
    ):
        self.title = str(chosen.get("title", name))
        self._request, self._points = request, options["loss_points"]
        self._splits = range(min(chosen.get("splits", 1), options["most_splits"]))
        self._raw = changed(base, chosen.get("change", {}))
        training = dict(self._raw["training"])
        training["rounds"] = min(training["rounds"], options["most_rounds"])
        self._raw = {**self._raw, "training": training}
        self._settings = {key: self._raw[key] for key in _SETTINGS if key in self._raw}
        self.there = is_there(self._raw["data"]["name"])
        if folder := chosen.get("folder"):  # below the data root, so that no file names a machine
            path = data_root() / folder
            self._raw = changed(self._raw, {"data": {"path": str(path)}})
            self.there = path.is_dir()
        self._file = request.folder / PARTS / f"{name}.jsonl"
        self._federation: Federation | None = None

    def parts(self) -> list[Part]:
        """Train what is not stored yet, if the data is there; give all that is stored."""
        stored = {(part.split, part.seed): part for part in gain_parts.read(self._file)}
        for part in stored.values():
            self._check(part)
        wanted = [(split, seed) for split in self._splits for seed in self._seeds]
        for split, seed in wanted:
            if self.there and (split, seed) not in stored:
                said = f"{self.title}: division {split}, seed {seed}"
                self._request.tell(said)
                stored[split, seed] = self._made(split, seed)
                gain_parts.write(self._file, stored.values())
        return [stored[key] for key in wanted if key in stored]

    def complete(self, parts: Iterable[Part]) -> list[Part]:
        """Leave out seeds that lack a division."""
        found = list(parts)
        counts = Counter(part.seed for part in found)
        return [part for part in found if counts[part.seed] == len(self._splits)]

    @property
    def count(self) -> int:
        """How many parts there are when all are finished."""
        return len(self._splits) * len(self._seeds)

    @property
    def _seeds(self) -> list[int]:
        return list(self._request.experiment["seeds"])

    def _check(self, part: Part) -> None:
        stored, now = (dict(flat(settings)) for settings in (part.settings, self._settings))
        for key in {**stored, **now}:
            if stored.get(key) != now.get(key):
                raise ConfigError(
                    f"{self._file}: made with {key} = {stored.get(key)!r}, but {now.get(key)!r} "
                    "is asked for; name another folder with --out"
                )

    def _made(self, split: int, seed: int) -> Part:
        raw = {**self._raw, "methods": ["fedavg", "fedbn"], "seeds": [seed]}
        raw["evaluation"] = {"final_statistics": []}  # all kinds are scored here
        experiment = checked(raw, self._request.name, self._request.held)
        if self._federation is None:
            task = named_task(experiment.task)
            self._federation = load_federation(experiment.data, task=task)
        federation = redivided(self._federation, split)
        planner = Planner(federation)
        plans = [planner.plan(job) for job in jobs(experiment)]
        found = measure(plans, self._points)
        return Part(
            split,
            seed,
            plans[0].task.metrics[0].title,
            tuple(client.name for client in federation.clients),
            tuple(len(client.train) for client in federation.clients),
            tuple(len(client.tests[client.domain]) for client in federation.clients),
            self._settings,
            {
                weights: {statistics: _rounded(own) for statistics, own in scores.items()}
                for weights, scores in found.scores.items()
            },
            {
                method: {
                    statistics: {str(n): _rounded(own) for n, own in rounds.items()}
                    for statistics, rounds in losses.items()
                }
                for method, losses in found.losses.items()
            },
        )


def _rounded(values: Iterable[float]) -> tuple[float, ...]:
    """Keep six digits: small losses are divided by each other."""
    return tuple(float(f"{value:.6g}") for value in values)


def redivided(federation: Federation, split: int) -> Federation:
    """Divide each client's samples into training and test data anew; 0 is the data set's own way.

    Sizes stay the same up to rounding, classes keep their shares, and groups stay whole.
    """
    if split == 0:
        return federation

    def divide(client: Client) -> Client:
        test = client.tests[client.domain]
        whole = concatenated([client.train.plain(), test.plain()])
        draws = generator(split, "division", client=client.name)
        rest, held = divided(whole, len(test) / len(whole), draws)
        tests = {client.domain: whole.take(held)}
        return replace(client, train=whole.take(rest), tests=tests)

    return replace(federation, clients=tuple(map(divide, federation.clients)))
