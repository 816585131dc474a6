"""Limits that end a run which no longer learns: too many skipped updates, or too many flat steps, in a row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from podium.config.schema import TrainerConfig
from podium.engines.train.culprits import first_culprit
from podium.errors import TrainingError
from podium.metric import Metric


def left_out(metrics: Mapping[str, float | Metric], role: str) -> int:
    """How many of a role's optimizer steps were skipped in this step."""
    number = metrics.get(f"{role}/skipped_updates", 0.0)
    return int(number.result() if isinstance(number, Metric) else number)


class StepLimits:
    def __init__(self, config: TrainerConfig) -> None:
        self._max_skipped, self._max_flat = config.max_skipped_updates, config.max_flat_steps
        self.skipped_in_a_row = 0
        self.flat_in_a_row = 0

    def count_skipped(
        self, metrics: Mapping[str, float | Metric], groups: Mapping[str, Any], report: Callable[..., None]
    ) -> None:
        """Updates of this step that were left out because something was not finite; `groups`: the roles that learn."""
        reasons = {
            role: first_culprit(group.why_skipped()) for role, group in groups.items() if left_out(metrics, role)
        }
        for role, reason in reasons.items():
            report(role=role, reason=f"{reason} is not finite")
        self.skipped_in_a_row = self.skipped_in_a_row + 1 if reasons else 0
        if self.skipped_in_a_row > self._max_skipped:
            named = " and ".join(f"{reason} ({role})" for role, reason in reasons.items())
            raise TrainingError(
                f"{self.skipped_in_a_row} steps in a row had a non-finite loss or gradient, more than "
                f"trainer.max_skipped_updates={self._max_skipped} allows; in the last one it was first {named}. Lower "
                "the learning rate, and check what the loss is made of: rewards, advantages, a loss of your own"
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
