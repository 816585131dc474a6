"""Do the settings fit together? Asked before any process starts, answered with all problems at once.

`check_config` takes a resolved config and raises one error that lists every problem with its fix; `config_notes` says
what is allowed but probably not meant. Neither imports torch: what needs a device, a model or a cluster is checked
where those are opened. Whether each value has the right type is already settled by load.py.
"""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from podium.config.resolve import TASK_PREFIX, num_workers
from podium.config.schema import Config, OptimConfig
from podium.errors import ConfigError

GROUP_ESTIMATORS = (
    "grpo",
    "grpo_passk",
    "rloo",
    "opo",
    "reinforce_plus_plus_baseline",
    "gpg",
    "optimal_token_baseline",
    "tir_optimal_token_baseline",
    "gdpo",
)
"""Estimators that compare the samples of one prompt: with one sample every advantage is zero."""
ESTIMATORS = ("gae", "reinforce_plus_plus", "remax", *GROUP_ESTIMATORS)
POLICY_LOSSES = (
    *("vanilla", "gspo", "sapo", "cispo", "gpg", "clip_cov", "kl_cov", "geo_mean", "dppo_tv", "dppo_kl", "dro"),
    "reinforce",
)
KL_ESTIMATORS = ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3")

Problems = Iterator[str]


def check_config(config: Config) -> None:
    """Raise a ConfigError with every problem of a resolved config."""
    problems = [problem for check in _CHECKS for problem in check(config)]
    if len(problems) == 1:
        raise ConfigError(problems[0])
    if problems:
        raise ConfigError(f"{len(problems)} settings do not fit:\n" + "\n".join(f"- {problem}" for problem in problems))


def config_notes(config: Config) -> list[str]:
    """What is allowed and works, but may not be what was meant."""
    actor, algorithm, data = config.actor_rollout_ref.actor, config.algorithm, config.data
    notes = []
    if actor.use_kl_loss and algorithm.use_kl_in_reward:
        notes.append("KL to the reference counts twice: in the reward (use_kl_in_reward) and in the loss (use_kl_loss)")
    if algorithm.kl_ctrl.type == "adaptive" and not algorithm.use_kl_in_reward:
        notes.append("algorithm.kl_ctrl has no effect: algorithm.use_kl_in_reward is off")
    if actor.clip_ratio not in (actor.clip_ratio_low, actor.clip_ratio_high):
        notes.append("actor.clip_ratio has no effect: clip_ratio_low and clip_ratio_high are both set")
    if config.critic.enable and algorithm.adv_estimator in ESTIMATORS and algorithm.adv_estimator != "gae":
        notes.append(f"the critic is trained but {algorithm.adv_estimator} does not use its values")
    longest = data.max_prompt_length + data.max_response_length
    if actor.micro_batch_size_per_gpu is None and actor.max_tokens_per_micro_batch < longest:
        notes.append(
            f"a sequence may have {longest} tokens, more than actor.max_tokens_per_micro_batch "
            f"({actor.max_tokens_per_micro_batch}); it is then a micro-batch of its own"
        )
    return notes


def _check_finite(config: Config) -> Problems:
    def walk(section: Any, prefix: str) -> Problems:
        for item in fields(section):
            value, key = getattr(section, item.name), f"{prefix}{item.name}"
            if is_dataclass(value):
                yield from walk(value, f"{key}.")
            elif isinstance(value, float) and not math.isfinite(value):
                yield f"{key} = {value} is not a finite number"

    yield from walk(config, "")


def _require(config: Config, rules: dict[str, tuple[Callable[[Any], bool], str]]) -> Problems:
    """One problem per key whose value breaks its rule. Null and non-finite values are judged elsewhere."""
    for key, (holds, allowed) in rules.items():
        value: Any = config
        for part in key.split("."):
            value = getattr(value, part)
        if value is not None and not (isinstance(value, float) and not math.isfinite(value)) and not holds(value):
            yield f"{key} = {value} must be {allowed}"


