"""Do the settings fit together? Asked before any process starts, answered with all problems at once.

`check_config` takes a resolved config and raises one error that lists every problem with its fix. It does not import
torch: what needs a device, a model or a cluster is checked where those are opened. Whether each value has the right
type is settled by load.py, its range and name by ranges.py; what is allowed but odd is said by notes.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import fields

from podium.config.ranges import GROUP_ESTIMATORS, check_each
from podium.config.resolve import TASK_PREFIX, num_workers
from podium.config.schema import Config, DeepSpeedConfig, MegatronConfig
from podium.errors import ConfigError

Problems = Iterator[str]

_ACTOR, _ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"


def check_config(config: Config) -> None:
    """Raise a ConfigError with every problem of a resolved config."""
    problems = [problem for check in _CHECKS for problem in check(config)]
    if len(problems) == 1:
        raise ConfigError(problems[0])
    if problems:
        raise ConfigError(f"{len(problems)} settings do not fit:\n" + "\n".join(f"- {problem}" for problem in problems))


def _check_batches(config: Config) -> Problems:
    batch = config.data.train_batch_size
    mini_batches = {f"{_ACTOR}.ppo_mini_batch_size": config.actor_rollout_ref.actor.ppo_mini_batch_size}
    if config.critic.enable:
        mini_batches["critic.ppo_mini_batch_size"] = config.critic.ppo_mini_batch_size
    for key, mini_batch in mini_batches.items():
        if mini_batch is not None and batch >= 1 and mini_batch >= 1 and batch % mini_batch:
            below = max(size for size in range(1, min(batch, mini_batch) + 1) if batch % size == 0)
            yield f"data.train_batch_size = {batch} is not a multiple of {key} = {mini_batch}; {below} would fit"
    rows = config.data.train_data_num
    if rows is not None and rows < batch:
        yield (
            f"data.train_data_num = {rows} rows do not fill one batch of data.train_batch_size = {batch} prompts; "
            f"raise the one or lower the other"
        )


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
    rows = {_ACTOR: actor.micro_batch_size_per_gpu, "critic": config.critic.micro_batch_size_per_gpu}
    differing = {key: given for key, given in rows.items() if given not in (None, micro)}
    for key, given in differing.items():
        yield f"trainer.micro_batch_size = {micro} and {key}.micro_batch_size_per_gpu = {given} differ; set one of them"
    samples = (steps or 0) * micro * num_workers(config)
    if differing or n < 1 or not samples:
        return
    if samples % n:
        yield (
            f"trainer.gradient_accumulation_steps × micro_batch_size × workers = {samples} samples is not a multiple "
            f"of {_ROLLOUT}.n = {n}; a mini-batch holds whole groups"
        )
    elif actor.ppo_mini_batch_size != samples // n:
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
    model = config.actor_rollout_ref.model
    if model.lora_rank > 0 and config.actor_rollout_ref.ref.path != model.path:
        yield "actor_rollout_ref.ref.path with lora_rank: the reference is the model without its adapters; set only one"
    if config.trainer.critic_warmup > 0 and config.critic.enable is False:
        yield f"trainer.critic_warmup = {config.trainer.critic_warmup} needs a critic: set 0, or critic.enable=true"
    if algorithm.kl_ctrl.type == "adaptive" and algorithm.kl_ctrl.schedule is not None:
        yield "algorithm.kl_ctrl.schedule belongs to type fixed; with type adaptive set schedule=null"
    buffer, limit = algorithm.overlong_buffer, config.data.max_response_length
    if buffer.enable and buffer.len > limit:
        yield f"algorithm.overlong_buffer.len = {buffer.len} is more than data.max_response_length = {limit}; lower it"


def _check_sampling(config: Config) -> Problems:
    correction, rollout = config.algorithm.rollout_correction, config.actor_rollout_ref.rollout
    active = {"top_p": rollout.top_p < 1, "top_k": rollout.top_k > 0, "min_p": rollout.min_p > 0}
    filters = [f"{name}={getattr(rollout, name)}" for name, on in active.items() if on]
    low, high = correction.reject_low, correction.reject_high
    if filters and (correction.mode != "off" or low is not None or high is not None):
        yield (
            f"algorithm.rollout_correction with {_ROLLOUT} {', '.join(filters)}: filtered samples have no weight under "
            f"the full policy; set top_p=1 top_k=-1 min_p=0, or mode=off reject_low=null reject_high=null"
        )
    if low is not None and high is not None and low >= high:
        yield f"algorithm.rollout_correction.reject_low = {low} must be below reject_high = {high}"
    sampling = rollout.val_kwargs
    if sampling.n > 1 and (not sampling.do_sample or sampling.temperature == 0):
        yield (
            f"{_ROLLOUT}.val_kwargs.n = {sampling.n} greedy samples would be equal; set n=1, or do_sample=true with a "
            f"temperature above 0"
        )


def _check_episodes(config: Config) -> Problems:
    agent, retriever, data = config.agent, config.retriever, config.data
    chosen = {"do_search": config.do_search, "agent.environment": bool(agent.environment)}
    chosen["agent.tools or agent.mcp_servers"] = config.has_tools
    if sum(chosen.values()) > 1:
        yield f"{' and '.join(key for key, on in chosen.items() if on)} are set; an episode has one environment"
    if config.do_search and not retriever.url and not retriever.corpus:
        yield "do_search needs documents: set retriever.url to a server, or retriever.corpus to a jsonl file"
    if retriever.corpus and not retriever.corpus.startswith(TASK_PREFIX) and not os.path.isfile(retriever.corpus):
        yield f"retriever.corpus: there is no file {retriever.corpus}"
    if retriever.url and not retriever.url.startswith(("http://", "https://")):
        yield f"retriever.url = {retriever.url!r} must begin with http:// or https://"
    if agent.environment and ":" not in agent.environment:
        yield f"agent.environment = {agent.environment!r} must be module:Class or file.py:Class"
    for tool in agent.tools:
        if tool != "python" and ":" not in tool:
            yield f"agent.tools: {tool!r} must be module:function, file.py:function, or python"
    if config.is_multi_turn and config.algorithm.overlong_buffer.enable:
        yield "algorithm.overlong_buffer is for single responses: data.max_response_length is a turn's; disable it"
    if data.max_start_length is not None and data.max_start_length > data.max_prompt_length:
        yield (
            f"data.max_start_length = {data.max_start_length} is more than data.max_prompt_length = "
            f"{data.max_prompt_length}, which an episode may have in all before a turn; lower it"
        )


def _check_lora(config: Config) -> Problems:
    models = {"actor_rollout_ref.model": config.actor_rollout_ref.model, "critic.model": config.critic.model}
    for prefix, model in models.items():
        if model.lora_rank and not model.target_modules:
            yield f"{prefix}.target_modules is empty with lora_rank = {model.lora_rank}; name layers, or all-linear"
    if config.reward_model.model.lora_rank:
        yield "reward_model.model.lora_rank must be 0: the reward model is not trained; give it the merged folder"


def _check_engine(config: Config) -> Problems:
    """Settings of an engine in a process of its own."""
    rollout = config.actor_rollout_ref.rollout
    if rollout.name in ("vllm", "sglang"):
        if rollout.url and rollout.name == "vllm":
            yield f"{_ROLLOUT}.url is a running SGLang server; with name=vllm leave it empty, or set name=sglang"
        return
    for name in ("python", "url", "engine_kwargs"):
        if getattr(rollout, name):
            yield f"{_ROLLOUT}.{name} is for name=vllm or sglang; name is {rollout.name}"
    if rollout.tensor_model_parallel_size > 1:
        size = rollout.tensor_model_parallel_size
        yield f"{_ROLLOUT}.tensor_model_parallel_size = {size} needs name=vllm or sglang; name is {rollout.name}"


def _check_strategy(config: Config) -> Problems:
    """Settings of the strategies that were not chosen must be as they come."""
    actor, critic, workers = config.actor_rollout_ref.actor, config.critic, num_workers(config)
    usual = {"deepspeed": DeepSpeedConfig(), "megatron": MegatronConfig()}
    roles = {_ACTOR: (actor, config.actor_rollout_ref.model)}
    roles |= {"critic": (critic, critic.model)} if critic.enable else {}  # type: ignore[dict-item]
    for prefix, (role, model) in roles.items():
        for name, default in usual.items():
            if actor.strategy != name and getattr(role, name) != default:
                yield f"{prefix}.{name} is for {_ACTOR}.strategy={name}; strategy is {actor.strategy}"
        for item in fields(role.fsdp) if actor.strategy != "fsdp" else ():
            given = getattr(role.fsdp, item.name)
            if given != item.default and item.name != "activation_offload":
                yield f"{prefix}.fsdp.{item.name} = {given} needs {_ACTOR}.strategy=fsdp, not {actor.strategy}"
        if role.deepspeed.offload_optimizer and actor.strategy == "deepspeed" and workers == 1:
            yield f"{prefix}.deepspeed.offload_optimizer needs several workers; with one, set strategy=fsdp"
        size = role.megatron.tensor_model_parallel_size
        if size >= 1 and workers % size:
            yield f"{prefix}.megatron.tensor_model_parallel_size = {size} must divide the {workers} workers"
        if actor.strategy == "megatron" and model.lora_rank:
            yield f"{prefix}: lora_rank = {model.lora_rank} needs {_ACTOR}.strategy=fsdp or deepspeed, not megatron"


def _check_trainer(config: Config) -> Problems:
    trainer, workers = config.trainer, num_workers(config)
    if trainer.runtime == "local" and workers > 1:
        yield (
            f"trainer.runtime = local has one worker, nnodes × n_gpus_per_node = {workers}; set trainer.runtime=ray, "
            f"or trainer.nnodes=1 trainer.n_gpus_per_node=1"
        )
    if trainer.runtime == "local" and config.actor_rollout_ref.rollout.nnodes:
        yield (
            f"trainer.runtime = local has one worker; {_ROLLOUT}.nnodes asks for a pool of rollout workers beside it: "
            f"set trainer.runtime=ray, or {_ROLLOUT}.nnodes=0"
        )
    if trainer.runtime == "local" and config.reward_model.enable and config.reward_model.nnodes:
        yield (
            "trainer.runtime = local has one worker; reward_model.nnodes asks for a pool beside it: set "
            "trainer.runtime=ray, or reward_model.nnodes=0"
        )
    if trainer.max_staleness > 0 and trainer.runtime == "local":
        yield (
            f"trainer.max_staleness = {trainer.max_staleness} lets sampling run beside training, which needs "
            f"trainer.runtime=ray; the local runtime supports only 0"
        )
    for prefix, fsdp in ((_ACTOR, config.actor_rollout_ref.actor.fsdp), ("critic", config.critic.fsdp)):
        if fsdp.fsdp_size != -1 and (fsdp.fsdp_size < 1 or workers % fsdp.fsdp_size):
            yield f"{prefix}.fsdp.fsdp_size = {fsdp.fsdp_size} must be -1 or divide the {workers} workers"
        ulysses = fsdp.ulysses_sequence_parallel_size
        if ulysses < 1 or workers % ulysses:
            yield f"{prefix}.fsdp.ulysses_sequence_parallel_size = {ulysses} must divide the {workers} workers"
    if trainer.resume_mode not in ("auto", "must", "disable") and not os.path.isdir(trainer.resume_mode):
        yield (
            f"trainer.resume_mode = {trainer.resume_mode} is neither auto, must or disable nor a checkpoint folder "
            f"that exists; to go on from a checkpoint write its folder: trainer.resume_mode=<folder>"
        )
    for name in ("project_name", "experiment_name"):
        if not getattr(trainer, name).strip():
            yield f"trainer.{name} is empty; give the run a name"


def _check_files(config: Config) -> Problems:
    data, reward, ref = config.data, config.reward.custom_reward_function, config.actor_rollout_ref.ref
    if not data.train_files:
        yield f"data.train_files is empty; name a parquet or jsonl file, or {TASK_PREFIX}addition"
    for key, files in (("data.train_files", data.train_files), ("data.val_files", data.val_files)):
        for path in files:
            if path.startswith(TASK_PREFIX) or "://" in path or os.path.exists(path):
                continue
            hint = (
                "several files are a list: [a,b]" if "," in path else f"built-in tasks are written {TASK_PREFIX}<name>"
            )
            yield f"{key}: there is no file {path}; {hint}"
    for key, path in (
        ("actor_rollout_ref.model.path", config.actor_rollout_ref.model.path),
        *([("actor_rollout_ref.ref.path", ref.path)] if ref.path != config.actor_rollout_ref.model.path else []),
        *([("critic.model.path", config.critic.model.path)] if config.critic.enable else []),
        *([("reward_model.model.path", config.reward_model.model.path)] if config.reward_model.enable else []),
    ):
        if not path or (path.startswith(("/", "./", "../")) and not os.path.exists(path)):
            what = "a Hugging Face folder, or builtin:tiny"
            if key == "reward_model.model.path":
                what = "what `podium train-reward` wrote, or a sequence classifier with one label"
            yield f"{key} = {path!r}: there is no such folder; give {what}"
    yield from _check_reward_functions(config, reward)


def _check_reward_functions(config: Config, custom: str | None) -> Problems:
    named = {"reward.custom_reward_function": custom} if custom is not None else {}
    named |= {f"reward.functions {word!r}": word for word in config.reward.functions if ":" in word}
    for key, reference in named.items():
        source, colon, name = str(reference).rpartition(":")
        if source in ("http", "https") or "://" in source:
            continue
        if not colon or not source or not name:
            yield f"{key} = {reference!r} must be path/to/file.py:function or module:function"
        elif (source.endswith(".py") or "/" in source) and not os.path.isfile(source):
            yield f"{key}: there is no file {source}"
    if custom is not None and config.reward.functions:
        yield "reward.custom_reward_function and reward.functions are both set; put the one into the other"


_CHECKS = (
    check_each,
    _check_batches,
    _check_accumulation,
    _check_algorithm,
    _check_sampling,
    _check_episodes,
    _check_lora,
    _check_engine,
    _check_strategy,
    _check_trainer,
    _check_files,
)
