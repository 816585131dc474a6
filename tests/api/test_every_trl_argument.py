"""Every argument of transformers' TrainingArguments (5.19) and of TRL's PPOConfig (1.12) and GRPOConfig (1.16): acted
upon, accepted with a word, or refused with a reason. The lists were read off those packages, which are not needed here.
"""

from __future__ import annotations

import logging
from dataclasses import fields
from typing import Any

import pytest
from transformers import HfArgumentParser

from podium import GRPOConfig, PPOConfig
from podium.api.accepted import NO_EFFECT, NOT_TAKEN
from podium.api.settings import Sizes, grpo_settings, make_config, ppo_settings
from podium.config.schema import Config
from podium.errors import ConfigError

TRAINING = """
output_dir per_device_train_batch_size num_train_epochs max_steps learning_rate lr_scheduler_type lr_scheduler_kwargs
warmup_steps optim optim_args weight_decay adam_beta1 adam_beta2 adam_epsilon optim_target_modules
gradient_accumulation_steps average_tokens_across_devices max_grad_norm label_smoothing_factor bf16 fp16 bf16_full_eval
fp16_full_eval tf32 gradient_checkpointing gradient_checkpointing_kwargs torch_compile torch_compile_backend
torch_compile_mode use_liger_kernel liger_kernel_config use_cache neftune_noise_alpha torch_empty_cache_steps
auto_find_batch_size logging_strategy logging_steps logging_first_step log_on_each_node logging_nan_inf_filter
include_num_input_tokens_seen log_level log_level_replica disable_tqdm report_to run_name project trackio_space_id
trackio_bucket_id trackio_static_space_id eval_strategy eval_steps eval_delay per_device_eval_batch_size
prediction_loss_only eval_on_start eval_do_concat_batches eval_use_gather_object eval_accumulation_steps
include_for_metrics batch_eval_metrics save_only_model save_strategy save_steps save_on_each_node save_total_limit
enable_jit_checkpoint push_to_hub hub_token hub_private_repo hub_model_id hub_strategy hub_always_push hub_revision
load_best_model_at_end metric_for_best_model greater_is_better ignore_data_skip restore_callback_states_from_checkpoint
full_determinism seed data_seed use_cpu accelerator_config parallelism_config dataloader_drop_last
dataloader_num_workers dataloader_pin_memory dataloader_persistent_workers dataloader_prefetch_factor
dataloader_multiprocessing_context dataloader_in_order remove_unused_columns label_names train_sampling_strategy
length_column_name ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers ddp_static_graph ddp_backend
ddp_timeout fsdp fsdp_config deepspeed debug skip_memory_metrics do_train do_eval do_predict resume_from_checkpoint
local_rank
"""
PPO = """
dataset_num_proc num_mini_batches total_episodes local_rollout_forward_batch_size num_sample_generations response_length
stop_token stop_token_id temperature missing_eos_penalty sft_model_path world_size num_total_batches micro_batch_size
local_batch_size batch_size local_mini_batch_size mini_batch_size reward_model_path model_adapter_name ref_adapter_name
num_ppo_epochs whiten_rewards kl_coef kl_estimator cliprange vf_coef cliprange_value gamma lam ds3_gather_for_generation
exp_name
"""
GRPO = """
model_init_kwargs trust_remote_code router_aux_loss_coef disable_dropout cast_lm_head_to_fp32 num_generations
num_generations_eval max_completion_length ds3_gather_for_generation shuffle_dataset pad_to_multiple_of
generation_batch_size steps_per_generation temperature top_p top_k min_p generation_kwargs chat_template_kwargs
repetition_penalty cache_implementation use_vllm vllm_mode vllm_model_impl vllm_enable_sleep_mode
vllm_structured_outputs_regex vllm_server_base_url vllm_server_host vllm_server_port vllm_server_timeout vllm_group_port
vllm_gpu_memory_utilization vllm_max_model_length vllm_tensor_parallel_size beta num_iterations epsilon delta
epsilon_high sapo_temperature_neg sapo_temperature_pos vespo_k_pos vespo_lambda_pos vespo_k_neg vespo_lambda_neg
importance_sampling_level reward_weights multi_objective_aggregation scale_rewards loss_type mask_truncated_completions
sync_ref_model ref_model_mixup_alpha ref_model_sync_steps top_entropy_quantile entropy_coef use_adaptive_entropy
entropy_coef_min entropy_coef_max entropy_coef_delta entropy_target max_tool_calling_iterations
vllm_importance_sampling_correction vllm_importance_sampling_mode vllm_importance_sampling_clip_max
vllm_importance_sampling_clip_min off_policy_mask_threshold use_bias_correction_kl log_completions log_multimodal
num_completions_to_print log_unique_prompts log_completions_hub_repo use_transformers_continuous_batching
transformers_continuous_batching_config use_transformers_paged vllm_importance_sampling_cap
"""

