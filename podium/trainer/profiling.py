"""StepProfiles: traces of the steps that `trainer.profile_steps` names, one file per worker process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from podium.config.schema import Config
from podium.trainer.recorder import Recorder

GROUPS = ("actor_rollout_wg", "rollout_workers", "reward_workers")
"""A trainer's groups that have processes of their own; other roles are in the actor's."""


class StepProfiles:
    def __init__(self, config: Config, recorder: Recorder) -> None:
        self.steps, self.recorder = set(config.trainer.profile_steps), recorder
        self.folder = Path(config.trainer.default_local_dir).resolve() / "profile"
        self._recording: dict[str, Any] = {}

    def begin(self, step: int, trainer: Any) -> None:
        """Let the trainer's workers record, if this step is one to profile."""
        there = [name for name in GROUPS if hasattr(trainer, name)] if step in self.steps else []
        self._recording = {name: getattr(trainer, name) for name in there}
        for group in self._recording.values():
            group.start_profile()

    def end(self, step: int, trainer: Any) -> None:
        """Let them write what they recorded; workers that were replaced in between took theirs with them."""
        groups = [group for name, group in self._recording.items() if group is getattr(trainer, name)]
        files = [file for group in groups for file in group.stop_profile(str(self.folder), step)]
        self._recording = {}
        if files:
            self.recorder.event("profile_written", step=step, files=files)
            self.recorder.console.message(f"the profile of step {step} is in {self.folder}, a trace per worker process")
