"""CriticWorker: the value function, trained beside the policy."""

from __future__ import annotations

from pathlib import Path

from tensordict import TensorDict
from torch import Tensor

from podium.algorithms import agg_count, value_loss_sum
from podium.checkpoint import rng
from podium.config.schema import Config
from podium.engines.train.base import ModelOutputs
from podium.engines.train.culprits import Culprit
from podium.metric import Metrics
from podium.models.load import resolve_dtype
from podium.models.lora import add_lora
from podium.models.value import load_value_model
from podium.protocol import DataProto
from podium.single_controller.dispatch import Dispatch, register
from podium.single_controller.roles import Role
from podium.single_controller.worker import Worker
from podium.workers.engines import make_train_engine
from podium.workers.optimization import optimizer_steps, run_updates, total_optimizer_steps
from podium.workers.saving import CheckpointWriter


class CriticWorker(Worker):
    def __init__(self, config: Config, role: Role, total_training_steps: int) -> None:
        self.config, self.total_training_steps = config, total_training_steps
        self.writer = CheckpointWriter()

    @register(Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        self.setup_distributed(self.config.trainer.worker_start_timeout_s)
        rng.seed(self.config.trainer.seed + self.rank)
        critic = self.config.critic
        assert critic.max_tokens_per_micro_batch is not None, "resolved by load_config"
        module = load_value_model(critic.model, device=self.device, empty=self.world_size > 1)
        add_lora(module, critic.model)
        self.engine = make_train_engine(
            self.config.actor_rollout_ref.actor.strategy,
            module,
            fsdp=critic.fsdp,
            deepspeed=critic.deepspeed,
            megatron=critic.megatron,
            optim=critic.optim,
            total_steps=total_optimizer_steps(self.total_training_steps, critic, self.config.data),
            max_tokens_per_micro_batch=critic.max_tokens_per_micro_batch,
            micro_batch_size_per_gpu=critic.micro_batch_size_per_gpu,
            grad_clip=critic.grad_clip,
            dtype=resolve_dtype(critic.model.dtype, self.device),
            device=self.device,
        )

    @register(Dispatch.DP_COMPUTE_PROTO)
    def compute_values(self, data: DataProto) -> DataProto:
        values = self.engine.values(data) * data.tensors()["response_mask"]
        self.engine.offload()
        return DataProto.from_dict({"values": values})

    @register(Dispatch.DP_COMPUTE_METRIC)
    def update_critic(self, data: DataProto) -> Metrics:
        self.writer.settle()
        epochs = self.config.critic.ppo_epochs
        assert epochs is not None, "resolved by load_config"
        steps = optimizer_steps(data, epochs, self.config.actor_rollout_ref.actor.shuffle, data.meta_info["seed"])
        metrics = run_updates(steps, self._update_step, "critic")
        self.engine.offload()
        return metrics

    @register(Dispatch.ONE_TO_ALL)
    def why_skipped(self) -> Culprit | None:
        """What was not finite on this rank when an update was last left out."""
        return self.engine.culprit

    def _update_step(self, rows: DataProto) -> Metrics:
        mode, l_max = self.config.critic.loss_agg_mode, float(self.config.data.max_response_length)
        return self.engine.update(rows, self._loss, agg_count(rows.tensors()["response_mask"], mode, l_max))

    def _loss(self, outputs: ModelOutputs, rows: TensorDict) -> tuple[Tensor, Metrics]:
        assert outputs.values is not None
        return value_loss_sum(
            outputs.values,
            rows["returns"],
            rows["values"],
            rows["response_mask"],
            self.config.critic.cliprange_value,
            self.config.critic.loss_agg_mode,
            float(self.config.data.max_response_length),
        )

    @register(Dispatch.ONE_TO_ALL)
    def save_checkpoint(self, folder: str, background: bool = False) -> None:
        """Write the state; in the background, `checkpoint_written` tells when it is done."""
        self.writer.save(self.engine, Path(folder) / "critic", background)
        self.engine.offload()

    @register(Dispatch.ONE_TO_ALL)
    def checkpoint_written(self) -> bool:
        """Whether the save in the background is done; raises what it raised."""
        return self.writer.written()

    @register(Dispatch.ONE_TO_ALL)
    def load_checkpoint(self, folder: str) -> None:
        self.writer.settle()
        self.engine.load(Path(folder) / "critic")
