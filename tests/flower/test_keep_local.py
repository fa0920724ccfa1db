"""FedBN in an ordinary Flower app: the mod against our own engine, and every promise it makes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tiny import done, plain_net, plan

pytest.importorskip("flwr", reason="flwr is not installed")

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAdam, FedAvg
from flwr.supercore.task_identity import TaskIdentity

import fedbn
from fedbn.core.aggregation import ServerOptimizer
from fedbn.core.federation import Client, Federation, Split
from fedbn.core.packing import Pack
from fedbn.core.rounds import select_clients
from fedbn.core.state import State
from fedbn.errors import ConfigError, FedbnError, ModelError
from fedbn.flower import keep_local

LR, ROUNDS = 0.1, 3


@pytest.fixture(autouse=True)
def in_a_task() -> None:
    """Messages outside a running app need to know whose they are."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1


class Block(nn.Module):
    """A residual block as torchvision writes it: `downsample.1` is a BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.downsample = nn.Sequential(nn.Conv2d(3, 4, 1, bias=False), nn.BatchNorm2d(4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.bn1(self.conv1(x)) + self.downsample(x))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.fc = Block(), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.layer(x).mean(dim=(2, 3)))


def make_model() -> nn.Module:
    return Net().double()


def data() -> Federation:
    """Three clients of unequal size whose pictures differ in scale."""
    draws = torch.Generator().manual_seed(5)

    def split(n: int, scale: float) -> Split:
        x = torch.randn(n, 3, 4, 4, generator=draws, dtype=torch.float64)
        return Split(scale * x + scale, (x.mean(dim=(1, 2, 3)) > 0).long())

    sizes = {"a": (12, 1.0), "b": (20, 5.0), "c": (7, 0.2)}
    clients = tuple(Client(n, n, split(*given), {n: split(4, 1.0)}) for n, given in sizes.items())
    return Federation("three", clients, ("low", "high"))


def app_of_a_template(clients: Sequence[Client], mods: list) -> ClientApp:
    """A client app as `flwr new` writes it; every batch is all of a client's data."""
    app = ClientApp(mods=mods)

    @app.train()
    def train(msg: Message, context: Context) -> Message:
        model = make_model()
        model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
        split = clients[int(context.node_config["partition-id"])].train
        model.train()
        optimizer = torch.optim.SGD(model.parameters(), lr=msg.content["config"]["lr"])
        for _ in range(2):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(split.x), split.y)
            loss.backward()
            optimizer.step()
        metrics = MetricRecord({"train_loss": loss.item(), "num-examples": len(split.y)})
        arrays = ArrayRecord(model.state_dict())
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=msg)

    @app.evaluate()
    def evaluate(msg: Message, context: Context) -> Message:
        model = make_model()
        model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
        model.eval()
        split = clients[int(context.node_config["partition-id"])].train
        with torch.no_grad():
            loss = nn.functional.cross_entropy(model(split.x), split.y)
        metrics = MetricRecord({"eval_loss": loss.item(), "num-examples": len(split.y)})
        return Message(RecordDict({"metrics": metrics}), reply_to=msg)

    return app


class LocalGrid(Grid):
    """Nodes in this process; which of them are connected is said a round."""

    def __init__(self, app: ClientApp, rounds: Iterable[Sequence[int]]):
        self.app, self._rounds = app, list(rounds)
        self.contexts = {n: context(n) for n in range(3)}
        self.replies: list[Message] = []
        self._now = 0

    def get_node_ids(self) -> list[int]:
        return list(self._rounds[self._now])

    def send_and_receive(self, messages: Iterable[Message], *, timeout=None) -> list[Message]:
        messages = sorted(messages, key=lambda message: message.metadata.dst_node_id)
        found = [self.app(numbered(m), self.contexts[m.metadata.dst_node_id]) for m in messages]
        self.replies += found
        if messages and messages[0].metadata.message_type == "evaluate":
            self._now = min(self._now + 1, len(self._rounds) - 1)
        return found

    create_message = get_nodes = pull_messages = push_messages = run = set_run = None


_numbers = itertools.count(1)


def numbered(message: Message) -> Message:
    """Give a message the number that Flower's server would give it."""
    message.metadata.__dict__["_message_id"] = f"message-{next(_numbers)}"
    return message


def context(node: int, run: int = 7, **config: object) -> Context:
    config = {"partition-id": node, "num-partitions": 3, **config}
    return Context(run, node, config, RecordDict(), {})


