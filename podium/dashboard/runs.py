"""One run, and all runs: the readers of a run folder, kept between requests so that only what is new is read."""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from podium.dashboard.columns import Floats, Ints, MetricColumns, last_values
from podium.dashboard.configs import read_config
from podium.dashboard.folders import RunsFolder
from podium.dashboard.follow import Records, parse_object, read_tail
from podium.dashboard.samples import SampleFile
from podium.dashboard.status import describe, severity, standing, total_steps
from podium.tracking.headline import headline_values, mean_score

Kind = Literal["rollouts", "validation"]
WATCHED = ("metrics.jsonl", "events.jsonl", "console.log", "config.yaml", "rollouts", "validation", "quarantine.jsonl")
TAIL_BYTES = 1 << 18
MAX_SAMPLE_FILES, MAX_SAMPLES = 32, 2_000_000
"""How much stays indexed of the dumps that were looked at."""
RESCAN_S = 2.0
MAX_WARM_RUNS = 20


@dataclass(frozen=True)
class Glance:
    """What a summary takes from the files, and what its status is judged by."""

    shown: dict[str, Any]
    events: list[dict[str, Any]]
    log_tail: bytes


class Run:
    def __init__(self, folders: RunsFolder, name: str, path: Path) -> None:
        self.name, self.path = name, path
        self._folders = folders
        self._columns, self._events = MetricColumns(), Records()
        self._sample_files: OrderedDict[Path, tuple[tuple[int, int], SampleFile]] = OrderedDict()
        self._glance: tuple[dict[str, str], Glance] | None = None
        self._locks = {part: threading.Lock() for part in ("columns", "events", "samples")}

    def versions(self) -> dict[str, str]:
        """A word per watched file or folder that changes when its content does."""
        versions = {}
        for name in WATCHED:
            try:
                info = os.stat(self.path / name)
            except OSError:
                continue
            versions[name.partition(".")[0]] = f"{info.st_mtime_ns:x}-{info.st_size:x}-{info.st_ino:x}"
        return versions

    # ---- metrics

    def metric_names(self) -> list[str]:
        path = self._file("metrics.jsonl")
        if path is not None and not self._columns.is_current(path):
            with self._locks["columns"]:
                self._columns.refresh(path)
        return sorted(self._columns.names)

    def curves(self, names: Sequence[str]) -> dict[str, tuple[Ints, Floats]]:
        """Steps and values of metrics; empty arrays for those the run does not have."""
        path = self._file("metrics.jsonl")
        if path is None:
            return dict.fromkeys(names, (np.empty(0, np.int64), np.empty(0)))
        known = self._columns.peek(path, names)
        if known is not None:
            return known
        with self._locks["columns"]:
            return self._columns.read(path, names)

    def step_record(self, step: int | None) -> dict[str, Any]:
        """All metrics of a step, of the last one for None."""
        path = self._file("metrics.jsonl")
        if path is None:
            return {}
        with self._locks["columns"]:
            self._columns.refresh(path)
            wanted = self._columns.last_step if step is None else step
            return {} if wanted is None else self._columns.record(path, wanted)

    # ---- events, log, config

    def events(self) -> list[dict[str, Any]]:
        with self._locks["events"]:
            return list(self._events.refresh(self._file("events.jsonl")))

    def config(self) -> dict[str, Any]:
        return read_config(self._file("config.yaml"))

    def log_tail(self, num_bytes: int = TAIL_BYTES) -> bytes:
        return self._tail("console.log", num_bytes)

    def quarantine(self, limit: int) -> list[dict[str, Any]]:
        lines = self._tail("quarantine.jsonl", TAIL_BYTES).splitlines()[-limit:]
        return [record for line in lines if (record := parse_object(line)) is not None]

    # ---- samples

    def sample_steps(self, kind: Kind) -> list[int]:
        """The steps with a dump, in order."""
        folder = self._folders.folder(self.path, kind)
        if folder is None:
            return []
        names = (entry.name.partition(".") for entry in os.scandir(folder))
        return sorted(int(stem) for stem, _, rest in names if rest == "jsonl" and stem.isascii() and stem.isdigit())

    def samples(self, kind: Kind, step: int) -> SampleFile | None:
        """The dump of a step. Those looked at last stay indexed."""
        path = self._file(kind, f"{step}.jsonl")
        if path is None:
            return None
        with self._locks["samples"]:
            info = path.stat()
            version = (info.st_mtime_ns, info.st_size)
            known = self._sample_files.get(path)
            if known is None or known[0] != version:
                known = (version, SampleFile(path))
            self._sample_files[path] = known
            self._sample_files.move_to_end(path)
            while len(self._sample_files) > 1 and (
                len(self._sample_files) > MAX_SAMPLE_FILES
                or sum(dump.num_samples for _, dump in self._sample_files.values()) > MAX_SAMPLES
            ):
                self._sample_files.popitem(last=False)
            return known[1]

    # ---- the run at a glance

    def summary(self) -> dict[str, Any]:
        """What the overview shows. Only what time changes, the status, is worked out when no file changed."""
        versions = self.versions()
        if self._glance is None or self._glance[0] != versions:
            self._glance = (versions, self._look())
        glance = self._glance[1]
        updated = self.updated_at()
        silence_s = None if updated is None else max(0.0, time.time() - updated)
        state = standing(
            glance.events,
            glance.log_tail,
            total_steps=glance.shown["total_steps"],
            silence_s=silence_s,
            step_s=glance.shown["step_s"],
        )
        live = {"status": state.status, "reason": state.reason, "updated_at": updated, "versions": versions}
        return glance.shown | live

    def _look(self) -> Glance:
        config, events, log_tail = self.config(), self.events(), self.log_tail()
        values = last_values(self._tail("metrics.jsonl", TAIL_BYTES))
        numbers = _numbers(values)
        started = next((event.get("time") for event in events), None)
        project, _, short = self.name.rpartition("/")
        shown = {
            "id": self.name,
            "name": short,
            "project": project,
            "step": values.get("step", 0),
            "total_steps": total_steps(config, log_tail),
            "step_s": numbers.get("timing_s/step"),
            "started_at": started if isinstance(started, int | float) else None,
            "headline": headline_values(numbers),
            "validation": self._validation(numbers),
            "faults": _faults(events),
            "about": _about(config),
        }
        return Glance(shown, events, log_tail)

    def _validation(self, last: dict[str, float]) -> dict[str, float | None]:
        """The first and the newest validation score that the beginning and the end of the file hold."""
        first = None
        path = self._file("metrics.jsonl")
        if path is not None:
            with path.open("rb") as file:
                head = file.read(TAIL_BYTES // 2)
            for line in head.split(b"\n")[:-1]:
                first = mean_score(_numbers(parse_object(line) or {})) if b'"val' in line else None
                if first is not None:
                    break
        return {"first": first, "last": mean_score(last)}

    def updated_at(self) -> float | None:
        """When the run last wrote something that is not its config."""
        times = []
        for name in ("metrics.jsonl", "events.jsonl", "console.log", "rollouts", "validation"):
            try:
                info = os.stat(self.path / name)
            except OSError:
                continue
            if info.st_size or name == "events.jsonl":
                times.append(info.st_mtime)
        return max(times, default=None)

    def _file(self, *parts: str) -> Path | None:
        return self._folders.file(self.path, *parts)

    def _tail(self, name: str, num_bytes: int) -> bytes:
        path = self._file(name)
        return read_tail(path, num_bytes) if path is not None else b""


class RunStore:
    """The runs of a folder by id; the folder is looked through again every few seconds."""

    def __init__(self, folders: RunsFolder) -> None:
        self.folders = folders
        self._runs: dict[str, Run] = {}
        self._scanned_at = -RESCAN_S
        self._lock = threading.Lock()

    def runs(self) -> list[Run]:
        with self._lock:
            if time.monotonic() - self._scanned_at >= RESCAN_S:
                self._scan()
            return list(self._runs.values())

    def find(self, name: str) -> Run | None:
        """A run by its id, looked up among those found; a name never becomes a path."""
        self.runs()
        with self._lock:
            if name not in self._runs:
                self._scan()
            return self._runs.get(name)

    def warm_up(self) -> None:
        """Index the metrics of the newest runs, so that the first look at a long one need not wait for it."""
        for run in sorted(self.runs(), key=lambda run: run.updated_at() or 0.0, reverse=True)[:MAX_WARM_RUNS]:
            try:
                run.metric_names()
            except OSError:  # moved or removed meanwhile
                continue

    def _scan(self) -> None:
        found = self.folders.scan()
        self._runs = {name: self._runs.get(name) or Run(self.folders, name, path) for name, path in found.items()}
        self._scanned_at = time.monotonic()


def _faults(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """How many errors and warnings there were, and the last of them in words."""
    levels = [severity(str(event.get("kind", ""))) for event in events]
    last = next(
        (event for event, level in zip(reversed(events), reversed(levels), strict=True) if level != "info"), None
    )
    return {
        "errors": levels.count("error"),
        "warnings": levels.count("warning"),
        "last": None if last is None else describe(last),
    }


def _about(config: dict[str, Any]) -> dict[str, str]:
    """What a person would call the run's model, data and algorithm."""
    keys = {
        "model": "actor_rollout_ref.model.path",
        "data": "data.train_files",
        "estimator": "algorithm.adv_estimator",
        "seed": "trainer.seed",
    }
    return {name: str(config[key]).strip("[]'") for name, key in keys.items() if config.get(key) is not None}


def _numbers(record: dict[str, Any]) -> dict[str, float]:
    return {name: value for name, value in record.items() if isinstance(value, int | float)}