ACTOR, ROLLOUT, MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.model"
CORRECTION = "algorithm.rollout_correction"
VLLM = {"use_vllm": True}

ACTED_UPON: dict[str, tuple[Any, str, Any]] = {
    "output_dir": ("somewhere", "trainer.default_local_dir", "somewhere"),
    "per_device_train_batch_size": (16, f"{ACTOR}.micro_batch_size_per_gpu", 16),
    "num_train_epochs": (8.0, "trainer.total_training_steps", 800),
    "max_steps": (17, "trainer.total_training_steps", 17),
    "learning_rate": (0.5, f"{ACTOR}.optim.lr", 0.5),
    "lr_scheduler_type": ("cosine", f"{ACTOR}.optim.lr_decay", "cosine"),
    "lr_scheduler_kwargs": (
        {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr_rate": 0.1}},
        f"{ACTOR}.optim.min_lr_ratio", 0.1,
    ),
    "warmup_steps": ({"warmup_steps": 3, "max_steps": 9}, f"{ACTOR}.optim.lr_warmup_steps", None),
    "optim": ("sgd", f"{ACTOR}.optim.name", "SGD"),
    "weight_decay": (0.3, f"{ACTOR}.optim.weight_decay", 0.3),
    "adam_beta1": (0.8, f"{ACTOR}.optim.betas", [0.8, 0.999]),
    "adam_beta2": (0.95, f"{ACTOR}.optim.betas", [0.9, 0.95]),
    "adam_epsilon": (1e-5, f"{ACTOR}.optim.kwargs", {"eps": 1e-5}),
    "gradient_accumulation_steps": (2, "data.train_batch_size", None),
    "max_grad_norm": (0.2, f"{ACTOR}.grad_clip", 0.2),
    "bf16": (True, f"{MODEL}.dtype", "bfloat16"),
    "gradient_checkpointing": (False, f"{MODEL}.enable_gradient_checkpointing", False),
    "torch_compile": (True, f"{ACTOR}.fsdp.use_torch_compile", True),
    "logging_steps": (7, "trainer.logging_freq", 7),
    "report_to": ("wandb,mlflow", "trainer.logger", ["console", "wandb", "mlflow"]),
    "run_name": ("try", "trainer.experiment_name", "try"),
    "project": ("mine", "trainer.project_name", "mine"),
    "eval_strategy": ("epoch", "trainer.test_freq", 100),
    "eval_steps": ({"eval_strategy": "steps", "eval_steps": 4}, "trainer.test_freq", 4),
    "per_device_eval_batch_size": (3, "data.val_batch_size", 3),
    "eval_on_start": ({"eval_on_start": True, "eval_strategy": "epoch"}, "trainer.val_before_train", True),
    "save_strategy": ("no", "trainer.save_freq", 0),
    "save_steps": (6, "trainer.save_freq", 6),
    "save_total_limit": (2, "trainer.max_ckpt_to_keep", 2),
    "seed": (5, "trainer.seed", 5),
    "use_cpu": (True, "trainer.device", "cpu"),
    "train_sampling_strategy": ("sequential", "data.shuffle", False),
}  # fmt: skip
ACTED_UPON_BY_PPO: dict[str, tuple[Any, str, Any]] = {
    "num_mini_batches": (2, f"{ACTOR}.ppo_mini_batch_size", 4),
    "total_episodes": (80, "trainer.total_training_steps", 10),
    "local_rollout_forward_batch_size": (5, f"{ROLLOUT}.max_num_seqs", 5),
    "num_sample_generations": (3, "trainer.test_freq", 100),
    "response_length": (9, "data.max_response_length", 9),
    "stop_token": ("eos", f"{ROLLOUT}.ignore_eos", False),
    "stop_token_id": (9, f"{ROLLOUT}.stop_token_ids", [9]),
    "temperature": (0.9, f"{ROLLOUT}.temperature", 0.9),
    "missing_eos_penalty": (1.5, "algorithm.missing_eos_penalty", 1.5),
    "num_ppo_epochs": (2, f"{ACTOR}.ppo_epochs", 2),
    "whiten_rewards": (True, "algorithm.whiten_rewards", True),
    "kl_coef": (0.3, "algorithm.kl_ctrl.kl_coef", 0.3),
    "kl_estimator": ("k3", "algorithm.kl_penalty", "k3"),
    "cliprange": (0.1, f"{ACTOR}.clip_ratio", 0.1),
    "vf_coef": (0.5, "critic.grad_clip", 2.0),
    "cliprange_value": (0.3, "critic.cliprange_value", 0.3),
    "gamma": (0.9, "algorithm.gamma", 0.9),
    "lam": (0.5, "algorithm.lam", 0.5),
    "exp_name": ("mine", "trainer.experiment_name", "mine"),
}
ACTED_UPON_BY_GRPO: dict[str, tuple[Any, str, Any]] = {
    "model_init_kwargs": ({"model_init_kwargs": {"trust_remote_code": True, "dtype": "bfloat16"}},
                          f"{MODEL}.trust_remote_code", True),
    "trust_remote_code": (True, f"{MODEL}.trust_remote_code", True),
    "num_generations": (4, f"{ROLLOUT}.n", 4),
    "num_generations_eval": (3, f"{ROLLOUT}.val_kwargs.n", 3),
    "max_completion_length": (9, "data.max_response_length", 9),
    "shuffle_dataset": (False, "data.shuffle", False),
    "generation_batch_size": (32, "data.train_batch_size", 4),
    "steps_per_generation": (2, "data.train_batch_size", 2),
    "temperature": (0.9, f"{ROLLOUT}.temperature", 0.9),
    "top_p": (0.8, f"{ROLLOUT}.top_p", 0.8),
    "top_k": (5, f"{ROLLOUT}.top_k", 5),
    "min_p": (0.1, f"{ROLLOUT}.min_p", 0.1),
    "chat_template_kwargs": ({"chat_template_kwargs": {"enable_thinking": False}},
                             "data.apply_chat_template_kwargs", {"enable_thinking": False}),
    "use_vllm": (True, f"{ROLLOUT}.name", "vllm"),
    "vllm_model_impl": (VLLM | {"vllm_model_impl": "transformers"}, f"{ROLLOUT}.engine_kwargs",
                        {"model_impl": "transformers"}),
    "vllm_gpu_memory_utilization": (VLLM | {"vllm_gpu_memory_utilization": 0.7},
                                    f"{ROLLOUT}.gpu_memory_utilization", 0.7),
    "vllm_max_model_length": (VLLM | {"vllm_max_model_length": 2048}, f"{ROLLOUT}.engine_kwargs",
                              {"max_model_len": 2048}),
    "vllm_tensor_parallel_size": (VLLM | {"vllm_tensor_parallel_size": 1}, f"{ROLLOUT}.tensor_model_parallel_size", 1),
    "beta": (0.1, f"{ACTOR}.kl_loss_coef", 0.1),
    "num_iterations": (2, f"{ACTOR}.ppo_epochs", 2),
    "epsilon": (0.1, f"{ACTOR}.clip_ratio", 0.1),
    "delta": (4.0, f"{ACTOR}.clip_ratio_c", 4.0),
    "epsilon_high": (0.28, f"{ACTOR}.clip_ratio_high", 0.28),
    "sapo_temperature_neg": (2.0, f"{ACTOR}.policy_loss.tau_neg", 2.0),
    "sapo_temperature_pos": (3.0, f"{ACTOR}.policy_loss.tau_pos", 3.0),
    "importance_sampling_level": ("sequence", f"{ACTOR}.policy_loss.loss_mode", "gspo"),
    "scale_rewards": ("none", "algorithm.norm_adv_by_std_in_grpo", False),
    "loss_type": ("grpo", f"{ACTOR}.loss_agg_mode", "seq-mean-token-mean"),
    "entropy_coef": (0.01, f"{ACTOR}.entropy_coeff", 0.01),
    "vllm_importance_sampling_correction": (VLLM | {"vllm_importance_sampling_correction": False},
                                            f"{CORRECTION}.mode", "off"),
    "vllm_importance_sampling_mode": (VLLM | {"vllm_importance_sampling_mode": "token_truncate"},
                                      f"{CORRECTION}.mode", "token"),
    "vllm_importance_sampling_clip_max": (VLLM | {"vllm_importance_sampling_clip_max": 2.5},
                                          f"{CORRECTION}.threshold", 2.5),
    "vllm_importance_sampling_cap": (VLLM | {"vllm_importance_sampling_cap": 1.5}, f"{CORRECTION}.threshold", 1.5),
    "use_bias_correction_kl": (False, f"{ACTOR}.kl_loss_type", "k3"),
    "log_completions": (True, "trainer.log_val_generations", 4),
    "num_completions_to_print": ({"log_completions": True, "num_completions_to_print": 2},
                                 "trainer.log_val_generations", 2),
}  # fmt: skip
ELSEWHERE = {
    "resume_from_checkpoint": "test_api_trainers.py: by train()",
    "reward_weights": "test_api_trainers.py: by the rewards",
    "model_adapter_name": "test_api_trainers.py: by PPOTrainer",
    "ref_adapter_name": "test_api_trainers.py: by PPOTrainer",
}


def config_of(kind: type, **given: Any) -> Config:
    args = kind(**given)
    sizes = Sizes(train_rows=800, has_eval=True)
    settings = ppo_settings(args, sizes, 2) if kind is PPOConfig else grpo_settings(args, sizes)
    return make_config(args, settings)


def at(config: Config, key: str) -> Any:
    value: Any = config
    for part in key.split("."):
        value = getattr(value, part)
    return value


def another(value: Any) -> Any:
    """Not the default."""
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int | float) else "other"


