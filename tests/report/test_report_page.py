"""What a report says, as HTML and as Markdown."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest

from fedbn.report import page
from fedbn.report.document import Beside, Table, html, markdown
from fedbn.results.comparison import Side, compare
from reporting import HOSTILE, contents, facts, records

SECTIONS = ["results", "learning", "gain", "convergence", "shared", "sites", "confusion"]
SECTIONS += ["examples", "again"]
VOID = {"meta", "link", "img", "br"}


class Outline(HTMLParser):
    """Reads a page as a browser would, and fails where elements are not closed."""

    def __init__(self, text: str):
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]

    @property
    def text(self) -> str:
        return " ".join(self.words)


def tables(found):
    """All tables of a page, those beside a drawing too."""
    parts = [p for chapter in found.chapters for s in chapter.sections for p in s.parts]
    inner = [one for part in parts if isinstance(part, Beside) for one in part.parts]
    return [part for part in [*parts, *inner] if isinstance(part, Table)]


def shown(*runs) -> Outline:
    return Outline(html(page(runs), "1.2.3"))


def test_every_section_is_there():
    ids = [each.get("id") for each in shown(contents()).all("section")]
    assert ids == [f"r1-{name}" for name in SECTIONS]


def test_the_best_of_a_column_is_marked_and_the_spread_over_seeds_is_shown():
    text = html(page([contents()]), "1")
    assert '<td class="best"><strong>90.5 ± 0.7</strong></td>' in text
    assert "<td>70.5 ± 0.7</td>" in text


def test_the_gain_of_every_client_is_in_points():
    """0.2 of FedBN over FedAvg, in every seed."""
    found = page([contents()]).chapters[0].sections[SECTIONS.index("gain")]
    numbers = found.parts[0].parts[1]
    rows = [[cell.text for cell in row[:3]] for row in numbers.rows]
    assert rows == [[name, "+20.0", "0.0"] for name in ("a", "b", "mean of clients")]


def noisy_records(seeds: int) -> list[dict[str, Any]]:
    """FedBN 20 points ahead of FedAvg, by a little more or less in each seed."""
    found = records(["a", "b"], seeds=range(seeds))
    for one in found:
        if one["method"] == "fedbn" and one["metric"] == "accuracy":
            one["value"] += 0.004 * (one["seed"] % 3)
    return found


def test_two_seeds_decide_nothing_in_a_report() -> None:
    text = shown(contents(records=noisy_records(2))).text
    assert "not decided" in text
    assert "+20.2 points in the mean of 2 seeds, which cannot decide" in text
    assert "better for" not in text
    assert "is where fedavg ends" not in text


def test_a_report_judges_like_compare() -> None:
    run = contents(records=noisy_records(5))
    side = Side(run.path, run.records, run.config, run.environment)
    pair = compare(side, side, ["fedavg", "fedbn"]).pairs[0]
    mean = pair.lines[-1].test
    text = shown(run).text
    assert pair.lines[-1].verdict == "better"
    assert f"95 % interval +{mean.low:.1f} to +{mean.high:.1f}; of 2 clients: 2 better" in text
    numbers = page([run]).chapters[0].sections[SECTIONS.index("gain")].parts[0].parts[1]
    rows = [[cell.text for cell in row] for row in numbers.rows]
    own = pair.lines[0].test
    assert rows[0][3:] == [f"+{own.low:.1f} to +{own.high:.1f}", "better"]


def test_a_difference_that_seeds_do_not_show_is_called_not_significant() -> None:
    found = records(["a", "b"], seeds=range(3))
    for one in found:
        if one["method"] == "fedbn" and one["metric"] == "accuracy":
            one["value"] += 0.3 * (one["seed"] - 1)
    assert "not statistically significant" in shown(contents(records=found)).text


def test_splits_of_the_data_are_repetitions_in_a_report() -> None:
    found = [
        {**one, "setting": f"split_seed={split}", "value": one["value"] + 0.004 * split}
        if one["method"] == "fedbn"
        else {**one, "setting": f"split_seed={split}"}
        for split in range(4)
        for one in records(["a", "b"], seeds=[0])
    ]
    run = contents(records=found)
    assert run.test is not None
    assert run.test.axis == "split"
    assert run.duel is not None
    assert run.duel.mean is not None
    assert run.duel.mean.mean == pytest.approx(run.test.lines[-1].test.difference)


def test_a_report_states_test_sizes_that_differ_and_both_means() -> None:
    facts_of_data = {"inputs": {"all settings": {"sizes": {"a": [80, 500], "b": [20, 3]}}}}
    text = shown(contents(environment=facts_of_data)).text
    assert "test samples: b 3, a 500" in text
    assert "weighted mean" in text


def test_bytes_are_counted_down_and_up_for_every_client_and_round():
    """500 bytes, 2 ways, 2 clients: 2 kB a round; 3 rounds."""
    found = page([contents()]).chapters[0].sections[SECTIONS.index("shared")]
    row = [cell.text for cell in found.parts[1].rows[1]]
    assert row == ["fedbn", "2", "500 B", "4", "100 B", "2 kB", "3", "6 kB"]


def test_nothing_is_asked_of_the_network():
    outline = shown(contents())
    for _, attributes in outline.found:
        for key in ("src", "href", "xlink:href", "action", "srcset"):
            assert (attributes.get(key) or "#").startswith(("#", "data:"))
    assert "url(" not in html(page([contents()]), "1")
    policy = [m["content"] for m in outline.all("meta") if m.get("http-equiv")]
    assert policy[0].startswith("default-src 'none'; img-src data:;")


def test_the_policy_names_the_hash_of_the_one_script():
    import base64
    import hashlib

    text = html(page([contents()]), "1")
    script = re.search(r"<script>(.*?)</script>", text, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in text


def test_figures_and_tables_can_be_read_aloud():
    outline = shown(contents())
    figures = [svg for svg in outline.all("svg") if svg.get("role") == "img"]
    assert len(figures) > 8
    assert all(svg["aria-label"] for svg in figures)
    assert all(img["alt"] for img in outline.all("img"))
    assert {cell["scope"] for cell in outline.all("th")} == {"row", "col"}
    assert outline.all("html")[0]["lang"] == "en"


@pytest.mark.shows("W06")
def test_names_cannot_become_markup():
    run = contents(
        HOSTILE,
        path=HOSTILE[0],
        config={
            "data": {"path": HOSTILE[1]},
            "model": {"name": HOSTILE[0]},
            HOSTILE[0]: HOSTILE[4],
        },
        environment={"versions": {HOSTILE[0]: HOSTILE[1]}, "directory": HOSTILE[0]},
        facts=facts(HOSTILE, classes=HOSTILE),
        notes=(HOSTILE[0], HOSTILE[1]),
        missing={"examples": HOSTILE[0]},
    )
    outline = shown(run, contents(HOSTILE, path=HOSTILE[1]))
    assert len(outline.all("script")) == 1
    assert all(img["src"].startswith("data:image/png") for img in outline.all("img"))
    assert not [a for _, a in outline.found if any(key.startswith("on") for key in a)]
    assert "49" not in outline.text.split()
    assert "‮" not in outline.text
    assert any("<script>alert(1)</script>" in word for word in outline.words)


def test_names_cannot_become_markdown():
    run = contents(HOSTILE, path=HOSTILE[0], facts=facts(HOSTILE, classes=HOSTILE))
    # What is fenced is shown as it is.
    text = re.sub(r"^(```+)\w*\n.*?^\1$", "", markdown(page([run]), "1"), flags=re.M | re.S)
    assert not re.search(r"(?<!\\)[<\[`]", text)
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    bars = {len(re.findall(r"(?<!\\)\|", line)) for line in rows}
    widths = {len(part.header) + 1 for part in tables(page([run]))}
    assert bars == widths


def test_markdown_has_the_same_tables():
    text = markdown(page([contents()]), "1.2.3")
    assert "| fedbn | **90.5 ± 0.7** | **90.5 ± 0.7** | **90.5 ± 0.7** |" in text
    assert "| fedbn | 2 | 500 B | 4 | 100 B | 2 kB | 3 | 6 kB |" in text
    assert "```toml\nseeds = [" in text
    assert text.startswith("# first\n\nmade\\_up · net · 2 clients · 3 rounds · 2 seeds\n")


def test_a_fence_is_longer_than_what_it_holds():
    text = markdown(page([contents(config={"data": {"name": "`" * 7 + "\n# head"}})]), "1")
    assert '\n````````toml\n[data]\nname = "```````\\n# head"\n````````\n' in text


@pytest.mark.parametrize("count", [50, 1000])
def test_many_clients_stay_readable(count):
    names = [f"site {i}" for i in range(count)]
    outline = shown(contents(names, records=records(names, seeds=[0], rounds=2)))
    figures = [svg for svg in outline.all("svg") if svg.get("role") == "img"]
    assert len(figures) < 50
    assert len(outline.all("tr")) - count < 250  # beside the folded table of all
    assert f"all {count:,} clients" in outline.text
    assert "worst decile" in outline.text
    assert sum(f"scores of {count} clients spread" in svg["aria-label"] for svg in figures) == 1
    assert f"{count:,} clients" in outline.text
    assert "evenly spread" in outline.text


def test_a_thousand_rounds_are_drawn_with_few_points():
    text = html(page([contents(records=records("ab", rounds=1000))]), "1")
    assert len(text) < 300_000
    assert "round 1000" in text


def test_what_is_missing_is_said_in_its_place():
    gone = {"statistics": "no data <here>", "confusions": "why", "examples": "no pictures"}
    run = contents(facts=None, missing=gone, notes=("This run is not finished",))
    outline = shown(run)
    assert "Not shown: no data <here>." in outline.words
    assert "Not shown: no pictures." in outline.words
    assert "This run is not finished" in outline.words


def test_a_run_without_a_record_still_has_its_configuration():
    run = contents(records=[], exchanges=(), facts=None, missing={"exchange": "no round yet"})
    outline = shown(run)
    assert "No client has been scored yet." in outline.words
    assert 'name = "made_up"' in outline.text


def test_a_run_without_fedavg_has_no_gain():
    outline = shown(contents(records=records("ab", methods=["fedbn"])))
    assert any("Needs FedBN and FedAvg" in word for word in outline.words)


def test_several_runs_are_compared_before_each_has_its_chapter():
    other = contents(name="second", config={"data": {"name": "made_up"}, "lr": 0.5})
    found = page([contents(), other])
    assert [chapter.title for chapter in found.chapters] == ["Comparison", "first", "second"]
    text = markdown(found, "1")
    assert "| lr | – | 0.5 |" in text
    ids = [each["id"] for each in shown(contents(), other).all("section")]
    assert len(ids) == len(set(ids)) == 1 + 2 * len(SECTIONS)


def test_runs_of_one_name_are_split_rejections_by_their_paths():
    found = page([contents(path="x/run"), contents(path="y/run")])
    assert [chapter.title for chapter in found.chapters][1:] == ["x/run", "y/run"]


def test_the_same_run_gives_the_same_bytes():
    assert html(page([contents()]), "1") == html(page([contents()]), "1")
