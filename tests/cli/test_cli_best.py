"""`evaluation.report = "best"`: the round that is reported is kept, and is what everything uses."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedbn
from commanding import Answer, arrays, bits, call, newest
from fedbn.core.best_round import best_round
from fedbn.errors import DamagedRun

SETTINGS = ("evaluation.report=best", "evaluation.validation=0.25", "training.batch_size=full")
SETTINGS += ("checkpoint.every=1",)


class Once(nn.Module):
    """Right after one batch of training, and wrong before and after: the classes are swapped."""

    def __init__(self, at: int):
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        self.out = nn.Linear(6, 2)
        self.at = at

    def forward(self, x: Tensor) -> Tensor:
        right = self.norm.num_batches_tracked == self.at
        sign = torch.where(right, 10.0, -10.0)
        truth = x[:, :1] * torch.tensor([-1.0, 1.0])
        return self.out(self.norm(x)) + sign * truth


@pytest.fixture(scope="module", autouse=True)
def once() -> Iterator[None]:
    """Take the place of a registered model: round 2 is the best, whatever is trained."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedbn.models.networks.mlp", lambda classes, input_shape: Once(2))
        yield


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, sites: Path) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("best") / "run"
    asked = [word for setting in SETTINGS for word in ("--set", setting)]
    answer = call(
        *("run", "--data", sites, "--model", "mlp", "--rounds", 5, "--seed", 0, "--workers", 1),
        *("--method", "fedbn", "--out", folder, "--json", *asked),
    )
    assert answer.code == 0, answer.err
    return folder, answer.out


@pytest.fixture
def best(trained: tuple[Path, str], tmp_path: Path) -> Path:
    """A finished run of five rounds, the second of which is its best."""
    return Path(shutil.copytree(trained[0], tmp_path / "best"))


def kept(run: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("round-")) for path in newest(run).parent.glob("r*-*"))


def test_what_is_printed_is_what_every_command_delivers(
    best: Path, trained: tuple[Path, str], sites: Path
) -> None:
    assert kept(best) == [2, 4, 5]
    rows = {row["statistics"]: row["accuracy"] for row in json.loads(trained[1])["rows"]}
    assert [*rows] == ["running", "batch"]
    printed = {client: rows["running"][client]["mean"] for client in "ab"}
    assert min(printed.values()) > 50  # the last round's are below
    opened = fedbn.open_run(best)
    assert {c: 100 * v for c, v in opened.accuracy().items()} == printed
    batch = {client: rows["batch"][client]["mean"] for client in "ab"}
    assert {c: 100 * v for c, v in opened.scores(statistics="batch").items()} == batch
    assert opened.scored_round(statistics="batch") == 2  # the weights of the reported round
    matrix = json.loads(call("evaluate", best, "--resamples", 2, "--json").out)
    for client in "ab":
        assert 100 * matrix["values"]["accuracy"][client][client][0] == printed[client]
        answer = call("predict", best, "--client", client, "--data", sites / f"{client}.npz")
        assert f"accuracy {printed[client]:.1f} %" in answer.out
        assert "round 2 is used, the best of 5 on validation data" in answer.err
    exported = json.loads(call("export", best, "--client", "a", "--json").out)
    card = Path(exported["card"]).read_text()
    assert "after round 2." in card
    assert f"{printed['a']:.1f} %" in card


def damaged(run: Path, *rounds: int) -> None:
    for number in rounds:
        (newest(run).with_name(f"round-{number:06d}") / "state.safetensors").write_bytes(b"")


@pytest.mark.parametrize("lost", [(5,), (4, 5)])
def test_resumed_after_any_damage_the_best_round_is_there(
    lost: tuple[int, ...], best: Path
) -> None:
    """Where both last rounds are lost, the best one, older than both, is where it goes on."""
    whole = bits(best)
    damaged(best, *lost)
    answer = call("resume", best)
    assert answer.code == 0, answer.err
    assert bits(best) == whole


