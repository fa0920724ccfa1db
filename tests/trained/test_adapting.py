"""A site that never trained: its own statistics, others' affine, and what is said of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from use_sites import site

import fedbn
from fedbn.core.federation import Split
from fedbn.errors import ConfigError, DamagedRun, DataError, ModelError
from fedbn.runs.folder import sealed, unsealed
from fedbn.trained.adaptation import HOWS, Options, compare, divided
from fedbn.trained.local_parts import Bench
from fedbn.trained.trained_run import Trained
from tiny import plain_net

X, Y = site(8.0, 9, 80)


def norms(model: nn.Module) -> list[nn.BatchNorm1d]:
    return [module for module in model.modules() if isinstance(module, nn.BatchNorm1d)]


def test_average_is_the_mean_affine_and_the_site_s_own_statistics(trained: Trained):
    model = trained.adapt(X, site="new").model("new")
    others = [norms(trained.model(client)) for client in "abc"]
    first = norms(model)[0]
    for name in ("weight", "bias"):
        mean = torch.stack([getattr(layers[0], name) for layers in others]).mean(dim=0)
        torch.testing.assert_close(getattr(first, name), mean)
    given = next(m for m in model.modules() if isinstance(m, nn.Linear))(torch.from_numpy(X))
    torch.testing.assert_close(first.running_mean, given.mean(dim=0))
    torch.testing.assert_close(first.running_var, given.var(dim=0))


def test_reestimate_takes_the_nearest_client_s_affine_or_the_one_named(trained: Trained):
    near = trained.adapt(site(5.0, 9)[0], site="new", how="reestimate")
    assert near.adapted["new"].manifest()["like"] == "b"  # scales 1, 5 and 20
    for like, made in (
        ("b", near),
        ("a", trained.adapt(X, site="new", how="reestimate", like="a")),
    ):
        mine, theirs = norms(made.model("new")), norms(trained.model(like))
        for one, other in zip(mine, theirs, strict=True):
            assert torch.equal(one.weight, other.weight)
            assert not torch.equal(one.running_mean, other.running_mean)


def test_finetune_trains_the_affine_and_no_other_weight(trained: Trained):
    before = trained.adapt(X, site="new")
    after = trained.adapt(X, Y, site="new", how="finetune", epochs=5)
    old, new = before.model("new").state_dict(), after.model("new").state_dict()
    changed = {name for name in old if not torch.equal(old[name], new[name])}
    kinds = fedbn.kinds(before.model("new"))
    assert {str(kinds[name]) for name in changed} == {"bn_affine", "bn_statistic"}
    assert after.score(X, Y, "new") >= before.score(X, Y, "new")
    again = trained.adapt(X, Y, site="new", how="finetune", epochs=5).model("new").state_dict()
    assert all(torch.equal(new[name], again[name]) for name in new)


@pytest.mark.parametrize("how", HOWS)
def test_a_site_needs_no_other_site_s_data(trained: Trained, home: Path, how: str):
    (home / "data").unlink()
    made = trained.adapt(X, Y, site="new", how=how)
    assert made.clients == ("a", "b", "c", "new")
    assert made.score(X, Y, "new") > 0.7


@pytest.mark.parametrize("method", ["fedavg", "silobn"])
def test_where_the_affine_is_shared_both_ways_without_labels_are_one(home: Path, method: str):
    run = fedbn.open_run(home / method)
    average, like = (run.adapt(X, site="new", how=how) for how in ("average", "reestimate"))
    one, other = average.model("new").state_dict(), like.model("new").state_dict()
    assert all(torch.equal(one[name], other[name]) for name in one)
    shared = norms(run.model("a"))[0]
    assert torch.equal(norms(average.model("new"))[0].weight, shared.weight)
    assert not torch.equal(norms(average.model("new"))[0].running_mean, shared.running_mean)


def test_finetuning_leaves_the_shared_part_of_the_others_alone(home: Path):
    run = fedbn.open_run(home / "fedavg")
    made = run.adapt(X, Y, site="new", how="finetune", epochs=2)
    mine, theirs = norms(made.model("new"))[0], norms(made.model("a"))[0]
    assert not torch.equal(mine.weight, theirs.weight)
    assert torch.equal(theirs.weight, norms(run.model("a"))[0].weight)


def test_of_fedavg_the_distance_is_to_the_shared_statistics(home: Path):
    manifest = fedbn.open_run(home / "fedavg").adapt(X, site="new").adapted["new"].manifest()
    assert list(manifest["distances"]) == ["the shared statistics"]


def test_networks_trained_apart_are_not_averaged(home: Path):
    run = fedbn.open_run(home / "singleset")
    with pytest.raises(ConfigError, match="shares nothing"):
        run.adapt(X, site="new")
    near = run.adapt(X, site="new", how="reestimate").adapted["new"].manifest()["like"]
    mine = run.adapt(X, site="new", how="reestimate", like=near).model("new")
    assert torch.equal(next(mine.parameters()), next(run.model(near).parameters()))


def test_a_mean_of_whole_numbers_is_the_largest(trained: Trained):
    packs = {name: pack.clone() for name, pack in trained.state.local.items()}
    for number, pack in enumerate(packs.values()):
        pack.state["1.num_batches_tracked"].fill_(number)
    bench = Bench(replace(trained, state=replace(trained.state, local=packs)))
    bench.average()
    assert int(bench.own()["1.num_batches_tracked"]) == 2


def test_the_distances_are_those_by_hand():
    from fedbn.trained.local_parts import distances

    def at(mean: float, var: float) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [(torch.tensor([mean]), torch.tensor([var]))]

    # (0 − 3)² / 1 = 9; (√1 − √4)² / 2.5 = 0.4
    found = distances(at(0, 1), {"far": at(3, 1), "near": at(0, 4)})
    assert list(found.to) == ["near", "far"]
    assert found.to["far"] == pytest.approx(3, rel=1e-4)
    assert found.to["near"] == pytest.approx(0.4**0.5, rel=1e-4)
    assert not found.far
    assert distances(at(99, 1), {"a": at(0, 1), "b": at(0, 1.1)}).far


def test_a_far_site_and_few_samples_are_warned_about(trained: Trained):
    near = trained.adapt(X, site="new").adapted["new"].manifest()
    assert near["warnings"] == []
    far = trained.adapt(1e4 + X[:9], site="new").adapted["new"].manifest()
    assert "9 samples are few" in far["warnings"][0]
    assert "far from every known one" in far["warnings"][1]


def test_a_stored_site_is_a_client_like_the_others(trained: Trained, home: Path):
    made = trained.adapt(X, site="new", store=True)
    opened = fedbn.open_run(home / "fedbn")
    assert opened.clients == ("a", "b", "c", "new")
    assert np.array_equal(opened.predict_proba(X, "new"), made.predict_proba(X, "new"))
    manifest = opened.adapted["new"].manifest()
    assert (manifest["how"], manifest["samples"], manifest["round"]) == ("average", 80, 4)
    again = opened.adapt(X[:40], site="new", store=True)
    files = sorted(path.name for path in (home / "fedbn").glob("adapted/*/*/*/new/*"))
    assert len(files) == 2
    assert again.adapted["new"].manifest()["samples"] == 40


def test_a_damaged_site_is_named_and_the_others_still_work(trained: Trained, home: Path):
    trained.adapt(X, site="new", store=True)
    (file,) = (home / "fedbn").glob("adapted/*/*/*/new/*.safetensors")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(bytes(content))
    opened = fedbn.open_run(home / "fedbn")
    assert opened.predict(X, "a").shape == (80,)
    with pytest.raises(DamagedRun, match="its sha256 is not the manifest's"):
        opened.predict(X, "new")
    file.unlink()
    with pytest.raises(DamagedRun, match="missing or unreadable"):
        opened.predict(X, "new")
    manifest = file.parent / "manifest.json"
    content = unsealed(manifest, 3)
    manifest.write_bytes(sealed({**content, "format": 4}))
    with pytest.raises(DamagedRun, match="format 4 is from a newer fedbn"):
        opened.predict(X, "new")
    manifest.write_text(json.dumps({**content, "samples": 7}))
    with pytest.raises(DamagedRun, match="its sha256 is not its own"):
        opened.predict(X, "new")
    manifest.write_text("{")
    with pytest.raises(DamagedRun, match=r"manifest\.json: missing or damaged"):
        opened.predict(X, "new")


def test_a_site_adapted_to_an_earlier_round_is_refused(trained: Trained, home: Path):
    trained.adapt(X, site="new", store=True)
    last = max((home / "fedbn" / "checkpoints").glob("*/*/*/round-*"))
    (last / "manifest.json").unlink()
    with pytest.raises(DamagedRun, match="adapted to round 4, but round 3 of the run is used now"):
        fedbn.open_run(home / "fedbn").model("new")


@pytest.mark.parametrize("name", ["a", "x/y", "x\\y", "x\ny", "", "..", ".x", "all", "<b>", "x "])
def test_names_that_cannot_be_a_site_s_are_refused(trained: Trained, name: str):
    with pytest.raises(ConfigError, match="the new site"):
        trained.adapt(X, site=name, store=True)
    assert trained.folder is not None
    assert not (trained.folder / "adapted").exists()


def test_what_cannot_be_adapted_says_why(trained: Trained):
    with pytest.raises(DataError, match="needs labelled data"):
        trained.adapt(X, site="new", how="finetune")
    with pytest.raises(ConfigError, match="unknown client 'bb': did you mean 'b'"):
        trained.adapt(X, site="new", how="reestimate", like="bb")
    with pytest.raises(ConfigError, match="unknown way to adapt 'averag': did you mean"):
        trained.adapt(X, site="new", how="averag")
    with pytest.raises(DataError, match="at least 2"):
        trained.adapt(X[:1], site="new")
    plain = fedbn.fit({"a": (X, Y), "b": (X, Y)}, plain_net, "fedavg", rounds=1)
    with pytest.raises(ModelError, match="no BatchNorm statistics"):
        plain.adapt(X, site="new")
    with pytest.raises(ConfigError, match="no folder to store a site in"):
        plain.adapt(X, site="new", store=True)


def test_ways_are_compared_on_whole_groups_and_resampled_by_them(trained: Trained):
    """Five windows a person: nobody is on both sides, and the interval is that of persons."""
    x, y = (torch.from_numpy(part) for part in site(2.0, seed=5, n=60))
    people = torch.arange(12).repeat_interleave(5)
    data = Split(x, y[people * 5], groups=people)
    adapting, scoring = divided(data, None, "new")
    assert not {*adapting.groups.tolist()} & {*scoring.groups.tolist()}
    by_person, alone = (
        next(compare(trained, "new", adapting, part, Options(), None)).score
        for part in (scoring, replace(scoring, groups=None))
    )
    assert by_person[0] == alone[0]
    assert by_person[1:] != alone[1:]
