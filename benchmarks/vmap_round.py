"""What a good engineer writes in an afternoon: FedBN over all clients at once by `torch.func.vmap`.

Every client has as many samples as the others, data lies stacked from the beginning, and nothing is
checked, named or kept: the least that a round of small models can cost without a compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, stack_module_state, vmap
from torch.nn import functional

from fedbn.core.federation import Client

State = dict[str, Tensor]


class VmapLoop:
    """FedBN for clients of equal size.

    Args:
        clients: Their data; tests are the first of each.
        build: Makes the model.
        batch: Samples a batch.
        lr: Of plain SGD.
        chunk: How many clients vmap takes at once.
    """

    def __init__(
        self,
        clients: Sequence[Client],
        build: Callable[[], nn.Module],
        batch: int = 32,
        lr: float = 0.01,
        chunk: int = 250,
    ):
        self.model = build()
        for module in self.model.modules():
            if isinstance(module, nn.BatchNorm1d):
                module.num_batches_tracked = None  # vmap cannot count in place
        models = [self.model] * len(clients)
        self.parameters, self.buffers = stack_module_state(models)
        self.parameters = {name: p.detach() for name, p in self.parameters.items()}
        norms = {n for n, m in self.model.named_modules() if isinstance(m, nn.BatchNorm1d)}
        self.shared = [name for name in self.parameters if name.rpartition(".")[0] not in norms]
        self.x = torch.stack([client.train.x for client in clients])
        self.y = torch.stack([client.train.y for client in clients])
        tests = [next(iter(client.tests.values())) for client in clients]
        self.test_x = torch.stack([test.x for test in tests])
        self.test_y = torch.stack([test.y for test in tests])
        self.batch, self.lr, self.chunk = batch, lr, chunk

    def round(self) -> None:
        """Train every client, then average what is shared."""
        self.model.train()
        step = vmap(grad_and_value(self._loss, has_aux=True), in_dims=(0, 0, 0, 0))
        order = torch.rand(self.y.shape).argsort(dim=1)
        for at in range(0, len(self.y), self.chunk):
            some = slice(at, at + self.chunk)
            self._train(step, some, order[some])
        for name in self.shared:
            self.parameters[name][:] = self.parameters[name].mean(dim=0)

    def _train(self, step: Callable[..., object], some: slice, order: Tensor) -> None:
        rows = torch.arange(some.start, some.start + len(order))[:, None]
        parameters = {name: p[some] for name, p in self.parameters.items()}
        buffers = {name: b[some] for name, b in self.buffers.items()}
        for index in order.split(self.batch, dim=1):
            x, y = self.x[rows, index], self.y[rows, index]
            gradients, (_, buffers) = step(parameters, buffers, x, y)  # type: ignore[misc]
            for name, gradient in gradients.items():
                parameters[name].sub_(gradient, alpha=self.lr)
        for name, value in buffers.items():
            self.buffers[name][some] = value

    def _loss(self, parameters: State, buffers: State, x: Tensor, y: Tensor) -> object:
        kept = {name: value.clone() for name, value in buffers.items()}
        outputs = functional_call(self.model, (parameters, kept), (x,))
        return functional.cross_entropy(outputs, y), kept

    def evaluate(self) -> Tensor:
        """Score every client on its test data."""
        self.model.eval()

        def right(parameters: State, buffers: State, x: Tensor, y: Tensor) -> Tensor:
            outputs = functional_call(self.model, (parameters, buffers), (x,))
            return (outputs.argmax(dim=1) == y).double().mean()

        with torch.no_grad():
            each = vmap(right, chunk_size=self.chunk)
            return each(self.parameters, self.buffers, self.test_x, self.test_y)
