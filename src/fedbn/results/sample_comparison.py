"""Two runs, or the methods of one run, compared over test samples.

The rows are those that `comparison` compares over seeds. A job's outcomes say of every test sample
whether it was classified correctly. Splits of the data have other test samples each, so they are
settings here, and no repetitions.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedbn.core.metric import ACCURACY
from fedbn.errors import ConfigError, DamagedRun
from fedbn.results.aggregate import MEAN, MEANS, POOLED, Key
from fedbn.results.comparison import (
    Comparison,
    Line,
    Match,
    Pair,
    Repeated,
    Repetition,
    Side,
    compared,
    family_of,
    matches,
    possible,
)
from fedbn.results.sample_tests import Differences, PairedSamples, one_model, several_models
from fedbn.text import listed

Outcomes = Mapping[tuple[str, str, str], NDArray[np.uint8]]
"""By statistics, client and domain: 1 for each test sample that is classified correctly."""
_MOST = 6  # names in a message


class _Outcome(NamedTuple):
    """The test samples of a column that one trained model classifies correctly, and their domain.

    Clients of one domain may be tested on the same samples.
    """

    domain: str
    right: NDArray[np.uint8]


@dataclass(frozen=True)
class SampledSide(Side):
    """A run to compare over test samples."""

    outcomes: Mapping[tuple[str, str, int], Outcomes] = field(default_factory=dict)  # by job
    data: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By setting: the hash of each client's data."""

    @cached_property
    def repeated(self) -> dict[Key, Repeated]:
        """The scores of each method and setting by seed, of which the outcomes are known."""
        found: dict[Key, Repeated] = {}
        for key in self.rows:
            own: Repeated = {}
            for column, by_seed in self.scores[key].items():
                for seed, value in by_seed.items():
                    if self._knows(key, column, seed):
                        own.setdefault(column, {})[Repetition("", seed)] = value
            found |= {key: own} if own else {}
        if not found:
            raise ConfigError(_not_recorded(self.path))
        return found

    @property
    def rows(self) -> list[Key]:
        """The rows of the run's table."""
        return [row.key for row in self.summary.rows]

    def outcome(self, key: Key, column: str, seed: int) -> _Outcome | None:
        """Return the outcome of a column, or None if it is not recorded."""
        return self._by_column(key, seed).get(column)

    def missing(self, key: Key) -> list[str]:
        """Name the jobs of a row that have scores, and whose outcomes are not recorded."""
        seeds = dict.fromkeys(seed for own in self.scores[key].values() for seed in own)
        return [f"{key.label} seed {s}" for s in seeds if not self._by_column(key, s)]

    def _by_column(self, key: Key, seed: int) -> dict[str, _Outcome]:
        own = self.outcomes.get((key.method, key.setting, seed), {})
        return {
            domain if client == POOLED else client: _Outcome(domain, right)
            for (kind, client, domain), right in own.items()
            if kind == key.statistics
        }

    def _knows(self, key: Key, column: str, seed: int) -> bool:
        """True if the outcomes of a column are recorded; of a mean, those of all its clients."""
        scores, known = self.scores[key], self._by_column(key, seed)
        if column in MEANS:
            return all(c in known for c in scores if c not in MEANS and seed in scores[c])
        if column not in known:
            return False
        score, share = scores[column][seed], 100 * float(known[column].right.mean())
        if abs(score - share) * len(known[column].right) >= 50:  # half a sample
            raise DamagedRun(
                f"{self.path}: {key.label} seed {seed}: {column} has {score:.1f} % in the records "
                f"and {share:.1f} % in outcomes.safetensors; `fedbn rescore` writes both again"
            )
        return True


@dataclass(frozen=True)
class _SampledMatch(Match):
    """Two rows to compare over test samples."""

    a: SampledSide
    b: SampledSide


def compare_samples(a: SampledSide, b: SampledSide, methods: Sequence[str] = ()) -> Comparison:
    """Judge run B against run A, or the methods of one run, by paired tests over test samples.

    Args:
        a: A run.
        b: Another run, or the same one.
        methods: As for `comparison.compare`.

    Raises:
        ConfigError: The outcomes of a run are not recorded, or those of the two sides are not of
            the same test samples.
        DamagedRun: Records and outcomes contradict each other.
    """
    sides = (a,) if a is b else (a, b)
    for side in sides:
        if side.metric != ACCURACY:
            raise ConfigError(
                f"{side.path} is judged by {side.metric.title}: `fedbn run` and `fedbn rescore` "
                "record which test samples are right for accuracy alone; compare over seeds"
            )
    _check_named(a, methods if a is b else methods[:1])
    _check_named(b, methods if a is b else methods[-1:])
    found = [_SampledMatch(a, b, one.key_a, one.key_b) for one in matches(a, b, methods)]
    columns = [_columns(match) for match in found]
    family = family_of(columns)
    pairs = [_pair(match, own, family) for match, own in zip(found, columns, strict=True)]
    whole = compared(a, b, pairs, family, "samples")
    return replace(whole, remarks=(*_left_out(sides, found, methods), *whole.remarks))