_AT_LEAST_1 = (lambda x: x >= 1, "at least 1")
_AT_LEAST_0 = (lambda x: x >= 0, "at least 0")
_ABOVE_0 = (lambda x: x > 0, "above 0")
_SHARE = (lambda x: 0 <= x <= 1, "between 0 and 1")
_SHARE_ABOVE_0 = (lambda x: 0 < x <= 1, "above 0 and at most 1")
_TOP_K = (lambda x: x == -1 or x >= 1, "-1 (off) or at least 1")
_ACTOR, _ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"

_RANGES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "data.train_batch_size": _AT_LEAST_1,
    "data.val_batch_size": _AT_LEAST_1,
    "data.max_prompt_length": _AT_LEAST_1,
    "data.max_response_length": _AT_LEAST_1,
    "data.train_data_num": _AT_LEAST_1,
    "data.val_data_num": _AT_LEAST_1,
    f"{_ACTOR}.ppo_epochs": _AT_LEAST_1,
    f"{_ACTOR}.ppo_mini_batch_size": _AT_LEAST_1,
    f"{_ACTOR}.max_tokens_per_micro_batch": _AT_LEAST_1,
    f"{_ACTOR}.micro_batch_size_per_gpu": _AT_LEAST_1,
    f"{_ACTOR}.clip_ratio": _ABOVE_0,
    f"{_ACTOR}.clip_ratio_low": _SHARE_ABOVE_0,
    f"{_ACTOR}.clip_ratio_high": _ABOVE_0,
    f"{_ACTOR}.clip_ratio_c": (lambda x: x > 1, "above 1"),
    f"{_ACTOR}.kl_loss_coef": _AT_LEAST_0,
    f"{_ACTOR}.grad_clip": _ABOVE_0,
    f"{_ACTOR}.policy_loss.tau_pos": _ABOVE_0,
    f"{_ACTOR}.policy_loss.tau_neg": _ABOVE_0,
    f"{_ACTOR}.policy_loss.clip_cov_ratio": _SHARE,
    f"{_ACTOR}.policy_loss.kl_cov_ratio": _SHARE,
    f"{_ROLLOUT}.n": _AT_LEAST_1,
    f"{_ROLLOUT}.temperature": (lambda x: x > 0, "above 0: greedy samples are all alike and teach nothing"),
    f"{_ROLLOUT}.top_p": _SHARE_ABOVE_0,
    f"{_ROLLOUT}.top_k": _TOP_K,
    f"{_ROLLOUT}.min_p": (lambda x: 0 <= x < 1, "at least 0 and below 1"),
    f"{_ROLLOUT}.max_num_seqs": _AT_LEAST_1,
    f"{_ROLLOUT}.max_num_batched_tokens": _AT_LEAST_1,
    f"{_ROLLOUT}.block_size": _AT_LEAST_1,
    f"{_ROLLOUT}.gpu_memory_utilization": _SHARE_ABOVE_0,
    f"{_ROLLOUT}.kv_cache_gb": _ABOVE_0,
    f"{_ROLLOUT}.val_kwargs.n": _AT_LEAST_1,
    f"{_ROLLOUT}.val_kwargs.temperature": _AT_LEAST_0,
    f"{_ROLLOUT}.val_kwargs.top_p": _SHARE_ABOVE_0,
    f"{_ROLLOUT}.val_kwargs.top_k": _TOP_K,
    "actor_rollout_ref.ref.max_tokens_per_micro_batch": _AT_LEAST_1,
    "critic.ppo_epochs": _AT_LEAST_1,
    "critic.ppo_mini_batch_size": _AT_LEAST_1,
    "critic.max_tokens_per_micro_batch": _AT_LEAST_1,
    "critic.micro_batch_size_per_gpu": _AT_LEAST_1,
    "critic.cliprange_value": _ABOVE_0,
    "critic.grad_clip": _ABOVE_0,
    "reward.max_failure_rate": _SHARE,
    "algorithm.gamma": _SHARE,
    "algorithm.lam": _SHARE,
    "algorithm.kl_ctrl.kl_coef": _AT_LEAST_0,
    "algorithm.kl_ctrl.target_kl": _ABOVE_0,
    "algorithm.kl_ctrl.horizon": _AT_LEAST_1,
    "algorithm.kl_ctrl.warmup_ratio": _SHARE_ABOVE_0,
    "algorithm.ref_quality_score.max_weight": _SHARE,
    "algorithm.ref_quality_score.warmup_ratio": _SHARE_ABOVE_0,
    "algorithm.ref_quality_score.steps": _AT_LEAST_1,
    "algorithm.repr_align.ref_alignment.max_weight": _AT_LEAST_0,
    "algorithm.repr_align.ref_alignment.warmup_ratio": _SHARE_ABOVE_0,
    "algorithm.repr_align.ref_alignment.steps": _AT_LEAST_1,
    "algorithm.filter_groups.max_num_gen_batches": _AT_LEAST_1,
    "algorithm.overlong_buffer.len": _AT_LEAST_1,
    "algorithm.overlong_buffer.penalty_factor": _AT_LEAST_0,
    "algorithm.rollout_correction.threshold": _AT_LEAST_1,
    "trainer.nnodes": _AT_LEAST_1,
    "trainer.n_gpus_per_node": _AT_LEAST_1,
    "trainer.seed": _AT_LEAST_0,
    "trainer.total_epochs": _AT_LEAST_1,
    "trainer.total_training_steps": _AT_LEAST_1,
    "trainer.critic_warmup": _AT_LEAST_0,
    "trainer.test_freq": (lambda x: x == -1 or x >= 1, "-1 (only after the last step) or at least 1"),
    "trainer.save_freq": (lambda x: x >= -1, "-1 (only after the last step), 0 (never) or at least 1"),
    "trainer.logging_freq": _AT_LEAST_1,
    "trainer.log_val_generations": _AT_LEAST_0,
    "trainer.max_staleness": _AT_LEAST_0,
    "trainer.max_skipped_updates": _AT_LEAST_1,
    "trainer.worker_timeout_s": _ABOVE_0,
    "trainer.worker_start_timeout_s": _ABOVE_0,
    "trainer.micro_batch_size": _AT_LEAST_1,
    "trainer.gradient_accumulation_steps": _AT_LEAST_1,
}


