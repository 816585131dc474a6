"""What a worker's device must hold, from the model's shape and the settings: weights, optimizer, KV, activations.

An estimate before anything is loaded. Weights, gradients and optimizer state are counted exactly; activations are a
formula per token, in `_activation_bytes`, so the sum is good to some ten percent. What libraries and the driver
take is in RESERVE_GB.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from podium.checks.findings import Findings, note, ok, problem
from podium.config.resolve import num_workers
from podium.config.schema import ActorConfig, Config, CriticConfig, FSDPConfig
from podium.trainer.requirements import needs_reference_policy

GB = float(1 << 30)
RESERVE_GB = 1.5
HEAD_CHUNK_TOKENS = 1024


@dataclass(frozen=True)
class Shape:
    """What the sizes of a model come down to."""

    parameters: int
    layers: int
    hidden: int
    intermediate: int
    kv_width: int
    """KV heads × head size."""
    vocabulary: int


@dataclass(frozen=True)
class Estimate:
    """GB of one worker, by what takes them."""

    weights: float
    optimizer: float
    kv: float
    activations: float
    reserve: float = RESERVE_GB

    @property
    def total(self) -> float:
        return self.weights + self.optimizer + self.kv + self.activations + self.reserve

    def words(self) -> str:
        parts = {name: getattr(self, name) for name in ("weights", "optimizer", "kv", "activations", "reserve")}
        return ", ".join(f"{name} {value:.1f}" for name, value in parts.items())


def read_shape(config: Any, trust_remote_code: bool = False) -> Shape:
    """Sizes from a model's configuration; parameters are counted on a module without memory."""
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    from podium.models.vision import is_vision_model

    family = AutoModelForImageTextToText if is_vision_model(config) else AutoModelForCausalLM
    with torch.device("meta"):
        module = family.from_config(config, trust_remote_code=trust_remote_code)
    text = config.get_text_config()
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return Shape(
        parameters=sum(parameter.numel() for parameter in module.parameters()),
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        intermediate=getattr(text, "intermediate_size", None) or 4 * text.hidden_size,
        kv_width=heads * size,
        vocabulary=text.vocab_size,
    )


def estimate(config: Config, shape: Shape, is_gpu: bool, device_gb: float) -> Estimate:
    """What one worker holds at most, all roles on its device."""
    model, actor = config.actor_rollout_ref.model, config.actor_rollout_ref.actor
    compute = 2 if model.dtype == "bfloat16" or (model.dtype == "auto" and is_gpu) else 4
    workers = num_workers(config)
    weights, optimizer = _trained(config, actor, shape, compute, model.lora_rank > 0)
    if needs_reference_policy(config) and not model.lora_rank:
        split = _is_split(config)
        weights += compute * shape.parameters / (_parts(actor) if split else _shards(actor.fsdp, workers))
    if workers > 1 or model.lora_rank:  # the rollout engine cannot share the trainer's own weights
        weights += compute * shape.parameters
    if config.critic.enable:
        critic = _trained(config, config.critic, shape, compute, config.critic.model.lora_rank > 0)
        weights, optimizer = weights + critic[0], optimizer + critic[1]
    if config.reward_model.enable:
        weights += compute * shape.parameters
    return Estimate(
        weights / GB,
        optimizer / GB,
        _kv_bytes(config, shape, compute, is_gpu, device_gb) / GB,
        _activation_bytes(config, shape, compute) / GB,
        RESERVE_GB if is_gpu else 0.5,
    )


def _shards(fsdp: FSDPConfig, workers: int) -> int:
    return workers if fsdp.fsdp_size == -1 else max(1, fsdp.fsdp_size)


def _is_split(config: Config) -> bool:
    return config.actor_rollout_ref.actor.strategy == "megatron" and num_workers(config) > 1


def _parts(role: ActorConfig | CriticConfig) -> int:
    return max(1, role.megatron.tensor_model_parallel_size)


def _trained(
    config: Config, role: ActorConfig | CriticConfig, shape: Shape, compute: int, lora: bool
) -> tuple[float, float]:
    """(weights and gradients, optimizer state) in bytes of a model that is trained."""
    fsdp, workers = role.fsdp, num_workers(config)
    shards = _shards(fsdp, workers)
    if _is_split(config):  # replicas hold the same, but for the optimizer's state
        part = shape.parameters / _parts(role)
        replicas = workers // _parts(role) if role.megatron.use_distributed_optimizer else 1
        return (8 + (compute if compute != 4 else 0)) * part, 8 * part / max(1, replicas)
    if config.actor_rollout_ref.actor.strategy == "deepspeed" and workers > 1:
        zero = role.deepspeed  # weights in the compute type lie beside the masters
        weights = compute * shape.parameters / (1 if zero.zero_stage == 2 else workers)
        part = 0.0 if lora else 4 * shape.parameters / workers
        return weights + (1 if zero.offload_optimizer else 2) * part, 0.0 if zero.offload_optimizer else 2 * part
    if lora:
        return compute * shape.parameters / shards, 0.0
    master = 4 * shape.parameters / shards
    copy = compute * shape.parameters if workers == 1 and compute != 4 else 0.0
    gathered = 2 * compute * shape.parameters / max(1, shape.layers) if workers > 1 else 0.0
    return 2 * master + copy + gathered, 0.0 if fsdp.optimizer_offload else 2 * master


