"""What strangers may hand over, in forms that once ended in a traceback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

import fuzzed_messages as right
from flwr.app import ConfigRecord, RecordDict

from fedbn.errors import ConfigError, DamagedRun
from fedbn.flower import audit_log, credentials, messages

DEEP = b"[" * 50_000


@pytest.mark.shows("H22")
@pytest.mark.parametrize("line", [b"[1]", b'"signature"', b"7", b'{"signature": 7}', DEEP, b"\xff"])
def test_a_line_that_is_none_of_a_log(line: bytes, tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    file.write_bytes(right.log() + line + b"\n")
    public = credentials.public_bytes(credentials.make_key())
    assert audit_log.verify(file, [public])[-1].startswith("line 4: not a line of a log")
    if line != b'{"signature": 7}':
        with pytest.raises(DamagedRun, match="line 4: not a line of a log"):
            audit_log.mentioned(file)


@pytest.mark.shows("H16")
@pytest.mark.parametrize("content", [DEEP, b"[]", b'{"signatures": 1}', b"\xff", b""])
def test_a_request_that_is_none(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "r").write_bytes(content)
    with pytest.raises(ConfigError, match="not a request of a site"):
        credentials.read_request(tmp_path / "r")


@pytest.mark.shows("H14")
@pytest.mark.parametrize("section", ["model", "training", "data", "evaluation"])
@pytest.mark.parametrize("value", [5, None, [], "x"])
def test_an_order_whose_sections_are_values(section: str, value: object) -> None:
    order = json.loads(right.order())
    order["experiment"][section] = value
    record = RecordDict({"order": ConfigRecord({"json": json.dumps(order)})})
    with pytest.raises(ConfigError, match="the server's configuration"):
        messages.job_of(messages.get(record, messages.Order), device="cpu")
