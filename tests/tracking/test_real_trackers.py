"""Each tracker with its real package, offline, read back with that package's own reader.

`make test-trackers` runs these where the packages are; without a package its tests are skipped and say so.
"""

from __future__ import annotations

import json
import struct
import time
from pathlib import Path
from typing import Any

import pytest

from podium.config.schema import Config
from podium.tracking import Sample, make_trackers

STEPS = {1: {"critic/score/mean": 0.25, "val-core/addition/reward/mean@4": 0.5}, 2: {"critic/score/mean": 0.75}}
LATER = {3: {"critic/score/mean": 0.875}}
PATIENCE_S = 180
"""On a busy machine a package alone can take longer to start than the 30 s a run waits for it at its end."""
SAMPLES = [Sample("1+2=", "three", 0.0, gts="3", data_source="addition")]


def make_config(folder: Path, name: str) -> Config:
    config = Config()
    config.trainer.default_local_dir = str(folder)
    config.trainer.logger = [name]  # type: ignore[list-item]
    return config


def record(folder: Path, name: str, steps: dict[int, dict[str, float]], run_id: str | None = None) -> str | None:
    """Log as a run does; the id under which the run can go on."""
    (tracker,) = make_trackers(make_config(folder, name))
    if run_id is not None:
        tracker.resume(run_id)
    for step, metrics in steps.items():
        tracker.log(step, metrics)
    if run_id is None:
        tracker.samples(2, SAMPLES)
    tracker.close()
    tracker._thread.join(PATIENCE_S)  # a run goes on without a slow tracker; its files are read when it is done
    assert not tracker._thread.is_alive() and not tracker._failed and not tracker.dropped
    time.sleep(1.1 - time.time() % 1)  # W&B and SwanLab name their folders by the second
    return tracker.run_id


def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed; make test-trackers installs it")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    record(tmp_path, "tensorboard", STEPS)
    record(tmp_path, "tensorboard", {2: {"critic/score/mean": 0.7}, **LATER}, run_id="")
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    score = [(event.step, pytest.approx(event.value)) for event in events.Scalars("critic/score/mean")]
    assert score == [(1, 0.25), (2, 0.7), (3, 0.875)], "a resumed run replaces the steps it does again"
    assert events.Scalars("val-core/addition/reward/mean@4")[0].value == 0.5
    assert b"three" in events.Tensors("val/generations/0/text_summary")[0].tensor_proto.string_val[0]


def log_records(data: bytes) -> list[bytes]:
    """The records of a log in LevelDB's format: since 0.31 the package reads its files in Go only."""
    records, parts, at = [], b"", 7
    while data:
        space = 32768 - at % 32768
        if space < 7:
            data, at = data[space:], at + space
            continue
        _, size, kind = struct.unpack("<IHB", data[:7])
        parts += data[7 : 7 + size]
        data, at = data[7 + size :], at + 7 + size
        if kind in (1, 4):  # whole, or the last part
            records.append(parts)
            parts = b""
    return records


def test_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed; make test-trackers installs it")
    from wandb.proto import wandb_internal_pb2

    monkeypatch.setenv("WANDB_MODE", "offline")
    run_id = record(tmp_path, "wandb", STEPS)
    record(tmp_path, "wandb", LATER, run_id)
    seen: dict[int, dict[str, Any]] = {}
    files = sorted((tmp_path / "wandb").glob("offline-run-*/*.wandb"))
    assert files and all(str(run_id) in file.name for file in files), "both parts belong to one run"
    for file in files:
        for data in log_records(file.read_bytes()[7:]):
            entry = wandb_internal_pb2.Record()
            entry.ParseFromString(data)
            items = {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in entry.history.item}
            if "_step" in items:
                seen.setdefault(items["_step"], {}).update(items)
    assert {step: values["critic/score/mean"] for step, values in seen.items()} == {1: 0.25, 2: 0.75, 3: 0.875}
    assert seen[2]["val/generations/_type"] == "table-file"


def test_swanlab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("swanlab", reason="swanlab is not installed; make test-trackers installs it")
    from swanlab.proto.swanlab.record.v1.record_pb2 import Record
    from swanlab.sdk.internal.core_python.store import DataStoreReader

    monkeypatch.setenv("SWANLAB_MODE", "offline")
    run_id = record(tmp_path, "swanlab", STEPS)
    record(tmp_path, "swanlab", LATER, run_id)
    files = sorted((tmp_path / "swanlog").glob("run-*/*.swanlab"))
    assert len(files) == 2 and all(str(run_id) in file.name for file in files)
    seen: dict[int, float] = {}
    for file in files:
        reader = DataStoreReader()
        reader.open(str(file))
        for data in reader:
            entry = Record()
            entry.ParseFromString(data)
            if entry.HasField("scalar") and entry.scalar.key == "critic/score/mean":
                seen[entry.scalar.step] = entry.scalar.value.number
    assert seen == {1: 0.25, 2: 0.75, 3: 0.875}
    assert "three" in next((tmp_path / "swanlog").glob("run-*/media/text/*.txt")).read_text()


def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow", reason="mlflow is not installed; make test-trackers installs it")
    from mlflow import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run_id = record(tmp_path, "mlflow", STEPS)
    assert run_id is not None
    assert record(tmp_path, "mlflow", LATER, run_id) == run_id
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    history = client.get_metric_history(run_id, "critic/score/mean")
    assert sorted((metric.step, metric.value) for metric in history) == [(1, 0.25), (2, 0.75), (3, 0.875)]
    run = client.get_run(run_id)
    assert run.data.metrics["val-core/addition/reward/mean_at_4"] == 0.5
    assert run.data.params["trainer.project_name"] == "podium" and run.info.status == "FINISHED"
    assert [item.path for item in client.list_artifacts(run_id, "generations")] == ["generations/2.jsonl"]
