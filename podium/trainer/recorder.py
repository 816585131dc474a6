"""Recorder: everything a run leaves behind, through one object.

The run folder first, since it is the record; then its readers, the console and the trackers, which may fail without
harm. It decides nothing about training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from podium.config.schema import Config
from podium.tracking import Console, RunLog, RunSummary, Sample, make_trackers


class Recorder:
    def __init__(self, config: Config, total_steps: int) -> None:
        self.config = config
        self.log = RunLog.from_config(config)
        self.console = Console(config, total_steps)
        self.trackers = make_trackers(config)
        self.saved: list[Path] = []

    def start(self, step: int, resumed_from: Path | None) -> None:
        """Say where the run stands; from here on there is a record."""
        self.log.begin(step if resumed_from else None)
        self.log.save_config(self.config)
        self.console.start()
        if resumed_from:
            self.console.message(f"resumed from {resumed_from} at step {step}")

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        self.log.log(step, metrics)
        self.console.step(step, metrics)
        if step % self.config.trainer.logging_freq == 0:
            for tracker in self.trackers:
                tracker.log(step, metrics)

    def rollouts(self, step: int, samples: Sequence[Sample]) -> None:
        self.log.dump_rollouts(step, samples)

    def validation(self, step: int, metrics: Mapping[str, float], samples: Sequence[Sample]) -> None:
        self.log.log(step, metrics)
        self.log.dump_validation(step, samples)
        self.console.validation(step, metrics, samples)
        for tracker in self.trackers:
            tracker.log(step, metrics)

    def checkpoint(self, step: int, path: Path) -> None:
        self.saved.append(path)
        self.log.event("checkpoint_saved", step=step, path=str(path))

    def event(self, kind: str, **details: Any) -> None:
        self.log.event(kind, **details)

    def nothing_to_do(self, step: int) -> None:
        """The run was finished before."""
        self.console.message(
            f"This run already has its {step} steps, in {self.config.trainer.default_local_dir}. To go on, set "
            f"trainer.total_training_steps={2 * step}; to start anew, trainer.resume_mode=disable."
        )

    def finish(self) -> None:
        self.log.event("finished")
        self.console.finish(RunSummary(checkpoints=self.saved))

    def close(self) -> None:
        """Give the terminal and the files back; safe after any failure."""
        self.console.stop()
        for tracker in self.trackers:
            tracker.close()
        self.log.close()
