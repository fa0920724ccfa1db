"""Rows scored with other than running statistics: which, where, and what is said of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from fedbn.results.aggregate import (
    LOSS,
    MEAN,
    WEIGHTED,
    Key,
    Row,
    ScoreTable,
    duel,
    summarize,
)
from fedbn.results.figures import draw_curves, looks
from fedbn.results.result_table import Grid, condensed, tables_of
from fedbn.results.run_files import RunFiles
from fedbn.runs import metrics
from scores import record

STORED = Path(__file__).parents[2] / "docs" / "results"
Records = list[dict[str, Any]]


def scores(
    method: str, kind: str = "running", /, *, round: int = 2, **clients: list[float | None]
) -> Records:
    """Test scores of a method; those of each client are one a seed."""
    about = {"method": method, "statistics": kind, "round": round}
    return [
        record(value, client, seed=seed, **about)
        for client, values in clients.items()
        for seed, value in enumerate(values)
    ]


def losses(method: str, *values: float, seed: int = 0) -> Records:
    """Training losses of client a, one a round."""
    about = {"method": method, "seed": seed, "split": "train", "metric": "training_loss"}
    return [record(value, "a", round=round, **about) for round, value in enumerate(values, 1)]


BOTH = [
    *scores("fedbn", a=[0.9, 0.9], b=[0.8, 0.9]),
    *scores("fedavg", a=[0.5, 0.6], b=[0.7, 0.7]),
    *scores("fedavg", "exact", a=[0.9, 0.8], b=[0.8, 0.9]),
    *scores("fedavg", "local", a=[0.8, 0.8], b=[0.8, 0.8]),
    *scores("fedbn", "exact", a=[0.9, 0.9], b=[0.9, 0.9]),
]


def run(records: Records, *warnings: str, **config: Any) -> RunFiles:
    return RunFiles("run", records, config, warnings=warnings)


def cells(row: Row) -> dict[str, str]:
    return {name: str(cell) for name, cell in row.cells.items()}


def test_each_kind_is_a_row_after_the_running_one_of_its_method() -> None:
    rows = run(BOTH).summary.rows
    assert [row.key.label for row in rows] == [
        "fedbn",
        "fedbn, exact statistics",
        "fedavg",
        "fedavg, local statistics",
        "fedavg, exact statistics",
    ]
    assert cells(rows[2]) == {"a": "55.0 ± 7.1", "b": "70.0 ± 0.0", MEAN: "62.5 ± 3.5"}
    assert cells(rows[4]) == {"a": "85.0 ± 7.1", "b": "85.0 ± 7.1", MEAN: "85.0 ± 0.0"}


@pytest.mark.parametrize("folder", ["heart", "sweep-local-epochs", "digits-fedbn-fedavg-0"])
def test_further_kinds_change_no_number_of_stored_runs(folder: str) -> None:
    stored = metrics.read(STORED / folder / "metrics.jsonl")
    last = {r["setting"]: r["round"] for r in sorted(stored, key=lambda r: int(r["round"]))}
    further = [
        {**r, "value": 0.5, "statistics": "exact"}
        for r in stored
        if r["split"] != "train" and r["round"] == last[r["setting"]]
    ]
    before, after = ScoreTable.of(stored), ScoreTable.of([*stored, *further])
    assert len(after.histories) == 2 * len(before.histories)
    assert after.only("running") == before
    first, second = summarize(before), summarize(after)
    assert tuple(row for row in second.rows if row.key.statistics == "running") == first.rows
    assert duel(before, first) == duel(after, second)
    assert before.curves(MEAN) == after.curves(MEAN)
    assert before.curves(MEAN, LOSS) == after.curves(MEAN, LOSS)
    assert before.quartiles() == after.quartiles()
    domains = after.by_domain()
    assert domains.only("running") == before.by_domain()


def test_the_best_round_is_that_of_the_running_statistics() -> None:
    found = [
        *(record(value, round=n, split="valid") for n, value in ((1, 0.9), (2, 0.5))),
        *(
            record(value, round=n, split="valid", statistics="exact")
            for n, value in ((1, 0.1), (2, 0.9))
        ),
        *scores("fedbn", round=1, a=[0.7]),
        *scores("fedbn", round=2, a=[0.6]),
        *scores("fedbn", "exact", round=1, a=[0.75]),
        *scores("fedbn", "exact", round=2, a=[0.65]),
    ]
    best = run(found, evaluation={"report": "best"}).summary.rows
    assert [cells(row)["a"] for row in best] == ["70.0", "75.0"]
    assert [cells(row)["a"] for row in run(found).summary.rows] == ["60.0", "65.0"]


def test_scores_of_an_earlier_round_are_no_row() -> None:
    """A run that grew has no further scores with exact statistics until it has ended again."""
    found = [*scores("fedbn", round=3, a=[0.7]), *scores("fedbn", "exact", round=2, a=[0.9])]
    assert [row.key.label for row in run(found).summary.rows] == ["fedbn"]


def test_a_score_that_could_not_be_computed_is_a_dash_and_its_reason_is_said() -> None:
    found = run(
        [
            *scores("fedbn", a=[0.5, 0.5], b=[0.5, 0.5], c=[0.5, 0.5]),
            *scores("fedbn", "exact", a=[None, 0.9], b=[None, 0.9], c=[0.9, 0.9]),
        ],
        "exact statistics of a: one sample is too few (fedbn seed 0)",
        "exact statistics of b: one sample is too few (fedbn seed 0)",
        "exact statistics of c: not asked for",
        "something else",
    )
    row = found.summary.rows[1]
    assert cells(row) == {"a": "90.0", "b": "90.0", "c": "90.0 ± 0.0", MEAN: "90.0"}
    assert found.summary.remarks[:2] == (
        "no number, and in no mean: test accuracy of a, b (fedbn, exact statistics seed 0)",
        "exact statistics of a, b: one sample is too few (fedbn seed 0)",
    )
    (grid,) = tables_of(
        run(scores("fedbn", a=[0.5]) + scores("fedbn", "exact", a=[None])).summary, 80
    )
    assert [cell.text for cell in grid.cells[1]] == ["–", "–"]


def remarks(records: Records, **config: Any) -> str:
    return "\n".join(run(records, **config).summary.remarks)


def test_fedavg_and_silobn_are_said_to_train_the_same_weights_where_their_losses_agree() -> None:
    both = [*scores("fedavg", a=[0.5]), *scores("silobn", a=[0.7])]
    same = [*both, *losses("fedavg", 0.5, 0.25), *losses("silobn", 0.5, 0.25)]
    said = "FedAvg and SiloBN train the same shared weights (their training losses are equal); "
    evaluated = "they differ only in the statistics that they are evaluated with"
    assert run(same).summary.remarks == (said + evaluated,)
    other = [*both, *losses("fedavg", 0.5, 0.25), *losses("silobn", 0.5, 0.24)]
    assert "same shared weights" not in remarks(other)
    assert "same shared weights" not in remarks(both)
    assert "same shared weights" not in remarks([*scores("fedavg", a=[0.5]), *losses("fedavg", 1)])
    chosen = [
        record(value, round=n, method=method, split="valid")
        for method, values in (("fedavg", (0.5, 0.6)), ("silobn", (0.7, 0.6)))
        for n, value in enumerate(values, 1)
    ]
    first = [*scores("fedavg", round=1, a=[0.5]), *scores("silobn", round=1, a=[0.5])]
    best = remarks([*same, *chosen, *first], evaluation={"report": "best"})
    assert best.startswith(f"{said}their reported rounds differ, because each is chosen with other")


def test_means_that_differ_by_more_than_seeds_do_are_named() -> None:
    # fedavg 62.5 ± 3.5 against 80.0 ± 0.0 and 85.0 ± 0.0; fedbn 87.5 ± 3.5 against 90.0 ± 0.0.
    said = (
        "the mean differs from that with running statistics by more than the standard deviation "
        "over 2 seeds: fedavg, local statistics +17.5, fedavg, exact statistics +22.5"
    )
    assert said in run(BOTH).summary.remarks
    worse = [*scores("my-own", a=[0.9, 0.8]), *scores("my-own", "batch", a=[0.5, 0.5])]
    assert "over 2 seeds: my-own, batch statistics −35.0" in remarks(worse)


def test_one_seed_never_decides_whether_evaluations_differ() -> None:
    found = [*scores("fedavg", a=[0.5]), *scores("fedavg", "exact", a=[0.9])]
    assert run(found).summary.remarks[0] == (
        "the mean differs from that with running statistics: fedavg, exact statistics +40.0; one "
        "seed (n = 1) cannot decide whether that is more than chance"
    )
    same = [*scores("fedavg", a=[0.5]), *scores("fedavg", "exact", a=[0.5])]
    assert "differs" not in remarks(same)


def test_a_kind_that_some_seeds_lack_names_those_that_have_it() -> None:
    found = [*scores("fedavg", a=[0.5, 0.6, 0.7]), *scores("fedavg", "exact", a=[0.9])]
    assert "fedavg, exact statistics: of 3 seeds only 0" in run(found).summary.remarks
    assert "n = 1" in remarks(found)


def test_the_kinds_are_explained_where_there_are_several() -> None:
    (said,) = (text for text in run(BOTH).summary.remarks if "same weights" in text)
    assert [said.count(f"{kind}: ") for kind in ("running", "local", "exact", "batch")] == [
        *(1, 1, 1),
        0,
    ]
    assert "same weights" not in remarks(scores("fedavg", a=[0.5]))


def test_only_kinds_of_several_rounds_have_curves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[list[str]] = []

    def saved(figure: Figure, *_: object, **__: object) -> None:
        drawn.append([str(text.get_text()) for text in figure.legends[0].get_texts()])

    monkeypatch.setattr(Figure, "savefig", saved)
    rounds = [one for n in (1, 2) for one in scores("fedavg", round=n, a=[0.5], b=[0.6])]
    last = scores("fedavg", "exact", a=[0.9], b=[0.9])
    table = ScoreTable.of([*rounds, *last])
    assert [curve.label for curve in table.curves(MEAN)] == ["fedavg"]
    assert [*table.quartiles()] == ["fedavg"]
    draw_curves(table, tmp_path / "curves.png")
    both = [*rounds, *last, *scores("fedavg", "exact", round=1, a=[0.9], b=[0.9])]
    assert [c.label for c in ScoreTable.of(both).curves(MEAN)] == [
        "fedavg",
        "fedavg, exact statistics",
    ]
    draw_curves(ScoreTable.of(both), tmp_path / "curves.png")
    assert drawn == [["FedAvg"], ["FedAvg", "FedAvg, exact statistics"]]


def test_a_method_has_one_colour_and_a_line_of_its_own_for_each_kind() -> None:
    labels = ["fedavg", *(f"fedavg, {kind} statistics" for kind in ("local", "exact", "batch"))]
    found = looks([*labels, "mine", "mine, exact statistics"])
    assert {found[label]["color"] for label in labels} == {found["fedavg"]["color"]}
    assert found["mine"]["color"] == found["mine, exact statistics"]["color"]
    assert found["mine"]["color"] != found["fedavg"]["color"]
    assert len({found[label].get("linestyle", "-") for label in labels}) == 4
    assert looks(["fedavg", "mine"])["mine"]["color"] == found["mine"]["color"]


def test_a_setting_is_chosen_by_running_statistics_and_keeps_all_of_its_rows() -> None:
    found: Records = []
    for setting, valid, exact in (("mu=1", 0.9, 0.1), ("mu=2", 0.8, 0.99)):
        about: dict[str, Any] = {"method": "fedprox", "setting": setting}
        found += [
            record(valid, split="valid", **about),
            record(exact, split="valid", statistics="exact", **about),
            record(0.5, **about),
            record(0.6, statistics="exact", **about),
        ]
    rows = run(found, method={"mu": [1, 2]}).summary.rows
    assert [row.key.label for row in rows] == ["fedprox (mu=1)", "fedprox (mu=1), exact statistics"]


def test_seeds_without_a_kind_count_in_the_choice_of_a_setting() -> None:
    found: Records = []
    for setting, valid in (("mu=1", (0.9, 0.1)), ("mu=2", (0.6, 0.6))):
        about: dict[str, Any] = {"method": "fedprox", "setting": setting}
        for seed, value in enumerate(valid):
            found += [
                record(value, split="valid", seed=seed, **about),
                record(0.5, seed=seed, **about),
            ]
        found.append(record(0.6, statistics="exact", **about))  # of the first seed alone
    rows = run(found, method={"mu": [1, 2]}).summary.rows
    assert [row.key.label for row in rows] == ["fedprox (mu=2)", "fedprox (mu=2), exact statistics"]


def test_the_weighted_mean_is_there_for_every_kind() -> None:
    sizes = {"default": {"sizes": {"a": (1, 30), "b": (1, 1)}}}
    found = RunFiles(
        "run",
        [
            *scores("fedavg", a=[0.9], b=[0.5]),
            *scores("fedavg", "exact", a=[0.5], b=[0.9]),
        ],
        environment={"inputs": sizes},
    )
    means = [row.cells[WEIGHTED].mean for row in found.summary.rows]
    assert means == pytest.approx([(30 * 90 + 50) / 31, (30 * 50 + 90) / 31])


def wide(clients: int) -> Records:
    names = [f"hospital-{i:03d}" for i in range(clients)]
    return [
        one
        for method, kinds in (
            ("fedavg", ("running", "local", "exact")),
            ("fedbn", ("running", "exact")),
        )
        for kind in kinds
        for one in scores(
            method, kind, **{name: [0.5 + i / 900, 0.6] for i, name in enumerate(names)}
        )
    ]


@pytest.mark.parametrize("clients", [5, 200])
def test_kinds_that_do_not_fit_side_by_side_are_tables_of_their_own(clients: int) -> None:
    summary = condensed(run(wide(clients)).summary)
    tables = tables_of(summary, 80)
    assert [(one.heading, one.columns) for one in tables] == [
        ("scored with the running statistics that the method leaves", ("fedavg", "fedbn")),
        ("scored with the client's own running statistics", ("fedavg",)),
        ("scored with the client's exact statistics", ("fedavg", "fedbn")),
    ]
    assert all(one.width <= 80 for one in tables)
    (whole,) = tables_of(summary, 10_000)
    assert len(marks([whole])) == sum(map(len, map(marks, ([one] for one in tables)))) > 0
    assert whole.heading == ""


def marks(tables: list[Grid]) -> list[str]:
    """The cells that are marked as the best."""
    return [cell.text for one in tables for row in one.cells for cell in row if cell.best]


def test_the_worst_of_many_clients_are_those_with_running_statistics() -> None:
    names = [f"c{i:02d}" for i in range(20)]
    rising = {name: [0.5 + i / 100] for i, name in enumerate(names)}
    falling = {name: [0.9 - i / 25] for i, name in enumerate(names)}
    both = run([*scores("fedavg", **rising), *scores("fedavg", "exact", **falling)]).summary
    assert condensed(both).columns[-5:] == ("c00", "c01", "c02", "c03", "c04")


def test_fedbn_and_fedavg_are_compared_with_one_kind_of_statistics() -> None:
    table = ScoreTable.of(BOTH)
    running = duel(table, summarize(table))
    exact = duel(table, summarize(table), statistics="exact")
    assert running is not None
    assert exact is not None
    assert (running.old, running.new) == ("fedavg", "fedbn")
    assert (exact.old, exact.new) == ("fedavg, exact statistics", "fedbn, exact statistics")
    assert running.mean is not None
    assert exact.mean is not None
    assert (running.mean.mean, exact.mean.mean) == pytest.approx((25.0, 5.0))
    assert duel(table, summarize(table), statistics="local") is None
    assert Key("fedavg", "default", "exact").running == Key("fedavg", "default")


def test_the_gain_of_fedbn_is_stated_for_each_kind_of_statistics() -> None:
    """FedBN is ahead by 20 points with running statistics, and level with exact ones."""
    values = {
        ("fedavg", "running"): 0.5,
        ("fedbn", "running"): 0.7,
        ("fedavg", "exact"): 0.75,
        ("fedbn", "exact"): 0.75,
    }
    place = {"setting": "default", "seed": 0, "round": 1, "split": "test", "metric": "accuracy"}
    records = [
        {**place, "method": method, "statistics": kind, "value": value, "client": c, "domain": c}
        for (method, kind), value in values.items()
        for c in "ab"
    ]
    remarks = RunFiles("run", records).summary.remarks
    (said,) = [text for text in remarks if text.startswith("FedBN compared with FedAvg")]
    assert "+20.0 with running statistics, +0.0 with exact statistics" in said
    alone = RunFiles("run", [r for r in records if r["statistics"] == "running"])
    assert not any(text.startswith("FedBN compared") for text in alone.summary.remarks)
