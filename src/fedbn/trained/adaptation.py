"""A site that never trained gets a local part of its own (the paper's appendix on new clients).

FedBN's shared part has no BatchNorm, so a new site needs one. Three ways, none of which sees
another site's data:

- `average`: the mean of the training clients' BatchNorm affine, and the exact statistics of the
  new site's own, unlabelled data: "the new client can use the averaged trainable BN parameters
  learned at existing FL clients, and compute the (mean, variance) on its own data".
- `reestimate`: the affine of the nearest client, or of one that is named; statistics as before.
- `finetune`: from there, BatchNorm's affine alone is trained on the site's labelled data.

Where a method shares the affine (SiloBN) or all of BatchNorm (FedAvg), the shared values stand in
for the mean and for the nearest client's, so that `average` and `reestimate` are the same; the
statistics are the site's own all the same, in place of the shared ones. All ways can be compared
on data that none of them saw.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from fedbn.core.bn_statistics import CHUNK
from fedbn.core.engine import one_torch_thread
from fedbn.core.federation import Client, Split, blank_targets
from fedbn.core.local_training import ClientWork, local_train
from fedbn.core.metric import ACCURACY, Metric
from fedbn.core.randomness import derive_seed, generator, seeded
from fedbn.core.state import Kind, State, entries
from fedbn.data.new_samples import Samples
from fedbn.data.preparation import SiteFit
from fedbn.errors import ConfigError, DataError, FedbnError, ModelError, unknown
from fedbn.experiments.runner import run_plan
from fedbn.runs.checkpoints import digest
from fedbn.runs.folder import RunFolder
from fedbn.trained.evaluation import Value, outcomes_of, scores
from fedbn.trained.joining import in_two, joining_plan, joining_state
from fedbn.trained.local_parts import FEW, Bench, Distances, HeldSite, Site, check_site, write
from fedbn.trained.opening import jobs_of, open_run
from fedbn.trained.seen_samples import hashes_of, packed
from fedbn.trained.trained_run import Trained

How = Literal["average", "reestimate", "finetune"]
HOWS: tuple[str, ...] = get_args(How)
AS_IT_IS = "as it is"
"""The end of the name of a model that is compared without being adapted."""


@dataclass(frozen=True)
class Options:
    """How a site is adapted: like the nearest client unless given; epochs are for `finetune`."""

    how: How = "average"
    like: str | None = None
    epochs: int = 50
    chunk: int = CHUNK

    def __post_init__(self) -> None:
        if self.how not in HOWS:
            raise ConfigError(unknown("way to adapt", str(self.how), HOWS))
        if self.epochs < 1 or self.chunk < 1:
            raise ConfigError(
                f"epochs = {self.epochs}, chunk = {self.chunk}: legal are whole numbers from 1"
            )


@dataclass(frozen=True)
class NewSite:
    """The samples of a site that never trained, completed by a fit of their own."""

    data: Split
    fit: SiteFit
    labelled: bool
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Adaptation:
    """A new site's own entries, and what is to be said of them."""

    options: Options
    like: str | None
    own: State
    distances: Distances
    warnings: tuple[str, ...]

    def facts(self, trained: Trained, site: NewSite) -> dict[str, Any]:
        """Collect what the site's manifest tells."""
        plan, hashed, data = trained.plan, hashlib.sha256(), site.data
        for tensor in (data.x, *([data.y] if site.labelled else [])):
            hashed.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
            hashed.update(tensor.contiguous().numpy().data)
        return {
            "how": self.options.how,
            "like": self.like,
            "method": plan.method.name,
            "setting": plan.setting,
            "seed": plan.seed,
            "round": trained.state.round,
            "shared": digest(trained.state.shared.state),
            "samples": len(data),
            "labelled": site.labelled,
            "fit": site.fit.facts(),
            "data": hashed.hexdigest(),
            "seen": packed(hashes_of(data.x)),
            "distances": dict(self.distances.to),
            "largest_known_distance": self.distances.among,
            "warnings": list(self.warnings),
        }


