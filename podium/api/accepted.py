"""TRL's and transformers' arguments that Podium does not act upon: each with TRL's default and the reason.

`idle` ones change nothing in the result here, or nothing in TRL's own trainers either: they are accepted, their values
can be read back, and one that is set is told to have no effect. `refused` ones would change what is trained, or promise
what does not happen: setting one is an error that says what to do instead. The arguments that are acted upon are in
arguments.py.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, fields
from typing import Any

from podium.errors import ConfigError

logger = logging.getLogger(__name__)


NO_EFFECT, NOT_TAKEN = "No effect: ", "Not taken: "
"""How the help of such an argument begins; `HfArgumentParser` knows no other place for a word about it."""


def idle(default: Any, why: str) -> Any:
    return field(default=default, metadata={"help": NO_EFFECT + why})


def refused(default: Any, why: str) -> Any:
    return field(default=default, metadata={"help": NOT_TAKEN + why})


def speak_of_unused(arguments: Any) -> None:
    """Say of every argument that was set and is not acted upon that it has no effect, or why it cannot be taken."""
    for item in fields(arguments):
        value, about = getattr(arguments, item.name), str(item.metadata.get("help", ""))
        if value == item.default or not (value or item.default):
            continue
        if about.startswith(NOT_TAKEN) and value:
            why = about.removeprefix(NOT_TAKEN)
            raise ConfigError(f"{type(arguments).__name__}: {item.name} is not taken: {why}")
        if about.startswith(NO_EFFECT):  # without its value, which may be a token
            why = about.removeprefix(NO_EFFECT)
            logger.warning("%s(%s=...) has no effect: %s", type(arguments).__name__, item.name, why)


ROWS = "the controller reads the rows"
FSDP = "the train engine is FSDP2 (settings=['actor_rollout_ref.actor.fsdp...'])"
NOT_PUSHED = "nothing is pushed to a hub"
BEST = "only load_best_model_at_end reads it"
TORCH = "log-probs always come from a chunked head"
VALIDATION = "validation answers the evaluation set and scores the answers"
COMPUTED = "computed from per_device_train_batch_size, gradient_accumulation_steps and num_mini_batches, as in TRL"
SCRIPT = "only the script reads it"
TRACKIO = "there is no tracker trackio"
SERVER = "the trainer starts vLLM itself"
ENTROPY = "only use_adaptive_entropy reads it"
VESPO = "only loss_type='vespo' reads it, which is not here"
SYNC = "only sync_ref_model reads it"
PAGED = "the native engine pages and batches continuously by itself"


@dataclass(kw_only=True)
class UnusedTrainingArguments:
    """Of transformers' TrainingArguments, old and new."""

    optim_args: str | None = refused(None, "use settings=['actor_rollout_ref.actor.optim.kwargs={momentum: 0.9}']")
    optim_target_modules: str | None = refused(None, "GaLore and APOLLO are not here; peft_config trains fewer weights")
    average_tokens_across_devices: bool = idle(True, "a loss is always divided by the tokens of all devices")
    label_smoothing_factor: float = idle(0.0, "there are no labels")
    fp16: bool = refused(False, "float16 is not here; use bf16=True, or bf16=False for float32")
    bf16_full_eval: bool = idle(False, VALIDATION)
    fp16_full_eval: bool = idle(False, VALIDATION)
    tf32: bool | None = idle(None, "matrix products are as torch.set_float32_matmul_precision says")
    gradient_checkpointing_kwargs: str | None = idle(None, "checkpointing is never reentrant")
    torch_compile_backend: str | None = idle(None, "torch_compile uses torch's own backend")
    torch_compile_mode: str | None = idle(None, "torch_compile uses the default mode")
    use_liger_kernel: bool = idle(False, TORCH)
    liger_kernel_config: str | None = idle(None, TORCH)
    use_cache: bool = idle(False, "the rollout engine has a KV cache, the trainer needs none")
    neftune_noise_alpha: float | None = refused(None, "noise on embeddings is not here")
    torch_empty_cache_steps: int | None = idle(None, "memory is given back between the phases that need it")
    auto_find_batch_size: bool = idle(False, "micro-batches are what per_device_train_batch_size says")
    logging_strategy: str = idle("steps", "the run folder has every step; trackers get every logging_steps-th")
    logging_first_step: bool = idle(False, "the run folder has every step")
    logging_dir: str | None = idle(None, "trackers write into the run folder")
    log_on_each_node: bool = idle(True, "one controller logs")
    logging_nan_inf_filter: bool = idle(True, "a non-finite update is skipped and counted")
    include_num_input_tokens_seen: str = idle("no", "perf/total_num_tokens is always reported")
    include_tokens_per_second: bool = idle(False, "perf/throughput is always reported")
    log_level: str = idle("passive", "use Python's logging")
    log_level_replica: str = idle("warning", "use Python's logging")
    disable_tqdm: bool | None = idle(None, "the console is set by settings=['trainer.logger=[]']")
    trackio_space_id: str | None = idle(None, TRACKIO)
    trackio_bucket_id: str | None = idle(None, TRACKIO)
    trackio_static_space_id: str | None = idle(None, TRACKIO)
    eval_delay: float = refused(0, "validation is due every eval_steps; leave it out, or let a callback decide")
    prediction_loss_only: bool = idle(False, VALIDATION)
    eval_do_concat_batches: bool = idle(True, VALIDATION)
    eval_use_gather_object: bool = idle(False, VALIDATION)
    eval_accumulation_steps: int | None = idle(None, VALIDATION)
    include_for_metrics: str | None = idle(None, VALIDATION)
    batch_eval_metrics: bool = idle(False, VALIDATION)
    save_only_model: bool = idle(False, "a checkpoint has what a resume needs, and the model alone in its hf/")
    save_on_each_node: bool = idle(False, "a checkpoint is one folder that all nodes share")
    save_safetensors: bool = idle(True, "always so")
    enable_jit_checkpoint: bool = idle(False, "a run that is told to stop saves first, always")
    overwrite_output_dir: bool = idle(False, "an earlier record in the folder is moved to previous/")
    push_to_hub: bool = refused(
        False,
        "it is left to huggingface_hub: trainer.save_model(folder), then "
        "huggingface_hub.upload_folder(repo_id=..., folder_path=folder)",
    )
    hub_token: str | None = idle(None, NOT_PUSHED)
    hub_private_repo: bool | None = idle(None, NOT_PUSHED)
    hub_model_id: str | None = idle(None, NOT_PUSHED)
    hub_strategy: str = idle("every_save", NOT_PUSHED)
    hub_always_push: bool = idle(False, NOT_PUSHED)
    hub_revision: str | None = idle(None, NOT_PUSHED)
    load_best_model_at_end: bool = refused(
        False,
        "train() ends with the last weights; settings=['trainer.best_metric=val/test_score/eval'] with "
        "save_total_limit keeps the best checkpoint, whose hf/ folder is the model",
    )
    metric_for_best_model: str | None = idle(None, BEST)
    greater_is_better: bool | None = idle(None, BEST)
    ignore_data_skip: bool = idle(False, "a resumed run goes on with the next rows and reads no others")
    restore_callback_states_from_checkpoint: bool = refused(False, "checkpoints do not hold the callbacks' states")
    full_determinism: bool = idle(False, "samples depend on the seed alone; on a CPU all of a run does")
    data_seed: int | None = idle(None, "the order of the rows follows from seed too")
    accelerator_config: str | None = idle(None, "there is no accelerate")
    parallelism_config: str | None = refused(
        None, "use settings=['actor_rollout_ref.actor.fsdp.fsdp_size=8'] or 'fsdp.ulysses_sequence_parallel_size=2'"
    )
    dataloader_drop_last: bool = idle(False, "a training step always has a whole batch")
    dataloader_num_workers: int = idle(0, ROWS)
    dataloader_pin_memory: bool = idle(True, ROWS)
    dataloader_persistent_workers: bool = idle(False, ROWS)
    dataloader_prefetch_factor: int | None = idle(None, ROWS)
    dataloader_multiprocessing_context: str | None = idle(None, ROWS)
    dataloader_in_order: bool = idle(True, ROWS)
    remove_unused_columns: bool = idle(False, "all columns stay and reach the reward functions")
    label_names: str | None = idle(None, "there are no labels")
    length_column_name: str = idle("length", "work is shared over devices by the tokens' number")
    group_by_length: bool = idle(False, "nothing is padded, and work is shared over devices by the tokens' number")
    ddp_find_unused_parameters: bool | None = idle(None, FSDP)
    ddp_bucket_cap_mb: int | None = idle(None, FSDP)
    ddp_broadcast_buffers: bool | None = idle(None, FSDP)
    ddp_static_graph: bool | None = idle(None, FSDP)
    ddp_backend: str | None = idle(None, FSDP)
    ddp_timeout: int = idle(1800, "use settings=['trainer.worker_timeout_s=1800']")
    fsdp: str | None = idle(None, FSDP)
    fsdp_config: str | None = idle(None, FSDP)
    deepspeed: str | None = refused(
        None, "DeepSpeed's own configuration is not read; use settings=['actor_rollout_ref.actor.strategy=deepspeed']"
    )
    debug: str = idle("", "use Python's debugger: one worker runs in this process")
    skip_memory_metrics: bool = idle(True, "perf/max_memory_allocated_gb is always reported")
    do_train: bool = idle(False, "trainer.train() trains")
    do_eval: bool = idle(False, "trainer.evaluate() evaluates")
    do_predict: bool = idle(False, "trainer.generate_completions() shows what the model writes")
    local_rank: int = idle(-1, "the controller is one process; nnodes and n_gpus_per_node say how many workers it has")
    disable_dropout: bool = idle(False, "dropout is always off")
    ds3_gather_for_generation: bool = idle(True, "the rollout engine has whole weights")
    dataset_num_proc: int | None = idle(None, "rows are read one by one, when they are drawn")


