"""FedBN in pfl-research (`pip install pfl torch`): a user keeps its BatchNorm."""

from __future__ import annotations

from network import BATCH, LR, NORMS, arrays, asked, network
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset, DatasetSplit
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn, no_grad, optim
from torch.nn import functional


class Net(nn.Module):
    """The network with the two functions that pfl asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = network()

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Train on this."""
        return functional.cross_entropy(self.train().layers(x), y.long())

    @no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Weighted]:
        """Score."""
        right = (self.eval().layers(x).argmax(dim=1) == y).sum().item()
        return {"accuracy": Weighted(right, len(y))}


class FedBN(FederatedAveraging):
    """A user's own BatchNorm is put in before it is scored and trained, and kept after."""

    def __init__(self, own: dict[str, dict[str, Tensor]]):
        super().__init__()
        self._own = own

    def simulate_one_user(self, model, user_dataset, central_context):
        """Score on the user's test data, then train."""
        user, net = user_dataset.user_id, model.pytorch_model
        net.load_state_dict(self._own[user], strict=False)
        train, test = user_dataset.split()
        metrics = model.evaluate(test, eval_params=central_context.model_eval_params)
        self._initial_model_state = before = model.get_parameters(self._initial_model_state)
        statistics, _ = self.train_one_user(before, model, train, central_context)
        self._own[user] = {n: v.clone() for n, v in net.state_dict().items() if is_own(n)}
        model.set_parameters(before)
        return statistics, metrics


def is_own(name: str) -> bool:
    """Tell whether an entry is of BatchNorm."""
    return name.removeprefix("layers.").startswith(NORMS)


def main(clients: int, rounds: int) -> None:
    """Run."""
    given = {}
    for number in range(clients):
        data = arrays(number)
        parts = (
            Dataset((data[f"{part}_x"].numpy(), data[f"{part}_y"].numpy()), str(number))
            for part in ("train", "test")
        )
        given[str(number)] = DatasetSplit(*parts)
    net = Net()
    start = {n: v.clone() for n, v in net.state_dict().items() if is_own(n)}
    users = FederatedDataset(given.__getitem__, get_user_sampler("minimize_reuse", [*given]))
    model = PyTorchModel(net, optim.SGD, optim.SGD(net.parameters(), lr=1.0))
    model._variable_map = {n: p for n, p in model.variable_map.items() if not is_own(n)}
    FedBN(dict.fromkeys(given, start)).run(
        NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=1,
            train_cohort_size=clients,
            val_cohort_size=0,
        ),
        SimulatedBackend(users, users),
        model,
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=LR, local_batch_size=BATCH),
        NNEvalHyperParams(local_batch_size=None),
    )


if __name__ == "__main__":
    main(*asked())
