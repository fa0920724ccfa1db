"""TensorBoard and MLflow: with stand-ins everywhere, and with the real ones where installed."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from commanding import call
from fedbn.tracking.mlflow import MLflow
from fedbn.tracking.tensorboard import TensorBoard
from scores import record

JOB = ("fedbn+prox(0.1)", "default", 0)
ROUND = [record(0.25, "a/b"), record(0.75, "c")]


class Writer:
    """Stands in for `SummaryWriter`: what was written, by folder."""

    written: dict[str, list[tuple[str, float, int]]]

    def __init__(self, place: str):
        Path(place).mkdir(parents=True)
        self._own = self.written.setdefault(place, [])
        self._own.clear()

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self._own.append((name, value, step))

    def add_text(self, name: str, text: str, step: int) -> None:
        assert name == "configuration"

    def close(self) -> None:
        self._own.append(("closed", 0, 0))


@pytest.fixture
def writer(monkeypatch: pytest.MonkeyPatch) -> type[Writer]:
    module = ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = Writer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    Writer.written = {}
    return Writer


def test_tensorboard_has_a_folder_a_job_and_a_step_a_round(
    writer: type[Writer], tmp_path: Path
) -> None:
    tracker = TensorBoard(tmp_path, {"seeds": [0]})
    tracker.log(JOB, 1, ROUND)
    tracker.log(JOB, 2, ROUND[:1])
    tracker.done(JOB)
    tracker.close()
    (place, written), *others = writer.written.items()
    assert (Path(place), others) == (tmp_path / "fedbn+prox(0.1)" / "default" / "seed-0", [])
    assert written == [
        ("mean/test accuracy", 0.5, 1),
        ("test accuracy/a_b", 0.25, 1),
        ("test accuracy/c", 0.75, 1),
        ("mean/test accuracy", 0.25, 2),
        ("test accuracy/a_b", 0.25, 2),
        ("closed", 0, 0),
    ]


def test_tensorboard_starts_a_job_anew(writer: type[Writer], tmp_path: Path) -> None:
    for _ in range(2):  # Writer fails where an earlier folder is left
        tracker = TensorBoard(tmp_path, {})
        tracker.log(JOB, 1, ROUND[:1])
        tracker.close()
    (written,) = writer.written.values()
    assert [step for _, _, step in written] == [1, 1, 0]


class Client:
    """Stands in for `MlflowClient`; what was logged outlives it, as on a server."""

    metrics: dict[str, list[Any]]
    status: dict[str, str]
    params: dict[str, list[Any]]

    def __init__(self, tracking_uri: str):
        self.uri = tracking_uri

    def get_experiment_by_name(self, name: str) -> Any:
        return SimpleNamespace(experiment_id="7")

    def create_run(self, experiment: str, run_name: str, tags: dict[str, str]) -> Any:
        name = f"run {len(self.metrics)}"
        self.metrics[name], self.params[name], self.status[name] = [], [], "RUNNING"
        return SimpleNamespace(info=SimpleNamespace(run_id=name))

    def log_batch(self, run: str, metrics: Any = (), params: Any = ()) -> None:
        assert len(metrics) <= 1000
        self.metrics[run] += metrics
        self.params[run] += params

    def get_metric_history(self, run: str, key: str) -> list[Any]:
        if run not in self.metrics:
            raise sys.modules["mlflow.exceptions"].MlflowException("no such run")
        return [number for number in self.metrics[run] if number.key == key]

    def update_run(self, run: str, status: str) -> None:
        self.status[run] = status

    def set_terminated(self, run: str, status: str) -> None:
        self.status[run] = status


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> type[Client]:
    for name in ("tracking", "entities", "exceptions"):
        monkeypatch.setitem(sys.modules, f"mlflow.{name}", ModuleType(f"mlflow.{name}"))
    sys.modules["mlflow.tracking"].MlflowClient = Client  # type: ignore[attr-defined]
    entities: Any = sys.modules["mlflow.entities"]
    entities.Param = lambda key, value: SimpleNamespace(key=key, value=value)
    entities.Metric = lambda key, value, timestamp, step: SimpleNamespace(
        key=key, value=value, step=step
    )
    sys.modules["mlflow.exceptions"].MlflowException = LookupError  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow", ModuleType("mlflow"))
    for key in ("DISABLE_TELEMETRY", "HTTP_REQUEST_MAX_RETRIES", "HTTP_REQUEST_TIMEOUT"):
        monkeypatch.setenv(f"MLFLOW_{key}", "1")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    Client.metrics, Client.status, Client.params = {}, {}, {}
    return Client


def test_mlflow_has_a_run_a_job_with_parameters(client: type[Client], tmp_path: Path) -> None:
    tracker = MLflow(tmp_path, {"training": {"lr": 0.1}, "seeds": [0]})
    tracker.log(JOB, 1, ROUND)
    tracker.log(("fedavg", "default", 1), 1, ROUND)
    tracker.done(JOB)
    tracker.close()
    assert client.status == {"run 0": "FINISHED", "run 1": "KILLED"}
    assert {p.key: p.value for p in client.params["run 0"]} == {
        "training.lr": "0.1",
        "seeds": "[0]",
    }
    assert [(m.key, m.value, m.step) for m in client.metrics["run 0"]] == [
        ("mean/test accuracy", 0.5, 1),
        ("test accuracy/a_b", 0.25, 1),
        ("test accuracy/c", 0.75, 1),
        ("round", 1, 1),
    ]


def test_mlflow_goes_on_in_the_same_run_and_logs_no_step_twice(
    client: type[Client], tmp_path: Path
) -> None:
    for rounds in ([1, 2], [1, 2, 3]):  # a resumed run is told from its beginning
        tracker = MLflow(tmp_path, {})
        for round in rounds:
            tracker.log(JOB, round, ROUND[:1])
        tracker.close()
    assert list(client.metrics) == ["run 0"]
    assert [m.step for m in client.metrics["run 0"] if m.key == "round"] == [1, 2, 3]


def test_mlflow_begins_anew_where_the_run_was_deleted(client: type[Client], tmp_path: Path) -> None:
    MLflow(tmp_path, {}).log(JOB, 1, ROUND)
    client.metrics.clear()
    MLflow(tmp_path, {}).log(JOB, 1, ROUND)
    assert list(client.metrics) == ["run 0"]
    assert len(client.metrics["run 0"]) == 4


def test_mlflow_takes_the_server_that_the_environment_names(
    client: type[Client], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow.example")
    MLflow(tmp_path, {}).log(JOB, 1, ROUND)
    kept = json.loads((tmp_path / "runs.json").read_text())
    assert kept == {"http://mlflow.example": {"fedbn+prox(0.1) default seed 0": "run 0"}}


def test_mlflow_takes_many_numbers_in_pieces(client: type[Client], tmp_path: Path) -> None:
    MLflow(tmp_path, {}).log(JOB, 1, [record(0.5, f"site {i}") for i in range(1500)])
    assert len(client.metrics["run 0"]) == 1502


def logged(sites: Path, tmp_path: Path, name: str) -> Path:
    """A run of two rounds with the real package, resumed once it is finished."""
    run = tmp_path / "run"
    asked = ("--model", "mlp", "--rounds", 2, "--seed", 0, "--method", "fedbn", "--workers", 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the packages' own affairs
        first = call("run", "--data", sites, *asked, "--out", run, "--log", name)
        again = call("resume", run, "--log", name)
    assert (first.code, again.code) == (0, 0), first.err + again.err
    assert "left out" not in first.err + again.err
    return run


def test_the_real_tensorboard(sites: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs tensorboard: pip install 'fedbn[tensorboard]'")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = logged(sites, tmp_path, "tensorboard")
    found = EventAccumulator(str(run / "tensorboard" / "fedbn" / "default" / "seed-0"))
    found.Reload()
    assert [event.step for event in found.Scalars("test accuracy/a")] == [1, 2]
    assert found.Tags()["tensors"] == ["configuration/text_summary"]


def test_the_real_mlflow(sites: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        why = "needs mlflow: pip install 'fedbn[mlflow]'"
        pytest.importorskip("mlflow", reason=why)
        pytest.importorskip("sqlalchemy", reason=why)
        from mlflow.tracking import MlflowClient
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run = logged(sites, tmp_path, "mlflow")
    found = MlflowClient(tracking_uri=f"sqlite:///{run / 'mlflow' / 'mlflow.db'}")
    experiment = found.get_experiment_by_name("fedbn")
    (job,) = found.search_runs([experiment.experiment_id])
    history = found.get_metric_history(job.info.run_id, "test accuracy/a")
    assert [number.step for number in history] == [1, 2]
    assert (job.info.status, job.data.params["training.rounds"]) == ("FINISHED", "2")
