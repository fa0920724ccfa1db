"""Models that have fooled other frameworks, each with the kinds its entries must get.

A row is a builder and what is expected: the entries that are BN affine, those that are BN
statistics, and those of any further kind. Every entry not named is a weight.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from fedbn.core.state import Kind

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def affine(*paths: str) -> set[str]:
    """'1' -> {'1.weight', '1.bias'}."""
    return {f"{path}.{name}" for path in paths for name in ("weight", "bias")}


def statistics(*paths: str) -> set[str]:
    """'1' -> {'1.running_mean', '1.running_var', '1.num_batches_tracked'}."""
    return {f"{path}.{name}" for path in paths for name in STATISTICS}


@dataclass(frozen=True)
class Awkward:
    """A model and the kinds expected; `input` is None where the model is not run."""

    build: Callable[[], nn.Module]
    affine: set[str] = field(default_factory=set)
    statistic: set[str] = field(default_factory=set)
    others: dict[str, Kind] = field(default_factory=dict)


def twelve_layers() -> nn.Module:
    """`features.1` is a BN, `features.11` is not, and both are prefixes of one another's names."""
    layers: list[nn.Module] = [nn.Linear(3, 3) for _ in range(12)]
    layers[1] = nn.BatchNorm1d(3)
    layers[10] = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    return nn.ModuleDict({"features": nn.Sequential(*layers), "out": nn.Linear(3, 2)})


class NoBnInTheName(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.downsample = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))


class BnInTheName(nn.Module):
    """A 'bottleneck' is not a BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.bn = nn.Linear(3, 3)
        self.bn_proj = nn.Linear(3, 3)
        self.running_mean = nn.Parameter(torch.zeros(3))
        self.batch_norm = nn.GroupNorm(1, 3)


def one_bn_twice() -> nn.Module:
    bn = nn.BatchNorm1d(3)
    return nn.Sequential(nn.Linear(3, 3), bn, nn.Linear(3, 3), bn)


def tied_weights() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
    model[2].weight = model[0].weight
    return model


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))


def compiled(model: nn.Module) -> nn.Module:
    """What `torch.compile` returns; nothing is compiled before the first call."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, while it imports its compiler
        wrapped = torch.compile(model)
    assert isinstance(wrapped, nn.Module)
    return wrapped


def materialised(model: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model(torch.zeros(2, 3))
    return model


class ScaledBatchNorm(nn.BatchNorm1d):
    """A user's own: an extra parameter, an extra buffer and a layer inside."""

    def __init__(self, features: int):
        super().__init__(features)
        self.gate = nn.Parameter(torch.ones(features))
        self.register_buffer("seen", torch.zeros(()))
        self.inner = nn.Linear(features, features)


class Doubled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


def parametrized() -> nn.Module:
    model = small()
    parametrize.register_parametrization(model[1], "weight", Doubled())
    return model


def frozen() -> nn.Module:
    model = small()
    model[1].requires_grad_(False)
    return model


class WithBuffers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bn = nn.BatchNorm1d(3)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int32))
        self.register_buffer("mask", torch.ones(3, dtype=torch.bool))
        self.register_buffer("scratch", torch.zeros(3), persistent=False)


def all_norms() -> nn.Module:
    return nn.Sequential(
        nn.GroupNorm(1, 3), nn.LayerNorm(3), nn.RMSNorm(3), nn.LocalResponseNorm(2)
    )


INSTANCE_KINDS = {
    "0.weight": Kind.INSTANCE_AFFINE,
    "0.bias": Kind.INSTANCE_AFFINE,
    **{f"0.{name}": Kind.INSTANCE_STATISTIC for name in STATISTICS},
}
ONE_BN = {"affine": affine("1"), "statistic": statistics("1")}

AWKWARD: dict[str, Awkward] = {
    "features.1 beside features.11": Awkward(
        twelve_layers,
        affine("features.1", "features.10.1"),
        statistics("features.1", "features.10.1"),
    ),
    "names without bn": Awkward(
        NoBnInTheName, affine("norm", "downsample.1"), statistics("norm", "downsample.1")
    ),
    "names with bn": Awkward(
        BnInTheName, others=dict.fromkeys(affine("batch_norm"), Kind.NORM_AFFINE)
    ),
    "one bn twice": Awkward(one_bn_twice, affine("1", "3"), statistics("1", "3")),
    "tied weights": Awkward(tied_weights, **ONE_BN),
    "DataParallel": Awkward(lambda: nn.DataParallel(small()), **ONE_BN),
    "DataParallel inside": Awkward(
        lambda: nn.Sequential(nn.DataParallel(small())),
        affine("0.module.1"),
        statistics("0.module.1"),
    ),
    "compiled": Awkward(lambda: compiled(small()), **ONE_BN),
    "compiled DataParallel": Awkward(lambda: compiled(nn.DataParallel(small())), **ONE_BN),
    "compiled inside": Awkward(
        lambda: nn.Sequential(nn.Linear(3, 3), compiled(nn.BatchNorm1d(3))),
        affine("1._orig_mod"),
        statistics("1._orig_mod"),
    ),
    "affine=False": Awkward(
        lambda: nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3, affine=False)),
        statistic=statistics("1"),
    ),
    "track_running_stats=False": Awkward(
        lambda: nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3, track_running_stats=False)),
        affine("1"),
    ),
    "momentum=None": Awkward(
        lambda: nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3, momentum=None)), **ONE_BN
    ),
    "SyncBatchNorm": Awkward(lambda: nn.SyncBatchNorm.convert_sync_batchnorm(small()), **ONE_BN),
    "LazyBatchNorm, materialised": Awkward(
        lambda: materialised(nn.Sequential(nn.Linear(3, 3), nn.LazyBatchNorm1d())), **ONE_BN
    ),
    "2d and 3d": Awkward(
        lambda: nn.Sequential(nn.BatchNorm2d(2), nn.BatchNorm3d(2)),
        affine("0", "1"),
        statistics("0", "1"),
    ),
    "own subclass": Awkward(
        lambda: nn.Sequential(ScaledBatchNorm(3)),
        affine("0", "0.inner") | {"0.gate"},
        statistics("0") | {"0.seen"},
    ),
    "the model is a BatchNorm": Awkward(
        lambda: nn.BatchNorm1d(3), {"weight", "bias"}, set(STATISTICS)
    ),
    "tracked InstanceNorm": Awkward(
        lambda: nn.Sequential(nn.InstanceNorm1d(3, affine=True, track_running_stats=True)),
        others=INSTANCE_KINDS,
    ),
    "other norms": Awkward(
        all_norms,
        others=dict.fromkeys(affine("0", "1") | {"2.weight"}, Kind.NORM_AFFINE),
    ),
    "parametrized": Awkward(
        parametrized, {"1.parametrizations.weight.original", "1.bias"}, statistics("1")
    ),
    "frozen": Awkward(frozen, **ONE_BN),
    "half precision": Awkward(lambda: small().half(), **ONE_BN),
    "integer buffers": Awkward(
        WithBuffers,
        affine("bn"),
        statistics("bn"),
        {"steps": Kind.OTHER, "mask": Kind.OTHER},
    ),
}
