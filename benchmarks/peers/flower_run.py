"""FedBN in Flower's simulation (`pip install "flwr[simulation]" torch`), which runs on Ray."""

from __future__ import annotations

import os

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from network import BATCH, LR, NORMS, arrays, asked, network
from torch import Tensor, nn, no_grad, optim, randperm, set_num_threads
from torch.nn import functional

client_app, server_app = ClientApp(), ServerApp()
CLIENTS, ROUNDS = asked()


def joined(message: Message, context: Context) -> tuple[nn.Module, dict[str, Tensor]]:
    """The client's model, with its own BatchNorm in the place of the server's; and its data."""
    set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    model = network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict(), strict=False)
    if "own" in context.state:
        model.load_state_dict(context.state["own"].to_torch_state_dict(), strict=False)
    return model, arrays(int(context.node_config["partition-id"]))


def record(model: nn.Module, own: bool) -> ArrayRecord:
    """The entries that stay, or those that go."""
    state = model.state_dict()
    return ArrayRecord({n: v for n, v in state.items() if n.startswith(NORMS) == own})


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Train for one round."""
    model, data = joined(message, context)
    optimizer = optim.SGD(model.parameters(), lr=LR)
    model.train()
    for index in randperm(len(data["train_y"])).split(BATCH):
        optimizer.zero_grad()
        functional.cross_entropy(model(data["train_x"][index]), data["train_y"][index]).backward()
        optimizer.step()
    context.state["own"] = record(model, own=True)
    return answer(message, {"arrays": record(model, own=False)}, {})


@client_app.evaluate()
@no_grad()
def evaluate(message: Message, context: Context) -> Message:
    """Score on the client's test data."""
    model, data = joined(message, context)
    right = (model.eval()(data["test_x"]).argmax(dim=1) == data["test_y"]).float().mean()
    return answer(message, {}, {"accuracy": float(right)})


def answer(message: Message, arrays: dict[str, ArrayRecord], numbers: dict[str, float]) -> Message:
    """Reply; everybody counts the same."""
    numbers = MetricRecord({**numbers, "num-examples": 1})
    return Message(RecordDict({**arrays, "metrics": numbers}), reply_to=message)


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    """Do the rounds."""
    everyone = {"min_train_nodes": CLIENTS, "min_available_nodes": CLIENTS}
    strategy = FedAvg(min_evaluate_nodes=CLIENTS, **everyone)
    strategy.start(grid=grid, initial_arrays=record(network(), own=False), num_rounds=ROUNDS)


if __name__ == "__main__":
    run_simulation(
        server_app,
        client_app,
        num_supernodes=CLIENTS,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