@dataclass(frozen=True)
class FlowersAdam(ServerOptimizer):
    """Flower's FedAdam: v starts from zero, and the learning rate is corrected by the round."""

    def step(self, before: Pack, combined: Pack, memory: State) -> tuple[Pack, State]:
        round = int(memory.get("round", torch.zeros(()))) + 1
        new, kept = before.clone(), {"round": torch.tensor(round)}
        for name, value in new.state.items():
            moved = combined.state[name] - before.state[name]
            zero = torch.zeros_like(moved)
            m = kept[f"m {name}"] = 0.9 * memory.get(f"m {name}", zero) + 0.1 * moved
            v = kept[f"v {name}"] = 0.99 * memory.get(f"v {name}", zero) + 0.01 * moved**2
            eta = self.lr * (1 - 0.99 ** (round + 1)) ** 0.5 / (1 - 0.9 ** (round + 1))
            value.add_(eta * m / (v.sqrt() + 1e-3))
        return new, kept


STRATEGIES: Mapping[str, tuple[Callable[..., FedAvg], ServerOptimizer | None]] = {
    "FedAvg": (FedAvg, None),
    "FedAdam": (lambda **given: FedAdam(eta=0.01, **given), FlowersAdam("adam", 0.01, 0.9)),
}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("method", ["fedbn", "silobn"])
def test_an_ordinary_app_with_the_mod_is_our_engine(
    strategy: str, method: str, tmp_path: Path
) -> None:
    make_strategy, optimizer = STRATEGIES[strategy]
    three = data()
    chosen = replace(fedbn.parse_method(method), server=optimizer)
    ours = plan(
        chosen,
        three,
        make_model,
        seed=3,
        rounds=ROUNDS,
        local_epochs=2,
        batch_size=None,
        lr=LR,
        weighting="examples",
        participation=0.6,
    )
    drawn = [
        [ord(c.name) - ord("a") for c in select_clients(ours, r)] for r in range(1, ROUNDS + 1)
    ]
    late = set(drawn[1]) - set(drawn[0])
    assert late, "one client must be drawn first in the second round"
    ended = done(ours)

    app = app_of_a_template(three.clients, [keep_local(make_model, method, folder=tmp_path)])
    grid = LocalGrid(app, drawn)
    result = make_strategy(min_available_nodes=1, min_train_nodes=1, min_evaluate_nodes=1).start(
        grid,
        ArrayRecord(ours.initial_model.state_dict()),
        num_rounds=ROUNDS,
        train_config=ConfigRecord({"lr": LR}),
    )

    assert not any(reply.has_error() for reply in grid.replies)
    arrays = result.arrays.to_torch_state_dict()
    for name, value in ended.shared.state.items():
        assert float((arrays[name] - value).abs().max()) < 1e-6, name
        moved = value - ours.initial_model.state_dict()[name]
        assert float(moved.abs().max()) > 1e-4, name
    for client in three.clients:
        kept = part(tmp_path, ord(client.name) - ord("a"))
        assert kept.keys() == ended.local[client.name].state.keys()
        for name, value in ended.local[client.name].state.items():
            assert float((kept[name] - value).abs().max()) < 1e-6, (client.name, name)
    model = make_model()  # what a server does with its arrays still works
    model.load_state_dict(arrays)


def part(folder: Path, node: int, run: int = 7) -> State:
    """What a site has on its disk."""
    from safetensors.torch import load_file

    return load_file(folder / f"run-{run}" / f"{node}.safetensors")


def started() -> State:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make_model().state_dict()


def message(state: Mapping[str, Tensor] | None = None, kind: str = "train") -> Message:
    records = RecordDict({"arrays": ArrayRecord(dict(state or started()))})
    records["config"] = ConfigRecord({"lr": LR})
    return numbered(Message(records, 0, kind))


class Site:
    """A client app with the mod, and what its handler was given."""

    def __init__(self, folder: Path, method: str = "fedbn", **options):
        self.seen: list[State] = []
        self.reply: Callable[[Message], RecordDict] = self.trained
        self.app = ClientApp(mods=[keep_local(make_model, method, folder=folder, **options)])
        for register in (self.app.train(), self.app.evaluate(), self.app.query()):
            register(self.handle)

    def handle(self, msg: Message, context: Context) -> Message:
        self.seen.append({} if "arrays" not in msg.content else states(msg))
        return Message(self.reply(msg), reply_to=msg)

    def trained(self, msg: Message) -> RecordDict:
        """Every number moves by one."""
        arrays = {name: value + 1 for name, value in states(msg).items()}
        return RecordDict({"arrays": ArrayRecord(arrays), "metrics": MetricRecord({"n": 1})})

    def __call__(self, msg: Message, where: Context | None = None) -> Message:
        return self.app(msg, where or context(0))


def states(msg: Message) -> State:
    return msg.content["arrays"].to_torch_state_dict()


