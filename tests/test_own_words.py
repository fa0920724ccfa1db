"""What a researcher's own code may do: a task, a rule, a loss, frames, Datasets, two optimisers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

import fedbn
from fedbn.core.aggregation import ClientUpdate, CollectingAggregator, mean_of
from fedbn.core.federation import Client, Federation, Split
from fedbn.core.packing import Pack
from fedbn.core.task import CLASSIFICATION
from fedbn.data.dataset_samples import known_targets
from fedbn.errors import ConfigError, DataError
from fedbn.tasks.metrics import METRICS
from fedbn.tasks.standard import binary_cross_entropy, multilabel
from tiny import federation


def sites(columns: str = "pqr", kind: type = float) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    draws = np.random.default_rng(0)
    made = {name: draws.normal(size=(40, len(columns))) * [1, 5, 9] for name in "ab"}
    return {name: (x.astype(kind), (x[:, 0] > 0).astype(int)) for name, x in made.items()}


def total(result: fedbn.Trained) -> float:
    return float(sum(v.double().abs().sum() for v in result.state.shared.state.values()))


def test_a_task_of_one_s_own_measures_what_the_registered_one_does() -> None:
    draws = torch.Generator().manual_seed(0)
    x = torch.randn(60, 3, generator=draws)
    split = Split(x, x > 0)
    data = Federation("d", (Client("a", "a", split, {"a": split}),), ("p", "q", "r"))
    theirs = multilabel()
    own = fedbn.Task("mine", fedbn.Targets.LABELS, binary_cross_entropy, theirs.metrics)
    (mine, registered) = (fedbn.fit(data, "mlp", "fedbn", rounds=2, task=t) for t in (own, theirs))
    assert mine.scores(metric="macro_f1") == registered.scores(metric="macro_f1")
    assert (mine.predict(x, client="a") == registered.predict(x, client="a")).all()
    classes = fedbn.Task("mine", fedbn.Targets.CLASS, CLASSIFICATION.loss, (METRICS["auroc"],))
    assert classes.keep(torch.zeros(1, 2)).tolist() == [[0.5, 0.5]]


class Coarse:
    """Four classes in order, of which a transform makes two."""

    targets = [0, 0, 1, 1, 2, 2, 3, 3]  # noqa: RUF012

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.tensor([float(index)]), self.targets[index] % 2


def test_targets_that_a_transform_changes_are_not_believed() -> None:
    assert known_targets(Coarse()) is None


@dataclass(frozen=True)
class Noisy:
    """A penalty that draws."""

    label: str = "noisy"

    def value(self, current: Sequence[Tensor], anchor: Sequence[Tensor]) -> Tensor:
        return sum((w * torch.randn_like(w)).sum() for w in current)


class Shaken(CollectingAggregator):
    """A mean with noise."""

    label = "mean"

    def aggregate(
        self, updates: Sequence[ClientUpdate], before: Pack, generator: torch.Generator
    ) -> Pack:
        found = mean_of(update.shared for update in updates)
        for vector in found.vectors.values():
            if vector.is_floating_point():
                vector += 0.01 * torch.randn_like(vector)
        return found


def test_what_rules_losses_and_aggregators_draw_the_seed_decides() -> None:
    def noisy(outputs: Tensor, targets: Tensor) -> Tensor:
        return CLASSIFICATION.loss(outputs + torch.randn_like(outputs), targets)

    def sums(method: object, workers: int = 1, **more: object) -> float:
        return total(
            fedbn.fit(federation(8, 8, 8), "mlp", method, rounds=2, workers=workers, **more)
        )

    shaken = fedbn.fedbn() | Shaken()
    penal = fedbn.fedbn() | Noisy()
    assert sums(penal) == sums(penal, 2) != sums("fedbn")
    assert sums("fedbn", loss=noisy) == sums("fedbn", 2, loss=noisy)
    assert sums(shaken) == sums(shaken, 2) != sums("fedbn")


def test_two_of_what_there_is_one_of_are_refused() -> None:
    for name, said in {
        "fedadam+momentum": "each has an optimiser at the server",
        "fedbn+adam+yogi": "each has an optimiser at the server",
        "fedavg+median+krum": "each combines updates in its own way",
    }.items():
        with pytest.raises(ConfigError, match=said):
            fedbn.parse_method(name)


def test_bytes_for_a_run_on_floats_of_another_range_are_refused() -> None:
    draws = np.random.default_rng(0)
    pictures = {name: draws.integers(0, 9, (40, 1, 4, 4)).astype(float) for name in "ab"}
    whole = {name: (x, (x[:, 0, 0, 0] > 4).astype(int)) for name, x in pictures.items()}
    run = fedbn.fit(whole, "mlp", "fedbn", rounds=1)
    x = whole["a"][0]
    assert run.predict(x, client="a").shape == (40,)
    with pytest.raises(DataError, match="uint8, which becomes −1 to 1"):
        run.predict(x.astype(np.uint8), client="a")


def test_columns_of_frames_are_taken_by_name() -> None:
    pandas = pytest.importorskip("pandas")
    frames = {n: pandas.DataFrame(x, columns=[*"pqr"]).assign(y=y) for n, (x, y) in sites().items()}
    run = fedbn.fit(frames, "mlp", "fedbn", rounds=3, data__label="y")
    one = frames["a"]
    assert run.score(one[[*"rqp"]], one["y"], client="a") == run.score(
        one[[*"pqr"]], one["y"], client="a"
    )
    turned = {n: (f[[*("pqr" if n == "a" else "rqp")]], f["y"]) for n, f in frames.items()}
    with pytest.raises(DataError, match="in another order: p, q, r and r, q, p"):
        fedbn.fit(turned, "mlp", "fedbn", rounds=1)


@pytest.mark.parametrize("method", ["fedper", "fedrep('last', 1)"])
@pytest.mark.parametrize("how", ["average", "reestimate"])
def test_where_weights_are_local_and_statistics_shared_a_site_can_be_adapted(method, how) -> None:
    data = sites()
    run = fedbn.fit(data, "mlp", method, rounds=1)
    made = run.adapt(data["a"][0], site="new", how=how)
    assert made.predict(data["a"][0], client="new").shape == (40,)


def test_groups_of_several_labels_are_not_scored() -> None:
    outputs, groups = torch.eye(2)[[0, 1, 1, 1]].double(), torch.tensor([5, 5, 9, 9])
    one, several = torch.tensor([1, 1, 1, 1]), torch.tensor([0, 1, 1, 1])
    assert CLASSIFICATION.measured(outputs, one, groups)["group_accuracy"] == 0.5
    assert CLASSIFICATION.measured(outputs, several, groups) == {"accuracy": 1.0}
