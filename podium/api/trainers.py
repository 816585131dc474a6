"""PPOTrainer and GRPOTrainer: TRL's two trainers by name and arguments. What they do is in base.py."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from podium.api.arguments import GRPOConfig, PPOConfig
from podium.api.base import PodiumTrainer
from podium.api.helpers import PolicyAndValueWrapper, null_ref_context
from podium.api.models import critic_weights, put_weights
from podium.api.rewards import sort_rewards
from podium.api.run import CallbackTrainer
from podium.api.settings import Settings, grpo_settings, ppo_settings
from podium.errors import ConfigError


class PPOTrainer(PodiumTrainer):
    """PPO with a value model, GAE, and the KL to a reference in the reward.

    `reward_model`: a sequence classifier with one label, one or several functions, or a list of both. `ref_model` None:
    the policy as it was at the start. `value_model` None: the policy's body with a new head.
    """

    def __init__(
        self,
        args: PPOConfig | None = None,
        processing_class: Any = None,
        model: Any = None,
        ref_model: Any = None,
        reward_model: Any = None,
        train_dataset: Any = None,
        value_model: Any = None,
        data_collator: Any = None,
        eval_dataset: Any = None,
        optimizers: tuple[Any, Any] = (None, None),
        callbacks: Iterable[Any] | None = None,
        peft_config: Any = None,
    ) -> None:
        if model is None:
            raise ConfigError("model is missing; give a causal language model or the path of one")
        if ref_model is model and not isinstance(model, str | Path):
            raise ConfigError(
                "model and ref_model are the same object, and one of them is trained; give ref_model=None"
            )
        _refuse_unused(
            data_collator=data_collator, optimizers=None if tuple(optimizers) == (None, None) else optimizers
        )
        self.ref_model, self.value_model = ref_model, value_model
        args = args or PPOConfig()
        _refuse_other_references(args, ref_model, peft_config)
        rewards = sort_rewards(reward_model)
        super().__init__(args, model, processing_class, rewards, train_dataset, eval_dataset, callbacks, peft_config)
        self.model = model
        if value_model is not None and not isinstance(value_model, str | Path) and not isinstance(model, str | Path):
            self.model = PolicyAndValueWrapper(model, value_model)

    def _settings(self) -> Settings:
        assert isinstance(self.args, PPOConfig)
        settings = ppo_settings(self.args, self.sizes, int(self.processing_class.eos_token_id))
        return settings | self._reward_settings() | self._lora_settings()

    def _models(self) -> dict[str, tuple[Any, str]]:
        given = {"reference": (self.ref_model, "ref_model"), "value": (self.value_model, "value_model")}
        return {role: pair for role, pair in given.items() if pair[0] is not None}

    def _take_weights(self, trainer: CallbackTrainer) -> None:
        super()._take_weights(trainer)
        if self.value_model is not None and not isinstance(self.value_model, str | Path):
            weights = list(critic_weights(trainer))
            if weights:
                put_weights(self.value_model, iter(weights))

    @contextmanager
    def null_ref_context(self) -> Iterator[None]:
        """Inside, a peft policy is its own reference."""
        assert isinstance(self.args, PPOConfig)
        with null_ref_context(self.policy_model, self.args.ref_adapter_name, self.args.model_adapter_name):
            yield


class GRPOTrainer(PodiumTrainer):
    """GRPO: groups of samples compared with each other, no value model.

    `reward_funcs`: functions, names of functions, a sequence classifier, or a list of them.
    """

    def __init__(
        self,
        model: Any,
        reward_funcs: Any = None,
        args: GRPOConfig | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        reward_processing_classes: Any = None,
        callbacks: Iterable[Any] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        peft_config: Any = None,
    ) -> None:
        _refuse_unused(
            reward_processing_classes=reward_processing_classes,
            optimizers=None if tuple(optimizers) == (None, None) else optimizers,
        )
        args = args or GRPOConfig()
        rewards = sort_rewards(reward_funcs, args.reward_weights)
        super().__init__(args, model, processing_class, rewards, train_dataset, eval_dataset, callbacks, peft_config)
        self.model = model

    def _settings(self) -> Settings:
        assert isinstance(self.args, GRPOConfig)
        return grpo_settings(self.args, self.sizes) | self._reward_settings() | self._lora_settings()


def _refuse_other_references(args: PPOConfig, ref_model: Any, peft_config: Any) -> None:
    """With an adapter the reference is the policy without it, and there is one adapter."""
    if peft_config is not None and ref_model is not None:
        raise ConfigError("with peft_config the reference is the policy without its adapter; give ref_model=None")
    if args.ref_adapter_name is not None or args.model_adapter_name is not None:
        raise ConfigError(
            "a run trains one adapter and its reference is the policy without it; leave model_adapter_name and "
            "ref_adapter_name None (podium.null_ref_context switches between the adapters of a PeftModel of yours)"
        )


def _refuse_unused(**given: Any) -> None:
    """Arguments that TRL has and that would change nothing here."""
    fixes = {
        "data_collator": "rows are packed, not padded, and need none",
        "optimizers": "AdamW with the schedule of the arguments is used",
        "reward_processing_classes": "a reward model reads the policy's own tokens",
    }
    for name, value in given.items():
        if value is not None:
            raise ConfigError(f"{name} is not taken: {fixes[name]}; leave it out")
