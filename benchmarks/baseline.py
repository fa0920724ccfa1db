"""The plain loop that everybody writes first, in good faith and not weakened.

A `DataLoader` over PIL transforms, one whole model a client, torch's default threads, averaging by
walking state dicts. It computes the same rounds as the library.
"""

from __future__ import annotations

import copy
import multiprocessing
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from fedbn.core.federation import Client, Split


class Pictures(Dataset[tuple[Tensor, Tensor]]):
    """Images through PIL, one by one, as torchvision's data sets give them."""

    def __init__(self, split: Split):
        self._images = split.x.permute(0, 2, 3, 1).numpy()
        self._labels = split.y

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = Image.fromarray(self._images[index])
        pixels = torch.from_numpy(np.array(image, copy=True)).permute(2, 0, 1)
        return (pixels.float().div(255) - 0.5) / 0.5, self._labels[index]


class Vectors(Dataset[tuple[Tensor, Tensor]]):
    """Rows of a matrix."""

    def __init__(self, split: Split):
        self._split = split

    def __len__(self) -> int:
        return len(self._split)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self._split.x[index], self._split.y[index]


def loader(split: Split, train: bool, batch: int = 32) -> DataLoader[tuple[Tensor, Tensor]]:
    data = Pictures(split) if split.x.dim() == 4 else Vectors(split)
    return DataLoader(data, batch_size=batch, shuffle=train)


class PlainLoop:
    """FedBN as a script."""

    def __init__(self, clients: Sequence[Client], build: Callable[[], nn.Module], lr: float = 0.01):
        self.server = build()
        self.models = [copy.deepcopy(self.server) for _ in clients]
        self.trains = [loader(client.train, train=True) for client in clients]
        self.tests = [loader(next(iter(c.tests.values())), train=False) for c in clients]
        self.lr = lr
        norms = [
            name
            for name, m in self.server.named_modules()
            if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)
        ]
        self.shared = [k for k in self.server.state_dict() if k.rpartition(".")[0] not in norms]

    def round(self) -> None:
        """Train every client, then average."""
        for model, batches in zip(self.models, self.trains, strict=True):
            self._train(model, batches)
        self.average()

    def average(self) -> None:
        """Average what is shared, entry by entry, and hand it out."""
        with torch.no_grad():
            for key in self.shared:
                mean = sum(model.state_dict()[key] for model in self.models) / len(self.models)
                self.server.state_dict()[key].copy_(mean)
                for model in self.models:
                    model.state_dict()[key].copy_(self.server.state_dict()[key])

    def _train(self, model: nn.Module, batches: DataLoader[tuple[Tensor, Tensor]]) -> None:
        model.train()
        optimizer = torch.optim.SGD(model.parameters(), lr=self.lr)
        loss_function = nn.CrossEntropyLoss()
        for x, y in batches:
            optimizer.zero_grad()
            loss = loss_function(model(x), y)
            loss.backward()
            optimizer.step()

    def evaluate(self) -> list[float]:
        """Score every client's model on its test data."""
        scores = []
        for model, batches in zip(self.models, self.tests, strict=True):
            model.eval()
            right = seen = 0
            with torch.no_grad():
                for x, y in batches:
                    right += int((model(x).argmax(dim=1) == y).sum())
                    seen += len(y)
            scores.append(right / seen)
        return scores


class Apart:
    """The plain loop in a process of its own: with torch's and the C library's defaults."""

    def __init__(self, clients: Sequence[Client], build: Callable[[], nn.Module]):
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, clients, build), daemon=True)
        self._process.start()
        self._pipe.recv()

    def round(self) -> None:
        """Do a round over there, and wait for it."""
        self._ask("round")

    def evaluate(self) -> None:
        """Score over there, and wait for it."""
        self._ask("evaluate")

    def average(self) -> None:
        """Average over there, and wait for it."""
        self._ask("average")

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.join()

    def _ask(self, what: str) -> None:
        self._pipe.send(what)
        self._pipe.recv()


def _serve(pipe: Connection, clients: Sequence[Client], build: Callable[[], nn.Module]) -> None:
    loop = PlainLoop(clients, build)
    pipe.send(None)
    while True:
        getattr(loop, pipe.recv())()
        pipe.send(None)
