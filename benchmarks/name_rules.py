"""Which BatchNorm entries do rules by name keep at the client? `python -m benchmarks.name_rules`.

The networks are torchvision's as trees of names and types, which is all that decides; their layers
have one channel. The rules are those of public code: Flower's how-to keeps `'bn' in name`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

import fedbn
from fedbn.core.selectors import BATCHNORM
from fedbn.text import table


def _conv() -> nn.Module:
    return nn.Conv2d(1, 1, 1, bias=False)


def _named(**layers: nn.Module) -> nn.Module:
    made = nn.Module()
    for name, layer in layers.items():
        made.add_module(name, layer)
    return made


def _unit() -> nn.Module:
    return nn.Sequential(_conv(), nn.BatchNorm2d(1), nn.ReLU6())


def resnet_18() -> nn.Module:
    """Eight blocks of two convolutions; three of them have a `downsample`."""

    def block(downsample: bool) -> nn.Module:
        more = {"downsample": nn.Sequential(_conv(), nn.BatchNorm2d(1))} if downsample else {}
        first = {"conv1": _conv(), "bn1": nn.BatchNorm2d(1), "relu": nn.ReLU()}
        return _named(**first, conv2=_conv(), bn2=nn.BatchNorm2d(1), **more)

    layers = {f"layer{i}": nn.Sequential(block(i > 1), block(False)) for i in range(1, 5)}
    stem = {"conv1": _conv(), "bn1": nn.BatchNorm2d(1)}
    return _named(**stem, **layers, fc=nn.Linear(1, 1))


def densenet_121() -> nn.Module:
    """Blocks of 6, 12, 24 and 16 layers, with a transition after the first three."""

    def layer() -> nn.Module:
        first = {"norm1": nn.BatchNorm2d(1), "relu1": nn.ReLU(), "conv1": _conv()}
        return _named(**first, norm2=nn.BatchNorm2d(1), relu2=nn.ReLU(), conv2=_conv())

    parts: dict[str, nn.Module] = {"conv0": _conv(), "norm0": nn.BatchNorm2d(1)}
    for i, layers in enumerate((6, 12, 24, 16), start=1):
        parts[f"denseblock{i}"] = _named(**{f"denselayer{j + 1}": layer() for j in range(layers)})
        if i < 4:
            parts[f"transition{i}"] = _named(norm=nn.BatchNorm2d(1), conv=_conv())
    features = _named(**parts, norm5=nn.BatchNorm2d(1))
    return _named(features=features, classifier=nn.Linear(1, 1))


def mobilenet_v2() -> nn.Module:
    """Seventeen inverted residuals between two units; all layers have numbers for names."""

    def residual(expands: bool) -> nn.Module:
        units = [_unit() for _ in range(1 + expands)]
        return _named(conv=nn.Sequential(*units, _conv(), nn.BatchNorm2d(1)))

    blocks = [residual(expands=i > 0) for i in range(17)]
    features = nn.Sequential(_unit(), *blocks, _unit())
    return _named(features=features, classifier=nn.Sequential(nn.Dropout(), nn.Linear(1, 1)))


NETWORKS: Mapping[str, Callable[[], nn.Module]] = {
    "ResNet-18": resnet_18,
    "DenseNet-121": densenet_121,
    "MobileNet-v2": mobilenet_v2,
}


def _by_name(*words: str) -> Callable[[nn.Module], dict[str, Tensor]]:
    """Send all entries but those with one of the words in their name."""

    def get(model: nn.Module) -> dict[str, Tensor]:
        state = model.state_dict()
        return {name: value for name, value in state.items() if not any(w in name for w in words)}

    return get


def _parameters(model: nn.Module) -> dict[str, Tensor]:
    return dict(model.named_parameters())


def _by_type(model: nn.Module) -> dict[str, Tensor]:
    names = {entry.name for entry in fedbn.fedbn().shared(fedbn.entries(model))}
    return fedbn.split(model.state_dict(), names.__contains__)[0]


RULES: Mapping[str, Callable[[nn.Module], dict[str, Tensor]]] = {
    "'bn' in name": _by_name("bn"),
    "'norm' in name": _by_name("norm"),
    "'bn' or 'downsample' in name": _by_name("bn", "downsample"),
    '"FedAvg" of model.parameters()': _parameters,
    "by type (fedbn)": _by_type,
}


def _set(model: nn.Module, sent: Mapping[str, Any]) -> None:
    model.load_state_dict(dict(sent), strict=False)


def verdict(network: str, rule: str) -> str:
    """Say what a rule keeps of a network's BatchNorm, and which method that is."""
    found = fedbn.audit(NETWORKS[network], RULES[rule], _set)
    norm = [entry for entry in found.entries if entry.kind in BATCHNORM]
    kept = sum(not entry.overwritten for entry in norm)
    more = f" and {len(found.extra)} others" if found.extra else ""
    method = f"none, nearest {found.nearest}" if found.method == "none" else found.method
    return f"{kept} of {len(norm)}{more}: {method}"


def main() -> str:
    """The table, in Markdown."""
    rows = [[rule, *(verdict(network, rule) for network in NETWORKS)] for rule in RULES]
    return table(["kept at the client", *NETWORKS], rows)


if __name__ == "__main__":
    print(main())
