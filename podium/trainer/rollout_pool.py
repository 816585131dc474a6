"""Rollout workers in a pool of their own, beside the group that trains.

To the trainer a `RolloutPool` looks like the group that does both: it generates, and it publishes. A publish is the
trainer's broadcast and every rollout worker's reception, started together.
"""

from __future__ import annotations

from typing import Any

from podium.metric import Metrics
from podium.single_controller import WorkerGroup
from podium.single_controller.futures import WorkerFuture


class RolloutPool:
    def __init__(self, actor: Any, rollout: Any) -> None:
        """Both groups have loaded their models."""
        self.actor, self.rollout = actor, rollout
        size = 1 + rollout.world_size
        joined = rollout.join_channel(actor.offer_channel())
        actor.join_channel(size)
        joined.get()

    @property
    def world_size(self) -> int:
        return int(self.rollout.world_size)

    def generate_sequences(self, request: Any) -> WorkerFuture[Any]:
        future: WorkerFuture[Any] = self.rollout.generate_sequences(request)
        return future

    def publish(self, version: int) -> Metrics:
        received = self.rollout.receive()
        metrics: Metrics = self.actor.publish(version)
        received.get()
        return metrics

    def shutdown(self) -> None:
        group: WorkerGroup = self.rollout
        group.shutdown()
