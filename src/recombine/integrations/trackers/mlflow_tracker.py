"""MLflow: one run per run directory, found again by its tag. MLFLOW_TRACKING_URI says where."""

from __future__ import annotations

import os
from typing import Any

from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from recombine.foundation.errors import InputError
from recombine.integrations.trackers import flatten_row, flatten_scores, flatten_settings
from recombine.training.directory import RunDirectory
from recombine.training.run import Tracker
from recombine.training.schema import MetricsRow, ResultFile

TAG = "recombine.run"


class MLflow(Tracker):
    """Logs rows to an MLflow run."""

    name = "mlflow"

    def start(self, run: RunDirectory, step: int) -> None:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "recombine")
        try:
            self.client = _connect()
            experiment = self.client.get_experiment_by_name(name)
            number = self.client.create_experiment(name) if experiment is None else experiment.experiment_id
            records = self.client.search_runs([number], f"tags.`{TAG}` = '{run.path.name}'", max_results=1)
            if records:
                self.id = records[0].info.run_id
                self.client.update_run(self.id, status="RUNNING")
                return
            self.id = self.client.create_run(number, tags={TAG: run.path.name}, run_name=run.path.name).info.run_id
        except MlflowException as error:
            reason = str(error).split("\n")[0]
            raise InputError(f"mlflow cannot start ({reason}): expected MLFLOW_TRACKING_URI to be reachable") from None
        for key, value in flatten_settings(run.config).items():
            self.client.log_param(self.id, key, value)

    def add(self, row: MetricsRow) -> None:
        for name, value in flatten_row(row).items():
            self.client.log_metric(self.id, name, value, step=row["step"])

    def finish(self, result: ResultFile) -> None:
        for name, value in flatten_scores(result["scores"]).items():
            self.client.log_metric(self.id, name, value, step=result["steps"])
        self.client.set_terminated(self.id)

    def close(self) -> None:
        if self.client.get_run(self.id).info.status == "RUNNING":  # stopped before the end
            self.client.set_terminated(self.id, status="KILLED")


def _connect() -> Any:
    """Untyped, because its methods differ between versions."""
    return MlflowClient()


def build() -> Tracker:
    """The adapter."""
    return MLflow()
