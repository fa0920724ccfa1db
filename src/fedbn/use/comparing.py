"""All ways to adapt a site, scored on data that none of them saw."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from fedbn.core.federation import Client, Split
from fedbn.core.randomness import generator
from fedbn.core.splits import stratified
from fedbn.engines.embedded import run
from fedbn.errors import DataError, FedbnError
from fedbn.use.adapted import HeldSite
from fedbn.use.adapting import HOWS, Options, adapt
from fedbn.use.inference import probabilities
from fedbn.use.joining import joining_plan, joining_state
from fedbn.use.metrics import Outcomes, Value, scores
from fedbn.use.trained import Trained

_HALF = 0.5


@dataclass(frozen=True)
class Compared:
    """One way's accuracy with its interval, or why it has none."""

    how: str
    accuracy: Value | None
    reason: str = ""


def divided(data: Split, test: Split | None, site: str) -> tuple[Split, Split]:
    """Data to adapt with and data to score on: halves, class by class, unless a test is given."""
    if test is not None:
        return data, test
    adapting, scoring = stratified(data.y, _HALF, generator(0, "compare", client=site))
    if len(adapting) < 2 or not len(scoring):
        raise DataError(f"{len(data)} samples: too few to hold a half out; give --test PATH")
    return data.take(adapting), data.take(scoring)


def compare(
    trained: Trained, site: str, data: Split, test: Split, options: Options, rounds: int | None
) -> Iterator[Compared]:
    """Score every way; what cannot be done here is told with its reason.

    Args:
        trained: The run.
        site: The new site's name.
        data: Labelled samples to adapt with.
        test: Labelled samples that no way sees.
        options: For all ways; `how` is not looked at.
        rounds: Score `join` too, after so many rounds; None to leave it out.
    """
    nearest = None
    for how in HOWS:
        chosen = replace(options, how=how)  # type: ignore[arg-type]
        try:
            made = adapt(trained, data, True, chosen)
        except FedbnError as error:
            yield Compared(how, None, str(error))
            continue
        nearest = made.distances.nearest
        held = HeldSite(site, made.own, {})
        with_site = replace(trained, adapted={**trained.adapted, site: held})
        yield Compared(how, _accuracy(with_site, site, test))
    yield _joined(trained, Client(site, site, data, {site: test}), test, rounds)
    if nearest is not None and nearest in trained.state.local:
        yield Compared(f"{nearest}'s model as it is", _accuracy(trained, nearest, test))


def best(found: list[Compared]) -> str:
    """The way that scored best; of equals the first."""
    scored = [one for one in found if one.accuracy is not None and one.how in (*HOWS, "join")]
    if not scored:
        raise DataError("; ".join(f"{one.how}: {one.reason}" for one in found if one.reason))
    return max(scored, key=lambda one: one.accuracy[0] if one.accuracy else 0.0).how


def _joined(trained: Trained, client: Client, test: Split, rounds: int | None) -> Compared:
    if rounds is None:
        return Compared("join", None, "trains on the run's data: --rounds N scores it too")
    try:
        plan = joining_plan(trained, client, rounds)
        state = run(plan, start=joining_state(trained, client))
    except FedbnError as error:
        return Compared("join", None, str(error))
    name = "all" if plan.method.pooled else client.name
    return Compared("join", _accuracy(Trained(plan, state, (), None), name, test))


def _accuracy(trained: Trained, client: str, test: Split) -> Value:
    proba = probabilities(trained.model(client), test.x)
    return scores(Outcomes(proba, test.y.numpy()))["accuracy"]