def _kv_bytes(config: Config, shape: Shape, compute: int, is_gpu: bool, device_gb: float) -> float:
    """What the cache may grow to, but no more than the sequences of a step could fill."""
    rollout, data = config.actor_rollout_ref.rollout, config.data
    samples = data.train_batch_size * rollout.n / num_workers(config)
    tokens = min(rollout.max_num_seqs, samples) * (data.max_prompt_length + data.max_response_length)
    limit = rollout.gpu_memory_utilization * device_gb * GB if is_gpu else rollout.kv_cache_gb * GB
    return min(limit, kv_bytes_per_token(shape, compute) * tokens)


def kv_bytes_per_token(shape: Shape, compute: int) -> int:
    return 2 * shape.layers * shape.kv_width * compute


def _activation_bytes(config: Config, shape: Shape, compute: int) -> float:
    """Of one micro-batch, the larger of actor and critic, and the chunked head's logits."""
    model, actor, data = config.actor_rollout_ref.model, config.actor_rollout_ref.actor, config.data
    longest = data.max_prompt_length + data.max_response_length
    budget = actor.max_tokens_per_micro_batch
    if actor.micro_batch_size_per_gpu is not None:
        budget = actor.micro_batch_size_per_gpu * longest
    samples = data.train_batch_size * config.actor_rollout_ref.rollout.n / num_workers(config)
    tokens = min(max(budget, longest), samples * longest)
    # A block keeps some nine tensors of its width (inputs, norms, queries, keys, values, attention output) and three to
    # four of the gated layer's; the factors are fitted to peaks measured on an H200 (tests/checks). With checkpointing
    # one block is alive, and of the others only the input.
    block = compute * (9 * shape.hidden + 3.4 * shape.intermediate)
    layers = block + shape.layers * compute * shape.hidden
    if not model.enable_gradient_checkpointing:
        layers = shape.layers * block
    return tokens * layers + 3 * 4 * HEAD_CHUNK_TOKENS * shape.vocabulary


def check_memory(config: Config, shape: Shape, is_gpu: bool, device_gb: float, name: str) -> Findings:
    """Does it fit, and if not, what does?"""
    now = estimate(config, shape, is_gpu, device_gb)
    count = shape.parameters
    size = f"{count / 1e9:.2f} billion" if count > 1e8 else f"{count / 1e6:.2f} million"
    said = f"about {now.total:.1f} of {device_gb:.1f} GB on {name}, {size} parameters ({now.words()})"
    if now.total > device_gb:
        yield problem("memory", said, _what_fits(config, shape, is_gpu, device_gb))
    elif now.total > 0.9 * device_gb:
        yield note("memory", said, "close to the limit: lower actor.max_tokens_per_micro_batch if it fails")
    else:
        yield ok("memory", said)


def _what_fits(config: Config, shape: Shape, is_gpu: bool, device_gb: float) -> str:
    """The mildest change that makes it fit, with the largest setting that does."""

    def fits(changed: Config) -> bool:
        return estimate(changed, shape, is_gpu, device_gb).total <= device_gb

    for words, make in _REMEDIES:
        best = largest(fits, config, make)
        if best is not None:
            return f"{words.format(best)} fits"
    for count in (2, 4, 8, 16, 32, 64, 128):
        wider = _with_workers(config, count)
        if count > num_workers(config) and fits(_micro(_checkpointing(wider), 2048)):
            return (
                f"spread it over {count} GPUs (trainer.n_gpus_per_node, trainer.nnodes), or train adapters (lora_rank)"
            )
    return "no setting of this model fits; use a smaller one, or adapters (actor_rollout_ref.model.lora_rank=32)"


def largest(fits: Any, config: Config, make: Any) -> int | None:
    """The largest power-of-two token budget for which the changed settings fit."""
    for tokens in (16384, 8192, 4096, 2048, 1024):
        if tokens <= config.actor_rollout_ref.actor.max_tokens_per_micro_batch and fits(make(config, tokens)):
            return tokens
    return None


def _micro(config: Config, tokens: int) -> Config:
    ref = config.actor_rollout_ref
    actor = replace(ref.actor, max_tokens_per_micro_batch=tokens, micro_batch_size_per_gpu=None)
    return replace(config, actor_rollout_ref=replace(ref, actor=actor))


def _checkpointing(config: Config) -> Config:
    ref = config.actor_rollout_ref
    model = replace(ref.model, enable_gradient_checkpointing=True)
    return replace(config, actor_rollout_ref=replace(ref, model=model))


def _small_cache(config: Config) -> Config:
    ref = config.actor_rollout_ref
    rollout = replace(ref.rollout, gpu_memory_utilization=0.2, kv_cache_gb=min(ref.rollout.kv_cache_gb, 0.5))
    return replace(config, actor_rollout_ref=replace(ref, rollout=rollout))


def _with_workers(config: Config, count: int) -> Config:
    return replace(config, trainer=replace(config.trainer, nnodes=1, n_gpus_per_node=count))


_BUDGET = "actor_rollout_ref.actor.max_tokens_per_micro_batch={}"
_CHECKPOINT = "actor_rollout_ref.model.enable_gradient_checkpointing=true"
_CACHE = "actor_rollout_ref.rollout.gpu_memory_utilization=0.2 (kv_cache_gb=0.5 on a CPU)"
_REMEDIES = (
    (_BUDGET, _micro),
    (f"{_CHECKPOINT} with {_BUDGET}", lambda config, tokens: _micro(_checkpointing(config), tokens)),
    (
        f"{_CHECKPOINT} and {_CACHE} with {_BUDGET}",
        lambda config, tokens: _micro(_checkpointing(_small_cache(config)), tokens),
    ),
)
