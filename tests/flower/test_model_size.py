"""What a server asks for before a person at the site approved it: no memory, and few files."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

import torch
from flower_bench import RAW, Bench
from flwr.app import RecordDict
from PIL import Image
from torch import nn

import fedbn.models
from fedbn import registry
from fedbn.core.federation import Federation, Split, blank_client
from fedbn.data.lazy_split import LazySplit
from fedbn.errors import FedbnError
from fedbn.experiments.configuration import checked
from fedbn.experiments.schema import ContractSection
from fedbn.flower import messages, server_app
from fedbn.flower.approvals import _MOST_WAITING, Approvals
from fedbn.flower.model_size import ModelTooLarge, check_model_size, limited_model
from fedbn.flower.policy import Forbidden, Policy
from fedbn.flower.site import Site
from fedbn.flower.site_job import SiteOptions
from fedbn.models.networks import mlp

SHAPES = {
    "digit_cnn": (3, 28, 28),
    "mlp": (10,),
    "logistic": (10,),
    "two_layer": (10,),
    "abide_net": (30,),
}


def stand_in(shape: tuple[int, ...]) -> Federation:
    return Federation("a", (blank_client("a", "a", shape),), ("x", "y"))


def asked(**model: object):
    return server_app.orders(checked({**RAW, "model": model}), "fed")[0]


def peak() -> int:
    """Bytes of memory that this process had at most since the last reset."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmHWM"))) * 1024


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="needs Linux")
@pytest.mark.parametrize(
    "model",
    [
        {"name": "mlp", "args": {"hidden": [18_000, 18_000]}},
        {"name": "mlp", "args": {"hidden": [2**31, 2**31]}},
        {"name": "mlp", "args": {"hidden": [2**62]}},
        {"name": "mlp", "args": {"hidden": [1] * 200_000}},
        {"name": "small_cnn", "args": {"width": 100_000}},
        {"name": "two_layer", "args": {"width": 10**8}},
        {"name": "unet", "args": {"depth": 10**6, "width": 0}},
        {"name": "unet", "args": {"depth": 10**5, "width": 0}},
        {"name": "unet", "args": {"depth": 16}},
    ],
    ids=["wide", "overflow", "huge", "layers", "width", "hidden", "depth", "empty", "deep"],
)
def test_a_model_that_is_too_large_is_refused_without_taking_memory(
    bench: Bench, tmp_path: Path, model: dict
) -> None:
    site = bench.site("plain", policy=Policy(), home=tmp_path)
    order = messages.put(asked(**model))
    Path("/proc/self/clear_refs").write_text("5")
    before, begun = peak(), time.monotonic()
    with pytest.raises(FedbnError):
        site.answer(order, RecordDict())
    assert peak() - before < 200_000_000
    assert time.monotonic() - begun < 30
    assert not (tmp_path / "experiments").exists()


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="needs Linux")
def test_a_contract_with_many_categories_takes_no_memory_before_approval(tmp_path: Path) -> None:
    """Every category is a feature: 300,000 of them make 1.2 GB of 1,000 rows."""
    file = tmp_path / "nyu.csv"
    file.write_text("pain,out\n" + "".join(f"c{n % 3},{n % 2}\n" for n in range(1000)))
    column = {"name": "pain", "values": [f"c{n}" for n in range(300_000)]}
    contract = {"classes": ["0", "1"], "label": "out", "columns": [column]}
    raw = {**RAW, "data": {"contract": contract}, "model": {"name": "logistic"}}
    order = server_app.orders(checked(raw), "fed")[0]
    site = Site(SiteOptions("nyu", {"path": str(file)}, policy=Policy(), home=tmp_path / "home"))
    Path("/proc/self/clear_refs").write_text("5")
    before, begun = peak(), time.monotonic()
    with pytest.raises(FedbnError, match=r"forbids 4,800 MB of samples \(max_data_mb = 2,048\)"):
        site.answer(messages.put(order), RecordDict())
    assert peak() - before < 300_000_000
    assert time.monotonic() - begun < 30
    assert not (tmp_path / "home" / "experiments").exists()


