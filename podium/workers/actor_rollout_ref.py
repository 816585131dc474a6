"""ActorRolloutRefWorker: policy, rollout engine and reference in one process, sharing one device.

It builds the three parts and lends them to the controller; each part's work is in its own file. Where the trainer's
parameters are the policy's whole weights, the rollout engine runs the trainer's own module and publishing copies
nothing; where they are sharded or have adapters beside them it has a copy that every publish fills. With adapters the
reference is the trainer with its adapters off: there is no second model.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from podium.checkpoint import rng
from podium.config.schema import Config
from podium.engines.rollout.base import RolloutEngine
from podium.engines.rollout.hosted import HostedEngine
from podium.engines.rollout.remote import KeptWeights, RemoteEngines
from podium.engines.sync import make_probe, publish
from podium.engines.train.culprits import Culprit
from podium.engines.train.torch import TorchEngine
from podium.metric import Metric, Metrics
from podium.models.load import load_causal_lm, load_processor, load_tokenizer, resolve_dtype
from podium.models.lora import add_lora
from podium.protocol import DataProto
from podium.single_controller.dispatch import Dispatch, register
from podium.single_controller.roles import Role
from podium.workers.actor import Actor
from podium.workers.broadcast import Meeting, Offer, all_ranks_well, num_kept_versions
from podium.workers.engines import make_train_engine
from podium.workers.model_files import ModelFiles
from podium.workers.optimization import total_optimizer_steps
from podium.workers.profiling import Profiled
from podium.workers.reference import Reference
from podium.workers.rollout import make_rollout
from podium.workers.rollout_engines import close_engine, make_engine, with_engine_metrics
from podium.workers.saving import CheckpointWriter, load_rng, save_rng


class ActorRolloutRefWorker(Profiled):
    def __init__(self, config: Config, role: Role, total_training_steps: int) -> None:
        self.config, self.has_reference = config, role is Role.ActorRolloutRef
        self.total_training_steps = total_training_steps
        self.writer = CheckpointWriter()

    @register(Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        self.setup_distributed(self.config.trainer.worker_start_timeout_s)
        rng.seed(self.config.trainer.seed + self.rank)
        config = self.config.actor_rollout_ref
        self.tokenizer: Any = load_tokenizer(config.model.path, config.model.trust_remote_code)
        self.processor = load_processor(config.model.path, config.model.trust_remote_code)
        self.train_engine = self._make_engine(trainable=True)
        self.actor = Actor(self.train_engine, config.actor, config.rollout, self.config.data.max_response_length)
        if self.has_reference:
            same = self.train_engine.adapted and config.ref.path == config.model.path
            engine = self.train_engine if same else self._make_engine(trainable=False)
            self.reference = Reference(engine, config.rollout.temperature)
        self.rollout_engine: RolloutEngine | RemoteEngines = RemoteEngines(None)  # of a pool of their own
        self.kept = KeptWeights(num_kept_versions(self.config) if self.rank == 0 else 0)
        if not config.rollout.nnodes:
            self.rollout_engine = make_engine(self.config, self.tokenizer, self.device, self.train_engine)
            self.rollout = make_rollout(self.config, self.rollout_engine, self.tokenizer)

    def _make_engine(self, trainable: bool) -> TorchEngine:
        config = self.config.actor_rollout_ref
        budget = config.actor.max_tokens_per_micro_batch if trainable else config.ref.max_tokens_per_micro_batch
        assert budget is not None, "resolved by load_config"
        model = config.model if trainable else replace(config.model, path=config.ref.path)
        module = load_causal_lm(model, device=self.device, empty=self.world_size > 1)
        if trainable:
            add_lora(module, config.model)
        return make_train_engine(
            config.actor.strategy,
            module,
            fsdp=config.actor.fsdp,
            deepspeed=config.actor.deepspeed,
            megatron=config.actor.megatron,
            optim=config.actor.optim if trainable else None,
            total_steps=total_optimizer_steps(self.total_training_steps, config.actor, self.config.data),
            max_tokens_per_micro_batch=budget,
            micro_batch_size_per_gpu=config.actor.micro_batch_size_per_gpu,
            grad_clip=config.actor.grad_clip,
            dtype=resolve_dtype(config.model.dtype, self.device),
            device=self.device,
        )

    # ---- rollout

    @register(Dispatch.RANK_ZERO)
    def offer_channel(self) -> Meeting:
        """Where rollout workers of another pool can meet this group."""
        self.offer = Offer(self.info.node)
        return self.offer.meeting

    @register(Dispatch.ONE_TO_ALL)
    def join_channel(self, size: int) -> str:
        """Meet them; the other ranks only help to gather weights. What the user should know of the way, if anything."""
        limit_s = self.config.trainer.worker_timeout_s
        channel = self.offer.join(size, self.device, limit_s) if self.rank == 0 else None
        self.rollout_engine = RemoteEngines(channel, self.kept, all_ranks_well)
        return channel.note if channel is not None else ""

    @register(Dispatch.RANK_ZERO)
    def resend(self, version: int) -> None:
        """Publish weights that were trained on since: for requests that are issued again."""
        assert isinstance(self.rollout_engine, RemoteEngines)
        self.rollout_engine.resend(version)

    @register(Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def generate_sequences(self, data: DataProto) -> DataProto:
        """With several ranks, each says how long it took: the slowest makes the others wait."""
        start = time.perf_counter()
        assert not isinstance(self.rollout_engine, RemoteEngines), "the rollout pool generates"
        output = with_engine_metrics(self.rollout.generate_sequences(data), self.rollout_engine)
        if self.world_size > 1:
            seconds = Metric.last(time.perf_counter() - start)
            output.meta_info.setdefault("metrics", {})[f"timing_s/gen/rank_{self.rank}"] = seconds
        return output

    @register(Dispatch.DP_COMPUTE_METRIC)
    def publish(self, version: int) -> Metrics:
        """Make the rollout engine hold the trained weights, and prove it."""
        probe = make_probe(self.train_engine)
        if isinstance(self.rollout_engine, HostedEngine):
            self.rollout_engine.wake()
        published = publish(self.train_engine, self.rollout_engine, version, probe=probe, all_well=all_ranks_well)
        self._rest()
        return published.metrics()

    def _rest(self) -> None:
        """Until the samples are there the trainer is not needed; a rollout engine may run on its very weights."""
        self.train_engine.offload(keep_weights=self.rollout_engine.module is self.train_engine.module)

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
        output = self.reference.compute_ref_log_prob(data)
        self._rest_reference()
        return output

    def _rest_reference(self) -> None:
        if self.has_reference and self.reference.engine is not self.train_engine:
            self.reference.engine.offload()

    @register(Dispatch.DP_COMPUTE_PROTO)
    def compute_mean_hidden(self, data: DataProto) -> DataProto:
        """By the reference model, or by the policy itself where there is none."""
        engine = self.reference.engine if self.has_reference else self.train_engine
        with engine.reference():
            output = DataProto.from_dict({"mean_hidden": engine.mean_hidden(data)})
        self._rest_reference()
        return output

    @register(Dispatch.DP_COMPUTE_METRIC)
    def update_actor(self, data: DataProto) -> Metrics:
        self.writer.settle()
        if isinstance(self.rollout_engine, HostedEngine):
            self.rollout_engine.sleep()  # until the publish that follows
        return self.actor.update(data)

    @register(Dispatch.ONE_TO_ALL)
    def why_skipped(self) -> Culprit | None:
        """What was not finite on this rank when an update was last left out."""
        return self.train_engine.culprit

    # ---- checkpoints

    @register(Dispatch.ONE_TO_ALL)
    def save_checkpoint(self, folder: str, background: bool = False) -> None:
        """Write state, model and random states; in the background, `checkpoint_written` tells when it is done."""
        target = Path(folder)
        model = ModelFiles.of(self.train_engine, self.processor or self.tokenizer, target)
        save_rng(target, self.rank)
        self.writer.save(self.train_engine, target / "actor", background, model)
        self._rest()

    @register(Dispatch.ONE_TO_ALL)
    def checkpoint_written(self) -> bool:
        """Whether the save in the background is done; raises what it raised."""
        return self.writer.written()

    @register(Dispatch.ONE_TO_ALL)
    def load_checkpoint(self, folder: str) -> None:
        self.writer.settle()
        self.train_engine.load(Path(folder) / "actor")
        load_rng(Path(folder), self.rank)

    def close(self) -> None:
        if hasattr(self, "rollout"):
            self.rollout.close()
        close_engine(getattr(self, "rollout_engine", None))