def is_bn(name: str) -> bool:
    return "bn1" in name or "downsample.1" in name


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_the_first_message_starts_a_client_and_what_it_trained_stays(site: Site) -> None:
    reply = site(message())
    for name, value in started().items():
        assert torch.equal(site.seen[0][name], value)
        assert torch.equal(states(reply)[name], value if is_bn(name) else value + 1)
    site(message())
    for name, value in started().items():
        assert torch.equal(site.seen[1][name], value + 1 if is_bn(name) else value)


def test_keys_order_and_shapes_of_a_reply_are_the_message_s(site: Site) -> None:
    reply = states(site(message()))
    assert list(reply) == list(started())
    assert [v.shape for v in reply.values()] == [v.shape for v in started().values()]


def test_a_new_run_starts_anew_and_the_old_one_is_kept(site: Site, tmp_path: Path) -> None:
    site(message())
    site(message(), context(0, run=8))
    assert torch.equal(site.seen[1]["layer.bn1.bias"], started()["layer.bn1.bias"])
    assert part(tmp_path, 0, run=7).keys() == part(tmp_path, 0, run=8).keys()


def test_a_restarted_node_finds_its_part_on_disk(site: Site, tmp_path: Path) -> None:
    site(message())
    again = Site(tmp_path)
    again(message(), context(0))  # with nothing in `context.state`
    assert torch.equal(again.seen[0]["layer.bn1.bias"], started()["layer.bn1.bias"] + 1)


def test_a_client_that_missed_rounds_keeps_its_own(site: Site) -> None:
    site(message())
    later = {name: value + 100 for name, value in started().items()}
    site(message(later))
    for name, value in started().items():
        assert torch.equal(site.seen[1][name], value + 1 if is_bn(name) else value + 100)


@pytest.mark.shows("A07")
@pytest.mark.parametrize("earlier", [0, 2])
def test_a_message_that_runs_twice_starts_both_times_from_the_part_before_it(
    site: Site, earlier: int
) -> None:
    for _ in range(earlier):
        site(message())
    one = message()
    content = one.content
    first = site(one)
    one.content = content
    second = site(one)
    assert all(torch.equal(site.seen[-1][n], site.seen[-2][n]) for n in started())
    assert all(torch.equal(states(first)[n], states(second)[n]) for n in started())
    site(message())
    expected = started()["layer.bn1.bias"] + earlier + 1
    assert torch.equal(site.seen[-1]["layer.bn1.bias"], expected)


def test_an_evaluate_message_uses_the_part_and_does_not_change_it(
    site: Site, tmp_path: Path
) -> None:
    site(message(kind="evaluate"))  # before the first training: as the message brings it
    assert torch.equal(site.seen[0]["layer.bn1.bias"], started()["layer.bn1.bias"])
    site(message())
    before = part(tmp_path, 0)
    reply = site(message(kind="evaluate"))
    assert torch.equal(site.seen[2]["layer.bn1.bias"], started()["layer.bn1.bias"] + 1)
    assert torch.equal(states(reply)["layer.bn1.bias"], started()["layer.bn1.bias"])
    assert all(torch.equal(value, before[name]) for name, value in part(tmp_path, 0).items())


def test_a_query_passes_and_takes_nothing_along(site: Site) -> None:
    site.reply = lambda msg: RecordDict({"answer": ConfigRecord({"n": 1})})
    asked = numbered(Message(RecordDict({"q": ConfigRecord({"a": 1})}), 0, "query"))
    assert site(asked).content["answer"]["n"] == 1
    site.reply = lambda msg: RecordDict({"all": ArrayRecord(started())})
    asked = numbered(Message(RecordDict({"q": ConfigRecord({"a": 1})}), 0, "query"))
    assert "which stays at the site" in site(asked).error.reason


def test_name_and_shape_decide_and_not_dtype(site: Site) -> None:
    floats = {name: value.float() for name, value in started().items()}
    reply = states(site(message(floats)))
    assert reply["layer.bn1.num_batches_tracked"].dtype == torch.float32


def test_silobn_shares_the_affine_part(tmp_path: Path) -> None:
    site = Site(tmp_path, "silobn")
    reply = states(site(message()))
    assert torch.equal(reply["layer.bn1.bias"], started()["layer.bn1.bias"] + 1)
    assert torch.equal(reply["layer.bn1.running_mean"], started()["layer.bn1.running_mean"])