@dataclass(kw_only=True)
class UnusedPPOArguments:
    sft_model_path: str = idle("EleutherAI/pythia-160m", SCRIPT)
    reward_model_path: str = idle("EleutherAI/pythia-160m", SCRIPT)
    world_size: int | None = idle(None, "computed from nnodes and n_gpus_per_node")
    num_total_batches: int | None = idle(None, "computed from total_episodes; max_steps sets it")
    micro_batch_size: int | None = idle(None, COMPUTED)
    local_batch_size: int | None = idle(None, COMPUTED)
    batch_size: int | None = idle(None, COMPUTED)
    local_mini_batch_size: int | None = idle(None, COMPUTED)
    mini_batch_size: int | None = idle(None, COMPUTED)


@dataclass(kw_only=True)
class UnusedGRPOArguments:
    router_aux_loss_coef: float | None = refused(None, "there is no auxiliary loss of a mixture's router")
    cast_lm_head_to_fp32: bool = idle(False, "log-probs are computed in float32")
    pad_to_multiple_of: str | None = idle(None, "nothing is padded")
    generation_kwargs: str | None = refused(None, "use settings=['actor_rollout_ref.rollout.stop=[\"</answer>\"]']")
    repetition_penalty: float = refused(1.0, "samples are drawn from the policy that is trained; leave it at 1.0")
    cache_implementation: str | None = idle(None, PAGED)
    vllm_mode: str = refused("colocate", "the trainer starts vLLM itself; leave it at 'colocate'")
    vllm_enable_sleep_mode: bool = idle(False, "always so where vLLM shares a GPU with the trainer")
    vllm_structured_outputs_regex: str | None = refused(None, "samples are drawn from the policy that is trained")
    vllm_server_base_url: str | None = idle(None, SERVER)
    vllm_server_host: str = idle("0.0.0.0", SERVER)
    vllm_server_port: int = idle(8000, SERVER)
    vllm_server_timeout: float = idle(240.0, "use settings=['actor_rollout_ref.rollout.engine_timeout_s=240']")
    vllm_group_port: int = idle(51216, SERVER)
    vespo_k_pos: float = idle(2.0, VESPO)
    vespo_lambda_pos: float = idle(3.0, VESPO)
    vespo_k_neg: float = idle(3.0, VESPO)
    vespo_lambda_neg: float = idle(2.0, VESPO)
    multi_objective_aggregation: str = refused(
        "sum_then_normalize", "normalize_then_sum is GDPO: settings=['algorithm.adv_estimator=gdpo']"
    )
    mask_truncated_completions: bool = refused(
        False, "cut responses count; settings=['algorithm.overlong_buffer.enable=true'] makes them cost something"
    )
    sync_ref_model: bool = refused(False, "the reference stays what it is; train again from the result to move it")
    ref_model_mixup_alpha: float = idle(0.6, SYNC)
    ref_model_sync_steps: int = idle(512, SYNC)
    top_entropy_quantile: float = refused(1.0, "all tokens are trained")
    use_adaptive_entropy: bool = refused(False, "entropy_coef is constant")
    entropy_coef_min: float = idle(0.0, ENTROPY)
    entropy_coef_max: float = idle(1.0, ENTROPY)
    entropy_coef_delta: float = idle(0.005, ENTROPY)
    entropy_target: float = idle(0.2, ENTROPY)
    max_tool_calling_iterations: int | None = idle(
        None, "tools are set by settings=['agent.tools=[file.py:function]', 'max_turns=4']"
    )
    vllm_importance_sampling_clip_min: float | None = refused(None, "weights are bounded from above alone")
    off_policy_mask_threshold: float | None = refused(
        None, "use settings=['algorithm.rollout_correction.reject_low=0.5']"
    )
    log_multimodal: bool = idle(True, "samples are shown as text")
    log_unique_prompts: bool = idle(False, "the run folder has every sample")
    log_completions_hub_repo: str | None = refused(None, "nothing is pushed to a hub; the samples are in rollouts/")
    use_transformers_continuous_batching: bool = idle(False, PAGED)
    transformers_continuous_batching_config: str | None = idle(None, PAGED)
    use_transformers_paged: bool = idle(False, PAGED)
