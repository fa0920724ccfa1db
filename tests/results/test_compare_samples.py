"""Methods and runs that are compared over test samples."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedbn.errors import ConfigError, DamagedRun
from fedbn.results.comparison import (
    Comparison,
    Side,
    compare,
    explanation,
    gain_rows,
    generalises,
    markdown,
    score_rows,
    score_titles,
)
from fedbn.results.sample_comparison import SampledSide, compare_samples
from fedbn.results.sample_tests import PairedSamples, mcnemar, one_model, several_models
from scores import record

Right = NDArray[np.uint8]
SIZES = {"a": 40, "b": 60}
SHARES = {"fedavg": 0.6, "fedbn": 0.9}


def right(method: str, client: str, seed: int, kind: str = "running", size: int = 0) -> Right:
    """The test samples that a model classifies correctly; the same for the same arguments."""
    rng = np.random.default_rng([*f"{method} {client} {seed} {kind}".encode()])
    return (rng.random(size or SIZES[client]) < SHARES[method]).astype(np.uint8)


def side(
    name: str = "A",
    seeds: int = 3,
    kinds: tuple[str, ...] = ("running",),
    outcomes: Mapping[tuple[str, str, int, str, str], Right] | None = None,
    data: Mapping[str, str] | None = None,
    domains: Mapping[str, str] | None = None,
) -> SampledSide:
    """A run of FedAvg and FedBN.

    Args:
        name: Its folder.
        seeds: The number of seeds.
        kinds: The statistics that models are scored with.
        outcomes: What is classified correctly, by method, setting, seed, statistics and client.
        data: The hash of each client's data.
        domains: The domain of a client, where it has another name.
    """
    if outcomes is None:
        outcomes = {
            (method, "default", seed, kind, client): right(method, client, seed, kind)
            for method in SHARES
            for seed in range(seeds)
            for kind in kinds
            for client in SIZES
        }
    domains = domains or {}
    records, jobs = [], dict[tuple[str, str, int], dict[tuple[str, str, str], Right]]()
    for (method, setting, seed, kind, client), hits in outcomes.items():
        domain = domains.get(client, client)
        about: dict[str, Any] = {"method": method, "setting": setting, "seed": seed}
        value = float(hits.mean())
        records.append(record(value, client, domain=domain, statistics=kind, **about))
        jobs.setdefault((method, setting, seed), {})[kind, client, domain] = hits
    hashes = {"a": "1", "b": "2"} if data is None else data
    settings = dict.fromkeys((setting for _, setting, _ in jobs), hashes)
    return SampledSide(name, records, outcomes=jobs, data=settings)


def within(run: SampledSide, *methods: str) -> Comparison:
    return compare_samples(run, run, methods)


def differences(client: str, seeds: int, kind: str = "running") -> NDArray[np.float64]:
    return np.array(
        [
            100.0 * right("fedbn", client, seed, kind) - 100.0 * right("fedavg", client, seed, kind)
            for seed in range(seeds)
        ]
    )


def said_of(found: Comparison) -> str:
    return generalises(found.pairs, found.over)


def sample_tests(found: Comparison, pair: int = 0) -> dict[str, PairedSamples]:
    own = {line.client: line.test for line in found.pairs[pair].lines}
    return {client: test for client, test in own.items() if isinstance(test, PairedSamples)}


def test_one_seed_is_mcnemar_at_clients_and_a_t_test_in_the_mean() -> None:
    found = within(side(seeds=1))
    own = sample_tests(found)
    assert found.family == (2, 1)
    for client in SIZES:
        assert own[client] == one_model(differences(client, 1)[0], 2)
        only = differences(client, 1)[0]
        p = 2 * mcnemar(int((only < 0).sum()), int((only > 0).sum()))
        assert own[client].p == pytest.approx(p)
    halves = [differences(client, 1) / 2 for client in SIZES]
    assert own["mean"] == several_models(halves)
    assert own["mean"].samples == 100
    line = found.pairs[0].lines[0]
    assert line.a == pytest.approx(100 * right("fedavg", "a", 0).mean())
    assert line.b - line.a == pytest.approx(line.test.difference)
    assert line.verdict == line.test.verdict == "better"


def test_several_seeds_are_tested_over_samples_and_seeds() -> None:
    found = within(side())
    own = sample_tests(found)
    for client in SIZES:
        assert own[client] == several_models([differences(client, 3)], 2)
    assert own["mean"] == several_models([differences(client, 3) / 2 for client in SIZES])
    assert (found.pairs[0].axis, found.pairs[0].repetitions) == ("seed", ("0", "1", "2"))
    assert own["mean"].over_seeds


def test_the_same_files_give_the_same_numbers() -> None:
    first, second = (json.dumps(within(side()).to_dict()) for _ in range(2))
    assert first == second


def test_each_kind_of_statistics_has_a_block_and_all_are_one_family() -> None:
    found = within(side(kinds=("running", "exact")))
    assert [pair.statistics for pair in found.pairs] == ["running", "exact"]
    assert found.family == (4, 2)
    assert sample_tests(found, 1)["a"] == several_models([differences("a", 3, "exact")], 4)
    ((label, *cells),) = gain_rows(found)
    assert label == "fedavg → fedbn"
    assert all(cell.endswith("better") for cell in cells)
    own = within(side(kinds=("running", "exact")), "fedavg", "fedavg, exact statistics")
    assert [pair.title for pair in own.pairs] == ["fedavg → fedavg, exact statistics"]


def test_clients_of_one_domain_are_put_together_sample_by_sample() -> None:
    """Both clients are tested on the same samples, so the mean is no surer than one of them."""
    hits = {(m, c): right(m, "a", 0, size=50) for m in SHARES for c in ("one", "two")}
    outcomes = {(m, "default", 0, "running", c): own for (m, c), own in hits.items()}
    same = within(side(outcomes=outcomes, domains={"one": "town", "two": "town"}))
    mean = sample_tests(same)["mean"]
    gaps = 100.0 * hits["fedbn", "one"] - 100.0 * hits["fedavg", "one"]
    assert mean.low == pytest.approx(several_models([gaps[None]]).low)
    apart = sample_tests(within(side(outcomes=outcomes)))["mean"]
    assert apart.high is not None
    assert mean.high is not None
    ratio = (mean.high - mean.difference) / (apart.high - apart.difference)
    assert ratio == pytest.approx(2**0.5, rel=0.02)  # and fewer degrees of freedom


def test_every_sample_counts_as_much_in_the_weighted_mean() -> None:
    sizes = {"a": 20, "b": 400}
    outcomes = {
        (m, "default", s, "running", c): right(m, c, s, size=n)
        for m in SHARES
        for s in range(3)
        for c, n in sizes.items()
    }
    plain = side(outcomes=outcomes)
    about = {"inputs": {"all": {"sizes": {c: [80, n] for c, n in sizes.items()}}}}
    run = SampledSide("A", plain.records, {}, about, (), plain.outcomes, plain.data)
    own = sample_tests(within(run))
    gaps = {
        c: np.array(
            [
                100.0 * outcomes["fedbn", "default", s, "running", c]
                - 100.0 * outcomes["fedavg", "default", s, "running", c]
                for s in range(3)
            ]
        )
        for c in sizes
    }
    assert list(own) == ["a", "b", "mean", "weighted mean"]
    expected = several_models([gaps["a"] * (20 / 420), gaps["b"] * (400 / 420)], 2)
    assert own["weighted mean"].low == pytest.approx(expected.low)
    assert own["weighted mean"].difference == pytest.approx(expected.difference)


def test_a_pooled_model_is_compared_at_its_domains() -> None:
    outcomes = {
        ("fedbn", "default", 0, "running", "a"): right("fedbn", "a", 0),
        ("fedbn", "default", 0, "running", "b"): right("fedbn", "b", 0),
    }
    run = side(outcomes=outcomes)
    pooled = {("running", "all", c): right("fedavg", c, 0) for c in SIZES}
    records = [
        record(float(hits.mean()), "all", method="centralized", domain=domain)
        for (_, _, domain), hits in pooled.items()
    ]
    both = SampledSide(
        "A",
        [*run.records, *records],
        outcomes={**run.outcomes, ("centralized", "default", 0): pooled},
        data=run.data,
    )
    found = within(both, "centralized", "fedbn")
    assert sample_tests(found) == sample_tests(within(side(seeds=1)))


def test_splits_of_the_data_have_other_samples_and_are_settings() -> None:
    outcomes = {
        (m, f"split_seed={split}", 0, "running", c): right(m, c, split)
        for m in SHARES
        for split in range(3)
        for c in SIZES
    }
    run = side(outcomes=outcomes)
    found = within(run)
    titles = [pair.title for pair in found.pairs]
    assert titles == [f"fedavg (split_seed={n}) → fedbn (split_seed={n})" for n in range(3)]
    assert len(compare(Side("A", run.records), Side("A", run.records)).pairs) == 2


def test_two_runs_are_paired_where_their_data_is_the_same() -> None:
    found = compare_samples(side(), side("B"), ["fedavg", "fedbn"])
    assert sample_tests(found) == sample_tests(within(side()))
    same = compare_samples(side(), side("B"), ["fedbn"])
    assert [line.verdict for line in same.pairs[0].lines] == ["same"] * 3


@pytest.mark.shows("T16")
@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"a": "1", "b": "3"}, "the data of b differs, or its hash is not recorded"),
        ({}, "the data of a, b differs, or its hash is not recorded"),
    ],
)
def test_other_data_is_refused(other: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        compare_samples(side(), side("B", data=other), ["fedavg", "fedbn"])
    start = "A and B are not scored on the same test samples"
    assert str(error.value) == f"{start} ({said}); compare them over seeds"


def test_data_of_which_nothing_is_recorded_is_refused() -> None:
    with pytest.raises(ConfigError, match="the data of a, b differs, or its hash is not recorded"):
        compare_samples(side(data={}), side("B", data={}), ["fedbn"])


def test_settings_with_other_data_are_refused() -> None:
    outcomes = {
        (m, f"percent={percent}", 0, "running", c): right(m, c, 0)
        for m in SHARES
        for percent in (10, 50)
        for c in SIZES
    }
    run = side(outcomes=outcomes)
    names = ["fedbn (percent=10)", "fedbn (percent=50)"]
    assert compare_samples(run, run, names).pairs[0].lines[0].verdict == "same"
    data = {"percent=10": {"a": "1", "b": "2"}, "percent=50": {"a": "3", "b": "4"}}
    other = SampledSide("A", run.records, outcomes=run.outcomes, data=data)
    with pytest.raises(ConfigError, match=r"A: fedbn \(percent=10\) and fedbn \(percent=50\) are"):
        compare_samples(other, other, names)
    assert len(within(other).pairs) == 2


def test_another_number_of_samples_is_refused() -> None:
    outcomes = {("fedbn", "default", 0, "running", c): right("fedbn", c, 0, size=30) for c in SIZES}
    with pytest.raises(ConfigError, match=r"\(a has 40 and 30 test samples\); compare them over"):
        compare_samples(side(), side("B", outcomes=outcomes), ["fedbn"])


@pytest.mark.shows("T15")
def test_a_run_without_outcomes_names_the_command_that_makes_them() -> None:
    old = SampledSide("runs/old", side().records)
    with pytest.raises(ConfigError) as error:
        within(old)
    assert str(error.value) == (
        "runs/old: no outcomes.safetensors records which test samples are classified correctly; "
        "`fedbn rescore` adds it to a finished run"
    )


def test_jobs_without_outcomes_are_left_out_and_named() -> None:
    whole = side()
    kept = {job: own for job, own in whole.outcomes.items() if job != ("fedavg", "default", 1)}
    run = SampledSide("A", whole.records, outcomes=kept, data=whole.data)
    found = within(run)
    assert found.pairs[0].repetitions == ("0", "2")
    assert found.remarks[0] == (
        "A: left out, because no outcomes.safetensors records which test samples are right: "
        "fedavg seed 1; `fedbn rescore` adds it"
    )
    none = {job: own for job, own in whole.outcomes.items() if job[0] != "fedavg"}
    with pytest.raises(ConfigError, match=r"^A: fedavg: no outcomes\.safetensors records"):
        within(SampledSide("A", whole.records, outcomes=none), "fedavg", "fedbn")
    some = SampledSide("A", whole.records, outcomes=none, data=whole.data)
    with pytest.raises(ConfigError, match=r"^A: fedavg: no outcomes\.safetensors records"):
        compare_samples(some, side("B"), ["fedavg", "fedbn"])
    with pytest.raises(ConfigError, match=r"^A: fedavg: no outcomes\.safetensors records"):
        compare_samples(side("B"), some, ["fedbn", "fedavg"])
    assert len(compare_samples(some, side("B"), ["fedbn", "fedavg"]).pairs) == 1


def test_another_metric_than_accuracy_is_refused() -> None:
    task = {"task": {"metrics": [{"name": "mae", "higher": False, "unit": ""}]}}
    run = SampledSide("runs/ages", [record(5.0, metric="mae")], {}, task)
    with pytest.raises(ConfigError) as error:
        within(run)
    assert str(error.value).startswith(
        "runs/ages is judged by mae: `fedbn run` and `fedbn rescore`"
    )
    assert str(error.value).endswith("for accuracy alone; compare over seeds")


@pytest.mark.shows("T17")
def test_outcomes_that_contradict_the_records_are_damage() -> None:
    whole = side(seeds=1)
    records = [{**r, "value": 0.5} for r in whole.records]
    with pytest.raises(DamagedRun, match=r"A: fedavg seed 0: a has 50.0 % in the records and"):
        within(SampledSide("A", records, outcomes=whole.outcomes, data=whole.data))


def test_unknown_methods_are_named_as_in_the_test_over_seeds() -> None:
    with pytest.raises(ConfigError, match="did you mean 'fedbn'"):
        within(side(), "fedavg", "fedbm")


def test_runs_with_other_clients_have_no_mean_to_compare() -> None:
    only_a = {("fedbn", "default", 0, "running", "a"): right("fedbn", "a", 0)}
    found = compare_samples(side(), side("B", outcomes=only_a), ["fedbn"])
    assert list(sample_tests(found)) == ["a"]
    assert found.family == (1, 0)


def test_every_output_says_what_its_tests_generalise_to() -> None:
    over_seeds = compare(Side("A", side().records), Side("A", side().records))
    assert said_of(over_seeds) == (
        "The test generalises to another training on the same data and the same test samples, "
        "not to other sites or other splits"
    )
    fixed = said_of(within(side(seeds=1)))
    assert fixed == said_of(within(side(seeds=2)))
    assert fixed == (
        "The test generalises to other test samples from the same sites for these trained models, "
        "not to other sites or other splits"
    )
    both = said_of(within(side(seeds=3)))
    assert both == (
        "The test generalises to another training on the same data and to other test samples from "
        "the same sites, not to other sites or other splits"
    )
    split = [{**r, "setting": f"split_seed={r['seed']}", "seed": 0} for r in side().records]
    swept = compare(Side("A", split), Side("B", split))
    assert said_of(swept) == (
        "The test generalises to other splits of the same data, not to other sites"
    )
    for found in (over_seeds, swept, within(side(seeds=1)), within(side(seeds=3))):
        assert said_of(found) in explanation(found)
        assert said_of(found) in markdown(found)
        assert said_of(found) == found.to_dict()["generalises"]


def test_lines_of_one_seed_and_of_several_are_told_apart() -> None:
    outcomes = {
        (m, "default", s, "running", c): right(m, c, s)
        for m in SHARES
        for c, seeds in (("a", 3), ("b", 1))
        for s in range(seeds)
    }
    found = within(side(outcomes=outcomes))
    assert {c: t.repetitions for c, t in sample_tests(found).items()} == {"a": 3, "b": 1}
    assert said_of(found).startswith("With 3 seeds or more the test generalises to another")
    said = explanation(found)
    assert "n = 3 seeds (0, 1, 2), fewer at fedavg → fedbn b 1" in said
    assert "A client with one seed: McNemar's exact test" in said
    assert (
        "Else: paired t-tests with the variance over test samples within each client and over seeds"
        in said
    )


def test_the_explanation_of_one_seed() -> None:
    assert explanation(within(side(seeds=1))) == (
        "n = 1 seed (0). A client with one seed: McNemar's exact test, and the interval of Tango "
        "(1998). Else: paired t-tests with the variance over test samples within each client. "
        "Intervals and p are adjusted for 2 comparisons of clients, and separately for 1 mean "
        "(Bonferroni). 'better' and 'worse': the adjusted p is below 0.05. The test generalises to "
        "other test samples from the same sites for these trained models, not to other sites or "
        "other splits. Test samples count as independent: several of one patient make intervals "
        "too narrow."
    )


def test_the_table_has_the_number_of_samples() -> None:
    found = within(side())
    place = score_titles(found.metric, found.over).index("samples")
    cells = [row[place] for row in score_rows(found.pairs[0], found.metric)]
    assert cells == ["40", "60", "100"]
    assert "detectable" not in markdown(found)
