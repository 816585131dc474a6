"""Work for ranks under Megatron, and the same work for TorchEngine: size 0 is FSDP, or a lone device."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path

import sharing_jobs
import torch
import torch.distributed as dist
from rank_jobs import gathered, split
from sharing_jobs import Spoil
from torch import Tensor
from train_cases import make_batch, make_model, policy_loss, tokens, value_loss

from podium.config.schema import FSDPConfig, MegatronConfig, ModelConfig, OptimConfig
from podium.engines.train.logprobs import HeadOutputs
from podium.engines.train.torch import TorchEngine
from podium.errors import ConfigError, ModelError
from podium.metric import Metrics
from podium.models.load import load_causal_lm
from podium.models.lora import add_lora
from podium.models.value import ValueModel

STEPS = 3
FORMS: dict[str, dict[str, object]] = {
    "qwen2: biases, tied head": {},
    "llama, one row at a time": {"family": "llama", "micro_batch_size_per_gpu": 1},
    "qwen3: norms of queries and keys": {"family": "qwen3"},
    "mistral with a window": {"family": "mistral"},
    "llama3 rope": {
        "family": "llama",
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    },
    "yarn": {"family": "qwen2", "rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0}},
    "qwen3: norms of queries and keys, plain descent": {  # AdamW would blow up the rounding of tiny gradients
        "family": "qwen3",
        "num_key_value_heads": 4,
        "optim": OptimConfig(name="SGD", lr=0.1, weight_decay=0.0),
    },
    "every replica all of the optimizer's state": {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "use_distributed_optimizer": False,
    },
    "four key-value heads": {"num_attention_heads": 8, "num_key_value_heads": 4},
    "every rank all tokens": {"sequence_parallel": False},
    "every rank all tokens, qwen3": {"sequence_parallel": False, "family": "qwen3"},
    "checkpointing": {"gradient_checkpointing": True},
    "another optimizer": {"optim": OptimConfig(name="SGD", lr=1e-2, kwargs={"momentum": 0.5})},
    "no clipping": {"grad_clip": None},
    "warm-up and decay": {
        "optim": OptimConfig(lr=1e-3, lr_warmup_steps=1, lr_decay="cosine", weight_decay=0.1),
        "total_steps": 3,
    },
}
OF_MEGATRON = ("sequence_parallel", "use_distributed_optimizer")
OF_ENGINE = (
    *OF_MEGATRON,
    "optim",
    "micro_batch_size_per_gpu",
    "grad_clip",
    "total_steps",
    "dtype",
    "max_tokens_per_micro_batch",
)


def build(size: int, module: object, **changes: object) -> TorchEngine:
    settings = {"optim": OptimConfig(lr=1e-3), "max_tokens_per_micro_batch": 30} | changes
    if size == 0:
        own = {key: value for key, value in settings.items() if key not in OF_MEGATRON}
        return TorchEngine(module, **own)  # type: ignore[arg-type]
    warnings.simplefilter("default")  # its own code may use what is deprecated
    from podium.engines.train.megatron import MegatronEngine

    chosen = {key: bool(settings.pop(key, True)) for key in OF_MEGATRON}
    return MegatronEngine(module, megatron=MegatronConfig(size, **chosen), **settings)  # type: ignore[arg-type]


def train(sizes: list[int], size: int, family: str = "qwen2", **changes: object) -> dict[str, object]:
    """Three steps; what they made of the model."""
    settings = {key: changes.pop(key) for key in OF_ENGINE if key in changes}
    engine = build(size, make_model(family, **changes), **settings)  # type: ignore[arg-type]
    rows = split(make_batch(8), sizes)
    options = {"temperature": 0.8, "with_sum_pi_squared": True}
    before = engine.log_probs(rows, with_entropy=True, **options)  # type: ignore[arg-type]
    norms = []
    assert engine.optimizer is not None
    for _ in range(STEPS):
        metrics = engine.update(rows, policy_loss, tokens(rows), **options)  # type: ignore[arg-type]
        norms.append(metrics["grad_norm"].result())
    scores = engine.log_probs(rows, with_entropy=True, **options)  # type: ignore[arg-type]
    return {
        "before": before,
        "scores": scores,
        "weights": gathered(engine),
        "norms": norms,
        "lr": metrics["lr"].result(),
        "loss": metrics.get("loss"),
        "mean_hidden": engine.mean_hidden(rows),
        "training": engine.module.training or engine.root.training,
        "held": sum(p.numel() for p in engine.root.parameters()),
        "moments": sum(s["exp_avg"].numel() for s in engine.optimizer.state.values() if "exp_avg" in s),
    }


def tokens_between_layers(sizes: list[int], size: int, sequence_parallel: bool) -> tuple[int, int]:
    """Tokens of one row that a rank's last norm sees, and of the row."""
    engine = build(size, make_model("qwen2"), sequence_parallel=sequence_parallel, optim=None)
    seen: list[int] = []
    norm = engine.root.get_submodule("gpt.decoder.final_layernorm")
    norm.register_forward_hook(lambda _module, inputs, _output: seen.append(len(inputs[0])))
    rows = split(make_batch(1, prompt=7, response=9, seed=4), sizes)
    engine.log_probs(rows, temperature=1.0)
    return seen[0], int(make_batch(1, prompt=7, response=9, seed=4).tensors()["attention_mask"].sum()) - 1


