"""`fedbn adapt`: a site that never trained becomes a client like the others."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from fedbn.cli import completion, console
from fedbn.cli.console import emit, print_table, say
from fedbn.cli.training import launch
from fedbn.core.metric import Metric
from fedbn.data.new_samples import Samples, read_samples
from fedbn.errors import ConfigError
from fedbn.experiments.configuration import held_experiment
from fedbn.text import plain, shown
from fedbn.trained import adaptation
from fedbn.trained.adaptation import AS_IT_IS, Compared, Options, best, divided, new_site, with_site
from fedbn.trained.joining import completed_by_first, labelled, own_test, prepare_join
from fedbn.trained.local_parts import check_site
from fedbn.trained.opening import open_run
from fedbn.trained.seen_samples import without_seen
from fedbn.trained.trained_run import Trained

app = console.commands()

_EXAMPLES = console.examples(
    "fedbn adapt runs/first --data new_site/ --as clinic",
    "fedbn adapt runs/first --data new_site/ --as clinic --compare   needs labels",
    "fedbn adapt runs/first --data new_site/ --as x --how reestimate --like photo",
    "fedbn adapt runs/first --data new_site/ --as x --how join --out runs/second",
    "fedbn predict runs/first --client clinic --data tomorrow/   then",
)

_ROUNDS = 10
_CHOSEN = "chosen on the samples that it was scored on"


@app.command(epilog=_EXAMPLES)
def adapt(
    run: console.Run,
    data: Annotated[
        Path,
        typer.Option(metavar="PATH", help="The site's data: pictures, a table or an npz file."),
    ],
    site: Annotated[str, typer.Option("--as", metavar="NEWSITE", help="What to call the site.")],
    how: Annotated[
        Literal["average", "reestimate", "finetune", "join"] | None,
        typer.Option(
            help="average (default): the mean of the clients' affine, the site's own statistics. "
            "reestimate: the nearest client's affine. finetune: BatchNorm trained on labels. "
            "join: train on, with the others, as a new run."
        ),
    ] = None,
    like: Annotated[
        str | None,
        typer.Option(
            metavar="CLIENT",
            help="Whose affine, in place of the nearest's.",
            autocompletion=completion.clients,
        ),
    ] = None,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare",
            help="Score all ways on labels held out, then store --how, or the best without it.",
        ),
    ] = False,
    test: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help="Labelled data to score on; else the test part of --data, or half."
        ),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(min=1, max=100_000, help="Passes of finetune; 50.")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, max=1_000_000, help=f"Rounds of join; {_ROUNDS}.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The folder of a joining run; RUN-NEWSITE unless given.")
    ] = None,
    method: console.Method = None,
    seed: console.Seed = None,
    setting: console.Setting = None,
    trust: console.Trust = None,
) -> None:
    """Give a site that never trained a local part of its own, and store it beside the run.

    Its statistics are exact over its data, which needs no labels.
    How far it lies from the known sites is told, with a warning where it is far.
    """
    joining = {"--test": test, "--rounds": rounds, "--out": out}
    for flag, given in {**joining, "--epochs": epochs}.items():
        way = "join" if flag in joining else "finetune"
        if given is not None and not compare and how != way:
            raise ConfigError(f"{flag} is for --compare and for --how {way}")
    trained = open_run(run, method=method, seed=seed, setting=setting, notes=say)
    trained.check_network()
    check_site(site, tuple(client.name for client in trained.plan.federation.clients))
    new = GivenSite(site, data, test, read_samples(data, trained.preparation, "train"))
    say(*new.samples.notes, *new.samples.completed_as_new(trained.preparation)[2])
    base: dict[str, Any] = {"like": like, "epochs": epochs or Options().epochs}
    found = _compared(trained, new, Options(**base), rounds) if compare else []
    chosen_here = compare and how is None
    way = how or (best(found, trained.metric) if compare else "average")
    if chosen_here:
        say(f"{way} was {_CHOSEN}: on new data expect less than the score above")
    if way == "join":
        assert trained.folder is not None
        target = out or trained.folder.with_name(f"{trained.folder.name}-{site}")
        folder = prepare_join(trained, site, data, target, rounds or _ROUNDS, test)
        say(f"{site} joins: a new run, {folder.path}, from round {trained.state.round} on")
        launch(folder, held_experiment(folder), showing=console.Showing())
    else:
        scores = plain({one.how: one.score for one in found if one.score is not None})
        facts = {"scores": scores, **({"how_was": _CHOSEN} if chosen_here else {})}
        _store(trained, new, Options(**{**base, "how": way}), facts)


@dataclass(frozen=True)
class GivenSite:
    """A site that never trained: its name, where its data and test data lie, what was read."""

    name: str
    data: Path
    test: Path | None
    samples: Samples


def _compared(
    trained: Trained, new: GivenSite, options: Options, rounds: int | None
) -> list[Compared]:
    held = own_test(trained, new.samples, new.data, new.test)
    adapting, scoring = divided(labelled(trained, new.samples, new.data), held, new.name)
    place = shown(new.test or new.data)
    unseen, left_out = without_seen(trained, scoring, place, adapting=adapting.x)
    say(*left_out)
    splits = (adapting, scoring.take(unseen))
    (adapting, scoring), _ = completed_by_first(trained, new.samples.where, *splits)
    what = "samples held out of them" if held is None else "test samples"
    say(f"adapted with {len(adapting)} samples, scored on {len(scoring)} {what}")
    found = list(adaptation.compare(trained, new.name, adapting, scoring, options, rounds))
    rows, said = [], trained.metric.said
    for one in found:
        if one.score is None:
            rows.append([one.how, "–", one.reason])
        else:
            value, low, high = map(said, one.score)
            rows.append([one.how, value, f"[{low}, {high}]"])
    print_table(["way", trained.metric.title, "95 % interval"], rows)
    _say_if_unadapted_is_best(found, trained.metric)
    return found


def _say_if_unadapted_is_best(found: list[Compared], metric: Metric) -> None:
    """Warn where a model that was not adapted scores better than every way to adapt."""
    ways = {one.how: one.score[0] for one in found if one.score is not None}
    unadapted = {how: score for how, score in ways.items() if how.endswith(AS_IT_IS)}
    adapted = [score for how, score in ways.items() if how not in unadapted]
    if not adapted or not unadapted:
        return
    top = metric.best(unadapted.values())
    if metric.gain(top, metric.best(adapted)) > 0:
        name = next(how for how, score in unadapted.items() if score == top)
        say(f"warning: {name!r} scores better than every way to adapt: adapting may do harm here")


def _store(trained: Trained, new: GivenSite, options: Options, facts: dict[str, Any]) -> None:
    site = new_site(trained, new.samples)
    run, made = with_site(trained, new.name, site, options, store=True, facts=facts)
    apart = ", ".join(f"{name} {far:.2f}" for name, far in made.distances.to.items())
    among = made.distances.among
    known = "" if among is None else f" (known sites are up to {among:.2f} apart)"
    say(f"distance to {apart}{known}")
    say(*(f"warning: {text}" for text in made.warnings))
    like = f" like {made.like}" if made.like else ""
    home = getattr(run.adapted[new.name], "folder", None)
    emit(f"{new.name}: {made.options.how}{like}, from {len(site.data)} samples; stored in {home}")
