"""Attempts at a run: when workers are lost it goes on with new ones from its newest checkpoint, or it ends.

The same for `podium train`, `sft` and `train-reward`; what an attempt is they say themselves. Workers that can be
replaced in the middle of one are rollout_pool.py's matter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from podium.config.schema import TrainerConfig
from podium.errors import PodiumError
from podium.single_controller.supervise import Decision, FailurePolicy, RestartGroup, is_lost
from podium.trainer.recorder import Recorder
from podium.trainer.saving import CheckpointSaver
from podium.trainer.stopping import RunStopped, StopSignals

Attempt = Callable[[StopSignals, FailurePolicy, PodiumError | None], PodiumError | None]
"""Trains to the end, or until workers are lost and deserve a restart: then that failure comes back. It gets the failure
that it follows."""


class Recorded(Protocol):
    """The part of a trainer that a failure needs."""

    @property
    def recorder(self) -> Recorder: ...

    @property
    def saver(self) -> CheckpointSaver: ...


def run_with_restarts(settings: TrainerConfig, attempt: Attempt) -> int:
    """The exit code of a run, after as many attempts as `trainer.max_restarts` allows."""
    policy = RestartGroup(settings.max_restarts)
    failure: PodiumError | None = None
    with StopSignals(settings) as stopping:
        while True:
            try:
                failure = attempt(stopping, policy, failure)
            except RunStopped as stop:
                return stop.exit_code
            if failure is None:
                return 0


def deserves_restart(failure: PodiumError, trainer: Recorded, stopping: StopSignals, policy: FailurePolicy) -> bool:
    """Whether the run is to go on with new workers; the record says so."""
    stop_instead(failure, stopping, trainer)
    decision = policy.decide(failure, trainer.saver.saved_step or 0)
    if is_lost(failure):
        trainer.recorder.workers_failed(failure, decision.value)
    if decision is Decision.RAISE:
        return False
    trainer.recorder.console.message(f"{str(failure).splitlines()[0]}; starting new workers")
    return True


def stop_instead(failure: PodiumError, stopping: StopSignals, trainer: Recorded) -> None:
    """A run that was told to stop starts no new workers: the signal that it got may have been theirs too."""
    try:
        if is_lost(failure):
            stopping.check()
        stopping.check_wrapped()
    except RunStopped as stop:
        saved = trainer.saver.saved_step
        trainer.recorder.stopped(saved or 0, stop.reason, saved)
        raise
