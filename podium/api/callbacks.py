"""What a callback sees and may do, in the shape of transformers' TrainerCallback.

A callback is any object with some of the methods in EVENTS, each `(args, state, control, **kwargs)`. It stops the run
with `control.should_training_stop = True`, goes on with the next epoch with `should_epoch_stop`; with `should_evaluate`
and `should_save` it asks for a validation or a save, with `should_log` for a report to the trackers of a step that
`logging_steps` leaves out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from podium.errors import ConfigError

EVENTS = (
    *("on_train_begin", "on_step_begin", "on_rollout_end", "on_step_end", "on_log"),
    *("on_evaluate", "on_save", "on_train_end"),
)
"""`on_rollout_end` gets `samples`; `on_step_end` and `on_log` get the step's `metrics` (`on_log` as `logs`)."""


@dataclass
class TrainerControl:
    """What callbacks ask for; read, and taken back, after each step."""

    should_training_stop: bool = False
    should_evaluate: bool = False
    should_save: bool = False
    should_epoch_stop: bool = False
    should_log: bool = False


@dataclass
class TrainerState:
    """Where the run stands."""

    global_step: int = 0
    max_steps: int = 0
    episode: int = 0
    epoch: float = 0.0
    num_train_epochs: float = 0.0
    log_history: list[dict[str, float]] = field(default_factory=list)
    """The metrics of every step and evaluation."""
    is_world_process_zero: bool = True
    is_local_process_zero: bool = True


class CallbackList:
    def __init__(self, callbacks: Iterable[Any] | None, args: Any) -> None:
        self.callbacks = [callback() if isinstance(callback, type) else callback for callback in callbacks or ()]
        for callback in self.callbacks:
            if not any(hasattr(callback, event) for event in EVENTS):
                raise ConfigError(f"the callback {callback!r} has none of the methods {', '.join(EVENTS)}")
        self.args, self.state, self.control = args, TrainerState(), TrainerControl()

    def call(self, event: str, **details: Any) -> None:
        assert event in EVENTS, event
        for callback in self.callbacks:
            method = getattr(callback, event, None)
            if method is not None:
                returned = method(self.args, self.state, self.control, **details)
                if isinstance(returned, TrainerControl):
                    self.control = returned