def adapt(trained: Trained, data: Split, labelled: bool, options: Options) -> Adaptation:
    """Make a local part for a site that never trained; labels are read by `finetune` only."""
    bench = Bench(trained, options.chunk)
    _check(bench, options, labelled)
    with one_torch_thread():
        apart = bench.distances(data.x)
        like = options.like  # whose local part to begin with; None for the mean of all
        if not like and bench.local_statistics:
            like = apart.nearest if options.how == "reestimate" or not bench.shares else None
        bench.become(like) if like else bench.average()
        bench.measure(data.x)
        if options.how == "finetune":
            _finetune(bench, data, options.epochs)
            bench.measure(data.x)
    return Adaptation(options, like, bench.own(), apart, tuple(_warnings(apart, data)))


def with_site(
    trained: Trained,
    site: str,
    new: NewSite,
    options: Options,
    *,
    store: bool = False,
    facts: Mapping[str, Any] | None = None,
) -> tuple[Trained, Adaptation]:
    """Adapt a site, written beside the run where it is stored, and give the run with it."""
    check_site(site, tuple(client.name for client in trained.plan.federation.clients))
    if store and trained.folder is None:
        raise ConfigError("the run has no folder to store a site in; give `fit` an `out`")
    made = adapt(trained, new.data, new.labelled, options)
    told = {**made.facts(trained, new), **(facts or {})}
    kept: Site = HeldSite(site, made.own, told)
    if store and trained.folder:
        folder, plan = RunFolder(trained.folder), trained.plan
        place = folder.adapted(plan.method.name, plan.setting, plan.seed)
        with folder.locked():
            kept = write(place, site, made.own, told)
    return replace(trained, adapted={**trained.adapted, site: kept}), made


def new_site(trained: Trained, samples: Samples, y: Any = None) -> NewSite:
    """Complete the samples of a new site by a fit of their own.

    Args:
        trained: The run.
        samples: Encoded samples; their own targets are used unless `y` is given.
        y: Their targets, as for `Trained.score`.
    """
    x, fit, notes = samples.completed_as_new(trained.preparation)
    known = samples.y if y is None else trained.targets_of(y, len(samples))
    blank = blank_targets(trained.plan.federation.target, len(samples))
    data = Split(x, blank if known is None else known)
    return NewSite(data, fit, known is not None, notes)


def _check(bench: Bench, options: Options, labelled: bool) -> None:
    clients = bench.state.local
    if options.like is not None and options.like not in clients:
        raise ConfigError(f"--like: {unknown('client', options.like, clients)}")
    method = bench.trained.plan.method.name
    if not bench.normalises:
        raise ModelError(
            f"the model has no BatchNorm statistics: {method}'s model is the same for a new site "
            "as for the others; `fedbn predict` with any client"
        )
    if options.like and options.how == "average":
        raise ConfigError("--like is for --how reestimate and finetune: average has all clients'")
    if not bench.shares and options.how == "average":
        raise ConfigError(
            f"{method} shares nothing, and the mean of networks that were trained apart is none; "
            "legal are --how reestimate, and --how finetune --like CLIENT"
        )
    if options.how == "finetune" and not labelled:
        raise DataError("--how finetune needs labelled data; average and reestimate need none")


def _finetune(bench: Bench, data: Split, epochs: int) -> None:
    """Train BatchNorm's affine and nothing else, with the run's optimiser."""
    plan, model = bench.trained.plan, bench.replica.model
    affine = {e.name for e in entries(model) if e.kind is Kind.BN_AFFINE and e.trainable}
    if not affine:
        raise ModelError("--how finetune: BatchNorm has no trainable affine in this model")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in affine)
    training = replace(
        plan.training, local_epochs=epochs, local_steps=None, unequal="own", device="cpu"
    )
    steps = training.steps(len(data), len(data))
    with seeded(derive_seed(plan.seed, "finetune")):
        draws = generator(plan.seed, "finetune order")
        lost = plan.loss(Client("new", "new", data, {}))
        loss = local_train(ClientWork(model, data, training, steps, draws, loss=lost)).loss
        bench.replica.collect()
    if not loss < float("inf") or bench.replica.local.unusable() or bench.replica.shared.unusable():
        raise ModelError(
            f"--how finetune: the loss is not finite with the run's lr {training.lr:g}; average "
            "and reestimate need no training"
        )


