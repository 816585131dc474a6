"""Work for ranks under DeepSpeed, and the same work for TorchEngine: stage 0 is FSDP, or a lone device."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path

import sharing_jobs
import torch
from rank_jobs import gathered, split
from sharing_jobs import Spoil
from torch import Tensor
from train_cases import make_batch, make_model, policy_loss, tokens, value_loss

from podium.config.schema import DeepSpeedConfig, ModelConfig, OptimConfig
from podium.engines.train.torch import TorchEngine
from podium.errors import ConfigError
from podium.metric import Metrics
from podium.models.lora import add_lora
from podium.models.value import ValueModel

TINY = {"stage3_param_persistence_threshold": 0}
"""Else ZeRO-3 would keep every parameter of a model this small whole."""
STEPS = 3
FORMS: dict[str, dict[str, object]] = {
    "plain": {},
    "one row at a time, untied": {"family": "llama", "micro_batch_size_per_gpu": 1},
    "checkpointing": {"gradient_checkpointing": True},
    "another optimizer": {"optim": OptimConfig(name="RMSprop", lr=1e-4, kwargs={"momentum": 0.5})},
    "optimizer on the host": {"offload": True},
    "no clipping": {"grad_clip": None},
}


def build(stage: int, module: object, **changes: object) -> TorchEngine:
    settings = {"optim": OptimConfig(lr=1e-3), "max_tokens_per_micro_batch": 30} | changes
    if stage == 0:
        settings.pop("offload", None)
        return TorchEngine(module, **settings)  # type: ignore[arg-type]
    warnings.simplefilter("default")  # its own code may use what is deprecated
    from podium.engines.train.deepspeed import DeepSpeedEngine

    zero = DeepSpeedConfig(stage, bool(settings.pop("offload", False)), TINY if stage == 3 else {})
    return DeepSpeedEngine(module, deepspeed=zero, **settings)  # type: ignore[arg-type]


def train(sizes: list[int], stage: int, family: str = "qwen2", **changes: object) -> dict[str, object]:
    """Three steps; what they made of the model."""
    checkpointing = bool(changes.pop("gradient_checkpointing", False))
    engine = build(stage, make_model(family, gradient_checkpointing=checkpointing), **changes)
    rows = split(make_batch(8), sizes)
    norms = []
    for _ in range(STEPS):
        metrics = engine.update(rows, policy_loss, tokens(rows), temperature=0.8)
        norms.append(metrics["grad_norm"].result())
    scores = engine.log_probs(rows, temperature=0.8, with_entropy=True)
    return {
        "weights": gathered(engine),
        "norms": norms,
        "loss": metrics.get("loss"),
        "log_probs": scores["log_probs"],
        "entropys": scores["entropys"],
        "mean_hidden": engine.mean_hidden(rows),
        "training": engine.module.training,
    }


def train_form(sizes: list[int], stage: int, name: str) -> dict[str, object]:
    return train(sizes, stage, **FORMS[name])  # type: ignore[arg-type]


def critic(sizes: list[int], stage: int) -> tuple[Tensor, dict[str, Tensor]]:
    value = ValueModel(make_model("qwen2").base_model)
    torch.manual_seed(0)
    torch.nn.init.normal_(value.value_head.weight)
    engine, rows = build(stage, value), split(make_batch(8), sizes)
    for _ in range(STEPS):
        engine.update(rows, value_loss, tokens(rows))
    return engine.values(rows), gathered(engine)


def half(sizes: list[int], stage: int, offload: bool = False) -> dict[str, object]:
    """bfloat16, a step too small for it: what moved, exactly kept masters, and weights in both types."""
    engine = build(stage, make_model("qwen2"), dtype=torch.bfloat16, optim=OptimConfig(lr=1e-5), offload=offload)
    rows = split(make_batch(8), sizes)
    before = gathered(engine)
    engine.update(rows, policy_loss, tokens(rows))
    after = gathered(engine)
    rounded = {name: tensor.clone() for name, tensor in engine.weights(torch.bfloat16)}
    scores = engine.log_probs(rows, temperature=1.0)["log_probs"]
    return {"before": before, "after": after, "rounded": rounded, "log_probs": scores}


def skip(sizes: list[int], stage: int, spoil: Spoil | None) -> tuple[list[dict[str, Tensor]], list[Metrics]]:
    """On the last rank."""
    return sharing_jobs.skip(partial(build, stage), sizes, spoil)


def without_rows(sizes: list[int], stage: int) -> dict[str, Tensor]:
    return sharing_jobs.without_rows(partial(build, stage), sizes)


def save(sizes: list[int], stage: int, folder: Path, after: int = 2) -> dict[str, Tensor]:
    return sharing_jobs.save(partial(build, stage), sizes, folder, after)


def load(sizes: list[int], stage: int, folder: Path, after: int = 2, used: bool = False) -> dict[str, Tensor]:
    return sharing_jobs.load(partial(build, stage), sizes, folder, after, used)


def refused(stage: int, kwargs: dict[str, object]) -> str:
    """What is said about a setting that DeepSpeed does not know."""
    from podium.engines.train.deepspeed import DeepSpeedEngine

    warnings.simplefilter("default")
    try:
        DeepSpeedEngine(make_model("qwen2"), deepspeed=DeepSpeedConfig(stage, False, kwargs), optim=OptimConfig())
    except ConfigError as error:
        return str(error)
    return ""


def lora(sizes: list[int], stage: int) -> dict[str, object]:
    module = make_model("qwen2")
    add_lora(module, ModelConfig(lora_rank=4, lora_alpha=8.0))
    engine, rows = build(stage, module), split(make_batch(8), sizes)
    for _ in range(STEPS):
        engine.update(rows, policy_loss, tokens(rows))
    with engine.reference():
        reference = engine.log_probs(rows, temperature=1.0)["log_probs"]
    adapter = {name: tensor.clone() for name, tensor in engine.adapter()}
    return {
        "weights": gathered(engine),
        "adapter": adapter,
        "reference": reference,
        "names": set(engine.state_tensors()),
    }
