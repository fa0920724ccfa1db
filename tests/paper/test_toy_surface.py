"""The toy example as an item: the claim's numbers, in both readings."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedbn.errors import ConfigError
from fedbn.paper import toy
from fedbn.paper.items import Outcome
from reproducing import numbers, request

CHEAP = ("reproduce.options.grid=8", "reproduce.options.samples=400")


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return toy.toy_surface(request("toy-surface", tmp_path_factory.mktemp("toy"), *CHEAP))


def test_the_claim_holds_in_one_reading_and_is_reversed_in_the_other(outcome: Outcome):
    found = numbers(outcome.tables[0])
    error = {key: row[2] for key, row in found.items()}
    for client in ("client 1", "client 2"):
        latent, observed = (
            [error[reading, client, f"averaged w, {end}"] for end in ("averaged γ", "local γ*")]
            for reading in ("latent", "observed")
        )
        assert latent[0] > 0.5 > 0.1 > latent[1]
        assert observed[0] < 0.1 < 0.5 < observed[1]
    assert "claim holds" in outcome.remarks[0]
    assert "claim is reversed" in outcome.remarks[1]


def test_averaging_w_and_gamma_keeps_w_true_where_both_grow_together(outcome: Outcome):
    """To the letter w* = 5 γ*, so Σw* / Σγ* = 5 as well: averaging both loses nothing."""
    found = numbers(outcome.tables[0])
    w, gamma, _, expected = found["observed", "client 2", "averaged w, averaged γ"]
    assert w / gamma == pytest.approx(5.0, abs=0.01)
    assert expected == pytest.approx(0.1**2, abs=1e-3)  # the noise alone


def test_every_figure_is_written_twice(outcome: Outcome):
    stems = ("toy-curves", "toy-surface-latent", "toy-surface-observed")
    assert [f.name for f in outcome.figures] == [f"{s}.{e}" for s in stems for e in ("svg", "png")]
    assert all(figure.stat().st_size > 1000 for figure in outcome.figures)
    # w₂* = 12.5 lies beyond the paper's axis: it is named, not drawn outside the picture.
    assert "outside, w = 1" in outcome.figures[4].read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("gird=3", "reproduce.options.gird.*did you mean"),
        ("grid=1", "grid = 1: legal are whole numbers 2 to 5000"),
        ("scales=[1.0]", "scales = \\[1.0\\]: the figures need 2"),
        ("scales=['a', 'b']", "scales = .*: the figures need 2 numbers"),
        ("scales=[1.0, -2.0]", "scales = \\[1.0, -2.0\\]: legal are numbers above 0"),
        ("samples='many'", "samples = 'many'"),
    ],
)
def test_a_wrong_option_is_named(setting: str, text: str, tmp_path: Path):
    with pytest.raises(ConfigError, match=text):
        toy.toy_surface(request("toy-surface", tmp_path, f"reproduce.options.{setting}"))