@pytest.mark.parametrize(
    ("options", "where", "name"),
    [
        ({"site": "berlin"}, context(2), "berlin"),
        ({}, context(2), "2"),
        ({}, Context(7, 41, {}, RecordDict(), {}), "41"),
    ],
)
def test_a_part_is_named_by_site_then_partition_then_node(
    options: dict, where: Context, name: str, tmp_path: Path
) -> None:
    Site(tmp_path, **options)(message(), where)
    assert (tmp_path / "run-7" / f"{name}.safetensors").exists()


def test_two_sites_in_one_folder_do_not_meet(site: Site) -> None:
    site(message())
    site(message(), context(1))
    assert torch.equal(site.seen[1]["layer.bn1.bias"], started()["layer.bn1.bias"])


def refused(site: Site, state: Mapping[str, Tensor]) -> str:
    reply = site(message(state))
    assert not site.seen, "the app must not work on arrays of another model"
    assert "\n" not in reply.error.reason
    assert reply.error.code == ErrorCode.MOD_FAILED_PRECONDITION
    return reply.error.reason


@pytest.mark.shows("A03")
def test_arrays_of_another_model_are_refused_in_a_line(site: Site) -> None:
    less = {name: value for name, value in started().items() if name != "fc.bias"}
    assert "fc.bias is missing, expected (2,)" in refused(site, less)
    assert "odd is (1,), expected none" in refused(site, {**started(), "odd": torch.zeros(1)})
    other = {**started(), "fc.bias": torch.zeros(3)}
    assert "fc.bias is (3,), expected (2,)" in refused(site, other)
    numbered_ones = {str(i): value for i, value in enumerate(started().values())}
    assert "send ArrayRecord(model.state_dict())" in refused(site, numbered_ones)


@pytest.mark.shows("A03")
def test_a_reply_of_another_model_is_refused_and_nothing_kept(site: Site, tmp_path: Path) -> None:
    site.reply = lambda msg: RecordDict({"arrays": ArrayRecord({"odd": torch.zeros(1)})})
    assert "arrays of the app's reply do not fit" in site(message()).error.reason
    assert not (tmp_path / "run-7").exists()


@pytest.mark.shows("A06")
def test_an_app_that_fails_keeps_the_part_it_had(site: Site, tmp_path: Path) -> None:
    site(message())
    before = part(tmp_path, 0)

    def fails(msg: Message) -> RecordDict:
        raise ZeroDivisionError

    site.reply = fails
    with pytest.raises(ZeroDivisionError):
        site(message())
    assert all(torch.equal(value, before[name]) for name, value in part(tmp_path, 0).items())


@pytest.mark.shows("A05")
def test_a_damaged_part_is_named_and_not_started_anew(site: Site, tmp_path: Path) -> None:
    site(message())
    file = tmp_path / "run-7" / "0.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    reason = site(message()).error.reason
    assert str(file) in reason
    assert "sha256" in reason


@pytest.mark.shows("A04")
@pytest.mark.parametrize(
    ("method", "named"),
    [
        ("fedbn+median", "median is the server's"),
        ("fedbn+adam(0.1)", "adam(0.1, 0.9, 0.99, 0.001) is the server's"),
        ("fedbn+prox(0.1)", "prox(0.1) is the app's"),
        ("scaffold", "scaffold is the app's"),
        ("ditto", "ditto(0.1) is the app's"),
        ("fixbn", "fixbn(0.5) is the app's"),
        ("centralized", "pooled is the app's"),
        ("local_linear", "local_linear: the baseline is the app's"),
    ],
)
def test_what_a_mod_cannot_do_is_refused_by_name(method: str, named: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        keep_local(make_model, method, folder=tmp_path)
    assert named in str(error.value)


@pytest.mark.shows("A01")
def test_a_model_without_batchnorm_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="the model has no such entry"):
        keep_local(plain_net, "fedbn", folder=tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


@pytest.mark.shows("A02")
def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FedbnError, match=r"cannot write .*file"):
        keep_local(make_model, folder=tmp_path / "file" / "kept")


@pytest.mark.shows("A02")
def test_a_folder_that_is_lost_later_is_one_line_at_both_ends(site: Site, tmp_path: Path) -> None:
    tmp_path.joinpath("run-7").write_text("in the way")
    assert "cannot write" in site(message()).error.reason


def test_the_folder_is_the_site_s_alone(tmp_path: Path) -> None:
    Site(tmp_path / "kept")(message())
    assert (tmp_path / "kept").stat().st_mode & 0o077 == 0


def test_the_app_s_own_draws_are_left_alone(tmp_path: Path) -> None:
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    keep_local(make_model, folder=tmp_path)
    assert torch.equal(torch.rand(1), expected)


def test_the_mod_is_at_most_150_lines() -> None:
    from fedbn.flower import client_mod

    assert len(Path(client_mod.__file__).read_text().splitlines()) <= 150
