"""TRL's arguments: names, defaults, and what they become."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import HfArgumentParser

from podium import GRPOConfig, PolicyAndValueWrapper, PPOConfig, selective_log_softmax, truncate_response
from podium.api.helpers import null_ref_context
from podium.api.settings import Sizes, grpo_settings, make_config, ppo_settings
from tests.api.conftest import classifier

EOS = 2


def test_ppo_defaults_are_those_of_trl() -> None:
    args = PPOConfig()
    expected = {
        "learning_rate": 3e-6, "num_ppo_epochs": 4, "num_mini_batches": 1, "total_episodes": None,
        "local_rollout_forward_batch_size": 64, "response_length": 53, "stop_token": None, "stop_token_id": None,
        "temperature": 0.7, "missing_eos_penalty": None, "whiten_rewards": False, "kl_coef": 0.05,
        "kl_estimator": "k1", "cliprange": 0.2, "vf_coef": 0.1, "cliprange_value": 0.2, "gamma": 1.0, "lam": 0.95,
        "num_sample_generations": 10, "gradient_checkpointing": True, "max_grad_norm": 1.0,
        "model_adapter_name": None, "ref_adapter_name": None,
    }  # fmt: skip
    assert {name: getattr(args, name) for name in expected} == expected


def test_the_arguments_are_read_from_a_command_line_as_in_trl_scripts() -> None:
    (args,) = HfArgumentParser(PPOConfig).parse_args_into_dataclasses(
        ["--output_dir", "out", "--learning_rate", "1e-5", "--num_ppo_epochs", "1", "--stop_token", "eos"]
    )
    assert (args.output_dir, args.learning_rate, args.num_ppo_epochs, args.stop_token) == ("out", 1e-5, 1, "eos")


def test_ppo_arithmetic_is_trls() -> None:
    args = PPOConfig(
        per_device_train_batch_size=4, gradient_accumulation_steps=8, num_mini_batches=2, total_episodes=100,
        vf_coef=0.5, max_grad_norm=2.0, warmup_steps=2, kl_estimator="k3",
    )  # fmt: skip
    config = make_config(args, ppo_settings(args, Sizes(1000, False), EOS))
    actor, critic = config.actor_rollout_ref.actor, config.critic
    assert config.data.train_batch_size == 32 and config.actor_rollout_ref.rollout.n == 1
    assert actor.ppo_mini_batch_size == 16 and actor.ppo_epochs == 4 and actor.micro_batch_size_per_gpu == 4
    assert config.trainer.total_training_steps == 4, "100 episodes are three batches and a bit"
    assert critic.grad_clip == 4.0, "a loss of half the weight is clipped at twice the norm"
    assert actor.optim.lr_warmup_steps == 2 * 8, "eight optimizer steps per batch"
    assert config.algorithm.kl_penalty == "k3" and config.algorithm.kl_ctrl.kl_coef == 0.05


@pytest.mark.parametrize(
    "given, ignore_eos, stops",
    [({}, True, []), ({"stop_token": "eos"}, False, []), ({"stop_token_id": 9}, True, [9]),
     ({"stop_token_id": EOS}, False, [])],
)  # fmt: skip
def test_stop_tokens(given: dict[str, Any], ignore_eos: bool, stops: list[int]) -> None:
    args = PPOConfig(**given)
    rollout = make_config(args, ppo_settings(args, Sizes(100, False), EOS)).actor_rollout_ref.rollout
    assert (rollout.ignore_eos, rollout.stop_token_ids) == (ignore_eos, stops)


@pytest.mark.parametrize(
    "loss, level, mode, agg",
    [("dapo", "token", "vanilla", "token-mean"), ("grpo", "token", "vanilla", "seq-mean-token-mean"),
     ("dr_grpo", "token", "vanilla", "seq-mean-token-sum-norm"), ("grpo", "sequence", "gspo", "seq-mean-token-mean")],
)  # fmt: skip
def test_grpo_losses(loss: str, level: str, mode: str, agg: str) -> None:
    args = GRPOConfig(loss_type=loss, importance_sampling_level=level, gradient_accumulation_steps=4, beta=0.04)
    actor = make_config(args, grpo_settings(args, Sizes(100, True))).actor_rollout_ref.actor
    assert (actor.policy_loss.loss_mode, actor.loss_agg_mode) == (mode, agg)
    assert actor.use_kl_loss and actor.kl_loss_coef == 0.04


def test_grpo_counts_samples_as_trl_does() -> None:
    args = GRPOConfig(per_device_train_batch_size=4, gradient_accumulation_steps=4, steps_per_generation=8)
    config = make_config(args, grpo_settings(args, Sizes(1000, False)))
    assert config.data.train_batch_size == 4, "32 samples of 8 per prompt"
    assert config.actor_rollout_ref.actor.ppo_mini_batch_size == 2, "two optimizer steps per generation"


def test_podiums_own_settings_win(tmp_path: Path) -> None:
    args = PPOConfig(settings=["actor_rollout_ref.rollout.top_p=0.9"], output_dir=str(tmp_path / "x"))
    assert make_config(args, ppo_settings(args, Sizes(100, False), EOS)).actor_rollout_ref.rollout.top_p == 0.9


def test_selective_log_softmax_is_the_log_softmax_of_the_taken_tokens() -> None:
    logits, taken = torch.randn(2, 3, 11), torch.randint(0, 11, (2, 3))
    expected = logits.log_softmax(-1).gather(-1, taken[..., None])[..., 0]
    assert torch.allclose(selective_log_softmax(logits, taken), expected, atol=1e-6)
    assert torch.allclose(selective_log_softmax(logits.bfloat16(), taken).float(), expected, atol=0.05)


def test_truncate_response_keeps_the_stop_token_and_pads_behind_it() -> None:
    responses = torch.tensor([[5, 2, 7, 2], [5, 6, 7, 8]])
    assert truncate_response(2, 0, responses).tolist() == [[5, 2, 0, 0], [5, 6, 7, 8]]


def test_the_wrapper_gives_policy_output_and_values_and_checkpoints_both(policy: Any) -> None:
    wrapper = PolicyAndValueWrapper(policy, classifier())
    output, values = wrapper(input_ids=torch.tensor([[1, 3, 4]]))
    assert output.logits.shape[:2] == values.shape == (1, 3)
    wrapper.gradient_checkpointing_enable()
    assert policy.is_gradient_checkpointing and wrapper.value_model.is_gradient_checkpointing
    wrapper.gradient_checkpointing_disable()
    assert not policy.is_gradient_checkpointing and not wrapper.value_model.is_gradient_checkpointing


def test_the_null_reference_context_restores_the_adapter_after_an_error() -> None:
    class Policy:
        active = "default"

        def set_adapter(self, name: str) -> None:
            self.active = name

        def disable_adapter(self) -> None:
            raise AssertionError

    policy = Policy()
    with pytest.raises(ValueError, match="inside"), null_ref_context(policy, "reference", "mine"):
        assert policy.active == "reference"
        raise ValueError("inside")
    assert policy.active == "mine"
