"""Recorder: everything a run leaves behind, through one object.

The run folder first, since it is the record; then its readers, the console and the trackers, which may fail without
harm. It decides nothing about training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from podium.config.schema import Config
from podium.config.secrets import scrub_text
from podium.tracking import Console, RunLog, RunSummary, Sample, make_trackers


class Recorder:
    def __init__(self, config: Config, total_steps: int) -> None:
        self.config = config
        self.log = RunLog.from_config(config)
        self.console = Console(config, total_steps)
        self.trackers = make_trackers(config)
        self.saved: list[Path] = []

    def start(self, step: int, resumed_from: Path | None, is_restart: bool = False) -> None:
        """Say where the run stands; from here on there is a record. A restart without a checkpoint keeps its events."""
        self.log.begin(step if resumed_from else -1 if is_restart else None)
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
        self._dump(self.log.dump_rollouts, step, samples)

    def validation(self, step: int, metrics: Mapping[str, float], samples: Sequence[Sample]) -> None:
        self.log.log(step, metrics)
        self._dump(self.log.dump_validation, step, samples)
        self.console.validation(step, metrics, samples)
        for tracker in self.trackers:
            tracker.log(step, metrics)
            tracker.samples(step, samples[: self.config.trainer.log_val_generations])

    def _dump(self, dump: Callable[[int, Sequence[Sample]], Path], step: int, samples: Sequence[Sample]) -> None:
        """Samples for people to read; a full disk costs them, not the run."""
        try:
            dump(step, samples)
        except OSError as error:
            self.event("samples_lost", step=step, reason=str(error))

    def checkpoint(self, step: int, path: Path) -> None:
        self.saved.append(path)
        self.log.event("checkpoint_saved", step=step, path=str(path))

    def checkpoint_failed(self, step: int, error: BaseException) -> None:
        reason = scrub_text(f"{type(error).__name__}: {error}")
        self.log.event("checkpoint_failed", step=step, reason=reason)
        self.console.message(f"the checkpoint of step {step} could not be saved ({reason.splitlines()[0]}); going on")

    def broken_checkpoint(self, path: Path, fault: str) -> None:
        self.log.event("checkpoint_broken", path=str(path), fault=fault)
        self.console.message(f"{path} cannot be used: {fault}")

    def stopped(self, step: int, reason: str) -> None:
        self.event("stopped", step=step, reason=reason)
        self.console.message(f"{reason}: stopped after step {step}; the same command goes on from there")

    def save_time(self, step: int, seconds: float) -> None:
        """How long a save held the training."""
        self.log.log(step, {"timing_s/save_checkpoint": seconds})

    def event(self, kind: str, **details: Any) -> None:
        self.log.event(kind, **{name: scrub_text(v) if isinstance(v, str) else v for name, v in details.items()})

    def tracker_ids(self) -> dict[str, str]:
        """The ids under which trackers know this run, of those that have one."""
        ids = {tracker_name(tracker): getattr(tracker, "run_id", None) for tracker in self.trackers}
        return {name: str(run_id) for name, run_id in ids.items() if run_id}

    def resume_trackers(self, ids: Mapping[str, str]) -> None:
        """Let each tracker go on with the run it wrote before, if it can."""
        for tracker in self.trackers:
            resume = getattr(tracker, "resume", None)
            if resume is not None and tracker_name(tracker) in ids:
                resume(ids[tracker_name(tracker)])

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


def tracker_name(tracker: object) -> str:
    return str(getattr(tracker, "name", type(tracker).__name__))
