r"""Faster scoring: in evaluation mode the layer before a BatchNorm can absorb it.

For a layer \(Wx + b\) and BatchNorm with scale \(s = \gamma / \sqrt{\sigma^2 + \epsilon}\):

\[ s (Wx + b - \mu) + \beta = (sW) x + (s (b - \mu) + \beta). \]

Works for any model that `torch.fx` can trace; others are scored as they are.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Literal, NamedTuple, cast

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedbn.core.user_code import contained

_Layer = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d
_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_TOLERANCE = 1e-4
ImageLayout = Literal["blocked", "plain"]


class Pair(NamedTuple):
    """A layer, the BatchNorm after it, and the layer that stands for both."""

    layer: _Layer
    norm: _BatchNorm
    folded: _Layer

    def refresh(self) -> None:
        """Take over the layers' present values."""
        norm, weight, bias = self.norm, self.layer.weight, self.layer.bias
        assert norm.running_mean is not None
        assert norm.running_var is not None
        assert self.folded.bias is not None
        scale = torch.rsqrt(norm.running_var + norm.eps)
        if norm.affine:
            scale = scale * norm.weight
        shift = scale * (-norm.running_mean if bias is None else bias - norm.running_mean)
        torch.mul(weight, scale.view(-1, *[1] * (weight.dim() - 1)), out=self.folded.weight.data)
        self.folded.bias.data.copy_(shift + norm.bias if norm.affine else shift)


class FoldedModel(nn.Module):
    """A model's evaluation-mode twin, with BatchNorm folded into the layers before it.

    It reads the original's entries, so `refresh` must be called after they change.
    """

    def __init__(self, graph: fx.GraphModule, pairs: Sequence[Pair], layout: ImageLayout):
        super().__init__()
        self.graph = graph
        self.pairs = pairs
        self.layout = layout

    @torch.no_grad()
    def refresh(self) -> None:
        """Take over the original's present values."""
        for pair in self.pairs:
            pair.refresh()

    def forward(self, x: Tensor) -> Tensor:
        """Give the outputs that the original gives in evaluation mode."""
        # Not by a call of the graph: that prints a traceback of an error, on its way to the caller.
        if self.layout == "blocked":
            return cast(Tensor, self.graph.forward(x.to_mkldnn()).to_dense())
        if x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        return cast(Tensor, self.graph.forward(x))


def fold(
    model: nn.Module, x: Tensor, layouts: Sequence[ImageLayout] = ("blocked", "plain")
) -> FoldedModel | None:
    """Make a model's folded twin, or None where it cannot be made or does not agree.

    The model's entries are shared, not copied, but for the folded layers; both are compared on the
    few samples x. Images may pass in oneDNN's own blocks, in which convolutions are fastest and
    which not all operations know, or as usual: `layouts` says in which order they are tried.

    Examples:
        >>> net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
        >>> fold(net, torch.zeros(2, 3)) is not None
        True
    """
    training = model.training
    blocks = x.dim() == 4 and x.dtype == torch.float32 and x.device.type == "cpu"
    try:
        for layout in layouts:
            if (layout == "plain" or blocks) and _works(model, x, layout):
                return _folded(model.eval(), layout)
        return None
    finally:
        model.train(training)


def _works(model: nn.Module, x: Tensor, layout: ImageLayout) -> bool:
    """Tell whether a folded copy can be made and agrees with the model."""
    try:
        probe = copy.deepcopy(model).eval()
        with contained():
            twin = _folded(probe, layout)
            _change_values(probe)  # a twin that kept the values it was made with would show
            return twin is not None and _agrees(probe, twin, x)
    except Exception:  # whatever a user's forward does under tracing, plain scoring remains
        return False


class _Tracer(fx.Tracer):
    proxy_buffer_attributes = True  # else what is computed of buffers alone stays as it is today


def _folded(model: nn.Module, layout: ImageLayout) -> FoldedModel | None:
    graph = fx.GraphModule(model, _Tracer().trace(model))
    modules = dict(graph.named_modules())
    targets = [str(node.target) for node in graph.graph.nodes if node.op == "call_module"]
    once = {target for target in targets if targets.count(target) == 1}
    pairs = []
    for node in list(graph.graph.nodes):
        if not _foldable(node, modules, once):
            continue
        before = node.args[0]
        layer, norm = modules[before.target], modules[node.target]
        assert isinstance(layer, _LAYERS)
        assert isinstance(norm, _BatchNorm)
        pair = Pair(layer, norm, _stand_in(layer, layout))
        pairs.append(pair)
        before.target = f"{before.target}_folded"
        graph.add_submodule(before.target, pair.folded)
        node.replace_all_uses_with(before)
        graph.graph.erase_node(node)
    graph.recompile()
    return FoldedModel(graph, pairs, layout) if pairs else None


def _foldable(node: fx.Node, modules: dict[str, nn.Module], once: set[str]) -> bool:
    """Tell whether a node is a BatchNorm right after a layer; exact types only."""
    before = node.args[0] if len(node.args) == 1 else None
    if not isinstance(before, fx.Node) or not before.op == node.op == "call_module":
        return False
    if len(before.users) > 1 or not {before.target, node.target} <= once:
        return False
    norm = modules[str(node.target)]
    known = type(modules[str(before.target)]) in _LAYERS and type(norm) in _NORMS
    return known and getattr(norm, "running_mean", None) is not None


def _stand_in(layer: _Layer, layout: ImageLayout) -> _Layer:
    """A layer like this one, with a bias, and memory of its own."""
    twin = copy.copy(layer)
    weight = layer.weight.detach()
    last = weight.dim() == 4 and layout == "plain"
    format = torch.channels_last if last else torch.contiguous_format
    twin._parameters = {
        "weight": nn.Parameter(torch.empty_like(weight, memory_format=format), False),
        "bias": nn.Parameter(weight.new_empty(len(weight)), False),
    }
    return twin


@torch.no_grad()
def _change_values(model: nn.Module) -> None:
    """Give a model, and its BatchNorm above all, values under which a wrong fold would show."""
    draws = torch.Generator().manual_seed(0)
    for module in model.modules():
        entries = (*module.parameters(recurse=False), *module.buffers(recurse=False))
        for tensor in (tensor for tensor in entries if tensor.is_floating_point()):
            new = torch.rand(tensor.shape, generator=draws).to(tensor) + 0.5
            tensor.copy_(new if isinstance(module, _NORMS) else tensor * new + 0.01 * new)


def _agrees(model: nn.Module, twin: FoldedModel, x: Tensor) -> bool:
    """Compare outputs on batches of two sizes."""
    twin.refresh()
    with torch.no_grad():
        for some in (x, x[:1]):
            expected, found = model(some), twin(some)
            scale = expected.abs().amax().clamp(min=1)
            if not bool(((expected - found).abs() <= _TOLERANCE * scale).all()):
                return False
    return True