def _warnings(apart: Distances, data: Split) -> list[str]:
    found = []
    if len(data) < FEW:
        found.append(f"{len(data)} samples are few: statistics from fewer than {FEW} are noisy")
    if apart.far:
        found.append(
            f"the site is far from every known one: {apart.to[apart.nearest]:.2f} from "
            f"{apart.nearest}, while known sites are at most {apart.among:.2f} apart; score it on "
            "labelled data (--compare) before it is relied on, or let it train (--how join)"
        )
    return found


@dataclass(frozen=True)
class Compared:
    """What one way comes to, with its interval, or why it has no score."""

    how: str
    score: Value | None
    reason: str = ""


def divided(data: Split, test: Split | None, site: str) -> tuple[Split, Split]:
    """Data to adapt with and data to score on: halves (`in_two`), unless a test is given."""
    return in_two(data, 0.5, "compare", site) if test is None else (data, test)


def compare(
    trained: Trained, site: str, data: Split, test: Split, options: Options, rounds: int | None
) -> Iterator[Compared]:
    """Score every way on data that none of them sees; what cannot be done is told with its reason.

    `join` is scored after so many rounds, or left out.
    """
    nearest = None
    for how in HOWS:
        like = None if how == "average" else options.like
        chosen = replace(options, how=how, like=like)  # type: ignore[arg-type]
        try:
            made = adapt(trained, data, True, chosen)
        except FedbnError as error:
            yield Compared(how, None, str(error))
            continue
        nearest = made.distances.nearest
        held = HeldSite(site, made.own, {})
        with_site = replace(trained, adapted={**trained.adapted, site: held})
        yield Compared(how, _score(with_site, site, test))
    yield _joined(trained, Client(site, site, data, {site: test}), test, rounds)
    if nearest is not None and nearest in trained.state.local:
        yield Compared(f"{nearest}'s model {AS_IT_IS}", _score(trained, nearest, test))
    yield from _unadapted(trained, site, test)


def _unadapted(trained: Trained, site: str, test: Split) -> Iterator[Compared]:
    """Score the global model as it is, and FedAvg's of the same run where there is one."""
    bench = Bench(trained)
    if bench.shares:
        bench.average()
        held = HeldSite(site, bench.own(), {})
        with_site = replace(trained, adapted={**trained.adapted, site: held})
        kind = "global model, mean of all BatchNorm," if bench.local_statistics else "global model"
        name = f"{kind} {AS_IT_IS}"
        yield Compared(name, _score(with_site, site, test))
    if trained.folder is None or trained.plan.method.name == "fedavg":
        return
    name = f"FedAvg's global model {AS_IT_IS}"
    setting, seed = trained.plan.setting, trained.plan.seed
    jobs = jobs_of(trained.folder)
    if not any((one.method, one.setting, one.seed) == ("fedavg", setting, seed) for one in jobs):
        return
    try:
        other = open_run(trained.folder, method="fedavg", setting=setting, seed=seed)
        yield Compared(name, _score(other, other.clients[0], test))
    except FedbnError as error:
        yield Compared(name, None, str(error))


def best(found: list[Compared], metric: Metric = ACCURACY) -> str:
    """The way that scored best; of equals the first."""
    scored = {one.how: one.score[0] for one in found if one.score and one.how in (*HOWS, "join")}
    if not scored:
        raise DataError("; ".join(f"{one.how}: {one.reason}" for one in found if one.reason))
    top = metric.best(scored.values())
    return next(how for how, value in scored.items() if value == top)


def _joined(trained: Trained, client: Client, test: Split, rounds: int | None) -> Compared:
    if rounds is None:
        return Compared("join", None, "trains on the run's data: --rounds N scores it too")
    try:
        plan = joining_plan(trained, client, rounds)
        state = run_plan(plan, start=joining_state(trained, client))
    except FedbnError as error:
        return Compared("join", None, str(error))
    name = "all" if plan.method.pooled else client.name
    return Compared("join", _score(Trained(plan, state, (), None), name, test))


def _score(trained: Trained, client: str, test: Split) -> Value:
    made = replace(outcomes_of(trained, client, test), metrics=trained.plan.task.metrics[:1])
    return next(iter(scores(made).values()))
