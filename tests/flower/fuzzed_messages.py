"""What a stranger may send or hand over: bundles, requests, policies, logs, documents, arrays."""

from __future__ import annotations

import io
import json
import tomllib
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import tomli_w
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from safetensors.torch import save

from fedbn.core.packing import StateLayout
from fedbn.core.state import entries
from fedbn.experiments.configuration import checked
from fedbn.experiments.jobs import jobs
from fedbn.flower import audit_log, credentials, messages
from fedbn.flower.policy import Policy, read_policy
from tiny import bn_net


def _file(read: Callable[[Path], object]) -> Callable[[bytes, Path], object]:
    def write_and_read(content: bytes, folder: Path) -> None:
        (folder / "file").write_bytes(content)
        read(folder / "file")

    return write_and_read


@cache
def bundle() -> bytes:
    authority = credentials.make_authority("fuzz", 10)
    ca = credentials.certificate_bytes(authority.certificate)
    key = credentials.ssh_private_bytes(credentials.make_key())
    return credentials.Bundle(
        federation="fed", site="a", address="127.0.0.1:9", ca=ca, key=key
    ).to_bytes()


def site_json(content: bytes) -> Any:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return json.loads(archive.read("site.json"))


def with_site_json(value: Any) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive, zipfile.ZipFile(io.BytesIO(bundle())) as right:
        for name in right.namelist():
            text = json.dumps(value) if name == "site.json" else right.read(name)
            archive.writestr(name, text)
    return buffer.getvalue()


@cache
def request() -> bytes:
    return credentials.make_request("a", credentials.make_key())


@cache
def log() -> bytes:
    import tempfile

    file = Path(tempfile.mkdtemp(prefix="fedbn-fuzz-")) / "log.jsonl"
    written = audit_log.AuditLog(file, credentials.make_key())
    for round in range(3):
        written.write("answered", run="r", round=round)
    return file.read_bytes()


def read_log(file: Path) -> None:
    public = credentials.public_bytes(credentials.make_key())
    audit_log.verify(file, [public])
    list(audit_log.read(file))
    audit_log.mentioned(file)


def order() -> bytes:
    raw = {"methods": ["fedbn"], "seeds": [0], "model": {"name": "mlp", "args": {"hidden": [4]}}}
    made = messages.order_of(jobs(checked({**raw, "training": {"rounds": 2}}))[0], "fed", "run")
    return made.model_dump_json().encode()


def read_order(content: bytes, folder: Path) -> None:
    text = content.decode(errors="replace")
    record = RecordDict({"order": ConfigRecord({"json": text})})
    messages.what_is_in(record)
    messages.job_of(messages.get(record, messages.Order))


LAYOUT = StateLayout.of(entries(bn_net()))


def read_arrays(content: bytes, folder: Path) -> None:
    record = ArrayRecord({messages.KEY: Array("uint8", (len(content),), "safetensors", content)})
    messages.what_is_in(RecordDict({messages.SHARED: record}))
    messages.from_record(record, LAYOUT)


def policy() -> bytes:
    return tomli_w.dumps(Policy().model_dump(exclude_none=True, mode="json")).encode()


def as_toml(value: Any) -> bytes:
    try:
        return tomli_w.dumps(value).encode()
    except (TypeError, ValueError, AttributeError):
        return b"x = [1"


def of_toml(content: bytes) -> Any:
    return tomllib.loads(content.decode())


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode()


TARGETS = {
    "bundle": (lambda: [bundle()], _file(credentials.read_bundle), with_site_json, site_json),
    "request": (lambda: [request()], _file(credentials.read_request), as_json),
    "log": (lambda: [log()], _file(read_log)),
    "order": (lambda: [order()], read_order, as_json),
    "arrays on the wire": (lambda: [save(bn_net().state_dict())], read_arrays),
    "policy": (lambda: [policy()], _file(read_policy), as_toml, of_toml),
}