def _check_ranges(config: Config) -> Problems:
    yield from _require(config, _RANGES)


def _check_optim(config: Config) -> Problems:
    sections: dict[str, OptimConfig] = {f"{_ACTOR}.optim": config.actor_rollout_ref.actor.optim}
    if config.critic.enable:
        sections["critic.optim"] = config.critic.optim
    for prefix, optim in sections.items():
        for name in ("lr", "weight_decay", "lr_warmup_steps"):
            if getattr(optim, name) < 0:
                yield f"{prefix}.{name} = {getattr(optim, name)} must be at least 0"
        if len(optim.betas) != 2 or not all(0 <= beta < 1 for beta in optim.betas):
            yield f"{prefix}.betas = {optim.betas} must be two numbers, each at least 0 and below 1"
        if not 0 <= optim.min_lr_ratio <= 1:
            yield f"{prefix}.min_lr_ratio = {optim.min_lr_ratio} must be between 0 and 1"


def _check_names(config: Config) -> Problems:
    actor, algorithm = config.actor_rollout_ref.actor, config.algorithm
    functions = {
        "algorithm.adv_estimator": (algorithm.adv_estimator, ESTIMATORS),
        f"{_ACTOR}.policy_loss.loss_mode": (actor.policy_loss.loss_mode, POLICY_LOSSES),
    }
    for key, (name, known) in functions.items():
        if name not in known and ":" not in name:
            yield f"{key} = {name} is unknown; {_nearest(name, known)}, or name a function of yours as module:function"
    estimators = {"algorithm.kl_penalty": algorithm.kl_penalty, f"{_ACTOR}.kl_loss_type": actor.kl_loss_type}
    for key, name in estimators.items():
        if name.removesuffix("+") not in KL_ESTIMATORS:
            yield f"{key} = {name} is unknown; {_nearest(name, KL_ESTIMATORS)} (a trailing + takes k2's gradient)"


def _nearest(name: str, known: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}" if near else f"known are {', '.join(known)}"


