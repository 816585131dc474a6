"""Why some of verl's settings have no counterpart here, or need none.

A pattern is a run of whole parts of a dotted key: `rollout.mode` fits `actor_rollout_ref.rollout.mode`. Longer ones
are asked first.
"""

from __future__ import annotations

REASONS: dict[str, str] = {
    "use_remove_padding": "padding never reaches the model",
    "log_prob_micro_batch_size": "scoring uses the token budget (max_tokens_per_micro_batch)",
    "log_prob_use_dynamic_bsz": "scoring always uses a token budget",
    "log_prob_max_token_len": "scoring uses the actor's token budget",
    "forward_micro_batch_size": "scoring uses the token budget",
    "forward_max_token_len": "scoring uses the token budget",
    "reward_model.micro_batch_size": "its token budget is reward_model.max_tokens_per_micro_batch",
    "reward_model.use_dynamic_bsz": "its token budget is reward_model.max_tokens_per_micro_batch",
    "reward_model.max_length": "a response is scored whole",
    "strategy": "every role uses the actor's (actor_rollout_ref.actor.strategy)",
    "megatron": "here the section has tensor_model_parallel_size, sequence_parallel and use_distributed_optimizer",
    "ref.megatron": "the reference is split as the actor is (actor.megatron)",
    "megatron.param_offload": "weights stay on the device; there is no setting for it",
    "ref.ulysses_sequence_parallel_size": "the reference is split as the actor is (actor.fsdp)",
    "reward_model.ulysses_sequence_parallel_size": "a reward model takes whole sequences",
    "ref.fsdp_config": "the reference is sharded and offloaded as the actor is (actor.fsdp)",
    "reward_model.model.fsdp_config": "a reward model is sharded over all its workers",
    "grad_offload": "gradients are freed after each optimizer step",
    "offload_policy": "set actor.fsdp.param_offload and optimizer_offload",
    "rollout_n": "it is actor_rollout_ref.rollout.n",
    "checkpoint": "a checkpoint always has model, optimizer and the Hugging Face folder",
    "input_tokenizer": "a reward model reads the policy's tokens",
    "tokenizer_path": "the critic reads the policy's tokens",
    "data.tokenizer": "the tokenizer is the model folder's",
    "optim.total_training_steps": "the schedule's length follows from trainer.total_training_steps or total_epochs",
    "num_cycles": "the cosine goes down once",
    "custom_cls": "rows come from files; data.sampler takes a class of yours",
    "return_raw_input_ids": "a reward model reads the policy's tokens",
    "gen_batch_size": "each round generates data.train_batch_size prompts",
    "multi_turn": "set do_search, agent.tools or agent.environment, and max_turns",
    "hybrid_engine": "actor, rollout and reference always share their devices",
    "enforce_eager": "the native engine decides by itself; vLLM's goes into rollout.engine_kwargs",
    "enable_chunked_prefill": "prompts are always chunked by max_num_batched_tokens",
    "disable_log_stats": "there is nothing to switch off",
    "load_format": "weights come from the trainer",
    "max_model_len": "it is max_prompt_length + max_response_length",
    "rollout.prompt_length": "it is data.max_prompt_length",
    "rollout.response_length": "it is data.max_response_length",
    "calculate_log_probs": "the sampler's log-probs are always kept",
    "reward_fn_key": "the column is always data_source",
    "return_raw_chat": "the conversation is always kept",
    "use_torch_compile": "verl compiles the entropy alone; actor.fsdp.use_torch_compile compiles the model's blocks",
    "entropy_from_logits_with_chunking": "log-probs and entropy always come from a chunked head",
    "entropy_checkpointing": "log-probs and entropy always come from a chunked head",
    "fused_kernel_options": "log-probs and entropy always come from a chunked head",
    "use_fused_kernels": "log-probs and entropy always come from a chunked head",
    "use_liger": "log-probs and entropy always come from a chunked head",
    "reward_manager": "a reward function's form is found by looking at it; DAPO's penalty is algorithm.overlong_buffer",
    "reward_kwargs": "these go to verl's reward manager; arguments of a function of yours are reward.kwargs",
    "reward_kwargs.max_resp_len": "it is data.max_response_length",
    "overlong_buffer_cfg.log": "the penalty is part of the score",
    "overlong_buffer.log": "the penalty is part of the score",
    "launch_reward_fn_async": "rewards always run beside generation",
    "reward.num_workers": "set reward.num_processes, which counts per rollout worker",
    "reward.reward_model": "set reward_model.enable and reward_model.model.path",
    "ray_wait_register_center_timeout": "set trainer.worker_start_timeout_s",
    "max_critic_ckpt_to_keep": "actor and critic are one checkpoint: trainer.max_ckpt_to_keep",
    "del_local_ckpt_after_load": "set trainer.max_ckpt_to_keep",
    "use_legacy_worker_impl": "there is one kind of worker",
    "wrap_policy": "each block of the model is a unit of FSDP",
    "model_dtype": "master weights are float32; model.dtype is the type to compute in",
    "mixed_precision": "master weights are float32; model.dtype is the type to compute in",
    "override_config": "change the model's config.json",
    "external_lib": "name your functions as module:function",
    "filter_overlong_prompts_workers": "prompts are tokenized when they are drawn",
    "dataloader_num_workers": "rows are read when they are drawn",
    "filter_groups.metric": "groups are filtered by their score",
    "defaults": "Hydra's composition; give the resolved file or the command line",
    "_target_": "Hydra's",
    "ray_init": "set RAY_ADDRESS to join a cluster",
    "ray_kwargs": "set RAY_ADDRESS to join a cluster",
    "global_profiler": "there is no profiler setting",
    "profiler": "there is no profiler setting",
    "rollout.mode": "the rollout engine is driven by requests either way",
    "rollout.do_sample": "training always samples; validation has val_kwargs.do_sample",
    "rollout.dtype": "the rollout engine computes in model.dtype",
    "nccl_timeout": "set trainer.worker_timeout_s",
    "image_key": "the column is always images (docs/data.md)",
    "video_key": "videos are not read",
    # Search-R1
    "no_think_rl": "what the model writes before a tag is always kept; Search-R1 itself stops when this is true",
    "algorithm.state_masking": "what a search returned is known by its place, not by markers; see actor.state_masking",
    "reranker": "there is no reranker; let the retriever's server rank",
}


def reason_for(key: str) -> str | None:
    """Why a key has no counterpart, if it is one of verl's that are known."""
    whole = f".{key}."
    for suffix in ("", "_per_gpu"):
        for pattern, reason in _BY_LENGTH:
            if f".{pattern}{suffix}." in whole:
                return reason
    return None


_BY_LENGTH = sorted(REASONS.items(), key=lambda pair: -pair[0].count("."))