def test_large_pictures_of_a_contract_are_not_held_in_memory(tmp_path: Path) -> None:
    for number in range(20):
        place = tmp_path / "pictures" / "ab"[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (number, 0, 0)).save(place / f"{number}.png")

    def read(size: int, **agreed: object) -> Federation:
        found = ContractSection.model_validate({"classes": ["a", "b"], "size": size, **agreed})
        data = {"path": str(tmp_path / "pictures")}
        return Site(SiteOptions("nyu", data, policy=Policy(max_data_mb=1)))._fitting(found)

    assert isinstance(read(64).clients[0].train, Split)
    assert isinstance(read(256).clients[0].train, LazySplit)
    assert isinstance(read(64, normalize="site").clients[0].train, Split)
    with pytest.raises(Forbidden, match=r"forbids 4 MB of samples \(max_data_mb = 1\)"):
        read(128, normalize="site")


def test_the_refusal_names_size_and_limit(bench: Bench, tmp_path: Path) -> None:
    site = bench.site("plain", policy=Policy(max_model_mb=1, approval=False))
    order = asked(name="mlp", args={"hidden": [1000]})
    with pytest.raises(Forbidden, match=r"bytes of parameters \(max_model_mb = 1\)"):
        site.answer(messages.put(order), RecordDict())
    with pytest.raises(Forbidden, match="max_model_mb"):  # `fedbn federation check` says so too
        list(site.examined(order))


def test_a_training_order_is_measured_too(bench: Bench) -> None:
    """A server need not ask the first question before it asks for a round."""
    site = bench.site("plain", policy=Policy(max_model_mb=1, approval=False))
    order = asked(name="mlp", args={"hidden": [18_000, 18_000]})
    member = messages.Member(name="plain", domain="plain", examples=64)
    train = order.model_copy(update={"kind": "train", "round": 1, "members": (member,)})
    with pytest.raises(Forbidden, match="max_model_mb"):
        site.answer(messages.put(train), RecordDict())


@pytest.mark.parametrize("name", registry.names(fedbn.models))
def test_every_model_of_fedbn_is_measured(name: str) -> None:
    experiment = checked({**RAW, "model": {"name": name}})
    federation = stand_in(SHAPES.get(name, (3, 256, 256)))
    check_model_size(experiment, federation, 512)
    with pytest.raises(ModelTooLarge):
        check_model_size(experiment, stand_in((3, 40_000, 40_000)), 512)


def test_a_layer_that_gives_too_much_is_refused() -> None:
    """A convolution has few parameters, and many outputs."""
    experiment = checked({**RAW, "model": {"name": "unet", "args": {"width": 200, "depth": 1}}})
    with pytest.raises(ModelTooLarge, match=r"a layer \(.*\) that gives .* for two samples"):
        check_model_size(experiment, stand_in((3, 1024, 1024)), 100)


def test_custom_code_that_does_not_run_on_meta_is_counted_while_it_is_made() -> None:
    with limited_model(1), pytest.raises(ModelTooLarge, match="bytes of parameters"):
        mlp(classes=2, input_shape=(10,), hidden=[1000, 1000])
    made = mlp(classes=2, input_shape=(10,), hidden=[1000, 1000])  # the limit is gone again
    assert isinstance(made, nn.Module)
    assert made(torch.zeros(2, 10)).shape == (2, 2)


def test_experiments_that_nobody_approved_leave_few_files(bench: Bench, tmp_path: Path) -> None:
    site = bench.site("plain", policy=Policy(), home=tmp_path)
    approvals = Approvals(tmp_path)

    def ask(rounds: int) -> str:
        training = {**RAW["training"], "local_steps": 8, "rounds": rounds}
        order = server_app.orders(checked({**RAW, "training": training}), "fed")[0]
        with pytest.raises(FedbnError):
            site.answer(messages.put(order), RecordDict())
        newest = max((tmp_path / "experiments").glob("*.json"), key=lambda f: f.stat().st_mtime_ns)
        return newest.stem

    first = ask(1)
    approvals.decide(first, approve=True)
    asked_for = [ask(rounds) for rounds in range(2, 2 + _MOST_WAITING + 5)]
    waiting = {one.hash for one in approvals.all() if not one.approved}
    assert waiting == {*asked_for[-_MOST_WAITING:]}
    assert [one.hash for one in approvals.all() if one.approved] == [first]