def train_form(sizes: list[int], size: int, name: str) -> dict[str, object]:
    return train(sizes, size, **FORMS[name])  # type: ignore[arg-type]


def critic(sizes: list[int], size: int) -> tuple[Tensor, dict[str, Tensor]]:
    value = ValueModel(make_model("qwen2").base_model)
    torch.manual_seed(0)
    torch.nn.init.normal_(value.value_head.weight)
    engine, rows = build(size, value), split(make_batch(8), sizes)
    for _ in range(STEPS):
        engine.update(rows, value_loss, tokens(rows))
    return engine.values(rows), gathered(engine)


def half(sizes: list[int], size: int) -> dict[str, object]:
    """bfloat16, a step too small for it: what moved, exactly kept masters, and weights in both types."""
    engine = build(size, make_model("qwen2"), dtype=torch.bfloat16, optim=OptimConfig(lr=1e-5))
    rows = split(make_batch(8), sizes)
    before = gathered(engine)
    engine.update(rows, policy_loss, tokens(rows))
    after = gathered(engine)
    rounded = {name: tensor.clone() for name, tensor in engine.weights(torch.bfloat16)}
    scores = engine.log_probs(rows, temperature=1.0)["log_probs"]
    return {"before": before, "after": after, "rounded": rounded, "log_probs": scores}


def from_files(sizes: list[int], size: int, folder: Path) -> tuple[Tensor, dict[str, Tensor]]:
    """A model that only scores, whose values are read a tensor at a time."""
    module = load_causal_lm(ModelConfig(path=str(folder)), empty=True)
    assert all(parameter.is_meta for parameter in module.parameters())
    engine = build(size, module, optim=None)
    rows = split(make_batch(8), sizes)
    return engine.log_probs(rows, temperature=1.0)["log_probs"], gathered(engine)


def skip(sizes: list[int], size: int, spoil: Spoil | None) -> tuple[list[dict[str, Tensor]], list[Metrics]]:
    """On the last group of ranks."""
    return sharing_jobs.skip(partial(build, size), sizes, spoil, max(size, 1))


def without_rows(sizes: list[int], size: int) -> dict[str, Tensor]:
    return sharing_jobs.without_rows(partial(build, size), sizes)


def save(sizes: list[int], size: int, folder: Path, after: int = 2) -> dict[str, Tensor]:
    return sharing_jobs.save(partial(build, size), sizes, folder, after)


def load(sizes: list[int], size: int, folder: Path, after: int = 2, used: bool = False) -> dict[str, Tensor]:
    return sharing_jobs.load(partial(build, size), sizes, folder, after, used)


def refused(family: str, size: int, words: tuple[str, ...]) -> str:
    """What is said about a model or settings that do not go with it."""
    module = make_model(family, **({"attention_bias": True} if "biased" in words else {}))  # type: ignore[arg-type]
    if "lora" in words:
        add_lora(module, ModelConfig(lora_rank=4))
    settings: dict[str, object] = {"fsdp": FSDPConfig(ulysses_sequence_parallel_size=1 + ("ulysses" in words))}
    if "muon" in words:
        settings["optim"] = OptimConfig(name="Muon")
    try:
        build(size, module, **settings)
    except (ConfigError, ModelError) as error:
        return str(error)
    return ""


def head_case(vocabulary: int) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states, the head's weight, labels; logits far apart, and exact enough to compare closely."""
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(11, 16, generator=generator, dtype=torch.float64)
    weight = 2 * torch.randn(vocabulary, 16, generator=generator, dtype=torch.float64)
    return hidden.requires_grad_(), weight, torch.randint(vocabulary, (11,), generator=generator)


def backward_of(outputs: HeadOutputs) -> None:
    assert outputs.entropy is not None and outputs.sum_pi_squared is not None
    each = torch.linspace(-1, 1, len(outputs.log_probs))
    (outputs.log_probs * each + outputs.entropy * each.square() - outputs.sum_pi_squared * (1 - each)).sum().backward()


def shared_head(vocabulary: int, temperature: float) -> dict[str, Tensor]:
    """Each rank has its rows of the head: outputs, and its part of the gradients."""
    from podium.engines.train.megatron_head import vocab_parallel_log_probs

    hidden, weight, labels = head_case(vocabulary)
    rank, rows = dist.get_rank(), -(-vocabulary // dist.get_world_size())
    own = weight[rank * rows : (rank + 1) * rows].clone().requires_grad_()
    every = dist.group.WORLD
    assert every is not None
    options = {"first": rank * rows, "group": every, "chunk": 4, "with_entropy": True, "with_sum_pi_squared": True}
    outputs = vocab_parallel_log_probs(hidden, own, labels, temperature, **options)  # type: ignore[arg-type]
    backward_of(outputs)
    assert hidden.grad is not None and own.grad is not None
    return {name: t.detach() for name, t in vars(outputs).items()} | {"hidden": hidden.grad, "weight": own.grad}
