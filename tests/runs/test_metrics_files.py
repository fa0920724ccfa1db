"""Metrics on disk: a cut-off line is dropped, a hole is damage."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fedbn.core.rounds import Record
from fedbn.core.statistics_kinds import STATISTICS_KINDS
from fedbn.errors import DamagedRun
from fedbn.runs import metrics

RECORD = Record("fedbn", "default", 0, 1, "a", "a", "test", "loss", 0.5)
LINES = [metrics.line(replace(RECORD, round=n)).encode() for n in (1, 2, 3)]


def test_a_record_is_one_line_of_json() -> None:
    assert metrics.line(replace(RECORD, client="ä", domain="x\ny", value=None)) == (
        '{"method":"fedbn","setting":"default","seed":0,"round":1,"client":"ä",'
        '"domain":"x\\ny","split":"test","metric":"loss","value":null,"statistics":"running"}\n'
    )


def test_a_line_of_an_older_run_is_of_running_statistics(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    older = LINES[0].replace(b',"statistics":"running"', b"")
    assert older != LINES[0]
    file.write_bytes(older)
    assert metrics.read(file) == [vars(RECORD)]


@pytest.mark.parametrize("kind", STATISTICS_KINDS)
def test_every_kind_of_statistics_is_read_back(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    metrics.append(file, metrics.line(replace(RECORD, statistics=kind)).encode())
    assert metrics.read(file)[0]["statistics"] == kind


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_value_that_json_cannot_hold_is_null(value: float) -> None:
    assert metrics.line(replace(RECORD, value=value)) == metrics.line(replace(RECORD, value=None))


def test_later_rounds_and_a_cut_off_line_are_dropped(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(b"".join(LINES) + LINES[0][:30])
    metrics.keep_until(file, 2)
    assert file.read_bytes() == LINES[0] + LINES[1]
    metrics.keep_until(tmp_path / "none", 0)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (LINES[0] + LINES[2], "records of round 2 are missing"),
        (LINES[0], "records of round 2 are missing"),
        (b"", "records of round 1 are missing"),
        (b"\x00\xff\n" + LINES[1], "line 1: damaged"),
        (b"5\n" + LINES[1], "line 1: damaged"),
        (b"{}\n" + LINES[1], r"line 1: damaged \(method: Field required\)"),
        (LINES[0] + LINES[1].replace(b"0.5", b'0.5, "x": 1'), r"line 2: damaged \(x = 1: "),
        (LINES[0] + LINES[1].replace(b"0.5", b'"0.5"'), r"line 2: damaged \(value = '0.5': "),
        (LINES[0] + LINES[1].replace(b":2", b":-2"), r"line 2: damaged \(round = -2: "),
        (
            LINES[0] + LINES[1].replace(b"running", b"walking"),
            r"line 2: damaged \(statistics = 'walking': Input should be 'running', 'local', "
            "'exact' or 'batch'",
        ),
        (LINES[0] + LINES[1].replace(b'"running"', b"null"), r"line 2: .*\(statistics = None: "),
    ],
)
def test_a_hole_is_damage(content: bytes, said: str, tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(content)
    with pytest.raises(DamagedRun, match=said):
        metrics.keep_until(file, 2)
    assert file.read_bytes() == content


def test_only_whole_lines_are_read_while_another_process_writes(tmp_path: Path) -> None:
    line = metrics.line(replace(RECORD, client="日本")).encode()
    file = tmp_path / "metrics.jsonl"
    for end in range(len(line) + 1):  # between any two bytes
        file.write_bytes(LINES[0] + line[:end])
        found = [record["client"] for record in metrics.read(file)]
        assert found == [RECORD.client, *(["日本"] if end == len(line) else [])]


def test_line_separators_of_other_scripts_do_not_end_a_record(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    metrics.append(file, metrics.line(replace(RECORD, domain="x\u2028y")).encode())
    assert metrics.read(file)[0]["domain"] == "x\u2028y"
    assert metrics.read(tmp_path / "none") == []
