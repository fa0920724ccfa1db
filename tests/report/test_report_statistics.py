"""A report of a run that was scored with several kinds of statistics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from fedbn.report import page
from fedbn.report.contents import RunContents
from fedbn.report.document import Beside, Figures, Section, Table, Text, Tiles, html, markdown
from fedbn.results.comparison import Side, compare
from reporting import contents, records
from scores import scored_again


def both(
    clients: Sequence[str] = ("a", "b"), seeds: Sequence[int] = (0, 1, 2), kind: str = "exact"
) -> list[dict[str, Any]]:
    """FedBN gains 20 points with running statistics, and about one with exact ones."""
    found = []
    for method, change in (("fedavg", 0.19), ("fedbn", 0.0)):
        own = records(clients, methods=[method], seeds=seeds)
        running = [
            {**r, "value": r["value"] + 0.002 * (r["seed"] % 3) * (method == "fedbn")}
            if r["metric"] == "accuracy"
            else r
            for r in own
        ]
        found += scored_again(running, kind, change)
    return found


def run(found: list[dict[str, Any]] | None = None, **changes: Any) -> RunContents:
    return contents(records=both() if found is None else found, **changes)


def section(made: RunContents, key: str) -> Section:
    (chapter,) = page([made]).chapters
    return next(one for one in chapter.sections if one.key == key)


def tables(made: Section) -> list[Table]:
    inner = [one for p in made.parts for one in (p.parts if isinstance(p, Beside) else [p])]
    return [one for one in inner if isinstance(one, Table)]


def rows(table: Table) -> list[list[str]]:
    return [[cell.text for cell in row] for row in table.rows]


def test_results_have_a_row_for_each_kind() -> None:
    (table,) = tables(section(run(), "results"))
    assert [row[0] for row in rows(table)] == [
        "fedavg",
        "fedavg, exact statistics",
        "fedbn",
        "fedbn, exact statistics",
    ]
    text = markdown(page([run()]), "1")
    assert "the mean differs from that with running statistics" in text
    assert "exact: those of the client's own training data, computed without labels" in text


def test_the_first_numbers_show_the_gain_with_both_kinds() -> None:
    made = run()
    (tiles,) = (part for part in section(made, "results").parts if isinstance(part, Tiles))
    found = {tile.label: (tile.value, tile.detail) for tile in tiles.tiles}
    assert found["test accuracy of fedbn"][1] == (
        "highest mean of 2 methods, over clients, with running statistics"
    )
    assert found["fedbn over fedavg"][0] == "+20.2 points"
    value, detail = found["fedbn over fedavg, both with exact statistics"]
    assert value == "+1.2 points"
    test = made.tests["exact"].lines[-1].test
    assert detail == f"95 % interval +{test.low:.1f} to +{test.high:.1f}"


@pytest.mark.parametrize(
    ("seeds", "said"), [((0,), "in the mean of 1 seed, which cannot decide"), ((0, 3), "equal")]
)
def test_few_or_equal_seeds_are_not_called_a_gain(seeds: Sequence[int], said: str) -> None:
    found = both(seeds=seeds)
    if said == "equal":
        found = [
            {**r, "value": 0.5} if (r["statistics"], r["metric"]) == ("exact", "accuracy") else r
            for r in found
        ]
    (tiles,) = (p for p in section(run(found), "results").parts if isinstance(p, Tiles))
    (tile,) = (tile for tile in tiles.tiles if "exact" in tile.label)
    assert said in tile.detail


def test_the_gain_in_the_mean_stands_side_by_side() -> None:
    made = run()
    side = Side(made.path, made.records, made.config, made.environment)
    running, exact = compare(side, side, ["fedavg", "fedbn"]).pairs
    (table, *_) = tables(section(made, "gain"))
    assert table.caption == "Gain in the mean of clients"
    tests = [pair.lines[-1].test for pair in (running, exact)]
    assert rows(table) == [
        ["running statistics", "+20.2", f"+{tests[0].low:.1f} to +{tests[0].high:.1f}", "better"],
        ["exact statistics", "+1.2", f"+{tests[1].low:.1f} to +{tests[1].high:.1f}", "better"],
    ]


def test_the_report_says_what_its_intervals_generalise_to() -> None:
    assert section(run(), "gain").lead.endswith(
        "The test generalises to another training on the same data and the same test samples, not "
        "to other sites or other splits."
    )
    assert "generalises" not in section(run(both(seeds=[0])), "gain").lead


def test_two_seeds_decide_the_gain_with_no_kind() -> None:
    (table, *_) = tables(section(run(both(seeds=(0, 1))), "gain"))
    assert [row[2:] for row in rows(table)] == [["–", "not decided"]] * 2


def test_the_gain_of_each_client_is_there_for_each_kind_on_one_axis() -> None:
    found = section(run(), "gain")
    first, second = (part for part in found.parts if isinstance(part, Beside))
    heads = [part.text for part in found.parts if isinstance(part, Text)]
    assert heads == [
        "Both scored with the running statistics that the method leaves:",
        "Both scored with the client's exact statistics:",
    ]
    numbers = [
        rows(part.parts[1])[0][:2] for part in (first, second) if isinstance(part.parts[1], Table)
    ]
    assert numbers == [["a", "+20.2"], ["a", "+1.2"]]
    drawn = [
        part.parts[0].panels[0] for part in (first, second) if isinstance(part.parts[0], Figures)
    ]
    assert [picture.count("+20</text>") for picture in drawn] == [1, 1]
    spoken = [
        f"over fedavg, both with {kind} statistics, in points" for kind in ("running", "exact")
    ]
    assert [text in picture for text, picture in zip(spoken, drawn, strict=True)] == [True, True]


def test_a_kind_that_only_one_method_has_is_not_compared() -> None:
    some = [r for r in both() if (r["method"], r["statistics"]) != ("fedbn", "exact")]
    made = run(some)
    assert [*made.duels] == [*made.tests] == ["running"]
    found = section(made, "gain")
    assert [table.caption for table in tables(found)] == ["In numbers"]
    assert not [part for part in found.parts if isinstance(part, Text)]


def test_a_kind_of_one_round_has_no_curve_and_that_is_said() -> None:
    made = run()
    assert [row.key.label for row in made.rows] == ["fedavg", "fedbn"]
    parts = section(made, "learning").parts
    said = [part.text for part in parts if isinstance(part, Text)]
    assert said == ["Scored in one round alone, so without a curve: exact statistics."]
    every = [
        one
        for r in both()
        for one in ([r, {**r, "statistics": "exact"}] if r["round"] < 3 else [r])
    ]
    assert [row.key.label for row in run(every).rows] == [
        "fedavg",
        "fedavg, exact statistics",
        "fedbn",
        "fedbn, exact statistics",
    ]
    assert not [p for p in section(run(every), "learning").parts if isinstance(p, Text)]


@pytest.mark.parametrize("clients", [12, 200])
def test_of_many_clients_each_kind_has_a_table_of_its_own(clients: int) -> None:
    names = [f"c{i:03d}" for i in range(clients)]
    found = section(run(both(names, seeds=(0, 1))), "results")
    captions = [table.caption for table in tables(found)]
    kinds = [
        "scored with the running statistics that the method leaves",
        "scored with the client's exact statistics",
    ]
    heads = ["Test accuracy, %"] + ([] if clients == 12 else ["Test accuracy, %: all 200 clients"])
    assert captions == [f"{head}, {kind}" for head in heads for kind in kinds]
    assert all(table.header[1:] == ("fedavg", "fedbn") for table in tables(found))


def test_hostile_names_stay_harmless_with_several_kinds() -> None:
    made = run(both(["<script>alert(1)</script>", "b"]))
    assert "<script>alert" not in html(page([made]), "1")


def test_runs_side_by_side_have_a_column_for_each_kind() -> None:
    first, *_ = page([run(), contents()]).chapters
    table = tables(first.sections[0])[0]
    assert table.header[3:] == (
        "fedavg",
        "fedavg, exact statistics",
        "fedbn",
        "fedbn, exact statistics",
    )
    assert [cell.text for cell in table.rows[1]][4::2] == ["–", "–"]
