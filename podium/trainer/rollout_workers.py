"""RolloutWorkers: starts, ends and replaces the rollout workers of a trainer that has a pool of them.

A loss counts against `trainer.max_restarts` like one that starts the whole run anew. It is written down with its role
and rank. What is then asked of the new workers is rollout_pool.py's matter.
"""

from __future__ import annotations

from typing import Any

from podium.errors import PodiumError
from podium.single_controller import RayClassWithInitArgs, Role
from podium.single_controller.supervise import Decision
from podium.stop_points import stop_point
from podium.trainer.rollout_pool import RolloutPool
from podium.workers.broadcast import num_kept_versions

DECISION = "restart_rollout_group"
"""What the record says when the training group stays."""


class RolloutWorkers:
    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.group: Any = None

    def start(self) -> Any:
        trainer = self.trainer
        spec = RayClassWithInitArgs(trainer.role_worker_mapping[Role.Rollout], trainer.config, Role.Rollout, 0)
        trainer.rollout_workers = self.group = trainer._start_group(Role.Rollout, spec)
        self.group.init_model()
        return self.group

    def end(self) -> None:
        for heartbeat in [each for each in self.trainer.heartbeats if each.group is self.group]:
            heartbeat.stop()
            self.trainer.heartbeats.remove(heartbeat)
        self.group.shutdown()

    def lost(self, failure: PodiumError) -> None:
        trainer = self.trainer
        stop_point()  # a run that was told to stop saves and leaves: the signal may have been the workers' too
        if trainer.stopping.is_requested:
            raise failure
        if trainer.failure_policy.decide(failure, trainer.saver.saved_step or 0) is Decision.RAISE:
            raise failure
        trainer.recorder.workers_failed(failure, DECISION)
        trainer.recorder.console.message(f"{str(failure).splitlines()[0]}; starting new rollout workers")

    def say(self, text: str) -> None:
        recorder = self.trainer.recorder
        if self.trainer.resume_point is None:  # the record has not begun
            recorder.announcements.append(text)
        else:
            recorder.say_once(text)


def make_rollout_pool(trainer: Any) -> RolloutPool:
    return RolloutPool(trainer.actor_rollout_wg, RolloutWorkers(trainer), num_kept_versions(trainer.config) > 0)