def _check_batches(config: Config) -> Problems:
    batch = config.data.train_batch_size
    mini_batches = {f"{_ACTOR}.ppo_mini_batch_size": config.actor_rollout_ref.actor.ppo_mini_batch_size}
    if config.critic.enable:
        mini_batches["critic.ppo_mini_batch_size"] = config.critic.ppo_mini_batch_size
    for key, mini_batch in mini_batches.items():
        if mini_batch and batch >= 1 and batch % mini_batch:
            below = max(size for size in range(1, min(batch, mini_batch) + 1) if batch % size == 0)
            yield f"data.train_batch_size = {batch} is not a multiple of {key} = {mini_batch}; {below} would fit"
    rows = config.data.train_data_num
    if rows is not None and rows < batch:
        yield (
            f"data.train_data_num = {rows} rows do not fill one batch of data.train_batch_size = {batch} prompts; "
            f"raise the one or lower the other"
        )
    yield from _check_accumulation(config)


def _check_accumulation(config: Config) -> Problems:
    """resolve() clears these two when they work out; whatever is left does not."""
    trainer, actor, n = config.trainer, config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout.n
    micro, steps = trainer.micro_batch_size, trainer.gradient_accumulation_steps
    if micro is None and steps is not None:
        yield (
            f"trainer.gradient_accumulation_steps = {steps} needs trainer.micro_batch_size; set it, or set "
            f"{_ACTOR}.ppo_mini_batch_size (prompts per optimizer step) instead"
        )
    if micro is None:
        return
    for key, given in (("actor_rollout_ref.actor", actor), ("critic", config.critic)):
        if given.micro_batch_size_per_gpu not in (None, micro):
            yield (
                f"trainer.micro_batch_size = {micro} and {key}.micro_batch_size_per_gpu = "
                f"{given.micro_batch_size_per_gpu} differ; set one of them"
            )
    samples = (steps or 0) * micro * num_workers(config)
    if samples and samples % n:
        yield (
            f"trainer.gradient_accumulation_steps × micro_batch_size × workers = {samples} samples is not a multiple "
            f"of {_ROLLOUT}.n = {n}; a mini-batch holds whole groups"
        )
    elif samples and actor.ppo_mini_batch_size != samples // n:
        yield (
            f"trainer.gradient_accumulation_steps × micro_batch_size × workers / n makes mini-batches of "
            f"{samples // n} prompts, {_ACTOR}.ppo_mini_batch_size = {actor.ppo_mini_batch_size}; set one of them"
        )


def _check_algorithm(config: Config) -> Problems:
    algorithm, rollout = config.algorithm, config.actor_rollout_ref.rollout
    if algorithm.adv_estimator in GROUP_ESTIMATORS and rollout.n == 1:
        yield (
            f"{_ROLLOUT}.n = 1 with algorithm.adv_estimator = {algorithm.adv_estimator}: a group of one has no "
            f"advantage; set n to 2 or more, or use gae or reinforce_plus_plus"
        )
    if algorithm.filter_groups.enable and rollout.n == 1:
        yield f"algorithm.filter_groups needs {_ROLLOUT}.n of 2 or more: a group of one always has equal rewards"
    if algorithm.adv_estimator == "gae" and config.critic.enable is False:
        yield "algorithm.adv_estimator = gae needs values: set critic.enable=true, or use grpo"
    if config.trainer.critic_warmup > 0 and not config.critic.enable:
        yield f"trainer.critic_warmup = {config.trainer.critic_warmup} without a critic: set it to 0, or enable the critic"
    if algorithm.kl_ctrl.type == "adaptive" and algorithm.kl_ctrl.schedule is not None:
        yield "algorithm.kl_ctrl.schedule belongs to type fixed; with type adaptive set schedule=null"
    buffer, limit = algorithm.overlong_buffer, config.data.max_response_length
    if buffer.enable and buffer.len > limit:
        yield f"algorithm.overlong_buffer.len = {buffer.len} is more than data.max_response_length = {limit}; lower it"
    correction = algorithm.rollout_correction
    filters = [f"{name}={getattr(rollout, name)}" for name in ("top_p", "top_k", "min_p") if _filters(rollout, name)]
    if correction.mode != "off" and filters:
        yield (
            f"algorithm.rollout_correction.mode = {correction.mode} with {_ROLLOUT} {', '.join(filters)}: filtered "
            f"samples have no weight under the full policy; set top_p=1 top_k=-1 min_p=0, or mode=off"
        )
    low, high = correction.reject_low, correction.reject_high
    if low is not None and high is not None and low >= high:
        yield f"algorithm.rollout_correction.reject_low = {low} must be below reject_high = {high}"
    sampling = rollout.val_kwargs
    if sampling.n > 1 and (not sampling.do_sample or sampling.temperature == 0):
        yield (
            f"{_ROLLOUT}.val_kwargs.n = {sampling.n} greedy samples would be equal; set n=1, or do_sample=true with a "
            f"temperature above 0"
        )


