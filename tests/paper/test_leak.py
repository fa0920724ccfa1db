"""What updates tell: moments are exact where they travel; a gradient gives pictures away."""

from __future__ import annotations

from pathlib import Path

from fedbn.paper.leak import leak
from reproducing import numbers, request

TINY = ("training.rounds=1", "reproduce.options.iterations=25")


def test_moments_are_exact_under_fedavg_and_absent_under_fedbn(tmp_path: Path):
    outcome = leak(request("leak", tmp_path, *TINY))
    (table,) = outcome.tables
    found = numbers(table)
    avg, silo, bn, chance = (found[(name,)] for name in ("FedAvg", "SiloBN", "FedBN", "chance"))
    assert [avg[0], silo[0], bn[0]] == [5, 2, 0]  # BatchNorm entries that are sent
    assert max(avg[1:3]) < 1e-5  # mean and variance after one step
    assert silo[1:4] == bn[1:4] == [None] * 3
    assert avg[6] > 60  # whose a sample is, by moments; chance is 20
    assert bn[6] is None
    assert chance[4:7] == [20.0] * 3
    assert bn[7] > chance[7] + 0.3  # dB: local BatchNorm does not hide pictures from a gradient
    assert found[("FedBN − chance",)][7] == bn[7] - chance[7]
    assert [figure.name for figure in outcome.figures] == ["leak.svg", "leak.png"]
