"""ActorRolloutRefWorker: policy, rollout engine and reference in one process, sharing one device.

It builds the three parts and lends them to the controller; each part's work is in its own file. Where the trainer's
parameters are whole (one rank), the rollout engine runs the trainer's own module and publishing copies nothing; where
they are sharded it has a copy that every publish fills.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from podium.checkpoint.export import export_hf
from podium.config.schema import Config
from podium.engines.rollout import make_rollout_engine
from podium.engines.rollout.base import RolloutEngine
from podium.engines.sync import make_probe, publish
from podium.engines.train.torch import TorchEngine
from podium.metric import Metric, Metrics
from podium.models.load import load_causal_lm, load_tokenizer, resolve_dtype
from podium.protocol import DataProto
from podium.rewards.scorer import RewardScorer
from podium.single_controller.dispatch import Dispatch, register
from podium.single_controller.roles import Role
from podium.single_controller.worker import Worker
from podium.workers.actor import Actor
from podium.workers.engines import make_train_engine
from podium.workers.optimization import total_optimizer_steps
from podium.workers.reference import Reference
from podium.workers.rollout import Rollout
from podium.workers.saving import CheckpointWriter, load_rng, save_rng
from podium.workers.streamed_rewards import StreamedRewards


class ActorRolloutRefWorker(Worker):
    def __init__(self, config: Config, role: Role, total_training_steps: int) -> None:
        self.config, self.has_reference = config, role is Role.ActorRolloutRef
        self.total_training_steps = total_training_steps
        self.writer = CheckpointWriter()

    @register(Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        self.setup_distributed(self.config.trainer.worker_start_timeout_s)
        config = self.config.actor_rollout_ref
        self.tokenizer: Any = load_tokenizer(config.model.path, config.model.trust_remote_code)
        self.train_engine = self._make_engine(trainable=True)
        self.actor = Actor(self.train_engine, config.actor, config.rollout, self.config.data.max_response_length)
        if self.has_reference:
            self.reference = Reference(self._make_engine(trainable=False), config.rollout.temperature)
        self.rollout_engine = self._make_rollout_engine()
        rewards = StreamedRewards(RewardScorer(self.config.reward), self.tokenizer)
        pad = self.tokenizer.pad_token_id
        self.rollout = Rollout(self.rollout_engine, config.rollout, self.config.data, pad, rewards)

    def _make_engine(self, trainable: bool) -> TorchEngine:
        config = self.config.actor_rollout_ref
        budget = config.actor.max_tokens_per_micro_batch if trainable else config.ref.max_tokens_per_micro_batch
        assert budget is not None, "resolved by load_config"
        return make_train_engine(
            config.actor.strategy,
            load_causal_lm(config.model, device=self.device),
            fsdp=config.actor.fsdp,
            optim=config.actor.optim if trainable else None,
            total_steps=total_optimizer_steps(self.total_training_steps, config.actor, self.config.data),
            max_tokens_per_micro_batch=budget,
            micro_batch_size_per_gpu=config.actor.micro_batch_size_per_gpu,
            grad_clip=config.actor.grad_clip,
            dtype=resolve_dtype(config.model.dtype, self.device),
            device=self.device,
        )

    def _make_rollout_engine(self) -> RolloutEngine:
        config = self.config.actor_rollout_ref
        module = self.train_engine.module
        if self.train_engine.sharded:
            module = load_causal_lm(config.model, self.train_engine.dtype, self.device)
        assert isinstance(module, PreTrainedModel)
        return make_rollout_engine(config.rollout, module, self.tokenizer, self.train_engine.dtype)

    # ---- rollout

    @register(Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def generate_sequences(self, data: DataProto) -> DataProto:
        """With several ranks, each says how long it took: the slowest makes the others wait."""
        start = time.perf_counter()
        output = self.rollout.generate_sequences(data)
        if self.world_size > 1:
            seconds = Metric.last(time.perf_counter() - start)
            output.meta_info["metrics"] = {f"timing_s/gen/rank_{self.rank}": seconds}
        return output

    @register(Dispatch.DP_COMPUTE_METRIC)
    def publish(self, version: int) -> Metrics:
        """Make the rollout engine hold the trained weights, and prove it."""
        probe = make_probe(self.train_engine)
        return publish(self.train_engine, self.rollout_engine, version, probe=probe).metrics()

    @register(Dispatch.RANK_ZERO)
    def cost_factor(self) -> float:
        """The a of a sequence's cost a·L + L², for balancing."""
        return self.train_engine.flops.cost_factor

    # ---- scoring and training

    @register(Dispatch.DP_COMPUTE_PROTO)
    def compute_log_prob(self, data: DataProto) -> DataProto:
        return self.actor.compute_log_prob(data)

    @register(Dispatch.DP_COMPUTE_PROTO)
    def compute_ref_log_prob(self, data: DataProto) -> DataProto:
        return self.reference.compute_ref_log_prob(data)

    @register(Dispatch.DP_COMPUTE_PROTO)
    def compute_mean_hidden(self, data: DataProto) -> DataProto:
        """By the reference model, or by the policy itself where there is none."""
        engine = self.reference.engine if self.has_reference else self.train_engine
        with engine.reference():
            return DataProto.from_dict({"mean_hidden": engine.mean_hidden(data)})

    @register(Dispatch.DP_COMPUTE_METRIC)
    def update_actor(self, data: DataProto) -> Metrics:
        self.writer.settle()
        return self.actor.update(data)

    # ---- checkpoints

    @register(Dispatch.ONE_TO_ALL)
    def save_checkpoint(self, folder: str, background: bool = False) -> None:
        """Write state, model and random states; in the background, `checkpoint_written` tells when it is done."""
        target, engine, full = Path(folder), self.train_engine, {}
        for name, tensor in engine.weights(dtype=torch.float32):  # collective: every rank takes part
            if self.rank == 0:
                full[name] = tensor.cpu() if engine.sharded else tensor
        save_rng(target, self.rank)

        def export(weights: Mapping[str, Tensor]) -> None:
            export_hf(weights.items(), engine.module.config, self.tokenizer, target / "hf")

        self.writer.save(engine, target / "actor", background, full, export if self.rank == 0 else None)

    @register(Dispatch.ONE_TO_ALL)
    def checkpoint_written(self) -> bool:
        """Whether the save in the background is done; raises what it raised."""
        return self.writer.written()

    @register(Dispatch.ONE_TO_ALL)
    def load_checkpoint(self, folder: str) -> None:
        self.writer.settle()
        self.train_engine.load(Path(folder) / "actor")
        load_rng(Path(folder), self.rank)
