"""RolloutWorker: a rollout engine in a pool of its own. It samples, and takes weights that the trainer broadcasts."""

from __future__ import annotations

import time
from typing import Any

from podium.checkpoint import rng
from podium.config.schema import Config
from podium.engines.rollout.remote import answer_publish
from podium.metric import Metric
from podium.models.load import load_tokenizer
from podium.protocol import DataProto
from podium.single_controller.dispatch import Dispatch, register
from podium.single_controller.roles import Role
from podium.workers.broadcast import Meeting, join_channel
from podium.workers.profiling import Profiled
from podium.workers.rollout import make_rollout
from podium.workers.rollout_engines import close_engine, make_engine, with_engine_metrics


class RolloutWorker(Profiled):
    def __init__(self, config: Config, role: Role, total_training_steps: int) -> None:
        self.config = config

    @register(Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        rng.seed(self.config.trainer.seed + self.rank)
        model = self.config.actor_rollout_ref.model
        self.tokenizer: Any = load_tokenizer(model.path, model.trust_remote_code)
        self.engine = make_engine(self.config, self.tokenizer, self.device)
        self.rollout = make_rollout(self.config, self.engine, self.tokenizer)

    @register(Dispatch.ONE_TO_ALL, blocking=False)
    def join_channel(self, meeting: Meeting) -> None:
        """Meet the trainer, which is rank 0."""
        limit_s = self.config.trainer.worker_timeout_s
        self.channel = join_channel(meeting, 1 + self.rank, 1 + self.world_size, self.device, limit_s)

    @register(Dispatch.ONE_TO_ALL, blocking=False)
    def receive(self) -> int:
        """Take one publish; the version held afterwards."""
        return answer_publish(self.channel, self.engine)

    @register(Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def generate_sequences(self, data: DataProto) -> DataProto:
        start = time.perf_counter()
        output = with_engine_metrics(self.rollout.generate_sequences(data), self.engine)
        if self.world_size > 1:
            seconds = Metric.last(time.perf_counter() - start)
            output.meta_info.setdefault("metrics", {})[f"timing_s/gen/rollout_{self.rank}"] = seconds
        return output

    def close(self) -> None:
        if hasattr(self, "rollout"):
            self.rollout.close()
        close_engine(getattr(self, "engine", None))
