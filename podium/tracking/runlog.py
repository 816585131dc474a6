"""The run folder: metrics, events, samples and the config of a run. It is the record; everything else reads it.

    <run>/config.yaml  metrics.jsonl  events.jsonl  console.log
          rollouts/<step>.jsonl  validation/<step>.jsonl

Metrics are one line per step: what is known of a step later (its validation, how long its save took) joins its line,
before the rest. A run that resumes at step N cuts what came after N, so that the record equals that of an unbroken run.
Checkpoints and quarantined rows live in the same folder but are written by others.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from podium.config.load import save_config
from podium.config.schema import Config
from podium.metric import Metric, reduce_metrics
from podium.tracking.folder_lock import FolderLock
from podium.tracking.jsonl import JsonLines, read_lines, write_lines


@dataclass(frozen=True)
class Sample:
    """One response as the dumps and the console show it."""

    input: str
    output: str
    score: float | None
    """None: unscored."""
    gts: Any = None
    """The ground truth."""
    uid: str = ""
    data_source: str = ""
    stop_reason: str = ""
    turns: int = 1
    policy_version: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)
    """What else the reward function returned."""

    def record(self, step: int) -> dict[str, Any]:
        named = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "extra"}
        first = {name: named.pop(name) for name in ("input", "output", "gts", "score")}
        record = {**first, "step": step, **named}
        return record | {name: value for name, value in self.extra.items() if name not in record}


class RunLog:
    """Opens (or makes) a run folder, for this process alone. Nothing old is touched until `begin` says where the run
    stands."""

    def __init__(
        self, folder: str | Path, *, rollout_dir: str | Path | None = None, validation_dir: str | Path | None = None
    ) -> None:
        self.folder = Path(folder)
        self.rollout_dir = Path(rollout_dir) if rollout_dir else self.folder / "rollouts"
        self.validation_dir = Path(validation_dir) if validation_dir else self.folder / "validation"
        self._lock = FolderLock(self.folder)  # two processes would spoil each other's record and checkpoints
        for own in (self.folder, self.folder / "rollouts", self.folder / "validation"):
            _remove_half_written(own)
        self._metrics = JsonLines(self.folder / "metrics.jsonl")
        self._events = JsonLines(self.folder / "events.jsonl")
        self._last: dict[str, Any] | None = None
        """The last line of the metrics."""

    @classmethod
    def from_config(cls, config: Config) -> RunLog:
        trainer = config.trainer
        return cls(
            trainer.default_local_dir, rollout_dir=trainer.rollout_data_dir, validation_dir=trainer.validation_data_dir
        )

    def begin(self, resumed_step: int | None) -> None:
        """Say at which finished step the run goes on; None: it is new. Call it before the first metrics.

        A resumed run drops the metrics and samples of later steps. A new run in a used folder moves the old record to
        `previous/<n>/`.
        """
        if resumed_step is None:
            moved = self._set_aside()
            self.event("started", **({"previous_record": str(moved)} if moved else {}))
            return
        self._last = self._metrics.keep(lambda record: record.get("step", 0) <= resumed_step)
        for folder in (self.rollout_dir, self.validation_dir):
            for path in _steps(folder):
                if int(path.stem) > resumed_step:
                    path.unlink()
        self.event("resumed", step=resumed_step)

    def log(self, step: int, metrics: Mapping[str, Metric | float]) -> dict[str, float]:
        """Add metrics of a step to its line; returns them as plain numbers, non-finite ones included."""
        numbers = reduce_metrics(metrics)
        odd = sorted(name for name, value in numbers.items() if not math.isfinite(value))
        record = {"step": step, **{name: numbers[name] for name in sorted(numbers)}}
        if self._last is not None and self._last.get("step") == step:
            # What is new stands first: a reader of a long file sees by that that the line has names of its own.
            record |= {name: value for name, value in self._last.items() if name not in record}
            self._metrics.amend(record)
        else:
            self._metrics.append(record)
        self._last = record
        if odd:
            self.event("non_finite_metrics", step=step, metrics={name: str(numbers[name]) for name in odd})
        return numbers

    def event(self, kind: str, **details: Any) -> None:
        """Append something that happened: a fault, a restart, a save."""
        self._events.append({"time": round(time.time(), 3), "kind": kind, **details})

    def flush(self) -> None:
        """Raise unless every line so far is in its file."""
        self._metrics.flush()
        self._events.flush()

    def save_config(self, config: Config) -> Path:
        path = self.folder / "config.yaml"
        save_config(config, path)
        return path

    def dump_rollouts(self, step: int, samples: Iterable[Sample]) -> Path:
        return _dump(self.rollout_dir, step, samples)

    def dump_validation(self, step: int, samples: Iterable[Sample]) -> Path:
        return _dump(self.validation_dir, step, samples)

    def close(self) -> None:
        self._close_files()
        self._lock.release()

    def _close_files(self) -> None:
        self._metrics.close()
        self._events.close()

    def __enter__(self) -> RunLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _set_aside(self) -> Path | None:
        """Move the record of an earlier run out of the way, if there is one."""
        record = {"metrics.jsonl": self._metrics.path, "events.jsonl": self._events.path}
        dumps = {"rollouts": self.rollout_dir, "validation": self.validation_dir}
        record |= {name: folder for name, folder in dumps.items() if _steps(folder)}
        if len(record) == 2 and not self._metrics.path.stat().st_size:
            return None
        number = sum(1 for _ in (self.folder / "previous").glob("*")) + 1
        target = self.folder / "previous" / str(number)
        target.mkdir(parents=True)
        self._close_files()
        for name, path in record.items():
            shutil.move(str(path), target / name)
        self._metrics = JsonLines(record["metrics.jsonl"])
        self._events = JsonLines(record["events.jsonl"])
        return target


def read_metrics(folder: str | Path) -> list[dict[str, Any]]:
    """The metrics of a run, one dict per step in order.

    Where a full disk or an older version left several lines of a step they are merged, the later one wins.
    """
    steps: dict[int, dict[str, Any]] = {}
    for record in read_lines(Path(folder) / "metrics.jsonl"):
        steps.setdefault(int(record.get("step", 0)), {}).update(record)
    return [steps[step] for step in sorted(steps)]


def read_events(folder: str | Path) -> list[dict[str, Any]]:
    return list(read_lines(Path(folder) / "events.jsonl"))


def read_samples(folder: str | Path, step: int) -> list[dict[str, Any]]:
    """The samples of one dump, from a `rollouts` or `validation` folder."""
    return list(read_lines(Path(folder) / f"{step}.jsonl"))


def _dump(folder: Path, step: int, samples: Iterable[Sample]) -> Path:
    path = folder / f"{step}.jsonl"
    write_lines(path, (sample.record(step) for sample in samples))
    return path


def _remove_half_written(folder: Path) -> None:
    """Files that a process which was killed was about to put in place (jsonl.write_lines, save_config)."""
    for path in folder.glob(".*.[0-9]*"):
        if path.suffix[1:].isdigit():
            path.unlink(missing_ok=True)


def _steps(folder: Path) -> list[Path]:
    return [path for path in folder.glob("*.jsonl") if path.stem.isdigit()]