def _filters(rollout: Any, name: str) -> bool:
    return bool({"top_p": rollout.top_p < 1, "top_k": rollout.top_k > 0, "min_p": rollout.min_p > 0}[name])


def _check_trainer(config: Config) -> Problems:
    trainer, workers = config.trainer, num_workers(config)
    if trainer.runtime == "local" and workers > 1:
        yield (
            f"trainer.runtime = local has one worker, nnodes × n_gpus_per_node = {workers}; set trainer.runtime=ray, "
            f"or trainer.nnodes=1 trainer.n_gpus_per_node=1"
        )
    if trainer.max_staleness > 0 and trainer.runtime == "local":
        yield (
            f"trainer.max_staleness = {trainer.max_staleness} lets sampling run beside training, which needs "
            f"trainer.runtime=ray; the local runtime supports only 0"
        )
    for prefix, fsdp in ((_ACTOR, config.actor_rollout_ref.actor.fsdp), ("critic", config.critic.fsdp)):
        if fsdp.fsdp_size != -1 and (fsdp.fsdp_size < 1 or workers % fsdp.fsdp_size):
            yield f"{prefix}.fsdp.fsdp_size = {fsdp.fsdp_size} must be -1 or divide the {workers} workers"
    if trainer.resume_mode not in ("auto", "must", "disable") and not os.path.isdir(trainer.resume_mode):
        yield (
            f"trainer.resume_mode = {trainer.resume_mode} is neither auto, must or disable nor a checkpoint folder "
            f"that exists"
        )
    for name in ("project_name", "experiment_name"):
        if not getattr(trainer, name).strip():
            yield f"trainer.{name} is empty; give the run a name"


def _check_files(config: Config) -> Problems:
    data, reward = config.data, config.reward.custom_reward_function
    if not data.train_files:
        yield f"data.train_files is empty; name a parquet or jsonl file, or {TASK_PREFIX}addition"
    for key, files in (("data.train_files", data.train_files), ("data.val_files", data.val_files)):
        for path in files:
            if path.startswith(TASK_PREFIX) or "://" in path or os.path.exists(path):
                continue
            hint = "several files are a list: [a,b]" if "," in path else f"built-in tasks are written {TASK_PREFIX}<name>"
            yield f"{key}: there is no file {path}; {hint}"
    for key, path in (
        ("actor_rollout_ref.model.path", config.actor_rollout_ref.model.path),
        *([("critic.model.path", config.critic.model.path)] if config.critic.enable else []),
    ):
        if not path or (path.startswith(("/", "./", "../")) and not os.path.exists(path)):
            yield f"{key} = {path!r}: there is no such folder; give a Hugging Face folder, or builtin:tiny"
    if reward is not None:
        source, colon, name = reward.rpartition(":")
        if not colon or not source or not name:
            yield f"reward.custom_reward_function = {reward!r} must be path/to/file.py:function or module:function"
        elif (source.endswith(".py") or "/" in source) and not os.path.isfile(source):
            yield f"reward.custom_reward_function: there is no file {source}"


_CHECKS = (
    _check_finite,
    _check_ranges,
    _check_optim,
    _check_names,
    _check_batches,
    _check_algorithm,
    _check_trainer,
    _check_files,
)
