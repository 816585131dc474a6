"""Limits that end a run which no longer learns: too many skipped updates, or too many flat steps, in a row."""

from __future__ import annotations

from collections.abc import Mapping

from podium.config.schema import TrainerConfig
from podium.errors import TrainingError


class StepLimits:
    def __init__(self, config: TrainerConfig) -> None:
        self._max_skipped, self._max_flat = config.max_skipped_updates, config.max_flat_steps
        self.skipped_in_a_row = 0
        self.flat_in_a_row = 0

    def count_skipped(self, num_skipped: int) -> None:
        """Updates of this step that were left out because something was not finite."""
        self.skipped_in_a_row = self.skipped_in_a_row + 1 if num_skipped else 0
        if self.skipped_in_a_row > self._max_skipped:
            raise TrainingError(
                f"{self.skipped_in_a_row} steps in a row had a non-finite loss or gradient, more than "
                f"trainer.max_skipped_updates={self._max_skipped} allows; lower the learning "
                "rate, or look in the log for the first bad tensor"
            )

    def count_flat(self, num_flat_groups: float, num_groups: int) -> None:
        """Groups of this step in which all rewards are equal: they teach nothing."""
        self.flat_in_a_row = self.flat_in_a_row + 1 if num_flat_groups >= num_groups > 0 else 0
        if self._max_flat is not None and self.flat_in_a_row >= self._max_flat:
            raise TrainingError(
                f"in {self.flat_in_a_row} steps in a row all samples of every prompt got the same reward "
                f"(trainer.max_flat_steps={self._max_flat}); check the reward function, raise rollout.n or the "
                "temperature, or choose easier or harder prompts"
            )

    def state_dict(self) -> dict[str, int]:
        return {"skipped": self.skipped_in_a_row, "flat": self.flat_in_a_row}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        self.skipped_in_a_row, self.flat_in_a_row = state["skipped"], state["flat"]
