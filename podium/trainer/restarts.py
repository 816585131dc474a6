"""Attempts at a run: when workers are lost it goes on with new ones from its newest checkpoint, or it ends.

The same for `podium train`, `sft` and `train-reward`; what an attempt is they say themselves. Workers that can be
replaced in the middle of one are rollout_pool.py's matter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from podium.config.schema import TrainerConfig
from podium.errors import PodiumError
from podium.output import dropping_output
from podium.single_controller.group import WorkerGroup
from podium.single_controller.supervise import Decision, FailurePolicy, RestartGroup, is_lost
from podium.trainer.recorder import Recorder
from podium.trainer.saving import CheckpointSaver
from podium.trainer.shared_folder import unseen_folder_notes
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


class Trainer(Recorded, Protocol):
    """The part of a trainer that an attempt needs."""

    def init_workers(self) -> None: ...

    def fit(self) -> None: ...

    def shutdown(self) -> None: ...


def run_with_restarts(settings: TrainerConfig, run_once: Attempt) -> int:
    """The exit code of a run, after as many attempts as `trainer.max_restarts` allows."""
    policy = RestartGroup(settings.max_restarts)
    failure: PodiumError | None = None
    with dropping_output(), StopSignals(settings) as stopping:
        while True:
            try:
                failure = run_once(stopping, policy, failure)
            except RunStopped as stop:
                return stop.exit_code
            if failure is None:
                return 0


def attempt(
    trainer: Trainer,
    settings: TrainerConfig,
    stopping: StopSignals,
    policy: FailurePolicy,
    workers: Callable[[], WorkerGroup],
) -> PodiumError | None:
    """Trains to the end; the failure, when workers were lost and the policy wants new ones. `workers`: the training's,
    once they have started."""
    try:
        trainer.init_workers()
        trainer.recorder.announcements += unseen_folder_notes(settings, workers())
        trainer.fit()
    except PodiumError as failure:
        if not deserves_restart(failure, trainer, stopping, policy):
            raise
        return failure
    finally:
        trainer.shutdown()
    return None


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
