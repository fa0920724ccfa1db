"""FedBN in fluke (`pip install fluke-fl torch`), as it comes."""

from __future__ import annotations

import torch
from network import BATCH, LR, arrays, asked, network

# A CPU build of torch beside a torchvision that was built for CUDA: fluke imports torchvision, and
# importing it asks for two operators that its library, which does not load, would have defined.
absent = torch.library.Library("torchvision", "FRAGMENT")
for name in ("nms", "qnms"):
    if not hasattr(torch.ops.torchvision, name):
        absent.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from fluke import DDict, FlukeENV  # noqa: E402
from fluke.algorithms.fedbn import FedBN  # noqa: E402
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader  # noqa: E402
from fluke.evaluation import ClassificationEval  # noqa: E402
from torchmetrics import Accuracy  # noqa: E402

CLASSES = 10


def loader(data: dict[str, torch.Tensor], part: str) -> FastDataLoader:
    """One client's samples as fluke takes them."""
    return FastDataLoader(
        data[f"{part}_x"], data[f"{part}_y"], num_labels=CLASSES, batch_size=BATCH, shuffle=True
    )


def main(clients: int, rounds: int) -> None:
    """Run."""
    given = [arrays(number) for number in range(clients)]
    parts = ([loader(data, part) for data in given] for part in ("train", "test"))
    container = DummyDataContainer(*parts, server_data=None, num_classes=CLASSES)
    env = FlukeENV()
    accuracy = Accuracy(task="multiclass", num_classes=CLASSES)
    env.set_evaluator(ClassificationEval(eval_every=1, n_classes=CLASSES, accuracy=accuracy))
    env.set_eval_cfg(pre_fit=False, post_fit=True, locals=False, server=False)
    client = {
        "batch_size": BATCH,
        "local_epochs": 1,
        "loss": torch.nn.CrossEntropyLoss,
        "optimizer": {"name": "SGD", "lr": LR},
        "scheduler": {"name": "StepLR", "step_size": 1, "gamma": 1},
    }
    settings = DDict(model=network(), client=client, server={"weighted": False})
    FedBN(clients, DataSplitter(container, "iid"), settings).run(rounds, 1.0)


if __name__ == "__main__":
    main(*asked())
