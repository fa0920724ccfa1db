"""`fedbn adapt`: a site that never trained becomes a client like the others."""

from __future__ import annotations

import math
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedbn.cli.options import Trust
from fedbn.cli.output import emit
from fedbn.cli.using import Method, Run, Seed, Setting, opened, say

if TYPE_CHECKING:
    from fedbn.core.federation import Split
    from fedbn.data.new_samples import Samples
    from fedbn.trained.adaptation import Adaptation, Compared, Options
    from fedbn.trained.trained_run import Trained


_EXAMPLES = """[bold]Examples[/bold]

fedbn adapt runs/first --data new_site/ --as clinic

fedbn adapt runs/first --data new_site/ --as clinic --compare         needs labels

fedbn adapt runs/first --data new_site/ --as clinic --how reestimate --like photo

fedbn adapt runs/first --data new_site/ --as clinic --how join --rounds 20 --out runs/second

fedbn predict runs/first --client clinic --data tomorrow/             then, like any client"""


_ROUNDS = 10


class How(StrEnum):
    """The ways of `fedbn.use.adapting`, and `join`."""

    AVERAGE = "average"
    REESTIMATE = "reestimate"
    FINETUNE = "finetune"
    JOIN = "join"


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(epilog=_EXAMPLES)(adapt)


def adapt(
    run: Run,
    data: Annotated[
        Path,
        typer.Option(metavar="PATH", help="The site's data: pictures, a table or an npz file."),
    ],
    site: Annotated[str, typer.Option("--as", metavar="NEWSITE", help="What to call the site.")],
    how: Annotated[
        How | None,
        typer.Option(
            help="average (default): the mean of the clients' affine, the site's own statistics. "
            "reestimate: the nearest client's affine. finetune: BatchNorm trained on labels. "
            "join: train on, with the others, as a new run."
        ),
    ] = None,
    like: Annotated[
        str | None, typer.Option(metavar="CLIENT", help="Whose affine, in place of the nearest's.")
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
    epochs: Annotated[int, typer.Option(min=1, max=100_000, help="Passes of finetune.")] = 50,
    rounds: Annotated[
        int | None, typer.Option(min=1, max=1_000_000, help=f"Rounds of join; {_ROUNDS}.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The folder of a joining run; RUN-NEWSITE unless given.")
    ] = None,
    method: Method = None,
    seed: Seed = None,
    setting: Setting = None,
    trust: Trust = None,
) -> None:
    """Give a site that never trained a local part of its own, and store it beside the run.

    Its statistics are exact over its data, which needs no labels. How far the site lies from
    the known ones is told, with a warning where no way can be trusted.
    """
    from fedbn.data.new_samples import read_samples
    from fedbn.errors import ConfigError
    from fedbn.trained.adaptation import options_of
    from fedbn.trained.local_parts import check_site

    if test is not None and not compare and how is not How.JOIN:
        raise ConfigError("--test is for --compare and for --how join")
    trained = opened(run, method, seed, setting)
    check_site(site, tuple(client.name for client in trained.plan.federation.clients))
    samples = read_samples(data, trained.inputs, "train")
    for text in samples.notes:
        say(text)
    base: dict[str, Any] = {"like": like, "epochs": epochs}
    found: list[Compared] = []
    if compare:
        found = _compared(trained, site, samples, data, test, options_of(**base), rounds)
        how = how or How(_best(found))
    how = how or How.AVERAGE
    if how is How.JOIN:
        _join(trained, site, data, test, out, rounds or _ROUNDS)
        return
    _store(trained, site, samples, options_of(how=how.value, **base), found)


def _compared(
    trained: Trained,
    site: str,
    samples: Samples,
    data: Path,
    test: Path | None,
    options: Options,
    rounds: int | None,
) -> list[Compared]:
    from fedbn.trained.adaptation import compare, divided
    from fedbn.trained.joining import labelled, own_test

    held = own_test(trained, samples, data, test)
    adapting, scoring = divided(_checked(trained, labelled(samples, data)), held, site)
    scoring = _checked(trained, scoring)
    what = "samples held out of them" if held is None else "test samples"
    say(f"adapted with {len(adapting)} samples, scored on {len(scoring)} {what}")
    found = list(compare(trained, site, adapting, scoring, options, rounds))
    _print_compared(found)
    return found


def _checked(trained: Trained, split: Split) -> Split:
    from dataclasses import replace

    from fedbn.trained.trained_run import samples_of

    return replace(split, x=samples_of(split.x, trained.inputs, "the data"))


def _best(found: list[Compared]) -> str:
    from fedbn.trained.adaptation import best

    return best(found)


def _print_compared(found: list[Compared]) -> None:
    from fedbn.cli.data._common import print_table

    rows = []
    for one in found:
        if one.accuracy is None:
            rows.append([one.how, "–", one.reason])
        else:
            value, low, high = (100 * number for number in one.accuracy)
            rows.append([one.how, f"{value:.1f}", f"[{low:.1f}, {high:.1f}]"])
    print_table(["way", "accuracy, %", "95 % interval"], rows)


def _store(
    trained: Trained, site: str, samples: Samples, options: Options, found: list[Compared]
) -> None:
    import torch

    from fedbn.core.federation import Split
    from fedbn.trained.adaptation import with_site

    labels = torch.zeros(len(samples), dtype=torch.int64) if samples.y is None else samples.y
    data = _checked(trained, Split(samples.x, labels))
    known, facts = samples.y is not None, {"scores": _scores(found)}
    run, made = with_site(trained, site, data, known, options, store=True, facts=facts)
    _tell(made, site, len(data), getattr(run.adapted[site], "folder", None))


def _scores(found: list[Compared]) -> dict[str, list[float | None]]:
    return {
        one.how: [number if math.isfinite(number) else None for number in one.accuracy]
        for one in found
        if one.accuracy is not None
    }


def _tell(made: Adaptation, site: str, samples: int, home: Path | None) -> None:
    apart = ", ".join(f"{name} {far:.2f}" for name, far in made.distances.to.items())
    among = made.distances.among
    known = "" if among is None else f" (known sites are up to {among:.2f} apart)"
    say(f"distance to {apart}{known}")
    for text in made.warnings:
        say(f"warning: {text}")
    like = f" like {made.like}" if made.like else ""
    emit(f"{site}: {made.options.how}{like}, from {samples} samples; stored in {home}")


def _join(
    trained: Trained, site: str, data: Path, test: Path | None, out: Path | None, rounds: int
) -> None:
    from fedbn.cli.launching import launch
    from fedbn.experiments.configuration import held_experiment
    from fedbn.trained.joining import prepare_join

    assert trained.folder is not None
    target = out or trained.folder.with_name(f"{trained.folder.name}-{site}")
    folder = prepare_join(trained, site, data, target, rounds, test)
    say(f"{site} joins: a new run, {folder.path}, from round {trained.state.round} on")
    launch(folder, held_experiment(folder), as_json=False)