def _check_named(side: SampledSide, names: Iterable[str]) -> None:
    """Refuse a method without outcomes; names that the run does not have are checked later."""
    for name in names:
        rows = [key for key in side.rows if name in (key.method, key.name, key.label)]
        if rows and not any(key in side.repeated for key in rows):
            raise ConfigError(_not_recorded(f"{side.path}: {name}"))


def _not_recorded(who: str) -> str:
    return (
        f"{who}: no outcomes.safetensors records which test samples are classified correctly; "
        "`fedbn rescore` adds it to a finished run"
    )


def _left_out(
    sides: Iterable[SampledSide], found: Iterable[Match], methods: Sequence[str]
) -> Iterator[str]:
    """Say which jobs are not compared, because their outcomes are not recorded."""
    for side in sides:
        asked = {key for match in found for key in (match.key_a, match.key_b)}
        rows = [key for key in side.rows if key in asked or not methods]
        if jobs := [job for key in rows for job in side.missing(key)]:
            yield (
                f"{side.path}: left out, because no outcomes.safetensors records which test "
                f"samples are right: {listed(jobs, _MOST)}; `fedbn rescore` adds it"
            )


def _columns(match: _SampledMatch) -> list[str]:
    """The clients that both sides have, and the means where both are means of these."""
    clients = [column for column in match.columns if column not in MEANS]
    first, second = match.scores
    known = [{column for column in own if column not in MEANS} for own in (first, second)]
    same = known[0] == known[1] == {*clients}

    def of_all(mean: str) -> bool:
        seeds = [one for one in first[mean] if one in second[mean]]
        return same and all(one in own[c] for one in seeds for c in clients for own in match.scores)

    return [column for column in match.columns if column not in MEANS or of_all(column)]


def _pair(match: _SampledMatch, columns: Sequence[str], family: tuple[int, int]) -> Pair:
    clients = [column for column in columns if column not in MEANS]
    _check_same_data(match, clients)
    lines, every_seed = list[Line](), dict[str, None]()
    for column in columns:
        first, second = (own[column] for own in match.scores)
        both = [one for one in first if one in second]
        every_seed |= dict.fromkeys(str(one.seed) for one in both)
        own = clients if column in MEANS else [column]
        test = _test(match, column, own, [one.seed for one in both], family[column in MEANS])
        a, b = (statistics.fmean(values[one] for one in both) for values in (first, second))
        lines.append(Line(column, a, b, possible(test, match.a.metric), test.verdict))
    return match.pair("seed", every_seed, lines)


def _test(
    match: _SampledMatch, column: str, clients: Sequence[str], seeds: Sequence[int], family: int
) -> PairedSamples:
    """Test one client, or the mean of several."""
    differences: dict[str, Differences] = {}
    domains: dict[str, str] = {}
    for client in clients:
        domains[client], differences[client] = _differences(match, client, seeds)
    if len(clients) == len(seeds) == 1:
        return one_model(differences[clients[0]][0], family)
    sizes = {client: own.shape[1] for client, own in differences.items()}
    shares = {
        client: 1 / len(clients) if column == MEAN else size / sum(sizes.values())
        for client, size in sizes.items()
    }
    # Clients of one domain may be tested on the same samples. These are put together sample by
    # sample, which is right for the variance if they are other samples, too.
    strata: dict[tuple[str, int], Differences] = {}
    for client, own in differences.items():
        place = domains[client], sizes[client]
        strata[place] = strata.get(place, 0.0) + shares[client] * own
    return several_models([*strata.values()], family)


def _differences(
    match: _SampledMatch, client: str, seeds: Sequence[int]
) -> tuple[str, Differences]:
    """Return a client's domain, and B − A by seed and test sample."""
    found, domain = [], ""
    for seed in seeds:
        one = match.a.outcome(match.key_a, client, seed)
        other = match.b.outcome(match.key_b, client, seed)
        assert one is not None
        assert other is not None
        if one.right.shape != other.right.shape:
            counts = f"{len(one.right):,} and {len(other.right):,} test samples"
            raise ConfigError(_not_the_same(match, f"{client} has {counts}"))
        domain = one.domain
        found.append(100 * (other.right.astype(float) - one.right.astype(float)))
    return domain, np.stack(found)


def _check_same_data(match: _SampledMatch, clients: Iterable[str]) -> None:
    """Refuse sides whose clients do not have the same data by their hashes."""
    if match.a is match.b and match.key_a.setting == match.key_b.setting:
        return

    def recorded(side: SampledSide, key: Key, client: str) -> object:
        """Return the hash of a client; all hashes where a domain is scored by one pooled model."""
        hashes = side.data.get(key.setting, {})
        return hashes.get(client, hashes)

    (a, key_a), (b, key_b) = (match.a, match.key_a), (match.b, match.key_b)
    if changed := [
        client
        for client in clients
        if not recorded(a, key_a, client)
        or recorded(a, key_a, client) != recorded(b, key_b, client)
    ]:
        why = f"the data of {listed(changed, _MOST)} differs, or its hash is not recorded"
        raise ConfigError(_not_the_same(match, why))


def _not_the_same(match: Match, why: str) -> str:
    if match.a is match.b:
        names = f"{match.a.path}: {match.key_a.label} and {match.key_b.label}"
    else:
        names = f"{match.a.path} and {match.b.path}"
    return f"{names} are not scored on the same test samples ({why}); compare them over seeds"
