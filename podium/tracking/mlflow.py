"""MLflow: the server of `MLFLOW_TRACKING_URI`, or a database in the run folder. A resumed run goes on under its id."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from podium.config.schema import Config
from podium.tracking.optional import COLUMNS, public_config, require_package, table_rows
from podium.tracking.runlog import Sample
from podium.tracking.trackers import register_tracker

BATCH = 1000  # the most numbers one call may send
FORBIDDEN = re.compile(r"[^\w\-. :/]")


class MlflowTracker:
    def __init__(self, config: Config) -> None:
        require_package("mlflow", "mlflow")
        self.config = config
        self.run_id: str | None = None
        self._client: Any = None

    def resume(self, run_id: str) -> None:
        """Go on with an earlier run; before the first numbers."""
        self.run_id = run_id

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        client = self._open()
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        entries = [Metric(metric_name(name), value, now, step) for name, value in metrics.items()]
        for start in range(0, len(entries), BATCH):
            client.log_batch(self.run_id, metrics=entries[start : start + BATCH])

    def samples(self, step: int, samples: Sequence[Sample]) -> None:
        records = [dict(zip(COLUMNS, row, strict=True)) for row in table_rows(step, samples)]
        text = "".join(json.dumps(record, ensure_ascii=False, default=str) + "\n" for record in records)
        self._open().log_text(self.run_id, text, f"generations/{step}.jsonl")

    def close(self) -> None:
        if self._client is not None:
            self._client.set_terminated(self.run_id)

    def _open(self) -> Any:
        if self._client is None:
            from mlflow import MlflowClient
            from mlflow.entities import Param

            trainer = self.config.trainer
            folder = Path(trainer.default_local_dir).absolute()
            folder.mkdir(parents=True, exist_ok=True)
            address = os.environ.get("MLFLOW_TRACKING_URI")
            client = MlflowClient(tracking_uri=address or f"sqlite:///{folder / 'mlflow.db'}")
            if self.run_id is None:
                found = client.get_experiment_by_name(trainer.project_name)
                place = None if address else (folder / "mlartifacts").as_uri()
                experiment = found.experiment_id if found else client.create_experiment(trainer.project_name, place)
                self.run_id = client.create_run(experiment, run_name=trainer.experiment_name).info.run_id
                settings = [Param(key, str(value)[:500]) for key, value in _flat(public_config(self.config))]
                for start in range(0, len(settings), 100):
                    client.log_batch(self.run_id, params=settings[start : start + 100])
            else:
                client.update_run(self.run_id, status="RUNNING")
            self._client = client
        return self._client


def metric_name(name: str) -> str:
    """MLflow knows no @ in names: mean@4 is mean_at_4."""
    return FORBIDDEN.sub("_", name.replace("@", "_at_"))


def _flat(value: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    flat: list[tuple[str, Any]] = []
    for key, item in value.items():
        if isinstance(item, Mapping):
            flat += _flat(item, f"{prefix}{key}.")
        else:
            flat.append((FORBIDDEN.sub("_", f"{prefix}{key}"), item))
    return flat


register_tracker("mlflow")(MlflowTracker)
