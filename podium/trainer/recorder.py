"""Recorder: everything a run leaves behind, through one object.

The run folder first, since it is the record; then its readers, the console and the trackers, which may fail without
harm. It decides nothing about training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from podium.config import config_notes
from podium.config.schema import Config
from podium.config.secrets import scrub_text
from podium.errors import PodiumError
from podium.plugins import closest
from podium.tracking import Console, RunLog, RunSummary, Sample, make_trackers
from podium.trainer.changes import changed_settings


class Recorder:
    def __init__(self, config: Config, total_steps: int) -> None:
        self.config, self.total_steps = config, total_steps
        self.log = RunLog.from_config(config)
        self.console = Console(config, total_steps)
        self.trackers = make_trackers(config)
        self.saved: list[Path] = []
        self.announcements: list[str] = []
        """What else to say at the start."""
        self._said: set[str] = set()

    def start(self, step: int, resumed_from: Path | None, is_restart: bool = False) -> None:
        """Say where the run stands; from here on there is a record. A restart without a checkpoint keeps its events."""
        changes = self._changes(resumed_from) if resumed_from else {}
        self.log.begin(step if resumed_from else -1 if is_restart else None)
        self.log.save_config(self.config)
        self.console.start()
        for text in () if is_restart else self._notes():
            self.console.message(f"note: {text}")
        for text in self.announcements:
            self.console.message(text)
        if resumed_from:
            self.console.message(f"resumed from {resumed_from} at step {step}")
        if changes:
            self.event("settings_changed", step=step, changes=changes)
            listed = "; ".join(f"{key}: {change}" for key, change in changes.items())
            self.console.message(
                f"the settings are not those of the checkpoint: {listed}. The weights are the checkpoint's; for a run "
                "of its own set trainer.resume_mode=disable or another trainer.default_local_dir"
            )

    def _notes(self) -> list[str]:
        """What is set and may not be meant."""
        return config_notes(self.config, self.total_steps)

    def _changes(self, resumed_from: Path) -> dict[str, str]:
        """What is set otherwise than in the run that is resumed; asked before its config.yaml is replaced."""
        return changed_settings(resumed_from, self.config)

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
        if fault := missing_best_metric(self.config.trainer.best_metric, metrics):
            self.say_once(fault)
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

    def waits_for_checkpoint(self, step: int, folder: Path) -> None:
        self.event("checkpoint_slow", step=step, path=str(folder))
        self.console.message(f"waiting for the checkpoint of step {step}: it is still being written to {folder}")

    def broken_checkpoint(self, path: Path, fault: str) -> None:
        self.log.event("checkpoint_broken", path=str(path), fault=fault)
        self.console.message(f"{path} cannot be used: {fault}")

    def stopped(self, step: int, reason: str, saved_step: int | None) -> None:
        self.event("stopped", step=step, reason=reason)
        if saved_step == step or step == 0:
            then = "goes on from there"
        elif saved_step is None:
            then = "starts anew: nothing is saved"
        else:
            then = f"goes on from step {saved_step}, the newest that is saved"
        self.console.message(f"{reason}: stopped after step {step}; the same command {then}")

    def workers_failed(self, failure: PodiumError, decision: str) -> None:
        """Workers died or fell silent, and what is done about it."""
        role, rank = getattr(failure, "role", None), getattr(failure, "rank", None)
        self.event("workers_failed", role=role, rank=rank, reason=str(failure), decision=decision)

    def save_time(self, step: int, seconds: float) -> None:
        """How long a save held the training."""
        self.log.log(step, {"timing_s/save_checkpoint": seconds})

    def event(self, kind: str, **details: Any) -> None:
        self.log.event(kind, **{name: scrub_text(v) if isinstance(v, str) else v for name, v in details.items()})

    def say_once(self, text: str) -> None:
        """A warning that would be the same in every step: on the console and among the events, the first time."""
        if text not in self._said:
            self._said.add(text)
            self.event("warning", text=text)
            self.console.message(text)

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
        self.console.finish(RunSummary(checkpoints=[path for path in self.saved if path.exists()]))

    def close(self) -> None:
        """Give the terminal and the files back; safe after any failure."""
        self.console.stop()
        for tracker in self.trackers:
            tracker.close()
        self.log.close()


def missing_best_metric(name: str | None, metrics: Mapping[str, float]) -> str | None:
    """What to say when a validation lacks the metric that chooses the best checkpoint."""
    if name is None or name in metrics:
        return None
    near = closest(name, metrics, cutoff=0.3)
    core = sorted(key for key in metrics if key.startswith("val-core"))
    hint = f"did you mean {near}?" if near else f"it has {', '.join(core)}"
    return f"trainer.best_metric = {name} is not a metric of the validation, so no checkpoint is kept for it; {hint}"


def tracker_name(tracker: object) -> str:
    return str(getattr(tracker, "name", type(tracker).__name__))
