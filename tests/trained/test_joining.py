"""A new site joins a run, and all ways to adapt it are compared."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from use_sites import site, write

import fedbn
from fedbn.core.federation import Split
from fedbn.data.new_samples import read_samples
from fedbn.errors import ConfigError, DataError
from fedbn.experiments.configuration import checked
from fedbn.experiments.planner import Planner
from fedbn.experiments.runner import prepare, start
from fedbn.trained.adaptation import Options, best, compare, divided
from fedbn.trained.joining import client_of, joining_state, labelled, prepare_join
from fedbn.trained.trained_run import Trained
from tiny import same


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return write(tmp_path / "more", {"new": 8.0}) / "new.npz"


def finished(run: Path, limit: int | None = None) -> Trained:
    """Do what `fedbn resume` does; stop after so many rounds."""
    from fedbn.errors import Interrupted
    from fedbn.runs.folder import RunFolder

    folder, rounds = RunFolder(run), [0]

    def stop() -> bool:
        rounds[0] += 1
        return rounds[0] == limit

    experiment, planner = checked(folder.read_request()), Planner()
    todo = prepare(experiment, planner)
    try:
        start(experiment, todo, planner, folder, lambda event: None, workers=1, stop=stop)
    except Interrupted:
        return finished(run)
    return fedbn.open_run(run)


def test_a_joining_run_begins_with_the_old_one_s_state_and_numbers(
    trained: Trained, new: Path, tmp_path: Path
):
    folder = prepare_join(trained, "new", new, tmp_path / "joined", rounds=2)
    assert folder.request.is_file()
    run = finished(folder.path)
    assert run.clients == ("a", "b", "c", "new")
    assert run.state.round == 6
    assert [r for r in run.records if r.round <= 4] == [
        r for r in trained.records if r.statistics == "running"
    ]  # the evaluation of the old last round is gone
    later = {(r.round, r.client) for r in run.records if r.round > 4}
    assert later == {(n, c) for n in (5, 6) for c in ("a", "b", "c", "new")}
    assert run.accuracy().keys() == {"a", "b", "c", "new"}
    sizes = [(len(c.train), len(c.tests[c.domain])) for c in run.federation.clients]
    assert sizes == [(40, 20)] * 4


def test_the_new_client_begins_with_average_and_the_others_with_their_own(
    trained: Trained, new: Path
):
    client = client_of(trained, "new", new)
    state = joining_state(trained, client)
    assert same(state.shared, trained.state.shared)
    assert all(same(state.local[c], trained.state.local[c]) for c in "abc")
    averaged = trained.adapt(client.train.x, site="new").model("new").state_dict()
    assert all(torch.equal(v, averaged[k]) for k, v in state.local["new"].state.items())
    assert [*state.untrained] == ["new"]  # scored with its own statistics until it has trained


def test_a_joining_run_that_was_stopped_ends_like_one_that_was_not(
    trained: Trained, new: Path, tmp_path: Path
):
    runs = []
    for name, limit in (("whole", None), ("stopped", 1)):
        prepare_join(trained, "new", new, tmp_path / name, rounds=3)
        runs.append(finished(tmp_path / name, limit))
    assert same(runs[0].state.shared, runs[1].state.shared)
    assert runs[0].records == runs[1].records


def test_a_refused_join_leaves_nothing_behind(trained: Trained, new: Path, tmp_path: Path):
    before = sorted(tmp_path.iterdir())
    np.savez(tmp_path / "bare.npz", x=site(1.0, 0)[0])
    (tmp_path / "there").mkdir()
    cases = [
        (("a", new, tmp_path / "out"), ConfigError, "training client"),
        (("new", tmp_path / "bare.npz", tmp_path / "out"), DataError, "no labels"),
        (("new", new, tmp_path / "there"), ConfigError, "there already"),
    ]
    for arguments, error, text in cases:
        with pytest.raises(error, match=text):
            prepare_join(trained, *arguments, rounds=1)
    for left in (tmp_path / "bare.npz", tmp_path / "there"):
        left.unlink() if left.is_file() else left.rmdir()
    assert sorted(tmp_path.iterdir()) == before


def test_networks_trained_apart_cannot_be_joined(home: Path, new: Path, tmp_path: Path):
    alone = fedbn.open_run(home / "singleset")
    with pytest.raises(ConfigError, match="shares nothing, so there is nothing to join"):
        prepare_join(alone, "new", new, tmp_path / "out", rounds=1)


def test_a_run_on_python_objects_cannot_be_joined_from_a_folder(tmp_path: Path, new: Path):
    run = fedbn.fit({"a": site(1.0, 0)}, "mlp", rounds=1, out=tmp_path / "run")
    with pytest.raises(ConfigError, match="given in Python"):
        prepare_join(run, "new", new, tmp_path / "out", rounds=1)


def split(n: int = 40) -> Split:
    x, y = site(8.0, 9, n)
    return Split(torch.from_numpy(x), torch.from_numpy(y))


def test_all_ways_are_scored_on_samples_that_none_saw(trained: Trained):
    adapting, scoring = divided(split(), None, "new")
    assert len(adapting) == len(scoring) == 20
    assert not set(map(tuple, adapting.x.tolist())) & set(map(tuple, scoring.x.tolist()))
    found = list(compare(trained, "new", adapting, scoring, Options(), rounds=1))
    assert [one.how for one in found][:4] == ["average", "reestimate", "finetune", "join"]
    assert found[4].how.endswith("'s model as it is")
    for one in found[:3]:
        made = trained.adapt(adapting.x, adapting.y, site="new", how=one.how)
        assert one.score is not None
        assert one.score[0] == made.score(scoring.x, scoring.y, "new")
    top = max(one.score[0] for one in found[:4])
    assert next(one for one in found if one.how == best(found)).score[0] == top


def test_join_is_scored_only_when_asked_and_when_the_data_is_there(home: Path, trained: Trained):
    left_out = list(compare(trained, "new", *divided(split(), None, "new"), Options(), None))
    assert (left_out[3].score, "--rounds N" in left_out[3].reason) == (None, True)
    alone = fedbn.open_run(home / "singleset")
    found = list(compare(alone, "new", *divided(split(), None, "new"), Options(), 1))
    assert "shares nothing" in found[0].reason
    assert found[1].score is not None
    assert "nothing to join" in found[3].reason


def test_too_few_samples_to_hold_a_half_out_are_refused():
    with pytest.raises(DataError, match="too few"):
        divided(split(2), None, "new")


@pytest.fixture
def patients(tmp_path: Path) -> Trained:
    """A run on a table with four rows a patient; patient.csv is a new site, bare.csv lacks them."""
    draws = np.random.default_rng(0)

    def rows(name: str) -> str:
        numbers = enumerate(draws.normal(size=24))
        return "".join(f"{x:.3f},{name}{n // 4},{n // 2 % 2},{name}\n" for n, x in numbers)

    head = "x,patient,ill,site\n"
    (tmp_path / "all.csv").write_text(head + rows("a") + rows("b"))
    (tmp_path / "patient.csv").write_text(head + rows("c"))
    (tmp_path / "bare.csv").write_text("x,ill\n" + "0.5,0\n0.7,1\n" * 8)
    (tmp_path / "two.csv").write_text(head + "".join(rows("d").splitlines(True)[:8]))
    columns = {"data__label": "ill", "data__site": "site", "data__group": "patient"}
    return fedbn.fit(tmp_path / "all.csv", "mlp", rounds=1, out=tmp_path / "run", **columns)


def apart(one: Split, other: Split) -> bool:
    """Whether both know groups, and share none."""
    assert one.groups is not None
    assert other.groups is not None
    return not set(one.groups.tolist()) & set(other.groups.tolist())


def test_a_patient_of_a_new_site_is_on_one_side(patients: Trained, tmp_path: Path):
    client = client_of(patients, "c", tmp_path / "patient.csv")
    assert apart(client.train, client.tests["c"])
    assert (len(client.train), len(client.tests["c"])) == (20, 4)
    whole = labelled(
        patients,
        read_samples(tmp_path / "patient.csv", patients.preparation),
        tmp_path / "patient.csv",
    )
    assert apart(*divided(whole, None, "c"))


def test_a_new_site_that_does_not_say_whose_its_rows_are_is_refused(
    patients: Trained, tmp_path: Path
):
    bare = tmp_path / "bare.csv"
    with pytest.raises(DataError, match=r"bare.csv: not every row or file name has 'patient'"):
        client_of(patients, "c", bare)
    with pytest.raises(DataError, match=r"bare.csv: not every row or file name has 'patient'"):
        client_of(patients, "c", tmp_path / "patient.csv", test=bare)
    with pytest.raises(DataError, match="d: 8 samples of 2 groups: too few to hold 20% out"):
        client_of(patients, "d", tmp_path / "two.csv")


def test_a_joining_run_names_no_module(trained: Trained, new: Path, tmp_path: Path):
    folder = prepare_join(trained, "new", new, tmp_path / "joined", rounds=1)
    assert folder.read_request()["data"]["name"] == "joined"