CASES = [(PPOConfig, name) for name in (TRAINING + PPO).split()] + [(GRPOConfig, name) for name in GRPO.split()]


@pytest.mark.parametrize(("kind", "name"), CASES, ids=[f"{kind.__name__}.{name}" for kind, name in CASES])
def test_an_argument_is_acted_upon_or_idle_with_a_word_or_refused_with_a_reason(
    kind: type, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    field = {item.name: item for item in fields(kind)}[name]
    about = str(field.metadata.get("help", ""))
    if about.startswith(NOT_TAKEN):
        with pytest.raises(ConfigError, match=f"{kind.__name__}: {name} is not taken: ...."):
            kind(**{name: another(field.default)})
    elif about.startswith(NO_EFFECT):
        with caplog.at_level(logging.WARNING):
            made = kind(**{name: another(field.default)})
        assert getattr(made, name) == another(field.default), "a script may read it back"
        assert f"{kind.__name__}({name}=...) has no effect: " in caplog.text
    elif name not in ELSEWHERE:
        table = ACTED_UPON | ACTED_UPON_BY_PPO if kind is PPOConfig else ACTED_UPON_BY_GRPO
        given, key, expected = table[name]
        changed = at(config_of(kind, **(given if isinstance(given, dict) else {name: given})), key)
        assert changed == expected if expected is not None else changed != at(config_of(kind), key)


def test_defaults_are_silent(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        PPOConfig(fp16=False, push_to_hub=False, deepspeed=None, hub_token=None, dataset_num_proc=None, fsdp="")
        GRPOConfig(repetition_penalty=1.0, vllm_mode="colocate", generation_kwargs={}, sync_ref_model=False)
    assert caplog.text == ""


def test_a_secret_that_has_no_effect_is_not_repeated(caplog: pytest.LogCaptureFixture) -> None:
    PPOConfig(hub_token="hf_secret")
    assert "hub_token" in caplog.text and "hf_secret" not in caplog.text


def test_idle_arguments_are_read_from_a_command_line_too() -> None:
    words = [
        "--reward_model_path",
        "judge",
        "--dataloader_num_workers",
        "4",
        "--lr_scheduler_kwargs",
        '{"min_lr": 1e-6}',
    ]
    (args,) = HfArgumentParser(PPOConfig).parse_args_into_dataclasses([*words, "--adam_epsilon", "1e-5"])
    assert (args.reward_model_path, args.dataloader_num_workers, args.adam_epsilon) == ("judge", 4, 1e-5)
    (grpo,) = HfArgumentParser(GRPOConfig).parse_args_into_dataclasses(["--chat_template_kwargs", '{"a": 1}'])
    assert config_of(GRPOConfig, chat_template_kwargs=grpo.chat_template_kwargs).data.apply_chat_template_kwargs == {
        "a": 1
    }


def test_the_first_positional_argument_is_the_output_folder() -> None:
    assert PPOConfig("here").output_dir == GRPOConfig("here").output_dir == "here"


def test_earlier_names_of_transformers_are_known() -> None:
    args = GRPOConfig(evaluation_strategy="epoch", no_cuda=True)
    assert (args.eval_strategy, args.use_cpu) == ("epoch", True)


def test_the_optimizer_of_the_critic_is_the_policys() -> None:
    config = config_of(PPOConfig, optim="rmsprop", adam_epsilon=1e-5, torch_compile=True)
    assert config.critic.optim.name == "RMSprop" and config.critic.optim.kwargs == {}
    assert config.critic.fsdp.use_torch_compile


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"optim": "adafactor"}, "optim='adafactor' is not known. Allowed: adagrad, adamw_torch"),
        ({"lr_scheduler_kwargs": {"num_cycles": 2}}, "linear takes no 'num_cycles'"),
        ({"lr_scheduler_type": "cosine_with_min_lr"}, "min_lr or min_lr_rate"),
        ({"lr_scheduler_kwargs": "{"}, "is no JSON"),
        ({"model_init_kwargs": {"quantization_config": 1}}, "load the model yourself"),
        ({"vllm_importance_sampling_mode": "turns", "use_vllm": True}, "Allowed: sequence_mask"),
        ({"train_sampling_strategy": "group_by_length"}, "Allowed: random, sequential"),
    ],
)
def test_a_value_that_is_not_known_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        config_of(GRPOConfig, **given)


@pytest.mark.parametrize(
    ("given", "meant"),
    [("learning_rat", "learning_rate"), ("lerning_rate", "learning_rate"), ("mini_batches", "num_mini_batches"),
     ("length", "response_length"), ("kl", "kl_coef"), ("adam_eps", "adam_epsilon"), ("ppo_epochs", "num_ppo_epochs")],
)  # fmt: skip
def test_a_misspelt_argument_is_answered_with_the_nearest(given: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"has no argument '{given}'; did you mean '{meant}'"):
        PPOConfig(**{given: 1})


@pytest.mark.parametrize("given", ["optimizer_offload", "synchronise_everything", "repetition_fee", "tokenizer_path"])
def test_an_argument_that_is_like_none_is_answered_with_the_list_alone(given: str) -> None:
    with pytest.raises(ConfigError, match=rf"has no argument '{given}'\. Allowed: adam_beta1"):
        PPOConfig(**{given: 1})
