"""MLflow: one MLflow run a job, on MLFLOW_TRACKING_URI or in RUN/mlflow."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedbn.errors import FedbnError
from fedbn.runs.folder import to_json, write_atomically
from fedbn.text import flat
from fedbn.tracking import Job, Names, numbers

NEEDS = ("mlflow", "sqlalchemy", "alembic")
_BATCH = 1000  # numbers that MLflow takes at once
# Nothing of a run leaves unasked, and a server that is away is given up soon.
_MANNERS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}
_LONGEST = 500  # signs of a parameter's value that every MLflow server takes


def mlflow(folder: Path, config: Mapping[str, Any]) -> MLflow:
    """Log to the server of MLFLOW_TRACKING_URI, or to a database in RUN/mlflow."""
    return MLflow(folder / "mlflow", config)


class MLflow:
    """Keeps which MLflow run is which job, so that a resumed run goes on in the same ones."""

    def __init__(self, folder: Path, config: Mapping[str, Any]):
        for key, value in _MANNERS.items():
            os.environ.setdefault(key, value)
        from mlflow.tracking import MlflowClient

        for name in ("mlflow", "alembic"):  # after the import, which sets levels of its own
            logging.getLogger(name).setLevel(logging.WARNING)
        folder.mkdir(exist_ok=True)
        local = f"sqlite:///{(folder / 'mlflow.db').resolve()}"
        self._uri = os.environ.get("MLFLOW_TRACKING_URI") or local
        self._client = MlflowClient(tracking_uri=self._uri)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "fedbn")
        if found := self._client.get_experiment_by_name(name):
            self._experiment = str(found.experiment_id)
        else:
            place = (folder / "artifacts").resolve().as_uri() if self._uri == local else None
            self._experiment = str(self._client.create_experiment(name, artifact_location=place))
        self._file = folder / "runs.json"
        self._config = config
        self._names = Names()
        self._runs: dict[Job, str] = {}
        self._steps: dict[Job, int] = {}

    def log(self, job: Job, round: int, records: Sequence[Mapping[str, Any]]) -> None:
        """Log a round's numbers, unless they are there."""
        from mlflow.entities import Metric

        if job not in self._runs:
            self._runs[job], self._steps[job] = self._known(job) or (self._begun(job), 0)
        run, now = self._runs[job], int(time.time() * 1000)
        found = numbers(records, self._names)
        if round <= self._steps[job]:
            return
        # The round itself comes last: where it is there, all of the others are.
        named = found | {"round": round}
        values = [Metric(name, value, now, round) for name, value in named.items()]
        for begin in range(0, len(values), _BATCH):
            self._client.log_batch(run, metrics=values[begin : begin + _BATCH])
        self._steps[job] = round

    def done(self, job: Job) -> None:
        """Mark a job's run as finished."""
        if job in self._runs:
            self._client.set_terminated(self._runs.pop(job), "FINISHED")

    def close(self) -> None:
        """Mark what was not finished."""
        for run in self._runs.values():
            self._client.set_terminated(run, "KILLED")

    def _known(self, job: Job) -> tuple[str, int] | None:
        """The run that an earlier part of this job logged to, and how far it came."""
        from mlflow.exceptions import MlflowException

        run = self._read().get(self._uri, {}).get(_label(job))
        if run is None:
            return None
        try:
            history = self._client.get_metric_history(run, "round")
            self._client.update_run(run, status="RUNNING")
        except MlflowException:
            return None  # deleted since
        return str(run), max((number.step for number in history), default=0)

    def _begun(self, job: Job) -> str:
        from mlflow.entities import Param

        method, setting, seed = job
        tags = {"method": method, "setting": setting, "seed": str(seed)}
        run = self._client.create_run(self._experiment, run_name=_label(job), tags=tags)
        leaves = [leaf for leaf in flat(self._config) if leaf[1] != {}]
        params = [Param(key[:250], str(value)[:_LONGEST]) for key, value in leaves]
        self._client.log_batch(run.info.run_id, params=params[:100])
        kept = self._read()
        kept.setdefault(self._uri, {})[_label(job)] = run.info.run_id
        write_atomically(self._file, to_json(kept))
        return str(run.info.run_id)

    def _read(self) -> dict[str, dict[str, str]]:
        if not self._file.exists():
            return {}
        try:
            return dict(json.loads(self._file.read_bytes()))
        except ValueError as error:
            raise FedbnError(f"{self._file}: damaged; remove it to log anew") from error


def _label(job: Job) -> str:
    method, setting, seed = job
    return f"{method} {setting} seed {seed}"
