"""RewardModelWorker: a trained model's opinion of whole responses.

It scores each row at its last token with a scalar-head model and never trains. How its score and the rule's become one
is the trainer's matter (trainer/model_rewards.py). It reads the policy's token ids as they are, so its tokenizer must
be the policy's.
"""

from __future__ import annotations

from typing import Any

from podium.config.schema import Config, ModelConfig
from podium.errors import ModelError
from podium.models.load import load_tokenizer, resolve_dtype
from podium.models.value import load_value_model
from podium.protocol import DataProto
from podium.single_controller.dispatch import Dispatch, register
from podium.single_controller.roles import Role
from podium.workers.engines import make_train_engine
from podium.workers.profiling import Profiled


class RewardModelWorker(Profiled):
    def __init__(self, config: Config, role: Role = Role.RewardModel, total_training_steps: int = 0) -> None:
        self.config = config

    @register(Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        self.setup_distributed(self.config.trainer.worker_start_timeout_s)
        settings = self.config.reward_model
        assert settings.max_tokens_per_micro_batch is not None, "resolved by load_config"
        check_same_tokens(self.config.actor_rollout_ref.model, settings.model)
        self.engine = make_train_engine(
            self.config.actor_rollout_ref.actor.strategy,
            load_value_model(settings.model, device=self.device, empty=self.world_size > 1, needs_head=True),
            max_tokens_per_micro_batch=settings.max_tokens_per_micro_batch,
            values_after=True,
            dtype=resolve_dtype(settings.model.dtype, self.device),
            device=self.device,
        )

    @register(Dispatch.DP_COMPUTE_PROTO)
    def compute_rm_score(self, data: DataProto) -> DataProto:
        """`rm_scores` [B]: the model's number at each row's last token."""
        return DataProto.from_dict({"rm_scores": self.engine.scores(data)})


def check_same_tokens(policy: ModelConfig, reward: ModelConfig) -> None:
    """Raise unless both models read a token id as the same text."""
    ours: Any = load_tokenizer(policy.path, policy.trust_remote_code)
    theirs: Any = load_tokenizer(reward.path, reward.trust_remote_code)
    if ours.get_vocab() != theirs.get_vocab():
        raise ModelError(
            f"The reward model {reward.path!r} has another vocabulary than the policy {policy.path!r}, and reads the "
            "policy's tokens as they are. Train one on the policy's own model: podium train-reward."
        )
