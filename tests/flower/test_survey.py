"""Before round 1: sites show the hashes of model and classes, and what differs is refused."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch

pytest.importorskip("flwr", reason="flwr is not installed")

from flower_bench import RAW, SITES, Bench, FakeGrid, few, in_one_process
from safetensors.torch import load, save_file
from torch import Tensor, nn
from typer.testing import CliRunner

from fedbn import registry
from fedbn.cli.main import app
from fedbn.core.state import entries, schema_hash
from fedbn.errors import ConfigError, TooFewClients
from fedbn.experiments.configuration import checked
from fedbn.flower import messages, preflight, server_app
from fedbn.flower.membership import Expected
from fedbn.flower.messages import KEY, digest
from fedbn.runs import metrics

KEYS = {name.encode(): name for name in SITES}


def asked(grid: FakeGrid, raw=RAW) -> list[tuple[bool, str]]:
    questions = server_app.orders(checked(raw), "fed")
    return list(server_app.ask_sites(grid, questions, Expected(SITES, KEYS, 2)))


def test_every_site_shows_the_hashes_of_its_model_and_classes(bench: Bench) -> None:
    plan, _, _ = in_one_process({**RAW, "training": {"rounds": 1, "local_steps": 1}})
    model = schema_hash(entries(plan.initial_model))[:16]
    found = asked(bench.grid())
    assert [fine for fine, _ in found] == [True, True]
    for site, (_, text) in zip(SITES, found, strict=True):
        assert text.startswith(f"{site}: model {model}, 10 classes {digest(few().classes)}")


def test_a_site_with_another_class_list_shows_both_hashes(bench: Bench) -> None:
    grid = bench.grid()
    other = (*few().classes[1::-1], *few().classes[2:])
    site = grid.sites["photo"]
    site.__dict__["_federation"] = replace(site._federation, classes=other)
    fine, text = asked(grid)[1]
    assert not fine
    assert f"{digest(other)} there, {digest(few().classes)} at plain" in text
    with pytest.raises(TooFewClients, match="another class list"):
        bench.run(grid)
    assert not [event for event in bench.events if event.kind == "round"]


def test_a_site_that_is_away_is_told(bench: Bench) -> None:
    grid = bench.grid()
    grid.away = {"photo"}
    assert asked(grid)[1] == (False, "photo: not connected")


def test_a_sweep_over_models_asks_for_each_of_them(bench: Bench) -> None:
    raw = {**RAW, "sweep": {"model": {"name": ["small_cnn", "digit_cnn"]}}}
    found = asked(bench.grid(), raw)
    assert len({text.split(",")[0] for _, text in found}) == 4
    assert all(fine for fine, _ in found)


class Casting(nn.Sequential):
    """Computes in the precision of its weights."""

    def __init__(self, pixels: int, classes: int):
        super().__init__(nn.Linear(pixels, 4), nn.BatchNorm1d(4), nn.Linear(4, classes))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flatten(1).to(self[0].weight.dtype)).float()


def own_models(grid: FakeGrid, monkeypatch: pytest.MonkeyPatch, change) -> dict:
    """Let the site `photo` build the model that all name as `change` makes it."""
    registry.trust(("sites_own_model", __name__))

    def net(classes: int, input_shape: tuple[int, ...]) -> nn.Module:
        torch.manual_seed(0)
        made = Casting(math.prod(input_shape), classes)
        return change(made) if current == ["photo"] else made

    current: list[str] = []
    for name, site in grid.sites.items():
        answer = site.answer

        def at_home(content, state, name=name, answer=answer):
            current[:] = [name]
            try:
                return answer(content, state)
            finally:
                current.clear()

        site.answer = at_home
    module = ModuleType("sites_own_model")
    module.net = net
    monkeypatch.setitem(sys.modules, "sites_own_model", module)
    return {**RAW, "model": {"name": "sites_own_model:net"}}


@pytest.mark.shows("F56")
def test_a_model_in_half_precision_at_one_site_is_refused_before_round_1(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = bench.grid()
    raw = own_models(grid, monkeypatch, nn.Module.half)
    with pytest.raises(TooFewClients, match=r"another model: [0-9a-f]{16} there, .* at plain"):
        bench.run(grid, raw)
    assert not [event for event in bench.events if event.kind == "round"]


class Autocast(Casting):
    """Computes in bfloat16; its weights and what it gives are as everywhere."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(x)


