"""The models: parameter counts and layer shapes of the paper's tables."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedbn.errors import ConfigError
from fedbn.models.networks import abide_net, alexnet, digit_cnn, mlp, small_cnn, two_layer

DIGIT_CNN = [  # appendix, digits: Conv2D(in, out, 5, 1, 2), BN; dense 6272-2048-512-10
    ("0.weight", (64, 3, 5, 5)),
    ("4.weight", (64, 64, 5, 5)),
    ("8.weight", (128, 64, 5, 5)),
    ("12.weight", (2048, 128 * 7 * 7)),
    ("15.weight", (512, 2048)),
    ("18.weight", (10, 512)),
]
ALEXNET = [  # appendix, Office-Caltech10 and DomainNet
    ("0.weight", (64, 3, 11, 11)),
    ("4.weight", (192, 64, 5, 5)),
    ("8.weight", (384, 192, 3, 3)),
    ("11.weight", (256, 384, 3, 3)),
    ("14.weight", (256, 256, 3, 3)),
    ("20.weight", (4096, 256 * 6 * 6)),
    ("23.weight", (4096, 4096)),
    ("26.weight", (10, 4096)),
]
ABIDE = [("0.weight", (16, 5995)), ("3.weight", (16, 16)), ("6.weight", (2, 16))]


def on_paper(build, classes: int, shape: tuple[int, ...]) -> nn.Module:
    """Shapes without memory: 57 million numbers need not be drawn to be counted."""
    with torch.device("meta"):
        return build(classes, shape)


@pytest.mark.parametrize(
    ("build", "classes", "shape", "count", "layers", "norms"),
    [
        (digit_cnn, 10, (3, 28, 28), 14_219_210, DIGIT_CNN, 5),
        (alexnet, 10, (3, 256, 256), 57_063_498, ALEXNET, 7),
        (abide_net, 2, (5995,), 96_306, ABIDE, 2),
    ],
    ids=["digit_cnn", "alexnet", "abide_net"],
)
def test_the_networks_of_the_paper(build, classes, shape, count, layers, norms):
    model = on_paper(build, classes, shape)
    assert sum(p.numel() for p in model.parameters()) == count
    dense = {name: tuple(p.shape) for name, p in model.named_parameters() if p.dim() > 1}
    assert list(dense.items()) == layers
    found = [m for m in model if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)]
    assert len(found) == norms
    # BatchNorm follows each layer but the last, and is as wide as it
    before = [m for m in model if isinstance(m, nn.Linear | nn.Conv2d)][:-1]
    assert [n.num_features for n in found] == [m.weight.shape[0] for m in before]
    assert model(torch.zeros(2, *shape, device="meta")).shape == (2, classes)


def test_the_strides_of_alexnet():
    convs = [m for m in on_paper(alexnet, 10, (3, 256, 256)) if isinstance(m, nn.Conv2d)]
    rows = [(c.kernel_size[0], c.stride[0], c.padding[0]) for c in convs]
    assert rows == [(11, 4, 2), (5, 1, 2), (3, 1, 1), (3, 1, 1), (3, 1, 1)]


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (3, 29, 31), (2, 8, 5)])
@pytest.mark.parametrize("build", [digit_cnn, small_cnn])
def test_the_cnns_take_images_of_other_sizes(build, shape: tuple[int, int, int]):
    model = on_paper(build, 7, shape)
    assert model(torch.zeros(2, *shape, device="meta")).shape == (2, 7)


def test_an_mlp_of_given_widths():
    model = mlp(3, (2, 5), hidden=(4,))
    assert [type(m).__name__ for m in model] == [
        "Flatten",
        "Linear",
        "BatchNorm1d",
        "ReLU",
        "Linear",
    ]
    # 10·4 + 4, 2·4, 4·3 + 3
    assert sum(p.numel() for p in model.parameters()) == 44 + 8 + 15
    assert model(torch.zeros(2, 2, 5)).shape == (2, 3)
    assert sum(p.numel() for p in mlp(2, (6,), hidden=()).parameters()) == 14


def test_the_two_layer_network_starts_from_a_wide_normal():
    torch.manual_seed(0)
    hidden = two_layer(2, (10,), width=2000, alpha=10.0)[0].requires_grad_(False)
    # the standard error of a standard deviation from 20,000 draws is 10 / sqrt(40,000) = 0.05
    assert float(hidden.weight.std()) == pytest.approx(10, abs=0.25)
    assert float(hidden.weight.mean()) == pytest.approx(0, abs=0.35)
    assert float(hidden.bias.std()) == pytest.approx(10, abs=0.8)


def test_the_output_layer_starts_wide_only_where_asked_for():
    torch.manual_seed(0)
    narrow, wide = (two_layer(2, (10,), width=2000, start=start)[-1] for start in ("hidden", "all"))
    assert float(narrow.weight.detach().std()) < 0.03  # torch's own: uniform within 1/√2000
    assert float(wide.weight.detach().std()) == pytest.approx(10, rel=0.1)
    with pytest.raises(ConfigError, match="unknown start 'al': did you mean 'all'"):
        two_layer(2, (10,), start="al")
