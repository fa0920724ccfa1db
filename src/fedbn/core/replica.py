"""One model in memory that becomes any client's by two copies.

A client costs only its local part beside its data: the whole models are as many as there are
workers, not clients.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from fedbn.core import folding, layouts
from fedbn.core.aside import Aside, Helpers, worth_it
from fedbn.core.foreign import contained
from fedbn.core.method import Method
from fedbn.core.packing import Layout, Pack
from fedbn.core.state import entries, unwrap


class Replica:
    """A model whose entries live in two packs: what the method shares and what stays local.

    Args:
        model: What to copy.
        method: What it shares.
        device: Where the copy lives.
        helpers: Threads that may compute weight gradients while they would be idle.
    """

    def __init__(
        self,
        model: nn.Module,
        method: Method,
        device: torch.device | str = "cpu",
        helpers: Helpers | None = None,
    ):
        self.model = unwrap(copy.deepcopy(model)).to(device)
        found = entries(self.model)
        self.shared = Layout.of(method.shared(found)).zeros(device)
        self.local = Layout.of(method.local(found)).zeros(device)
        tensors = self.model.state_dict(keep_vars=True)
        for pack in (self.shared, self.local):
            for name, view in pack.state.items():
                view.copy_(tensors[name].detach())
                tensors[name].data = view
        names = [e.name for e in self.shared.layout.entries if e.trainable]
        self.shared_parameters: list[nn.Parameter] = [tensors[name] for name in names]
        self._shared_names = names
        self._folded: folding.FoldedModel | None = None
        self._scoring: tuple[Pack, Pack] | None = None
        on_cpu = torch.device(device).type == "cpu"
        self.aside = Aside(helpers) if on_cpu and worth_it(self.model) else None
        self._origin = unwrap(model)
        self._layout: layouts.Layout | None = None
        # What is in no state_dict must not pass from one client to the next.
        self._passing = [
            (module, name, module._buffers[name])
            for module in self.model.modules()
            for name in module._non_persistent_buffers_set
        ]
        self._fresh = [None if value is None else value.clone() for _, _, value in self._passing]

    def load(self, shared: Pack, local: Pack) -> None:
        """Become the client with this local part."""
        self._scoring = None
        self.shared.copy_(shared)
        self.local.copy_(local)
        for (module, name, _), value in zip(self._passing, self._fresh, strict=True):
            module._buffers[name] = None if value is None else value.clone()

    def layout(self, x: Tensor) -> layouts.Layout:
        """How batches like this should lie in memory to train fast; found out once."""
        return self._layout or self.lay_out(layouts.fastest(self._origin, x))

    def lay_out(self, layout: layouts.Layout) -> layouts.Layout:
        """Train with batches laid out like this from now on."""
        layouts.prepare(self.model, layout)
        self._layout = layout
        return layout

    def fold(self, x: Tensor) -> folding.Layout | None:
        """Score with BatchNorm folded from now on, if the model allows it; `x` is to try it on.

        Gives how images then pass through it; None where nothing is folded.
        """
        self._folded = folding.fold(self.model, x)
        return None if self._folded is None else self._folded.layout

    def scoring_model(self, shared: Pack, local: Pack) -> nn.Module:
        """Become this client, to be scored: folded where that is possible.

        A client is scored in pieces; from the second one on there is nothing to load.
        """
        held = self._scoring
        if held is None or held[0] is not shared or held[1] is not local:
            self.load(shared, local)
            if self._folded is not None:
                self._folded.refresh()
            self._scoring = (shared, local)
        return self.model if self._folded is None else self._folded

    def anchor(self, received: Pack) -> list[Tensor]:
        """The received values of the shared parameters, on the model's device."""
        device = next(iter(self.shared.vectors.values())).device if self.shared.vectors else "cpu"
        return [received.state[name].to(device) for name in self._shared_names]


class _RandomOps(TorchDispatchMode):
    """Notes whether an operation drew from the global random generator."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen = False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.seen = self.seen or torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))


def draws_random_numbers(model: nn.Module, x: Tensor) -> bool:
    """Tell whether training the model draws from torch's global generator (dropout does).

    That generator is one for the whole process, so such clients cannot train side by side in
    threads and still give the same bits.

    Examples:
        >>> draws_random_numbers(nn.Sequential(nn.Dropout()), torch.zeros(2, 2))
        True
    """
    probe = copy.deepcopy(unwrap(model)).train()
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad(), _RandomOps() as watch, contained():
            probe(x)
    except Exception:
        return False  # it will fail again in training, where the client is named
    return bool(watch.seen)