@pytest.mark.shows("F56")
def test_autocast_at_one_site_changes_its_own_update_and_nothing_else(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mixed precision keeps weights in float32: the update fits, and is averaged as any other."""

    def autocast(model: nn.Module) -> nn.Module:
        model.__class__ = Autocast
        return model

    updates, means = [], []
    for name, change in (("same", lambda model: model), ("mixed", autocast)):
        grid = bench.grid()
        folder = bench.run(grid, own_models(grid, monkeypatch, change), name)
        sent = [(s, m, a) for s, m, a in grid.log if messages.SHARED in a.content]
        updates.append({s: load(a.content[messages.SHARED][KEY].data) for s, _, a in sent[:2]})
        means.append(load(sent[2][1].content[messages.SHARED][KEY].data))
        assert not [r for r in metrics.read(folder.metrics) if r["metric"] == "refused"]
    same, mixed = updates
    assert all(torch.equal(value, mixed["plain"][name]) for name, value in same["plain"].items())
    assert any(not torch.equal(v, mixed["photo"][name]) for name, v in same["photo"].items())
    for name, value in mixed["photo"].items():
        assert value.dtype == torch.float32
        mean = (mixed["plain"][name].double() + value.double()) / 2  # both have 64 samples
        torch.testing.assert_close(means[1][name].double(), mean, rtol=1e-6, atol=1e-9)


@pytest.mark.shows("F56")
def test_mixed_precision_for_all_gives_the_bits_of_one_process(bench: Bench) -> None:
    raw = {**RAW, "training": {**RAW["training"], "amp": "bfloat16"}}
    found = metrics.read(bench.run(bench.grid(), raw).metrics)
    _, _, records = in_one_process(raw)
    key = ("round", "client", "split", "metric", "value")
    assert {tuple(r[k] for k in key) for r in found} == {
        tuple(vars(r)[k] for k in key) for r in records
    }


@pytest.mark.shows("F55")
def test_a_gpu_here_and_none_there_is_each_sites_own_choice(bench: Bench) -> None:
    raw = {**RAW, "training": {**RAW["training"], "device": "cuda:7"}}
    with pytest.raises(TooFewClients, match=r"training\.device = 'cuda:7': 0 CUDA"):
        bench.run(bench.grid(), raw, "refused")
    grid = FakeGrid([bench.site(name, device="cpu") for name in SITES])
    found = metrics.read(bench.run(grid, raw).metrics)
    wanted = metrics.read(bench.run(bench.grid(), name="cpu").metrics)
    assert [record["value"] for record in found] == [record["value"] for record in wanted]


def weights_of(path: Path, factor: float) -> Path:
    plan, _, _ = in_one_process({**RAW, "training": {"rounds": 1, "local_steps": 1}})
    state = plan.initial_model.state_dict()
    changed = {n: v * factor if v.is_floating_point() else v for n, v in state.items()}
    save_file(changed, path)
    return path


def test_a_site_starts_from_the_servers_weights_or_not_at_all(bench: Bench, tmp_path) -> None:
    right, wrong = (weights_of(tmp_path / f"{f}.safetensors", f) for f in (0.5, 0.25))
    raw = {**RAW, "model": {"name": "small_cnn", "weights": str(right)}}

    def grid(**options) -> FakeGrid:
        return FakeGrid([bench.site("plain", weights=right), bench.site("photo", **options)])

    with pytest.raises(TooFewClients, match="the file given with --weights differs from the serv"):
        bench.run(grid(weights=wrong), raw, "wrong")
    with pytest.raises(TooFewClients, match="bring the server's file to this site and join with"):
        bench.run(grid(weights=tmp_path / "none"), raw, "none")
    copy = tmp_path / "elsewhere.safetensors"
    copy.write_bytes(right.read_bytes())
    folder = bench.run(grid(weights=copy), raw)
    _, _, records = in_one_process(raw)
    key = ("round", "client", "split", "metric", "value")
    found = {tuple(record[k] for k in key) for record in metrics.read(folder.metrics)}
    assert found == {tuple(vars(record)[k] for k in key) for record in records}


def test_weights_that_changed_since_the_run_began_are_refused(bench: Bench, tmp_path) -> None:
    file = weights_of(tmp_path / "w.safetensors", 0.5)
    raw = {**RAW, "model": {"name": "small_cnn", "weights": str(file)}}
    grid = FakeGrid([bench.site(name, weights=file) for name in SITES])
    with pytest.raises(Exception, match="stopped after round 1"):
        bench.run(grid, raw, stop_after=1)
    weights_of(file, 0.25)
    with pytest.raises(ConfigError, match=r"model\.weights changed since the run began"):
        bench.run(grid, raw)


def test_a_site_examines_itself_without_a_server(tmp_path) -> None:
    folder = server_app.make(tmp_path / "fed")
    toml = tmp_path / "mine.toml"
    toml.write_text('methods = ["fedbn"]\n[model]\nname = "small_cnn"\n')
    bundle = str(folder.bundle("plain"))
    arguments = ["federation", "check", bundle, "--data", "digits_mini", "--experiment", str(toml)]
    text = CliRunner().invoke(app, arguments).output
    assert "WRONG  no server at" in text
    assert "10 classes, hash " in text
    assert "ok     plain: model " in text
    wrong = CliRunner().invoke(app, [*arguments[:-1], str(tmp_path / "none.toml")])
    assert isinstance(wrong.exception, ConfigError)
    alone = CliRunner().invoke(app, ["federation", "check", bundle, "--experiment", str(toml)])
    assert "--experiment needs --data" in str(alone.exception)


@pytest.mark.shows("F51")
@pytest.mark.parametrize(("ahead", "fine"), [(0, True), (4, True), (6, False), (-299, True)])
def test_clocks_must_agree_as_far_as_flower_asks(ahead: float, fine: bool) -> None:
    if fine:
        assert preflight._checked(ahead) == ahead
    else:
        with pytest.raises(ConfigError, match="the clock here is 6 s ahead of the server's"):
            preflight._checked(ahead)
    with pytest.raises(ConfigError, match="the clock here is 3,600 s behind the server's"):
        preflight._checked(-3600)