def test_what_a_kill_left_is_removed_and_the_best_round_is_not(best: Path) -> None:
    whole = bits(best)
    for number in (1, 3):  # killed before older ones were removed
        shutil.copytree(newest(best), newest(best).with_name(f"round-{number:06d}"))
    assert call("resume", best).code == 0
    assert bits(best) == whole


def test_a_lost_best_round_is_not_replaced_by_another(best: Path) -> None:
    damaged(best, 2)
    answer = call("evaluate", best)
    assert answer.code == 6
    assert "round-000002" in answer.line
    assert "it is the best round, which the run reports" in answer.line
    with pytest.raises(DamagedRun):
        fedbn.open_run(best)


def grown(tmp_path: Path, sites: Path, *settings: str) -> tuple[Path, Path, Answer]:
    """A run of three rounds that is asked to grow to six, and a straight one of six."""
    words = [word for one in (*SETTINGS, *settings) for word in ("--set", one)]
    short, straight = tmp_path / "short", tmp_path / "straight"
    for rounds, out in ((3, short), (6, straight)):
        asked = ("--model", "mlp", "--rounds", rounds, "--seed", 0, "--method", "fedbn", *words)
        assert call("run", "--data", sites, *asked, "--workers", 1, "--out", out).code == 0
    return short, straight, call("resume", short, "--rounds", 6, "--workers", 1)


@pytest.mark.parametrize(
    ("right", "settings"),
    [
        (3, ()),  # the second round, which is the best without the third, is on disk
        (2, ("checkpoint.every=auto",)),
        (3, ("checkpoint.every=auto", "evaluation.every=4")),  # no other was scored
        (2, ("training.patience=1",)),  # ends after the third; scored every two, after the fourth
    ],
)
def test_a_grown_run_has_the_best_round_of_a_straight_one(
    right: int, settings: tuple[str, ...], sites: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr("fedbn.models.networks.mlp", lambda classes, input_shape: Once(right))
    short, straight, answer = grown(tmp_path, sites, "evaluation.every=2", *settings)
    assert answer.code == 0, answer.err
    assert bits(short).keys() >= bits(straight).keys()
    assert bits(short).items() >= bits(straight).items()
    assert fedbn.open_run(short).state.round == fedbn.open_run(straight).state.round


@pytest.mark.shows("G04")
def test_a_run_that_would_lose_its_best_round_does_not_grow(
    sites: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    """The third round was the best, so the second was not kept; a run of six never scores it."""
    monkeypatch.setattr("fedbn.models.networks.mlp", lambda classes, input_shape: Once(3))
    asked = ("evaluation.every=2", "checkpoint.every=auto")
    short, _, answer = grown(tmp_path, sites, *asked)
    assert (answer.code, kept(short)) == (3, [3])
    said = "--rounds: round 2, the best of fedbn seed 0 that it would score, was not kept: this run"
    assert said in answer.line
    assert fedbn.open_run(short).state.round == 3


@pytest.mark.parametrize("out", [None, "run"])
def test_fit_gives_the_best_round(out: str | None, tmp_path: Path) -> None:
    sites: dict[str, Any] = {}
    for i, name in enumerate("ab"):
        a = arrays(i, scale=10.0**i)
        sites[name] = ((a["train_x"], a["train_y"]), (a["test_x"], a["test_y"]))
    result = fedbn.fit(
        *(sites, "mlp", "fedbn"),
        rounds=5,
        out=tmp_path / out if out else None,
        evaluation__report="best",
        evaluation__validation=0.25,
        training__batch_size="full",
    )
    assert result.state.round == 2
    for name, (_, (x, y)) in sites.items():
        assert result.accuracy()[name] == result.score(x, y, name) > 0.5


def test_a_round_that_scored_fewer_clients_is_not_the_best() -> None:
    assert best_round({}) == 0
    assert best_round({1: [0.2, 0.4], 2: [0.9], 3: [0.1, 0.5]}) == 1
    assert best_round({1: [0.9], 2: [0.2, 0.4]}) == 2
